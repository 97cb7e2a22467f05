"""What callers may set: EngineOptions at load, Cancel for both load and generation, LoadProgress out."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import Aborted


@dataclass(frozen=True)
class EngineOptions:
    """context: keys a slot holds (cut to the model's own); slots: lanes of generate_batch (1 to 4).

    chunk_rows   prompt rows a prefill step can have, smallest first; empty = by the device's kind
    in_flight    decode steps submitted before the first is read; 0 = from measured step times
    window       decode steps in one submit
    passes       fusion passes to run; None = all
    """

    context: int = 2048
    slots: int = 1
    chunk_rows: tuple[int, ...] = ()
    in_flight: int = 0
    window: int = 1
    passes: frozenset[str] | None = None


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
