"""Engines on the numpy device for the equalities of ring 1."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from jird.engine.load import load_engine
from jird.engine.options import EngineOptions
from jird.runtime.device_numpy import NumpyDevice
from jird.weights.source import FileSource
from tests.tiny import Tiny


@pytest.fixture
def load(tmp_path):
    """A function (Tiny, device, is_tested, **EngineOptions) -> Engine; on a fresh numpy device where none is given."""
    engines = []

    def make(tiny: Tiny | None = None, device=None, is_tested=False, **options):
        tiny = tiny or Tiny()
        path = tmp_path / f"{tiny.arch}-{tiny.type}-{len(engines)}.gguf"
        tiny.write(path)
        engine = asyncio.run(load_engine(device or NumpyDevice(), FileSource(path), EngineOptions(**options), is_tested=is_tested))
        engine.tiny = tiny
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()


def run(engine, requests) -> list[list]:
    """The events of each lane."""

    async def collect():
        lanes = [[] for _ in requests]
        async for event in engine.run(requests):
            lanes[event.lane].append(event)
        return lanes

    return asyncio.run(collect())


def greedy_oracle(tiny: Tiny, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
    """Greedy ids of the float64 forward pass, and the top-1 margin at each."""
    ids, made, margins = list(prompt), [], []
    for _ in range(count):
        logits = tiny.logits(ids)[-1]
        order = np.argsort(-logits)
        made.append(int(order[0]))
        margins.append(float(logits[order[0]] - logits[order[1]]))
        ids.append(made[-1])
    return made, margins
