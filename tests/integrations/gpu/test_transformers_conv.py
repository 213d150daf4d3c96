"""transformers' models with short convolutions on the GPU, with transformers' convolutions and with ours."""

from __future__ import annotations

import pytest
import torch
from transformers_conv import MODELS, check_forward_and_backward, check_generate


@pytest.mark.parametrize("model_type", MODELS)
def test_forward_and_backward(model_type: str, seed: int, rng: torch.Generator) -> None:
    check_forward_and_backward(model_type, seed, rng, "cuda")


@pytest.mark.parametrize("model_type", MODELS)
def test_generate(model_type: str, seed: int, rng: torch.Generator) -> None:
    check_generate(model_type, seed, rng, "cuda")
