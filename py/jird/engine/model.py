"""A checkpoint as a model: family, config, weight formats, tokenizer spec, rope tables; and the plans it runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Mapping

from ..errors import BadCheckpoint, ModelNotSupported, shown
from ..graph.ir import Format
from ..models import load_family
from ..models.weightlist import ModelWeight
from ..plan.compile import compile, prepare
from ..plan.context import context_for
from ..plan.fuse import SINGLE_KEYS
from ..plan.plan import Plan
from ..runtime.device import DeviceInfo
from ..weights.checkpoint import Checkpoint
from ..weights.quant import canonical
from .options import EngineOptions

UNUSED = ("rope_freqs.weight",)  # GGUF tensors that are read elsewhere or not at all


@dataclass(frozen=True)
class Model:
    """What a checkpoint holds, matched with its family."""

    family: ModuleType
    config: Any
    weights: tuple[ModelWeight, ...]
    checkpoint: Checkpoint

    @property
    def formats(self) -> dict[str, Format]:
        """Canonical format of every matrix by model weight name; vectors are held in f32."""
        out = {}
        for w in self.weights:
            info = self.checkpoint.tensors[self.source_name(w)]
            out[w.name] = canonical(info.type, info.columns) if len(w.shape) > 1 else Format("f32")
        return out

    def source_name(self, w: ModelWeight) -> str:
        return w.gguf if self.checkpoint.kind == "gguf" else w.hf


def model_of(checkpoint: Checkpoint, config_json: Mapping[str, Any] | None = None) -> Model:
    """Matches a checkpoint with its family and checks every weight's presence and shape.

    Raises: ModelNotSupported (architecture, config, a tensor that is neither used nor known), BadCheckpoint (missing or misshapen tensors).
    """
    if checkpoint.kind == "gguf":
        family = load_family(checkpoint.architecture)
        config = family.Config.from_gguf(checkpoint.meta, checkpoint.tensors)
    else:
        if config_json is None:
            raise BadCheckpoint("a safetensors checkpoint needs its config.json beside it")
        if not isinstance(config_json, Mapping):
            raise BadCheckpoint(f"config.json is {shown(config_json)}; an object is expected")
        family = load_family(str(config_json.get("model_type", "")))
        config = family.Config.from_hf(config_json)
    model = Model(family, config, tuple(family.weights(config)), checkpoint)
    _check_tensors(model)
    return model


def _check_tensors(model: Model) -> None:
    wanted = {model.source_name(w): w for w in model.weights}
    tensors = model.checkpoint.tensors
    missing = [n for n in wanted if n not in tensors]
    if missing:
        raise BadCheckpoint(f"the checkpoint lacks {len(missing)} of {len(wanted)} tensors, the first is {missing[0]}")
    for name, w in wanted.items():
        if tuple(tensors[name].shape) != w.shape:
            raise BadCheckpoint(f"tensor {name} is {list(tensors[name].shape)}; the config says {list(w.shape)}")
    tied = {"lm_head.weight"} if getattr(model.config, "is_tied", False) else set()
    extra = [n for n in tensors if n not in wanted and n not in UNUSED and n not in tied and not n.endswith("rotary_emb.inv_freq")]
    if extra:
        raise ModelNotSupported(f"the checkpoint has {len(extra)} tensors that the model does not use, the first is {extra[0]}")


@dataclass(frozen=True)
class PlanSet:
    """Every plan of a loaded model by name: "prefill-R" for R rows, "decode-R-greedy|sampled-short|long" for R lanes.

    steps: step buffer name -> rows; step_of: plan name -> step buffer name.
    """

    plans: Mapping[str, Plan]
    steps: Mapping[str, int]
    step_of: Mapping[str, str]


def chunk_rows(info: DeviceInfo, options: EngineOptions, context: int) -> tuple[int, ...]:
    """Rows of the prefill plans, smallest first: enough sizes that few rows are wasted, not so many that plans cost more."""
    rows = options.chunk_rows or ((16, 32, 64) if info.is_software else (32, 128, 512))
    return tuple(sorted({min(r, max(context, 8)) for r in rows}))


def plans_of(model: Model, info: DeviceInfo, options: EngineOptions, failed: frozenset[tuple[str, str]] = frozenset()) -> PlanSet:
    """Compiles all plans of a model for a device. Pure; needs no device.

    Raises: KernelFailed, ModelNotSupported from compile.
    """
    context = min(options.context, model.config.context)
    base = context_for(info, rows=1, slots=options.slots, context=context, passes=options.passes, failed=failed)
    plans: dict[str, Plan] = {}
    steps: dict[str, int] = {}
    step_of: dict[str, str] = {}

    def add(name: str, graph, step: str, ctx) -> None:
        plans[name] = compile(prepare(replace(graph, name=name), formats), ctx)
        steps[step] = ctx.rows
        step_of[name] = step

    formats = model.formats
    prefill = model.family.graph(model.config, head=False)
    for rows in chunk_rows(info, options, context):
        add(f"prefill-{rows}", prefill, f"prefill-{rows}", replace(base, rows=rows))
    for lanes in sorted({1, options.slots}):
        for is_sampled in (False, True):
            graph = model.family.graph(model.config, head=True, sampled=is_sampled)
            for keys in sorted({min(SINGLE_KEYS, context), context}):
                add(decode_plan(lanes, keys, is_sampled), graph, f"decode-{lanes}", replace(base, rows=lanes, one_row_a_slot=True, kv_limit=keys))
    return PlanSet(plans, steps, step_of)


def decode_plan(lanes: int, keys: int, is_sampled: bool = False) -> str:
    """Name of the decode plan of `lanes` rows, none of which sees more than `keys` keys."""
    return f"decode-{lanes}-{'sampled' if is_sampled else 'greedy'}-{'short' if keys <= SINGLE_KEYS else 'long'}"


def first_plans(planset: PlanSet) -> list[str]:
    """Plans that the first answer needs: every prefill plan and the short greedy decode plan."""
    return [n for n in planset.plans if n.startswith("prefill-")] + [decode_plan(1, 1)]
