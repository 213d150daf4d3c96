"""transformers' Qwen3-Next, Qwen3.5 and OLMo-Hybrid on gdn_cuda.integrations.transformers, with random weights; and what
install replaces, refuses and leaves unchanged."""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
from types import ModuleType

import pytest
import torch
from helpers import rel_rms
from transformers import DynamicCache
from transformers_gdn import (
    MODELS,
    check_bf16,
    check_bits_of_steps,
    check_continued_prompt,
    check_generate,
    check_gradient_checkpointing,
    check_gradients_of_states,
    check_packed,
    check_packed_training,
    check_training,
    check_twenty_steps,
    counts,
    installed,
    integration,
    make_model,
    tokens,
)

from gdn_cuda import integrations
from gdn_cuda.hosts import replaced
from gdn_cuda.integrations import Refused

MODELING = "transformers.models.qwen3_next.modeling_qwen3_next"


@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize("check", [check_generate, check_bf16, check_continued_prompt, check_training])
def test_models(model_type: str, check: object, seed: int, rng: torch.Generator) -> None:
    check(model_type, seed, rng, "cpu")  # type: ignore[operator]


@pytest.mark.parametrize("model_type", ["qwen3_next", "olmo_hybrid"])
@pytest.mark.parametrize(
    "check",
    [check_packed, check_packed_training, check_gradients_of_states, check_bits_of_steps, check_gradient_checkpointing],
)
def test_some_models(model_type: str, check: object, seed: int, rng: torch.Generator) -> None:
    check(model_type, seed, rng, "cpu")  # type: ignore[operator]


@pytest.mark.parametrize("model_type", ["qwen3_next", "qwen3_5"])
def test_twenty_steps_of_training(model_type: str, seed: int, rng: torch.Generator) -> None:
    check_twenty_steps(model_type, seed, rng, "cpu")


def test_the_layers_cache_by_its_new_name_and_its_old_one(seed: int, rng: torch.Generator) -> None:
    """5.24 calls the argument `cache`; 5.23 called it `cache_params`."""
    model, x = make_model("qwen3_next", seed), torch.randn(1, 9, 64, generator=rng)
    layer = model.model.layers[0].linear_attn
    names = (
        {"cache", "cache_params"}
        if "cache" in inspect.signature(inspect.unwrap(layer.forward)).parameters
        else {"cache_params"}
    )

    def run(name: str) -> torch.Tensor:
        cache = DynamicCache(config=model.config)
        return torch.cat([layer(x[:, :8], **{name: cache}), layer(x[:, 8:], **{name: cache})], 1)

    with torch.no_grad():
        for name in names:
            expected = run(name)
            with installed():
                found = run(name)
                assert counts()["fused_recurrent_gated_delta_rule"] == {"gdn_cuda": 1}
            assert rel_rms(found, expected) < 1e-5


def test_every_model_is_as_verified() -> None:
    for model in integration.MODELS:
        importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    try:
        replaced_now = integration.install()
        assert len(replaced_now) == sum(map(len, integration.MODELS.values()))
        for name in replaced_now:
            assert name.startswith("transformers.models.")
    finally:
        integration.uninstall()


def test_nothing_changes_until_install_and_uninstall_undoes_everything(seed: int, rng: torch.Generator) -> None:
    module = importlib.import_module(MODELING)
    before = dict(vars(module)), module.Qwen3NextRMSNormGated.forward
    with installed():
        assert module.torch_chunk_gated_delta_rule is not before[0]["torch_chunk_gated_delta_rule"]
        assert integration.install() == integration.install()  # a second call changes nothing
    assert vars(module) == before[0] and module.Qwen3NextRMSNormGated.forward is before[1]
    integration.uninstall()  # likewise
    integrations.reset_calls()
    make_model("qwen3_next", seed)(tokens(rng, 1, 5, "cpu"), use_cache=False)
    assert not counts()


def test_one_model_alone() -> None:
    importlib.import_module(MODELING)
    importlib.import_module("transformers.models.lfm2.modeling_lfm2")
    try:
        assert {name.split(".")[2] for name in integration.install("qwen3_next")} == {"qwen3_next"}
        assert {name.split(".")[2] for name in integration.install(make_model("olmo_hybrid", 0))} == {
            "qwen3_next",
            "olmo_hybrid",
        }
    finally:
        integration.uninstall()
    with pytest.raises(ValueError, match=r"install: model: expected a model of qwen3_next, .*, got 'bert'"):
        integration.install("bert")


def test_models_that_are_imported_later(monkeypatch: pytest.MonkeyPatch, rng: torch.Generator) -> None:
    monkeypatch.delitem(sys.modules, MODELING, raising=False)
    with installed():
        later = importlib.import_module(MODELING)
        assert later.__spec__.loader.name == MODELING  # the loader is the file's own
        with torch.no_grad():
            later.Qwen3NextForCausalLM(make_model("qwen3_next", 0).config)(tokens(rng, 1, 3, "cpu"), use_cache=False)
        assert counts()["chunk_gated_delta_rule"] == {"gdn_cuda": 3}


def test_an_activation_that_we_lack_runs_the_hosts_kernel(
    seed: int, rng: torch.Generator, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model("qwen3_next", seed)
    for layer in model.model.layers[:3]:
        layer.linear_attn.activation = "gelu"
    ids = tokens(rng, 1, 9, "cpu")
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        with installed(), caplog.at_level(logging.WARNING, "gdn_cuda"):
            found = model(ids, use_cache=False).logits
    assert counts()["causal_conv1d_fn"] == {"causal_conv1d: activation: expected None, 'silu' or 'swish'": 3}
    assert len([record for record in caplog.records if "causal_conv1d_fn" in record.message]) == 1  # logged once
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_compiled_code_calls_our_operators(rng: torch.Generator) -> None:
    module = importlib.import_module(MODELING)
    q, k, v = (torch.randn(1, 9, heads, 16, generator=rng).bfloat16() for heads in (2, 2, 4))
    g, beta = -torch.rand(1, 9, 4, generator=rng), torch.rand(1, 9, 4, generator=rng)
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph.code)
        return graph

    def layer(q: torch.Tensor) -> torch.Tensor:
        return module.torch_chunk_gated_delta_rule(2 * q, k, v, g=g, beta=beta)[0]

    with installed():
        with torch.no_grad():
            assert torch.equal(torch.compile(layer, fullgraph=True, backend=backend)(q), layer(q))
        q.requires_grad_()
        compiled = torch.compile(layer, fullgraph=True, backend=backend)
        found, expected = (torch.autograd.grad(run(q).float().square().sum(), q)[0] for run in (compiled, layer))
        assert torch.equal(found, expected)
    assert len(graphs) == 2 and "chunked_forward" in graphs[0] and "gated_delta_rule" in graphs[1]


# ---- Hosts that differ from what was verified


def test_a_changed_function_is_refused_with_the_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(MODELING)

    def changed(query, key, value, decay):  # type: ignore[no-untyped-def]
        raise AssertionError

    before = module.causal_conv1d_fn
    monkeypatch.setattr(module, "torch_chunk_gated_delta_rule", changed)
    with pytest.raises(
        Refused, match=r"torch_chunk_gated_delta_rule: expected \(query, .*\), got \(query, key, value, decay\)"
    ):
        integration.install()
    assert module.torch_chunk_gated_delta_rule is changed and module.causal_conv1d_fn is before


def test_a_function_that_is_gone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(importlib.import_module(MODELING), "causal_conv1d_update")
    with pytest.raises(Refused, match=r"causal_conv1d_update: expected .*, got none"):
        integration.install()


def test_a_later_import_that_differs_keeps_its_own(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delitem(sys.modules, MODELING, raising=False)
    monkeypatch.setitem(integration._KINDS, "causal_conv1d_fn", ("another", integration._conv))
    try:
        integration.install("qwen3_next")
        later = importlib.import_module(MODELING)
        assert not integration._replaced.names() and later.torch_chunk_gated_delta_rule.__module__ == MODELING
    finally:
        integration.uninstall()
    assert f"transformers keeps its own kernels: {MODELING}:causal_conv1d_fn: expected (another), got" in caplog.text


def test_attributes_that_others_replaced_since_stay() -> None:
    host = ModuleType("host")
    host.f, mine, theirs = len, min, max  # type: ignore[attr-defined]
    changes = replaced.Replaced()
    changes.put(host, "f", mine)
    changes.put(host, "g", mine)
    host.f = theirs  # type: ignore[attr-defined]
    changes.undo()
    assert host.f is theirs and not hasattr(host, "g") and not changes.names()  # type: ignore[attr-defined]
