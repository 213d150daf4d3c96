"""transformers' Kimi Linear, GLM-5-Next and Bailing Hybrid on the GPU: Kimi Delta Attention."""

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
    check_functions(file, rng, "cuda")


@pytest.mark.parametrize("model_type", MODELS)
def test_generate(model_type: str, seed: int, rng: torch.Generator) -> None:
    check_generate(model_type, seed, rng, "cuda")


def test_packed_documents(seed: int, rng: torch.Generator) -> None:
    check_packed_documents(seed, rng, "cuda")


def test_gradients_of_steps(rng: torch.Generator) -> None:
    check_gradients_of_steps(rng, "cuda")


def test_training(seed: int, rng: torch.Generator) -> None:
    check_training(seed, rng, "cuda")
