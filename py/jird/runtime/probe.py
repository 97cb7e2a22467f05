"""How many dependent dispatches one submit may hold, where a browser is not trusted with all of them (WebKit).

A chain of additions is run with ever larger submits; the largest that still gives the right sum is taken.
"""

from __future__ import annotations

import numpy as np

from ..kernels import load_all
from .device import Bound, CopyOut, Device, Slice

CHAIN = 256
SIZES = (1, 4, 16, 64, 0)  # dispatches a submit; 0 = all
WIDTH = 64


async def probe_submits(device: Device) -> int:
    """Sets device.dispatches_per_submit to the largest of SIZES with which a chain of CHAIN additions is right, and returns it.

    Stops at the first wrong one. Raises: DeviceLost
    """
    load_all()
    params = tuple(sorted({"T": 1, "C": WIDTH, "a_stride": WIDTH, "a_offset": 0, "b_stride": WIDTH, "b_offset": 0}.items()))
    pipeline = await device.compile("elementwise/add", {"PARAMS": params, "WG": WIDTH}, ())
    buffers = [await device.create_buffer(f"probe/{i}", WIDTH * 4) for i in range(3)]
    one, ping, pong = (Slice(b) for b in buffers)
    device.write(buffers[0], 0, np.ones(WIDTH, np.float32))
    try:
        best = SIZES[0]
        for size in SIZES:
            device.dispatches_per_submit = size
            device.write(buffers[1], 0, np.zeros(WIDTH, np.float32))
            chain = [Bound(pipeline, (a, one, b), (1, 1, 1), f"probe/{i}") for i, (a, b) in enumerate([(ping, pong), (pong, ping)] * (CHAIN // 2))]
            raw = await device.run(device.program([device.record(chain, f"probe/{size}"), CopyOut(ping)])).result()
            if not np.array_equal(np.frombuffer(raw, np.float32)[:WIDTH], np.full(WIDTH, CHAIN, np.float32)):
                break
            best = size
        device.dispatches_per_submit = best
        return best
    finally:
        for buffer in buffers:
            device.destroy(buffer)
