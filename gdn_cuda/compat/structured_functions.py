"""The functions of state-spaces/s4 and of lrnnx, which took them from there, under their names and with their arguments.

Any number of poles and points, any float dtype, CPU and CUDA, gradients for every input: they replace both the extension and
the functions that those libraries use where the extension is missing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..operators.caller import in_words_of_caller
from ..structured import cauchy_conj, cauchy_kernel
from ..structured import log_vandermonde as _sums
from ..structured import log_vandermonde_transpose as log_vandermonde_transpose


@in_words_of_caller(omega="z", lambd="w")
def cauchy_naive(v: Tensor, z: Tensor, w: Tensor, conj: bool = True) -> Tensor:
    """Σ v / (z − w) over poles w (…, N) and, with `conj`, over their conjugates; points z (…, L)."""
    return cauchy_conj(v, z, w) if conj else cauchy_kernel(v, z, w)


@in_words_of_caller()
def cauchy_mult(v: Tensor, z: Tensor, w: Tensor) -> Tensor:
    """The extension's entry point: one half of each conjugate pair, v and w (…, N), and points z (L)."""
    return cauchy_conj(v, z, w)


@in_words_of_caller(omega="z", lambd="w")
def cauchy_mult_torch(v: Tensor, z: Tensor, w: Tensor, symmetric: bool = True) -> Tensor:
    """v and w (B, N), and z (L); with `symmetric`, v and w hold one half of each pair and then the conjugates, N even."""
    if not symmetric:
        return cauchy_kernel(v, z, w)
    if v.shape[-1] % 2:
        raise ValueError(f"cauchy_mult_torch: v: expected an even number of poles with symmetric=True, got {tuple(v.shape)}")
    half = v.shape[-1] // 2
    return cauchy_conj(v[..., :half], z, w[..., :half])


@in_words_of_caller(omega="z", lambd="w")
def cauchy_mult_keops(v: Tensor, z: Tensor, w: Tensor) -> Tensor:
    """v and w (B, N), all poles without conjugates, and z (L)."""
    return cauchy_kernel(v, z, w)


@in_words_of_caller()
def log_vandermonde(v: Tensor, x: Tensor, L: int, conj: bool = True) -> Tensor:
    """2 Re Σ v e^{xl}, (…, L); without `conj` the complex sum itself."""
    if conj:
        return _sums(v, x, L)
    v = v.to(torch.promote_types(v.dtype, torch.complex64))
    return 0.5 * torch.complex(_sums(v, x, L), _sums(-1j * v, x, L))


@in_words_of_caller(x="z")
def log_vandermonde_cuda(v: Tensor, z: Tensor, L: int) -> Tensor:
    """The extension's entry point: 2 Re Σ v e^{zl}."""
    return _sums(v, z, L)


@in_words_of_caller()
def log_vandermonde_fast(v: Tensor, x: Tensor, L: int) -> Tensor:
    """2 Re Σ v e^{xl}, as the extension's autograd function has it."""
    return _sums(v, x, L)


def get_cauchy_kernel() -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The fastest implementation that is available: always `cauchy_mult`."""
    return cauchy_mult


def get_vandermonde_kernel() -> Callable[[Tensor, Tensor, int], Tensor]:
    """Always `log_vandermonde_cuda`."""
    return log_vandermonde_cuda


def get_vandermonde_transpose_kernel() -> Callable[[Tensor, Tensor, Tensor, int], Tensor]:
    """Always `log_vandermonde_transpose`."""
    return log_vandermonde_transpose


# The same functions in plain torch, and with pykeops, have these names.
log_vandermonde_naive = log_vandermonde
cauchy_keops = cauchy_mult
log_vandermonde_keops = log_vandermonde_cuda
log_vandermonde_transpose_naive = log_vandermonde_transpose_keops = log_vandermonde_transpose
