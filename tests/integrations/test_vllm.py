"""gdn_cuda.integrations.vllm: the calls that engine_calls has recorded, through the module that the layer calls; and install
and the plugin."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import fake_hosts
import pytest
import torch
import torch.nn.functional as F
from engine_calls import OUTPUT, STATE, Call, calls, gates, identity, l2norm, poison, prefill_state, recurrence, untouched
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import integrations
from gdn_cuda.integrations import Refused, requested
from gdn_cuda.integrations import vllm as integration

CALLS = calls("vllm")
NULL = 0


@pytest.fixture
def device() -> str:
    return "cpu"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A fake of the layer's module, in which gdn_cuda is not installed."""
    modules = fake_hosts.make(monkeypatch, integration.HOST)
    found = modules[integration._MODULE]
    found.RMSNormGated = modules["vllm.model_executor.layers.layernorm"].RMSNormGated
    integrations.reset_calls()
    yield found
    integration.uninstall()


@pytest.fixture
def layer(module: Any) -> Any:
    integration.install()
    return module


def named(*names: str) -> list[Call]:
    return [each for each in CALLS if each.call in names]


def run(layer: Any, call: Call, x: dict[str, Any]) -> Any:
    result = getattr(layer, call.call)(**x)
    assert integrations.calls() == {f"vllm.{call.call}": {"gdn_cuda": 1}}
    return result


@pytest.mark.parametrize("call", named("fused_recurrent_gated_delta_rule_packed_decode"), ids=identity)
def test_packed_decode(call: Call, layer: Any, device: str, rng: torch.Generator) -> None:
    x = call.arguments(rng, device)
    pool, slots = x["initial_state"], x["ssm_state_indices"].tolist()
    HV, V, K = pool.shape[1:]
    used = [slot for slot in slots if slot > NULL]
    poison(pool, used)
    before = pool.clone()
    x["out"].fill_(float("nan"))
    out, state = run(layer, call, x)
    assert out is x["out"] and state is pool and untouched(before, pool, used)
    keys = (x["mixed_qkv"].shape[1] - HV * V) // 2
    q, k, v = x["mixed_qkv"].split((keys, keys, HV * V), 1)
    q, k, v = l2norm(q.unflatten(1, (-1, K))), l2norm(k.unflatten(1, (-1, K))), v.unflatten(1, (HV, V))
    g, beta = gates(x)
    for n, slot in enumerate(slots):
        if slot <= NULL:
            assert not out[n].any()
            continue
        row = slice(n, n + 1)
        expected, states = recurrence(q[row], k[row], v[row], g[row], beta[row], before[slot], x["scale"])
        assert rel_rms(out[n], expected) < OUTPUT
        assert rel_rms(pool[slot], states[-1]) < STATE[pool.dtype]


@pytest.mark.parametrize("call", named("fused_sigmoid_gating_delta_rule_update"), ids=identity)
def test_mixed_batches_and_drafts(call: Call, layer: Any, device: str, rng: torch.Generator) -> None:
    x = call.arguments(rng, device)
    pool, table, offsets = x["initial_state"], x["ssm_state_indices"], x["cu_seqlens"].tolist()
    drafts = table.dim() == 2
    N = len(offsets) - 1
    accepted = x["num_accepted_tokens"].tolist() if drafts else [1] * N
    read = [int(table[n, max(accepted[n], 1) - 1] if drafts else table[n]) for n in range(N)]
    poison(pool, [slot for slot in read if slot > NULL])
    before = pool.clone()
    output, state = run(layer, call, x)
    assert state is pool and output.shape == x["v"].shape
    written: dict[int, Tensor] = {}
    g, beta = gates(x)
    for n, (start, end) in enumerate(pairwise(offsets)):
        span = slice(start, end)
        if read[n] <= NULL:
            assert not output[0, span].any()
            continue
        given = (y[0, span] for y in (l2norm(x["q"]), l2norm(x["k"]), x["v"]))
        expected, states = recurrence(*given, g[span], beta[span], before[read[n]])
        if start < end:
            assert rel_rms(output[0, span], expected) < OUTPUT
        for t in range(end - start):
            written[int(table[n, t] if drafts else table[n])] = states[t]
    written.pop(NULL, None)
    assert untouched(before, pool, list(written))
    for slot, expected in written.items():
        assert rel_rms(pool[slot], expected) < STATE[pool.dtype]


@pytest.mark.parametrize("call", named("fi_chunk_gated_delta_rule", "fla_chunk_gated_delta_rule"), ids=identity)
def test_prefill(call: Call, layer: Any, device: str, rng: torch.Generator) -> None:
    x = call.arguments(rng, device)
    if not x["use_qk_l2norm_in_kernel"]:  # the caller normalizes them
        x |= {name: l2norm(x[name]).to(x[name].dtype) for name in ("q", "k")}
    start_states, checkpoints = x["initial_state"].clone(), x.get("state_checkpoints")
    for name in ("state_checkpoints", "core_attn_out"):
        if name in x:
            x[name].fill_(float("nan"))
    output, final = run(layer, call, x)
    assert output.shape == x["v"].shape and torch.equal(x["initial_state"], start_states)
    q, k = (l2norm(x[name]) if x["use_qk_l2norm_in_kernel"] else x[name] for name in ("q", "k"))
    row, every = 0, x.get("checkpoint_every_n_tokens", 0)
    for n, (start, end) in enumerate(pairwise(x["cu_seqlens"].tolist())):
        given = (y[0, start:end] for y in (q, k, x["v"], x["g"], x["beta"]))
        expected, states = recurrence(*given, start_states[n])
        assert rel_rms(output[0, start:end], expected) < OUTPUT
        assert rel_rms(final[n], states[-1]) < prefill_state(final.dtype, device)
        for tokens in range(every, end - start + 1, every) if every else ():
            assert rel_rms(checkpoints[row], states[tokens - 1]) < prefill_state(torch.float32, device)
            row += 1
    assert checkpoints is None or row == checkpoints.shape[0]
    if "core_attn_out" in x:
        tokens = output.shape[1]
        assert torch.equal(x["core_attn_out"][:tokens], output[0]) and x["core_attn_out"][tokens:].isnan().all()


# ---- Convolutions


def convolved(x: dict[str, Any], history: Tensor, tokens: Tensor) -> Tensor:
    """The convolution of (channels, T), preceded by W − 1 inputs."""
    inputs = torch.cat([history, tokens], 1).double()
    y = (inputs.unfold(1, x["weight"].shape[1], 1) * x["weight"].double()[:, None]).sum(2)
    return F.silu(y if x["bias"] is None else y + x["bias"].double()[:, None])


@pytest.mark.parametrize("call", named("causal_conv1d_fn"), ids=identity)
def test_conv_of_prompts(call: Call, layer: Any, device: str, rng: torch.Generator) -> None:
    x = call.arguments(rng, device)
    pool, width = x["conv_states"], x["weight"].shape[1] - 1
    slots, has = x["cache_indices"].tolist(), x["has_initial_state"].tolist()
    poison(pool, [slot for slot, is_there in zip(slots, has, strict=True) if slot > NULL and is_there])
    before = pool.clone()
    output = run(layer, call, x)
    assert output.shape == x["x"].shape and untouched(before, pool, [slot for slot in slots if slot > NULL])
    for n, (start, end) in enumerate(pairwise(x["query_start_loc"].tolist())):
        if slots[n] <= NULL or start == end:
            continue
        history = before[slots[n], :, :width] if has[n] else torch.zeros_like(before[0, :, :width])
        tokens = x["x"][:, start:end]
        assert rel_rms(output[:, start:end], convolved(x, history, tokens)) < OUTPUT
        assert torch.equal(pool[slots[n], :, :width], torch.cat([history, tokens], 1)[:, -width:])
        assert torch.equal(pool[slots[n], :, width:].isnan(), before[slots[n], :, width:].isnan())


def test_conv_of_prompts_with_longer_tables(layer: Any, device: str, rng: torch.Generator) -> None:
    call = named("causal_conv1d_fn")[0]
    x = call.arguments(rng, device)
    longer = x | {"conv_states": x["conv_states"].clone()}
    longer["cache_indices"] = torch.cat([x["cache_indices"], torch.tensor([5, NULL], dtype=torch.int32, device=device)])
    longer["has_initial_state"] = torch.cat([x["has_initial_state"], torch.tensor([True, False], device=device)])
    assert torch.equal(run(layer, call, x), layer.causal_conv1d_fn(**longer))
    assert torch.equal(x["conv_states"], longer["conv_states"])
    assert integrations.calls() == {"vllm.causal_conv1d_fn": {"gdn_cuda": 2}}


@pytest.mark.parametrize("call", named("causal_conv1d_update"), ids=identity)
@pytest.mark.parametrize("in_place", [True, False])
def test_conv_of_decodes_and_drafts(call: Call, in_place: bool, layer: Any, device: str, rng: torch.Generator) -> None:
    x = call.arguments(rng, device)
    pool, width, slots = x["conv_state"], x["weight"].shape[1] - 1, x["conv_state_indices"].tolist()
    poison(pool, [slot for slot in slots if slot > NULL])
    before, tokens = pool.clone(), x["x"].clone()
    if not in_place:
        x["out"] = torch.full_like(tokens, float("nan"))
    output = run(layer, call, x)
    assert output.data_ptr() == (x["x"] if in_place else x["out"]).data_ptr()
    assert in_place or torch.equal(x["x"], tokens)
    drafts = "num_accepted_tokens" in x
    offsets = x["query_start_loc"].tolist() if drafts else list(range(len(slots) + 1))
    assert untouched(before, pool, [slot for slot in slots if slot > NULL])
    for n, (start, end) in enumerate(pairwise(offsets)):
        if slots[n] <= NULL or start == end:
            continue
        first = max(int(x["num_accepted_tokens"][n]), 1) - 1 if drafts else 0
        history, new = before[slots[n], :, first : first + width], tokens[start:end].T
        assert rel_rms(output[start:end].T, convolved(x, history, new)) < OUTPUT
        after = torch.cat([history, new], 1)[:, 1:] if drafts else torch.cat([history, new], 1)[:, -width:]
        assert torch.equal(pool[slots[n], :, : after.shape[1]], after)


def test_gated_norm(layer: Any, device: str, rng: torch.Generator) -> None:
    x, z, weight = (torch.randn(3, 4, 24, generator=rng).bfloat16().to(device) for _ in range(3))
    norm = layer.RMSNormGated()
    vars(norm).update(weight=weight[0, 0], eps=1e-6, group_size=None, norm_before_gate=True, activation="swish", bias=None)
    found, wide = norm.forward_cuda(x, z), x.double()
    expected = wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight[0, 0].double() * F.silu(z.double())
    assert integrations.calls() == {"vllm.rms_norm_gated": {"gdn_cuda": 1}} and rel_rms(found, expected) < OUTPUT


# ---- Properties of a batch


def test_decode_is_the_same_in_any_order_with_any_padding(layer: Any, device: str, rng: torch.Generator) -> None:
    (call, *_) = named("fused_recurrent_gated_delta_rule_packed_decode")
    x = call.arguments(rng, device)
    again = x | {"initial_state": x["initial_state"].clone(), "out": x["out"].clone()}
    order = torch.tensor([2, 4, 0, 1, 3], device=device)
    again |= {name: x[name][order] for name in ("mixed_qkv", "a", "b", "ssm_state_indices")}
    out, pool = getattr(layer, call.call)(**x)
    permuted, permuted_pool = getattr(layer, call.call)(**again)
    assert torch.equal(permuted, out[order]) and torch.equal(pool, permuted_pool)


# ---- Calls that vLLM's own kernels run


@pytest.mark.parametrize(
    ("name", "more", "reason"),
    [
        ("fused_sigmoid_gating_delta_rule_update", {"is_kda": True}, "fused_decode: a: expected"),  # gates of heads
        ("fused_sigmoid_gating_delta_rule_update", {"inplace_final_state": False}, "no pool to write to"),
        ("fused_sigmoid_gating_delta_rule_update", {"threshold": 10.0}, "another softplus"),
        ("causal_conv1d_fn", {"activation": "gelu"}, "causal_conv1d: activation: expected None, 'silu' or 'swish'"),
        ("fused_recurrent_gated_delta_rule_packed_decode", {"b": torch.zeros(2, 4)}, "fused_decode: b: expected"),
    ],
)
def test_declined_calls_reach_vllms_function(name: str, more: dict[str, Any], reason: str, layer: Any) -> None:
    x = named(name)[0].arguments(torch.Generator().manual_seed(0)) | more
    theirs = getattr(layer, name).__wrapped__
    getattr(layer, name)(**x)
    assert theirs.reached == [name]
    (found,) = integrations.calls()[f"vllm.{name}"]
    assert found.startswith(reason)


# ---- install and the plugin


def test_install_and_uninstall(module: Any) -> None:
    before, norm = dict(vars(module)), module.RMSNormGated.forward_cuda
    replaced = integration.install()
    assert len(replaced) == len(integration.HOST.targets) and integration.install() == replaced
    assert all(getattr(module, name) is not before[name] for name in integration._TARGETS)
    integration.uninstall()
    assert vars(module) == before and module.RMSNormGated.forward_cuda is norm


def test_a_changed_function_is_refused(module: Any) -> None:
    module.causal_conv1d_update = changed = fake_hosts.function("causal_conv1d_update", "x, conv_state")
    with pytest.raises(Refused, match=r"causal_conv1d_update: expected \(x, conv_state, weight, .*\), got \(x, conv_state\)"):
        integration.install()
    assert module.causal_conv1d_update is changed and not integration._replaced.names()


def test_the_plugin_waits_for_the_import_of_the_layer(
    module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The host is a package in files."""
    fake_hosts.forget(monkeypatch, "vllm")
    fake_hosts.write(tmp_path, integration.HOST.targets)
    file = tmp_path / f"{integration._MODULE.replace('.', '/')}.py"
    monkeypatch.syspath_prepend(str(tmp_path))

    integration.plugin()  # GDN_INTEGRATIONS does not name it
    assert integration._later not in sys.meta_path
    monkeypatch.setattr(requested._C, "requested_integrations", lambda: ["vllm"])
    integration.plugin()
    integration.plugin()
    assert sys.meta_path.count(integration._later) == 1 and "vllm" not in sys.modules
    with caplog.at_level(logging.INFO, "gdn_cuda"):
        layer = importlib.import_module(integration._MODULE)
    assert f"{integration._MODULE}.causal_conv1d_fn runs on gdn_cuda" in caplog.messages
    assert layer.causal_conv1d_fn.__wrapped__.__code__.co_filename == str(file)
    assert len(integration._replaced.names()) == len(integration._TARGETS) + 1
    integration.uninstall()

    file.write_text(file.read_text().replace("def causal_conv1d_update", "def causal_conv1d_step"))
    fake_hosts.forget(monkeypatch, "vllm")
    importlib.invalidate_caches()
    with caplog.at_level(logging.WARNING, "gdn_cuda"):
        integration.plugin()
        layer = importlib.import_module(integration._MODULE)
    assert not hasattr(layer.causal_conv1d_fn, "__wrapped__") and "vllm keeps its own kernels" in caplog.text
