"""chunked_summary with a gate for every channel of the key, on CPU tensors, against the recurrence in fp64."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from helpers import rel_rms
from kda_cases import BETAS, GATES, KEYS, decays, drawn_keys, literal, log_decays
from torch import Tensor

import gdn_cuda

DK, DV, HEADS = 8, 5, 4
Given = dict[str, Tensor]


def drawn(T: int, seed: int, gates: str = "init", keys: str = "random", beta: float = 1.0, B: int = 2) -> Given:
    rng = torch.Generator().manual_seed(seed + T)
    return {
        "key": drawn_keys(keys, (B, T, HEADS // 2, DK), rng).double(),
        "value": torch.randn(B, T, HEADS, DV, generator=rng).double(),
        "beta": beta * torch.rand(B, T, HEADS, generator=rng).double(),
        "gate": log_decays(gates, (B, T, HEADS, DK), rng).double(),
    }


def exact(x: Given, decay: Tensor, state: Tensor | None = None, norm: bool = False) -> Tensor:
    """L, from the state or zeros, above M, the last state from the identity without values."""
    rows = x["key"], x["key"]
    none = x["value"].new_zeros(*x["value"].shape[:-1], DK)
    identity = torch.eye(DK).double().expand(none.shape[0], HEADS, DK, DK)
    if x["value"].shape[1] == 0:
        start = none.new_zeros(none.shape[0], HEADS, DV, DK) if state is None else state
        return torch.cat([start, identity], -2)
    _, additions = literal(*rows, x["value"], x["beta"], decay, state, norm=norm)
    _, transitions = literal(*rows, none, x["beta"], decay, identity, norm=norm)
    return torch.cat([additions[:, -1], transitions[:, -1]], -2)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("gates", [kind for kind in GATES if kind != "NaN in a head"])
def test_hostile_values(gates: str, keys: str, beta: float, seed: int) -> None:
    x = drawn(70, seed, gates, keys, beta)
    found, wanted = gdn_cuda.chunked_summary(**x), exact(x, decays(x["gate"]))
    assert found.dtype == torch.float64 and found.shape == (2, HEADS, DV + DK, DK)
    assert rel_rms(found, wanted) < 1e-12
    if gates == "token reset":
        assert not found[..., DV:, :].any()


def test_nan_stays_in_its_head(seed: int) -> None:
    x = drawn(20, seed, "NaN in a head")
    found, wanted = gdn_cuda.chunked_summary(**x), exact(x, decays(x["gate"]))
    assert found[:, -1].isnan().any() and rel_rms(found[:, :-1], wanted[:, :-1]) < 1e-12


RAW: dict[str, dict[str, Any]] = {
    "softplus": {"A_log": True},
    "bounded": {"A_log": True, "lower_bound": -5.0},
    "bound alone": {"lower_bound": -0.5},
    "linear": {"gate_is_linear": True},
}


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("form", RAW)
def test_gates_of_a_layer(form: str, flat: bool, seed: int) -> None:
    x, options, rng = drawn(40, seed), dict(RAW[form]), torch.Generator().manual_seed(seed)
    x["gate"] = torch.randn(x["gate"].shape, generator=rng).double()
    if form == "linear":
        x["gate"] = x["gate"].sigmoid()
    else:
        options["dt_bias"] = torch.randn(HEADS, DK, generator=rng).double()
    if options.pop("A_log", False):
        options["A_log"] = torch.rand(HEADS, generator=rng).double()
    wanted = exact(x, decays(x["gate"], **options), norm=True)
    if flat and "dt_bias" in options:
        options["dt_bias"] = options["dt_bias"].flatten()
    assert rel_rms(gdn_cuda.chunked_summary(**x, **options, use_qk_l2norm=True), wanted) < 1e-12


@pytest.mark.parametrize("T", [0, 1, 65])
def test_from_a_state_without_a_transition(T: int, seed: int) -> None:
    x, state = drawn(T, seed), torch.randn(2, HEADS, DV, DK).double()
    found = gdn_cuda.chunked_summary(**x, state=state, transition=False)
    assert found.shape == state.shape
    assert rel_rms(found, exact(x, decays(x["gate"]), state)[..., :DV, :]) < 1e-12
    both = gdn_cuda.chunked_summary(**x, state=state)
    assert torch.equal(both[..., :DV, :], found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes_have_sums_in_fp32(dtype: torch.dtype, seed: int) -> None:
    x = drawn(70, seed)
    x = {name: t.to(dtype if name in ("key", "value") else torch.float32) for name, t in x.items()}
    found = gdn_cuda.chunked_summary(**x)
    assert found.dtype == torch.float32 and rel_rms(found, exact(x, decays(x["gate"]))) < 1e-5


def test_equal_channels_are_a_gate_of_the_head(seed: int) -> None:
    x = drawn(70, seed)
    by_head = x["gate"][..., 0]
    x["gate"] = by_head[..., None].expand(x["gate"].shape)
    assert rel_rms(gdn_cuda.chunked_summary(**x), gdn_cuda.chunked_summary(**x | {"gate": by_head})) < 1e-12


def test_packed_sequences_equal_each_sequence_alone(seed: int) -> None:
    lengths = [70, 0, 1, 9]
    x = {name: t[0] for name, t in drawn(sum(lengths), seed, "channel reset", B=1).items()}
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    found = gdn_cuda.chunked_summary(**x, cu_seqlens=offsets)
    for n, (first, last) in enumerate(pairwise(offsets.tolist())):
        alone = {name: t[None, first:last] for name, t in x.items()}
        assert rel_rms(found[n], exact(alone, decays(alone["gate"]))[0]) < 1e-12


@pytest.mark.parametrize("gates", ["init", "heavy", "channel reset", "token reset"])
def test_parts_folded_are_the_whole(gates: str, seed: int) -> None:
    """Parts of 64, 0, 1 and 35 tokens: the state before each, and the last one; and the gradient through their transposes."""
    x, state = drawn(100, seed, gates), torch.randn(2, HEADS, DV, DK).double()
    bounds = list(pairwise((0, 64, 64, 65, 100)))
    every = torch.stack([gdn_cuda.chunked_summary(**{name: t[:, a:b] for name, t in x.items()}) for a, b in bounds])
    _, states = literal(x["key"], x["key"], x["value"], x["beta"], decays(x["gate"]), state)
    additions, transitions = every[..., :DV, :], every[..., DV:, :]
    for parts, (_, last) in enumerate(bounds, 1):
        found = gdn_cuda.fold_states(state, additions[:parts], transitions[:parts])
        assert rel_rms(found, states[:, last - 1]) < 1e-12
    leaf, grad = state.clone().requires_grad_(), torch.randn(state.shape).double()
    (literal(x["key"], x["key"], x["value"], x["beta"], decays(x["gate"]), leaf)[1][:, -1] * grad).sum().backward()
    back = gdn_cuda.fold_states(grad, torch.zeros_like(additions), transitions, reverse=True)
    assert rel_rms(back, leaf.grad) < 1e-12


def test_infinities_before_a_reset_are_not_seen(seed: int) -> None:
    x = drawn(80, seed, "token reset")
    x["value"][:, 20], at = torch.inf, 40
    found = gdn_cuda.chunked_summary(**x)
    after = {name: t[:, at:] for name, t in x.items()}
    assert not found[..., DV:, :].any() and rel_rms(found, exact(after, decays(after["gate"]))) < 1e-12
