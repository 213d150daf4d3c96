"""Tails and segments of chunked_summary on Hopper, against the recurrence in fp64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from devices import Device
from gdn_inputs import to_double
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import chunked_summary
from gdn_cuda.gdn.inputs import make_gdn_inputs, make_packed_gdn_inputs
from gdn_cuda.reference import recurrent

BOUND = 5e-3
LONG = 64 * 48 + 5  # two segments, the last chunk not full
KERNELS = ("gdn/summary", *(f"gdn/summary_{name}" for name in ("gates", "tails", "keys", "segments", "fold")))
SIZES: dict[str, Any] = {"Hk": 1, "Hv": 2, "dk": 64, "dv": 64, "dtype": torch.bfloat16}


def of_part(x: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t for name, t in x.items() if name not in ("query", "state")}


def summary_of(device: Device, x: dict[str, Tensor], *others: str, **options: Any) -> Tensor:
    there = {name: t.to(device.name) for name, t in of_part(x).items()}
    options = {name: t.to(device.name) if isinstance(t, Tensor) else t for name, t in options.items()}
    with device.only(*KERNELS, *others):
        return chunked_summary(**there, **options).cpu()


def additions(x: dict[str, Tensor], state: Tensor | None = None, **options: Any) -> Tensor:
    return recurrent(**to_double(x) | {"state": None if state is None else state.double()}, **options)[1]


def transitions(x: dict[str, Tensor], **options: Any) -> Tensor:
    exact = to_double(x)
    dk = exact["key"].shape[-1]
    none = exact["value"].new_zeros(*exact["value"].shape[:-1], dk)
    sequences = len(x["cu_seqlens"]) - 1 if "cu_seqlens" in x else len(none)
    identity = torch.eye(dk, dtype=torch.float64).expand(sequences, none.shape[-2], dk, dk)
    return recurrent(**exact | {"value": none, "state": identity}, **options)[1]


def close(found: Tensor, expected: Tensor) -> bool:
    """M beside the identity that it begins as: it gets no fresh values, and the roundings of all chunks stay in it."""
    identity = torch.eye(found.shape[-1], dtype=torch.float64)
    return rel_rms(found + identity, expected + identity) < BOUND


def mixed(seed: int, T: int = LONG, **sizes: Any) -> dict[str, Tensor]:
    """The last head decays by half in a few tokens, the first in thousands."""
    x = make_gdn_inputs(T=T, seed=seed, gate_range=(-2.0, -1.0), **SIZES | {"B": 1} | sizes)
    x["gate"][..., 0] *= 1e-4
    return x


@pytest.mark.parametrize("norm", [False, True], ids=["as they are", "norms"])
def test_a_long_tail_in_segments_beside_a_short_one(norm: bool, device: Device, seed: int) -> None:
    x = mixed(seed)
    found = summary_of(device, x, use_qk_l2norm=norm)
    addition, transition = found.split(64, -2)
    options = {"use_qk_l2norm": norm}
    assert rel_rms(addition, additions(x, **options)) < BOUND
    assert close(transition[:, 0], transitions(x, **options)[:, 0])
    assert not transition[:, 1].any()


@pytest.mark.parametrize("T", [1, 70, LONG])
def test_from_a_state_without_a_transition(T: int, device: Device, seed: int) -> None:
    x = mixed(seed, T)
    state = x["state"].float()
    found = summary_of(device, x, state=state, transition=False)
    assert found.shape == state.shape and rel_rms(found, additions(x, state)) < BOUND
    both = summary_of(device, x, state=state)
    assert torch.equal(both[..., :64, :], found)


@pytest.mark.parametrize("dk, dv", [(128, 128), (96, 192), (64, 8), (40, 72), (8, 136)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sizes(dk: int, dv: int, dtype: torch.dtype, device: Device, seed: int) -> None:
    x = mixed(seed, 200, B=2, dk=dk, dv=dv, dtype=dtype)
    x["gate"][..., 1] *= 1e-2
    addition, transition = summary_of(device, x).split([dv, dk], -2)
    assert rel_rms(addition, additions(x)) < BOUND and close(transition, transitions(x))


@pytest.mark.parametrize("dk, dv", [(192, 64), (256, 256)])
def test_long_keys(dk: int, dv: int, device: Device, seed: int) -> None:
    """By a kernel that may keep no outputs: gdn/prefill stores them, here over the values."""
    x = mixed(seed, 130, dk=dk, dv=dv)
    found = summary_of(device, x, "gdn/prefill_mma", "gdn/move_states", "gdn/chunk_gates")
    addition, transition = found.split([dv, dk], -2)
    assert rel_rms(addition, additions(x)) < BOUND and close(transition, transitions(x))


def test_what_came_before_a_tail_is_not_seen(device: Device, seed: int) -> None:
    x = mixed(seed, 700)
    x["gate"][..., 0] = -1.0
    expected = summary_of(device, x)
    x["value"][:, 300], x["key"][:, 200], x["gate"][:, 100] = torch.nan, torch.inf, torch.nan
    assert torch.equal(summary_of(device, x), expected)


@pytest.mark.parametrize("gate", [-torch.inf, -200.0], ids=["reset", "strong gate"])
@pytest.mark.parametrize("at", [0, 100, 699])
def test_resets(gate: float, at: int, device: Device, seed: int) -> None:
    x = mixed(seed, 700)
    x["gate"][..., 1] *= 1e-4
    x["gate"][:, at] = gate
    x["value"][:, :at] = torch.nan
    addition, transition = summary_of(device, x).split(64, -2)
    assert not transition.any()
    after = {name: t[:, at:] for name, t in x.items() if name != "state"}
    assert rel_rms(addition, additions(after)) < BOUND


def test_keys_that_let_a_state_grow(device: Device, seed: int) -> None:
    """By gates alone the last two chunks count; each token takes a direction of the state back to where it was."""
    x = mixed(seed, 500)
    x["gate"][:] = -0.5
    x["key"][:] = 0
    x["key"][..., 0] = 1
    x["beta"][:] = 1 + math.exp(0.5)  # exp(-0.5) (1 - beta) is -1
    found, expected = summary_of(device, x)[..., 64, 0], transitions(x)[..., 0, 0]
    assert expected.abs().min() > 0.9
    assert (found / expected - 1).abs().max() < 0.2  # every chunk rounds a state that does not decay


@pytest.mark.parametrize("what", ["key", "beta", "gate"])
def test_nan_in_a_tail_is_seen(what: str, device: Device, seed: int) -> None:
    x = mixed(seed, 200)
    x[what][:, 190] = torch.nan
    assert summary_of(device, x)[..., :64, :].isnan().any(-1).any(-1).all()


def test_packed_sequences_have_the_bits_that_they_have_alone(device: Device, seed: int) -> None:
    lengths = [70, 0, LONG, 1]
    x = make_packed_gdn_inputs(lengths, seed=seed, gate_range=(-2.0, -1.0), **SIZES)
    x["gate"][..., 0] *= 1e-4
    found, first = summary_of(device, x), 0
    for n, length in enumerate(lengths):
        alone = {name: t[None, first : first + length] for name, t in x.items() if name not in ("cu_seqlens", "state")}
        if length:
            assert torch.equal(found[n : n + 1], summary_of(device, alone)), n
        first += length
    assert torch.equal(found[1], torch.cat([torch.zeros(64, 64), torch.eye(64)]).expand(2, -1, -1))


def test_sequences_that_overlap_have_fewer_segments(device: Device, seed: int) -> None:
    """There is room for the segments of sequences that do not overlap."""
    x = make_packed_gdn_inputs([LONG], seed=seed, gate_range=(-2e-4, -1e-4), **SIZES)
    alone = summary_of(device, x)
    x["cu_seqlens"] = torch.tensor([0, LONG] * device.size(2, 9))
    found = summary_of(device, x)
    assert all(rel_rms(each, alone[0]) < BOUND for each in found[::2])
