"""`build.py plan`: prints a checkpoint's decode plan, a line a dispatch; needs no GPU.

usage: python -m jird.engine.cli_plan MODEL_PATH [--features f16,subgroups] [--max-storage-buffers 8] ...
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from ..errors import JirdError
from ..plan.plan import Plan
from ..runtime.device import DeviceInfo, Limits
from ..weights.source import FileSource
from .load import read_checkpoint
from .model import model_of, plans_of
from .options import EngineOptions

SUBGROUP_SIZES = (32, 32)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="build.py plan", description=__doc__.splitlines()[0])
    p.add_argument("model", help="path of a GGUF or safetensors file")
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


async def plan_for(args: argparse.Namespace) -> Plan:
    features = frozenset(f for f in args.features.split(",") if f)
    info = DeviceInfo("printed", Limits(storage_buffers=args.max_storage_buffers), features,
                      SUBGROUP_SIZES if "subgroups" in features else (0, 0), trust="software" if args.software else "trusted")
    passes = None if args.passes is None else frozenset(p for p in args.passes.split(",") if p)
    options = EngineOptions(context=args.context, slots=args.lanes, passes=passes, chunk_rows=(args.prefill,) if args.prefill else ())
    model = model_of(await read_checkpoint(FileSource(args.model)))
    plans = plans_of(model, info, options).plans
    if args.prefill:
        return next(p for n, p in plans.items() if n.startswith("prefill-"))
    return plans[f"decode-{args.lanes}-{'sampled' if args.sampled else 'greedy'}-{'long' if args.long else 'short'}"]


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
