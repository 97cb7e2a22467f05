"""Kernels: one WGSL file and one numpy reference each, side by side; `load_all` registers them."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules


@cache
def load_all() -> None:
    """Imports every kernel module, so that the registry is full."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
