"""Golden plans: what the compiler makes of Tiny on several devices, as text.

Plan.dump() without what only sizes workgroups (tests of the kernels are about that). After an intended change of the
compiler or of the kernels it may choose, rewrite them and read the diff:

    PYTHONPATH=py:. python -m tests.engine.test_plans
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from pathlib import Path

import pytest
from jird.engine.load import read_checkpoint
from jird.engine.model import model_of, plans_of
from jird.engine.options import EngineOptions
from jird.runtime.device import DeviceInfo
from jird.weights.source import FileSource

from tests.tiny import Tiny

GOLDEN = Path(__file__).parent.parent / "golden/plans"
PLAIN = DeviceInfo("plain")
GPU = DeviceInfo("gpu", features=frozenset({"f16", "subgroups"}), subgroup_sizes=(32, 32))
SOFTWARE = DeviceInfo("software", trust="software")
NONE = frozenset()
TUNING = re.compile(r" (?:WG|LANES|COLUMNS|WORDS|ROUNDS|EACH_\w|TILE\w*|SUBGROUP|UNROLL|BLOCK\w*)=\d+| grid=[\d,]+")
# golden file: (device, plan, options)
PLANS = {
    "decode": (GPU, "decode-1-greedy-short", {}),
    "decode_sampled": (GPU, "decode-1-sampled-short", {}),
    "decode_long": (GPU, "decode-1-greedy-long", {}),
    "decode_lanes": (GPU, "decode-4-sampled-long", {"slots": 4}),
    "decode_no_features": (PLAIN, "decode-1-greedy-short", {}),
    "decode_software": (SOFTWARE, "decode-1-greedy-short", {}),
    "decode_no_passes": (GPU, "decode-1-greedy-short", {"passes": NONE}),
    "prefill": (GPU, "prefill-32", {"chunk_rows": (32,)}),
    "prefill_no_features": (PLAIN, "prefill-32", {"chunk_rows": (32,)}),
    "prefill_software": (SOFTWARE, "prefill-32", {"chunk_rows": (32,)}),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("tiny"))


def tiny_model(folder: Path):
    source = FileSource(Tiny().write(folder / "tiny.gguf"))
    made = model_of(asyncio.run(read_checkpoint(source)))
    source.close()
    return made


def dump(model, name: str) -> str:
    device, plan, options = PLANS[name]
    text = plans_of(model, device, EngineOptions(context=512, **options)).plans[plan].dump()
    return TUNING.sub("", text) + "\n"


@pytest.mark.parametrize("name", PLANS)
def test_the_plan_is_the_golden_one(model, name):
    assert dump(model, name) == (GOLDEN / f"{name}.txt").read_text(), "intended? PYTHONPATH=py:. python -m tests.engine.test_plans"


def test_no_golden_plan_is_left_over():
    assert {p.stem for p in GOLDEN.iterdir()} == set(PLANS)


def test_compiling_twice_gives_the_same_plan(model):
    assert plans_of(model, GPU, EngineOptions()).plans == plans_of(model, GPU, EngineOptions()).plans


def rewrite() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for old in GOLDEN.iterdir():
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model(Path(folder))
    for name in PLANS:
        (GOLDEN / f"{name}.txt").write_text(dump(model, name))


if __name__ == "__main__":
    sys.exit(rewrite())
