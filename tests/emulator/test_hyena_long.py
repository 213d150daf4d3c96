"""The kernel of hyena_long in the emulator, against its recurrence in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from emulated import emulated
from hyena_cases import gated_inputs, modal_parameters
from hyena_long_checks import check_long

from gdn_cuda import hyena_long


def check(*args: Any, multiprocessors: int = 132, **options: Any) -> None:
    with emulated(multiprocessors):
        check_long(*args, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("S", [1, 3, 15, 16, 17, 40, 64])
def test_states(dtype: torch.dtype, S: int, seed: int) -> None:
    check(1, 2, 700, S, seed, dtype)


@pytest.mark.parametrize("L", [0, 1, 2, 31, 32, 33, 127, 128, 129, 256, 257, 511, 512, 513, 1024, 1032, 3000])
def test_lengths(L: int, seed: int) -> None:
    check(1, 2, L, 16, seed, torch.float32)


@pytest.mark.parametrize("L", [2049, 4608])
@pytest.mark.parametrize("S, dtype", [(16, torch.float32), (20, torch.bfloat16), (3, torch.float16)])
def test_channels_split_among_warps(L: int, S: int, dtype: torch.dtype, seed: int) -> None:
    state = torch.randn(1, 2, S, generator=torch.Generator().manual_seed(seed))
    with emulated() as launched:
        check_long(1, 2, L, S, seed, dtype, initial_state=state)
    assert sum("only_states = true" in kernel for kernel in launched()) == 1


@pytest.mark.parametrize("S, dtype", [(3, torch.bfloat16), (20, torch.float32), (20, torch.float16)])
def test_other_configurations_of_segments(S: int, dtype: torch.dtype, seed: int) -> None:
    check(1, 1, 2560, S, seed, dtype)


@pytest.mark.parametrize("layout", ["channels", "neither"])
def test_layouts(layout: str, seed: int) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        check(2, 4, 520, 16, seed, dtype, layout, groups=2)


@pytest.mark.parametrize("S", [16, 40])
@pytest.mark.parametrize("D, L", [(8, 700), (24, 513), (16, 2100), (8, 1)])
def test_channels_in_whole_vectors(D: int, L: int, S: int, seed: int) -> None:
    """A block's last channels may not exist, and a block may have a segment of the tokens."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        state = torch.randn(1, D, S, generator=torch.Generator().manual_seed(seed))
        with emulated() as launched:
            check_long(1, D, L, S, seed, dtype, "channels", groups=D // 2, initial_state=state)
        assert all("columns = true" in kernel for kernel in launched())
    with emulated() as launched:  # fewer channels than a block has
        check_long(2, 4, 520, S, seed, torch.float32, "channels", groups=2)
    assert all("columns = true" in kernel for kernel in launched())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shared_bytes, sectors", [(227 << 10, "true"), (99 << 10, "false")])
def test_channels_by_shared_memory(dtype: torch.dtype, shared_bytes: int, sectors: str, seed: int) -> None:
    with emulated(shared_bytes=shared_bytes) as launched:
        check_long(1, 16, 2100, 16, seed, dtype, "channels")
    kernels = launched()
    assert len(kernels) == 2  # states of segments, and outputs
    assert all("columns = true" in kernel and f"sectors = {sectors}" in kernel for kernel in kernels)


@pytest.mark.parametrize("log_pole", [0.0, -1e-6, -1e-4, -0.01, -1.0, -50.0, -1000.0, -torch.inf])
def test_poles(log_pole: float, seed: int) -> None:
    """A single pole over thousands of tokens, in one segment and in several."""
    poles = torch.full((2, 1), log_pole)
    for multiprocessors in (1, 132):
        options = {"initial_state": torch.ones(1, 2, 1), "multiprocessors": multiprocessors}
        check(1, 2, 2600, 1, seed, torch.float32, log_poles=poles, **options)


def test_every_option(seed: int) -> None:
    state = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(seed))
    for L in (0, 5, 530, 1024):
        check(2, 4, L, 16, seed, initial_state=state)
        check(2, 4, L, 16, seed, initial_state=state.bfloat16(), groups=1)


@pytest.mark.parametrize("B, D", [(0, 3), (2, 0)])
def test_empty_tensors(B: int, D: int, seed: int) -> None:
    check(B, D, 5, 7, seed, groups=1)


def test_calls_in_parts_equal_one_call(seed: int) -> None:
    D, L = 2, 1300
    x1, x2, v = (x.float() for x in gated_inputs(1, D, L, seed))
    parameters = [x.float() for x in modal_parameters(D, D, 16, seed)]
    parts, state = [], None
    with emulated():
        whole, last = hyena_long(x1, x2, v, *parameters, return_state=True)
        for first, end in ((0, 300), (300, 302), (302, 1300)):
            now = [x[..., first:end] for x in (x1, x2, v)]
            y, state = hyena_long(*now, *parameters, initial_state=state, return_state=True)
            parts.append(y)
    torch.testing.assert_close(torch.cat(parts, -1), whole, rtol=1e-4, atol=1e-4)
    assert state is not None
    torch.testing.assert_close(state, last, rtol=1e-5, atol=1e-4)
