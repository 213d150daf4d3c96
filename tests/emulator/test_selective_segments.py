"""Sequences of selective_scan in segments, forward and backward, in the emulator against the literal recurrence in fp64."""

from __future__ import annotations

from typing import Any

import oracle
import pytest
import torch
from emulated import emulated, launched, library
from selective_checks import FEW_AND_MANY, check, plain_inputs
from selective_inputs import INVALID_OFFSETS, channels_last, model_inputs, selective_inputs
from selective_on_device import BOTH_LAYOUTS, EVERY_DISCRETIZATION, ROWS, scan, weights

FORMS: dict[str, dict[str, Any]] = {
    "varying": {},
    "bare": {"bare": True},
    "B-constant": {"B": "constant", "groups": 2},
    "C-constant": {"C": "constant", "groups": 4},
    "constant": {"B": "constant", "C": "constant"},
    "packed": {"batch": 1, "length": 300, "cu_seqlens": [0, 0, 1, 64, 65, 230, 230, 297]},
    "many-states": {"N": 70, "dim": 2},
}


@pytest.fixture(autouse=True)
def segments(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDN_SCAN_PIECES", getattr(request, "param", "2"))


SEVERAL_TILES_AND_ONE = pytest.mark.parametrize("segments", ["2", "7"], indirect=True)


@EVERY_DISCRETIZATION
@pytest.mark.parametrize("form", FORMS)
def test_discretizations(name: str, is_complex: bool, form: str, seed: int) -> None:
    x = {"length": 201, "dim": 8, "N": 5} | FORMS[form]
    before = library().emulator_launches()
    check(selective_inputs(seed, name, is_complex=is_complex, last=bool(seed % 2), **x), seed)
    assert any(kernel.startswith("scan/selective_pieces") for kernel in launched(before))


@SEVERAL_TILES_AND_ONE
@pytest.mark.parametrize("length", [1, 64, 65, 129, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@FEW_AND_MANY
@BOTH_LAYOUTS
def test_lengths(length: int, dtype: torch.dtype, multiprocessors: int, last: bool, seed: int) -> None:
    check(selective_inputs(seed, length=length, dim=37, N=16, dtype=dtype, last=last), seed, multiprocessors)


@EVERY_DISCRETIZATION
def test_plain_tiles(name: str, is_complex: bool, seed: int) -> None:
    dtype = torch.bfloat16 if seed % 2 else torch.float32
    check(plain_inputs(seed, name, is_complex=is_complex, dtype=dtype, length=200), seed)


@SEVERAL_TILES_AND_ONE
@BOTH_LAYOUTS
def test_a_layer_at_initialisation(last: bool, seed: int) -> None:
    check(model_inputs(seed, 1, 64, 330, 16, torch.bfloat16, last=last), seed)


@BOTH_LAYOUTS
def test_slices_and_mixed_layouts(last: bool, seed: int) -> None:
    x = selective_inputs(seed, length=201, dim=6, N=16, dtype=torch.bfloat16, last=last)
    more = selective_inputs(seed, length=204, dim=9, N=16, dtype=torch.bfloat16, last=last)
    x |= {row: more[row][:, 1:-2, 1:-2] for row in ROWS}
    check(x | {"z": x["z"].contiguous() if last else channels_last(x["z"])}, seed)


@pytest.mark.parametrize("offsets", INVALID_OFFSETS)
@BOTH_LAYOUTS
def test_invalid_offsets_touch_nothing_outside(offsets: list[int], last: bool, seed: int) -> None:
    x = selective_inputs(seed, batch=1, length=271, cu_seqlens=[0, 5, 6, 7, 271], last=last)
    x |= {"cu_seqlens": torch.tensor(offsets)}
    with emulated():
        out, state = scan(**x)
        found = oracle.gradients(scan, x, torch.ones_like(out), torch.ones_like(state))
    assert all(torch.isfinite(y).all() for y in (out, state, *found.values()))


@pytest.mark.parametrize("argument", ["u", "delta"])
@BOTH_LAYOUTS
def test_values_that_are_not_finite_stay_in_their_channel(argument: str, last: bool, seed: int) -> None:
    x = selective_inputs(seed, batch=2, dim=40, N=16, length=200, last=last)
    hurt = x | {argument: x[argument].clone(memory_format=torch.preserve_format)}
    hurt[argument][1, 22, 70] = torch.nan
    with emulated():
        clean, clean_state = scan(**x)
        out, state = scan(**hurt)
        found = oracle.gradients(scan, hurt, *weights((out, state), seed))
    touched = torch.zeros_like(out, dtype=torch.bool)
    touched[1, 22, 70:] = True
    assert torch.equal(out[~touched], clean[~touched]) and bool(out[1, 22, 70:].isnan().all())
    in_channel = touched.any(-1)
    assert torch.equal(state[~in_channel], clean_state[~in_channel])
    for row in ROWS:
        assert torch.isfinite(found[row][~in_channel]).all(), row
