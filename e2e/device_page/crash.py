"""Submits until the device is lost from outside, then opens another one: what the page does after a crash of the GPU process."""

import asyncio

import js
from jird.errors import DeviceLost, NoWebGPU
from jird.runtime.device import CopyOut, Slice
from jird.runtime.device_web import js_obj, open_device


async def until_lost():
    device = await open_device()
    program = device.program([CopyOut(Slice(await device.create_buffer("b", 16)))])
    js.self.postMessage(js_obj({"ev": "submitting"}))
    try:
        while True:
            await device.run(program).result()
            await asyncio.sleep(0.01)
    except DeviceLost as error:
        js.self.postMessage(js_obj({"ev": "lost", "message": str(error)}))
    device.close()


async def reopen():
    for _ in range(100):
        try:
            device = await open_device()
            assert await device.read(await device.create_buffer("b", 16), 0, 16) == bytes(16)
            return
        except (NoWebGPU, DeviceLost):
            await asyncio.sleep(0.2)
    raise AssertionError("no device came back in 20 s")


await until_lost()  # noqa: F704, PLE1142  runPythonAsync takes a top-level await
await reopen()  # noqa: F704, PLE1142
