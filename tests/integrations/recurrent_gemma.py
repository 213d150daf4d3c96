"""Compares small random RecurrentGemma models of transformers with the same models on rglru_scan."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers import rel_rms

from gdn_cuda.compat.recurrent_gemma import rglru_forward

theirs = pytest.importorskip("transformers.models.recurrent_gemma.modeling_recurrent_gemma")
transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "lru_width": 32,
    "attention_window_size": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def models(device: str, seed: int) -> tuple[Any, Any]:
    """transformers' model, and the same model on our scan."""
    torch.manual_seed(seed)
    plain = theirs.RecurrentGemmaForCausalLM(transformers.RecurrentGemmaConfig(**SIZES)).float().eval().to(device)
    ours = copy.deepcopy(plain)
    for module in ours.modules():
        if isinstance(module, theirs.RecurrentGemmaRglru):
            module.forward = rglru_forward.__get__(module)
    return plain, ours


def tokens(device: str, seed: int, length: int) -> torch.Tensor:
    return torch.randint(3, 50, (2, length), generator=torch.Generator().manual_seed(seed)).to(device)


def check_forward_and_backward(device: str, seed: int) -> None:
    """The second row has two documents."""
    given = tokens(device, seed, 13)
    positions = torch.stack([torch.arange(13), torch.cat([torch.arange(5), torch.arange(8)])]).to(device)
    results = []
    for model in models(device, seed):
        out = model(input_ids=given, position_ids=positions, labels=given, use_cache=False)
        out.loss.backward()
        results.append((out.logits, {name: p.grad for name, p in model.named_parameters()}))
    (expected, plain_grads), (logits, our_grads) = results
    assert rel_rms(logits, expected) < 1e-5
    for name, grad in plain_grads.items():
        assert rel_rms(our_grads[name], grad) < 1e-4, name


def check_generate(device: str, seed: int) -> None:
    prompt = tokens(device, seed, 6)
    mask = torch.ones_like(prompt)
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "attention_mask": mask, "output_scores": True}
    given = models(device, seed)
    expected, found = (model.generate(prompt, return_dict_in_generate=True, **options) for model in given)
    assert torch.equal(found.sequences, expected.sequences) and found.sequences.shape[1] > 6
    assert rel_rms(torch.stack(found.scores), torch.stack(expected.scores)) < 1e-5


def check_a_state_that_continues(device: str, seed: int) -> None:
    """A sequence in two parts, with the state stored in the module: only position 0 resets it."""
    given = models(device, seed)
    plain, ours = (next(m for m in model.modules() if isinstance(m, theirs.RecurrentGemmaRglru)) for model in given)
    x = torch.randn(2, 9, 32, device=device)
    for part in (slice(0, 4), slice(4, 9)):
        positions = torch.arange(9, device=device)[None, part]
        assert rel_rms(ours(x[:, part], positions), plain(x[:, part], positions)) < 1e-5
        assert rel_rms(ours.recurrent_states, plain.recurrent_states) < 1e-5
