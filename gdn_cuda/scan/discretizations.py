"""The discretizations of a scan in plain torch, differentiable where they have derivatives.

Real and complex, in the dtype of the inputs. Tensors broadcast, and so do the results: a factor that does not depend on A
lacks A's dimensions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

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
    log_decay = torch.where(delta == 0, 0, delta * torch.log(A))
    return torch.exp(log_decay), torch.sqrt(-torch.expm1(2 * log_decay))


# (δ, δ_A, A) to (Ā, the factor of B u)
TRANSITIONS: dict[str, Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    f.__name__: f for f in (mamba, zoh, bilinear, dirac, s7, rglru)
}
