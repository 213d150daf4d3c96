"""hyena_long's kernel against its recurrence in fp64: layouts, dtypes, states, poles, lengths, and a million tokens."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import rel_rms
from hyena_cases import gated_inputs, modal_parameters
from hyena_fir_checks import LAYOUTS
from hyena_long_checks import check_long

from gdn_cuda import hyena_long


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("S", [1, 15, 16, 17, 64])
def test_layouts_and_states(dtype: torch.dtype, layout: str, S: int, seed: int) -> None:
    check_long(2, 34, 2056, S, seed, dtype, layout, groups=17, device="cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("D, L", [(8, 4099), (40, 2056), (2048, 700)])  # a block's last channels may not exist
def test_channels_in_whole_vectors(dtype: torch.dtype, D: int, L: int, seed: int) -> None:
    for S in (16, 64):
        state = torch.randn(1, D, S, generator=torch.Generator().manual_seed(seed))
        check_long(1, D, L, S, seed, dtype, "channels", groups=D // 2, device="cuda", initial_state=state)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("L", [0, 1, 2, 127, 128, 129, 511, 512, 513, 4099, 20000])
def test_lengths(layout: str, L: int, seed: int) -> None:
    state = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(seed))
    check_long(2, 6, L, 16, seed, torch.float32, layout, device="cuda", initial_state=state)


@pytest.mark.parametrize("log_pole", [0.0, -1e-6, -1e-4, -0.01, -1.0, -50.0, -1000.0])
@pytest.mark.parametrize("D", [2, 1024])
def test_poles(log_pole: float, D: int, seed: int) -> None:
    poles = torch.full((D, 1), log_pole)
    check_long(1, D, 5000, 1, seed, torch.float32, log_poles=poles, device="cuda", initial_state=torch.ones(1, D, 1))


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
