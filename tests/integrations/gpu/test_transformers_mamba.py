"""transformers' Mamba, FalconMamba, Jamba and Mamba-2 on our functions on the GPU."""

from __future__ import annotations

import pytest
import torch
from transformers_mamba import check_bf16, check_forward_and_backward, check_generate


@pytest.mark.parametrize("model_type", ["mamba", "falcon_mamba", "mamba2"])
def test_forward_and_backward(model_type: str, seed: int, rng: torch.Generator) -> None:
    check_forward_and_backward(model_type, seed, rng, "cuda")


@pytest.mark.parametrize("model_type", ["mamba", "falcon_mamba", "jamba", "mamba2"])
def test_generate(model_type: str, seed: int, rng: torch.Generator) -> None:
    check_generate(model_type, seed, rng, "cuda")


@pytest.mark.parametrize("model_type", ["mamba", "falcon_mamba"])
def test_bf16(model_type: str, seed: int, rng: torch.Generator) -> None:
    check_bf16(model_type, seed, rng, "cuda")
