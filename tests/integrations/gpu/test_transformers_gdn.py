"""transformers' Qwen3-Next, Qwen3.5 and OLMo-Hybrid on the GPU, on its own functions and on ours."""

from __future__ import annotations

import pytest
import torch
from transformers_gdn import KINDS, check_bf16, check_continued_prompt, check_generate, check_packed, check_training


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", [check_generate, check_bf16, check_continued_prompt, check_packed, check_training])
def test_models(kind: str, check: object, seed: int, rng: torch.Generator) -> None:
    check(kind, seed, rng, "cuda")  # type: ignore[operator]
