"""`build.py plan`: prints a checkpoint's decode plan, a line a dispatch; needs no GPU.

usage: python -m jird.engine.cli_plan MODEL_PATH [--features f16,subgroups] [--max-storage-buffers 8] ...
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from ..errors import BadCheckpoint, BadRequest, JirdError
from ..plan.fuse import PASSES, SINGLE_KEYS
from ..plan.plan import Plan
from ..runtime.device import DeviceInfo, Limits
from ..weights.source import FileSource
from .load import read_checkpoint
from .model import Model, model_of, plans_of
from .options import EngineOptions

SUBGROUP_SIZES = (32, 32)
FEATURES = ("f16", "subgroups")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="build.py plan", description=__doc__.splitlines()[0])
    p.add_argument("model", help="path of a GGUF file, or of a folder with model.safetensors and config.json")
    p.add_argument("--features", default="", help="comma-separated: f16, subgroups")
    p.add_argument("--max-storage-buffers", type=int, default=8)
    p.add_argument("--context", type=int, default=2048)
    p.add_argument("--lanes", type=int, default=1)
    p.add_argument("--sampled", action="store_true", help="the list that samples, not the greedy one")
    p.add_argument("--long", action="store_true", help="the list for rows that see more than 256 keys")
    p.add_argument("--prefill", type=int, default=0, metavar="ROWS", help="a prefill plan of ROWS rows instead")
    p.add_argument("--software", action="store_true", help="as on SwiftShader: kernels without barriers first")
    p.add_argument("--passes", default=None, help="comma-separated fusion passes (default: all)")
    return p


async def model_at(path: Path) -> Model:
    """The model of a GGUF file, of a folder in HF's form, or of the safetensors file in one.

    Raises: BadCheckpoint, ModelNotSupported, FetchFailed
    """
    file = path / "model.safetensors" if path.is_dir() else path
    source = FileSource(file)
    try:
        config = file.with_name("config.json")
        is_hf = file.suffix == ".safetensors" and config.exists()
        return model_of(await read_checkpoint(source), json.loads(config.read_bytes()) if is_hf else None)
    except ValueError as e:
        raise BadCheckpoint(f"{file.with_name('config.json')} is not JSON: {e}") from e
    finally:
        source.close()


async def plan_for(args: argparse.Namespace) -> Plan:
    """Raises: BadRequest naming an option that cannot be; as model_at and plans_of."""
    features = _listed("features", args.features, FEATURES)
    info = DeviceInfo("printed", Limits(storage_buffers=args.max_storage_buffers), features,
                      SUBGROUP_SIZES if "subgroups" in features else (0, 0), trust="software" if args.software else "trusted")
    passes = None if args.passes is None else _listed("passes", args.passes, tuple(PASSES))
    options = EngineOptions(context=args.context, slots=args.lanes, passes=passes, chunk_rows=(args.prefill,) if args.prefill else ())
    plans = plans_of(await model_at(Path(args.model)), info, options).plans
    if args.prefill:
        return next(p for n, p in plans.items() if n.startswith("prefill-"))
    name = f"decode-{args.lanes}-{'sampled' if args.sampled else 'greedy'}-{'long' if args.long else 'short'}"
    if name not in plans:
        raise BadRequest(f"no list for long rows: the context holds no more than {SINGLE_KEYS} keys")
    return plans[name]


def _listed(name: str, text: str, known: tuple[str, ...]) -> frozenset[str]:
    words = frozenset(w for w in text.split(",") if w)
    if words - set(known):
        raise BadRequest(f"{name} {sorted(words - set(known))} are not known; there are {', '.join(known)}")
    return words


def main(argv: list[str] | None = None) -> int:
    try:
        plan = asyncio.run(plan_for(parser().parse_args(argv)))
    except (JirdError, OSError) as e:
        print(f"build.py plan: {e}", file=sys.stderr)
        return 1
    print(plan.dump())
    return 0


if __name__ == "__main__":
    sys.exit(main())
