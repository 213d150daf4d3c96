"""Summaries of selective scans, the state after a part of a sequence and the gradient of the state before it, against the
literal recurrence in fp64. In the emulator GDN_SCAN_PIECES splits a few tokens into segments; on a GPU sequences are long."""

from __future__ import annotations

from typing import Any

import oracle
import pytest
import torch
from devices import Device
from oracle import within
from selective_inputs import INVALID_OFFSETS, Draw, channels_last, model_inputs, selective_inputs
from selective_on_device import BOTH_LAYOUTS, EVERY_DISCRETIZATION, ROWS, poison
from torch import Tensor

from gdn_cuda.scan.selective_summary import summary, summary_backward

ABSENT = dict.fromkeys(("D", "z", "delta_bias", "delta_a", "initial_state", "cu_seqlens"))
FLAGS = {"delta_softplus": False, "discretization": "mamba"}
KERNELS = ("scan/selective_pieces", "scan/selective_summary")
FORMS: dict[str, dict[str, Any]] = {
    "varying": {},
    "bare": {"bare": True},
    "B-constant": {"B": "constant", "groups": 2},
    "C-constant": {"C": "constant", "groups": 4},
    "constant": {"B": "constant", "C": "constant"},
    "packed": {"batch": 1, "groups": 2, "cu_seqlens": [0, 0, 1, 64, 65, 230, 230, 297]},
    "many-states": {"N": 70, "dim": 2},
}


def length_of(device: Device) -> int:
    return device.size(330, 2100)


def inputs(device: Device, seed: int, *args: Any, **form: Any) -> dict[str, Any]:
    return ABSENT | FLAGS | selective_inputs(seed, *args, device=device.name, **form)


def sequences_of(x: dict[str, Any]) -> int:
    return x["u"].shape[0] if x["cu_seqlens"] is None else len(x["cu_seqlens"]) - 1


def cotangents(x: dict[str, Any], seed: int) -> dict[str, Tensor]:
    draw, out = Draw(seed + 1, str(x["u"].device)), x["u"]
    grad_out = torch.empty_like(out).copy_(draw.normal(*out.shape))
    return {"grad_out": grad_out, "grad_last_state": draw.normal(sequences_of(x), *x["A"].shape, dtype=x["A"].dtype)}


def check(device: Device, x: dict[str, Any], seed: int) -> None:
    grads = cotangents(x, seed)
    poison(device)
    with device.only(*KERNELS, "common/transposed_copy"), torch.no_grad():
        state, decay = summary(**x)
        gradient, conjugate = summary_backward(**x, **grads)
    start = x["initial_state"]
    if start is None:
        start = x["A"].new_zeros(sequences_of(x), *x["A"].shape)
    unforced = x | {"u": torch.zeros_like(x["u"]), "initial_state": torch.ones_like(start)}
    wanted_decay = oracle.selective_scan(**unforced)[1]
    assert within(state, oracle.selective_scan(**x)[1], 1e-5)
    for found, wanted in ((decay, wanted_decay), (conjugate, wanted_decay.conj())):
        assert within(torch.where(wanted.abs() < 2e-24, 0, found), torch.where(wanted.abs() < 2e-24, 0, wanted), 1e-4)
        assert (found[wanted.abs() < 1e-25] == 0).all()
    wanted = oracle.gradients(oracle.selective_scan, x | {"initial_state": start}, *grads.values())["initial_state"]
    assert gradient.dtype == start.dtype and within(gradient, wanted, 1e-5)


@EVERY_DISCRETIZATION
@pytest.mark.parametrize("form", FORMS)
def test_summaries(form: str, name: str, is_complex: bool, device: Device, seed: int) -> None:
    x = {"length": length_of(device), "dim": 8, "N": 5} | FORMS[form]
    check(device, inputs(device, seed, name, is_complex=is_complex, last=bool(seed % 2), **x), seed)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 1024, 2048, 2049, 7000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@BOTH_LAYOUTS
def test_summaries_of_lengths(last: bool, dtype: torch.dtype, length: int, device: Device, seed: int) -> None:
    device.skip_above(65, length)
    check(device, inputs(device, seed, length=length, dim=37, N=16, dtype=dtype, last=last), seed)


@BOTH_LAYOUTS
def test_summaries_of_a_layer_at_initialisation(last: bool, device: Device, seed: int) -> None:
    x = model_inputs(seed, 1, 64, length_of(device), 16, torch.bfloat16, last=last, device=device.name)
    check(device, ABSENT | FLAGS | x, seed)


@pytest.mark.parametrize("A", [0.0, 1e-3, -1e-6, -40.0])
@pytest.mark.parametrize("is_complex", [False, True])
def test_summaries_of_rates(A: float, is_complex: bool, device: Device, seed: int) -> None:
    """Nothing is skipped where states grow or stay."""
    x = inputs(device, seed, length=length_of(device), dim=9, N=5, is_complex=is_complex)
    rates = x["A"] - x["A"].real + A
    check(device, x | {"A": rates.clone()}, seed)


@pytest.mark.parametrize("delta", [0.0, -0.02])
def test_summaries_of_steps_that_are_not_positive(delta: float, device: Device, seed: int) -> None:
    x = inputs(device, seed, length=device.size(330, 2100), dim=9, N=5, bare=True)
    check(device, x | {"delta": torch.full_like(x["delta"], delta)}, seed)


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("slow", [None, 2, 18])
@BOTH_LAYOUTS
def test_what_has_decayed_is_not_read(last: bool, slow: int | None, is_complex: bool, device: Device, seed: int) -> None:
    """NaN far from the result is in no fast state, as its segments have no part in it; a slow state beside has it."""
    length, N = length_of(device), 20
    x = inputs(device, seed, length=length, dim=40, N=N, is_complex=is_complex, last=last, bare=True)
    x["A"] = x["A"] - x["A"].real - 9
    x["delta"] = torch.full_like(x["delta"], 0.5)
    if slow is not None:
        x["A"][11, slow] = -1e-4
    grads = cotangents(x, seed)
    x["u"][:, 11, 3], grads["grad_out"][:, 11, -3] = torch.nan, torch.nan
    with device.kernels():
        found = summary(**x), summary_backward(**x, **grads)
    for state, decay in found:
        assert not decay.isnan().any() and (decay.abs().sum() > 0) == (slow is not None)
        bad = state.isnan().nonzero().tolist()
        assert bad == ([[row, 11, slow] for row in range(state.shape[0])] if slow is not None else [])


@pytest.mark.parametrize("offsets", INVALID_OFFSETS)
@BOTH_LAYOUTS
def test_invalid_offsets_of_summaries_touch_nothing_outside(last: bool, offsets: list[int], device: Device, seed: int) -> None:
    x = inputs(device, seed, batch=1, length=271, cu_seqlens=[0, 5, 6, 7, 271], last=last)
    x |= {"cu_seqlens": torch.tensor(offsets, device=device.name)}
    with device.kernels():
        found = *summary(**x), *summary_backward(**x, **cotangents(x, seed))
    device.synchronize()
    assert all(torch.isfinite(y).all() for y in found)


def test_summaries_of_other_layouts(device: Device, seed: int) -> None:
    x = inputs(device, seed, length=device.size(201, 2100), dim=6, N=16, dtype=torch.bfloat16)
    more = inputs(device, seed, length=device.size(204, 2103), dim=9, N=16, dtype=torch.bfloat16)
    x |= {row: more[row][:, 1:-2, 1:-2] for row in ROWS}
    check(device, x | {"z": channels_last(x["z"])}, seed)
