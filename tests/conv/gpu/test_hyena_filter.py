"""hyena_filter, its gradients and fft_causal_conv on the GPU against their definitions in fp64."""

from __future__ import annotations

import hyena_oracle as oracle
import pytest
import torch
from helpers import rel_rms
from hyena_cases import draws, modal_parameters

from gdn_cuda import fft_causal_conv, hyena_filter
from gdn_cuda.conv.reference_hyena import modal_filter


@pytest.mark.parametrize("L", [1, 33, 256, 1025, 4097, 40000, 2**20])
@pytest.mark.parametrize("S", [1, 16, 64])
def test_filters_and_their_gradients(S: int, L: int, seed: int) -> None:
    parameters = [x.cuda() for x in modal_parameters(5, 5, S, seed, torch.float32)[:2]]
    wide = [x.double() for x in parameters]
    leaves = [x.requires_grad_() for x in parameters]
    h = hyena_filter(*leaves, L)
    assert rel_rms(h, modal_filter(*wide, L)) < 2e-6
    grad = torch.randn(5, L, device="cuda")
    found = torch.autograd.grad(h, leaves, grad)
    again = torch.autograd.grad(hyena_filter(*leaves, L), leaves, grad)
    expected = torch.ops.gdn_cuda.hyena_filter_backward(*(x.cpu().double() for x in (grad, *wide)))
    for mine, other, same in zip(found, expected, again, strict=True):
        assert rel_rms(mine, other) < 1e-5 and torch.equal(mine, same)


@pytest.mark.parametrize("log_pole", [0.0, -1e-6, -1e-3, -1.0, -50.0, -torch.inf])
def test_poles_at_the_limits_of_their_range(log_pole: float) -> None:
    R, logs = torch.ones(2, 1, device="cuda"), torch.full((2, 1), log_pole, device="cuda")
    assert rel_rms(hyena_filter(R, logs, 2**20), modal_filter(R.double(), logs.double(), 2**20)) < 1e-6


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
