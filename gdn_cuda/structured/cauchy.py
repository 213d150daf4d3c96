"""Cauchy sums: the operators, their derivatives, and the public functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..operators import Differentiable, register
from ..operators.gradients import leading_first, require_no_transforms
from . import reference_sums as reference
from .call import as_one, call, raise_in_words_of
from .reference_common import broadcast_shapes


def _shape(x: Any) -> tuple[Any, ...]:
    return (*broadcast_shapes(x.v.shape[:-1], x.points.shape[:-1], x.poles.shape[:-1]), x.points.shape[-1])


def _gradients(x: Any, needs: Any, grad: Tensor) -> dict[str, Any]:
    wanted = {name: getattr(needs, name) for name in ("v", "points", "poles")}
    found = cauchy_backward(grad, x.v, x.points, x.poles, x.conj, *wanted.values())
    return {
        name: of.sum_to_size(getattr(x, name).shape) for (name, want), of in zip(wanted.items(), found, strict=True) if want
    }


def _tangent(x: Any, of: Any) -> Tensor:
    """The sum is linear in v. Its derivative with respect to a point is Σ −v/(ω − λ)², the conjugate of a backward of ones. The
    tangent of the poles contributes the negative of the same sum with residues v λ̇."""

    def slope(v: Tensor) -> Tensor:
        ones = torch.ones_like(x.points).expand(_shape(x))
        return torch.conj_physical(cauchy_backward(ones, v, x.points, x.poles, x.conj, False, True, False)[1])

    total = cauchy(torch.zeros_like(x.v) if of.v is None else of.v, x.points, x.poles, x.conj)
    if of.points is not None:
        total = total + of.points * slope(x.v)
    return total if of.poles is None else total - slope(x.v * of.poles)


def _batched(x: Any, dims: Any) -> Any:
    return cauchy(*leading_first(x, dims, {"v": 1, "points": 1, "poles": 1}), x.conj), 0


def _backward_shapes(x: Any) -> tuple[Tensor, ...]:
    wanted = ((x.v, x.needs_dv), (x.points, x.needs_dpoints), (x.poles, x.needs_dpoles))
    return tuple(y.new_empty((*x.grad.shape[:-1], y.shape[-1]) if want else (0,)) for y, want in wanted)


def _no_second_gradients(x: Any, *_: Any) -> NoReturn:
    raise RuntimeError(f"{'cauchy_conj' if x.conj else 'cauchy_kernel'}: gradients of gradients are not computed")


def _batched_backward(x: Any, dims: Any) -> Any:
    grad, v, points, poles = leading_first(x, dims, {"grad": 1, "v": 1, "points": 1, "poles": 1})
    leading = broadcast_shapes(*(y.shape[:-1] for y in (grad, v, points, poles)))  # of the result, and so of grad
    grad, v = (y.expand(*leading, y.shape[-1]) for y in (grad, v))
    of = x.needs_dv, x.needs_dpoints, x.needs_dpoles
    return cauchy_backward(grad, v, points, poles, x.conj, *of), tuple(0 if want else None for want in of)


cauchy = Differentiable(
    "cauchy",
    shapes=lambda x: x.v.new_empty(_shape(x)),
    reference=reference.cauchy,
    backward=_gradients,
    tangent=_tangent,
    batched=_batched,
)
cauchy_backward = Differentiable(
    "cauchy_backward",
    shapes=_backward_shapes,
    reference=reference.cauchy_backward,
    backward=_no_second_gradients,
    tangent=_no_second_gradients,
    batched=_batched_backward,
)
_cauchy_out = register("cauchy_out", reference=reference.cauchy)


def cauchy_kernel(
    v: Tensor, omega: Tensor, lambd: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None
) -> Tensor:
    """Sums of residues over distances to poles: the product with a Cauchy matrix.

    Formula:
        out[…, l] = Σ_n v[…, n] / (omega[…, l] − lambd[…, n])

    Shapes:
        v, lambd: (…, N), real or complex
        omega: (…, L), real or complex
        out: (…, L), complex if an input is

    Parameters:
        stream: the CUDA stream that computes, and on which the result is ready; None: the current one

    Edge cases:
        If a pole coincides with a point, the result is the limit of omega = lambd + ε for ε ↓ 0: the residues there are added
        up, and each nonzero part of the sum is infinite with its sign. The gradients of those residues, poles and points are
        NaN.

    Example:
        >>> gdn_cuda.cauchy_kernel(torch.ones(3), torch.tensor([1.0, 2.0]), torch.tensor([0.0, 3.0, 4.0]))
        tensor([ 0.1667, -1.0000])
    """
    return _cauchy_sum("cauchy_kernel", False, stream, out, {"v": v, "omega": omega, "lambd": lambd})


def cauchy_conj(
    v: Tensor, z: Tensor, w: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None
) -> Tensor:
    """Cauchy sums over conjugate pairs of poles, with one pole of each pair as input: S4's kernel.

    Formula:
        out[…, l] = Σ_n [ v_n / (z_l − w_n) + v̄_n / (z_l − w̄_n) ]

    Shapes:
        v, w: (…, N), real or complex
        z: (…, L), real or complex
        out: (…, L), always complex

    Parameters:
        stream: the CUDA stream that computes, and on which the result is ready; None: the current one

    Edge cases:
        Poles on points as in `cauchy_kernel`; a real pole counts there together with its conjugate.

    Example:
        >>> i = torch.tensor([1j])
        >>> gdn_cuda.cauchy_conj(torch.ones(1), 2 * i, i)  # 1 / (2i − i) + 1 / (2i + i)
        tensor([0.-1.3333j])
    """
    return _cauchy_sum("cauchy_conj", True, stream, out, {"v": v, "z": z, "w": w})


def _cauchy_sum(
    function: str, conj: bool, stream: torch.cuda.Stream | None, out: Tensor | None, tensors: Mapping[str, Tensor]
) -> Tensor:
    at_least = torch.complex64 if conj else None
    if stream is None and out is None:
        try:
            return cauchy(*as_one(function, tensors, at_least), conj)
        except Exception as error:
            raise_in_words_of(function, tensors, error)
            raise

    def run(out: Tensor | None) -> Tensor:
        x = as_one(function, tensors, at_least)
        if out is None:
            return cauchy(*x, conj)
        require_no_transforms(function)
        _cauchy_out.overload(*x, conj, out)
        return out

    return call(function, run, stream, out, tensors)
