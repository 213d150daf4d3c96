"""Initial states of conv_split_l2norm on the GPU."""

from __future__ import annotations

import torch
from split_cases import check, check_gradients, inputs, with_states
from split_states_on_device import *  # noqa: F403


def test_a_layer(seed: int) -> None:
    """Qwen3-Next's heads."""
    x = with_states(inputs(1, 90, (16, 32, 128, 128), 4, seed, dtype=torch.bfloat16, device="cuda"), seed)
    check(x)
    check_gradients(x, seed)
