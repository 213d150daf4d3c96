"""What one process finds is computed once: processes divide the cases, and each has all results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import torch.distributed as dist

P = ParamSpec("P")
R = TypeVar("R")
_found: dict[Any, Any] = {}


def once(function: Callable[P, R]) -> Callable[P, R]:
    """As functools.cache, of hashable positional arguments and results that can be pickled."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        key = function.__name__, args
        if key not in _found:
            _found[key] = function(*args, **kwargs)
        found: R = _found[key]
        return found

    return call


def divide(calls: Iterable[Callable[[], Any]]) -> None:
    """Every process makes some of the calls of functions with `once`, and gets the results of the others."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for i, call in enumerate(calls):
        if i % size == rank:
            call()
    every: list[Any] = [None] * size
    dist.all_gather_object(every, _found)
    for each in every:
        _found.update(each)
