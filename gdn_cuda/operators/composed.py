"""Functions and layers that call several operators, of which some write: to their callers they are one call, refused as a whole
before anything is written, and without gradients as a whole.

An operator checks its own arguments, so a composed function lists the calls that follow its first write, and `check_call` asks
their operators; what no operator sees, buffers that overlap those of another one, is checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from .autograd import may_need_gradients, without_gradients
from .schema import check_unmarked, not_a_tensor, refuse

Result = TypeVar("Result")
_first_overlap = torch.ops.gdn_cuda.first_overlap.default
_ANY_DEVICE = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


def composed(
    function: str,
    differentiable: str,
    written: Mapping[str, Any],
    read: Mapping[str, Any],
    run: Callable[[], Result],
    checks: Callable[[], None] = lambda: None,
    module: nn.Module | None = None,
) -> Result:
    """`run()`, which returns new tensors, after `checks()`. `written` and `read` are all tensors of the call by argument, None
    for those that are not given; the rest is as in `as_one_call`."""
    # A trace refuses before anything runs; tensors of torch.func's transforms have no memory of their own.
    if not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()):
        check_buffers(function, written, read)
        checks()
    return as_one_call(function, differentiable, written, read, run, module)


def check_buffers(function: str, written: Mapping[str, Any], read: Mapping[str, Any]) -> None:
    """What is written are tensors that hold the numbers themselves, and share no memory with one another or what is read."""
    for argument, x in written.items():
        if not isinstance(x, Tensor):
            raise ValueError(not_a_tensor(function, argument, x))
        check_unmarked(function, argument, x)
    for argument, x in read.items():
        if x is not None and not isinstance(x, Tensor):
            raise ValueError(not_a_tensor(function, argument, x))
    check_apart(function, written, read)


def on_cpu(x: Tensor) -> bool:
    """Whether values can be read: x is on the CPU, and not traced."""
    return x.device.type == "cpu" and not isinstance(x, FakeTensor)


def check_apart(function: str, written: Mapping[str, Tensor], read: Mapping[str, Tensor | None]) -> None:
    mine, others = list(written.values()), [x for x in read.values() if x is not None]
    if FakeTensor in map(type, (*mine, *others)):  # which has no memory
        return
    found = _first_overlap.redispatch(_ANY_DEVICE, mine, others)
    if found >= 0:
        names = [*written, *(name for name, x in read.items() if x is not None)]
        one, other = names[found // len(names)], names[found % len(names)]
        refuse(function, one, f"memory that does not overlap that of {other}", "memory that overlaps it")


def as_one_call(
    function: str,
    differentiable: str,
    written: Mapping[str, Any],
    read: Mapping[str, Any],
    run: Callable[[], Result],
    module: nn.Module | None = None,
) -> Result:
    """`run()`, which returns new tensors, without gradients: where a tensor of the call or of `module` requires one, backward
    through the results or what is written raises and says to use what is `differentiable` instead."""
    if not may_need_gradients():
        return run()
    parameters = () if module is None else (*module.named_parameters(), *module.named_buffers())
    given = [(argument, x) for argument, x in (*read.items(), *parameters, *written.items()) if isinstance(x, Tensor)]
    result: Result = without_gradients(function, differentiable, given, list(written.items()), run)
    return result


def constants(function: str, differentiable: str, made_from: Mapping[str, Any], of: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What was made of tensors without gradients: a backward that reaches these raises."""
    return as_one_call(function, differentiable, {}, made_from, lambda: tuple(x.detach() for x in of))
