"""SGLang's recorded calls on the GPU."""

import pytest
from test_sglang import (  # noqa: F401  (fixtures and tests)
    host,
    kernel,
    test_a_tree_of_drafts,
    test_conv_of_decodes,
    test_conv_of_prompts,
    test_decode,
    test_extend,
    test_states_of_a_declined_prefill_are_the_planned_ones,
    test_target_verify,
)


@pytest.fixture
def device() -> str:
    return "cuda"
