"""hyena_filter on the GPU, and fft_causal_conv, whose transforms are torch's, against its definition in fp64."""

from __future__ import annotations

import hyena_oracle as oracle
import pytest
import torch
from helpers import rel_rms
from hyena_cases import draws
from hyena_filter_on_device import *  # noqa: F403

from gdn_cuda import fft_causal_conv


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("L", [1, 100, 2048, 20000])
def test_convolutions(L: int, dtype: torch.dtype, seed: int) -> None:
    draw = draws(seed, dtype)
    u, k, D = draw(2, 6, L), draw(3, (L + 1) // 2).float(), draw(6)
    bound = {torch.float32: 2e-6, torch.bfloat16: 3e-3, torch.float16: 5e-4}[dtype]
    y = fft_causal_conv(u.cuda(), k.cuda(), D.cuda())
    assert y.dtype == dtype and rel_rms(y, fft_causal_conv(u.double(), k.double(), D.double())) < bound
    if L <= 2048:
        assert rel_rms(y, torch.from_numpy(oracle.causal_conv(u, k, D))) < bound


def test_gradients_of_convolutions(seed: int) -> None:
    draw = draws(seed)
    given = [draw(2, 4, 3000), draw(2, 2000), draw(4)]
    grad = draw(2, 4, 3000)

    def gradients(device: str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        leaves = [x.to(device, dtype).requires_grad_() for x in given]
        return torch.autograd.grad(fft_causal_conv(*leaves), leaves, grad.to(device, dtype))

    for mine, other in zip(gradients("cuda", torch.float32), gradients("cpu", torch.float64), strict=True):
        assert rel_rms(mine, other) < 5e-6
