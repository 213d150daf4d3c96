"""transformers' Mamba, FalconMamba, Jamba, Mamba-2 and LFM2 on gdn_cuda.integrations.transformers: the tests of the shims in
gdn_cuda.compat, and the gated norm of Mamba-2."""

from __future__ import annotations

import pytest
import torch
import transformers_conv
import transformers_mamba
from helpers import rel_rms
from transformers_gdn import counts, installed

STEPS = 5  # of generate, after the first token
LAYERS = {"mamba": 2, "falcon_mamba": 2, "jamba": 2, "mamba2": 2, "lfm2": 2}  # layers with a convolution


def expected(model_type: str) -> dict[str, dict[str, int]]:
    times = {"causal_conv1d_fn": 1, "causal_conv1d_update": STEPS}
    if model_type == "mamba2":
        times |= {"selective_state_update": STEPS, "rms_norm_gated": STEPS + 1}
    elif model_type != "lfm2":
        times |= {"selective_scan_fn": 1, "selective_state_update": STEPS}
    return {name: {"gdn_cuda": count * LAYERS[model_type]} for name, count in times.items()}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("model_type", LAYERS)
def test_generate(model_type: str, masked: bool, seed: int, rng: torch.Generator) -> None:
    made_by = transformers_conv if model_type == "lfm2" else transformers_mamba
    model = made_by.make_model(model_type, seed)
    ids = torch.randint(1, 64, (2, 9), generator=rng)
    mask = torch.ones_like(ids)
    mask[0, : 3 * masked] = 0
    options = {"max_new_tokens": STEPS + 1, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    theirs = model.generate(ids, attention_mask=mask, **options)
    with installed():
        found = model.generate(ids, attention_mask=mask, **options)
        assert counts() == expected(model_type)
    assert torch.equal(found.sequences, theirs.sequences)
    for a, b in zip(found.logits, theirs.logits, strict=True):
        assert rel_rms(a, b) < 1e-4


@pytest.mark.parametrize("model_type", ["mamba", "jamba", "lfm2"])
def test_training(model_type: str, seed: int, rng: torch.Generator) -> None:
    """The scans and convolutions have gradients, so no call falls back; with left padding."""
    model = (transformers_conv if model_type == "lfm2" else transformers_mamba).make_model(model_type, seed).train()
    ids = torch.randint(1, 64, (2, 13), generator=rng)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0

    def run() -> dict[str, torch.Tensor]:
        model.zero_grad()
        model(ids, attention_mask=mask, labels=ids, use_cache=False).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    theirs = run()
    with installed():
        found = run()
        assert all(set(count) == {"gdn_cuda"} for count in counts().values()) and "causal_conv1d_fn" in counts()
    for name, gradient in theirs.items():
        assert rel_rms(found[name], gradient) < 1e-3, name
