"""Sums of powers: the operators, their derivatives, and the public functions."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from ..operators import Differentiable, register
from ..operators.gradients import leading_first, require_no_transforms
from ..operators.schema import require_tensors
from . import reference_sums as reference
from .call import as_one, broadcast_leading, call, check_out, finished, raise_in_words_of
from .reference_common import broadcast_shapes


def _shape(x: Any) -> Tensor:
    real = torch.float32 if x.v.dtype == torch.complex64 else torch.float64
    return x.v.new_empty((*broadcast_shapes(x.v.shape[:-1], x.x.shape[:-1]), x.L), dtype=real)


def _steps(like: Tensor, L: Any) -> Tensor:
    return torch.arange(L, dtype=like.dtype, device=like.device)


def _gradients(x: Any, needs: Any, grad: Tensor) -> dict[str, Any]:
    sums = moments(grad, x.x, 2 if needs.x else 1)
    return {
        "v": (2 * torch.conj_physical(sums[0])).sum_to_size(x.v.shape) if needs.v else None,
        "x": (2 * torch.conj_physical(x.v * sums[1])).sum_to_size(x.x.shape) if needs.x else None,
    }


def _tangent(x: Any, of: Any) -> Tensor:
    total = vandermonde(torch.zeros_like(x.v) if of.v is None else of.v, x.x, x.L)
    if of.x is None:
        return total
    by_x = vandermonde(x.v * of.x, x.x, x.L)
    return total + _steps(by_x, x.L) * by_x


def _batched(x: Any, dims: Any) -> Any:
    return vandermonde(*leading_first(x, dims, {"v": 1, "x": 1}), x.L), 0


def _moments_shape(x: Any) -> Tensor:
    return x.x.new_empty((x.orders, *broadcast_shapes(x.u.shape[:-1], x.x.shape[:-1]), x.x.shape[-1]))


def _moments_gradients(x: Any, needs: Any, grad: Tensor) -> dict[str, Any]:
    if x.orders != 1:
        raise RuntimeError("log_vandermonde, log_vandermonde_transpose: gradients of gradients are not computed")
    found = {}
    if needs.u:
        du = 0.5 * vandermonde(torch.conj_physical(grad[0]), x.x, x.u.shape[-1])
        found["u"] = du.sum_to_size(x.u.shape)
    if needs.x:
        first = moments(x.u, x.x, 2)[1]
        found["x"] = (grad[0] * torch.conj_physical(first)).sum_to_size(x.x.shape)
    return found


def _moments_tangent(x: Any, of: Any) -> Tensor:
    """The derivative of Σ l^j u_l e^{x l} with respect to x is the same sum with l u_l."""
    total = moments(torch.zeros_like(x.u) if of.u is None else of.u, x.x, x.orders)
    return total if of.x is None else total + of.x * moments(_steps(x.u, x.u.shape[-1]) * x.u, x.x, x.orders)


def _batched_moments(x: Any, dims: Any) -> Any:
    return moments(*leading_first(x, dims, {"u": 1, "x": 1}), x.orders), 1


vandermonde = Differentiable(
    "log_vandermonde",
    shapes=_shape,
    reference=reference.log_vandermonde,
    backward=_gradients,
    tangent=_tangent,
    batched=_batched,
)
moments = Differentiable(
    "log_vandermonde_moments",
    shapes=_moments_shape,
    reference=reference.log_vandermonde_moments,
    backward=_moments_gradients,
    tangent=_moments_tangent,
    batched=_batched_moments,
)
_vandermonde_out = register("log_vandermonde_out", reference=reference.log_vandermonde)


def log_vandermonde(
    v: Tensor, x: Tensor, L: int, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None
) -> Tensor:
    """Sums of powers with logarithms as input: the product with a Vandermonde matrix, S4D's kernel.

    Formula:
        out[…, l] = 2·Re Σ_n v_n e^{x_n l},  l = 0 … L − 1

    Shapes:
        v, x: (…, N), real or complex
        out: (…, L), real

    Parameters:
        L: number of sums, for the powers 0 to L − 1
        stream: the CUDA stream that computes, and on which the result is ready; None: the current one

    Phases are exact: x·l is never rounded.

    Edge cases:
        The power 0 is 1 for any x, so x = −∞ is the logarithm of 0.
        An entry with a power or term that overflows is infinite or NaN; underflow is 0.
        A result that is larger than memory is refused before it is allocated.

    Example:
        >>> gdn_cuda.log_vandermonde(torch.ones(1), torch.tensor([-1.0]), 3)
        tensor([2.0000, 0.7358, 0.2707])
    """
    tensors = {"v": v, "x": x}
    if stream is None and out is None:
        try:
            _check_length("log_vandermonde", L)
            return vandermonde(*as_one("log_vandermonde", tensors, torch.complex64), L)
        except Exception as error:
            raise_in_words_of("log_vandermonde", tensors, error)
            raise

    def run(out: Tensor | None) -> Tensor:
        _check_length("log_vandermonde", L)
        both = as_one("log_vandermonde", tensors, torch.complex64)
        if out is None:
            return vandermonde(*both, L)
        require_no_transforms("log_vandermonde")
        _vandermonde_out.overload(*both, L, out)
        return out

    return call("log_vandermonde", run, stream, out, tensors)


def log_vandermonde_transpose(
    u: Tensor, v: Tensor, x: Tensor, L: int, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None
) -> Tensor:
    """The product with the transposed Vandermonde matrix, times v: the contribution of an input to the state of S4D.

    Formula:
        out[…, n] = v_n Σ_l u_l e^{x_n l},  l = 0 … L − 1

    Shapes:
        u: (…, L), real or complex
        v, x: (…, N), real or complex
        out: (…, N), complex

    Parameters:
        L: the length of u
        stream: the CUDA stream that computes, and on which the result is ready; None: the current one

    Edge cases:
        Powers as in `log_vandermonde`. L must be the length of u.

    Example:
        >>> gdn_cuda.log_vandermonde_transpose(torch.ones(3), torch.ones(1), torch.tensor([-1.0]), 3)
        tensor([1.5032+0.j])
    """
    function, tensors = "log_vandermonde_transpose", {"u": u, "v": v, "x": x}

    def run(out: Tensor | None) -> Tensor:
        _check_length(function, L)
        require_tensors(function, **tensors)  # torch would multiply a sparse v too
        _, wide_v, wide_x = as_one(function, tensors, torch.complex64)
        if u.dim() < 1 or u.shape[-1] != L:
            raise ValueError(f"{function}: u: expected (…, L={L}), got {tuple(u.shape)}")
        if x.dim() < 1:
            raise ValueError(f"{function}: x: expected rank 1 or more, got ()")
        if v.dim() < 1 or v.shape[-1] != x.shape[-1]:
            raise ValueError(f"{function}: v: expected (…, {x.shape[-1]}) as x has, got {tuple(v.shape)}")
        leading = broadcast_leading(function, {"u": (u, 1), "v": (v, 1), "x": (x, 1)})
        check_out(function, out, (*leading, x.shape[-1]), wide_v.dtype)
        if out is not None:
            require_no_transforms(function)
        real = torch.float32 if wide_x.dtype == torch.complex64 else torch.float64
        sums = [moments(part.to(real), wide_x, 1)[0] for part in ([u.real, u.imag] if u.is_complex() else [u])]
        total = sums[0] if len(sums) == 1 else sums[0] + 1j * sums[1]
        return finished(wide_v * total, wide_v.dtype, out)

    return call(function, run, stream, out, tensors)


def _check_length(function: str, L: object) -> None:
    if not isinstance(L, (Integral, torch.SymInt)):
        raise ValueError(f"{function}: L: expected an integer, got {L!r}")
