"""FLA's dispatch of Kimi Delta Attention on the GPU."""

import pytest
from test_fla_kda_backend import (  # noqa: F401  (fixtures and tests)
    installed,
    test_gradients,
    test_states_between_chunks,
    test_the_call_of_flas_layer,
    test_the_forward_by_position,
)


@pytest.fixture
def device() -> str:
    return "cuda"
