"""hyena_long's kernel on the GPU; a million tokens and two billion, bits of two calls, memory."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import rel_rms
from hyena_cases import gated_inputs, modal_parameters
from hyena_long_on_device import *  # noqa: F403

from gdn_cuda import hyena_long


@pytest.mark.parametrize("D", [2, 1024])  # split among warps, and not
def test_a_million_tokens(D: int, seed: int) -> None:
    """Compares with the recurrence in fp64 by torch, block by block of tokens."""
    L, S, block = 1 << 20, 16, 1024
    x1, x2, v = (torch.randn(1, D, L, device="cuda") for _ in range(3))
    residues, poles, bias = (x.float().cuda() for x in modal_parameters(D, D, S, seed))
    y, state = hyena_long(x1, x2, v, residues, poles, bias, return_state=True)
    steps = torch.arange(block, device="cuda")
    for channel in (0, D - 1):
        log = poles[channel].double()[:, None]
        u = (x1[0, channel].double() * v[0, channel].double()).view(-1, block)
        taps = (residues[channel].double()[:, None] * torch.exp(log * steps)).sum(0)
        within = torch.fft.irfft(torch.fft.rfft(u, n=2 * block) * torch.fft.rfft(taps, n=2 * block), n=2 * block)[:, :block]
        added, out = (
            u @ torch.exp(log * (block - 1 - steps)).mT,
            residues[channel].double()[:, None] * torch.exp(log * (steps + 1)),
        )
        now, before = torch.zeros(S, dtype=torch.float64, device="cuda"), []
        for each in added:
            before.append(now)
            now = torch.exp(log[:, 0] * block) * now + each
        z = within + torch.stack(before) @ out + bias[channel].double() * u
        assert rel_rms(y[0, channel], (x2[0, channel].double() * z.flatten())) < 1e-5
        assert rel_rms(state[0, channel], now) < 1e-5


def test_two_runs_give_the_same_bits(seed: int) -> None:
    for D in (8, 1024):
        x1, x2, v = (x.bfloat16().cuda() for x in gated_inputs(1, D, 8192, seed))
        parameters = [x.float().cuda() for x in modal_parameters(D, D, 16, seed)]
        first = hyena_long(x1, x2, v, *parameters, return_state=True)
        again = hyena_long(x1, x2, v, *parameters, return_state=True)
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


def test_memory_is_that_of_the_results() -> None:
    """No filter and no transforms: at most a MiB besides y and the states."""
    D, L = 1024, 65536
    x = torch.ones(1, D, L, dtype=torch.bfloat16, device="cuda")
    parameters = torch.ones(D, 16, device="cuda"), -torch.ones(D, 16, device="cuda"), torch.ones(D, device="cuda")
    hyena_long(x[:, :, :512], x[:, :, :512], x[:, :, :512], *parameters)  # compiles
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    y = hyena_long(x, x, x, *parameters)
    assert torch.cuda.max_memory_allocated() - before < y.numel() * 2 + (1 << 20)


def test_the_last_of_nearly_2_to_the_31_tokens() -> None:
    """The last segment is shorter than the others."""
    L, pole = 2**31 - 4096, 0.5
    one = torch.ones(1, 1, 1, device="cuda", dtype=torch.bfloat16).expand(1, 1, L)
    parameters = [torch.tensor(x, device="cuda") for x in ([[1.0]], [[math.log(pole)]], [0.0])]
    y, state = hyena_long(one, one, one, *parameters, return_state=True)
    last = 1 / (1 - pole)  # the sum of all powers
    assert (y[0, 0, -(2**21) :].float() == last).all()
    assert state.item() == pytest.approx(last, rel=1e-6)
