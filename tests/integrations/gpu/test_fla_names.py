"""FLA's functions under our names on the GPU, with gradients, against the recurrence written out."""

import pytest
from test_fla_names import (  # noqa: F401  (tests)
    test_activation_checkpointing,
    test_betas_without_gates,
    test_by_token_gradients_change_no_bit,
    test_flas_layer,
    test_gates_and_norms_inside,
    test_gradients_of_every_input,
    test_half_precision,
    test_megatron_0_16,
    test_megatron_main,
    test_no_state_and_no_final_one,
    test_packed_sequences,
    test_states_are_views_and_fp32,
    test_torchtitan_0_3,
    test_torchtitan_main,
    test_without_gradients_the_results_are_the_same,
)


@pytest.fixture
def device() -> str:
    return "cuda"
