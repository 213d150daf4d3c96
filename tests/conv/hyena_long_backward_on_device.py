"""The kernels of hyena_long's gradients against the adjoint of its recurrence in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from devices import Device
from hyena_fir_checks import LAYOUTS
from hyena_long_gradients import check_long_gradients

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check(device: Device, *args: Any, multiprocessors: int = 132, **options: Any) -> None:
    with device.kernels(multiprocessors):
        check_long_gradients(*args, device=device.name, **options)


def states(B: int, D: int, S: int, seed: int) -> torch.Tensor:
    return torch.randn(B, D, S, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("S", [1, 3, 15, 16, 17, 40, 64])
def test_layouts_and_states(S: int, layout: str, dtype: torch.dtype, device: Device, seed: int) -> None:
    B, D, L, groups = device.size((2, 4, 520, 2), (2, 34, 2056, 17))
    check(device, B, D, L, S, seed, dtype, layout, groups=groups)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "L", [0, 1, 2, 31, 32, 33, 127, 128, 129, 256, 257, 511, 512, 513, 1024, 1032, 3000, 4099, 20000]
)  # fmt: skip
def test_lengths(L: int, layout: str, device: Device, seed: int) -> None:
    device.skip_above(3000, L)
    B, D = device.size((1, 2), (2, 6))
    check(device, B, D, L, 16, seed, torch.float32, layout, initial_state=states(B, D, 16, seed))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "D, L", [(8, 0), (8, 1), (8, 700), (24, 513), (16, 2100), (8, 1024), (8, 4099), (40, 2056), (2048, 700), (8, 20000)]
)
@pytest.mark.parametrize("S", [3, 16, 17, 20, 40])
def test_channels_in_whole_vectors(S: int, D: int, L: int, dtype: torch.dtype, device: Device, seed: int) -> None:
    """A block may have a segment of the tokens; for more than 16 states, tokens become contiguous in copies."""
    device.skip_above(33_600, D * L)
    with device.kernels() as launched:
        check_long_gradients(
            1, D, L, S, seed, dtype, "channels", groups=D // 2, device=device.name, initial_state=states(1, D, S, seed)
        )
    if launched is not None:
        kernels = [kernel for kernel in launched() if "hyena_long_backward" in kernel or "hyena_long_states" in kernel]
        assert kernels and all((S <= 16) == ("columns = true" in kernel) for kernel in kernels)
        assert any("transposed_copy" in kernel for kernel in launched()) == (S > 16 and L > 1)


@pytest.mark.parametrize("S", [3, 5, 16, 17])
def test_fewer_channels_than_a_block_has(S: int, device: Device, seed: int) -> None:
    check(device, 2, 4, 520, S, seed, torch.float32, "channels", groups=2)


def test_gradients_of_y_in_another_layout(device: Device, seed: int) -> None:
    check(device, 2, 8, 520, 16, seed, torch.bfloat16, "channels", grad_layout="tokens")
    check(device, 2, 4, 520, 3, seed, torch.bfloat16, "neither", grad_layout="tokens")
    check(device, 2, 4, device.size(520, 3000), 16, seed, torch.bfloat16, "tokens", grad_layout="channels")


@pytest.mark.parametrize("log_pole", [0.0, -1e-6, -1e-4, -0.01, -1.0, -50.0, -1000.0, -torch.inf])
@pytest.mark.parametrize("is_split", [True, False])
def test_poles(is_split: bool, log_pole: float, device: Device, seed: int) -> None:
    """A single pole over thousands of tokens, in several segments and in one."""
    D, L = device.size((2, 2600), (2 if is_split else 1024, 5000))
    options = {"log_poles": torch.full((D, 1), log_pole), "initial_state": torch.ones(1, D, 1)}
    check(device, 1, D, L, 1, seed, torch.float32, multiprocessors=132 if is_split else 1, **options)


def test_every_option(device: Device, seed: int) -> None:
    state = states(2, 4, 16, seed)
    for L in (0, 5, 530, 1024, *device.size((), (3000,))):
        check(device, 2, 4, L, 16, seed, initial_state=state)
        for groups in (1, 4):
            for dtype in device.size((torch.bfloat16,), (torch.float32, torch.bfloat16)):
                check(device, 2, 4, L, 16, seed, initial_state=state.to(dtype), groups=groups, with_state=False)


@pytest.mark.parametrize("B, D", [(0, 3), (2, 0)])
def test_empty_tensors(B: int, D: int, device: Device, seed: int) -> None:
    check(device, B, D, 5, 7, seed, groups=1)
