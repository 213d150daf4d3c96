"""Compares small models of transformers with Gated Delta Net layers and random weights, on its own functions and on ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest
import torch
from helpers import rel_rms
from torch import Tensor
from torch_functions import import_models

from gdn_cuda import integrations
from gdn_cuda.integrations import transformers as integration

transformers = pytest.importorskip("transformers", minversion="5.0", reason="transformers 5 is not installed")
if not integration.available()[0]:
    pytest.skip(f"not the transformers that was verified: {integration.available()[1]}", allow_module_level=True)

_LAYERS = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
LINEAR = _LAYERS.count("linear_attention")
_COMMON: dict[str, Any] = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 4, "layer_types": _LAYERS}
_COMMON |= {"num_attention_heads": 4, "intermediate_size": 64, "pad_token_id": 0, "eos_token_id": None}
_QWEN: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
_QWEN |= {"linear_key_head_dim": 32, "linear_value_head_dim": 32}
# Every token goes to all experts: a different choice of experts would be no rounding error.
_EXPERTS = {"num_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
_OLMO = {"linear_key_head_dim": 24, "linear_value_head_dim": 48}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", _QWEN | _EXPERTS),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", _QWEN),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", _QWEN | _EXPERTS),
    "olmo_hybrid": ("OlmoHybridConfig", "OlmoHybridForCausalLM", _OLMO),
}


import_models(MODELS)


def make_model(model_type: str, seed: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Any:
    config, model, sizes = MODELS[model_type]
    torch.manual_seed(seed)
    made = getattr(transformers, model)(getattr(transformers, config)(**_COMMON | sizes))
    made.config._experts_implementation = "eager"  # others do not support fp64
    with torch.no_grad():
        for name, parameter in made.named_parameters():  # large enough for every part to matter
            if "conv" in name:
                parameter.copy_(torch.randn_like(parameter))
            elif parameter.dim() > 1:
                parameter.mul_(2)
    return made.to(device, dtype).eval()


def tokens(rng: torch.Generator, batch: int, length: int, device: str) -> Tensor:
    return torch.randint(1, 64, (batch, length), generator=rng).to(device)


@contextmanager
def installed() -> Iterator[None]:
    integration.install()
    integrations.reset_calls()
    try:
        yield
    finally:
        integration.uninstall()


def counts() -> dict[str, dict[str, int]]:
    return {name.partition(".")[2]: count for name, count in integrations.calls("transformers").items()}


def ours(prefills: int, steps: int) -> dict[str, dict[str, int]]:
    """The expected `counts` after so many prefills and steps."""
    expected = {
        "chunk_gated_delta_rule": prefills,
        "fused_recurrent_gated_delta_rule": steps,
        "causal_conv1d_fn": prefills,
        "causal_conv1d_update": steps,
        "rms_norm_gated": prefills + steps,
    }
    return {name: {"gdn_cuda": count * LINEAR} for name, count in expected.items() if count}


def check_generate(model_type: str, seed: int, rng: torch.Generator, device: str) -> None:
    """In fp32 the tokens are the same, from prompts of one chunk, of more, and of a single token."""
    model = make_model(model_type, seed, device)
    options = {"max_new_tokens": 24, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    for length in (1, 70):
        ids = tokens(rng, 2, length, device)
        theirs = model.generate(ids, **options)
        with installed():
            found = model.generate(ids, **options)
            assert counts() == ours(1, 23)
        assert torch.equal(found.sequences, theirs.sequences)
        for a, b in zip(found.logits, theirs.logits, strict=True):
            assert rel_rms(a, b) < 1e-4


def check_bf16(model_type: str, seed: int, rng: torch.Generator, device: str) -> None:
    """A prompt and the next token are hardly further from the fp64 model than with transformers' own functions in bf16."""
    model, ids = make_model(model_type, seed, device, torch.bfloat16), tokens(rng, 2, 71, device)
    exact = make_model(model_type, seed, device, torch.float64)
    exact.load_state_dict(model.state_dict())

    @torch.no_grad()
    def run(model: Any) -> Tensor:
        prompt = model(ids[:, :-1], use_cache=True)
        after = model(ids[:, -1:], past_key_values=prompt.past_key_values, use_cache=True)
        return torch.cat([prompt.logits, after.logits], 1)

    expected, theirs = run(exact), run(model)
    with installed():
        found = run(model)
        assert counts() == ours(1, 1)
    share = 1.1 if device == "cpu" else 1.5  # tensor cores multiply 16-bit factors in a prefill; torch's prefill is in fp32
    assert rel_rms(found, expected) < share * rel_rms(theirs, expected)


def check_continued_prompt(model_type: str, seed: int, rng: torch.Generator, device: str) -> None:
    """A prompt in two parts: the second starts from states and has more than one token; with left padding."""
    model, ids = make_model(model_type, seed, device), tokens(rng, 2, 90, device)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0

    @torch.no_grad()
    def run() -> Tensor:
        first = model(ids[:, :75], attention_mask=mask[:, :75], use_cache=True)
        return model(ids[:, 75:], attention_mask=mask, past_key_values=first.past_key_values, use_cache=True).logits

    theirs = run()
    with installed():
        found = run()
        assert counts() == ours(2, 0)
    assert rel_rms(found, theirs) < 1e-4


def check_packed(model_type: str, seed: int, rng: torch.Generator, device: str) -> None:
    """Two documents packed in a row give the same as each alone; transformers' own functions refuse packed rows."""
    model, lengths = make_model(model_type, seed, device), (37, 66)
    parts = [tokens(rng, 1, length, device) for length in lengths]
    offsets = torch.tensor([0, lengths[0], sum(lengths)], dtype=torch.int32, device=device)
    document = torch.repeat_interleave(torch.arange(2, dtype=torch.int32, device=device), offsets.diff())[None]
    positions = torch.cat([torch.arange(length, device=device) for length in lengths])[None]
    packed = {"position_ids": positions, "cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "seq_idx": document}
    packed |= {"max_length_q": max(lengths), "max_length_k": max(lengths)}
    with torch.no_grad():
        expected = torch.cat([model(part, use_cache=False).logits for part in parts], 1)
        with pytest.raises(ValueError, match="packed sequences"):
            model(torch.cat(parts, 1), use_cache=False, **packed)
        with installed():
            found = model(torch.cat(parts, 1), use_cache=False, **packed).logits
            assert counts() == ours(1, 0)
    assert rel_rms(found, expected) < 1e-4


def check_training(model_type: str, seed: int, rng: torch.Generator, device: str) -> None:
    """Gradients of all parameters are those of transformers' own functions."""
    model, ids = make_model(model_type, seed, device), tokens(rng, 2, 13, device)

    def run() -> tuple[Tensor, dict[str, Tensor]]:
        model.zero_grad()
        result = model(ids, labels=ids, use_cache=False)
        result.loss.backward()
        return result.logits.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    theirs, their_gradients = run()
    with installed():
        found, gradients = run()
        assert counts() == ours(1, 0)
    assert rel_rms(found, theirs) < 1e-4
    for name, gradient in their_gradients.items():
        sums = name.endswith(("A_log", "dt_bias"))  # sums over all tokens, of both signs
        assert rel_rms(gradients[name], gradient) < (1e-2 if sums else 1e-3), name


def check_gradients_of_states(model_type: str, seed: int, rng: torch.Generator, device: str) -> None:
    """The functions that a layer calls, with states that require gradients; a cache itself overwrites what autograd saved."""
    module = import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    names = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule", "causal_conv1d_update")
    rows = {name: torch.randn(2, 9, 4, 16, generator=rng) for name in ("query", "key", "value")}
    rows |= {"g": -torch.rand(2, 9, 4, generator=rng), "beta": torch.rand(2, 9, 4, generator=rng)}
    rows["initial_state"] = torch.randn(2, 4, 16, 16, generator=rng)
    taps = {"hidden_states": torch.randn(2, 24, 1, generator=rng), "state": torch.randn(2, 24, 4, generator=rng)}
    taps["weight"] = torch.randn(24, 4, generator=rng)

    def step(hidden_states: Tensor, state: Tensor, weight: Tensor, convolve: Any) -> Any:
        state = state.clone()  # which is written
        return convolve(hidden_states, state, weight, None, "silu"), state

    def run() -> list[Tensor]:
        found = []
        for name, given in zip(names, (rows, rows, taps), strict=True):
            function = getattr(module, name)
            leaves = {key: x.to(device).requires_grad_() for key, x in given.items()}
            if given is taps:
                results = step(**leaves, convolve=function)
            else:
                results = function(**leaves, output_final_state=True, use_qk_l2norm_in_kernel=True)
            cotangents = [torch.cos(torch.arange(x.numel(), device=device)).view(x.shape) for x in results]
            found += [*results, *torch.autograd.grad(results, list(leaves.values()), cotangents)]
        return found

    theirs = run()
    with installed():
        found = run()
        calls = ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule", "causal_conv1d_update")
        assert counts() == {name: {"gdn_cuda": 1} for name in calls}
    assert all(rel_rms(a, b) < 1e-5 for a, b in zip(found, theirs, strict=True))


def check_bits_of_steps(model_type: str, seed: int, rng: torch.Generator, device: str) -> None:
    """The function of steps has the same bits with gradients and without."""
    module = import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    rows = {name: torch.randn(2, 70, 4, 16, generator=rng).to(device, torch.bfloat16) for name in ("query", "key", "value")}
    rows |= {"g": -torch.rand(2, 70, 4, generator=rng).to(device), "beta": torch.rand(2, 70, 4, generator=rng).to(device)}
    rows["initial_state"] = torch.randn(2, 4, 16, 16, generator=rng).to(device)
    options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    with installed():
        expected = module.torch_recurrent_gated_delta_rule(**rows, **options)
        found = module.torch_recurrent_gated_delta_rule(**rows | {"g": rows["g"].clone().requires_grad_()}, **options)
        assert counts() == {"fused_recurrent_gated_delta_rule": {"gdn_cuda": 2}}
    assert all(a.requires_grad and torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def check_gradient_checkpointing(model_type: str, seed: int, rng: torch.Generator, device: str) -> None:
    """Layers that are computed again in the backward have the same gradients."""
    model, ids = make_model(model_type, seed, device).train(), tokens(rng, 2, 70, device)

    def run() -> dict[str, Tensor]:
        model.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    with installed():
        expected = run()
        model.gradient_checkpointing_enable()
        integrations.reset_calls()
        found = run()
        assert counts()["chunk_gated_delta_rule"] == {"gdn_cuda": 2 * LINEAR}
    assert found.keys() == expected.keys()
    assert all(rel_rms(found[name], expected[name]) < 1e-6 for name in expected)


def check_packed_training(model_type: str, seed: int, rng: torch.Generator, device: str) -> None:
    """Packed documents have the gradients of each alone, by transformers' own functions, which refuse packed rows."""
    model, lengths = make_model(model_type, seed, device), (37, 66)
    parts = [tokens(rng, 1, length, device) for length in lengths]
    offsets = torch.tensor([0, lengths[0], sum(lengths)], dtype=torch.int32, device=device)
    document = torch.repeat_interleave(torch.arange(2, dtype=torch.int32, device=device), offsets.diff())[None]
    positions = torch.cat([torch.arange(length, device=device) for length in lengths])[None]
    packed = {"position_ids": positions, "cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "seq_idx": document}
    packed |= {"max_length_q": max(lengths), "max_length_k": max(lengths)}

    def gradients(logits: Tensor) -> dict[str, Tensor]:
        model.zero_grad()
        logits.square().mean().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    expected = gradients(torch.cat([model(part, use_cache=False).logits for part in parts], 1))
    with installed():
        found = gradients(model(torch.cat(parts, 1), use_cache=False, **packed).logits)
        assert counts() == ours(1, 0)
    for name, gradient in expected.items():
        sums = name.endswith(("A_log", "dt_bias"))
        assert rel_rms(found[name], gradient) < (1e-2 if sums else 1e-3), name


def check_twenty_steps(model_type: str, seed: int, rng: torch.Generator, device: str) -> None:
    """Training has the same losses as on transformers' own functions, step by step. Steps are small, as large ones enlarge any
    rounding: at 1e-3, weights that differ by 1e-7 give losses that differ by 1e-2 after 20 steps; here by less than 1e-4."""
    ids = tokens(rng, 2, 66, device)

    def losses() -> list[float]:
        model = make_model(model_type, seed, device).train()
        optimizer, found = torch.optim.AdamW(model.parameters(), lr=2e-4), []
        for _ in range(20):
            optimizer.zero_grad()
            loss = model(ids, labels=ids, use_cache=False).loss
            loss.backward()
            optimizer.step()
            found.append(float(loss.detach()))
        return found

    theirs = losses()
    with installed():
        found = losses()
        assert counts() == {name: {"gdn_cuda": 20 * count["gdn_cuda"]} for name, count in ours(1, 0).items()}
    assert theirs[-1] < 0.9 * theirs[0]
    assert found == pytest.approx(theirs, rel=1e-3)
