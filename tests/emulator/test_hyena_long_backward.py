"""The kernels of hyena_long's gradients in the emulator, against the adjoint of its recurrence in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from emulated import emulated
from hyena_long_gradients import check_long_gradients


def check(*args: Any, multiprocessors: int = 132, **options: Any) -> None:
    with emulated(multiprocessors):
        check_long_gradients(*args, **options)


def states(B: int, D: int, S: int, seed: int) -> torch.Tensor:
    return torch.randn(B, D, S, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("S", [1, 3, 15, 16, 17, 40, 64])
def test_states(dtype: torch.dtype, S: int, seed: int) -> None:
    check(1, 2, 700, S, seed, dtype)


@pytest.mark.parametrize("L", [0, 1, 2, 31, 32, 33, 127, 128, 129, 256, 257, 511, 512, 513, 1024, 1032, 3000])
def test_lengths(L: int, seed: int) -> None:
    check(1, 2, L, 16, seed, torch.float32, initial_state=states(1, 2, 16, seed))


@pytest.mark.parametrize("L", [2049, 4608, 6144])
@pytest.mark.parametrize("S, dtype", [(16, torch.float32), (20, torch.bfloat16), (3, torch.float16)])
def test_channels_split_among_warps(L: int, S: int, dtype: torch.dtype, seed: int) -> None:
    with emulated() as launched:
        check_long_gradients(1, 2, L, S, seed, dtype, initial_state=states(1, 2, S, seed))
    assert sum("hyena_long_states" in kernel and "reversed = true" in kernel for kernel in launched()) == 1


@pytest.mark.parametrize("S, dtype", [(3, torch.bfloat16), (20, torch.float32), (20, torch.float16)])
def test_other_configurations_of_segments(S: int, dtype: torch.dtype, seed: int) -> None:
    check(1, 1, 2560, S, seed, dtype)


@pytest.mark.parametrize("layout", ["channels", "neither"])
def test_layouts(layout: str, seed: int) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        check(2, 4, 520, 16, seed, dtype, layout, groups=2)
    check(2, 4, 520, 3, seed, torch.bfloat16, layout, grad_layout="tokens")


@pytest.mark.parametrize(
    "D, L, S", [(8, 700, 16), (24, 513, 5), (16, 2100, 16), (8, 1, 3), (16, 0, 3), (8, 1024, 40), (16, 530, 17)]
)
def test_channels_in_whole_vectors(D: int, L: int, S: int, seed: int) -> None:
    """A block may have a segment of the tokens; for more than 16 states, tokens become contiguous in copies."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        with emulated() as launched:
            check_long_gradients(1, D, L, S, seed, dtype, "channels", groups=D // 2, initial_state=states(1, D, S, seed))
        kernels = [kernel for kernel in launched() if "hyena_long_backward" in kernel or "hyena_long_states" in kernel]
        assert kernels and all((S <= 16) == ("columns = true" in kernel) for kernel in kernels)
        assert any("transposed_copy" in kernel for kernel in launched()) == (S > 16)
    check(2, 4, 520, S, seed, torch.float32, "channels", groups=2)


def test_channels_in_whole_vectors_whose_gradient_is_not(seed: int) -> None:
    check(2, 8, 520, 16, seed, torch.bfloat16, "channels", grad_layout="tokens")


@pytest.mark.parametrize("log_pole", [0.0, -1e-6, -1e-4, -0.01, -1.0, -50.0, -1000.0, -torch.inf])
def test_poles(log_pole: float, seed: int) -> None:
    """A single pole over thousands of tokens, in one segment and in several."""
    poles = torch.full((2, 1), log_pole)
    for multiprocessors in (1, 132):
        options = {"initial_state": torch.ones(1, 2, 1), "multiprocessors": multiprocessors}
        check(1, 2, 2600, 1, seed, torch.float32, log_poles=poles, **options)


def test_every_option(seed: int) -> None:
    state = states(2, 4, 16, seed)
    for L in (0, 5, 530, 1024):
        check(2, 4, L, 16, seed, initial_state=state)
        check(2, 4, L, 16, seed, initial_state=state.bfloat16(), groups=1, with_state=False)


@pytest.mark.parametrize("B, D", [(0, 3), (2, 0)])
def test_empty_tensors(B: int, D: int, seed: int) -> None:
    check(B, D, 5, 7, seed, groups=1)
