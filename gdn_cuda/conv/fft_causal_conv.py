"""Causal convolutions with long explicit filters."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..operators.caller import in_words_of_caller
from ..operators.calls import typical_call
from ..operators.schema import refuse, require_tensor
from ..structured.toeplitz import toeplitz_matvec
from .reference_hyena import per_channel

_NAME = "fft_causal_conv"
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_product = in_words_of_caller(_NAME, c="k", r="k", x="u")(toeplitz_matvec)


def _check(u: Any, k: Any, D: Any) -> None:
    for argument, x in (("u", u), ("k", k), ("D", D)):
        if argument == "D" and x is None:
            continue
        require_tensor(_NAME, argument, x)
        if x.dtype not in _DTYPES:
            refuse(_NAME, argument, "float32, bfloat16, float16 or float64", str(x.dtype).removeprefix("torch."))
        if x.device != u.device:
            refuse(_NAME, argument, f"the device of u, {u.device}", str(x.device))
    if u.dim() != 3:
        refuse(_NAME, "u", "(B, D, L)", str(tuple(u.shape)))
    channels, L = u.shape[1:]
    if k.dim() != 2 or (k.shape[0] == 0) != (channels == 0) or (channels and channels % k.shape[0]):
        refuse(_NAME, "k", f"(groups, K) with groups that divide the {channels} channels", str(tuple(k.shape)))
    if k.shape[1] > L:
        refuse(_NAME, "k", f"K of at most L={L}", str(tuple(k.shape)))
    if D is not None and D.shape != (channels,):
        refuse(_NAME, "D", f"({channels},)", str(tuple(D.shape)))


def fft_causal_conv(u: Tensor, k: Tensor, D: Tensor | None = None) -> Tensor:
    """A causal convolution with an explicit filter of any length, with gradients of any order.

    Formula:
        y_t = Σ_j k_j u_{t−j} + D u_t

    Shapes:
        u: (B, D, L), fp32, bf16 or fp16
        k: (groups, K), K from 0 to L; each group filters D / groups contiguous channels; fp32, bf16 or fp16
        D: (D,); fp32, bf16 or fp16
        y: as u

    Arithmetic is fp32, or fp64 if a tensor is fp64. The convolution is the product by a lower triangular Toeplitz matrix,
    `toeplitz_matvec`: one kernel with Fourier transforms in shared memory if they fit, and cuFFT otherwise. `hyena_medium` has
    states, and up to 1024 taps; `hyena_long` has filters in modal form.

    Edge cases:
        If the row is Fourier-transformed, an infinity or NaN also makes earlier outputs of the row NaN.
        K = 0 gives D u, or zeros.

    Example:
        >>> u, k = torch.tensor([[[1.0, 0.0, 0.0, 2.0]]]), torch.tensor([[3.0, 2.0, 1.0]])
        >>> gdn_cuda.fft_causal_conv(u, k)
        tensor([[[3., 2., 1., 6.]]])
    """
    _check(u, k, D)
    given = [x for x in (u, k, D) if x is not None]
    dtype = torch.float64 if any(x.dtype == torch.float64 for x in given) else torch.float32
    wide = u.to(dtype)
    if u.numel() == 0 or k.shape[1] == 0:
        y = 0 * wide.nan_to_num(posinf=0, neginf=0)
    else:
        column = per_channel(F.pad(k.to(dtype), (0, u.shape[2] - k.shape[1])), u.shape[1])[None]
        y = _product(column, torch.zeros_like(column[:, :1]), wide)
    if D is not None:
        y = y + D.to(dtype)[:, None] * wide
    return y.to(u.dtype)


typical_call(fft_causal_conv, {"B": 1, "D": 4096, "L": 8192, "K": 8192}, "u: B D L; k: D K f32; D: D f32")
