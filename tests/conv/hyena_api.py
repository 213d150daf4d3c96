"""Hyena's operators of the C++ API, callable from Python: hyena_api.cpp, built like a program's library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cpp_api
import torch
from hyena_cases import fir_parameters, gated_inputs, modal_parameters
from torch import Tensor

import gdn_cuda


def load(folder: Path) -> Any:
    return cpp_api.load(Path(__file__).with_name("hyena_api.cpp"), folder)


def check(api: Any, device: str, seed: int) -> None:
    """Results equal those of Python, bit for bit."""

    def on(*given: Tensor) -> list[Tensor]:
        return [x.to(device) for x in given]

    x = on(*gated_inputs(2, 8, 40, seed, torch.float32))
    weight, bias = on(*fir_parameters(4, 8, 7, seed, torch.float32))
    residues, log_poles, D = on(*modal_parameters(4, 8, 16, seed, torch.float32))
    fir_state, modal_state = on(torch.randn(2, 8, 6), torch.randn(2, 8, 16))
    more: dict[str, Any] = {"return_state": True}
    pairs = [
        (
            api.hyena_short(*x, weight, bias, fir_state),
            gdn_cuda.hyena_short(*x, weight, bias, gated_bias=True, initial_state=fir_state, **more),
        ),
        (api.hyena_medium(*x, weight, bias, None), gdn_cuda.hyena_medium(*x, weight, bias, **more)),
        (
            api.hyena_long(*x, residues, log_poles, D, modal_state),
            gdn_cuda.hyena_long(*x, residues, log_poles, D, initial_state=modal_state, **more),
        ),
        ([api.hyena_filter(residues, log_poles, 99)], [gdn_cuda.hyena_filter(residues, log_poles, 99)]),
    ]
    token = [y[..., 0] for y in x]
    (slots,) = on(torch.tensor([1, -1]))
    for state, mine, theirs in (
        (
            fir_state,
            lambda s: api.hyena_fir_step(token[0], s, weight, slots),
            lambda s: gdn_cuda.hyena_fir_step(token[0], s, weight, flip_filter=True, state_indices=slots),
        ),
        (
            modal_state,
            lambda s: api.hyena_modal_step(*token, D, residues, log_poles, s, slots),
            lambda s: gdn_cuda.hyena_modal_step(*token, D, residues, log_poles, s, state_indices=slots),
        ),
    ):
        written, expected = state.clone(), state.clone()
        pairs.append(([mine(written), written], theirs(expected)))
        assert not torch.equal(written, state)
    for found, wanted in pairs:
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
