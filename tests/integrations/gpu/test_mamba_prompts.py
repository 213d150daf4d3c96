"""Recorded calls of the scan of prompts in engines' Mamba-2 layers, and what they call beside it, on the GPU."""

import pytest
from test_mamba_layers import (  # noqa: F401  (fixtures and tests)
    sglang_mixer,
    test_a_prompt_in_two_calls,
    test_norm,
    vllm_mixer,
)
from test_mamba_prompts import (  # noqa: F401
    test_sglang,
    test_vllm,
)


@pytest.fixture
def device() -> str:
    return "cuda"
