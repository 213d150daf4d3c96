"""The kernels of Hyena's steps against their definitions in fp64."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from devices import Device
from hyena_step_cases import check, fir_inputs, modal_inputs

from gdn_cuda import hyena_fir_step, hyena_modal_step

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HOSTILE = [2**63 - 1, -(2**63), 2**32, -1, 1]
FIR_KERNELS = ("conv/hyena_fir_step", "conv/hyena_fir_step_staged")
SLOTS = [11, 3, -1, 0, 40, 5, 6, 2, 9]


class Steps:
    """Inputs on the device, and the operator that takes them."""

    def __init__(self, device: Device):
        self.device = device

    def fir(self, seed: int, **form: Any) -> dict[str, Any]:
        return fir_inputs(seed, device=self.device.name, **form)

    def modal(self, seed: int, **form: Any) -> dict[str, Any]:
        return modal_inputs(seed, device=self.device.name, **form)

    def slots(self, slots: list[int]) -> torch.Tensor:
        return torch.tensor(slots, device=self.device.name)

    def step(self, **x: Any) -> Any:
        with self.device.only(*(FIR_KERNELS if "u" in x else ("conv/hyena_modal_step",))):
            return (hyena_fir_step if "u" in x else hyena_modal_step)(**x)

    def check(self, x: dict[str, Any]) -> None:
        check(x, self.step)


@pytest.fixture
def on(device: Device) -> Steps:
    return Steps(device)


@pytest.mark.parametrize("K", [1, 2, 3, 5, 6, 7, 9, 10, 33, 34, 127, 128, 129, 130, 257, 258, 1000, 1024])
def test_filter_lengths(K: int, on: Steps, seed: int) -> None:
    """The limits of every configuration; T is longer than the shortest states."""
    B, D, many = on.device.size((3, 6, 5), (5, 96, 9))
    for T, flip in product((None, 1, many), (False, True)):
        on.check(on.fir(seed, B=B, D=D, K=K, T=T, flip_filter=flip, gated_bias=flip))
    on.check(on.fir(seed, B=1, D=33, K=K, T=3, groups=3) | {"bias": None})
    if not on.device.emulate:
        on.check(on.fir(seed, B=3, D=96, K=K, groups=6) | {"bias": None})


@pytest.mark.parametrize("S", [1, 3, 4, 5, 8, 15, 16, 17, 20, 37, 63, 64])
def test_state_counts(S: int, on: Steps, seed: int) -> None:
    B, D, many = on.device.size((3, 6, 5), (5, 96, 9))
    for T, groups in product((None, 1, many), (D, 6)):
        on.check(on.modal(seed, B=B, D=D, S=S, T=T, groups=groups))
    on.check(on.modal(seed, B=1, D=33, S=S, T=3, groups=3))


@pytest.mark.parametrize("io", DTYPES)
@pytest.mark.parametrize("state", DTYPES)
def test_dtypes(state: torch.dtype, io: torch.dtype, on: Steps, seed: int) -> None:
    D = on.device.size(6, 64)
    for weight, K in product(DTYPES, on.device.size((7,), (3, 128))):
        on.check(on.fir(seed, D=D, K=K, T=2, io=io, state=state, weight=weight))
    on.check(on.fir(seed, D=D, K=100, io=io, state=state))
    x = on.modal(seed, D=D, T=2, io=io, state=state)
    on.check(x | {"state": x["state"].clone()})
    on.check(x | {"residues": x["residues"].to(io), "D": x["D"].to(state), "log_poles": x["log_poles"][..., None]})


@pytest.mark.parametrize("io", DTYPES)
@pytest.mark.parametrize("S", [16, 40])
def test_dtypes_of_tokens(S: int, io: torch.dtype, on: Steps, seed: int) -> None:
    """States in vectors of fp32; x1 in another dtype than the others."""
    D = on.device.size(5, 77)
    for T in (None, 1, 5):
        x = on.modal(seed, B=9, D=D, S=S, T=T, io=io, slots=12)
        on.check(x | {"state_indices": on.slots(SLOTS)})
        x = on.modal(seed, B=9, D=D, S=S, T=T, io=io)
        on.check(x | {"x1": x["x1"].to(torch.float16 if io == torch.float32 else torch.float32)})


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("T", [None, 3])
def test_slots(T: int | None, index: torch.dtype, on: Steps, seed: int) -> None:
    slots = on.slots([4, -1, 0, 7, 2, 9]).to(index)  # 7 is past the pool, 2 is null
    for make in (on.fir, on.modal):
        on.check(make(seed, B=6, T=T, slots=7) | {"state_indices": slots.clamp(max=7), "null_slot": 2})


@pytest.mark.parametrize("K", [7, 30, 128])
def test_blocks_process_several_sequences(K: int, on: Steps, seed: int) -> None:
    """Some of them after the last whole block."""
    B, D = on.device.size((5000 if K == 7 else 300, 5), (333, 520))
    slots = torch.randperm(B + 3, generator=torch.Generator().manual_seed(seed))[:B].to(on.device.name)
    slots[::7] = -1
    for T in on.device.size((2,), (None, 3)):
        on.check(on.fir(seed, B=B, D=D, K=K, T=T, slots=B + 3) | {"state_indices": slots})
        on.check(on.modal(seed, B=B, D=D, S=min(K + 9, 64), T=T, slots=B + 3) | {"state_indices": slots})


def test_hostile_slots(on: Steps, seed: int) -> None:
    for make in (on.fir, on.modal):
        for D, more in ((6, {}), (64, {"null_slot": 3})):
            on.check(make(seed, B=5, D=D, T=2, slots=6) | {"state_indices": on.slots(HOSTILE)} | more)


def test_a_null_slot_may_be_past_the_pool(on: Steps, seed: int) -> None:
    for make in (on.fir, on.modal):
        on.check(make(seed, B=2) | {"state_indices": on.slots([2**40, 0]), "null_slot": 2**40})


@pytest.mark.parametrize("D", [8, 64])
def test_strides(D: int, on: Steps, seed: int) -> None:
    """States with the channels last and gaps between slots; inputs, outputs and parameters in any order."""
    for x in (on.fir(seed, B=3, D=D, K=6, T=4), on.modal(seed, B=3, D=D, S=16, T=4)):
        pool = "fir_state" if "u" in x else "state"
        for name in x:
            if x[name].dim() == 3 and name not in ("weight", "log_poles"):
                x[name] = x[name].mT.contiguous().mT
        on.check(x | {pool: x[pool].clone()})
        wide = torch.full((3, 2, *x[pool].shape[1:]), 7.0, device=on.device.name)
        wide[:, 0] = x[pool]
        for name in ("weight", "residues", "log_poles", "bias", "D"):
            if name in x:
                x[name] = x[name].T.contiguous().T if x[name].dim() == 2 else x[name].repeat_interleave(2, 0)[::2]
        out = torch.full((3, 4, D + 1), 7.0, device=on.device.name)[..., :D].mT
        on.check(x | {pool: wide[:, 0], "out": out})
        assert bool((wide[:, 1] == 7).all())
        on.check(x | {"out": torch.full((3, D, 4), 7.0, device=on.device.name)})


@pytest.mark.parametrize("D", [4, 8, 20, 33, 300])
@pytest.mark.parametrize("K", [2, 4, 5, 7, 8, 9, 30, 65, 97, 128, 129, 130])
def test_partial_warps_and_blocks(K: int, D: int, on: Steps, seed: int) -> None:
    """States of whole 16-byte units are staged; tokens that replace the state, and more tokens than it has free columns."""
    for T, io in product((None, 4, 11), DTYPES if D == 20 or not on.device.emulate else DTYPES[:1]):
        x = on.fir(seed, B=9, D=D, K=K, T=T, io=io, slots=12, groups=D // 4 if D % 4 == 0 else None)
        on.check(x | {"state_indices": on.slots(SLOTS)})


def test_states_in_whole_units_with_gaps_between_slots(on: Steps, seed: int) -> None:
    x = on.fir(seed, B=3, D=8, K=6, T=2)
    wide = torch.full((3, 10, 5), 7.0, device=on.device.name)
    wide[:, :8] = x["fir_state"]
    on.check(x | {"fir_state": wide[:, :8]})
    assert bool((wide[:, 8:] == 7).all())


@pytest.mark.parametrize("D", [5, 6, 63, 64])
@pytest.mark.parametrize("K", [1, 3, 7, 33, 65, 128, 258, 1000])
def test_several_tokens_equal_single_ones(K: int, D: int, on: Steps, seed: int) -> None:
    """The same bits; the states of 5 and of 63 channels are not in whole 16-byte units."""
    on.device.skip_above(2000, D * K)
    tokens = on.device.size(5, 6)
    for make, rows, pool in (
        (lambda T: on.fir(seed, D=D, K=K, T=T), ("u",), "fir_state"),
        (lambda T: on.modal(seed, D=D, S=min(K, 64), T=T), ("x2", "x1", "v"), "state"),
    ):
        together, alone = make(tokens), make(tokens)
        out, _ = on.step(**together)
        for t in range(tokens):
            one, _ = on.step(**alone | {name: alone[name][..., t] for name in rows})
            assert torch.equal(one, out[..., t])
        assert torch.equal(together[pool], alone[pool])


def test_values_that_are_not_finite_stay_in_their_rows_and_leave_a_filter(on: Steps, seed: int) -> None:
    x = on.fir(seed, B=2, D=9, K=6, T=12)
    clean, _ = on.step(**x | {"fir_state": x["fir_state"].clone()})
    x["u"][1, 4, 2], x["fir_state"][0, 3, 1] = torch.nan, torch.inf
    out, state = on.step(**x)
    spoilt = torch.zeros(2, 9, 12, dtype=torch.bool)
    spoilt[1, 4, 2:8] = True  # six taps
    spoilt[0, 3, :2] = True
    assert torch.equal(out[~spoilt], clean[~spoilt]) and not out[spoilt].isfinite().any() and state.isfinite().all()
    x = on.modal(seed, B=2, D=9)
    clean, _ = on.step(**x | {"state": x["state"].clone()})
    x["v"][1, 4] = torch.nan
    out, state = on.step(**x)
    rows = torch.ones(2, 9, dtype=torch.bool)
    rows[1, 4] = False
    assert torch.equal(out[rows], clean[rows]) and out[1, 4].isnan() and state[rows].isfinite().all()


@pytest.mark.parametrize("log_pole", [0.0, -1e-6, -0.2499, -0.25, -0.3, -1.0, -50.0, -87.0, -1000.0, -torch.inf])
def test_poles_at_the_limits_of_their_range(log_pole: float, on: Steps, seed: int) -> None:
    x = on.modal(seed, D=on.device.size(5, 64), S=1, T=7)
    x["log_poles"].fill_(log_pole)
    on.check(x)


def test_a_slow_pole_keeps_its_rate(on: Steps, seed: int) -> None:
    x = on.modal(seed, B=1, D=64, S=4, T=500)
    x["log_poles"].fill_(-1e-6)
    for name in ("x1", "v"):
        x[name].zero_()
    before = x["state"].double()
    on.step(**x)
    lost = 1 - (x["state"].double() / before).mean().item()
    assert abs(lost / 5e-4 - 1) < 2e-2


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 4, 0)])
def test_empty_tensors(shape: tuple[int, int, int], device: Device) -> None:
    B, D, T = shape
    for make in (fir_inputs, modal_inputs):
        x = make(0, B=B, D=D, T=T, slots=3, device=device.name)
        pool = x["fir_state" if "u" in x else "state"]
        before = pool.clone()
        with device.kernels():
            out, state = (hyena_fir_step if "u" in x else hyena_modal_step)(**x)
        assert out.shape == shape and state is pool and torch.equal(state, before)
