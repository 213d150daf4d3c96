"""transformers' Mamba, FalconMamba, Jamba, LFM2, and its six models with Mamba-2's layers, on
gdn_cuda.integrations.transformers: the tests of the shims in gdn_cuda.compat, and the gated norm of Mamba-2."""

from __future__ import annotations

import pytest
import torch
import transformers_conv
import transformers_mamba
from helpers import rel_rms
from transformers_gdn import counts, installed

STEPS = 5  # of generate, after the first token
MAMBA2 = ["mamba2", "bamba", "nemotron_h", "zamba2", "granitemoehybrid", "falcon_h1"]
LAYERS = dict.fromkeys(["mamba", "falcon_mamba", "jamba", "lfm2", *MAMBA2], 2)  # layers with a convolution


def expected(model_type: str) -> dict[str, dict[str, int]]:
    times = {"causal_conv1d_fn": 1, "causal_conv1d_update": STEPS}
    if model_type in MAMBA2:
        times |= {"mamba_chunk_scan_combined": 1, "selective_state_update": STEPS, "rms_norm_gated": STEPS + 1}
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


@pytest.mark.parametrize("model_type", ["mamba", "jamba", "lfm2", *MAMBA2])
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


# mamba2 passes no seq_idx on to its layers, and the attention of granitemoehybrid does not keep documents apart.
@pytest.mark.parametrize("model_type", ["bamba", "nemotron_h", "zamba2", "falcon_h1"])
def test_packed_training(model_type: str, seed: int, rng: torch.Generator) -> None:
    """Packed documents have the gradients of each alone, by transformers' own functions, which refuse packed rows."""
    model, lengths = transformers_mamba.make_model(model_type, seed).train(), (7, 16)
    parts = [torch.randint(1, 64, (1, length), generator=rng) for length in lengths]
    offsets = torch.tensor([0, lengths[0], sum(lengths)], dtype=torch.int32)
    document = torch.repeat_interleave(torch.arange(2, dtype=torch.int32), offsets.diff())[None]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    packed = {"position_ids": positions, "cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "seq_idx": document}
    packed |= {"max_length_q": max(lengths), "max_length_k": max(lengths)}

    def gradients(logits: torch.Tensor) -> dict[str, torch.Tensor]:
        model.zero_grad()
        logits.square().mean().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    theirs = gradients(torch.cat([model(part, use_cache=False).logits for part in parts], 1))
    with pytest.raises(ValueError, match="packed sequences"):
        model(torch.cat(parts, 1), use_cache=False, **packed)
    with installed():
        found = gradients(model(torch.cat(parts, 1), use_cache=False, **packed).logits)
        of_parts = {"causal_conv1d_fn", "mamba_chunk_scan_combined", "rms_norm_gated"}
        names = of_parts if model_type == "falcon_h1" else {"mamba_split_conv1d_scan_combined"}
        assert counts() == {name: {"gdn_cuda": LAYERS[model_type]} for name in names}
    for name, gradient in theirs.items():
        assert rel_rms(found[name], gradient) < 1e-3, name


@pytest.mark.parametrize("model_type", MAMBA2)
@torch.no_grad()
def test_continued_prompt(model_type: str, seed: int, rng: torch.Generator) -> None:
    """The second part of a prompt starts from states, and has more than one token."""
    model, ids = transformers_mamba.make_model(model_type, seed), torch.randint(1, 64, (2, 21), generator=rng)

    def run() -> torch.Tensor:
        first = model(ids[:, :13], use_cache=True)
        name = next(each for each in ("past_key_values", "cache_params") if getattr(first, each, None) is not None)
        return model(ids[:, 13:], use_cache=True, **{name: getattr(first, name)}).logits

    theirs = run()
    with installed():
        found = run()
        assert counts()["mamba_chunk_scan_combined"] == {"gdn_cuda": 2 * LAYERS[model_type]}
    assert rel_rms(found, theirs) < 1e-4
