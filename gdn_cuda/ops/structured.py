"""Structured matrices: sums over poles, and sums of powers.

Leading dimensions broadcast. Gradients flow to every input; those of gradients do not. Dtypes meet as torch's promotion says;
bfloat16 and float16 are computed in fp32.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from . import structured_registration  # noqa: F401  (fake and CPU implementations, gradients)

_cauchy = torch.ops.gdn_cuda.cauchy.default
_log_vandermonde = torch.ops.gdn_cuda.log_vandermonde.default
_moments = torch.ops.gdn_cuda.log_vandermonde_moments.default


def _as_one(function: str, at_least: torch.dtype | None = None, **tensors: Tensor) -> tuple[Tensor, ...]:
    for argument, x in tensors.items():
        if not isinstance(x, Tensor) or not (x.is_floating_point() or x.is_complex()):
            got = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"{function}: {argument}: expected a real or complex floating-point tensor, got {got}")
    dtypes = [x.dtype for x in tensors.values()]
    dtype = reduce(torch.promote_types, dtypes if at_least is None else [*dtypes, at_least])
    if dtype == torch.complex32:
        dtype = torch.complex64
    return tuple(x.to(dtype) for x in tensors.values())


def cauchy_kernel(v: Tensor, omega: Tensor, lambd: Tensor) -> Tensor:
    """out[…,l] = Σ_n v[…,n] / (ω[…,l] − λ[…,n]); v and λ (…,N), ω (…,L), real or complex.

    Where a pole lies on a point, the limit of ω = λ + ε for ε ↓ 0: the residues there are added up, and each part of the sum
    that is not zero is infinite with its sign. Gradients of what meets there are NaN.
    """
    return _cauchy(*_as_one("cauchy_kernel", v=v, omega=omega, lambd=lambd), False)


def cauchy_conj(v: Tensor, z: Tensor, w: Tensor) -> Tensor:
    """out[…,l] = Σ_n [ v_n / (z_l − w_n) + v̄_n / (z_l − w̄_n) ]; v and w (…,N), z (…,L); complex whatever comes in.

    Poles on points as in `cauchy_kernel`.
    """
    return _cauchy(*_as_one("cauchy_conj", torch.complex64, v=v, z=z, w=w), True)


def log_vandermonde(v: Tensor, x: Tensor, L: int) -> Tensor:
    """2·Re Σ_n v_n e^{x_n l}, real (…,L), l = 0 … L−1; v and x (…,N). Phases are exact: x·l is never rounded."""
    return _log_vandermonde(*_as_one("log_vandermonde", torch.complex64, v=v, x=x), L)


def log_vandermonde_transpose(u: Tensor, v: Tensor, x: Tensor, L: int) -> Tensor:
    """v_n Σ_l u_l e^{x_n l}, complex (…,N); u (…,L), v and x (…,N)."""
    u, v, x = _as_one("log_vandermonde_transpose", torch.complex64, u=u, v=v, x=x) if u.is_complex() else (
        u, *_as_one("log_vandermonde_transpose", torch.promote_types(u.dtype, torch.complex64), v=v, x=x)
    )  # fmt: skip
    if u.dim() < 1 or u.shape[-1] != L:
        raise ValueError(f"log_vandermonde_transpose: u: expected (…, L={L}), got {tuple(u.shape)}")
    if v.dim() < 1 or v.shape[-1] != x.shape[-1]:
        raise ValueError(f"log_vandermonde_transpose: v: expected (…, {x.shape[-1]}) as x has, got {tuple(v.shape)}")
    parts = [u.real, u.imag] if u.is_complex() else [u]
    real = torch.float32 if x.dtype == torch.complex64 else torch.float64
    sums = [_moments(part.to(real), x, 1)[0] for part in parts]
    return v * (sums[0] if len(sums) == 1 else sums[0] + 1j * sums[1])
