"""param_config dictionaries like those of the parents of S4 kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def make_param_config(
    rng: torch.Generator,
    H: int = 3,
    N: int = 4,
    channels: int = 2,
    rank: int = 1,
    repeat: int = 1,
    dt_per_state: bool = False,
    dt_fast: bool = False,
    transform: str = "exp",
    dtype: torch.dtype = torch.float64,
    **options: Any,
) -> dict[str, Any]:
    """Stable systems: every transform gives A_real in about (0.1, 2) and dt near 0.05 … 0.5, imaginary parts to 10."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    def inverse(x: Tensor) -> Tensor:
        return {"exp": x.log, "softplus": lambda: x.expm1().log(), "sigmoid": lambda: x.logit()}.get(transform, lambda: x)()

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=rng, dtype=torch.float64)

    systems, top = H // repeat, 0.9 if transform == "sigmoid" else 2.0
    inv_dt = inverse(uniform(0.05, 0.5, H, N if dt_per_state else 1))
    parameters = {
        "A_real": inverse(uniform(0.1, top, systems, N)),
        "A_imag": 5 * normal(systems, N),
        "B": normal(1, systems, N, 2),
        "C": normal(channels, H, N, 2),
        "P": 0.5 * normal(rank, systems, N, 2),
        "inv_dt": inv_dt.asinh() if dt_fast else inv_dt,
    }
    sizes = {"N": N, "H": H, "channels": channels, "rank": rank, "repeat": repeat}
    transforms = {"real_transform": transform, "imag_transform": "none", "dt_transform": transform}
    flags = {"dt_fast": dt_fast, "is_real": False, "deterministic": False, "verbose": False}
    return {name: x.to(dtype) for name, x in parameters.items()} | sizes | transforms | flags | options


def convolution(u: Tensor, k: Tensor) -> Tensor:
    """y_t = Σ_{l≤t} k_l u_{t−l}: u (B,H,L), k (channels,H,L) → (B,channels,H,L), through an FFT."""
    L = u.shape[-1]
    product = torch.fft.rfft(u, n=2 * L)[:, None] * torch.fft.rfft(k, n=2 * L)
    return torch.fft.irfft(product, n=2 * L)[..., :L]
