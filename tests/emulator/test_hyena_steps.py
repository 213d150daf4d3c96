"""The kernels of Hyena's steps in the emulator against their definitions in fp64."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from emulated import emulated
from hyena_step_cases import check, fir_inputs, modal_inputs

from gdn_cuda import hyena_fir_step, hyena_modal_step

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HOSTILE = [2**63 - 1, -(2**63), 2**32, -1, 1]


def step(**x: Any) -> Any:
    with emulated() as launched:
        found = (hyena_fir_step if "u" in x else hyena_modal_step)(**x)
    assert launched()
    return found


@pytest.mark.parametrize("K", [1, 2, 3, 5, 6, 7, 9, 10, 33, 34, 127, 128, 129, 130, 257, 258, 1024])
def test_filter_lengths(K: int, seed: int) -> None:
    """The limits of every configuration; T is longer than the shortest states."""
    for T, flip in product((None, 1, 5), (False, True)):
        check(fir_inputs(seed, K=K, T=T, flip_filter=flip, gated_bias=flip), step)
    check(fir_inputs(seed, B=1, D=33, K=K, T=3, groups=3) | {"bias": None}, step)


@pytest.mark.parametrize("S", [1, 3, 4, 5, 8, 15, 16, 17, 20, 37, 63, 64])
def test_state_counts(S: int, seed: int) -> None:
    for T in (None, 1, 5):
        check(modal_inputs(seed, S=S, T=T), step)
    check(modal_inputs(seed, B=1, D=33, S=S, T=3, groups=3), step)


@pytest.mark.parametrize("io", DTYPES)
@pytest.mark.parametrize("state", DTYPES)
def test_dtypes(io: torch.dtype, state: torch.dtype, seed: int) -> None:
    for weight in DTYPES:
        check(fir_inputs(seed, K=7, T=2, io=io, state=state, weight=weight), step)
    check(fir_inputs(seed, K=100, io=io, state=state), step)
    x = modal_inputs(seed, T=2, io=io, state=state)
    check(x | {"residues": x["residues"].to(io), "D": x["D"].to(state), "log_poles": x["log_poles"][..., None]}, step)


@pytest.mark.parametrize("io", DTYPES)
@pytest.mark.parametrize("S", [16, 40])
def test_dtypes_of_tokens(io: torch.dtype, S: int, seed: int) -> None:
    """States in vectors of fp32; x1 in another dtype than the others."""
    x = modal_inputs(seed, D=5, S=S, T=3, io=io, slots=4)
    check(x | {"state_indices": torch.tensor([3, -1, 0])}, step)
    x = modal_inputs(seed, D=5, S=S, io=io)
    check(x | {"x1": x["x1"].to(torch.float16 if io == torch.float32 else torch.float32)}, step)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("T", [None, 3])
def test_slots(index: torch.dtype, T: int | None, seed: int) -> None:
    slots = torch.tensor([4, -1, 0, 7, 2, 9]).to(index)  # 7 is past the pool, 2 is null
    for make in (fir_inputs, modal_inputs):
        check(make(seed, B=6, T=T, slots=7) | {"state_indices": slots.clamp(max=7), "null_slot": 2}, step)


def test_blocks_take_several_sequences_in_turn(seed: int) -> None:
    B = 5000  # some of them after the last whole block
    slots = torch.randperm(B + 3, generator=torch.Generator().manual_seed(seed))[:B]
    slots[::7] = -1
    for make in (fir_inputs, modal_inputs):
        check(make(seed, B=B, D=5, T=2, slots=B + 3) | {"state_indices": slots}, step)


def test_hostile_slots(seed: int) -> None:
    for make in (fir_inputs, modal_inputs):
        check(make(seed, B=5, T=2, slots=6) | {"state_indices": torch.tensor(HOSTILE)}, step)


def test_a_null_slot_may_be_past_the_pool(seed: int) -> None:
    for make in (fir_inputs, modal_inputs):
        check(make(seed, B=2) | {"state_indices": torch.tensor([2**40, 0]), "null_slot": 2**40}, step)


def test_strides(seed: int) -> None:
    """States with the channels last and gaps between slots; inputs, outputs and parameters in any order."""
    for x in (fir_inputs(seed, B=3, D=8, K=6, T=4), modal_inputs(seed, B=3, D=8, S=16, T=4)):
        pool = "fir_state" if "u" in x else "state"
        for name in x:
            if x[name].dim() == 3 and name not in ("weight", "log_poles"):
                x[name] = x[name].mT.contiguous().mT
        wide = torch.full((3, 2, *x[pool].shape[1:]), 7.0)
        wide[:, 0] = x[pool]
        for name in ("weight", "residues", "log_poles", "bias", "D"):
            if name in x:
                x[name] = x[name].T.contiguous().T if x[name].dim() == 2 else x[name].repeat_interleave(2, 0)[::2]
        out = torch.full((3, 4, 9), 7.0)[..., :8].mT
        check(x | {pool: wide[:, 0], "out": out}, step)
        assert bool((wide[:, 1] == 7).all())
        check(x | {"out": torch.full((3, 8, 4), 7.0)}, step)


@pytest.mark.parametrize("D", [4, 8, 20, 300])
def test_states_in_whole_units_are_staged(D: int, seed: int) -> None:
    """Partial warps and blocks; tokens that replace the whole state, and more tokens than it has free columns."""
    for K, T, io in product(
        (2, 4, 8, 30, 65, 97, 128) if D < 300 else (4, 7, 97), (None, 4, 11), DTYPES if D == 20 else DTYPES[:1]
    ):
        x = fir_inputs(seed, B=4, D=D, K=K, T=T, io=io, slots=5, groups=D // 4)
        x["state_indices"] = torch.tensor([4, -1, 0, 9])
        expected = "hyena_fir_step_staged"
        with emulated() as launched:
            check(x, hyena_fir_step)
        assert all(expected in kernel for kernel in launched()) and launched()


def test_states_in_whole_units_with_gaps_between_slots(seed: int) -> None:
    x = fir_inputs(seed, B=3, D=8, K=6, T=2)
    wide = torch.full((3, 10, 5), 7.0)
    wide[:, :8] = x["fir_state"]
    check(x | {"fir_state": wide[:, :8]}, step)
    assert bool((wide[:, 8:] == 7).all())


@pytest.mark.parametrize("D", [5, 6])
@pytest.mark.parametrize("K", [1, 3, 7, 33, 65, 128, 258])
def test_several_tokens_equal_single_ones(K: int, D: int, seed: int) -> None:
    """The same bits; the state of 5 channels is not in whole 16-byte units."""
    for make, rows, pool in (
        (lambda T: fir_inputs(seed, D=D, K=K, T=T), ("u",), "fir_state"),
        (lambda T: modal_inputs(seed, S=min(K, 64), T=T), ("x2", "x1", "v"), "state"),
    ):
        together, alone = make(5), make(5)
        out, _ = step(**together)
        for t in range(5):
            one, _ = step(**alone | {name: alone[name][..., t] for name in rows})
            assert torch.equal(one, out[..., t])
        assert torch.equal(together[pool], alone[pool])


def test_values_that_are_not_finite_stay_in_their_rows_and_leave_a_filter(seed: int) -> None:
    x = fir_inputs(seed, B=2, D=9, K=6, T=12)
    clean, _ = step(**x | {"fir_state": x["fir_state"].clone()})
    x["u"][1, 4, 2], x["fir_state"][0, 3, 1] = torch.nan, torch.inf
    out, state = step(**x)
    spoilt = torch.zeros(2, 9, 12, dtype=torch.bool)
    spoilt[1, 4, 2:8] = True  # six taps
    spoilt[0, 3, :2] = True
    assert torch.equal(out[~spoilt], clean[~spoilt]) and not out[spoilt].isfinite().any() and state.isfinite().all()
    x = modal_inputs(seed, B=2, D=9)
    clean, _ = step(**x | {"state": x["state"].clone()})
    x["v"][1, 4] = torch.nan
    out, state = step(**x)
    rows = torch.ones(2, 9, dtype=torch.bool)
    rows[1, 4] = False
    assert torch.equal(out[rows], clean[rows]) and out[1, 4].isnan() and state[rows].isfinite().all()


@pytest.mark.parametrize("log_pole", [0.0, -1e-6, -0.2499, -0.25, -0.3, -1.0, -50.0, -87.0, -1000.0, -torch.inf])
def test_poles_at_the_limits_of_their_range(log_pole: float, seed: int) -> None:
    x = modal_inputs(seed, D=5, S=1, T=7)
    x["log_poles"].fill_(log_pole)
    check(x, step)


def test_a_slow_pole_keeps_its_rate(seed: int) -> None:
    x = modal_inputs(seed, B=1, D=64, S=4, T=500)
    x["log_poles"].fill_(-1e-6)
    for name in ("x1", "v"):
        x[name].zero_()
    before = x["state"].double()
    step(**x)
    lost = 1 - (x["state"].double() / before).mean().item()
    assert abs(lost / 5e-4 - 1) < 2e-2


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 4, 0)])
def test_empty_tensors(shape: tuple[int, int, int]) -> None:
    B, D, T = shape
    for x in (fir_inputs(0, B=B, D=D, T=T, slots=3), modal_inputs(0, B=B, D=D, T=T, slots=3)):
        pool = x["fir_state" if "u" in x else "state"]
        before = pool.clone()
        with emulated():
            out, state = (hyena_fir_step if "u" in x else hyena_modal_step)(**x)
        assert out.shape == shape and state is pool and torch.equal(state, before)
