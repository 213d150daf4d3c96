"""gdn_cuda.integrations.sglang: its kernel class, over a stand-in for the class that it replaces, in the calls that
engine_calls has recorded; and its installation in SGLang."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import fake_hosts
import pytest
import sglang_host
import torch
import torch.nn.functional as F
from engine_calls import OUTPUT, STATE, Call, calls, gates, identity, l2norm, poison, prefill_state, recurrence, untouched
from helpers import rel_rms
from torch import Tensor

import gdn_cuda
from gdn_cuda import integrations
from gdn_cuda.integrations import Refused, requested
from gdn_cuda.integrations import sglang as integration

CALLS = calls("sglang")


@pytest.fixture
def device() -> str:
    return "cpu"


@pytest.fixture
def kernel() -> Any:
    integrations.reset_calls()
    return integration.kernel_class(sglang_host.TritonGDNKernel)()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Fake modules of SGLang with the stand-in: the module of its class, and one that uses it."""
    modules = fake_hosts.make(monkeypatch, integration.HOST)
    for each in modules.values():
        if each.__name__ in (integration._MODULE, integration._LAYER):
            each.TritonGDNKernel = sglang_host.TritonGDNKernel
    integrations.reset_calls()
    yield modules[integration._LAYER]
    integration.uninstall()


def named(call: str) -> list[Call]:
    return [each for each in CALLS if each.call == call]


def run(kernel: Any, call: Call, x: dict[str, Any]) -> Any:
    result = getattr(kernel, call.call)(**x)
    assert integrations.calls() == {f"sglang.{call.call}": {"gdn_cuda": 1}} and not kernel.reached
    return result


def valid(x: dict[str, Any]) -> list[int]:
    return [slot for slot in x["cache_indices"].tolist() if slot >= 0]


@pytest.mark.parametrize("call", named("packed_decode") + named("decode"), ids=identity)
def test_decode(call: Call, kernel: Any, device: str, rng: torch.Generator) -> None:
    x = call.arguments(rng, device)
    pool, (HV, V, K) = x["ssm_states"], x["ssm_states"].shape[1:]
    poison(pool, valid(x))
    before = pool.clone()
    output = run(kernel, call, x)
    if "mixed_qkv" in x:
        keys = (x["mixed_qkv"].shape[1] - HV * V) // 2
        q, k, v = x["mixed_qkv"].split((keys, keys, HV * V), 1)
        q, k, v = q.unflatten(1, (-1, K)), k.unflatten(1, (-1, K)), v.unflatten(1, (HV, V))
    else:
        q, k, v = x["q"][0], x["k"][0], x["v"][0]
    g, beta = gates(x)
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
    pool, every, count = x["ssm_states"], x.get("state_checkpoint_every_n_tokens", 0), x.get("num_state_checkpoints", 0)
    poison(pool, valid(x))
    before = pool.clone()
    output, last, found = run(kernel, call, x)
    in_place, offsets = x.get("inplace_update", True), x["query_start_loc"].tolist()
    lengths = [end - start for start, end in pairwise(offsets)]
    written = [slot for slot, length in zip(x["cache_indices"].tolist(), lengths, strict=True) if length and in_place]
    assert last is None and output.shape == x["v"].shape and untouched(before, pool, written)
    if "output" in x:
        assert output.data_ptr() == x["output"].data_ptr()
    assert (found is None) == (count == 0)
    row = 0
    for n, slot in enumerate(x["cache_indices"].tolist()):
        start, end = offsets[n], offsets[n + 1]
        if slot < 0:
            assert not output[0, start:end].any()
            continue
        given = (y[0, start:end] for y in (l2norm(x["q"]), l2norm(x["k"]), x["v"], x["g"], x["beta"]))
        expected, states = recurrence(*given, before[slot])
        if start < end:
            assert rel_rms(output[0, start:end], expected) < OUTPUT
        if start < end and in_place:
            assert rel_rms(pool[slot], states[-1]) < prefill_state(pool.dtype, device)
        for end_of_block in range(every, end - start + 1, every) if count else ():
            assert rel_rms(found[0, row], states[end_of_block - 1]) < prefill_state(pool.dtype, device)
            row += 1
    assert row == count


@pytest.mark.parametrize("call", named("target_verify"), ids=identity)
def test_target_verify(call: Call, kernel: Any, device: str, rng: torch.Generator) -> None:
    x = call.arguments(rng, device)
    pool, buffer, offsets = x["ssm_states"], x["intermediate_states_buffer"], x["query_start_loc"].tolist()
    sequences = len(offsets) - 1
    slots = x["cache_indices"].tolist()[:sequences]
    poison(pool, [slot for slot in slots if slot >= 0])
    poison(buffer, [])
    before, buffer_before = pool.clone(), buffer.clone()
    output = run(kernel, call, x)
    assert output.shape == x["v"].shape and untouched(before, pool, [])
    g, beta = gates(x)
    rows = x["intermediate_state_indices"].tolist()
    assert untouched(buffer_before, buffer, [rows[n] for n, slot in enumerate(slots) if slot >= 0])
    for n, slot in enumerate(slots):
        start, end = offsets[n], offsets[n + 1]
        if slot < 0:
            assert not output[0, start:end].any()
            continue
        span = slice(start, end)
        given = (y[0, span] for y in (l2norm(x["q"]), l2norm(x["k"]), x["v"]))
        expected, states = recurrence(*given, g[span], beta[span], before[slot])
        if end > start:
            assert rel_rms(output[0, span], expected) < OUTPUT
            assert rel_rms(buffer[rows[n], : end - start], states) < STATE[buffer.dtype]
        assert buffer[rows[n], end - start :].isnan().all()


def test_a_tree_of_drafts(kernel: Any, device: str, rng: torch.Generator) -> None:
    """The parent of the first token, and all parents of a padding row, may have any value."""
    call = named("target_verify")[0]
    parents = [[7, 0, 0], [0, 0, 1], [-9, 99, 5]]
    x = call.arguments(rng, device) | {"retrieve_parent_token": torch.tensor(parents, device=device)}
    pool, buffer, slots = x["ssm_states"], x["intermediate_states_buffer"], x["cache_indices"].tolist()
    poison(pool, [slot for slot in slots[:3] if slot >= 0])
    before = pool.clone()
    output = run(kernel, call, x)
    g, beta = gates(x)
    assert untouched(before, pool, []) and slots[2] < 0 and not output[0, 6:9].any()
    for n in range(2):
        states: list[Tensor] = []
        for t in range(3):
            row = slice(3 * n + t, 3 * n + t + 1)
            start = states[parents[n][t]] if t else before[slots[n]]
            given = (y[0, row] for y in (l2norm(x["q"]), l2norm(x["k"]), x["v"]))
            expected, after = recurrence(*given, g[row], beta[row], start)
            states.append(after[-1])
            assert rel_rms(output[0, row], expected) < OUTPUT
            assert rel_rms(buffer[x["intermediate_state_indices"][n], t], after[-1]) < STATE[buffer.dtype]


# ---- Convolutions


def convolved(x: dict[str, Any], history: Tensor, tokens: Tensor) -> Tensor:
    inputs = torch.cat([history, tokens], 1).double()
    return F.silu((inputs.unfold(1, x["weight"].shape[1], 1) * x["weight"].double()[:, None]).sum(2))


@pytest.mark.parametrize("call", named("causal_conv1d_fn"), ids=identity)
def test_conv_of_prompts(call: Call, host: Any, device: str, rng: torch.Generator) -> None:
    x = call.arguments(rng, device)
    pool, width, has = x["conv_states"], x["weight"].shape[1] - 1, x["has_initial_state"].tolist()
    poison(pool, [slot for slot, is_there in zip(valid(x), has, strict=False) if is_there])
    before = pool.clone()
    integration.install()
    output = host.causal_conv1d_fn(**x)
    assert integrations.calls() == {"sglang.causal_conv1d_fn": {"gdn_cuda": 1}}
    assert output.shape == x["x"].shape and untouched(before, pool, valid(x))
    for n, (start, end) in enumerate(pairwise(x["query_start_loc"].tolist())):
        slot, tokens = int(x["cache_indices"][n]), x["x"][:, start:end]
        if slot < 0:
            continue
        history = before[slot] if has[n] else torch.zeros_like(before[slot])
        assert rel_rms(output[:, start:end], convolved(x, history, tokens)) < OUTPUT
        assert torch.equal(pool[slot], torch.cat([history, tokens], 1)[:, -width:])


@pytest.mark.parametrize("call", named("causal_conv1d_update"), ids=identity)
def test_conv_of_decodes(call: Call, host: Any, device: str, rng: torch.Generator) -> None:
    x = call.arguments(rng, device)
    pool, slots, tokens = x["conv_state"], x["conv_state_indices"].tolist(), x["x"].clone()
    poison(pool, [slot for slot in slots if slot >= 0])
    before = pool.clone()
    integration.install()
    output = host.causal_conv1d_update(**x)
    assert integrations.calls() == {"sglang.causal_conv1d_update": {"gdn_cuda": 1}}
    assert torch.equal(x["x"], tokens) and untouched(before, pool, [slot for slot in slots if slot >= 0])
    for n, slot in enumerate(slots):
        if slot < 0:
            continue
        assert rel_rms(output[n, :, None], convolved(x, before[slot], tokens[n, :, None])) < OUTPUT
        assert torch.equal(pool[slot], torch.cat([before[slot], tokens[n, :, None]], 1)[:, 1:])


def test_the_convolution_of_drafts_is_sglangs(host: Any) -> None:
    integration.install()
    x = named("causal_conv1d_update")[0].arguments(torch.Generator().manual_seed(0))
    assert host.causal_conv1d_update(**x, intermediate_conv_window=torch.zeros(1)) == "host"


# ---- Calls that SGLang's own kernels run


def first(name: str, **more: Any) -> dict[str, Any]:
    return named(name)[0].arguments(torch.Generator().manual_seed(0)) | more


@pytest.mark.parametrize(
    ("name", "more", "reason"),
    [
        ("target_verify", {"retrieve_parent_token": torch.zeros(3, 3), "cache_steps": 4}, "a tree of drafts in sequences of"),
        ("packed_decode", {"replayssm_write_pos": torch.zeros(5)}, "ReplaySSM"),
        ("decode", {"cache_indices": torch.zeros(2, dtype=torch.int32)}, "more than one token a sequence"),
        ("packed_decode", {"a": torch.zeros(3, 4)}, "a or b has another size"),
        ("packed_decode", {"A_log": torch.zeros(3), "dt_bias": torch.zeros(3)}, "fused_decode: A_log: expected"),
    ],
)
def test_declined_calls_reach_the_class_that_was_replaced(name: str, more: dict[str, Any], reason: str, kernel: Any) -> None:
    getattr(kernel, name)(**first(name, **more))
    assert kernel.reached == [name]
    (found,) = integrations.calls()[f"sglang.{name}"]
    assert found.startswith(reason)


def test_states_of_a_declined_prefill_are_the_planned_ones(kernel: Any, rng: torch.Generator) -> None:
    """The first sequence's last state is inside the sequence; the second's is the one in its slot."""
    (call,) = (each for each in named("extend") if "prefix cache" in each.name)
    x = call.arguments(rng)
    before = x["ssm_states"].clone()
    _, _, found = kernel.extend(**x, track_state=torch.zeros(4))
    assert kernel.reached == ["extend"] and found.shape == (1, 3, *before.shape[1:])
    offsets, row = x["query_start_loc"].tolist(), 0
    for n, slot in enumerate(x["cache_indices"].tolist()):
        given = (y[0, offsets[n] : offsets[n + 1]] for y in (l2norm(x["q"]), l2norm(x["k"]), x["v"], x["g"], x["beta"]))
        _, states = recurrence(*given, before[slot])
        for end in range(64, states.shape[0] + 1, 64):
            assert rel_rms(found[0, row], states[end - 1]) < 1e-5
            row += 1
    assert row == 3


def test_the_flags_of_the_class(kernel: Any) -> None:
    assert isinstance(kernel, sglang_host.TritonGDNKernel)
    assert kernel.uses_state_checkpoints and kernel.supports_packed_decode and kernel.supports_strided_target_verify_qkv
    assert not getattr(kernel, "supports_track_state_snapshot", False)


@pytest.mark.parametrize("asked", [False, True])
def test_deterministic_inference(asked: bool, kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ModuleType("sglang.srt.runtime_context")
    flag = SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=asked))
    context.get_exec = lambda: flag  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, context.__name__, context)
    options: dict[str, Any] = {}
    run, x = gdn_cuda.chunked_forward, first("extend")
    monkeypatch.setattr(gdn_cuda, "chunked_forward", lambda *args, **more: options.update(more) or run(*args, **more))
    kernel.extend(**x)
    assert options["deterministic"] is asked


# ---- install


def test_install_replaces_the_class_wherever_it_is(host: ModuleType) -> None:
    replaced = integration.install()
    classes = {f"{module}.TritonGDNKernel" for module in (integration._MODULE, host.__name__)}
    classes.add(f"{integration._KDA_MODULE}.TritonKDAKernel")
    functions = {target for target in integration.HOST.targets if integration._KDA_LAYER in target}
    mamba = {*integration.HOST.parts["mamba"], *integration.HOST.parts["mamba2"], *functions}
    others = {target.replace(":", ".") for target in mamba} | {f"{host.__name__}.{name}" for name in integration._CONVOLUTIONS}
    assert set(replaced) == classes | others
    assert integration.install() == replaced  # a second call changes nothing
    ours = host.TritonGDNKernel
    assert ours.__name__ == "GdnCudaKernel" and sys.modules[integration._MODULE].TritonGDNKernel is ours
    integration.uninstall()
    assert host.TritonGDNKernel is sglang_host.TritonGDNKernel and host.causal_conv1d_fn(None, None) == "host"


def test_a_changed_convolution_is_refused(host: ModuleType) -> None:
    host.causal_conv1d_fn = lambda x: None
    with pytest.raises(Refused, match=r"causal_conv1d_fn: expected \(x, weight, .*\), got \(x\)"):
        integration.install()
    assert host.TritonGDNKernel is sglang_host.TritonGDNKernel


def test_a_changed_method_is_refused(host: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_host.TritonGDNKernel, "extend", lambda self, q: None)
    with pytest.raises(Refused, match=r"TritonGDNKernel.extend: expected \(self, q, k, .*\), got \(self, q\)"):
        integration.install()
    assert host.TritonGDNKernel is sglang_host.TritonGDNKernel


def test_the_plugin_does_nothing_unless_asked(
    host: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    integration.plugin()
    assert host.TritonGDNKernel is sglang_host.TritonGDNKernel
    monkeypatch.setattr(requested._C, "requested_integrations", lambda: ["vllm", "sglang"])
    integration.plugin()
    integration.plugin()  # it may be called several times
    assert host.TritonGDNKernel.__name__ == "GdnCudaKernel" and host.TritonGDNKernel.__mro__[1] is sglang_host.TritonGDNKernel
    integration.uninstall()
    monkeypatch.delattr(sglang_host.TritonGDNKernel, "extend")
    with caplog.at_level(logging.WARNING, "gdn_cuda"):
        integration.plugin()  # a server starts all the same
    assert "sglang keeps its own kernels" in caplog.text and host.TritonGDNKernel is sglang_host.TritonGDNKernel
