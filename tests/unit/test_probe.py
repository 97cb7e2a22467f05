"""The submit probe takes the largest submit that still computes a chain rightly."""

from __future__ import annotations

import asyncio

import pytest
from jird.runtime.device import CopyOut
from jird.runtime.device_numpy import NumpyDevice
from jird.runtime.probe import CHAIN, probe_submits


class Forgetful(NumpyDevice):
    """A browser that loses what comes after the first `sound` dispatches of a submit."""

    dispatches_per_submit = 0

    def __init__(self, sound: int):
        super().__init__()
        self.sound = sound

    def program(self, work):
        size = self.dispatches_per_submit or CHAIN
        kept = []
        for item in work:
            kept.append(item if isinstance(item, CopyOut) else [d for i, d in enumerate(item) if i % size < self.sound])
        return kept


@pytest.mark.parametrize(("sound", "expected"), [(1, 1), (5, 4), (16, 16), (255, 64), (256, 0)])
def test_the_largest_sound_submit_is_taken(sound, expected):
    device = Forgetful(sound)
    assert asyncio.run(probe_submits(device)) == expected
    assert device.dispatches_per_submit == expected
    assert device.live_bytes == 0
