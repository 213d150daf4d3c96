"""transformers' Qwen3-Next, Qwen3.5 and OLMo-Hybrid on the GPU, on its own functions and on ours."""

from __future__ import annotations

import pytest
import torch
from transformers_gdn import MODELS, check_bf16, check_continued_prompt, check_generate, check_packed, check_training


@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize("check", [check_generate, check_bf16, check_continued_prompt, check_packed, check_training])
def test_models(model_type: str, check: object, seed: int, rng: torch.Generator) -> None:
    check(model_type, seed, rng, "cuda")  # type: ignore[operator]
