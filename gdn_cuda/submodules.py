"""Modules that their package imports at the first access: `gdn_cuda.integrations.fla` after `import gdn_cuda` alone."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from typing import Any


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # in a second copy of the package (copies.py), which has the first one's modules
        return False


def on_access(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package: all its modules whose names begin with no underscore."""

    def getattr_(name: str) -> Any:
        module = f"{package}.{name}"
        if name.startswith("_") or not name.isidentifier() or not _exists(module):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(module)

    def dir_() -> list[str]:
        found = sys.modules[package]
        modules = {each.name for each in pkgutil.iter_modules(found.__path__) if not each.name.startswith("_")}
        return sorted(modules | set(vars(found)))

    return getattr_, dir_
