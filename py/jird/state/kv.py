"""Contiguous KV slots: which tokens' keys each slot holds. The bytes are in the caches; here is their bookkeeping."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import ContextExceeded


@dataclass
class KVSlots:
    """`slots` slots of `context` keys. `ids(slot)` are the tokens whose keys stand in the cache, in position order."""

    slots: int
    context: int
    _ids: list[list[int]] = field(default_factory=list)

    def __post_init__(self):
        self._ids = [[] for _ in range(self.slots)]

    def ids(self, slot: int) -> tuple[int, ...]:
        return tuple(self._ids[slot])

    def length(self, slot: int) -> int:
        return len(self._ids[slot])

    def rewind(self, slot: int, length: int) -> None:
        """Forgets keys past `length`: kv_len goes back, the bytes are overwritten by what comes next.

        Raises: ValueError when the slot holds fewer keys than `length`.
        """
        if not 0 <= length <= len(self._ids[slot]):
            raise ValueError(f"rewind slot {slot} to {length}; it holds {len(self._ids[slot])} keys")
        del self._ids[slot][length:]

    def append(self, slot: int, ids: list[int]) -> None:
        """Notes that the keys of `ids` were appended.

        Raises: ContextExceeded when they do not fit.
        """
        if len(self._ids[slot]) + len(ids) > self.context:
            raise ContextExceeded(f"slot {slot} holds {len(self._ids[slot])} keys of {self.context}; {len(ids)} more do not fit")
        self._ids[slot].extend(ids)

    def shared_prefix(self, slot: int, ids: list[int]) -> int:
        """Number of leading tokens of `ids` whose keys the slot already holds."""
        held = self._ids[slot]
        n = 0
        while n < len(held) and n < len(ids) and held[n] == ids[n]:
            n += 1
        return n
