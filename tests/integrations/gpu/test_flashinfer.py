"""FlashInfer's names on the GPU."""

import pytest
from test_flashinfer import (  # noqa: F401  (tests)
    test_decode_from_slots_to_others_and_to_none,
    test_decode_of_a_batch,
    test_decode_of_a_pool,
    test_decode_of_states_with_keys_first,
    test_decode_to_a_buffer_and_to_the_pool,
    test_no_decays_no_betas,
    test_prefill_into_the_callers_tensors,
    test_prefill_of_a_pool,
    test_prefill_of_decays,
    test_prefill_of_grouped_queries,
    test_prefill_of_states_in_place,
    test_states_of_every_step_and_the_last_one_to_the_pool,
    test_states_of_every_step_and_the_last_one_without_slots,
)


@pytest.fixture
def device() -> str:
    return "cuda"
