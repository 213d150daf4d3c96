"""conv_split_l2norm from initial states, with their gradients, against its definition in fp64."""

from __future__ import annotations

import pytest
import torch
from devices import Device
from split_cases import check, check_gradients, inputs, with_states

HEADS = [(1, 2, 16, 8), (1, 2, 5, 3)]  # of split_columns, and of split_conv


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_initial_states(heads: tuple[int, int, int, int], dtype: torch.dtype, device: Device, seed: int) -> None:
    """Sequences longer and shorter than the window, packed ones of no tokens too; states of x's dtype and in fp32."""
    for given in (
        inputs(2, 40, heads, 4, seed, dtype=dtype, device=device.name),
        inputs(3, 2, heads, 4, seed, dtype=dtype, device=device.name),
        inputs(1, 80, heads, 4, seed, dtype=dtype, device=device.name, packed=[0, 2, 2, 66, 68, 78]),
    ):
        for states in (dtype, torch.float32):
            x = with_states(given, seed, dtype=states)
            with device.kernels():
                check(x)
                check_gradients(x, seed)
