"""A kernel that computes wrongly on a device is found before it is used, and its twin takes its place."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from jird.errors import KernelFailed
from jird.kernels import core
from jird.runtime.device import CopyOut
from jird.runtime.device_numpy import NumpyDevice, NumpyTicket

from tests.engine.conftest import run
from tests.engine.test_generate import PROMPT, ids_of, request


class FaultyDevice(NumpyDevice):
    """A GPU with subgroups on which kernels in `faults` (path, REDUCE) write a little too much into every float output."""

    def __init__(self, faults: set[tuple[str, str]]):
        super().__init__(features=frozenset({"subgroups"}), subgroup_sizes=(32, 32))
        self.info = replace(self.info, dialect="tint")
        self.faults = faults
        self.ran: set[tuple[str, str]] = set()

    def run(self, program):
        out = []
        for item in program:
            if isinstance(item, CopyOut):
                out.append(self._bytes(item.source).tobytes())
                continue
            for pipeline, params, arrays in item:
                core.run_reference(pipeline.kernel, arrays, params, pipeline.consts)
                key = (pipeline.kernel.path, getattr(pipeline.consts, "REDUCE", ""))
                self.ran.add(key)
                if key in self.faults:
                    for b in pipeline.shader.bindings:
                        if b.access == "read_write" and arrays[b.name].dtype == np.float32:
                            arrays[b.name] *= np.float32(1.01)
        return NumpyTicket(b"".join(out))


def test_the_twin_serves_and_the_ids_stay_right(load):
    device = FaultyDevice({("int4/matvec_norm", "subgroup")})
    engine = load(device=device)
    assert ids_of(run(engine, [request(PROMPT)])[0]) == ids_of(run(load(), [request(PROMPT)])[0])
    assert engine.trust.failed == {("int4/matvec_norm", "subgroup")}
    assert ("int4/matvec_norm", "tree") in device.ran


def test_a_kernel_without_a_sound_twin_is_an_error_that_names_it(load):
    with pytest.raises(KernelFailed, match="int4/matvec"):
        load(device=FaultyDevice({(f"int4/matvec{kind}", r) for kind in ("", "_norm", "_residual") for r in ("subgroup", "tree", "none")}))


def test_the_sampled_tail_is_tested_when_it_is_first_used(load):
    engine = load(device=FaultyDevice(set()))
    before = {path for path, *_ in engine.trust.passed}
    run(engine, [request(PROMPT, temperature=1.0)])
    added = {path for path, *_ in engine.trust.passed} - before
    assert "sample/advance_sampled" in added and "sample/penalize" in added


def test_texts_that_passed_in_an_earlier_visit_are_not_tested_again(tmp_path):
    from jird.engine.load import load_engine
    from jird.weights.source import FileSource
    from tests.tiny import Tiny
    path, known = Tiny().write(tmp_path / "m.gguf"), set()

    def visit(faults=frozenset()):
        return asyncio.run(load_engine(FaultyDevice(set(faults)), FileSource(path), known=known)).trust

    first = visit()
    assert first.passed and known
    held = set(known)
    assert visit().passed == set() and known == held
    known.clear()
    visit({("int4/matvec_norm", "subgroup")})
    assert held - known, "a text that failed is not remembered"
