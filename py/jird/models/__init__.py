"""Model families: one file each, named as config.json's "model_type". `load_family` imports by name."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from ..errors import ModelNotSupported

# model_type or GGUF architecture -> module
ALIASES = {"llama": "llama", "qwen2": "llama", "mistral": "llama", "smollm": "llama"}


def load_family(model_type: str) -> ModuleType:
    """The module of a family: Config, graph(cfg, ...), weights(cfg).

    Raises: ModelNotSupported naming the type and what is known.
    """
    name = ALIASES.get(model_type)
    if name is None:
        raise ModelNotSupported(f"model type {model_type!r} is not supported; supported: {', '.join(sorted(ALIASES))}")
    return import_module(f"{__name__}.{name}")
