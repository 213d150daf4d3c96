"""torch.vmap: the mapped dimension becomes more channels, states or sequences, which are independent of each other."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class Mapped:
    """The arguments x of an operator, with the dimensions `dims` that torch.vmap maps over."""

    def __init__(self, x: Any, dims: Any):
        self._x, self._dims = x, dims
        self._count = next(getattr(x, name).shape[d] for name, d in vars(dims).items() if d is not None)

    def is_over(self, *names: str) -> bool:
        return any(getattr(self._dims, name) is not None for name in names)

    def rank(self, name: str) -> int:
        """The argument's rank without the mapped dimension."""
        rank: int = getattr(self._x, name).dim()
        return rank - self.is_over(name)

    def inserted(self, name: str, at: int) -> Tensor:
        """The argument with the mapped dimension moved to `at`."""
        y, d = getattr(self._x, name), getattr(self._dims, name)
        found: Tensor = y.unsqueeze(at).expand(*y.shape[:at], self._count, *y.shape[at:]) if d is None else y.movedim(d, at)
        return found

    def widened(self, name: str, at: int) -> Tensor:
        """The argument with its dimension `at` concatenated over all mapped elements."""
        return self.inserted(name, at).flatten(at, at + 1)

    def split(self, result: Tensor, at: int) -> tuple[Tensor, int]:
        """A result of widened arguments, and its mapped dimension."""
        return result.unflatten(at, (self._count, -1)), at
