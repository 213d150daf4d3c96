"""S4's convolution kernel as the FFT of a rational function: Cauchy sums, and Woodbury's formula for the low rank."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..structured import cauchy_conj
from ..structured.reference_s4 import System


def kernel_by_cauchy(system: System, B: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """(b,channels,H,length) for inputs B (b,H,N), from a system whose C is the C̃ of `length`; sums in `dtype`.

    k̂(ω) = 2/(1+ω) · [r₀₀ − r₀₁ (I + r₁₁)⁻¹ r₁₀], r = cauchy_conj([B;P] × [C̃;P̄] · dt, z, A·dt) at ω = e^{−iθ}, θ = 2πk/length.
    There 2/(1+ω) = 1 + i tan(θ/2) and z = 2i tan(θ/2), so neither is computed as a difference. At ω = −1, where both are
    infinite, k̂ is Re Σ B C̃ dt: all sums fall like 1/z.
    """
    v = torch.cat([B, system.P])[:, None] * torch.cat([system.C, system.P.conj()]) * system.dt
    v = v.permute(2, 0, 1, 3)  # (H,b+R,channels+R,N): rows over the same poles are adjacent, so the kernel reuses reciprocals
    b, channels = B.shape[0], system.C.shape[0]
    half_theta = torch.arange((length + 1) // 2, dtype=torch.float64, device=v.device) * (math.pi / length)
    tangent = half_theta.tan()
    zero = torch.zeros_like(tangent)
    z, weight = torch.complex(zero, 2 * tangent).to(dtype), torch.complex(zero + 1, tangent).to(dtype)
    poles = (system.A * system.dt).to(dtype)[:, None]
    r = cauchy_conj(v.flatten(1, 2).to(dtype), z, poles).unflatten(1, v.shape[1:3])
    transform = _woodbury(r, system.P.shape[0]) * weight
    if length % 2 == 0:
        last = v[:, :b, :channels].real.sum(-1, keepdim=True)
        transform = torch.cat([transform, torch.complex(last, torch.zeros_like(last)).to(dtype)], -1)
    return torch.fft.irfft(transform, n=length).permute(1, 2, 0, 3)


def _woodbury(r: Tensor, rank: int) -> Tensor:
    """r₀₀ − r₀₁ (I + r₁₁)⁻¹ r₁₀ by elimination, a rank at a time; pivots 1 + r have positive real parts.

    The Hermitian part of r₁₁ is positive semidefinite if A is stable and z imaginary, so no pivot search is needed.
    """
    for _ in range(rank):
        r = r[:, :-1, :-1] - r[:, :-1, -1:] * r[:, -1:, :-1] / (1 + r[:, -1:, -1:])
    return r
