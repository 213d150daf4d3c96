"""FLA's dispatch on the GPU, against its own definition."""

import pytest
from test_fla import (  # noqa: F401  (fixtures and tests)
    installed,
    test_batch,
    test_by_token_gradients_change_no_bit,
    test_calls_of_trainers_that_use_fla,
    test_gradients,
    test_gradients_of_a_convolution_with_states,
    test_gradients_of_convolution_and_norm,
    test_no_gate_no_beta_and_a_scale,
    test_packed_sequences,
    test_raw_gates,
    test_short_convolution_with_states,
)


@pytest.fixture
def device() -> str:
    return "cuda"
