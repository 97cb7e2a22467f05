"""GPU time by dispatch, where the device has timestamp queries."""

from __future__ import annotations

from statistics import median
from typing import Any

from .device import Device

WHOLE_RUNS = 16
REPEATS = 64  # of each dispatch on a GPU: a pass of one costs about 8 us whatever it does


async def profile(device: Device, recording: Any, repeats: int = REPEATS) -> list[tuple[str, float]]:
    """(label, us) of every dispatch of a recording, in order, each repeated in a pass of its own (once on software adapters).

    A repeated kernel finds its weights in the cache. The last dispatch of a step advances its row, so the recording's row has
    moved on, or is done, afterwards.
    Raises: ValueError when the device has no timestamp queries; DeviceLost.
    """
    _need_clock(device)
    return await device.profile(recording, 1 if device.info.is_software else repeats)


async def whole(device: Device, recording: Any) -> float:
    """us of the recording as it runs: every dispatch once, in one pass; the median of several (one on software adapters).

    The step rows advance with every run. Raises: as profile
    """
    _need_clock(device)
    return median(await device.profile_whole(recording, 1 if device.info.is_software else WHOLE_RUNS))


def _need_clock(device: Device) -> None:
    if "timestamp" not in device.info.features:
        raise ValueError(f"{device.info.name} has no timestamp queries; profiles need them")


def by_kernel(times: list[tuple[str, float]]) -> list[tuple[str, int, float]]:
    """(last part of the label, dispatches, us) summed, the longest first. Labels are "<plan>/<index>/<kernel>"."""
    totals: dict[str, tuple[int, float]] = {}
    for label, us in times:
        name = label.split("/", 2)[-1]
        count, total = totals.get(name, (0, 0.0))
        totals[name] = (count + 1, total + us)
    return sorted(((name, count, total) for name, (count, total) in totals.items()), key=lambda row: -row[2])
