"""The gradient of the state before a sequence, computed alone: on Hopper from the tail where the sequence begins, against the
literal recurrence, backward in time, in fp64."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from devices import Device
from helpers import rel_rms
from torch import Tensor

from gdn_cuda.gdn.inputs import make_gdn_inputs, make_packed_gdn_inputs
from gdn_cuda.gdn.training import _given

BOUND = 5e-3
LONG = 64 * 48 + 5  # two segments, the last chunk not full
TAILS = tuple(f"gdn/summary_{name}" for name in ("gates", "tails", "keys", "segments", "fold"))
KERNELS = (*TAILS, "gdn/backward_prepare", "gdn/backward_chain")
SIZES: dict[str, Any] = {"Hk": 1, "Hv": 2, "dk": 64, "dv": 64, "dtype": torch.bfloat16}
ROWS = ("query", "key", "value", "beta", "gate", "grad_out")


def drawn(seed: int, T: int = LONG, **sizes: Any) -> dict[str, Any]:
    """The last head decays by half in a few tokens, the first in thousands."""
    x = make_gdn_inputs(T=T, seed=seed, gate_range=(-2.0, -1.0), **SIZES | {"B": 1} | sizes)
    x["gate"][..., 0] *= 1e-4
    return with_cotangents(x, seed)


def with_cotangents(x: dict[str, Any], seed: int) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(seed + 1)
    state = x.pop("state")
    own = {"grad_out": torch.randn(x["value"].shape, generator=rng).to(x["value"].dtype)}
    return x | own | {"grad_final_state": torch.randn(state.shape, generator=rng), "state": torch.zeros(state.shape)}


def found_alone(device: Device, x: dict[str, Any], *kernels: str, **options: Any) -> Tensor:
    there = {name: t.to(device.name) if isinstance(t, Tensor) else t for name, t in x.items()}
    given = {"only_value_and_state": False, "only_state": True, "checkpoints": None} | there | options
    operator = torch.ops.gdn_cuda.gated_delta_rule_backward
    call = _given(dict.fromkeys(("grad_out", "grad_final_state")) | given)
    with device.only(*(kernels or KERNELS)):
        results = operator(*(call[argument.name] for argument in operator.default._schema.arguments))
        found = results[5].cpu()
    assert all(result.numel() == 0 for i, result in enumerate(results) if i != 5)
    return found


def literal(x: dict[str, Any], use_qk_l2norm: bool = False) -> Tensor:
    """E ← (E + scale dO qᵀ) exp(g) (I − β k kᵀ), from the last token to the first."""
    wide = {name: x[name].double() for name in ROWS}
    if "cu_seqlens" in x:
        ends = x["cu_seqlens"].tolist()
        spans = [{name: t[None, a:b] for name, t in wide.items()} for a, b in pairwise(ends)]
        last = x["grad_final_state"]
        parts = [literal(part | {"grad_final_state": last[n : n + 1]}, use_qk_l2norm) for n, part in enumerate(spans)]
        return torch.cat(parts)
    heads = wide["value"].shape[-2]
    q, k = (wide[name].repeat_interleave(heads // wide[name].shape[-2], -2) for name in ("query", "key"))
    if use_qk_l2norm:
        q, k = (y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
    E = x["grad_final_state"].double()
    for t in reversed(range(q.shape[1])):
        E = E + q.shape[-1] ** -0.5 * wide["grad_out"][:, t, :, :, None] * q[:, t, :, None, :]
        decay, beta = wide["gate"][:, t].exp()[..., None, None], wide["beta"][:, t, :, None, None]
        erased = (E @ k[:, t, :, :, None]) * k[:, t, :, None, :]
        E = torch.where(decay == 0, 0.0, decay * (E - beta * erased))
    return E


@pytest.mark.parametrize("norm", [False, True], ids=["as they are", "norms"])
@pytest.mark.parametrize("last", [True, False], ids=["gradient of the last state", "none"])
def test_a_long_tail_in_segments_beside_a_short_one(norm: bool, last: bool, device: Device, seed: int) -> None:
    x = drawn(seed)
    if not last:
        x["grad_final_state"] = torch.zeros_like(x["grad_final_state"])
    given = x if last else x | {"grad_final_state": None}
    assert rel_rms(found_alone(device, given, use_qk_l2norm=norm), literal(x, norm)) < BOUND


@pytest.mark.parametrize("T", [1, 64, 70])
@pytest.mark.parametrize("dk, dv", [(128, 128), (96, 192), (64, 8), (40, 72), (8, 136)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sizes(T: int, dk: int, dv: int, dtype: torch.dtype, device: Device, seed: int) -> None:
    x = drawn(seed, T, B=2, dk=dk, dv=dv, dtype=dtype)
    x["gate"][..., 1] *= 1e-2
    assert rel_rms(found_alone(device, x), literal(x)) < (BOUND if dk > 8 else 2 * BOUND)  # eight roundings average less


def test_what_comes_after_a_tail_is_not_seen(device: Device, seed: int) -> None:
    x = drawn(seed, 700)
    x["gate"][..., 0] = -1.0
    expected = found_alone(device, x)
    x["grad_out"][:, 300], x["key"][:, 400], x["query"][:, 500], x["gate"][:, 600] = torch.nan, torch.inf, torch.nan, torch.nan
    x["grad_final_state"][:] = torch.nan
    assert torch.equal(found_alone(device, x), expected)


@pytest.mark.parametrize("gate", [-torch.inf, -200.0], ids=["reset", "strong gate"])
@pytest.mark.parametrize("at", [0, 100, 699])
def test_resets(gate: float, at: int, device: Device, seed: int) -> None:
    """Nothing at or after the reset is multiplied by anything but 0."""
    x = drawn(seed, 700)
    x["gate"][..., 1] *= 1e-4
    x["gate"][:, at] = gate
    x["grad_out"][:, at // 64 * 64 + 64 :] = torch.nan  # in the reset's own chunk 0 times NaN would be NaN
    found = found_alone(device, x)
    x["grad_out"][:, at:] = 0
    assert rel_rms(found, literal(x)) < BOUND if at else not found.any()


def test_keys_that_let_a_state_grow(device: Device, seed: int) -> None:
    """By gates alone the first two chunks count; each token takes a direction of the state back to where it was."""
    x = drawn(seed, 500)
    x["gate"][:] = -0.5
    x["key"][:] = 0
    x["key"][..., 0] = 1
    x["beta"][:] = 1 + math.exp(0.5)  # exp(-0.5) (1 - beta) is -1
    x["grad_out"][:] = 0
    found, expected = found_alone(device, x)[..., 0], literal(x)[..., 0]
    assert expected.norm() > 0.9 * x["grad_final_state"][..., 0].norm()
    assert rel_rms(found, expected) < 0.1  # every chunk rounds a gradient that does not decay


@pytest.mark.parametrize("what", ["key", "beta", "gate", "query", "grad_out"])
def test_nan_in_a_tail_is_seen(what: str, device: Device, seed: int) -> None:
    x = drawn(seed, 200)
    x[what][:, 10] = torch.nan
    assert found_alone(device, x).isnan().any(-1).any(-1).all()


def test_packed_sequences_have_the_bits_that_they_have_alone(device: Device, seed: int) -> None:
    lengths = [70, 0, LONG, 1]
    x = make_packed_gdn_inputs(lengths, seed=seed, gate_range=(-2.0, -1.0), **SIZES)
    x["gate"][..., 0] *= 1e-4
    x = with_cotangents(x, seed)
    found, first = found_alone(device, x), 0
    for n, length in enumerate(lengths):
        states = {name: x[name][n : n + 1] for name in ("state", "grad_final_state")}
        alone = {name: x[name][None, first : first + length] for name in ROWS} | states
        if length:
            assert torch.equal(found[n : n + 1], found_alone(device, alone)), n
        first += length
    assert torch.equal(found[1], x["grad_final_state"][1])
    assert rel_rms(found, literal(x)) < BOUND


def test_key_heads_at_a_time_where_the_workspace_is_small(device: Device, seed: int) -> None:
    """The same bits; where it is smaller still, the chain through all tokens, by windows from checkpoint to checkpoint."""
    x = drawn(seed, 2100, Hk=2, Hv=4)
    at_once = found_alone(device, x)
    key_head = 2 * 33 * 30_000  # 33 chunks of two value heads
    assert torch.equal(found_alone(device, x, workspace=key_head), at_once)
    checkpoints = torch.zeros(2, 4, 64, 64, device=device.name)
    smaller = found_alone(device, x, *KERNELS[-2:], "gdn/backward_links", workspace=1_500_000, checkpoints=checkpoints)
    assert rel_rms(smaller, literal(x)) < BOUND


def test_more_value_heads_and_gates_of_a_layer(device: Device, seed: int) -> None:
    x = drawn(seed, 300, Hk=1, Hv=3)
    raw = {"A_log": torch.tensor([-4.0, 0.0, 2.0]), "dt_bias": torch.tensor([-3.0, 0.0, 1.0]), "beta_is_logit": True}
    logits = {"gate": torch.randn(1, 300, 3).bfloat16(), "beta": torch.randn(1, 300, 3).bfloat16()}
    by_hand = {
        "gate": -raw["A_log"].exp() * torch.nn.functional.softplus(logits["gate"].double() + raw["dt_bias"]),  # type: ignore[attr-defined]
        "beta": logits["beta"].double().sigmoid(),
    }
    found = found_alone(device, x | logits | raw, *KERNELS, "gdn/chunk_gates", use_qk_l2norm=True)
    assert rel_rms(found, literal(x | by_hand, True)) < BOUND
