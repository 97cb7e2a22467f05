"""SubmitPolicy: how much is submitted at once and kept in flight. Data, from measured step times (AMENDMENTS 12)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from ..runtime.device import DeviceInfo
from .options import EngineOptions

FLIGHT_MS = 8.0  # work kept in flight hides a page's 3.3 ms readback
SHORT_MS, WINDOW = 2.5, 4  # steps this short share a submit: each costs the browser about 0.2 ms (H200: 1,163 tok/s by 4, 950 by 2, 865 to 1,000 by 1)
MAX_IN_FLIGHT = 8
MAX_SUBMIT_MS = 100.0  # Windows resets a GPU whose submit runs for 2 s; a page that waits for one cannot be stopped either


@dataclass(frozen=True)
class SubmitPolicy:
    """in_flight: submits of decode steps that wait for their results; window: steps in one; most_rows: prompt rows in one submit.

    is_fixed, has_fixed_window: the caller chose in_flight, window; is_watched: a submit of prompt rows must stay under MAX_SUBMIT_MS (GPUs; a software
    adapter has no watchdog); step_ms: smoothed measured time of a step.
    """

    in_flight: int
    is_fixed: bool
    window: int
    has_fixed_window: bool
    most_rows: int
    is_watched: bool = True
    step_ms: float = 0.0

    def chunk(self, rows_of: list[int], left: int) -> int:
        """Rows of the prefill plan to take for `left` tokens: the smallest that holds them, or the largest allowed.

        A software adapter pays for every masked row: it takes a smaller full one where a quarter of the rows would be masked.
        """
        allowed = [r for r in rows_of if r <= self.most_rows] or rows_of[:1]
        rows = next((r for r in allowed if r >= left), allowed[-1])
        full = [r for r in allowed if r <= left]
        return full[-1] if full and not self.is_watched and 4 * (rows - left) > rows else rows

    def measured_chunk(self, rows: int, ms: float) -> "SubmitPolicy":
        """The policy after a submit of `rows` prompt rows took ms: half of them where that was too long."""
        if not self.is_watched or ms <= MAX_SUBMIT_MS:
            return self
        return replace(self, most_rows=max(1, min(self.most_rows, rows // 2)))

    def measured(self, step_ms: float) -> "SubmitPolicy":
        """The policy after a step took step_ms (wall clock, in the pipeline)."""
        smooth = step_ms if not self.step_ms else 0.8 * self.step_ms + 0.2 * step_ms
        step_ms = max(smooth, 1e-3)
        window = self.window if self.has_fixed_window else WINDOW if step_ms <= SHORT_MS else 1
        in_flight = self.in_flight if self.is_fixed else max(1, min(MAX_IN_FLIGHT, ceil(FLIGHT_MS / (step_ms * window)) + (window > 1)))
        return replace(self, step_ms=smooth, window=window, in_flight=in_flight)


def policy_for(info: DeviceInfo, options: EngineOptions) -> SubmitPolicy:
    """Where a device starts: software adapters one step at a time, GPUs with four in flight, one a submit."""
    start = options.in_flight or (1 if info.is_software else 4)
    return SubmitPolicy(start, options.in_flight > 0, options.window or 1, options.window > 0, 64 if info.is_software else 512, not info.is_software)
