"""Compares transformers' functions of Kimi Delta Attention, and small models with random weights, on its own functions and on
ours."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from engine_calls import l2norm, recurrence
from helpers import rel_rms
from torch import Tensor
from torch_functions import import_models
from transformers_gdn import counts, installed, tokens, transformers

FILES = ["kimi_linear", "glm5_next", "bailing_hybrid"]
_LAYERS = ["linear_attention", "linear_attention", "full_attention"]
LINEAR = _LAYERS.count("linear_attention")
_COMMON: dict[str, Any] = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 3, "layer_types": _LAYERS}
_COMMON |= {"num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 64, "moe_intermediate_size": 32}
_COMMON |= {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "num_local_experts": 2}
_COMMON |= {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "mlp_layer_types": ["dense"] * 3}
_COMMON |= {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
_KIMI = {"linear_attn_config": {"head_dim": 16, "num_heads": 4, "short_conv_kernel_size": 4}}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "kimi_linear": ("KimiLinearConfig", "KimiLinearForCausalLM", _KIMI),
    "bailing_hybrid": ("BailingHybridConfig", "BailingHybridForCausalLM", {"head_dim": 16}),
}

import_models(FILES)


def make_model(model_type: str, seed: int, device: str) -> Any:
    config, model, sizes = MODELS[model_type]
    torch.manual_seed(seed)
    made = getattr(transformers, model)(getattr(transformers, config)(**_COMMON | sizes))
    with torch.no_grad():
        for name, parameter in made.named_parameters():  # large enough for every part to matter
            if "conv" in name:
                parameter.copy_(torch.randn_like(parameter))
            elif parameter.dim() > 1:
                parameter.mul_(2)
    return made.to(device).eval()


def ours(prefills: int, steps: int) -> dict[str, dict[str, int]]:
    """The expected `counts` after so many prefills and steps."""
    expected = {"chunk_kda": prefills, "fused_recurrent_kda": steps, "causal_conv1d_fn": prefills}
    expected |= {"causal_conv1d_update": steps, "rms_norm_gated": prefills + steps}
    return {name: {"gdn_cuda": count * LINEAR} for name, count in expected.items() if count}


def check_functions(file: str, rng: torch.Generator, device: str) -> None:
    """The calls of a layer, compared with the recurrence in fp64: a prompt with and without a state, a token, packed ones."""
    module = import_module(f"transformers.models.{file}.modeling_{file}")
    B, T, H, K = 2, 70, 3, 16
    x = {name: torch.randn(B, T, H, K, generator=rng).bfloat16() for name in ("query", "key", "value")}
    x |= {"g": -torch.randn(B, T, H, K, generator=rng).exp(), "beta": torch.rand(B, T, H, generator=rng)}
    state = torch.randn(B, H, K, K, generator=rng).to(device)
    x = {name: y.to(device) for name, y in x.items()}
    options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}

    def literal(span: slice, row: int, initial: Tensor) -> tuple[Tensor, Tensor]:
        given = (y[row, span] for y in (l2norm(x["query"]), l2norm(x["key"]), x["value"], x["g"], x["beta"]))
        output, states = recurrence(*given, initial.mT)
        return output, states[-1].mT

    def check(found: tuple[Tensor, Tensor], expected: list[tuple[Tensor, Tensor]], bound: float) -> None:
        assert found[0].dtype == torch.bfloat16 and found[1].dtype == torch.float32
        assert rel_rms(found[0].reshape(-1, H, K), torch.cat([y for y, _ in expected])) < 5e-3
        assert rel_rms(found[1], torch.stack([y for _, y in expected])) < bound

    prefill = 5e-3 if device == "cuda" else 1e-5
    with installed():
        for initial in (None, state):
            found = module.chunk_kimi_delta_attention(**x, **options, initial_state=initial)
            start = torch.zeros_like(state) if initial is None else state
            check(found, [literal(slice(None), row, start[row]) for row in range(B)], prefill)
        token = {name: y[:, :1] for name, y in x.items()}
        found = module.recurrent_kimi_delta_attention(**token, **options, initial_state=state)
        check(found, [literal(slice(1), row, state[row]) for row in range(B)], 1e-5)
        one = {name: y[:1] for name, y in x.items()}
        offsets = torch.tensor([0, 33, T], dtype=torch.int32, device=device)
        found = module.chunk_kimi_delta_attention(**one, **options, initial_state=state, cu_seq_lens_q=offsets)
        check(found, [literal(slice(0, 33), 0, state[0]), literal(slice(33, T), 0, state[1])], prefill)
        assert module.chunk_kimi_delta_attention(**one, initial_state=None)[1] is None
        assert counts() == {"chunk_kda": {"gdn_cuda": 4}, "fused_recurrent_kda": {"gdn_cuda": 1}}


def check_generate(model_type: str, seed: int, rng: torch.Generator, device: str) -> None:
    """In fp32 the tokens are the same, from prompts of one token and of more than a chunk."""
    model = make_model(model_type, seed, device)
    options = {"max_new_tokens": 8, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    for length in (1, 70):
        ids = tokens(rng, 2, length, device)
        theirs = model.generate(ids, **options)
        with installed():
            found = model.generate(ids, **options)
            assert counts() == ours(1, 7)
        assert torch.equal(found.sequences, theirs.sequences)
        for a, b in zip(found.logits, theirs.logits, strict=True):
            assert rel_rms(a, b) < 1e-4


def check_packed_documents(seed: int, rng: torch.Generator, device: str) -> None:
    """Packed documents have the logits of each alone."""
    model, lengths = make_model("kimi_linear", seed, device), (37, 66)
    parts = [tokens(rng, 1, length, device) for length in lengths]
    offsets = torch.tensor([0, lengths[0], sum(lengths)], dtype=torch.int32, device=device)
    document = torch.repeat_interleave(torch.arange(2, dtype=torch.int32, device=device), offsets.diff())[None]
    positions = torch.cat([torch.arange(length, device=device) for length in lengths])[None]
    packed = {"position_ids": positions, "cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "seq_idx": document}
    packed |= {"max_length_q": max(lengths), "max_length_k": max(lengths)}
    with torch.no_grad():
        expected = torch.cat([model(part, use_cache=False).logits for part in parts], 1)
        with installed():
            found = model(torch.cat(parts, 1), use_cache=False, **packed).logits
            assert counts() == ours(1, 0)
    assert rel_rms(found, expected) < 1e-4


def check_gradients_of_steps(rng: torch.Generator, device: str) -> None:
    """transformers' recurrence in training, compared with autograd's through the recurrence in fp64."""
    module = import_module("transformers.models.kimi_linear.modeling_kimi_linear")
    T, H, K = 5, 3, 16
    x = {name: torch.randn(1, T, H, K, generator=rng) for name in ("query", "key", "value")}
    x |= {"g": -torch.randn(1, T, H, K, generator=rng).exp(), "beta": torch.rand(1, T, H, generator=rng)}
    x["initial_state"] = torch.randn(1, H, K, K, generator=rng)
    x = {name: y.to(device).requires_grad_() for name, y in x.items()}
    given = (y[0].double() for y in (l2norm(x["query"]), l2norm(x["key"]), x["value"], x["g"], x["beta"]))
    output, states = recurrence(*given, x["initial_state"][0].double().mT)
    expected = torch.autograd.grad((output**2).sum() + (states[-1] ** 2).sum(), list(x.values()))
    with installed():
        found, state = module.recurrent_kimi_delta_attention(**x, output_final_state=True, use_qk_l2norm_in_kernel=True)
        assert counts() == {"fused_recurrent_kda": {"gdn_cuda": 1}}
    gradients = torch.autograd.grad((found**2).sum() + (state**2).sum(), list(x.values()))
    for name, gradient, wanted in zip(x, gradients, expected, strict=True):
        assert rel_rms(gradient, wanted) < 1e-5, name


def check_training(seed: int, rng: torch.Generator, device: str) -> None:
    """Gradients of all parameters are those of transformers' own functions within rounding."""
    model, ids = make_model("kimi_linear", seed, device).train(), tokens(rng, 2, 20, device)

    def run() -> dict[str, Tensor]:
        model.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    theirs = run()
    with installed():
        found = run()
        assert counts() == ours(1, 0)
    for name, gradient in theirs.items():
        assert rel_rms(found[name], gradient) < 1e-3, name
