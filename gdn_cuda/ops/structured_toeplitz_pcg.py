"""Large symmetric positive definite Toeplitz systems: conjugate gradients, preconditioned, by transforms; O(n) memory.

The preconditioner divides by the Fejér mean of T's generating function, Σ_|d|<n (1 − |d|/n) t_d e^{iωd} = aᴴ T a / n with
a_j = e^{iωj}, at the frequencies of a circulant matrix of order ≥ 2 n: positive wherever T is, and a corner of that matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..reference.structured_toeplitz_ops import fast_length

MOST_STEPS = 60
_STEPS_A_LOOK = 5  # looking waits for the device
_LEAST = 1e-300  # what is divided by


class _Corner:
    """A corner of a symmetric circulant matrix, and of the inverse of another."""

    def __init__(self, column: Tensor):
        self.n = column.shape[-1]
        self.order = fast_length(2 * self.n - 1)
        places = torch.arange(self.n, dtype=column.dtype, device=column.device)
        self.matrix = self._spectrum(column)
        self.mean = self._spectrum(column * (1 - places / self.n))
        self.inverse_mean = 1 / self.mean

    def _spectrum(self, column: Tensor) -> Tensor:
        gap = column.new_zeros(*column.shape[:-1], self.order - 2 * self.n + 1)
        around = torch.cat([column, gap, column[..., 1:].flip(-1)], -1)
        return torch.fft.rfft(around).real[:, None]

    def _apply(self, spectrum: Tensor, x: Tensor) -> Tensor:
        return torch.fft.irfft(spectrum * torch.fft.rfft(x, self.order), self.order)[..., : self.n]

    def times(self, x: Tensor) -> Tensor:
        return self._apply(self.matrix, x)

    def preconditioned(self, x: Tensor) -> Tensor:
        return self._apply(self.inverse_mean, x)


# Residuals, of ‖T‖ ‖x‖: for float32 no regular matrix makes an error of them, for float64 rounding decides.
RESIDUALS = {torch.float32: 2**-47, torch.float64: 2**-51}


def solve_by_pcg(column: Tensor, numbers: Tensor, allowed: Tensor) -> Tensor | None:
    """T⁻¹ numbers, column (S,n) and numbers (S,n,k) in fp64, both of a size whose squares have range. Residuals end below
    `allowed` (k) of ‖T‖ ‖x‖, and are formed anew at the end. None if T is not positive definite, as far as that shows, or
    `MOST_STEPS` steps are not enough: there are other ways, which need n² numbers."""
    corner = _Corner(column)
    definite = (corner.mean > 0).all()
    allowed = 2 * column.abs().sum(-1)[:, None] * allowed  # ‖T‖ is not more
    numbers = numbers.mT.contiguous()
    x, residual = torch.zeros_like(numbers), numbers
    direction = step = corner.preconditioned(residual)
    energy = (residual * step).sum(-1, keepdim=True)
    for _ in range(MOST_STEPS // _STEPS_A_LOOK):
        for _ in range(_STEPS_A_LOOK):
            image = corner.times(direction)
            curvature = (direction * image).sum(-1, keepdim=True)
            # A right-hand side that is done, a zero for one, stays as it is; without curvature elsewhere, which is no definite
            # matrix, numbers end their range.
            length = energy / curvature.clamp_min(_LEAST)
            x, residual = torch.addcmul(x, length, direction), torch.addcmul(residual, length, image, value=-1)
            step = corner.preconditioned(residual)
            before, energy = energy, (residual * step).sum(-1, keepdim=True)
            direction = torch.addcmul(step, energy / before.clamp_min(_LEAST), direction)
        bound = allowed * torch.linalg.vector_norm(x, dim=-1)
        small = (torch.linalg.vector_norm(residual, dim=-1) <= bound).all()
        is_small, may_go_on = torch.stack([small, definite & energy.isfinite().all()]).tolist()  # one wait
        if not may_go_on:
            return None
        if is_small:
            exact = torch.linalg.vector_norm(numbers - corner.times(x), dim=-1) <= 2 * bound
            return x.mT if bool(exact.all()) else None
    return None
