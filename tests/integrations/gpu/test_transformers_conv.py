"""transformers' models with short convolutions on the GPU, with transformers' convolutions and with ours."""

from __future__ import annotations

import pytest
import torch
from transformers_conv import KINDS, check_forward_and_backward, check_generate


@pytest.mark.parametrize("kind", KINDS)
def test_forward_and_backward(kind: str, seed: int, rng: torch.Generator) -> None:
    check_forward_and_backward(kind, seed, rng, "cuda")


@pytest.mark.parametrize("kind", KINDS)
def test_generate(kind: str, seed: int, rng: torch.Generator) -> None:
    check_generate(kind, seed, rng, "cuda")
