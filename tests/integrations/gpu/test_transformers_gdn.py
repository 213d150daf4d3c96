"""transformers' Qwen3-Next, Qwen3.5 and OLMo-Hybrid on the GPU, on its own functions and on ours."""

from __future__ import annotations

import pytest
import torch
from transformers_gdn import (
    MODELS,
    check_bf16,
    check_bits_of_steps,
    check_continued_prompt,
    check_generate,
    check_gradient_checkpointing,
    check_gradients_of_states,
    check_packed,
    check_packed_training,
    check_training,
    check_twenty_steps,
)


@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize("check", [check_generate, check_bf16, check_continued_prompt, check_packed, check_training])
def test_models(model_type: str, check: object, seed: int, rng: torch.Generator) -> None:
    check(model_type, seed, rng, "cuda")  # type: ignore[operator]


@pytest.mark.parametrize("model_type", ["qwen3_next", "qwen3_5"])
@pytest.mark.parametrize(
    "check",
    [
        check_twenty_steps,
        check_packed_training,
        check_gradients_of_states,
        check_bits_of_steps,
        check_gradient_checkpointing,
    ],
)
def test_training(model_type: str, check: object, seed: int, rng: torch.Generator) -> None:
    check(model_type, seed, rng, "cuda")  # type: ignore[operator]
