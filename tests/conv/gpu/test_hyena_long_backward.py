"""The kernels of hyena_long's gradients against the adjoint of its recurrence in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import rel_rms
from hyena_cases import gated_inputs, modal_parameters
from hyena_fir_checks import LAYOUTS
from hyena_long_gradients import NAMES, check_long_gradients

from gdn_cuda import hyena_long


def states(B: int, D: int, S: int, seed: int) -> torch.Tensor:
    return torch.randn(B, D, S, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("S", [1, 15, 16, 17, 64])
def test_layouts_and_states(dtype: torch.dtype, layout: str, S: int, seed: int) -> None:
    check_long_gradients(2, 34, 2056, S, seed, dtype, layout, groups=17, device="cuda")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("L", [0, 1, 2, 127, 128, 129, 511, 512, 513, 4099, 20000])
def test_lengths(layout: str, L: int, seed: int) -> None:
    check_long_gradients(2, 6, L, 16, seed, torch.float32, layout, device="cuda", initial_state=states(2, 6, 16, seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("D, L", [(8, 4099), (40, 2056), (2048, 700), (8, 20000)])
@pytest.mark.parametrize("S", [3, 16, 20])
def test_channels_in_whole_vectors(dtype: torch.dtype, D: int, L: int, S: int, seed: int) -> None:
    state = states(1, D, S, seed)
    check_long_gradients(1, D, L, S, seed, dtype, "channels", groups=D // 2, device="cuda", initial_state=state)


@pytest.mark.parametrize("log_pole", [0.0, -1e-6, -0.01, -1.0, -50.0, -1000.0, -torch.inf])
@pytest.mark.parametrize("D", [2, 1024])  # split among warps, and not
def test_poles(log_pole: float, D: int, seed: int) -> None:
    poles = torch.full((D, 1), log_pole)
    check_long_gradients(1, D, 5000, 1, seed, torch.float32, log_poles=poles, device="cuda", initial_state=torch.ones(1, D, 1))


def test_groups_and_dtypes_of_states(seed: int) -> None:
    for groups in (1, 4):
        for dtype in (torch.float32, torch.bfloat16):
            state = states(2, 4, 16, seed).to(dtype)
            check_long_gradients(2, 4, 3000, 16, seed, groups=groups, device="cuda", initial_state=state, with_state=False)
    check_long_gradients(2, 4, 3000, 16, seed, device="cuda", grad_layout="channels")


@pytest.mark.parametrize("B, D", [(0, 3), (2, 0)])
def test_empty_tensors(B: int, D: int, seed: int) -> None:
    check_long_gradients(B, D, 5, 7, seed, groups=1, device="cuda")


def leaves_of(B: int, D: int, L: int, S: int, seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    given = [x.to("cuda", dtype) for x in gated_inputs(B, D, L, seed)]
    given += [x.float().cuda() for x in modal_parameters(D, D, S, seed)]
    return dict(zip(NAMES, (x.requires_grad_() for x in given), strict=True))


def gradients(leaves: dict[str, torch.Tensor], **options: Any) -> tuple[torch.Tensor, ...]:
    y = hyena_long(**leaves, **options)
    weights = torch.cos(torch.arange(y.shape[-1], device="cuda")).to(y.dtype).expand(y.shape).contiguous()
    return torch.autograd.grad(y, list(leaves.values()), weights)


def test_split_and_unsplit_channels_agree(seed: int) -> None:
    """Few channels, each split among warps, and many channels with a warp each."""
    many = leaves_of(1, 1024, 65536, 16, seed, torch.float32)
    few = {name: (x[:, :3] if x.dim() == 3 else x[:3]).detach().requires_grad_() for name, x in many.items()}
    for name, mine, theirs in zip(NAMES, gradients(many), gradients(few), strict=True):
        assert rel_rms(theirs, mine[:, :3] if mine.dim() == 3 else mine[:3]) < 1e-4, name


def test_two_runs_give_the_same_bits(seed: int) -> None:
    for D in (8, 1024):
        leaves = leaves_of(1, D, 8192, 16, seed, torch.bfloat16)
        assert all(torch.equal(x, y) for x, y in zip(gradients(leaves), gradients(leaves), strict=True))


def test_memory_is_that_of_the_gradients() -> None:
    """Apart from them, S values for every 512 tokens of a channel, and at most 4 MiB."""
    D, L, S = 1024, 65536, 16
    leaves = leaves_of(1, D, L, S, 0, torch.bfloat16)
    y = hyena_long(**leaves)
    grad = torch.ones_like(y)
    torch.autograd.grad(y, list(leaves.values()), grad, retain_graph=True)  # compiles
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = torch.autograd.grad(y, list(leaves.values()), grad)
    state_bytes = 4 * D * S * (L // 512)
    assert torch.cuda.max_memory_allocated() - before < sum(x.nbytes for x in found) + state_bytes + (4 << 20)
