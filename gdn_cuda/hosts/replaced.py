"""Replaces attributes of a host's modules and classes, at once or when a module is imported."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..runtime import log
from .verified import Refused

logger = logging.getLogger("gdn_cuda")
_ABSENT = object()


@dataclass(frozen=True)
class _Change:
    undo: Callable[[], None]  # may be called if the change was not made, and twice
    name: str = ""


class Replaced:
    """The replacements, in order, and how to undo them."""

    def __init__(self) -> None:
        self._changes: list[_Change] = []

    def put(self, owner: Any, name: str, new: Any) -> None:
        before = vars(owner).get(name, _ABSENT)

        def undo() -> None:
            now = vars(owner).get(name, _ABSENT)
            if now is before:
                return
            if now is not new:
                logger.warning("uninstall: %s.%s was replaced again since; it stays as it is", owner.__name__, name)
            elif before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        what = f"{_name(owner)}.{name}"
        self._changes.append(_Change(undo, what))
        setattr(owner, name, new)
        log(logging.INFO, f"{what} runs on gdn_cuda")

    def change(self, do: Callable[[], None], undo: Callable[[], None]) -> None:
        """Makes any other change. `undo` may be called if `do` was interrupted, and twice."""
        self._changes.append(_Change(undo))
        do()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Makes the block's replacements all or none: if an exception ends the block, Ctrl-C too, they are undone."""
        before = len(self._changes)
        try:
            yield
        except BaseException:
            self._undo_down_to(before)
            raise

    def undo(self) -> None:
        """Undoes all replacements, except attributes that somebody else has replaced since."""
        self._undo_down_to(0)

    def _undo_down_to(self, count: int) -> None:
        while len(self._changes) > count:
            self._changes[-1].undo()
            self._changes.pop()  # only now, so that an interrupted undo goes on where it stopped

    def __bool__(self) -> bool:
        return bool(self._changes)

    def names(self) -> tuple[str, ...]:
        return tuple(change.name for change in self._changes if change.name)


def _name(owner: Any) -> str:
    return str(owner.__name__) if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"


class AfterImport(MetaPathFinder):
    """Calls `then(module)` after the import of each of `modules`, while this finder is in sys.meta_path. The import succeeds
    even if `then` raises: then `host` keeps its own kernels, which is logged."""

    def __init__(self, host: str, modules: Iterable[str], then: Callable[[ModuleType], None]):
        self._host, self._modules, self._then, self._finding = host, frozenset(modules), then, False

    def install(self) -> None:
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def uninstall(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in self._modules or self._finding:
            return None
        self._finding = True  # so that this finder does not answer for the others
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._finding = False
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenLoader(spec.loader, self._call)
        return spec

    def _call(self, module: ModuleType) -> None:
        try:
            self._then(module)
        except Exception as error:
            keeps_own_kernels(self._host, error)


def keeps_own_kernels(host: str, error: Exception) -> None:
    """Logs why an installation was abandoned; the server or the import goes on without it."""
    is_expected = isinstance(error, Refused)
    logger.warning("%s keeps its own kernels: %s", host, error, exc_info=None if is_expected else error)


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
