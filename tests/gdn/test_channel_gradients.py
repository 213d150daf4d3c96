"""Gradients of chunked_forward with a gate for every channel of the key, on CPUs, against autograd of the literal recurrence
in fp64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from channel_gradient_cases import CASES, SHAPE, ChannelCase, drawn, smallest_errors
from gradient_cases import error, gradients_of, oracle, with_leaves
from torch.autograd import gradcheck

from gdn_cuda import chunked_forward


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_the_recurrence(case: ChannelCase, seed: int) -> None:
    for dtype, bound in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        x, grads = drawn(case, seed, dtype)
        found, wanted = gradients_of(chunked_forward, x, grads), oracle(x, grads)
        for name, gradient in found.items():
            assert gradient.dtype == x[name].dtype and gradient.shape == x[name].shape
            assert error(gradient, wanted[name]) < bound, (name, dtype)
        if case.gates in ("channel reset", "token reset", "linear"):
            is_reset = x["gate"] == (0 if case.gates == "linear" else -torch.inf)
            assert is_reset.any() and not found["gate"][is_reset].any()


@pytest.mark.parametrize("gates", ["heavy", "strong", "edge", "bounded"])
def test_small_gradients_of_gates_are_right_in_relative_terms(gates: str, seed: int) -> None:
    x, grads = drawn(ChannelCase(SHAPE, gates), seed, torch.float32)
    found, wanted = gradients_of(chunked_forward, x, grads), oracle(x, grads)
    assert smallest_errors(found["gate"], wanted["gate"]) < 1e-3


@pytest.mark.parametrize("gates", ["init", "softplus", "bounded raw", "linear"])
@pytest.mark.parametrize("lengths", [(18,), (17, 0, 2)], ids=["padded", "packed"])
def test_gradcheck(gates: str, lengths: tuple[int, ...], seed: int) -> None:
    case = ChannelCase(replace(SHAPE, lengths=lengths, dk=3, dv=2, options={"use_qk_l2norm": True}), gates)
    x, _ = drawn(case, seed, torch.float64)
    if gates == "linear":
        x["gate"] = x["gate"].clamp(min=0.5)
    names = [name for name in ("query", "key", "value", "beta", "gate", "state", "A_log", "dt_bias") if name in x]
    x = with_leaves(x, *names)

    def run(*leaves: Any) -> Any:
        return chunked_forward(**(x | dict(zip(names, leaves, strict=True))))

    assert gradcheck(run, [x[name] for name in names], atol=1e-6)


def test_nan_in_a_head_stays_there(seed: int) -> None:
    x, grads = drawn(ChannelCase(replace(SHAPE, heads=(2, 4)), "NaN in a head"), seed, torch.float32)
    clean = x | {"gate": x["gate"].nan_to_num(0.0)}
    found, wanted = gradients_of(chunked_forward, x, grads), gradients_of(chunked_forward, clean, grads)
    for name, head in (("query", -2), ("key", -2), ("value", -2), ("gate", -2), ("beta", -1), ("state", 1)):
        heads = x[name].shape[head]
        poisoned = heads // 2 if name in ("query", "key") else heads - 1  # key head 1 has value heads 2 and 3
        assert torch.equal(found[name].narrow(head, 0, poisoned), wanted[name].narrow(head, 0, poisoned)), name
        assert not found[name].isfinite().all()


def test_a_flat_bias_has_a_flat_gradient(seed: int) -> None:
    x, grads = drawn(ChannelCase(SHAPE, "softplus"), seed, torch.float32)
    wanted = gradients_of(chunked_forward, x, grads)
    found = gradients_of(chunked_forward, x | {"dt_bias": x["dt_bias"].flatten()}, grads)
    assert torch.equal(found["dt_bias"], wanted["dt_bias"].flatten())


def test_more_query_heads_than_value_heads(seed: int) -> None:
    x, grads = drawn(ChannelCase(SHAPE, "bounded"), seed, torch.float64)
    x["query"] = torch.cat([x["query"], x["query"] + 1], -2)
    x["key"] = x["key"][..., :1, :]
    x["value"], grads = x["value"][..., :1, :], (grads[0], grads[1])
    found, wanted = gradients_of(chunked_forward, x, grads), oracle(x, grads)
    for name, gradient in found.items():
        assert gradient.shape == x[name].shape and error(gradient, wanted[name]) < 1e-10, name


def test_forward_by_token(seed: int) -> None:
    x, grads = drawn(ChannelCase(SHAPE, "bounded raw"), seed, torch.float64)
    found, wanted = gradients_of(chunked_forward, x | {"forward": "recurrent"}, grads), oracle(x, grads)
    assert all(error(found[name], wanted[name]) < 1e-10 for name in found)


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("lower_bound", {"lower_bound": 1.0}),
        ("gate", {"gate": torch.zeros(1, 18, 2, 5)}),
        ("dt_bias", {"dt_bias": torch.zeros(7), "lower_bound": -5.0}),
        ("dt_bias", {"dt_bias": torch.zeros(2, 24)}),
        ("gate_is_linear", {"gate_is_linear": True, "lower_bound": -5.0}),
        ("checkpoint_every", {"checkpoint_every": 64}),
    ],
)
def test_wrong_arguments_are_refused_by_name(name: str, wrong: dict[str, Any], seed: int) -> None:
    x, _ = drawn(ChannelCase(replace(SHAPE, lengths=(18,))), seed, torch.float32)
    with pytest.raises(ValueError, match=f"chunked_forward: {name}: expected"):
        chunked_forward(**(with_leaves(x, "query") | wrong))
