"""Compares small models of transformers with short convolutions and random weights, on transformers' convolutions and on
ours."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from helpers import rel_rms
from torch import Tensor
from torch_functions import import_models

from gdn_cuda.compat import causal_conv1d

transformers = pytest.importorskip("transformers", minversion="5.0", reason="transformers 5 is not installed")

LAYERS = 2  # layers with a convolution
BOUND = 1e-4  # these models amplify a rounding error of 1e-7 up to a hundredfold
_COMMON: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "pad_token_id": 0, "eos_token_id": None}
_ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 32}
_GDN = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
_EXPERTS = {"num_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mamba": ("MambaConfig", "MambaForCausalLM", {"num_hidden_layers": 2, "state_size": 8}),
    "qwen3_next": (
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        _ATTENTION | _GDN | _EXPERTS | {"num_hidden_layers": 3, "layer_types": ["linear_attention"] * 2 + ["full_attention"]},
    ),
    "lfm2": (
        "Lfm2Config",
        "Lfm2ForCausalLM",
        _ATTENTION | {"num_hidden_layers": 3, "layer_types": ["conv", "conv", "full_attention"], "conv_L_cache": 3},
    ),
}


import_models(MODELS)


def make_model(model_type: str, seed: int, device: str = "cpu") -> Any:
    config, model, sizes = MODELS[model_type]
    torch.manual_seed(seed)
    made = getattr(transformers, model)(getattr(transformers, config)(**_COMMON | sizes))
    with torch.no_grad():
        for name, parameter in made.named_parameters():  # large enough for the convolutions to matter
            if "conv" in name and parameter.dim() > 2:
                parameter.copy_(torch.randn_like(parameter))
            elif parameter.dim() > 1:
                parameter.mul_(2)
    return made.to(device).eval()


@contextmanager
def installed() -> Iterator[dict[str, int]]:
    """Installs ours; yields how often transformers has called each of our functions."""
    count: dict[str, int] = {}

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def watched(*arguments: Any, **named: Any) -> Any:
            count[function.__name__] = count.get(function.__name__, 0) + 1
            return function(*arguments, **named)

        return watched

    with pytest.MonkeyPatch.context() as patch:
        for name in ("causal_conv1d_fn", "causal_conv1d_update"):
            patch.setattr(causal_conv1d, name, watched(getattr(causal_conv1d, name)))
        with causal_conv1d.install():
            yield count


def tokens(rng: torch.Generator, batch: int, length: int, device: str) -> Tensor:
    return torch.randint(1, 64, (batch, length), generator=rng).to(device)


def check_forward_and_backward(model_type: str, seed: int, rng: torch.Generator, device: str) -> None:
    model, ids = make_model(model_type, seed, device), tokens(rng, 2, 13, device)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0  # left padding

    def run() -> tuple[Tensor, dict[str, Tensor]]:
        model.zero_grad()
        result = model(ids, attention_mask=mask, labels=ids, use_cache=False)
        result.loss.backward()
        return result.logits.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    theirs, their_gradients = run()
    with installed() as count:
        ours, our_gradients = run()
    assert count == {"causal_conv1d_fn": LAYERS}
    assert rel_rms(ours, theirs) < BOUND
    assert any("conv" in name for name in their_gradients)
    for name, gradient in their_gradients.items():
        assert rel_rms(our_gradients[name], gradient) < 10 * BOUND, name


def check_generate(model_type: str, seed: int, rng: torch.Generator, device: str) -> None:
    """Also from a prompt that is shorter than a convolution."""
    model = make_model(model_type, seed, device)
    options = {"max_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    for length in (2, 7):
        ids = tokens(rng, 3, length, device)
        theirs = model.generate(ids, **options)
        with installed() as count:
            ours = model.generate(ids, **options)
        assert count == {"causal_conv1d_fn": LAYERS, "causal_conv1d_update": 5 * LAYERS}
        assert torch.equal(ours.sequences, theirs.sequences)
        for a, b in zip(ours.logits, theirs.logits, strict=True):
            assert rel_rms(a, b) < BOUND
