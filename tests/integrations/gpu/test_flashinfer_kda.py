"""FlashInfer's recurrent_kda on the GPU."""

import pytest
from test_flashinfer_kda import (  # noqa: F401  (tests)
    test_a_token_of_every_sequence,
    test_drafts,
    test_no_state,
    test_prefill_in_place,
    test_prefill_of_a_pool_with_checkpoints,
    test_states_that_are_only_read,
)


@pytest.fixture
def device() -> str:
    return "cuda"
