"""The kernels of hyena_short in the emulator."""

from __future__ import annotations

import pytest
import torch
from emulated import emulated
from helpers import rel_rms
from hyena_cases import fir_parameters, gated_inputs
from hyena_fir_checks import laid_out
from hyena_short_on_device import *  # noqa: F403

from gdn_cuda import hyena_short


@pytest.mark.parametrize("layout", ["tokens", "channels"])
@pytest.mark.parametrize("K", [7, 32])
def test_gradients_do_not_depend_on_the_split(layout: str, K: int, seed: int) -> None:
    """Gradients of x1, x2, v and the initial state have the same bits; the other ones are summed in another order."""
    B, D, L = 1, 5, 1600
    x = [laid_out(y.bfloat16(), layout) for y in gated_inputs(B, D, L, seed)]
    given = [*x, *(y.float() for y in fir_parameters(D, D, K, seed)), torch.ones(B, D, K - 1)]
    leaves = [y.requires_grad_() for y in given]

    def gradients(multiprocessors: int) -> tuple[torch.Tensor, ...]:
        with emulated(multiprocessors):
            y, state = hyena_short(*leaves[:5], gated_bias=True, initial_state=leaves[5], return_state=True)
            return torch.autograd.grad((y, state), leaves, (torch.ones_like(y), torch.ones_like(state)))

    few, many = gradients(1), gradients(132)
    for i, (mine, other) in enumerate(zip(few, many, strict=True)):
        assert torch.equal(mine, other) if i not in (3, 4) else rel_rms(mine, other) < 1e-5, i
