"""vLLM's recorded calls on the GPU."""

import pytest
from test_vllm import (  # noqa: F401  (fixtures and tests)
    layer,
    module,
    test_conv_of_decodes_and_drafts,
    test_conv_of_prompts,
    test_conv_of_prompts_with_longer_tables,
    test_decode_is_the_same_in_any_order_with_any_padding,
    test_gated_norm,
    test_mixed_batches_and_drafts,
    test_packed_decode,
    test_prefill,
)


@pytest.fixture
def device() -> str:
    return "cuda"
