"""The discretizations of a scan in plain torch: TRANSITIONS, differentiable where they have derivatives, and their GRADIENTS.

Real and complex, in the dtype of the inputs. Tensors broadcast, and so do the results: a factor that does not depend on A
lacks A's dimensions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

SOFTPLUS_THRESHOLD = 20.0  # step sizes above which softplus is the identity
_SMALL = 0.05  # |z| below which the series of (e^z − 1) / z is exact in fp64


def expm1(z: Tensor) -> Tensor:
    """e^z − 1 without cancellation; torch.expm1 takes no complex numbers."""
    if not z.is_complex():
        return torch.expm1(z)
    size, half = z.real, torch.sin(z.imag / 2)
    return torch.complex(torch.expm1(size) * torch.cos(z.imag) - 2 * half * half, torch.exp(size) * torch.sin(z.imag))


def expm1_over(z: Tensor) -> Tensor:
    """(e^z − 1) / z; value and derivatives at 0 are the limits."""
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
    """A = 0 erases the state, except for δ = 0: 0⁰ = 1."""
    log_decay = _log_decay(delta, A)
    return torch.exp(log_decay), torch.sqrt(-torch.expm1(2 * log_decay))


def _log_decay(delta: Tensor, A: Tensor) -> Tensor:
    return torch.where(delta == 0, 0, delta * torch.log(A))


# (δ, δ_A, A) → (Ā, the factor of B u)
TRANSITIONS: dict[str, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    f.__name__: f for f in (mamba, zoh, bilinear, dirac, s7, rglru)
}


# ---- Gradients of δ, δ_A and A, from those of Ā and of the factor

Gradients = tuple[Tensor, Tensor, Tensor]

_conj = torch.conj_physical  # operators below autograd may ignore the conjugate bit that torch.conj sets


def _reduced(x: Tensor, grad: Tensor) -> Tensor:
    """Reduces a gradient to x's shape, of which x was broadcast, and to its real part if x is real."""
    return (grad if x.is_complex() or not grad.is_complex() else grad.real).sum_to_size(x.shape)


def _product(delta: Tensor, A: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of δ and A from that of δ A."""
    return _reduced(delta, grad * _conj(A)), _reduced(A, grad * delta)


def _mamba(delta: Tensor, delta_a: Tensor, A: Tensor, decay: Tensor, grad_decay: Tensor, grad_factor: Tensor) -> Gradients:
    return (_reduced(delta, grad_factor), *_product(delta_a, A, grad_decay * _conj(decay)))


def _zoh(delta: Tensor, delta_a: Tensor, A: Tensor, decay: Tensor, grad_decay: Tensor, grad_factor: Tensor) -> Gradients:
    step = delta * A
    ddelta = _reduced(delta, grad_factor * _conj(torch.exp(step)))
    dA = _reduced(A, grad_factor * _conj(delta * delta * _expm1_over_derivative(step)))
    ddelta_a, more = _product(delta_a, A, grad_decay * _conj(decay))
    return ddelta, ddelta_a, dA + more


def _bilinear(delta: Tensor, delta_a: Tensor, A: Tensor, decay: Tensor, grad_decay: Tensor, grad_factor: Tensor) -> Gradients:
    by_step = grad_factor / _conj((1 - delta * A / 2) ** 2)  # the derivative of δ / (1 − ½δA) by δ is 1 / (1 − ½δA)²
    ddelta_a, dA = _product(delta_a, A, grad_decay / _conj((1 - delta_a * A / 2) ** 2))
    return _reduced(delta, by_step), ddelta_a, dA + _reduced(A, by_step * (delta * delta / 2))


def _dirac(delta: Tensor, delta_a: Tensor, A: Tensor, decay: Tensor, grad_decay: Tensor, grad_factor: Tensor) -> Gradients:
    return (torch.zeros_like(delta), *_product(delta_a, A, grad_decay * _conj(decay)))


def _s7(delta: Tensor, delta_a: Tensor, A: Tensor, decay: Tensor, grad_decay: Tensor, grad_factor: Tensor) -> Gradients:
    by_delta = 2 * delta / (delta * delta + 0.5) ** 2
    return _reduced(delta, grad_decay * by_delta), torch.zeros_like(delta_a), torch.zeros_like(A)


def _rglru(delta: Tensor, delta_a: Tensor, A: Tensor, decay: Tensor, grad_decay: Tensor, grad_factor: Tensor) -> Gradients:
    """The derivative of the root is infinite where Ā = 1, as it is at δ = 0; there it counts as 0."""
    root = torch.sqrt(-torch.expm1(2 * _log_decay(delta, A)))
    by_log = grad_decay * decay - torch.where(root == 0, 0, grad_factor * decay * decay / root)
    by_log = torch.where(decay == 0, 0, by_log)  # log A may be infinite
    ddelta = torch.where(by_log == 0, 0, by_log * torch.log(A))
    dA = torch.where((by_log == 0) | (delta == 0), 0, by_log * delta / A)  # 0⁰ is 1 whatever A is
    return _reduced(delta, ddelta), torch.zeros_like(delta_a), _reduced(A, dA)


# (δ, δ_A, A, Ā, gradients of Ā and of the factor) → the gradients of δ, δ_A and A, in their shapes. If δ_A is δ, the caller
# adds these two.
GRADIENTS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Gradients]] = {
    "mamba": _mamba,
    "zoh": _zoh,
    "bilinear": _bilinear,
    "dirac": _dirac,
    "s7": _s7,
    "rglru": _rglru,
}
