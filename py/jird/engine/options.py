"""What callers may set: EngineOptions at load, Cancel for both load and generation, LoadProgress out."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import Aborted, BadRequest

MAX_LANES = 4  # rows of a decode step: more would take kernels that give a row other bits than its solo run
MAX_ROWS = 2048  # rows of a prefill step: the step buffer is bound as uniform, 64 KiB


@dataclass(frozen=True)
class EngineOptions:
    """context: keys a slot holds (cut to the model's own); slots: lanes of generate_batch (1 to MAX_LANES).

    chunk_rows   prompt rows a prefill step can have, smallest first; empty = by the device's kind
    in_flight    submits of decode steps that wait for their results; 0 = from measured step times
    window       decode steps in one submit; 0 = from measured step times
    passes       fusion passes to run; None = all
    Raises: BadRequest naming setting, value and range
    """

    context: int = 2048
    slots: int = 1
    chunk_rows: tuple[int, ...] = ()
    in_flight: int = 0
    window: int = 0
    passes: frozenset[str] | None = None

    def __post_init__(self):
        rows = [(f"chunk_rows[{i}]", r, 1, MAX_ROWS) for i, r in enumerate(self.chunk_rows)]
        for name, value, low, high in (("context", self.context, 1, 1 << 24), ("slots", self.slots, 1, MAX_LANES), ("in_flight", self.in_flight, 0, 64),
                                       ("window", self.window, 0, 256), *rows):
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise BadRequest(f"{name} is {value!r}; it must be a whole number from {low} to {high}")


@dataclass(frozen=True)
class LoadProgress:
    """stage: header | plan | weights | pipelines | selftest | ready; done of total (bytes for weights, else counts)."""

    stage: str
    done: int
    total: int


class Cancel:
    """Set by whoever wants it stopped; read at every chunk, span and step."""

    def __init__(self):
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def check(self) -> None:
        """Raises: Aborted once cancelled."""
        if self.is_cancelled:
            raise Aborted("stopped on request")
