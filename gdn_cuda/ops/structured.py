"""Structured matrices: sums over poles, and sums of powers.

Leading dimensions broadcast. Gradients flow to every input; those of gradients are right or refused. Forward mode, torch.func
and torch.vmap work. Dtypes meet as torch's promotion says; bfloat16 and float16 are computed in fp32. CUDA tensors run kernels
compiled at first use, CPU tensors sums in fp64. Wrong input raises ValueError naming function, argument, expected and got,
before anything is launched or written.

`stream`: where the work is queued, behind what the current stream holds at the call; the current one by default. The result is
ready there, so `torch.cuda.current_stream().wait_stream(stream)` before it is used elsewhere. `out`: where the result goes,
contiguous, of its shape and dtype, apart from the inputs (`log_vandermonde_transpose` copies it there); no gradients then.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral

import torch
from torch import Tensor

from . import structured_registration as operators
from .call import as_one, broadcast_leading, call, check_out, finished
from .gradients import require_no_transforms

_ops = torch.ops.gdn_cuda
_cauchy_out, _log_vandermonde_out = _ops.cauchy_out.default, _ops.log_vandermonde_out.default


def cauchy_kernel(
    v: Tensor, omega: Tensor, lambd: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None
) -> Tensor:
    """out[…,l] = Σ_n v[…,n] / (ω[…,l] − λ[…,n]); v and λ (…,N), ω (…,L), real or complex.

    Where a pole lies on a point, the limit of ω = λ + ε for ε ↓ 0: the residues there are added up, and each part of the sum
    that is not zero is infinite with its sign. Gradients of what meets there are NaN.
    """
    return _cauchy_sum("cauchy_kernel", False, stream, out, {"v": v, "omega": omega, "lambd": lambd})


def cauchy_conj(
    v: Tensor, z: Tensor, w: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None
) -> Tensor:
    """out[…,l] = Σ_n [ v_n / (z_l − w_n) + v̄_n / (z_l − w̄_n) ]; v and w (…,N), z (…,L); complex whatever comes in.

    Poles on points as in `cauchy_kernel`.
    """
    return _cauchy_sum("cauchy_conj", True, stream, out, {"v": v, "z": z, "w": w})


def _cauchy_sum(
    function: str, conj: bool, stream: torch.cuda.Stream | None, out: Tensor | None, tensors: Mapping[str, Tensor]
) -> Tensor:
    def run(out: Tensor | None) -> Tensor:
        x = as_one(function, tensors, torch.complex64 if conj else None)
        if out is None:
            return operators.cauchy(*x, conj)
        require_no_transforms(function)
        _cauchy_out(*x, conj, out)
        return out

    return call(function, run, stream, out, tensors)


def log_vandermonde(
    v: Tensor, x: Tensor, L: int, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None
) -> Tensor:
    """2·Re Σ_n v_n e^{x_n l}, real (…,L), l = 0 … L−1; v and x (…,N). Phases are exact: x·l is never rounded.

    The power 0 is 1 whatever x is, so an x of −∞ stands for the logarithm of 0. An entry with a power or term
    that overflows is infinite or NaN; underflow is 0.
    """
    tensors = {"v": v, "x": x}

    def run(out: Tensor | None) -> Tensor:
        _check_length("log_vandermonde", L)
        both = as_one("log_vandermonde", tensors, torch.complex64)
        if out is None:
            return operators.log_vandermonde(*both, L)
        require_no_transforms("log_vandermonde")
        _log_vandermonde_out(*both, L, out)
        return out

    return call("log_vandermonde", run, stream, out, tensors)


def log_vandermonde_transpose(
    u: Tensor, v: Tensor, x: Tensor, L: int, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None
) -> Tensor:
    """v_n Σ_l u_l e^{x_n l}, complex (…,N); u (…,L) real or complex, v and x (…,N)."""
    function, tensors = "log_vandermonde_transpose", {"u": u, "v": v, "x": x}

    def run(out: Tensor | None) -> Tensor:
        _check_length(function, L)
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
        sums = [operators.moments(part.to(real), wide_x, 1)[0] for part in ([u.real, u.imag] if u.is_complex() else [u])]
        of_u = sums[0] if len(sums) == 1 else sums[0] + 1j * sums[1]
        return finished(wide_v * of_u, wide_v.dtype, out)

    return call(function, run, stream, out, tensors)


def _check_length(function: str, L: object) -> None:
    if not isinstance(L, (Integral, torch.SymInt)):
        raise ValueError(f"{function}: L: expected an integer, got {L!r}")
