"""The structured operators on CPU tensors: what the public functions mean, in the dtype they promise.

Shapes and dtypes were checked by the C++ operators. Sums are those of the oracles: formed in fp64 and rounded once.
"""

from __future__ import annotations

from torch import Tensor

from .structured_cauchy import cauchy_conj, cauchy_gradients, cauchy_kernel


def cauchy(v: Tensor, points: Tensor, poles: Tensor, conj: bool) -> Tensor:
    """(…,L) in v's dtype."""
    return (cauchy_conj if conj else cauchy_kernel)(v, points, poles).to(v.dtype)


def cauchy_backward(
    grad: Tensor, v: Tensor, points: Tensor, poles: Tensor, conj: bool, of_v: bool, of_points: bool, of_poles: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients in grad's leading dimensions; an empty tensor in place of one that nobody asked for."""
    found = cauchy_gradients(grad, v, points, poles, conj)
    wanted = zip(found, (of_v, of_points, of_poles), strict=True)
    return tuple(x.to(v.dtype) if want else v.new_empty(0) for x, want in wanted)
