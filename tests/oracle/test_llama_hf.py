"""The Llama family from HF's form on the numpy device against transformers' logits (golden/llama, written by make_llama.py)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from jird.engine.engine import Request, prefill_rows
from jird.engine.load import Sidecar, load_engine
from jird.engine.options import EngineOptions
from jird.engine.sample import SamplingOptions
from jird.runtime.device_numpy import NumpyDevice
from jird.text.tokenizer import spec_from_files
from jird.weights.source import FileSource

GOLDEN = Path(__file__).parent.parent / "golden/llama"
CASES = sorted(p.name for p in GOLDEN.iterdir())
SURE = 0.02


def letters(count: int) -> dict:
    """tokenizer.json of `count` characters: ids past a tokenizer's vocabulary are padding that is never chosen."""
    return {"model": {"type": "BPE", "vocab": {chr(256 + i): i for i in range(count)}, "merges": []}, "added_tokens": [],
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}}


class Case:
    """A folder of golden/llama and engines loaded from it."""

    def __init__(self, name: str):
        self.folder = GOLDEN / name
        golden = json.loads((self.folder / "golden.json").read_text())
        self.prompt, self.ids, self.margins = golden["prompt_ids"], golden["ids"], golden["margins"]
        self.logits = np.load(self.folder / "logits.npy")

    def load(self, device=None, **options):
        config = json.loads((self.folder / "config.json").read_text())
        sidecar = Sidecar(config, spec_from_files(letters(config["vocab_size"]), {}, None, None, config))
        source = FileSource(self.folder / "model.safetensors")
        engine = asyncio.run(load_engine(device or NumpyDevice(), source, EngineOptions(**options), sidecar=sidecar))
        source.close()
        return engine


@pytest.fixture(params=CASES)
def case(request):
    return Case(request.param)


def logits_of(engine, ids: list[int]) -> np.ndarray:
    """Feeds ids one by one to the decode plan and reads the logits after each.

    Shapes:  -> [T, vocab] f32
    """
    vocab = engine.model.config.vocab
    plan = engine.planset.plans["decode-1-greedy-short"]
    (name, ref), = plan.outputs.items()
    assert name == "lm_head"
    where = engine.buffers.pool[int(ref.key)]

    async def go():
        program = engine.device.program([await engine._recording("decode-1-greedy-short")])
        rows = []
        for i, token in enumerate(ids):
            engine.device.write(engine.buffers.steps["decode-1"], 0, prefill_rows([token], i, 0, 1))
            engine.device.run(program)
            rows.append(np.frombuffer(await engine.device.read(where, 0, vocab * 4), np.float32))
        return np.stack(rows)

    return asyncio.run(go())


@pytest.mark.parametrize("passes", [None, frozenset()], ids=["fused", "plain"])
def test_logits_at_every_position_are_those_of_transformers(case, passes):
    engine = case.load(passes=passes)
    got, want = logits_of(engine, case.prompt + case.ids), case.logits
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-4 * np.abs(want).max())


def test_greedy_ids_are_those_of_transformers_up_to_the_first_unsure_one(case):
    engine = case.load(chunk_rows=(8,))

    async def run():
        request = Request(tuple(case.prompt), SamplingOptions(), (), len(case.ids))
        return [event.id async for event in engine.run([request])]

    sure = next((i for i, m in enumerate(case.margins) if m < SURE), len(case.ids))
    assert sure >= 12
    assert asyncio.run(run())[:sure] == case.ids[:sure]


def test_the_rope_case_passes_its_original_context():
    config = json.loads((GOLDEN / "llama3_rope/config.json").read_text())
    assert len(Case("llama3_rope").prompt) > config["rope_parameters"]["original_max_position_embeddings"]
