"""Shared by Hyena's three operators: their declaration, their gradients, and the layouts of their tensors (B, D, L)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..operators import Differentiable
from ..operators.declare import DECLARATIONS, Declaration
from ..operators.dtypes import state_dtype
from ..operators.first_order import first_order
from ..operators.layout import channels_are_last, empty_in_layout, in_layout
from ..operators.transposed import dense_in_layout

Computed = Callable[[Any], tuple[Tensor, Tensor]]
Gradients = Callable[
    [Any, Any, Tensor, Tensor], dict[str, Any]
]  # from a call, what is needed, and the gradients of its results
Function = TypeVar("Function", bound=Callable[..., Any])
_PER_TOKEN = ("x1", "x2", "v")


def differentiable_hyena(name: str, computed: Computed, columns: Callable[[Any], int]) -> tuple[Differentiable, Gradients]:
    """torch.ops.gdn_cuda.<name>, which returns (y, state), and its gradients, by torch.ops.gdn_cuda.<name>_backward.

    `computed` returns y and the state, in plain torch; `columns` returns the number of values in a channel's state.
    <name>_backward takes grad, grad_state and the arguments of <name>, in any order. It returns the gradients of all tensors of
    <name> but padding_mask, in their order: those of x1, x2 and v like x1; the others contiguous, in fp32 (or fp64), and empty
    for arguments that are None.
    """

    def gradients(x: Any, needs: Any, grad: Tensor, grad_state: Tensor) -> dict[str, Any]:
        given = vars(x) | {"grad": readable_gradient(x.x1, grad), "grad_state": grad_state}
        found = backward(*(given[argument] for argument in backward.schema.arguments))
        named = zip(differentiated, found, strict=True)
        return {argument: gradient.to(given[argument].dtype) for argument, gradient in named if getattr(needs, argument)}

    def refuse_vmap(x: Any, dims: Any) -> Any:
        raise RuntimeError(f"{name}: torch.vmap is not supported; x1 has a batch dimension")

    forward = first_order(
        name,
        name,
        shapes=lambda x: _shapes(x, columns(x)),
        cpu=lambda x: _on_cpu(computed, x),
        backward=gradients,
        batched=refuse_vmap,
    )
    differentiated = [forward.schema.arguments[i] for i, _ in forward.schema.tensors]
    differentiated = [argument for argument in differentiated if argument != "padding_mask"]
    backward = first_order(
        name,
        f"{name}_backward",
        shapes=lambda x: tuple(_gradient_shape(x, argument) for argument in differentiated),
        cpu=lambda x: tuple(_gradients_on_cpu(computed, differentiated, x)),
        batched=refuse_vmap,
    )
    return forward, gradients


def with_reference(forward: Differentiable, computed: Computed) -> Callable[[Function], Function]:
    """The decorator of the public function that calls `forward`: makes its reference public."""

    def declare(function: Function) -> Function:
        DECLARATIONS[function.__name__] = Declaration(function, (forward.schema,), _reference(computed))
        return function

    return declare


# ---- CPU implementations, and shapes


def _reference(computed: Computed) -> Callable[[Any], Any]:
    return lambda x: computed(x) if x.return_state else computed(x)[0]


def _on_cpu(computed: Computed, x: Any) -> tuple[Tensor, Tensor]:
    y, state = computed(x)
    return in_layout(y, x.x1), state.to(state_dtype(x.x1), memory_format=torch.contiguous_format, copy=True)


def _shapes(x: Any, columns: int) -> tuple[Tensor, Tensor]:
    B, D, _ = x.x1.shape
    return empty_in_layout(x.x1), x.x1.new_empty((B, D, columns), dtype=state_dtype(x.x1))


def _gradient_shape(x: Any, argument: str) -> Tensor:
    if argument in _PER_TOKEN:
        return empty_in_layout(x.x1)
    given = getattr(x, argument)
    return x.x1.new_empty((0,) if given is None else given.shape, dtype=state_dtype(x.x1))


def _gradients_on_cpu(computed: Computed, differentiated: list[str], x: Any) -> list[Tensor]:
    """Gradients by autograd, which is off here (below the dispatcher, or in inference mode) and has to be switched on."""
    with torch.inference_mode(False), torch.enable_grad():
        copies = {name: given.clone() if isinstance(given, Tensor) else given for name, given in vars(x).items()}
        leaves = [y.requires_grad_() for name in differentiated if (y := copies[name]) is not None]
        # Without tokens and initial state, the state depends on nothing.
        results = zip(computed(SimpleNamespace(**copies)), (x.grad, x.grad_state), strict=True)
        weighted = [(result * grad.to(result.dtype)).sum() for result, grad in results if result.requires_grad]
        # A scalar: with gradients of other shapes autograd would import sympy.
        found = iter(torch.autograd.grad(sum(weighted, torch.zeros(())), leaves, materialize_grads=True))
    return [
        _gradient_shape(x, name).copy_(next(found)) if copies[name] is not None else _gradient_shape(x, name)
        for name in differentiated
    ]


# ---- Layouts


def readable_gradient(x: Tensor, grad: Tensor) -> Tensor:
    """Kernels read gradients fast in x's layout; copying a gradient to it takes less time than reading another layout."""
    return grad if grad.stride(1 if channels_are_last(x) else 2) == 1 else dense_in_layout(grad, x)


def tokens_adjacent(x: Tensor) -> Tensor:
    """x with contiguous tokens."""
    return x.contiguous()


def channels_adjacent(x: Tensor) -> Tensor:
    """x with contiguous channels."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)
