"""gdn_cuda.integrations.sglang: its kernel class of Kimi Delta Attention, over a fake of the class that it replaces, in the
calls that engine_calls has recorded, compared with the recurrence in fp64."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import fake_hosts
import pytest
import torch
from engine_calls import (
    OUTPUT,
    STATE,
    Call,
    calls,
    channel_gates,
    identity,
    l2norm,
    poison,
    prefill_state,
    recurrence,
    untouched,
)
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import integrations
from gdn_cuda.integrations import sglang as integration

CALLS = calls("sglang_kda")
H, K, V = 2, 16, 16


@pytest.fixture
def device() -> str:
    return "cpu"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A fake of the module with SGLang's class, with gdn_cuda installed."""
    modules = fake_hosts.make(monkeypatch, integration.HOST)
    layer = modules[integration._KDA_LAYER]
    layer.TritonKDAKernel = modules[integration._KDA_MODULE].TritonKDAKernel
    integrations.reset_calls()
    integration.install()
    yield SimpleNamespace(layer=layer, theirs=layer.TritonKDAKernel.__mro__[1])
    integration.uninstall()
    assert layer.TritonKDAKernel is modules[integration._KDA_MODULE].TritonKDAKernel


@pytest.fixture
def kernel(host: Any) -> Any:
    return host.layer.TritonKDAKernel()


def named(call: str) -> list[Call]:
    return [each for each in CALLS if each.call == call]


def run(kernel: Any, call: Call, x: dict[str, Any]) -> Any:
    result = getattr(kernel, call.call)(**x)
    assert integrations.calls() == {f"sglang.kda_{call.call}": {"gdn_cuda": 1}}
    return result


def valid(x: dict[str, Any]) -> list[int]:
    return [slot for slot in x["cache_indices"].tolist() if slot >= 0]


def gates(x: dict[str, Any], a: str, b: str, tokens: int) -> tuple[Tensor, Tensor]:
    """(g, beta) of a call, (tokens, …), in fp64."""
    raw, beta = x[a].reshape(tokens, H, K), x[b].reshape(tokens, H).double()
    if x["A_log"] is None:
        return raw.double(), beta
    return channel_gates(raw, x["A_log"], x["dt_bias"], x["lower_bound"]), beta.sigmoid()


@pytest.mark.parametrize("call", named("packed_decode") + named("decode"), ids=identity)
def test_decode(call: Call, kernel: Any, device: str, rng: torch.Generator) -> None:
    x = call.arguments(rng, device)
    pool = x["ssm_states"]
    poison(pool, valid(x))
    before = pool.clone()
    output = run(kernel, call, x)
    if "mixed_qkv" in x:
        q, k, v = (y.unflatten(1, (H, -1)) for y in x["mixed_qkv"].chunk(3, 1))
    else:
        q, k, v = x["q"][0], x["k"][0], x["v"][0]
    g, beta = gates(x, "a", "b", q.shape[0])
    assert output.shape == (1, *v.shape) and untouched(before, pool, valid(x))
    for n, slot in enumerate(x["cache_indices"].tolist()):
        if slot < 0:
            assert not output[0, n].any()
            continue
        row = slice(n, n + 1)
        expected, states = recurrence(l2norm(q[row]), l2norm(k[row]), v[row], g[row], beta[row], before[slot])
        assert rel_rms(output[0, row], expected) < OUTPUT
        assert rel_rms(pool[slot], states[-1]) < STATE[pool.dtype]


@pytest.mark.parametrize("call", named("extend"), ids=identity)
def test_extend(call: Call, kernel: Any, device: str, rng: torch.Generator) -> None:
    x = call.arguments(rng, device)
    pool, offsets, slots = x["ssm_states"], x["query_start_loc"].tolist(), x["cache_indices"].tolist()
    poison(pool, valid(x))
    if x.get("track_state") is not None:
        x["track_state"].fill_(7)
    before = pool.clone()
    found = run(kernel, call, x)
    output, between = found if x.get("return_intermediate_states") else (found, None)
    lengths = [end - start for start, end in pairwise(offsets)]
    written = [slot for slot, length in zip(slots, lengths, strict=True) if length and slot >= 0]
    assert output.shape == x["v"].shape and untouched(before, pool, written)
    g, beta = gates(x | {"A_log": x.get("A_log")}, "g", "beta", offsets[-1])
    row, bound = 0, prefill_state(pool.dtype, device)
    tracked = [] if x.get("track_state") is None else x["track_chunk_idx"].tolist()
    for n, (start, end) in enumerate(pairwise(offsets)):
        span, chunks = slice(start, end), -(-(end - start) // 64)
        if slots[n] < 0:
            assert not output[0, span].any()
            row += chunks
            continue
        given = (y[0, span] for y in (l2norm(x["q"]), l2norm(x["k"]), x["v"]))
        expected, states = recurrence(*given, g[span], beta[span], before[slots[n]])
        starts = torch.cat([before[slots[n]][None].double(), states])[: 64 * chunks : 64]
        if chunks:
            assert rel_rms(output[0, span], expected) < OUTPUT and rel_rms(pool[slots[n]], states[-1]) < bound
        if between is not None and chunks:
            rounded = max(bound, 4e-3 if between.dtype == torch.bfloat16 else 0)
            assert rel_rms(between[0, row : row + chunks], starts) < rounded
        if tracked and 0 <= tracked[n] < chunks:
            assert rel_rms(x["track_state"][n], starts[tracked[n]]) < bound
        elif tracked:
            assert (x["track_state"][n] == 7).all()
        row += chunks


@pytest.mark.parametrize("call", named("target_verify"), ids=identity)
def test_target_verify(call: Call, kernel: Any, device: str, rng: torch.Generator) -> None:
    x = call.arguments(rng, device)
    pool, buffer, offsets = x["ssm_states"], x["intermediate_states_buffer"], x["query_start_loc"].tolist()
    slots, rows = x["cache_indices"].tolist()[: len(offsets) - 1], x["intermediate_state_indices"].tolist()
    poison(pool, [slot for slot in slots if slot >= 0])
    poison(buffer, [])
    before, buffer_before = pool.clone(), buffer.clone()
    output = run(kernel, call, x)
    assert output.shape == x["v"].shape and untouched(before, pool, [])
    assert untouched(buffer_before, buffer, [rows[n] for n, slot in enumerate(slots) if slot >= 0])
    g, beta = gates(x, "a", "b", offsets[-1])
    for n, slot in enumerate(slots):
        span = slice(offsets[n], offsets[n + 1])
        if slot < 0:
            assert not output[0, span].any()
            continue
        given = (y[0, span] for y in (l2norm(x["q"]), l2norm(x["k"]), x["v"]))
        expected, states = recurrence(*given, g[span], beta[span], before[slot])
        steps = offsets[n + 1] - offsets[n]
        if steps:
            assert rel_rms(output[0, span], expected) < OUTPUT
            assert rel_rms(buffer[rows[n], :steps], states) < STATE[buffer.dtype]
        assert buffer[rows[n], steps:].isnan().all()


def test_a_tree_of_drafts(kernel: Any, device: str, rng: torch.Generator) -> None:
    call = named("target_verify")[0]
    parents = [[7, 0, 0], [0, 0, 1], [-9, 99, 5]]
    x = call.arguments(rng, device) | {"retrieve_parent_token": torch.tensor(parents, device=device)}
    before, slots = x["ssm_states"].clone(), x["cache_indices"].tolist()
    output = run(kernel, call, x)
    g, beta = gates(x, "a", "b", 9)
    for n in range(2):
        states: list[Tensor] = []
        for t in range(3):
            row = slice(3 * n + t, 3 * n + t + 1)
            start = states[parents[n][t]] if t else before[slots[n]]
            given = (y[0, row] for y in (l2norm(x["q"]), l2norm(x["k"]), x["v"]))
            expected, after = recurrence(*given, g[row], beta[row], start)
            states.append(after[-1])
            assert rel_rms(output[0, row], expected) < OUTPUT


# ---- Calls that SGLang's own kernels run; install


@pytest.mark.parametrize(
    ("name", "more", "reason"),
    [
        ("target_verify", {"retrieve_parent_token": torch.zeros(3, 3), "cache_steps": 4}, "a tree of drafts in sequences of"),
        ("target_verify", {"cache_ring": True}, "ReplaySSM"),
        ("packed_decode", {"replayssm_write_pos": torch.zeros(5), "lower_bound": None}, "ReplaySSM"),
        ("decode", {"cache_indices": torch.zeros(2, dtype=torch.int32)}, "more than one token a sequence"),
        ("packed_decode", {"a": torch.zeros(3, 4)}, "a or b has another size"),
        ("extend", {"g": torch.zeros(1, 199, H)}, "chunked_forward: "),
    ],
)
def test_declined_calls_reach_the_class_that_was_replaced(
    name: str, more: dict[str, Any], reason: str, host: Any, kernel: Any
) -> None:
    x = named(name)[0].arguments(torch.Generator().manual_seed(0)) | more
    assert getattr(kernel, name)(**x) == "host" and getattr(host.theirs, name).reached == [name]
    (found,) = integrations.calls()[f"sglang.kda_{name}"]
    assert found.startswith(reason)


def test_with_a_bound_rings_are_not_used(kernel: Any, rng: torch.Generator) -> None:
    (call, *_) = named("packed_decode")
    run(kernel, call, call.arguments(rng) | {"replayssm_write_pos": torch.zeros(5), "lower_bound": -5.0})


def test_the_flags_of_the_class(host: Any, kernel: Any) -> None:
    assert isinstance(kernel, host.theirs) and kernel.supports_packed_decode and kernel.supports_packed_decode_safe_gate
    assert kernel.supports_track_state_snapshot and not getattr(kernel, "uses_state_checkpoints", False)


def test_the_convolutions_of_the_layer(host: Any, rng: torch.Generator) -> None:
    x, weight = torch.randn(9, 12, generator=rng).T, torch.randn(12, 4, generator=rng)
    pool = torch.randn(3, 3, 12, generator=rng).transpose(1, 2)  # as the layer keeps it
    offsets, slots = torch.tensor([0, 5, 9], dtype=torch.int32), torch.tensor([2, 0], dtype=torch.int32)
    before, has = pool.clone(), torch.tensor([True, False])
    found = host.layer.causal_conv1d_fn(
        x,
        weight,
        None,
        activation="silu",
        conv_states=pool,
        has_initial_state=has,
        cache_indices=slots,
        query_start_loc=offsets,
        seq_lens_cpu=[5, 4],
    )
    history = torch.cat([before[2], x[:, :5]], 1)
    expected = torch.nn.functional.silu((history.unfold(1, 4, 1) * weight[:, None]).sum(2))
    assert rel_rms(found[:, :5], expected) < 1e-6 and torch.equal(pool[2], x[:, 2:5])
    step = host.layer.causal_conv1d_update(x.T[:1].contiguous(), pool, weight, None, "silu", conv_state_indices=slots[:1])
    history = torch.cat([x[:, 2:5], x[:, :1]], 1)
    assert rel_rms(step[0], torch.nn.functional.silu((history * weight).sum(1))) < 1e-6
    drafts = {"intermediate_conv_window": torch.zeros(1)}
    assert host.layer.causal_conv1d_update(x.T[:1], pool, weight, None, "silu", **drafts) == "host"
    counts = integrations.calls()
    assert counts["sglang.causal_conv1d_fn"] == {"gdn_cuda": 1} and counts["sglang.causal_conv1d_update"]["gdn_cuda"] == 1
