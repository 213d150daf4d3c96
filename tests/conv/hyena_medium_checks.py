"""Calls of hyena_medium that tests compare with its definition in fp64, on a CPU, in the emulator and on a GPU."""

from __future__ import annotations

from typing import Any

import hyena_oracle as oracle
import torch
from helpers import rel_rms
from hyena_cases import fir_parameters, gated_inputs
from hyena_short_checks import laid_out
from torch import Tensor

from gdn_cuda import hyena_medium

BOUND = {torch.float64: 1e-12, torch.float32: 5e-6, torch.bfloat16: 4e-3, torch.float16: 1e-3}


def check_medium(
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
    given = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in options.items()}
    y, state = hyena_medium(x1, x2, v, weight, bias, **given, return_state=True)
    expected, after = (torch.from_numpy(x) for x in oracle.medium(x1, x2, v, weight, bias, **given))
    assert y.dtype == dtype and y.device == x1.device
    if y.numel():
        assert y.stride(1 if layout == "channels" else 2) == 1 or L < 2
        # Of few numbers, all may be rounded by half an ulp.
        assert rel_rms(y.cpu(), expected) < (BOUND[dtype] if y.numel() > 100 else 1.5 * BOUND[dtype])
    torch.testing.assert_close(state.cpu().double(), after, rtol=1e-6, atol=0)
