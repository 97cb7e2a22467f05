"""The weight list of a family: our name, where it is in an HF and in a GGUF file, its shape, and its transform."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelWeight:
    """One weight of a model.

    shape      as in HF (row-major)
    unpermute  head dim by which GGUF's `llama` arch permuted the rows (0: rows are in HF order)
    """

    name: str
    hf: str
    gguf: str
    shape: tuple[int, ...]
    unpermute: int = 0
