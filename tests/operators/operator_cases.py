"""The registered operator that an example calls, its arguments, and the arguments that it writes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gdn_cuda.operators.examples import Case


class Recorder(TorchDispatchMode):
    """Keeps the gdn_cuda operators called under it, with arguments as they were before the call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[torch._ops.OpOverload, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "gdn_cuda":
            assert not kwargs
            self.calls.append((func, tuple(copied(x) for x in completed(func, args))))
        return func(*args, **(kwargs or {}))


def completed(operator: torch._ops.OpOverload, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """All arguments: torch leaves out the last ones that have their defaults."""
    return (*args, *(argument.default_value for argument in operator._schema.arguments[len(args) :]))


def copied(x: Any) -> Any:
    """A copy of a tensor in its own memory, with the same strides."""
    if not isinstance(x, Tensor):
        return x
    once = x[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.stride())]  # without expanded dimensions
    twin = torch.empty_strided(once.shape, once.stride(), dtype=x.dtype).copy_(once)
    return twin.expand(x.shape)


def operator_call(case: Case, B: int = 2, T: int = 3, seed: int = 0) -> tuple[torch._ops.OpOverload, tuple[Any, ...]]:
    """The one operator that a case calls, and its arguments."""
    arguments = case.make(B, T, seed)
    with Recorder() as recorder:
        case.function(**arguments)
    assert len(recorder.calls) == 1
    return recorder.calls[0]


def written_by(case: Case) -> list[str]:
    """The arguments that the call of an example writes."""
    operator, arguments = operator_call(case)
    declared = zip(operator._schema.arguments, arguments, strict=True)
    return [x.name for x, given in declared if x.alias_info is not None and x.alias_info.is_write and given is not None]
