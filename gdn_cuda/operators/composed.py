"""Functions and layers that call several operators, of which some write. To their callers they are one call: it is refused
before anything is written, and has no gradients as a whole.

An operator checks its own arguments, so a composed function lists the calls that follow its first write, and `check_call` runs
the checks of their operators. No operator sees whether its buffers overlap those of another operator; that is checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from .autograd import may_need_gradients, without_gradients
from .schema import check_unmarked, not_a_tensor, refuse, require_tensor, require_tensors

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
    """Calls `checks()`, then `run()`, which returns new tensors. `written` and `read` are all tensors of the call by argument,
    None for those that were not passed; the rest is as in `as_one_call`."""
    # A trace refuses before anything runs; tensors of torch.func's transforms have no memory of their own.
    if not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()):
        check_buffers(function, written, read)
        checks()
    return as_one_call(function, differentiable, written, read, run, module)


def check_buffers(function: str, written: Mapping[str, Any], read: Mapping[str, Any]) -> None:
    """Written tensors must store their values unmarked, and share no memory with each other or with tensors that are read."""
    for argument, x in written.items():
        if not isinstance(x, Tensor):
            raise ValueError(not_a_tensor(function, argument, x))
        check_unmarked(function, argument, x)
    for argument, x in read.items():
        if x is not None and not isinstance(x, Tensor):
            raise ValueError(not_a_tensor(function, argument, x))
    check_apart(function, written, read)


def result_in(
    function: str, out: Tensor | None, shape: tuple[int, ...], like: Tensor, given: Mapping[str, Any], run: Callable[[], Tensor]
) -> Tensor:
    """The result of `run`, of this shape and the dtype of `like`; in `out` if there is one, which is apart from what is given.
    Where it fails, a tensor of those given that is not strided is named first."""
    tensors = {name: x for name, x in given.items() if isinstance(x, Tensor)}
    try:
        if out is None:
            return run()
        require_tensor(function, "out", out, optional=True)
        if out.shape != shape or out.dtype != like.dtype or out.device != like.device:
            got = f"{tuple(out.shape)} of {out.dtype} on {out.device}"
            refuse(function, "out", f"{shape} of {like.dtype} on {like.device}", got)
        check_buffers(function, {"out": out}, tensors)
        return out.copy_(run())
    except Exception:
        require_tensors(function, **tensors)
        raise


def on_cpu(x: Tensor) -> bool:
    """Whether values can be read: x is on the CPU, and not traced."""
    return x.device.type == "cpu" and not isinstance(x, FakeTensor)


def check_apart(function: str, written: Mapping[str, Tensor], read: Mapping[str, Tensor | None]) -> None:
    mine, others = list(written.values()), [x for x in read.values() if x is not None]
    if FakeTensor in map(type, (*mine, *others)):  # fake tensors have no memory
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
    """Calls `run()`, which returns new tensors, without gradients: if a tensor of the call or of `module` requires one,
    backward through the results or the written tensors raises an error that names the `differentiable` alternative."""
    if not may_need_gradients():
        return run()
    parameters = () if module is None else (*module.named_parameters(), *module.named_buffers())
    given = [(argument, x) for argument, x in (*read.items(), *parameters, *written.items()) if isinstance(x, Tensor)]
    result: Result = without_gradients(function, differentiable, given, list(written.items()), run)
    return result


def constants(function: str, differentiable: str, made_from: Mapping[str, Any], of: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The tensors `of`, which were computed from `made_from` without gradients: a backward that reaches them raises."""
    return as_one_call(function, differentiable, {}, made_from, lambda: tuple(x.detach() for x in of))
