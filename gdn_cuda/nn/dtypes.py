"""The rule for dtypes that all modules follow; docs/scan.md states it for users."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ..operators.dtypes import state_dtype

_HALVES = (torch.bfloat16, torch.float16)


def recurrence_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of a recurrence's parameters in a module that is made with `dtype`."""
    return torch.float64 if (dtype or torch.get_default_dtype()) == torch.float64 else torch.float32


def at_least_fp32(x: Tensor) -> Tensor:
    """x in fp32, or unchanged if it is wider."""
    return x.to(state_dtype(x))


def layer_dtype(x: Tensor) -> torch.dtype:
    """The dtype that nn.Linear returns for x: autocast's if that is on and x is not fp64, else that of x."""
    return torch.get_autocast_dtype(x.device.type) if _casts(x.device.type) and x.dtype != torch.float64 else x.dtype


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """A context without autocast, for a recurrence's products in plain torch."""
    return torch.autocast(x.device.type, enabled=False) if _casts(x.device.type) else nullcontext()


def _casts(device: str) -> bool:
    return device != "meta" and torch.is_autocast_enabled(device)  # is_autocast_enabled raises for meta


class KeepsRecurrence(nn.Module):
    """A module whose `.to(torch.bfloat16)` leaves the parameters of its recurrence in fp32, as 8 bits cannot hold phases."""

    @abstractmethod
    def recurrence(self) -> Iterator[nn.Parameter]: ...

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        kept = {id(x) for p in self.recurrence() for x in (p, p.grad) if x is not None}

        def converted(x: Tensor) -> Tensor:
            y = fn(x)
            return x.to(y.device) if id(x) in kept and y.dtype in _HALVES else y

        return super()._apply(converted, recurse)
