"""conv_split_l2norm's kernels, forward and backward, against its definition in fp64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from devices import Device
from split_cases import GATES, Inputs, check, check_gates_at_the_ends, check_gradients, inputs, with_gates, with_pool

from gdn_cuda import fused_gdn_gating

Heads = tuple[int, int, int, int]
F32, BF16, F16 = DTYPES = (torch.float32, torch.bfloat16, torch.float16)
COLUMNS, CONV = "layers/split_columns", "layers/split_conv"
# Heads of some lanes, of a warp at four and at eight channels a lane, and others; tensors that begin within a warp.
OF_LANES = ((1, 2, 8, 8), (3, 5, 16, 8), (2, 3, 64, 24), (1, 1, 128, 256), (1, 2, 256, 8), (3, 1, 8, 40))
OTHERS = ((2, 3, 4, 5), (1, 2, 24, 8), (2, 1, 512, 16), (1, 3, 1, 70), (0, 2, 4, 24), (2, 0, 40, 4))
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES)
BOTH_KERNELS = pytest.mark.parametrize(
    "heads, kernel", [((1, 2, 16, 8), COLUMNS), ((1, 2, 5, 3), CONV)], ids=["columns", "conv"]
)


def check_on(device: Device, x: Inputs, *kernels: str) -> None:
    """Checks the outputs and the pool. In the emulator, one of these kernels runs beside a call's small ones, or any kernel."""
    with device.kernels() as launched:
        check(x)
    if launched is not None and kernels:
        assert {name.partition("{")[0] for name in launched()} & set(kernels)


@EVERY_DTYPE
@pytest.mark.parametrize("W", [2, 3, 4])
@pytest.mark.parametrize("heads", OF_LANES, ids=str)
def test_heads_of_lanes(heads: Heads, W: int, dtype: torch.dtype, device: Device, seed: int) -> None:
    """A packed row has the same bits as alone."""
    L, kernel = device.size(37, 150), COLUMNS if W == 4 else CONV
    check_on(device, inputs(2, L, heads, W, seed, dtype=dtype, device=device.name), kernel)
    x = inputs(1, L, heads, W, seed, dtype=dtype, packed=[0, 20, L], device=device.name)
    check_on(device, x, kernel)
    with device.kernels():
        packed = x.call()
        alone = replace(x, x=x.x[:, :, 20:], options={}).call()
    assert all(torch.equal(mine[:, 20:], theirs) for mine, theirs in zip(packed, alone, strict=True))


@EVERY_DTYPE
@pytest.mark.parametrize("heads", OTHERS, ids=str)
def test_other_heads(heads: Heads, dtype: torch.dtype, device: Device, seed: int) -> None:
    x = inputs(2, device.size(9, 150), heads, 4, seed, dtype=dtype, device=device.name)
    check_on(device, x, COLUMNS if heads[0] == 0 else CONV)


@pytest.mark.parametrize("W", [1, 2, 3, 4, 5, 32])
def test_taps(W: int, device: Device, seed: int) -> None:
    for heads in ((2, 3, 8, 8), (1, 2, 5, 3)):
        x = inputs(1, device.size(40, 200), heads, W, seed, dtype=BF16, device=device.name)
        check_on(device, x, COLUMNS if W == 4 and heads[2] == 8 else CONV)


def test_options(device: Device, seed: int) -> None:
    L = device.size(70, 200)
    options: list[dict[str, Any]] = [
        {"bias": False},
        {"l2norm": False},
        {"l2norm": False, "bias": False},
        {"eps": 0.5},
        {"packed": [0, 1, 1, 35, 64]},
        {"packed": [0, 1, 1, 35, L]},
    ]
    for each in options:
        x = inputs(1, L, (2, 3, 16, 8), 4, seed, dtype=BF16, device=device.name, **each)
        check_on(device, x, COLUMNS)
        check_on(device, replace(x, x=x.x.contiguous()), CONV)
        check_on(device, inputs(1, L, (1, 2, 5, 3), 4, seed, dtype=BF16, device=device.name, **each), CONV)
    check_on(device, inputs(1, 9, (2, 3, 24, 8), 4, seed, l2norm=False, device=device.name), COLUMNS)


@pytest.mark.parametrize("L", [0, 1, 2, 3, 31, 32, 33, 128, 129, 260])
def test_lengths(L: int, device: Device, seed: int) -> None:
    check_on(device, inputs(2, L, (1, 1, 8, 8), 4, seed, device=device.name))


@BOTH_KERNELS
@pytest.mark.parametrize("width", [0, 3])
def test_pool(width: int, heads: Heads, kernel: str, device: Device, seed: int) -> None:
    x = inputs(1, 80, heads, 4, seed, dtype=BF16, packed=[0, 2, 2, 66, 68, 80], device=device.name)
    check_on(device, with_pool(x, [3, 1, 0, -1, 5], 6, seed, fresh=[2], width=width), kernel)
    x = inputs(3, 2, heads, 4, seed, device=device.name)
    check_on(device, with_pool(x, [3, -7, 0], 6, seed, fresh=[0], width=width), kernel)


@BOTH_KERNELS
def test_slots_past_the_pool(heads: Heads, kernel: str, device: Device, seed: int) -> None:
    """The output is NaN, nothing is touched, and other sequences do not change."""
    x = inputs(1, 40, heads, 4, seed, packed=[0, 10, 30, 40], device=device.name)
    clean = with_pool(x, [0, 1, 2], 3, seed, fresh=[])
    pool = clean.options["conv_state"].clone()
    slots = torch.tensor([0, 2**40, 2], device=device.name)
    with device.kernels():
        expected = clean.call()
        invalid = replace(x, options=x.options | {"conv_state": pool.clone(), "state_indices": slots})
        found = invalid.call()
    for mine, theirs in zip(found, expected, strict=True):
        assert bool(mine[:, 10:30].isnan().all())
        assert torch.equal(mine[:, :10], theirs[:, :10]) and torch.equal(mine[:, 30:], theirs[:, 30:])
    after = invalid.options["conv_state"]
    assert torch.equal(after[1], pool[1]) and torch.equal(after[[0, 2]], clean.options["conv_state"][[0, 2]])


@pytest.mark.parametrize("offsets", [[-5, 400], [0, 10**9, -(10**9)], [7, 3, 50], [40, 0], [0, 0]])
@BOTH_KERNELS
def test_invalid_offsets_touch_nothing_outside(
    heads: Heads, kernel: str, offsets: list[int], device: Device, seed: int
) -> None:
    """compute-sanitizer runs it too."""
    x = inputs(1, 40, heads, 4, seed, packed=offsets, device=device.name)
    with device.kernels():
        x.call()
        with_pool(x, [0] * (len(offsets) - 1), 2, seed, fresh=[]).call()
    device.synchronize()


@EVERY_DTYPE
@pytest.mark.parametrize("heads", [(2, 3, 16, 8), (1, 2, 5, 3), (1, 1, 70, 33), (1, 2, 128, 128)], ids=str)
def test_gradients(heads: Heads, dtype: torch.dtype, device: Device, seed: int) -> None:
    L = device.size(30, 80)
    options: list[dict[str, Any]] = [{}, {"l2norm": False, "bias": False}, {"packed": [0, 7, 7, 25]}, {"channels_last": False}]
    for each in options:
        x = inputs(1, L, heads, 4, seed, dtype=dtype, device=device.name, **each)
        with device.kernels():
            check_gradients(x, seed)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_values_that_are_not_finite_stay_in_their_head_and_window(bad: float, device: Device, seed: int) -> None:
    x = inputs(1, 40, (2, 3, 16, 8), 4, seed, device=device.name)
    with device.kernels():
        clean = x.call()
        x.x[0, 20, 10] = bad  # head 1 of q
        found = x.call()
    assert not found[0][0, 10:14, 1].isfinite().all(-1).any()
    touched = torch.zeros(1, 40, 2, dtype=torch.bool)
    touched[0, 10:14, 1] = True
    assert torch.equal(found[0][~touched], clean[0][~touched])
    assert torch.equal(found[1], clean[1]) and torch.equal(found[2], clean[2])


def test_heads_of_zeros(device: Device, seed: int) -> None:
    x = inputs(1, 5, (1, 1, 16, 8), 4, seed, bias=False, device=device.name)
    x.x.zero_()
    with device.kernels():
        assert not any(y.any() for y in x.call())
        x.options["eps"] = 0.0
        q, k, v = x.call()
    assert bool(q.isnan().all() & k.isnan().all()) and not v.any()


@EVERY_DTYPE
@pytest.mark.parametrize("heads, kernel", [((1, 2, 16, 8), COLUMNS), ((1, 3, 5, 4), CONV)], ids=["columns", "conv"])
def test_gates(heads: Heads, kernel: str, dtype: torch.dtype, device: Device, seed: int) -> None:
    """Whole and partial blocks. Gates have the bits of fused_gdn_gating, and do not change those of q, k and v."""
    for B, L in ((2, 1), (2, 37), (1, 600)):
        x = inputs(B, L, heads, 4, seed, dtype=dtype, device=device.name)
        with device.kernels():
            alone = x.call()
        for gate_dtype, views in ((dtype, False), (F32, True), (BF16, False)):
            given = with_gates(x, seed, dtype=gate_dtype, views=views)
            check_on(device, given, kernel)
            a, b, A_log, dt_bias = (given.options[name] for name in GATES)
            with device.kernels():
                found = given.call()
                gates = fused_gdn_gating(A_log, dt_bias, a.contiguous(), b.contiguous())
            assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, (*alone, *gates), strict=True))
            if L == 37 and gate_dtype == dtype:
                with device.kernels():
                    check_gradients(given, seed)
    x = with_gates(inputs(2, 40, heads, 4, seed, device=device.name), seed)
    check_on(device, with_pool(x, [3, -1], 6, seed, fresh=[0]), kernel)


@pytest.mark.parametrize("heads", [(1, 2, 16, 8), (1, 3, 5, 4), (2, 0, 16, 8)], ids=str)
@pytest.mark.parametrize("B, L", [(0, 4), (2, 0), (1, 1)])
def test_gates_of_sizes_0_and_1(B: int, L: int, heads: Heads, device: Device, seed: int) -> None:
    check_on(device, with_gates(inputs(B, L, heads, 4, seed, device=device.name), seed))


def test_gates_that_are_not_finite_and_whose_factors_leave_the_range(device: Device, seed: int) -> None:
    x = with_gates(inputs(1, 4, (1, 2, 16, 8), 4, seed, device=device.name), seed)
    with device.kernels():
        clean = x.call()
        x.options["a"][0, :3, 0] = torch.tensor([torch.nan, torch.inf, -torch.inf])
        x.options["b"][0, :3, 0] = torch.tensor([torch.nan, torch.inf, -torch.inf])
        *_, beta, gate = x.call()
    assert beta[0, 0, 0].isnan() and gate[0, 0, 0].isnan()
    assert beta[0, 1:3, 0].tolist() == [1.0, 0.0] and gate[0, 1:3, 0].tolist() == [-torch.inf, 0.0]
    assert torch.equal(beta[..., 1], clean[3][..., 1]) and torch.equal(gate[..., 1], clean[4][..., 1])
    x.options |= {"A_log": torch.tensor([95.0, 120.0], device=device.name), "dt_bias": torch.zeros(2, device=device.name)}
    x.options["a"][:] = torch.tensor([-100.0, -119.0])
    with device.kernels():
        gate = x.call()[4].cpu()
    assert torch.allclose(gate, -torch.exp(torch.tensor([-5.0, 1.0])).expand_as(gate), rtol=1e-4)


def test_gradients_of_gates_at_the_ends(device: Device, seed: int) -> None:
    with device.kernels():
        check_gates_at_the_ends(seed, device.name)


@EVERY_DTYPE
def test_gradients_of_heads_of_one_channel(dtype: torch.dtype, device: Device, seed: int) -> None:
    """q / |q| is ±1 up to eps, so a gradient computed as a difference would cancel to 0."""
    with device.kernels():
        for eps in (1e-6, 0.5):
            check_gradients(inputs(1, 40, (2, 3, 1, 5), 4, seed, dtype=dtype, eps=eps, device=device.name), seed)
