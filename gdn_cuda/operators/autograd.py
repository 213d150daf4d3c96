"""Calls of operators, functions and layers that have no gradients, in grad mode: backward and forward mode raise.

An input that requires a gradient does not change the results, but every tensor that the call returns or writes gets a grad_fn
whose backward raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from .registration import check, library
from .schema import Schema

_POOLS = ("state_pool", "step_states", "conv_state", "conv_pool", "step_conv")  # too large to be copied in compiled code
_REFERENCE = "gdn_cuda.reference"
_Named = Iterable[tuple[str, Tensor]]


def keep_autograd_out(schema: Schema) -> None:
    """Disables torch's autograd fallback, which costs time and gives results a grad_fn that only warns."""
    if not schema.returns:
        library.impl(schema.name, torch.library.fallthrough_kernel, "Autograd")


def refuse_forward_mode(function: str, tensors: _Named, differentiable: str = _REFERENCE) -> None:
    """Raises for tensors with tangents, and for tensors that a torch.func transform differentiates."""
    transforms = torch._C._are_functorch_transforms_active()
    if not transforms and forward_ad._current_level < 0:
        return
    for argument, x in tensors:
        if transforms and _differentiated(x):
            what = (
                f"a tensor outside torch.func transforms (grad, vjp, jvp, jacrev, jacfwd); for gradients use {differentiable}"
            )
            raise ValueError(f"{function}: {argument}: expected {what}, got one inside")
        if not transforms and forward_ad.unpack_dual(x).tangent is not None:
            what = "a tensor without a tangent, as only gdn_cuda.reference supports forward mode"
            raise ValueError(f"{function}: {argument}: expected {what}, got one with a tangent")


def _differentiated(x: Tensor) -> bool:
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_gradtrackingtensor(x):
            return True
        x = functorch.get_unwrapped(x)
    return False


def _no_gradient(function: str, differentiable: str) -> str:
    return f"{function}: no gradient is computed; for gradients use {differentiable}"


def with_autograd(schema: Schema, args: tuple[Any, ...]) -> Any:
    if _is_plain(schema, args):
        return _plain(schema, args)
    schema.check_tensors(args)

    def checks() -> None:
        schema.check_devices(args)
        check(schema.name, args)

    return without_gradients(
        schema.function,
        schema.differentiable,
        list(schema.given(args)),
        list(schema.written(args)),
        (lambda: schema.overload(*args)) if torch.compiler.is_compiling() else partial(_plain, schema, args),
        checks,
    )


def requires_gradient(given: tuple[Any, ...]) -> bool:
    for x in given:  # noqa: SIM110  (a generator is slower)
        if x is not None and isinstance(x, Tensor) and x.requires_grad:
            return True
    return False


def needs_gradients(*given: Tensor | None) -> bool:
    """Whether autograd records a call of these tensors."""
    return is_grad_enabled() and requires_gradient(given)


def may_need_gradients() -> bool:
    """Whether a call has to go through `without_gradients`; outside grad mode and forward mode it need not."""
    return is_grad_enabled() or forward_ad._current_level >= 0


def without_gradients(
    function: str,
    differentiable: str,
    given: list[tuple[str, Tensor]],
    written: list[tuple[str, Tensor]],
    run: Callable[[], Any],
    checks: Callable[[], None] = lambda: None,
) -> Any:
    """Calls `run()`, which returns a new tensor, several, or None, as one call without gradients: if one of `given`, the
    tensors that it reads or writes, requires a gradient, it runs in no_grad, and backward through its results and through
    `written` raises an error that names `function` and the `differentiable` alternative. `checks()` is called before the first
    of `written` gets a grad_fn."""
    required = [(argument, x) for argument, x in given if x.requires_grad] if is_grad_enabled() else []
    message = _no_gradient(function, differentiable)
    if torch.compiler.is_compiling():
        return _traced(function, message, written, [x for _, x in required], run) if required else run()
    refuse_forward_mode(function, given, differentiable)
    if not required:
        return run()
    checks()
    for argument, x in written:
        _check_writable(function, argument, x)
    # The grad_fn is set first: if torch refuses that, nothing has been written.
    for argument, x in written:
        _mark_written(function, message, argument, x, [y for _, y in required if y is not x], required[0][0])
    with torch.no_grad():
        results = run()
    if results is None:
        return None
    return _Results.apply(message, lambda: results, *(x for _, x in required))


def _is_plain(schema: Schema, args: tuple[Any, ...]) -> bool:
    """Whether no input requires a gradient or has a tangent. Every call asks, so it takes few steps."""
    if forward_ad._current_level >= 0 or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    if not is_grad_enabled():
        return True
    try:
        for x in schema.pick_tensors(args):
            if x is not None and x.requires_grad:
                return False
    except AttributeError:  # an argument that is not a tensor: the slow path names it
        return False
    return True


def _plain(schema: Schema, args: tuple[Any, ...]) -> Any:
    """Increments the versions of written tensors, so that torch notices where autograd had saved them."""
    try:
        results = schema.direct(*args)
    except Exception:
        schema.check_types(args)
        raise
    if is_grad_enabled():
        written = [x for i in schema.writes if (x := args[i]) is not None]
        try:
            increment_version(written)
        except RuntimeError:  # inference tensors have no version counter
            increment_version([x for x in written if not x.is_inference()])
    return results


def _check_writable(function: str, argument: str, x: Tensor) -> None:
    root = x if x._base is None or (x.is_leaf and x.requires_grad) else x._base
    if root.is_leaf and root.requires_grad:
        got = "a leaf that requires one" if root is x else "a view of a leaf that requires one"
        raise ValueError(f"{function}: {argument}: expected memory that requires no gradient, as it is written, got {got}")


def _mark_written(function: str, message: str, argument: str, x: Tensor, read: list[Tensor], why: str) -> None:
    before = (x if x._base is None else x._base).grad_fn
    if before is not None and any(getattr(edge, "variable", None) is _MARK for edge, _ in before.next_functions):
        increment_version([x])  # it has our grad_fn already; one more for each step would let the graph of a pool grow
        return
    try:
        _Written.apply(message, x, _MARK, *read)
    except RuntimeError as error:
        expected = f"memory that autograd can track, as {why} requires a gradient (or a call under torch.no_grad())"
        raise ValueError(f"{function}: {argument}: expected {expected}, got {error}") from error


_MARK = torch.empty(0, requires_grad=True)  # identifies the grad_fn of `_Written`


class _Written(torch.autograd.Function):
    """Gives its first tensor a grad_fn without touching its elements."""

    @staticmethod
    def forward(ctx: Any, message: str, written: Tensor, *others: Tensor) -> Tensor:
        ctx.message = message
        ctx.mark_dirty(written)
        return written

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError(ctx.message)


class _Results(torch.autograd.Function):
    """Gives new tensors a grad_fn. A function returns them, because torch would treat tensor arguments as inputs."""

    @staticmethod
    def forward(ctx: Any, message: str, results: Callable[[], Any], *inputs: Tensor) -> Any:
        ctx.message = message
        return results()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError(ctx.message)


# ---- The same in compiled code, which traces operators only


library.define("without_gradient(Tensor x, Tensor[] inputs, str message) -> Tensor")
library.define("refuse_backward(Tensor grad, str message) -> Tensor")


@torch.library.register_fake("gdn_cuda::without_gradient", lib=library)
def _(x: Tensor, inputs: list[Tensor], message: str) -> Tensor:
    return torch.empty_like(x)


@torch.library.register_fake("gdn_cuda::refuse_backward", lib=library)
def _(grad: Tensor, message: str) -> Tensor:
    return grad.new_empty(())


def _copy(x: Tensor, inputs: list[Tensor], message: str) -> Tensor:
    return x.clone()


def _refuse_backward(grad: Tensor, message: str) -> Tensor:
    raise RuntimeError(message)


library.impl("without_gradient", _copy, "CompositeExplicitAutograd")
library.impl("refuse_backward", _refuse_backward, "CompositeExplicitAutograd")


def _keep_message(ctx: Any, inputs: Any, output: Tensor) -> None:
    _, tensors, ctx.message = inputs
    ctx.like = [(x.shape, x.dtype) for x in tensors]


def _refusals(ctx: Any, grad: Tensor) -> Any:
    zero = torch.ops.gdn_cuda.refuse_backward(grad, ctx.message)
    return None, [zero.to(dtype).expand(shape) for shape, dtype in ctx.like], None


torch.library.register_autograd("gdn_cuda::without_gradient", _refusals, setup_context=_keep_message, lib=library)


def _traced(function: str, message: str, written: _Named, inputs: list[Tensor], run: Callable[[], Any]) -> Any:
    """Gives copies a grad_fn, because compiled code cannot set one in place. Pools, too large to be copied, get none."""
    for argument, x in written:
        if x.requires_grad:
            expected = "memory that requires no gradient in compiled code"
            raise ValueError(f"{function}: {argument}: expected {expected}, got one that does")
    with torch.no_grad():
        results = run()
    link = torch.ops.gdn_cuda.without_gradient.default
    for argument, x in written:
        if argument not in _POOLS:
            x.copy_(link(x, inputs, message))
    if isinstance(results, tuple):
        return tuple(link(x, inputs, message) for x in results)
    return results if results is None else link(results, inputs, message)
