"""Compares small Mamba models of transformers with random weights, on transformers' functions and on ours."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from helpers import rel_rms
from torch import Tensor

from gdn_cuda.compat import mamba_ssm

transformers = pytest.importorskip("transformers", minversion="5.0", reason="transformers 5 is not installed")

_SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "pad_token_id": 0, "eos_token_id": None}
_MAMBA2 = {"num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8}
_JAMBA = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
_JAMBA |= {"num_key_value_heads": 2, "mamba_d_state": 8, "attn_layer_period": 2, "num_experts": 2, "pad_token_id": 0}
_JAMBA |= {"attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1, "eos_token_id": None}
_HYBRID = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
_HYBRID |= {"pad_token_id": 0, "eos_token_id": None}
_HEADS = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_chunk_size": 8}
_BAMBA = _HYBRID | _HEADS | {"num_hidden_layers": 3, "attn_layer_indices": [1]}
_GRANITE = (
    _HYBRID | _HEADS | {"num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"]}
)
_GRANITE |= {"num_local_experts": 2, "num_experts_per_tok": 2, "shared_intermediate_size": 32}
_FALCON = _HYBRID | _HEADS | {"num_hidden_layers": 2, "mamba_d_ssm": 64, "head_dim": 8, "mamba_rms_norm": True}
_NEMOTRON = _HYBRID | {"layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"], "head_dim": 8}
_NEMOTRON |= {"mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 8, "chunk_size": 8}
_ZAMBA2 = _HYBRID | {"num_hidden_layers": 2, "layers_block_type": ["linear_attention", "hybrid"], "num_key_value_heads": 4}
_ZAMBA2 |= {"mamba_d_state": 8, "mamba_ngroups": 2, "n_mamba_heads": 8, "chunk_size": 8, "num_mem_blocks": 1}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mamba": ("MambaConfig", "MambaForCausalLM", _SIZES),
    "falcon_mamba": ("FalconMambaConfig", "FalconMambaForCausalLM", _SIZES | {"time_step_rank": 6}),
    "jamba": ("JambaConfig", "JambaForCausalLM", _JAMBA),
    "mamba2": ("Mamba2Config", "Mamba2ForCausalLM", _SIZES | _MAMBA2),
    "bamba": ("BambaConfig", "BambaForCausalLM", _BAMBA),
    "nemotron_h": ("NemotronHConfig", "NemotronHForCausalLM", _NEMOTRON),
    "zamba2": ("Zamba2Config", "Zamba2ForCausalLM", _ZAMBA2),
    "granitemoehybrid": ("GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM", _GRANITE),
    "falcon_h1": ("FalconH1Config", "FalconH1ForCausalLM", _FALCON),
}


def scan_of(model_type: str) -> str:
    return "mamba_chunk_scan_combined" if model_type == "mamba2" else "selective_scan_fn"


def make_model(model_type: str, seed: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Any:
    config, model, sizes = MODELS[model_type]
    torch.manual_seed(seed)
    made = getattr(transformers, model)(getattr(transformers, config)(**sizes))
    with torch.no_grad():
        for parameter in made.parameters():  # large enough for every part to matter
            parameter.mul_(2) if parameter.dim() > 1 else parameter.add_(0.1 * torch.randn_like(parameter))
    return made.to(device, dtype).eval()


@dataclass
class Calls:
    """Counts transformers' calls of each of our functions."""

    count: dict[str, int] = field(default_factory=dict)

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def watched(*arguments: Any, **named: Any) -> Any:
            self.count[function.__name__] = self.count.get(function.__name__, 0) + 1
            return function(*arguments, **named)

        return watched


@contextmanager
def installed() -> Iterator[Calls]:
    calls = Calls()
    with pytest.MonkeyPatch.context() as patch:
        for name in mamba_ssm._stand_in.looked_up:
            patch.setattr(mamba_ssm, name, calls.watched(getattr(mamba_ssm, name)))
        with mamba_ssm.install():
            yield calls


def tokens(rng: torch.Generator, batch: int, length: int, device: str = "cpu") -> Tensor:
    return torch.randint(1, 64, (batch, length), generator=rng).to(device)


def check_forward_and_backward(model_type: str, seed: int, rng: torch.Generator, device: str) -> None:
    model, ids = make_model(model_type, seed, device), tokens(rng, 2, 13, device)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0  # left padding

    def run() -> tuple[Tensor, dict[str, Tensor]]:
        model.train()
        model.zero_grad()
        result = model(ids, attention_mask=mask, labels=ids, use_cache=False)
        result.loss.backward()
        return result.logits.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}

    theirs, their_gradients = run()
    with installed() as calls:
        ours, our_gradients = run()
    assert calls.count == {scan_of(model_type): 2}  # one for each layer
    assert rel_rms(ours, theirs) < 1e-5
    for name, gradient in their_gradients.items():
        assert rel_rms(our_gradients[name], gradient) < 1e-4, name


def check_generate(model_type: str, seed: int, rng: torch.Generator, device: str) -> None:
    model, ids = make_model(model_type, seed, device), tokens(rng, 3, 7, device)
    options = {"max_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    theirs = model.generate(ids, **options)
    with installed() as calls:
        ours = model.generate(ids, **options)
    assert calls.count["selective_state_update"] == 5 * 2
    assert torch.equal(ours.sequences, theirs.sequences)
    for a, b in zip(ours.logits, theirs.logits, strict=True):
        assert rel_rms(a, b) < 1e-5


def check_bf16(model_type: str, seed: int, rng: torch.Generator, device: str) -> None:
    """Results are no further from the fp32 model than with transformers' own functions, which keep the state in bf16."""
    exact, model, ids = (
        make_model(model_type, seed, device),
        make_model(model_type, seed, device, torch.bfloat16),
        tokens(rng, 2, 24, device),
    )
    exact.load_state_dict(model.state_dict())

    @torch.no_grad()
    def run(model: Any) -> Tensor:
        """The logits of a prompt, and of one more token from its states."""
        prompt = model(ids[:, :-1], use_cache=True)
        return torch.cat([prompt.logits, model(ids[:, -1:], cache_params=prompt.cache_params, use_cache=True).logits], 1)

    expected, theirs = run(exact), run(model)
    with installed() as calls:
        ours = run(model)
    assert calls.count == {scan_of(model_type): 2, "selective_state_update": 2}
    assert rel_rms(ours, expected) < max(1.1 * rel_rms(theirs, expected), 1e-2)
