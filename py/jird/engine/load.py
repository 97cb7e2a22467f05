"""load_engine: checkpoint -> plans -> self-test -> buffers -> weights -> Engine."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Callable, Mapping

import numpy as np

from ..errors import BadCheckpoint, ModelNotSupported
from ..runtime.device import Device
from ..runtime.probe import probe_submits
from ..runtime.executor import ModelBuffers, weight_specs
from ..text.gguf_tokenizer import spec_from_gguf
from ..text.tokenizer import TokenizerSpec, make_tokenizer, spec_from_files
from ..weights.checkpoint import Checkpoint, Source
from ..weights.gguf import read_gguf
from ..weights.load import WeightPart, load_weights
from ..weights.safetensors import read_safetensors
from .engine import Engine
from .model import Model, PlanSet, first_plans, model_of
from .options import Cancel, EngineOptions, LoadProgress
from .trust import Trust

Progress = Callable[[LoadProgress], None]


@dataclass(frozen=True)
class Sidecar:
    """The files that stand beside a safetensors checkpoint: config.json and the tokenizer's spec."""

    config: Mapping[str, Any]
    spec: TokenizerSpec


SIDECAR_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")


def sidecar_of(files: Mapping[str, bytes]) -> Sidecar:
    """From the contents of those of SIDECAR_FILES that the folder has.

    Raises: BadCheckpoint naming a file that is missing or not JSON.
    """

    def parsed(name: str, is_needed: bool = False) -> Any:
        if name not in files:
            if is_needed:
                raise BadCheckpoint(f"the checkpoint folder has no {name}; it has {', '.join(sorted(files)) or 'none of the files beside the weights'}")
            return None
        try:
            return json.loads(files[name])
        except (ValueError, RecursionError) as e:
            raise BadCheckpoint(f"{name} is not JSON: {e}") from e

    config = parsed("config.json", True)
    try:
        template = files["chat_template.jinja"].decode("utf-8") if "chat_template.jinja" in files else None
    except UnicodeDecodeError as e:
        raise BadCheckpoint(f"chat_template.jinja is not UTF-8: {e}") from None
    spec = spec_from_files(parsed("tokenizer.json", True), parsed("tokenizer_config.json") or {}, parsed("generation_config.json"),
                           template, config)
    return Sidecar(config, spec)


async def read_checkpoint(source: Source) -> Checkpoint:
    """The header of a GGUF or safetensors file, told apart by its first bytes.

    Raises: BadCheckpoint when it is neither.
    """
    magic = await source.read(0, min(16, source.size))
    if magic[:4] == b"GGUF" or magic.lstrip()[:1] == b"<" or len(magic) < 16:
        return await read_gguf(source)
    if magic[8:9] == b"{":
        return await read_safetensors(source)
    raise BadCheckpoint(f"the file begins with {magic[:8]!r}; neither GGUF nor safetensors")


async def load_engine(device: Device, source: Source, options: EngineOptions = EngineOptions(), progress: Progress = lambda p: None,
                      cancel: Cancel | None = None, sidecar: Sidecar | None = None, is_tested: bool = False, known: set[str] | None = None) -> Engine:
    """Loads a model onto a device and returns what generates from it.

    is_tested: no self-test; known: texts that passed it on this adapter and browser before (Trust.known), added to as more pass
    Raises: BadCheckpoint, ModelNotSupported, KernelFailed, OutOfMemory, Aborted, FetchFailed; nothing is left on the device.
    """
    cancel = cancel or Cancel()
    progress(LoadProgress("header", 0, 1))
    checkpoint = await read_checkpoint(source)
    model = model_of(checkpoint, sidecar.config if sidecar else None)
    spec = sidecar.spec if sidecar else spec_from_gguf(dict(checkpoint.meta))
    if spec.vocab_size > model.config.vocab:
        raise BadCheckpoint(f"the tokenizer has {spec.vocab_size} tokens, the model's table {model.config.vocab} rows; ids past the table cannot be looked up")
    tokenizer = make_tokenizer(spec)
    spec = spec.light()
    cancel.check()
    progress(LoadProgress("plan", 0, 1))
    if device.info.trust == "probe":
        await probe_submits(device)
    trust = Trust(device, model, options, is_tested, set() if known is None else known)
    planset = trust.plans()
    planset = await trust.tested(planset, first_plans(planset), lambda done, total: progress(LoadProgress("selftest", done, total)))
    cancel.check()
    factors = await _rope_factors(source, checkpoint, model.config.head_dim)
    context = min(options.context, model.config.context)
    buffers = ModelBuffers(device)
    await buffers.allocate(planset.plans, planset.steps)
    try:
        for name, table in model.family.rope_tables(model.config, context, factors).items():
            device.write(buffers.states[name], 0, np.ascontiguousarray(table))
        started = perf_counter()
        where = {tuple(key.split("#")): b for key, b in buffers.weights.items()}
        await load_weights(device, source, checkpoint, weight_parts(model, planset), where,
                           progress=lambda done, total: progress(LoadProgress("weights", done, total)), cancel=cancel)
        weights_ms = (perf_counter() - started) * 1e3
        engine = Engine(device, model, trust, planset, buffers, replace(options, context=context), spec, tokenizer, weights_ms)

        def warmed(done: int, total: int) -> None:
            progress(LoadProgress("pipelines", done, total))
            cancel.check()

        await engine.warm_up(warmed)
    except BaseException:
        buffers.destroy()
        raise
    progress(LoadProgress("ready", 1, 1))
    return engine


def weight_parts(model: Model, planset: PlanSet) -> list[WeightPart]:
    """Which rows of which plan weight each tensor of the file fills."""
    by_name = {w.name: w for w in model.weights}
    parts = []
    for spec in weight_specs(planset.plans):
        row = 0
        for name, rows in spec.sources:
            w = by_name[name]
            parts.append(WeightPart(weight=spec.name, source=model.source_name(w), row=row, rows=rows, columns=spec.columns, format=spec.format,
                                    transform="unpermute_rope" if w.unpermute else "", head_dim=w.unpermute))
            row += rows
        assert row == spec.rows, f"weight {spec.name} has {spec.rows} rows, its sources fill {row}"
    return parts


async def _rope_factors(source: Source, checkpoint: Checkpoint, head_dim: int) -> np.ndarray | None:
    """GGUF's rope_freqs.weight [D/2], where the file carries it."""
    info = checkpoint.tensors.get("rope_freqs.weight")
    if info is None:
        return None
    if info.type != "F32":
        raise ModelNotSupported(f"rope_freqs.weight is {info.type}; F32 is expected")
    if info.nbytes != head_dim // 2 * 4:
        raise BadCheckpoint(f"rope_freqs.weight has {info.nbytes // 4} values, head_dim {head_dim} needs {head_dim // 2}")
    return np.frombuffer(await source.read(info.offset, info.nbytes), "<f4")
