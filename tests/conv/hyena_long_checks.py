"""Compares hyena_long with its recurrence in fp64, on a CPU, in the emulator and on a GPU."""

from __future__ import annotations

from typing import Any

import hyena_oracle as oracle
import torch
from helpers import rel_rms
from hyena_cases import gated_inputs, modal_parameters
from hyena_fir_checks import laid_out
from torch import Tensor

from gdn_cuda import hyena_long

BOUND = {torch.float64: 1e-10, torch.float32: 5e-6, torch.bfloat16: 4e-3, torch.float16: 1e-3}
STATE = (
    3 * 2.0**-17
)  # of a state, which may be a single product: the rounding of its factors, and the product of their remainders


def check_long(
    B: int,
    D: int,
    L: int,
    S: int,
    seed: int,
    dtype: torch.dtype = torch.bfloat16,
    layout: str = "tokens",
    groups: int | None = None,
    device: str = "cpu",
    log_poles: Tensor | None = None,
    **options: Any,
) -> None:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x1, x2, v = (laid_out(x.to(device, dtype), layout) for x in gated_inputs(B, D, L, seed))
    residues, poles, bias = (x.to(device, wide) for x in modal_parameters(groups or D, D, S, seed))
    poles = poles if log_poles is None else log_poles.to(device, wide)
    given = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in options.items()}
    y, state = hyena_long(x1, x2, v, residues, poles, bias, **given, return_state=True)
    expected, after = (torch.from_numpy(x) for x in oracle.long(x1, x2, v, residues, poles, bias, **given))
    assert y.dtype == dtype and y.device == x1.device
    if y.numel():
        assert y.stride(1 if layout == "channels" else 2) == 1 or L < 2
        # If there are few values, all may be rounded by half an ulp.
        assert rel_rms(y.cpu(), expected) < (BOUND[dtype] if y.numel() > 100 else 1.5 * BOUND[dtype])
    # A state may cancel, so its error is relative to the root of the sum of squares of its terms.
    squared = {name: x.double() ** 2 for name, x in given.items() if name == "initial_state"}
    _, squares = oracle.long(x1.double() ** 2, x2, v.double() ** 2, residues, 2 * poles.double(), bias, **squared)
    scale = torch.from_numpy(squares).sum((0, 1)).sqrt()
    assert ((state.cpu().double() - after).square().sum((0, 1)).sqrt() <= STATE * scale).all()
