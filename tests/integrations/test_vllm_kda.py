"""gdn_cuda.integrations.vllm in layers of Kimi Delta Attention: the calls that engine_calls has recorded, through the modules
that the layers call, compared with the recurrence in fp64."""

from __future__ import annotations

import sys
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
from gdn_cuda.integrations import vllm as integration
from gdn_cuda.integrations import vllm_kda

CALLS = calls("vllm_kda")
MODULES = {"kimi": vllm_kda.KIMI, "k3": vllm_kda.K3, "glm": vllm_kda.GLM, "linear": vllm_kda.LINEAR}
NULL = 0
H, K, V = 2, 16, 16


@pytest.fixture
def device() -> str:
    return "cpu"


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Fakes of vLLM's modules, with gdn_cuda installed, by model."""
    modules = fake_hosts.make(monkeypatch, integration.HOST)
    integrations.reset_calls()
    integration.install()
    yield {name: modules[module] for name, module in MODULES.items()}
    integration.uninstall()


def named(*functions: str) -> list[Call]:
    return [each for each in CALLS if each.call.partition(".")[2] in functions]


def run(hosts: dict[str, Any], call: Call, x: dict[str, Any]) -> Any:
    model, _, name = call.call.partition(".")
    result = getattr(hosts[model], name)(**x)
    assert integrations.calls() == {f"vllm.{name}": {"gdn_cuda": 1}}
    return result


def gates(x: dict[str, Any], raw: bool = True) -> tuple[Tensor, Tensor]:
    """(g, beta) of a call, (1, T, …), in fp64."""
    bound = x["lower_bound"] if x.get("safe_gate", True) else None
    bias = next(x[name] for name in ("g_bias", "dt_bias") if name in x)
    g = channel_gates(x.get("raw_g", x.get("g")), x.get("A_log", x.get("a_log")), bias, bound)
    beta = x.get("raw_beta", x.get("beta")).double()
    return g, beta.sigmoid() if raw else beta


@pytest.mark.parametrize("call", named("chunk_kda_with_fused_gate"), ids=identity)
def test_prompts(call: Call, hosts: dict[str, Any], device: str, rng: torch.Generator) -> None:
    x = call.arguments(rng, device)
    before = x["initial_state"].clone()
    output, last = run(hosts, call, x)
    assert torch.equal(x["initial_state"], before) and last.dtype == torch.float32
    if "out" in x:
        assert output.data_ptr() == x["out"].data_ptr()
    g, beta = gates(x, raw="raw_beta" in x)
    check_prompts(x, g, beta, before, output, last, device)


def check_prompts(
    x: dict[str, Any], g: Tensor, beta: Tensor, initial: Tensor, output: Tensor, last: Tensor, device: str
) -> None:
    assert output.shape == x["v"].shape
    for n, (start, end) in enumerate(pairwise(x["cu_seqlens"].tolist())):
        given = (y[0, start:end] for y in (l2norm(x["q"]), l2norm(x["k"]), x["v"], g, beta))
        expected, states = recurrence(*given, initial[n])
        if start == end:
            assert torch.equal(last[n], initial[n].to(last.dtype))
            continue
        assert rel_rms(output[0, start:end], expected) < OUTPUT
        assert rel_rms(last[n], states[-1]) < prefill_state(last.dtype, device)


@pytest.mark.parametrize("call", named("fused_recurrent_kda"), ids=identity)
def test_tokens_and_drafts(call: Call, hosts: dict[str, Any], device: str, rng: torch.Generator) -> None:
    x = call.arguments(rng, device)
    pool, table, offsets = x["initial_state"], x["ssm_state_indices"], x["cu_seqlens"].tolist()
    drafts, N = table.dim() == 2, len(offsets) - 1
    accepted = x["num_accepted_tokens"].tolist() if drafts else [1] * N
    read = [int(table[n, max(accepted[n], 1) - 1] if drafts else table[n]) for n in range(N)]
    poison(pool, [slot for slot in read if slot > NULL])
    before = pool.clone()
    output, state = run(hosts, call, x)
    assert state is pool and output.shape == x["v"].shape and ("out" not in x or output is x["out"])
    written: dict[int, Tensor] = {}
    g, beta = gates(x)
    for n, (start, end) in enumerate(pairwise(offsets)):
        span = slice(start, end)
        if read[n] <= NULL:
            assert not output[0, span].any()
            continue
        given = (y[0, span] for y in (l2norm(x["q"]), l2norm(x["k"]), x["v"], g, beta))
        expected, states = recurrence(*given, before[read[n]])
        if start < end:
            assert rel_rms(output[0, span], expected) < OUTPUT
        for t in range(end - start):
            written[int(table[n, t] if drafts else table[n])] = states[t]
    written.pop(NULL, None)
    assert untouched(before, pool, list(written))
    for slot, expected in written.items():
        assert rel_rms(pool[slot], expected) < STATE[pool.dtype]


@pytest.mark.parametrize("call", named("fused_recurrent_kda_packed_decode"), ids=identity)
def test_packed_decode(call: Call, hosts: dict[str, Any], device: str, rng: torch.Generator) -> None:
    x = call.arguments(rng, device)
    pool, slots = x["initial_state"], x["state_indices"].tolist()
    used = [slot for slot in slots if slot > NULL]
    poison(pool, used)
    before = pool.clone()
    out, state = run(hosts, call, x)
    assert state is pool and untouched(before, pool, used) and out.shape == (1, len(slots), H, V)
    assert "out" not in x or out is x["out"]
    q, k, v = (y.unflatten(1, (H, -1)) for y in x["mixed_qkv"].chunk(3, 1))
    g, beta = gates(x)
    for n, slot in enumerate(slots):
        if slot <= NULL:
            assert not out[0, n].any()
            continue
        row = slice(n, n + 1)
        expected, states = recurrence(l2norm(q)[row], l2norm(k)[row], v[row], g[0, row], beta[0, row], before[slot])
        assert rel_rms(out[0, n], expected[0]) < OUTPUT and rel_rms(pool[slot], states[-1]) < STATE[pool.dtype]


# ---- What vLLM gives to FlashKDA: outputs and states of the caller's, checkpoints after any number of tokens


OFFSETS, CHECKPOINTS = [0, 70, 70, 139, 160], [48, 0, 16, 21]  # a checkpoint at the end; one of a sequence without tokens is 0


def flashkda_call(rng: torch.Generator, device: str, dtype: torch.dtype) -> dict[str, Any]:
    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng)

    tokens, N = OFFSETS[-1], len(OFFSETS) - 1
    x = {name: draw(1, tokens, H, K).bfloat16() for name in ("q", "k", "v", "g")}
    x |= {"beta": draw(1, tokens, 40).bfloat16()[..., :H], "A_log": draw(H) / 4, "dt_bias": draw(H * K)}
    x |= {"initial_state": draw(N, H, V, K).to(dtype), "cu_seqlens": torch.tensor(OFFSETS, dtype=torch.int32)}
    return {name: y.to(device) for name, y in x.items()}


def check_flashkda(
    x: dict[str, Any], bound: float, output: Tensor, last: Tensor, checkpoints: Tensor | None, device: str
) -> None:
    g, beta = channel_gates(x["g"], x["A_log"], x["dt_bias"], bound), x["beta"].double().sigmoid()
    check_prompts(x, g, beta, x["initial_state"], output, last, device)
    for n, (start, after) in enumerate(zip(OFFSETS, CHECKPOINTS, strict=False)):
        if after and checkpoints is not None:
            span = slice(start, start + after)
            given = (y[0, span] for y in (l2norm(x["q"]), l2norm(x["k"]), x["v"], g, beta))
            _, states = recurrence(*given, x["initial_state"][n])
            assert rel_rms(checkpoints[n], states[-1]) < prefill_state(last.dtype, device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("checkpoints", [False, True])
def test_the_prefill_of_k3(
    checkpoints: bool, dtype: torch.dtype, hosts: dict[str, Any], device: str, rng: torch.Generator
) -> None:
    x = flashkda_call(rng, device, dtype)
    tokens, N = x["q"].shape[1], len(OFFSETS) - 1
    buffer = torch.full((1, tokens + 9, H, V), float("nan"), dtype=torch.bfloat16, device=device)  # a layer's output
    states = torch.full((2, N + 3, H, V, K), float("nan"), dtype=dtype, device=device)  # vLLM's workspace, of more requests
    written: dict[str, Any] = {"out": buffer[:, :tokens], "final_state": states[0, :N], "workspace": torch.empty(0)}
    if checkpoints:
        offsets = torch.tensor(CHECKPOINTS, dtype=torch.int32, device=device)
        written |= {"checkpoint_state": states[1, :N], "checkpoint_offsets": offsets}
    found = hosts["k3"]._flashkda_prefill(**x, **written, lower_bound=-5.0)
    assert integrations.calls() == {"vllm.flashkda_prefill": {"gdn_cuda": 1}}
    assert all(a is b for a, b in zip(found, (written["out"], written["final_state"]), strict=True))
    check_flashkda(x, -5.0, *found, written.get("checkpoint_state"), device)
    assert buffer[:, tokens:].isnan().all() and states[:, N:].isnan().all()


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_the_prefill_of_glm(given: bool, checkpoints: bool, hosts: dict[str, Any], device: str, rng: torch.Generator) -> None:
    x = flashkda_call(rng, device, torch.float32)
    exported: dict[str, Any] = {}
    exporter = SimpleNamespace(export=lambda checkpoint, **named: exported.update(named, checkpoint=checkpoint))
    layer = hosts["glm"].Glm5NextLinearAttention()
    layer.A_log, layer.dt_bias, layer.kda_lower_bound = x["A_log"].view(1, 1, H, 1), x["dt_bias"], -4.0
    layer._checkpoint_exporter = exporter
    out = torch.empty_like(x["v"]) if given else None
    more: dict[str, Any] = {}
    if checkpoints:
        offsets = torch.tensor(CHECKPOINTS, dtype=torch.int32, device=device)
        more = {"checkpoint": SimpleNamespace(checkpoint_offsets=offsets), "raw_qkv": object(), "conv_state": object()}
        more["recurrent_state"] = object()
    arguments = {name: x[name] for name in ("q", "k", "v", "g", "beta", "initial_state", "cu_seqlens")}
    output, last = layer._flashkda_prefill(**arguments, out=out, **more)
    assert integrations.calls() == {"vllm.flashkda_prefill": {"gdn_cuda": 1}} and (out is None or output is out)
    check_flashkda(x, -4.0, output, last, exported.get("recurrent_checkpoint"), device)
    assert not checkpoints or all(exported[name] is more[name] for name in more)


# ---- Convolutions


@pytest.mark.parametrize("model", ["k3", "linear", "glm"])
@pytest.mark.parametrize("channels_first", [False, True])
def test_the_convolution_of_keys(
    model: str, channels_first: bool, hosts: dict[str, Any], device: str, rng: torch.Generator
) -> None:
    """Layers convolve slices of rows and of a pool, in either of vLLM's layouts: a prompt, a padding row, and a token."""
    D, W = H * K, 4
    pool = torch.randn(5, *((3 * D, W - 1) if channels_first else (W - 1, 3 * D)), generator=rng).to(device)
    pool = (pool if channels_first else pool.mT).bfloat16()
    rows, weight = torch.randn(9, 3 * D + 8, generator=rng).bfloat16().to(device), torch.randn(3 * D, W, generator=rng)
    keys, state, taps = rows[:, D : 2 * D], pool[:, D : 2 * D], weight[D : 2 * D].bfloat16().to(device)
    before, table = pool.clone(), torch.tensor([3, 0, 2, 1], dtype=torch.int32, device=device)
    offsets = torch.tensor([0, 6, 9], dtype=torch.int32, device=device)
    has = torch.tensor([True, True, False], device=device)
    found = (
        hosts[model]
        .causal_conv1d_fn(
            *(keys.transpose(0, 1), taps, None),
            activation="silu",
            conv_states=state,
            has_initial_state=has,
            cache_indices=table,
            query_start_loc=offsets,
            metadata=None,
        )
        .transpose(0, 1)
    )
    inputs = torch.cat([before[3, D : 2 * D], keys[:6].T], 1).double()
    expected = torch.nn.functional.silu((inputs.unfold(1, W, 1) * taps.double()[:, None]).sum(2)).T
    assert found.is_contiguous() and rel_rms(found[:6], expected) < OUTPUT
    assert torch.equal(state[3], keys[3:6].T) and torch.equal(pool[0], before[0])
    assert torch.equal(pool[:, :D], before[:, :D]) and torch.equal(pool[:, 2 * D :], before[:, 2 * D :])
    step = torch.empty_like(keys[:1])
    hosts[model].causal_conv1d_update(
        keys[8:], state, taps, None, activation="silu", conv_state_indices=table[:1], validate_data=True, out=step
    )
    inputs = torch.cat([keys[3:6].T, keys[8:].T], 1).double()
    assert rel_rms(step[0], torch.nn.functional.silu((inputs * taps.double()).sum(1))) < OUTPUT
    assert integrations.calls() == {f"vllm.{name}": {"gdn_cuda": 1} for name in ("causal_conv1d_fn", "causal_conv1d_update")}


# ---- The function of GDN's layer, with gates of channels


@pytest.mark.parametrize("flat", [False, True])
def test_mixed_batches_of_kda(flat: bool, hosts: dict[str, Any], device: str, rng: torch.Generator) -> None:
    (call,) = [
        each for each in named("fused_recurrent_kda") if each.call == "kimi.fused_recurrent_kda" and "float32" in each.name
    ]
    x = call.arguments(rng, device)
    tokens = x["q"].shape[1]
    pool, table, offsets = x["initial_state"], x["ssm_state_indices"], x["cu_seqlens"].tolist()
    read = [int(table[n, max(accepted, 1) - 1]) for n, accepted in enumerate(x["num_accepted_tokens"].tolist()[:4])]
    before = pool.clone()
    a = x["raw_g"].reshape(tokens, -1) if flat else x["raw_g"]
    function = sys.modules[integration._MODULE].fused_sigmoid_gating_delta_rule_update
    same = {name: x[name] for name in ("A_log", "q", "k", "v", "initial_state", "cu_seqlens")}
    same |= {"dt_bias": x["dt_bias"].view(H, K), "ssm_state_indices": table, "num_accepted_tokens": x["num_accepted_tokens"]}
    output, state = function(**same, a=a, b=x["raw_beta"], use_qk_l2norm_in_kernel=True, is_kda=True)
    assert integrations.calls() == {"vllm.fused_sigmoid_gating_delta_rule_update": {"gdn_cuda": 1}} and state is pool
    g, beta = channel_gates(x["raw_g"], x["A_log"], x["dt_bias"], None), x["raw_beta"].double().sigmoid()
    for n, (start, end) in enumerate(pairwise(offsets)):
        if read[n] <= NULL or start == end:
            continue
        given = (y[0, start:end] for y in (l2norm(x["q"]), l2norm(x["k"]), x["v"], g, beta))
        expected, states = recurrence(*given, before[read[n]])
        assert rel_rms(output[0, start:end], expected) < OUTPUT
        assert rel_rms(pool[int(table[n, end - start - 1])], states[-1]) < STATE[pool.dtype]


# ---- Calls that vLLM's own kernels run


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"sigmoid_beta": False}, "beta is no logit"),
        ({"ssm_state_indices": None}, "no packed tokens of slots of a pool"),
        ({"inplace_final_state": False}, "no packed tokens of slots of a pool"),
        ({"lower_bound": 1.0}, "fused_decode: lower_bound: expected"),
        ({"g_bias": torch.zeros(3)}, "fused_decode: dt_bias: expected"),
    ],
)
def test_declined_calls_reach_vllms_function(
    more: dict[str, Any], reason: str, hosts: dict[str, Any], rng: torch.Generator
) -> None:
    (call, *_) = [each for each in CALLS if each.call == "glm.fused_recurrent_kda"]
    theirs = hosts["glm"].fused_recurrent_kda.__wrapped__
    assert hosts["glm"].fused_recurrent_kda(**(call.arguments(rng) | more)) == "host"
    assert theirs.reached == ["fused_recurrent_kda"]
    (found,) = integrations.calls()["vllm.fused_recurrent_kda"]
    assert found.startswith(reason)
