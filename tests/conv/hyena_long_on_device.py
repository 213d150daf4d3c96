"""hyena_long's kernel against its recurrence in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from devices import Device
from hyena_cases import gated_inputs, modal_parameters
from hyena_fir_checks import LAYOUTS
from hyena_long_checks import check_long

from gdn_cuda import hyena_long

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check(device: Device, *args: Any, multiprocessors: int = 132, **options: Any) -> None:
    with device.kernels(multiprocessors):
        check_long(*args, device=device.name, **options)


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
def test_lengths(layout: str, L: int, device: Device, seed: int) -> None:
    device.skip_above(3000, L)
    B, D = device.size((1, 2), (2, 6))
    check(device, B, D, L, 16, seed, torch.float32, layout, initial_state=states(B, D, 16, seed))


@pytest.mark.parametrize("log_pole", [0.0, -1e-6, -1e-4, -0.01, -1.0, -50.0, -1000.0, -torch.inf])
@pytest.mark.parametrize("is_split", [True, False])
def test_poles(is_split: bool, log_pole: float, device: Device, seed: int) -> None:
    """A single pole over thousands of tokens, in several segments and in one."""
    D, L = device.size((2, 2600), (2 if is_split else 1024, 5000))
    options = {"log_poles": torch.full((D, 1), log_pole), "initial_state": torch.ones(1, D, 1)}
    check(device, 1, D, L, 1, seed, torch.float32, multiprocessors=132 if is_split else 1, **options)


def test_every_option(device: Device, seed: int) -> None:
    state = states(2, 4, 16, seed)
    for L in (0, 5, 530, 1024):
        check(device, 2, 4, L, 16, seed, initial_state=state)
        check(device, 2, 4, L, 16, seed, initial_state=state.bfloat16(), groups=1)


@pytest.mark.parametrize("B, D", [(0, 3), (2, 0)])
def test_empty_tensors(B: int, D: int, device: Device, seed: int) -> None:
    check(device, B, D, 5, 7, seed, groups=1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("S", [16, 40, 64])
@pytest.mark.parametrize("D, L", [(8, 1), (8, 700), (24, 513), (16, 2100), (8, 4099), (40, 2056), (2048, 700)])
def test_channels_in_whole_vectors(D: int, L: int, S: int, dtype: torch.dtype, device: Device, seed: int) -> None:
    """A block's last channels may not exist, and a block may have a segment of the tokens."""
    device.skip_above(40_000, D * L)
    with device.kernels() as launched:
        check_long(
            1, D, L, S, seed, dtype, "channels", groups=D // 2, device=device.name, initial_state=states(1, D, S, seed)
        )  # fmt: skip
    assert launched is None or all("columns = true" in kernel for kernel in launched())


@pytest.mark.parametrize("S", [16, 40])
def test_fewer_channels_than_a_block_has(S: int, device: Device, seed: int) -> None:
    with device.kernels() as launched:
        check_long(2, 4, 520, S, seed, torch.float32, "channels", groups=2, device=device.name)
    assert launched is None or all("columns = true" in kernel for kernel in launched())


def test_calls_in_parts_equal_one_call(device: Device, seed: int) -> None:
    D, L = 2, 1300
    x1, x2, v = (x.to(device.name, torch.float32) for x in gated_inputs(1, D, L, seed))
    parameters = [x.to(device.name, torch.float32) for x in modal_parameters(D, D, 16, seed)]
    parts, state = [], None
    with device.kernels():
        whole, last = hyena_long(x1, x2, v, *parameters, return_state=True)
        for first, end in ((0, 300), (300, 302), (302, 1300)):
            now = [x[..., first:end] for x in (x1, x2, v)]
            y, state = hyena_long(*now, *parameters, initial_state=state, return_state=True)
            parts.append(y)
    torch.testing.assert_close(torch.cat(parts, -1), whole, rtol=1e-4, atol=1e-4)
    assert state is not None
    torch.testing.assert_close(state, last, rtol=1e-5, atol=1e-4)
