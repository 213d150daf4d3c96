"""vLLM's recorded calls of layers of Kimi Delta Attention on the GPU."""

import pytest
from test_vllm_kda import (  # noqa: F401  (fixtures and tests)
    hosts,
    test_mixed_batches_of_kda,
    test_packed_decode,
    test_prompts,
    test_the_convolution_of_keys,
    test_the_prefill_of_glm,
    test_the_prefill_of_k3,
    test_tokens_and_drafts,
)


@pytest.fixture
def device() -> str:
    return "cuda"
