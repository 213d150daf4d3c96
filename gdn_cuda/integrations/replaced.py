"""Attributes of a host's modules and classes with others in their place, now or when a module is imported."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable, Iterable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

logger = logging.getLogger("gdn_cuda")
_ABSENT = object()


class Replaced:
    """What was replaced, in order, and how to undo it."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, Any]] = []

    def put(self, owner: Any, name: str, new: Any) -> None:
        self._undo.append((owner, name, vars(owner).get(name, _ABSENT), new))
        setattr(owner, name, new)

    def undo(self) -> None:
        """What somebody else has replaced since stays as it is."""
        while self._undo:
            owner, name, before, new = self._undo.pop()
            if vars(owner).get(name, _ABSENT) is not new:
                logger.warning("uninstall: %s.%s was replaced again since; it stays as it is", owner.__name__, name)
            elif before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    def names(self) -> tuple[str, ...]:
        return tuple(f"{_name(owner)}.{name}" for owner, name, _, _ in self._undo)


def _name(owner: Any) -> str:
    return str(owner.__name__) if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"


class AfterImport(MetaPathFinder):
    """Calls `then(module)` behind the import of each of these modules, while it is among sys.meta_path."""

    def __init__(self, modules: Iterable[str], then: Callable[[ModuleType], None]):
        self._modules, self._then, self._finding = frozenset(modules), then, False

    def install(self) -> None:
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def uninstall(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in self._modules or self._finding:
            return None
        self._finding = True  # the other finders are asked
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._finding = False
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenLoader(spec.loader, self._then)
        return spec


class _ThenLoader(Loader):
    def __init__(self, loader: Any, then: Callable[[ModuleType], None]):
        self._loader, self._then = loader, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._then(module)
