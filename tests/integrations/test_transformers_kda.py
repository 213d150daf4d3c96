"""transformers' Kimi Linear, GLM-5-Next and Bailing Hybrid on gdn_cuda.integrations.transformers: Kimi Delta Attention."""

from __future__ import annotations

import pytest
import torch
from transformers_kda import (
    FILES,
    MODELS,
    check_functions,
    check_generate,
    check_gradients_of_steps,
    check_packed_documents,
    check_training,
)


@pytest.mark.parametrize("file", FILES)
def test_functions(file: str, rng: torch.Generator) -> None:
    check_functions(file, rng, "cpu")


@pytest.mark.parametrize("model_type", MODELS)
def test_generate(model_type: str, seed: int, rng: torch.Generator) -> None:
    check_generate(model_type, seed, rng, "cpu")


def test_packed_documents(seed: int, rng: torch.Generator) -> None:
    check_packed_documents(seed, rng, "cpu")


def test_gradients_of_steps(rng: torch.Generator) -> None:
    check_gradients_of_steps(rng, "cpu")


def test_training(seed: int, rng: torch.Generator) -> None:
    check_training(seed, rng, "cpu")
