"""KV slots: which tokens' keys each slot holds."""

import pytest
from jird.errors import ContextExceeded
from jird.state.kv import KVSlots


def test_slots_are_apart_and_know_their_ids():
    kv = KVSlots(2, 8)
    kv.append(0, [1, 2, 3])
    kv.append(1, [9])
    kv.append(0, [4])
    assert (kv.ids(0), kv.ids(1), kv.length(0), kv.length(1)) == ((1, 2, 3, 4), (9,), 4, 1)


def test_a_slot_holds_its_context_and_not_one_key_more():
    kv = KVSlots(1, 4)
    kv.append(0, [1, 2, 3, 4])
    with pytest.raises(ContextExceeded, match="slot 0 holds 4 keys of 4; 1 more do not fit"):
        kv.append(0, [5])
    assert kv.ids(0) == (1, 2, 3, 4)
    kv.append(0, [])


def test_rewind_forgets_the_end_only_and_never_gives_keys_back():
    kv = KVSlots(1, 8)
    kv.append(0, [1, 2, 3, 4])
    kv.rewind(0, 2)
    assert kv.ids(0) == (1, 2)
    for length in (3, -1):
        with pytest.raises(ValueError, match=f"rewind slot 0 to {length}; it holds 2 keys"):
            kv.rewind(0, length)
    kv.rewind(0, 2)
    kv.rewind(0, 0)
    assert kv.length(0) == 0


@pytest.mark.parametrize("ids, shared", [([], 0), ([7], 0), ([1], 1), ([1, 2, 3], 3), ([1, 2, 3, 4], 3), ([1, 9, 3], 1)])
def test_the_shared_prefix_ends_at_the_first_difference(ids, shared):
    kv = KVSlots(1, 8)
    kv.append(0, [1, 2, 3])
    assert kv.shared_prefix(0, ids) == shared
