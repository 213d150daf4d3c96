"""Calls of chunked_forward with gradients in the emulator, as GPUs before Hopper run them: what the kernels of the backward
leave out, strides, and a forward in the bits of decode. test_gradients.py has their accuracy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from emulated import emulated
from gradient_cases import RAW, GradientCase, drawn, error, gradients_of, oracle, with_leaves
from torch import Tensor

from gdn_cuda import chunked_forward, fused_decode

A100 = {"capability": 80, "multiprocessors": 108, "shared_bytes": 163 << 10}
CASE = GradientCase(lengths=(70, 70), heads=(1, 2), dk=32, dv=32)
PACKED = GradientCase(lengths=(66, 0, 5), heads=(2, 4), dk=32, dv=32)
BF16 = torch.bfloat16


def kernels(launched: Any) -> set[str]:
    return {name.partition("{")[0] for name in launched()}


@pytest.mark.parametrize("options", [{}, {"beta_is_logit": True}])
def test_gradients_of_values_and_states_need_one_pass(options: dict[str, Any], seed: int) -> None:
    case = replace(CASE, beta="zeros", options=options)
    x, grads = drawn(case, seed, BF16)
    if options:
        x["beta"][:, ::3] = -torch.inf
    with emulated(**A100):
        wanted = gradients_of(chunked_forward, x, grads)
    leaves = with_leaves(x, "value", "state")
    with emulated(**A100) as launched:
        found = torch.autograd.grad(chunked_forward(**leaves), [leaves["value"], leaves["state"]], grads)
    assert "gdn/backward_mma_states" in kernels(launched)
    assert kernels(launched).isdisjoint({"gdn/backward_mma_gradients", "gdn/chunk_gates_backward"})
    assert torch.equal(found[0], wanted["value"]) and torch.equal(found[1], wanted["state"])
    is_zero = x["beta"] == (-torch.inf if options else 0)
    assert is_zero.any() and not found[0][is_zero].any()


def test_the_sum_of_the_output(seed: int) -> None:
    """Its gradient is one number, expanded: no rows to load in vectors."""
    x, grads = drawn(CASE, seed, BF16)
    ones = torch.ones(()).bfloat16().expand_as(grads[0])
    with emulated(**A100):
        found = gradients_of(chunked_forward, x, (ones, None))
    wanted = oracle(x, (ones, None))
    assert all(error(found[name], wanted[name]) < 8e-3 for name in found)


def test_strided_gradients(seed: int) -> None:
    x, grads = drawn(PACKED, seed, BF16)
    with emulated(**A100):
        wanted = gradients_of(chunked_forward, x, grads)
        for given in (
            (grads[0].mT.contiguous().mT, grads[1].mT.contiguous().mT),
            tuple(torch.stack([g] * 2, -1)[..., 0] for g in grads),
        ):
            found = gradients_of(chunked_forward, x, given)
            assert all(torch.equal(found[name], wanted[name]) for name in found)


def test_more_query_heads_than_value_heads(seed: int) -> None:
    x, grads = drawn(replace(CASE, heads=(4, 4)), seed, BF16)
    x["key"], x["value"] = x["key"][:, :, :2].contiguous(), x["value"][:, :, :2].contiguous()
    wanted = oracle(x, grads)
    with emulated(**A100) as launched:
        found = gradients_of(chunked_forward, x, grads)
    assert "gdn/backward_mma_gradients" in kernels(launched)
    for name, gradient in found.items():
        assert gradient.shape == x[name].shape and error(gradient, wanted[name]) < 8e-3, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sequences_that_start_without_their_state(dtype: torch.dtype, seed: int) -> None:
    x, grads = drawn(CASE, seed, BF16)
    has = torch.tensor([False, True])
    x["state"] = x["state"].to(dtype).masked_fill(~has.view(-1, 1, 1, 1), torch.nan)
    zeroed = x | {"state": x["state"].nan_to_num(0)}
    with emulated(**A100):
        wanted = gradients_of(chunked_forward, zeroed, grads)
        found = gradients_of(chunked_forward, x | {"has_initial_state": has}, grads)
    wanted["state"] = wanted["state"] * has.view(-1, 1, 1, 1)
    assert all(torch.equal(found[name], wanted[name]) for name in found)


@pytest.mark.parametrize("options", [{}, RAW])
def test_tokens_of_no_sequence_have_gradients_of_zero(options: dict[str, Any], seed: int) -> None:
    """Whatever they are, and whatever the gradient of their outputs is: results are NaN before they are written."""
    x, grads = drawn(replace(PACKED, options=options), seed, BF16)
    tokens, rows = x["query"].shape[0], ("query", "key", "value", "beta", "gate")
    longer = x | {name: torch.cat([x[name], torch.full_like(x[name][:7], torch.nan)])[None] for name in rows}
    out = torch.cat([grads[0], torch.full_like(grads[0][:7], torch.nan)])[None]
    with emulated(**A100):
        wanted, found = gradients_of(chunked_forward, x, grads), gradients_of(chunked_forward, longer, (out, grads[1]))
    for name in found:
        mine = found[name][0] if name in rows else found[name]
        assert torch.equal(mine[:tokens], wanted[name]) and not mine[tokens:].any(), name


@pytest.mark.parametrize("name", ["query", "key", "value", "beta", "gate", "state", "grad_out", "grad_final_state"])
def test_others_keep_their_bits_beside_values_that_are_not_finite(name: str, seed: int) -> None:
    x, grads = drawn(PACKED, seed, BF16)
    given = x | {"grad_out": grads[0], "grad_final_state": grads[1]}
    bad = given[name].clone()
    bad[(0, 0, 3, 5) if name.endswith("state") else (9, 0)] = torch.nan
    given[name] = bad
    with emulated(**A100):
        wanted = gradients_of(chunked_forward, x, grads)
        arguments = {k: y for k, y in given.items() if not k.startswith("grad_")}
        found = gradients_of(chunked_forward, arguments, (given["grad_out"], given["grad_final_state"]))
    for each in found:
        first = (0, slice(2)) if each == "state" else (slice(66), slice(1 if each in ("query", "key") else 2))
        for gradient in (found[each], wanted[each]):
            gradient[first] = 0
        assert torch.equal(found[each], wanted[each]), each


# ---- Forward by token


def decoded(x: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Token after token by fused_decode, from and to a pool."""
    pool, outputs = x["state"].clone(), []
    for t in range(x["query"].shape[1]):
        rows = {name: x[name][:, t : t + 1].contiguous() for name in ("query", "key", "value")}
        gates = {"a": x["gate"][:, t : t + 1].contiguous(), "b": x["beta"][:, t : t + 1].contiguous()}
        outputs.append(fused_decode(**rows, **gates, A_log=x["A_log"], dt_bias=x["dt_bias"], state_pool=pool))
    return torch.cat(outputs, 1), pool


@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_recurrent_is_in_the_bits_of_decode(tokens: int, seed: int) -> None:
    case = GradientCase((tokens,) * 2, (1, 2), 64, 64, options=RAW)
    x, grads = drawn(case, seed, BF16)
    leaves = with_leaves(x, "value")
    with emulated(**A100) as launched:
        out, last = decoded(x)
        assert kernels(launched) == {"gdn/decode"}
        for given in (x, leaves):
            found = chunked_forward(**given, forward="recurrent")
            assert torch.equal(found[0], out) and torch.equal(found[1], last)
        (by_token,) = torch.autograd.grad(found, leaves["value"], grads)
        (by_chunk,) = torch.autograd.grad(chunked_forward(**leaves), leaves["value"], grads)
    assert torch.equal(by_token, by_chunk)
