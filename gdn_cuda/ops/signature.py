"""An operator's arguments by name, from its schema, and the checks that need no more than names and types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Signature:
    function: str  # what users call it
    overload: Any
    arguments: tuple[str, ...]
    tensors: tuple[tuple[int, bool], ...]  # places of tensors, and whether they may be None
    writes: tuple[int, ...]

    @staticmethod
    def of(name: str) -> Signature:
        overload = getattr(torch.ops.gdn_cuda, name).default
        arguments = overload._schema.arguments
        kinds = [str(x.type) for x in arguments]
        return Signature(
            name.removesuffix("_pool"),
            overload,
            tuple(x.name for x in arguments),
            tuple((i, kind != "Tensor") for i, kind in enumerate(kinds) if kind in ("Tensor", "Optional[Tensor]")),
            tuple(i for i, x in enumerate(arguments) if x.alias_info is not None and x.alias_info.is_write),
        )

    def given(self, args: tuple[Any, ...]) -> Iterator[tuple[str, Tensor]]:
        return ((self.arguments[i], args[i]) for i, _ in self.tensors if isinstance(args[i], Tensor))

    def written(self, args: tuple[Any, ...]) -> Iterator[tuple[str, Tensor]]:
        return ((self.arguments[i], args[i]) for i in self.writes if isinstance(args[i], Tensor))

    def check_tensors(self, args: tuple[Any, ...]) -> None:
        for i, optional in self.tensors:
            if not (isinstance(args[i], Tensor) or (optional and args[i] is None)):
                raise ValueError(not_a_tensor(self.function, self.arguments[i], args[i], optional))

    def check_devices(self, args: tuple[Any, ...]) -> None:
        (first, like), *others = self.given(args)
        for argument, x in others:
            if x.device != like.device:
                raise ValueError(f"{self.function}: {argument}: expected {like.device}, the device of {first}, got {x.device}")


def not_a_tensor(function: str, argument: str, given: object, optional: bool = False) -> str:
    got = "None" if given is None else type(given).__name__
    return f"{function}: {argument}: expected a tensor{' or None' if optional else ''}, got {got}"
