"""Runs in the page's worker: each check is a function of an open device; a report a check, with the figures it returns."""

import asyncio
import sys
import time
import traceback

import js
import numpy as np
from jird.errors import DeviceLost, KernelFailed, OutOfMemory
from jird.kernels.core import pack_params
from jird.kernels.norm import rms_norm  # noqa: F401  registers the kernel
from jird.kernels.wgsl import join
from jird.runtime.device import Bound, CopyOut, Slice
from jird.runtime.device_web import js_obj, open_device
from jird.runtime.profile import by_kernel, profile

WIDTH = 8
CONSTS = {"REDUCE": "tree", "LANES": 64, "WG": 64}
BUFFER_BYTES = 4 * WIDTH


async def doubler(device):
    """A recording that sets y to the norm of x, and one that sets x to the norm of y; buffers x and y."""
    pipeline = await device.compile("norm/rms_norm", CONSTS, ())
    x, w, y = [await device.create_buffer(name, BUFFER_BYTES) for name in "xwy"]
    params = await device.create_buffer("params", 256, uniform=True)
    device.write(params, 0, pack_params(join("norm/rms_norm", CONSTS), {"T": 1, "C": WIDTH, "eps": 0.0}))
    device.write(w, 0, np.full(WIDTH, 2, np.float32))
    device.write(x, 0, np.arange(1, WIDTH + 1, dtype=np.float32))

    def step(source, target):
        return Bound(pipeline, (Slice(source), Slice(w), Slice(target), Slice(params)), (1, 1, 1), f"step/0/{target.label}")

    return device.record([step(x, y)], "there"), device.record([step(y, x)], "back"), x, y


def normed(values):
    return 2 * values / np.sqrt(np.mean(np.square(values)))


async def check_programs_run_in_order_with_their_copies(device):
    there, back, x, y = await doubler(device)
    program = device.program([there, CopyOut(Slice(y, 0, 16)), back, CopyOut(Slice(x, 16, 16))])
    want_y = normed(np.arange(1, WIDTH + 1, dtype=np.float64))
    want_x = normed(want_y)
    tickets = [device.run(program) for _ in range(9)]
    first = np.frombuffer(await tickets[0].result(), np.float32)
    np.testing.assert_allclose(first, [*want_y[:4], *want_x[4:]], rtol=1e-5)
    last = np.frombuffer(await tickets[-1].result(), np.float32)
    assert last.shape == (8,) and np.isfinite(last).all()
    assert await device.run(device.program([there])).result() == b""


async def check_split_submits_give_the_same(device):
    there, back, x, y = await doubler(device)
    device.dispatches_per_submit = 1
    program = device.program([there, back, there, CopyOut(Slice(y))])
    device.dispatches_per_submit = 0
    got = np.frombuffer(await device.run(program).result(), np.float32)
    np.testing.assert_allclose(got, normed(normed(normed(np.arange(1, WIDTH + 1)))), rtol=1e-5)


async def check_writes_take_arrays_bytes_and_js_handles(device):
    buffer = await device.create_buffer("b", 64)
    device.write(buffer, 0, np.arange(4, dtype=np.uint32))
    device.write(buffer, 16, bytes(range(16)))
    device.write(buffer, 32, memoryview(bytearray(b"abcdefgh")))
    handle = js.Uint8Array.new(js_obj([9, 8, 7, 6, 5, 4, 3, 2]))
    device.write(buffer, 40, handle)
    device.write(buffer, 48, handle.buffer)
    device.write(buffer, 56, np.zeros(1, np.dtype([("token", "<u4"), ("flags", "<u4")])))
    want = np.arange(4, dtype=np.uint32).tobytes() + bytes(range(16)) + b"abcdefgh" + bytes(range(9, 1, -1)) * 2 + bytes(8)
    assert await device.read(buffer, 0, 64) == want


async def check_out_of_memory_names_the_buffer(device):
    try:
        await device.create_buffer("w/too_much", 1 << 43)
    except OutOfMemory as error:
        assert "w/too_much" in str(error) and str(1 << 43) in str(error), error
    else:
        raise AssertionError("8 TiB were given")
    assert await device.read(await device.create_buffer("small", 4), 0, 4) == bytes(4)


async def check_a_kernel_that_does_not_compile_says_why(device):
    try:
        await device.compile("norm/rms_norm", {**CONSTS, "WG": 100000}, ())
    except KernelFailed as error:
        assert "norm/rms_norm" in str(error) and "100000" in str(error), error
        return {"words": str(error)[:300]}
    raise AssertionError("100000 threads a workgroup compiled")


async def check_profile(device):
    if "timestamp" not in device.info.features:
        return {"skipped": "no timestamp queries"}
    there, back, _, _ = await doubler(device)
    times = await profile(device, there)
    assert [label for label, _ in times] == ["step/0/y"] and times[0][1] >= 0
    assert by_kernel(times)[0][:2] == ("y", 1)


async def check_cost_of_a_step(device):
    """Python and JS time of a step, the GPU's apart: run() with the ticket's result when it is already there."""
    there, _, _, y = await doubler(device)
    program = device.program([there, CopyOut(Slice(y, 0, 16))])
    figures = {}
    for depth in (1, 4, 16):
        steps, submit, take, pending = 160, 0.0, 0.0, []
        start = time.perf_counter()
        for _ in range(steps):
            before = time.perf_counter()
            pending.append(device.run(program))
            submit += time.perf_counter() - before
            if len(pending) == depth:
                await pending.pop(0).result()
        for ticket in pending:
            before = time.perf_counter()
            await ticket.result()
            take += time.perf_counter() - before
        figures[f"step_us_at_{depth}"] = round((time.perf_counter() - start) / steps * 1e6)
        figures[f"submit_us_at_{depth}"] = round(submit / steps * 1e6)
    tickets = [device.run(program) for _ in range(64)]
    await tickets[-1].result()
    start = time.perf_counter()
    for ticket in tickets:
        await ticket.result()
    figures["take_ready_us"] = round((time.perf_counter() - start) / 64 * 1e6, 1)
    start = time.perf_counter()
    for _ in range(30):
        await device.run(program, kick=True).result()
    figures["step_us_kicked"] = round((time.perf_counter() - start) / 30 * 1e6)
    start = time.perf_counter()
    made = [await device.create_buffer(f"one/{i}", 64) for i in range(50)]
    figures["buffer_us"] = round((time.perf_counter() - start) / 50 * 1e6)
    start = time.perf_counter()
    made += await asyncio.gather(*(device.create_buffer(f"many/{i}", 64) for i in range(50)))
    figures["buffer_us_gathered"] = round((time.perf_counter() - start) / 50 * 1e6)
    for buffer in made:
        device.destroy(buffer)
    return figures


async def check_one_result_comes_within_a_tenth_of_a_second(device):
    """Firefox looks for results every 100 ms by itself."""
    there, _, _, y = await doubler(device)
    program = device.program([there, CopyOut(Slice(y, 0, 16))])
    times = []
    for _ in range(11):
        start = time.perf_counter()
        await device.run(program).result()
        times.append(time.perf_counter() - start)
    start = time.perf_counter()
    await device.idle()
    figures = {"result_ms": round(sorted(times)[5] * 1e3, 1), "idle_ms": round((time.perf_counter() - start) * 1e3, 1)}
    assert sorted(times)[5] < 0.08, figures
    return figures


async def check_refused_work_ends_what_comes_after(device):
    there, _, _, y = await doubler(device)
    program = device.program([there, CopyOut(Slice(y))])
    await device.run(program).result()
    device.destroy(y)
    pending = device.run(program)
    await expect(DeviceLost, pending.result())
    await expect(DeviceLost, device.run(program).result())


async def check_a_lost_device_fails_pending_and_later_tickets(device):
    there, _, _, y = await doubler(device)
    program = device.program([there, CopyOut(Slice(y))])
    tickets = [device.run(program) for _ in range(4)]
    device.close()
    for ticket in tickets:
        await expect(DeviceLost, ticket.result())
    await expect(DeviceLost, device.run(program).result())
    await expect(DeviceLost, device.create_buffer("late", 4))
    await expect(DeviceLost, device.compile("norm/rms_norm", {**CONSTS, "WG": 128, "LANES": 128}, ()))
    await expect(DeviceLost, device.read(y, 0, 4))
    await expect(DeviceLost, device.idle())


async def expect(kind, awaitable):
    try:
        await awaitable
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


for name, check in list(globals().items()):
    if name.startswith("check_"):
        device = await open_device()  # noqa: F704, PLE1142  runPythonAsync takes a top-level await
        try:
            figures = await check(device) or {}  # noqa: F704, PLE1142
            js.self.postMessage(js_obj({"ev": "check", "name": name[6:], "ok": True, **figures}))
        except BaseException:
            text = "".join(traceback.format_exception(*sys.exc_info())[-2:])
            js.self.postMessage(js_obj({"ev": "check", "name": name[6:], "ok": False, "message": text}))
        device.close()
