"""What a person may ask of sampling, checked, and the record the sampling kernels read of it."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Iterable, Mapping

import numpy as np

from ..errors import BadRequest
from ..graph.builder import MAX_BIAS
from ..kernels.core import HAS_MASK, NO_TOKEN, SAMPLING_DTYPE
from ..runtime.device import Device

MAX_STOPS = 8
OCTAVE = 65536 * math.log2(math.e)  # the kernels measure a logit's depth below the maximum in 1/65536 octaves
MAX_SCALE = 1e6 * OCTAVE  # a temperature below 1e-6 acts as 1e-6


@dataclass(frozen=True)
class SamplingOptions:
    """How the next id is chosen; the defaults take the maximum.

    Applied in this order: logit_bias, repetition_penalty, allowed, temperature, top_k, top_p, min_p, draw.

    temperature         0 takes the maximum
    top_k               the k greatest logits (and what ties with the k-th); 0 = all
    top_p               the smallest set of greatest probabilities that sum to at least this; 1 = all
    min_p               at least this share of the greatest probability; 0 = all
    repetition_penalty  a logit > 0 of an id among the last penalty_window tokens (0 = all, the prompt too) is divided by it,
                        others multiplied
    logit_bias          id -> what is added to its logit, at most MAX_BIAS ids
    allowed             ids that may be chosen; None = all
    Raises: BadRequest naming setting, value and range
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    penalty_window: int = 0
    seed: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed: frozenset[int] | None = None

    def __post_init__(self):
        for name, low, high, is_open in (("temperature", 0, 100, False), ("top_p", 0, 1, True), ("min_p", 0, 1, False), ("repetition_penalty", 0.01, 100, False)):
            object.__setattr__(self, name, _number(name, getattr(self, name), low, high, is_open))
        for name, high in (("top_k", 2**31 - 1), ("penalty_window", 2**31 - 1), ("seed", 2**64 - 1)):
            object.__setattr__(self, name, _integer(name, getattr(self, name), high))
        object.__setattr__(self, "logit_bias", MappingProxyType(_bias(self.logit_bias)))
        if self.allowed is not None:
            object.__setattr__(self, "allowed", _allowed(self.allowed))

    @property
    def is_plain_greedy(self) -> bool:
        """The greedy tail gives what these options ask: the first maximum of the logits as they are."""
        return self._takes_maximum and self.repetition_penalty == 1 and not self.logit_bias and self.allowed is None

    @property
    def scale(self) -> float:
        """Octaves / 65536 a unit of logit at this temperature; 0 where the maximum is taken."""
        return 0.0 if self._takes_maximum else min(OCTAVE / self.temperature, MAX_SCALE)

    @property
    def _takes_maximum(self) -> bool:
        return self.temperature == 0 or self.top_k == 1


@dataclass(frozen=True)
class Prepared:
    """A slot's sampling as the kernels read it. record: SAMPLING_DTYPE; bias: u32 [2 n], (id, f32 bits) pairs; mask: u32 [ceil(vocab / 32)] or None."""

    record: np.ndarray
    bias: np.ndarray
    mask: np.ndarray | None

    def write(self, device: Device, mask: Any, bias: Any, slot: int) -> None:
        """Queues the slot's part of the mask and bias buffers, as far as the record makes use of them."""
        if self.bias.size:
            device.write(bias, slot * 2 * MAX_BIAS * 4, self.bias)
        if self.mask is not None:
            device.write(mask, slot * self.mask.nbytes, self.mask)


def check_vocab(options: SamplingOptions, vocab: int) -> None:
    """Raises: BadRequest when an id of logit_bias or allowed is outside the vocabulary."""
    for name, ids in (("logit_bias", options.logit_bias), ("allowed", options.allowed or ())):
        out = [i for i in ids if i >= vocab]
        if out:
            raise BadRequest(f"{name} names id {out[0]}; the vocabulary has ids 0 to {vocab - 1}")


def record(options: SamplingOptions, stop_ids: Iterable[int], vocab: int, width: int = 0) -> Prepared:
    """What a slot's buffers hold. vocab: ids that may be chosen; width: ids of the logits (0 = vocab), the rest is padding.

    Raises: BadRequest for an id outside the vocabulary, or more than 8 stop ids.
    """
    check_vocab(options, vocab)
    stops = sorted(set(stop_ids))
    if len(stops) > MAX_STOPS:
        raise BadRequest(f"{len(stops)} stop ids; at most {MAX_STOPS} are looked for")
    if any(not 0 <= i < vocab for i in stops):
        raise BadRequest(f"stop ids {stops}; the vocabulary has ids 0 to {vocab - 1}")
    made = np.zeros((), SAMPLING_DTYPE)
    made["scale"] = options.scale
    made["top_p"] = options.top_p
    made["min_p"] = options.min_p
    made["top_k"] = options.top_k
    made["penalty"] = options.repetition_penalty
    made["inverse_penalty"] = 1 / options.repetition_penalty
    made["window"] = options.penalty_window
    made["seed_lo"], made["seed_hi"] = options.seed & 0xFFFFFFFF, options.seed >> 32
    made["stop"] = [*stops, *[NO_TOKEN] * (MAX_STOPS - len(stops))]
    made["flags"] = HAS_MASK if options.allowed is not None else 0
    made["n_bias"] = len(options.logit_bias)
    made["vocab"] = vocab
    bias = np.zeros(len(options.logit_bias), [("id", "<u4"), ("value", "<f4")])
    bias["id"], bias["value"] = list(options.logit_bias), list(options.logit_bias.values())
    return Prepared(made, bias.view("<u4"), None if options.allowed is None else mask_words(options.allowed, width or vocab))


def mask_words(allowed: Iterable[int], width: int) -> np.ndarray:
    """u32 [ceil(width / 32)]: bit i % 32 of word i / 32 is set where id i is allowed."""
    bits = np.zeros(-(-width // 32) * 32, np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").view("<u4")


def _number(name: str, value: Any, low: float, high: float, is_open: bool) -> float:
    """value as a float in [low, high], or (low, high] where is_open."""
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (low < number <= high if is_open else low <= number <= high):
        raise BadRequest(f"{name} is {value!r}; it must be a number {'above' if is_open else 'from'} {low} {'and at most' if is_open else 'to'} {high}")
    return number


def _integer(name: str, value: Any, high: int) -> int:
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number <= high:
        raise BadRequest(f"{name} is {value!r}; it must be a whole number from 0 to {high}")
    return number


def _bias(bias: Any) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise BadRequest(f"logit_bias is {bias!r}; it must map ids to numbers")
    if len(bias) > MAX_BIAS:
        raise BadRequest(f"logit_bias has {len(bias)} ids; at most {MAX_BIAS} fit")
    return {_integer("an id of logit_bias", i, 2**31 - 1): _number(f"logit_bias[{i}]", v, -10000, 10000, False) for i, v in bias.items()}


def _allowed(allowed: Any) -> frozenset[int]:
    if isinstance(allowed, (str, bytes)) or not isinstance(allowed, Iterable):
        raise BadRequest(f"allowed is {allowed!r}; it must list ids")
    ids = frozenset(_integer("an id of allowed", i, 2**31 - 1) for i in allowed)
    if not ids:
        raise BadRequest("allowed is empty; at least one id must be allowed")
    return ids
