"""Functions that torch.compile leaves out of its graphs: their collectives and loops over slices run as they are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def outside_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """torch.compiler.disable, which imports a compiler, where code is compiled only."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            disabled: Callable[P, R] = torch.compiler.disable(function)
            return disabled(*args, **kwargs)
        return function(*args, **kwargs)

    return call
