"""Summaries of hyena_long, the state after a part of a sequence and the gradient of the state before it, against the recurrence
in fp64."""

from __future__ import annotations

from typing import Any

import hyena_oracle as oracle
import pytest
import torch
from devices import Device
from hyena_cases import gated_inputs, modal_parameters
from hyena_fir_checks import LAYOUTS, laid_out
from hyena_long_checks import STATE
from torch import Tensor

from gdn_cuda.conv.hyena_long_summary import summary, summary_backward

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SEGMENT = 2048  # tokens; 8192 with many channels


def inputs(
    device: Device, B: int, D: int, L: int, S: int, seed: int, dtype: torch.dtype, layout: str, groups: int | None = None
) -> dict[str, Any]:
    """The arguments of hyena_long, and gradients of y and of the state."""
    names = ("x1", "x2", "v")
    rows = {
        name: laid_out(x.to(device.name, dtype), layout) for name, x in zip(names, gated_inputs(B, D, L, seed), strict=True)
    }
    residues, poles, bias = (x.float().to(device.name) for x in modal_parameters(groups or D, D, S, seed))
    grad, _, _ = gated_inputs(B, D, L, seed + 5)
    draw = torch.Generator().manual_seed(seed + 6)
    states = (torch.randn(B, D, S, generator=draw).to(device.name) for _ in range(2))
    found = rows | {
        "residues": residues,
        "log_poles": poles,
        "bias": bias,
        "grad": laid_out(grad.to(device.name, dtype), layout),
    }
    return found | dict(zip(("initial_state", "grad_state"), states, strict=True))


def forward_of(x: dict[str, Any]) -> dict[str, Any]:
    return {name: y for name, y in x.items() if not name.startswith("grad")}


def terms(x: dict[str, Any], power: int = 1) -> tuple[Tensor, Tensor]:
    """Sums of the powers of the terms of the state and of the gradient, which is Σ_t p^{t+1} R x2_t g_t + p^L g."""
    y = {name: tensor.cpu().double() for name, tensor in x.items() if tensor is not None}
    raised = {name: y[name] ** power for name in ("x1", "x2", "v", "grad", "residues", "grad_state")}
    D, L = y["x1"].shape[1:]
    logs = power * torch.from_numpy(oracle.per_channel(y["log_poles"], D))
    R = torch.from_numpy(oracle.per_channel(raised["residues"], D))
    after = torch.einsum("bdt,dst->bds", raised["x1"] * raised["v"], exp(logs, torch.arange(L).flip(0)))
    if "initial_state" in y:
        after = after + exp(logs, torch.tensor([L]))[..., 0] * y["initial_state"] ** power
    before = R * torch.einsum("bdt,dst->bds", raised["x2"] * raised["grad"], exp(logs, torch.arange(1, L + 1)))
    return after, before + exp(logs, torch.tensor([L]))[..., 0] * raised["grad_state"]


def exp(logs: Tensor, tokens: Tensor) -> Tensor:
    """e^{logs tokens}, and 1 for no tokens and any logarithm."""
    return torch.where(tokens == 0, 0, logs[..., None] * tokens).exp()


def check(device: Device, x: dict[str, Any]) -> None:
    with device.kernels():
        found = summary(**forward_of(x)), summary_backward(**x)
    for own, wanted, squares in zip(found, terms(x), terms(x, 2), strict=True):
        assert own.dtype == torch.float32 and own.shape == wanted.shape
        error = (own.cpu().double() - wanted).square().sum((0, 1)).sqrt()
        assert (error <= STATE * squares.sum((0, 1)).sqrt()).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("S", [1, 16, 17, 64])
def test_layouts_and_states(S: int, layout: str, dtype: torch.dtype, device: Device, seed: int) -> None:
    B, D, L, groups = device.size((2, 4, 520, 2), (2, 34, 5000, 17))
    check(device, inputs(device, B, D, L, S, seed, dtype, layout, groups))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("L", [0, 1, 31, 511, 512, 513, SEGMENT, SEGMENT + 1, 2 * SEGMENT + 700, 20000])
def test_lengths(layout: str, L: int, device: Device, seed: int) -> None:
    device.skip_above(5000, L)
    check(device, inputs(device, 1, 2, L, 16, seed, torch.bfloat16, layout))


@pytest.mark.parametrize("log_pole", [0.0, -1e-6, -0.01, -0.03, -1.0, -1000.0, -torch.inf])
def test_poles(log_pole: float, device: Device, seed: int) -> None:
    """Some of several segments are skipped at e^-0.03, all but the last at e^-1, none above."""
    x = inputs(device, 1, 3, 2 * SEGMENT + 700, 5, seed, torch.float32, "tokens")
    check(device, x | {"log_poles": torch.full_like(x["log_poles"], log_pole)})


@pytest.mark.parametrize("B, D", [(0, 3), (2, 0)])
def test_empty_tensors(B: int, D: int, device: Device, seed: int) -> None:
    check(device, inputs(device, B, D, 5, 7, seed, torch.float32, "tokens", groups=1))


def test_without_a_state_before(device: Device, seed: int) -> None:
    check(device, inputs(device, 2, 3, 700, 5, seed, torch.float32, "tokens") | {"initial_state": None})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("slow", [None, 0, 19])
def test_what_has_decayed_is_not_read(slow: int | None, layout: str, device: Device, seed: int) -> None:
    """NaN far from the result is in no fast state, as nothing of its segment is in it."""
    x = inputs(device, 1, 8, 2 * SEGMENT, 20, seed, torch.bfloat16, layout)
    x["log_poles"] = torch.full_like(x["log_poles"], -0.5)
    if slow is not None:
        x["log_poles"][3, slow] = -1e-4
    x["v"][:, 3, 7], x["grad"][:, 3, -7] = torch.nan, torch.nan
    with device.kernels():
        found = summary(**forward_of(x)), summary_backward(**x)
    for state in found:
        assert state.isnan().nonzero().tolist() == ([] if slow is None else [[0, 3, slow]])
