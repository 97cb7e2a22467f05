"""Buffers of a model's plans: one pool for all, each weight once, nothing left behind when memory runs out."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from jird.errors import OutOfMemory
from jird.graph.ir import Format
from jird.models import llama
from jird.plan.compile import compile, prepare
from jird.plan.context import Context
from jird.plan.plan import Plan, WeightSpec
from jird.runtime.device import Limits
from jird.runtime.device_numpy import NumpyDevice
from jird.runtime.executor import ModelBuffers, pool_sizes, state_sizes, weight_specs

CONFIG = llama.Config(vocab=96, layers=1, width=64, ffn=96, heads=4, kv_heads=2, head_dim=16, eps=1e-5, rope_theta=1e4, context=64, is_tied=True)
FORMATS = {w.name: Format("int4", 32, "f16") if len(w.shape) > 1 else Format("f32") for w in llama.weights(CONFIG)}
EMPTY = Plan("p", 1, (), (), {}, (), b"", {})


def plans() -> dict[str, Plan]:
    decode = Context(rows=1, context=64, one_row_a_slot=True, kv_limit=64)
    return {"decode": compile(prepare(llama.graph(CONFIG, head=True), FORMATS), decode),
            "prefill": compile(prepare(llama.graph(CONFIG, head=False), FORMATS), Context(rows=16, context=64))}


class FullDevice(NumpyDevice):
    """Has room for `room` buffers."""

    def __init__(self, room: int):
        super().__init__()
        self.room = room

    async def create_buffer(self, label, nbytes, *, uniform=False):
        if not self.room:
            raise OutOfMemory(f"buffer {label} of {nbytes} bytes could not be made")
        self.room -= 1
        return await super().create_buffer(label, nbytes, uniform=uniform)


@pytest.mark.parametrize("pools, sizes", [([], []), ([(64, 16)], [64, 16]),
                                          ([(64, 16), (32, 32, 32)], [64, 32, 32]), ([(8,), ()], [8]), ([(), (8, 4)], [8, 4])])
def test_the_pool_holds_every_plan(pools, sizes):
    assert pool_sizes({str(i): replace(EMPTY, pool=p) for i, p in enumerate(pools)}) == sizes


def test_states_have_the_largest_size_asked_for():
    assert state_sizes({"a": replace(EMPTY, states={"x": 8, "y": 4}), "b": replace(EMPTY, states={"x": 32})}) == {"x": 32, "y": 4}


def test_a_weight_that_two_plans_see_differently_is_our_mistake():
    one = WeightSpec("w", 4, 8, Format("f32"), (("w", 4),))
    assert weight_specs({"a": replace(EMPTY, weights=(one,)), "b": replace(EMPTY, weights=(one,))}) == [one]
    with pytest.raises(AssertionError, match="weight w differs between plans"):
        weight_specs({"a": replace(EMPTY, weights=(one,)), "b": replace(EMPTY, weights=(replace(one, format=Format("f16")),))})


def test_bytes_are_counted_and_all_given_back():
    device = NumpyDevice()
    buffers = ModelBuffers(device)
    asyncio.run(buffers.allocate(plans(), {"decode": 1, "prefill": 16}))
    asyncio.run(buffers.bind(plans()["decode"], "decode"))
    assert buffers.nbytes == device.live_bytes > 0
    buffers.destroy()
    assert (buffers.nbytes, device.live_bytes) == (0, 0)


@pytest.mark.parametrize("room", [0, 1, 7, 20])
def test_out_of_memory_is_typed_and_leaves_nothing_on_the_device(room):
    device = FullDevice(room)
    buffers = ModelBuffers(device)
    with pytest.raises(OutOfMemory, match="buffer .* could not be made"):
        asyncio.run(buffers.allocate(plans(), {"decode": 1, "prefill": 16}))
    assert device.live_bytes == 0


def test_a_buffer_past_the_limit_is_out_of_memory():
    device = NumpyDevice(limits=Limits(storage_buffers=64, buffer_bytes=1000))
    with pytest.raises(OutOfMemory, match="1000 is the most one buffer can hold"):
        asyncio.run(ModelBuffers(device).allocate(plans(), {"decode": 1, "prefill": 16}))
    assert device.live_bytes == 0


def test_a_plan_made_anew_with_larger_temps_gets_its_own_pool():
    device = NumpyDevice()
    buffers = ModelBuffers(device)
    made = plans()
    asyncio.run(buffers.allocate(made, {"decode": 1, "prefill": 16}))
    asyncio.run(buffers.bind(made["decode"], "decode"))
    shared = buffers.nbytes
    larger = replace(made["decode"], name="anew", pool=(*made["prefill"].pool, 1 << 16))
    asyncio.run(buffers.bind(larger, "decode"))
    assert buffers.nbytes - shared >= sum(larger.pool)
    buffers.destroy()
    assert device.live_bytes == 0


def test_a_recording_computes_in_the_buffers_it_was_bound_to():
    """The decode plan of zero weights: every logit 0, the first id taken, the step row moved on."""
    device = NumpyDevice()
    buffers = ModelBuffers(device)
    made = plans()
    asyncio.run(buffers.allocate(made, {"decode": 1, "prefill": 16}))
    recording = asyncio.run(buffers.bind(made["decode"], "decode"))
    record = np.zeros(20, np.uint32)
    record[9:17], record[19] = 0xFFFFFFFF, 96
    device.write(buffers.states["sampling"], 0, record)
    device.write(buffers.steps["decode"], 0, np.array([5, 0, 1, 0, 0, 0, 0, 9], np.uint32))
    device.run(device.program([recording]))
    out = np.frombuffer(asyncio.run(device.read(buffers.states["out"], 0, 16)), np.uint32)
    assert (out[0], out[1], out[2]) == (0, 2, 0)
    assert out[3:].view(np.float32)[0] == pytest.approx(-np.log(96), abs=1e-5)
    assert np.frombuffer(asyncio.run(device.read(buffers.states["history"], 0, 4)), np.uint32)[0] == 5
