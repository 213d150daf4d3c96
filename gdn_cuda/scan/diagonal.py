"""The scan of a diagonal system, x_t = Ā_t x_{t−1} + f_t Bu_t: the operator, its derivatives, and the reference of both.

Tensors: Bu (batch, P, L), A (P) and initial_state (batch, P) are complex, delta and delta_a (batch, P, L) or (P) real. The
reference computes in complex128.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..operators.dtypes import wide
from ..operators.first_order import first_order
from ..operators.mapped import Mapped
from .discretizations import GRADIENTS, TRANSITIONS


class _Step(NamedTuple):
    """Ā and f, which broadcast to (batch, P, L), and what they are computed from."""

    a: Tensor
    factor: Tensor
    delta: Tensor
    delta_a: Tensor
    A: Tensor


def _per_token(size: Tensor) -> Tensor:
    return wide(size if size.dim() == 3 else size[:, None])


def _step(x: Any) -> _Step:
    delta, A = _per_token(x.delta), wide(x.A)[:, None]
    delta_a = delta if x.delta_a is None else _per_token(x.delta_a)
    a, factor = TRANSITIONS[x.discretization](delta, delta_a, A)
    return _Step(a, factor, delta, delta_a, A)


def _states(a: Tensor, b: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The states a_t x_{t−1} + b_t of every token, and the last one."""
    found, a = torch.empty_like(b), a.expand_as(b)
    for t in range(b.shape[-1]):
        state = a[..., t] * state + b[..., t]
        found[..., t] = state
    return found, state


def _start(x: Any) -> Tensor:
    return wide(x.Bu.new_zeros(x.Bu.shape[:2]) if x.initial_state is None else x.initial_state)


def _reference(x: Any) -> tuple[Tensor, Tensor]:
    step = _step(x)
    states, last = _states(step.a, step.factor * wide(x.Bu), _start(x))
    return states.to(x.Bu.dtype), last.to(x.Bu.dtype)


# ---- Gradients


def _reference_backward(x: Any) -> tuple[Tensor, ...]:
    """dx_t = g_t + conj(Ā_{t+1}) dx_{t+1}, and the gradients of all inputs. Compiled code may lose a lazy conj()."""
    step = _step(x)
    grad, before = wide(x.grad), torch.cat([_start(x)[..., None], wide(x.x)], -1)[..., :-1]
    decay = torch.conj_physical(step.a).expand_as(grad)
    carried, dstart = _states(decay.flip(-1), (decay * grad).flip(-1), wide(x.grad_of_last))
    after = torch.cat([carried.flip(-1), wide(x.grad_of_last)[..., None]], -1)[..., 1:]
    dx = grad + after
    da, dfactor = dx * torch.conj_physical(before), dx * torch.conj_physical(wide(x.Bu))
    gradients = GRADIENTS[x.discretization]
    ddelta, ddelta_a, dA = gradients(step.delta, step.delta_a, step.A, step.a, da, dfactor)
    if x.delta_a is None:
        ddelta, ddelta_a = ddelta + ddelta_a, torch.zeros_like(x.A.real)

    like = x.Bu.dtype
    return (
        (dx * torch.conj_physical(step.factor)).to(like),
        ddelta.reshape(x.delta.shape).to(x.delta.dtype),
        dA[:, 0].to(like),
        ddelta_a.reshape((x.A if x.delta_a is None else x.delta_a).shape).to(x.delta.dtype),
        dstart.to(like),
    )


def _backward_shapes(x: Any) -> tuple[Tensor, ...]:
    delta_a = x.delta.new_empty(x.A.shape if x.delta_a is None else x.delta_a.shape)
    return (
        x.Bu.new_empty(x.Bu.shape),
        x.delta.new_empty(x.delta.shape),
        x.A.new_empty(x.A.shape),
        delta_a,
        x.Bu.new_empty(x.Bu.shape[:2]),
    )


def _gradients(x: Any, needs: Any, grad: Tensor, grad_of_last: Tensor) -> dict[str, Any]:
    given = x.Bu, x.delta, x.A, x.delta_a, x.initial_state
    found = diagonal_scan_backward(grad, grad_of_last, x.results[0], *given, x.discretization)
    named = zip(("Bu", "delta", "A", "delta_a", "initial_state"), given, found, strict=True)
    return {name: grad if tensor is not None and getattr(needs, name) else None for name, tensor, grad in named}


# ---- torch.vmap: the mapped dimension becomes more states


def _with_more_states(operator: Any, x: Any, dims: Any) -> Any:
    mapped = Mapped(x, dims)

    def more(name: str) -> Any:
        given = getattr(x, name)
        return mapped.widened(name, min(mapped.rank(name) - 1, 1)) if isinstance(given, Tensor) else given

    results = operator(*(more(name) for name in operator.schema.arguments))
    return tuple(zip(*(mapped.split(y, min(y.dim() - 1, 1)) for y in results), strict=True))


def _batched(x: Any, dims: Any) -> Any:
    return _with_more_states(diagonal_scan, x, dims)


def _batched_backward(x: Any, dims: Any) -> Any:
    return _with_more_states(diagonal_scan_backward, x, dims)


_NAME = "simplified_scan"
diagonal_scan = first_order(
    _NAME,
    "diagonal_scan",
    shapes=lambda x: (x.Bu.new_empty(x.Bu.shape), x.Bu.new_empty(x.Bu.shape[:2])),
    reference=_reference,
    backward=_gradients,
    batched=_batched,
    uses_results=True,
)
diagonal_scan_backward = first_order(
    _NAME, "diagonal_scan_backward", shapes=_backward_shapes, reference=_reference_backward, batched=_batched_backward
)
