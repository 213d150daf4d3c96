"""The step of a layer of Kimi Delta Attention as vLLM and FlashInfer call it, on the GPU."""

import pytest
from test_kda_layer import ops, test_both_have_the_same_bits, test_flashinfers, test_vllms  # noqa: F401


@pytest.fixture
def device() -> str:
    return "cuda"
