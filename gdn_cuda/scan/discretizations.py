"""The discretizations of a scan in plain torch: TRANSITIONS, differentiable where they have derivatives, and their GRADIENTS.

Real and complex, in the dtype of the inputs. Tensors broadcast, and so do the results: a factor that does not depend on A
lacks A's dimensions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

SOFTPLUS_THRESHOLD = 20.0  # of the step sizes: above it softplus is the identity
_SMALL = 0.05  # below it the series of (e^z − 1) / z is exact to fp64


def expm1(z: Tensor) -> Tensor:
    """e^z − 1 without cancellation; torch.expm1 takes no complex numbers."""
    if not z.is_complex():
        return torch.expm1(z)
    size, half = z.real, torch.sin(z.imag / 2)
    return torch.complex(torch.expm1(size) * torch.cos(z.imag) - 2 * half * half, torch.exp(size) * torch.sin(z.imag))


def expm1_over(z: Tensor) -> Tensor:
    """(e^z − 1) / z, whose value and derivatives at 0 are those of its limit."""
    small = z.abs() < _SMALL
    near, far = torch.where(small, z, 0), torch.where(small, 1, z)  # neither branch may make the other's gradient NaN
    series = torch.ones_like(near)
    for n in range(9, 1, -1):
        series = 1 + near / n * series
    return torch.where(small, series, expm1(far) / far)


def _expm1_over_derivative(z: Tensor) -> Tensor:
    small = z.abs() < _SMALL
    near, far = torch.where(small, z, 0), torch.where(small, 1, z)
    series = torch.full_like(near, 1 / 8)
    for n in range(8, 1, -1):  # Σ z^(n − 1) / (n − 1)! / (n + 1)
        series = 1 / n + near / (n - 1) * series
    return torch.where(small, series, (torch.exp(far) - expm1(far) / far) / far)


def mamba(delta: Tensor, delta_a: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    return torch.exp(delta_a * A), delta


def zoh(delta: Tensor, delta_a: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    return torch.exp(delta_a * A), delta * expm1_over(delta * A)


def bilinear(delta: Tensor, delta_a: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    half = delta_a * A / 2
    return (1 + half) / (1 - half), delta / (1 - delta * A / 2)


def dirac(delta: Tensor, delta_a: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    return torch.exp(delta_a * A), torch.ones_like(delta)


def s7(delta: Tensor, delta_a: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    return 1 - 1 / (delta * delta + 0.5), torch.ones_like(delta)


def rglru(delta: Tensor, delta_a: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    """A = 0 forgets everything, but for δ = 0: 0⁰ = 1."""
    log_decay = _log_decay(delta, A)
    return torch.exp(log_decay), torch.sqrt(-torch.expm1(2 * log_decay))


def _log_decay(delta: Tensor, A: Tensor) -> Tensor:
    return torch.where(delta == 0, 0, delta * torch.log(A))


# (δ, δ_A, A) to (Ā, the factor of B u)
TRANSITIONS: dict[str, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    f.__name__: f for f in (mamba, zoh, bilinear, dirac, s7, rglru)
}


# ---- Gradients of δ, δ_A and A, from those of Ā and of the factor

Gradients = tuple[Tensor, Tensor, Tensor]

_conj = torch.conj_physical  # the mark of torch.conj is not always read below autograd


def _of(x: Tensor, grad: Tensor) -> Tensor:
    """The gradient of x, which was broadcast, and which is real where the result was complex."""
    return (grad if x.is_complex() or not grad.is_complex() else grad.real).sum_to_size(x.shape)


def _product(delta: Tensor, A: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Of δ A, for δ and A."""
    return _of(delta, grad * _conj(A)), _of(A, grad * delta)


def _mamba(delta: Tensor, delta_a: Tensor, A: Tensor, decay: Tensor, grad_decay: Tensor, grad_factor: Tensor) -> Gradients:
    return (_of(delta, grad_factor), *_product(delta_a, A, grad_decay * _conj(decay)))


def _zoh(delta: Tensor, delta_a: Tensor, A: Tensor, decay: Tensor, grad_decay: Tensor, grad_factor: Tensor) -> Gradients:
    step = delta * A
    of_delta = _of(delta, grad_factor * _conj(torch.exp(step)))
    of_A = _of(A, grad_factor * _conj(delta * delta * _expm1_over_derivative(step)))
    of_delta_a, more = _product(delta_a, A, grad_decay * _conj(decay))
    return of_delta, of_delta_a, of_A + more


def _bilinear(delta: Tensor, delta_a: Tensor, A: Tensor, decay: Tensor, grad_decay: Tensor, grad_factor: Tensor) -> Gradients:
    by_step = grad_factor / _conj((1 - delta * A / 2) ** 2)  # the derivative of δ / (1 − ½δA) by δ is 1 / (1 − ½δA)²
    of_delta_a, of_A = _product(delta_a, A, grad_decay / _conj((1 - delta_a * A / 2) ** 2))
    return _of(delta, by_step), of_delta_a, of_A + _of(A, by_step * (delta * delta / 2))


def _dirac(delta: Tensor, delta_a: Tensor, A: Tensor, decay: Tensor, grad_decay: Tensor, grad_factor: Tensor) -> Gradients:
    return (torch.zeros_like(delta), *_product(delta_a, A, grad_decay * _conj(decay)))


def _s7(delta: Tensor, delta_a: Tensor, A: Tensor, decay: Tensor, grad_decay: Tensor, grad_factor: Tensor) -> Gradients:
    by_delta = 2 * delta / (delta * delta + 0.5) ** 2
    return _of(delta, grad_decay * by_delta), torch.zeros_like(delta_a), torch.zeros_like(A)


def _rglru(delta: Tensor, delta_a: Tensor, A: Tensor, decay: Tensor, grad_decay: Tensor, grad_factor: Tensor) -> Gradients:
    """The derivative of the root is infinite where Ā = 1, as it is at δ = 0; there it counts as 0."""
    root = torch.sqrt(-torch.expm1(2 * _log_decay(delta, A)))
    by_log = grad_decay * decay - torch.where(root == 0, 0, grad_factor * decay * decay / root)
    by_log = torch.where(decay == 0, 0, by_log)  # log A may be infinite
    of_delta = torch.where(by_log == 0, 0, by_log * torch.log(A))
    of_A = torch.where((by_log == 0) | (delta == 0), 0, by_log * delta / A)  # 0⁰ is 1 whatever A is
    return _of(delta, of_delta), torch.zeros_like(delta_a), _of(A, of_A)


# (δ, δ_A, A, Ā, gradients of Ā and of the factor) to the gradients of δ, δ_A and A, of their shapes. Where δ_A is δ, theirs add
# up.
GRADIENTS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Gradients]] = {
    "mamba": _mamba,
    "zoh": _zoh,
    "bilinear": _bilinear,
    "dirac": _dirac,
    "s7": _s7,
    "rglru": _rglru,
}
