"""Stop strings across token borders: what may be shown, and when to stop."""

from __future__ import annotations

from ..errors import BadRequest


class StopStrings:
    """Watches a stream of text for the first stop string that is completed.

    Text that may still become a stop string is held back; the stop string and what follows it are never emitted.
    The result does not depend on how the text is cut into pieces: of two overlapping stop strings the one that
    ends first counts, and of two that end together the longer one.

    Raises: BadRequest when a stop string is empty or not a string.
    """

    def __init__(self, stops: tuple[str, ...] = ()):
        for stop in stops:
            if not isinstance(stop, str) or not stop:
                raise BadRequest(f"stop strings must be non-empty text, got {stop!r}")
        self.stops = tuple(stops)
        self.found: str | None = None
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """(text that may be shown now, whether a stop string is complete). After a stop nothing is emitted."""
        if self.found is not None:
            return "", True
        buffer = self._held + text
        hits = [(start + len(stop), start, stop) for stop in self.stops if (start := buffer.find(stop)) >= 0]
        if hits:
            _, start, self.found = min(hits)
            self._held = ""
            return buffer[:start], True
        keep = self._may_begin_a_stop(buffer)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep], False

    def flush(self) -> str:
        """The held-back text, at the end of the stream: it did not become a stop string."""
        held, self._held = self._held, ""
        return held

    def _may_begin_a_stop(self, buffer: str) -> int:
        """Length of the longest suffix of the buffer that is a proper prefix of a stop string."""
        longest = 0
        for stop in self.stops:
            for size in range(min(len(stop) - 1, len(buffer)), longest, -1):
                if buffer.endswith(stop[:size]):
                    longest = size
                    break
        return longest
