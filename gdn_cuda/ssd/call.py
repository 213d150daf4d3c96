"""The arguments of a call, in functions that compiled code traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any


class Call:
    """The arguments as attributes. torch.compile cannot trace SimpleNamespace."""

    def __init__(self, **given: Any):
        self._names = tuple(given)
        for name, value in given.items():
            setattr(self, name, value)

    def replaced(self, **changes: Any) -> Call:
        return Call(**{name: getattr(self, name) for name in self._names} | changes)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
