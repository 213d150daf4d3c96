"""FLA's layer under our name, and FLA's own on our functions, on the GPU: gradients, and twenty steps of training."""

import pytest
import torch
from test_fla_layer import (  # noqa: F401  (tests)
    check,
    make,
    test_flas_layer_has_our_gradients,
    test_gradients_of_all_parameters,
    test_modes_compute_the_same,
    test_packed,
    test_twenty_steps_of_training,
    tokens,
)


@pytest.fixture
def device() -> str:
    return "cuda"


def test_half_precision(seed: int, rng: torch.Generator) -> None:
    """Sizes of a model, for which the kernels of tensor cores run."""
    layer = make("plain", seed, head_dim=64, expand_v=2).to("cuda", torch.bfloat16)
    check(lambda x: layer(x)[0], layer, tokens(rng, 2, 150, torch.bfloat16).cuda(), tolerance=4e-2)
