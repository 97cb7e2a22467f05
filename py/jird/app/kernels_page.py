"""kernels.html: kernel cases on the page's GPU, messages out.

The page sends one {op: "kernels", limits, only, cases: "all" | "first", tune}. tune is "" or a JSON list of
{kernel, variant, params, consts}: these are checked and timed instead of the cases.
"""

from __future__ import annotations

import asyncio
import json
import math

import js
from pyodide.ffi import create_proxy

from ..kernels.core import Case
from ..runtime.device_web import WebDevice, js_obj, open_device
from ..runtime.selftest import Result, all_kernels, baked, lacks, run_case, runs, time_case
from .messages import error_of

TOGETHER = 8  # cases in flight: compiling and reading back overlap


async def main() -> None:
    """Sets the worker's onmessage; the proxy lives as long as the worker."""
    js.self.onmessage = create_proxy(_on_message)


async def _on_message(event) -> None:
    try:
        if str(event.data.tune):
            await _tune(str(event.data.limits), json.loads(str(event.data.tune)))
        else:
            await _run(str(event.data.limits), str(event.data.only), str(event.data.cases) == "first")
    except Exception as error:  # the page must always end
        event = error_of(0, error).plain()
        _post({**event, "done": True})
        if event["code"] == "internal":
            raise


async def _run(limits: str, only: str, is_first_only: bool) -> None:
    device = await open_device(limits)
    adapter = f"{device.info.name} ({device.info.trust}, {device.info.dialect}, {', '.join(sorted(device.info.features)) or 'no features'})"
    _post({"ev": "progress", "stage": f"kernels on {adapter}"})
    results: list[Result | None] = []
    feed = iter(runs(only, is_first_only))

    async def work() -> None:
        for kernel, variant, index, is_baked in feed:
            results.append(await _one(device, kernel, variant, index, is_baked))

    await asyncio.gather(*(work() for _ in range(TOGETHER)))
    device.close()
    ran = [r for r in results if r is not None]
    failures = [f"{r.kernel} {r.variant}-{r.case}: {r.detail}" for r in ran if not r.ok]
    _post({"ev": "result", "done": True, "passed": len(ran) - len(failures), "failed": len(failures), "skipped": len(results) - len(ran),
           "adapter": adapter, "failures": failures})


async def _tune(limits: str, entries: list[dict]) -> None:
    """Every entry checked against its reference, then every entry timed, one after another: us a dispatch when repeated on end.

    An entry may say "check": false (a large reference takes seconds, in which the GPU's clock falls).
    """
    device = await open_device(limits)
    kernels = all_kernels()
    failed, results = 0, []
    for entry in entries:
        kernel = kernels[entry["kernel"]]
        variant = next(v for v in kernel.variants if v.name == entry["variant"])
        case = Case(entry["params"], entry.get("consts", {}))
        result = await run_case(device, kernel, variant, case, baked(case)) if entry.get("check", True) else None
        failed += result is not None and not result.ok
        results.append((entry, kernel, variant, case, result))
    for entry, kernel, variant, case, result in results:
        us = await time_case(device, kernel, variant, case, baked(case))
        _post({"ev": "time", **{k: json.dumps(v) if isinstance(v, dict) else v for k, v in entry.items()}, "us": us,
               "ok": result is None or result.ok, "message": "" if result is None else result.detail})
    _post({"ev": "result", "done": True, "passed": len(entries) - failed, "failed": failed, "skipped": 0, "adapter": device.info.name, "failures": []})
    device.close()


async def _one(device: WebDevice, kernel, variant, index: int, is_baked: bool) -> Result | None:
    case = kernel.cases[index]
    name = f"{variant.name}-{index}{'-baked' if is_baked else ''}"
    missing = lacks(kernel, variant, case, device.info)
    if missing:
        _post({"ev": "skip", "kernel": kernel.path, "variant": variant.name, "case": name, "message": missing})
        return None
    result = await run_case(device, kernel, variant, case, baked(case) if is_baked else None, index)
    message = {"message": result.detail} if not result.ok else {}
    _post({"ev": "case", "kernel": kernel.path, "variant": variant.name, "case": name, "ok": result.ok,
           "max_err": result.max_err if math.isfinite(result.max_err) else None, **message})
    return result


def _post(message: dict) -> None:
    js.self.postMessage(js_obj(message))
