"""SGLang's recorded calls of Kimi Delta Attention on the GPU."""

import pytest
from test_sglang_kda import (  # noqa: F401  (fixtures and tests)
    host,
    kernel,
    test_a_tree_of_drafts,
    test_decode,
    test_extend,
    test_target_verify,
)


@pytest.fixture
def device() -> str:
    return "cuda"
