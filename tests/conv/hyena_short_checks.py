"""Calls of hyena_short that tests compare with its definition in fp64, on a CPU, in the emulator and on a GPU."""

from __future__ import annotations

from typing import Any

import hyena_oracle as oracle
import torch
from helpers import rel_rms
from hyena_cases import fir_parameters, gated_inputs
from torch import Tensor

from gdn_cuda import hyena_short

BOUND = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 3e-3, torch.float16: 1e-3}
LAYOUTS = ("tokens", "channels", "neither")


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The numbers of x in memory of their own, with neighbours along `layout`."""
    if layout == "channels":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "neither":
        B, D, L = x.shape
        spread = torch.full((B, D, 3, L, 2), torch.nan, dtype=x.dtype, device=x.device)[:, :, 1, :, 0]
        return spread.copy_(x)
    return x.contiguous()


def check_short(
    B: int,
    D: int,
    L: int,
    K: int,
    seed: int,
    dtype: torch.dtype = torch.bfloat16,
    layout: str = "tokens",
    groups: int | None = None,
    weights: torch.dtype = torch.float32,
    device: str = "cpu",
    **options: Any,
) -> None:
    x1, x2, v = (laid_out(x.to(device, dtype), layout) for x in gated_inputs(B, D, L, seed))
    weight, bias = (x.to(device, weights) for x in fir_parameters(groups or D, D, K, seed))
    given = {"bias": bias} | {name: x.to(device) if isinstance(x, Tensor) else x for name, x in options.items()}
    y, state = hyena_short(x1, x2, v, weight, **given, return_state=True)
    expected, after = (torch.from_numpy(x) for x in oracle.short(x1, x2, v, weight, **given))
    assert y.dtype == dtype and y.device == x1.device
    if y.numel():
        assert y.stride(1 if layout == "channels" else 2) == 1 or L < 2
        # Of few numbers, all may be rounded by half an ulp.
        assert rel_rms(y.cpu(), expected) < (BOUND[dtype] if y.numel() > 100 else 1.5 * BOUND[dtype])
    torch.testing.assert_close(state.cpu().double(), after, rtol=1e-6, atol=0)
