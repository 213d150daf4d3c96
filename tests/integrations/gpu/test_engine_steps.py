"""Recorded calls of the step of engines' Mamba layers on the GPU."""

import pytest
from test_mamba_steps import (  # noqa: F401  (fixtures and tests)
    sglang_step,
    test_sglang,
    test_vllm,
    vllm_step,
)


@pytest.fixture
def device() -> str:
    return "cuda"
