"""The kernels of conv_split_l2norm in the emulator against its definition in fp64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from emulated import emulated
from split_cases import Inputs, check, check_gates_at_the_ends, check_gradients, inputs, with_gates, with_pool

F32, BF16, F16 = DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Heads of some lanes, of a warp at four and at eight channels a lane, and others; tensors that begin within a warp.
COLUMNS = ((1, 2, 8, 8), (3, 5, 16, 8), (2, 3, 64, 24), (1, 1, 128, 256), (1, 2, 256, 8), (3, 1, 8, 40))
OTHERS = ((2, 3, 4, 5), (1, 2, 24, 8), (2, 1, 512, 16), (1, 3, 1, 70), (0, 2, 4, 24), (2, 0, 40, 4))


def emulated_check(x: Inputs, kernel: str) -> None:
    with emulated() as launched:
        check(x)
    assert any(each.startswith(f"layers/{kernel}{{") for each in launched())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", COLUMNS, ids=str)
def test_heads_of_lanes(heads: tuple[int, int, int, int], dtype: torch.dtype, seed: int) -> None:
    """A packed row has the same bits as alone."""
    emulated_check(inputs(2, 37, heads, 4, seed, dtype=dtype), "split_columns")
    x = inputs(1, 37, heads, 4, seed, dtype=dtype, packed=[0, 20, 37])
    emulated_check(x, "split_columns")
    with emulated():
        packed = x.call()
        alone = replace(x, x=x.x[:, :, 20:], options={}).call()
    assert all(torch.equal(mine[:, 20:], theirs) for mine, theirs in zip(packed, alone, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", OTHERS, ids=str)
def test_other_heads(heads: tuple[int, int, int, int], dtype: torch.dtype, seed: int) -> None:
    kernel = "split_columns" if heads[0] == 0 else "split_conv"
    emulated_check(inputs(2, 9, heads, 4, seed, dtype=dtype), kernel)


@pytest.mark.parametrize("W", [1, 2, 3, 5, 32])
def test_other_taps(W: int, seed: int) -> None:
    emulated_check(inputs(1, 40, (2, 3, 8, 8), W, seed, dtype=BF16), "split_conv")


def test_options(seed: int) -> None:
    options: list[dict[str, Any]] = [{"bias": False}, {"l2norm": False}, {"eps": 0.5}, {"packed": [0, 1, 1, 35, 64]}]
    for each in options:
        emulated_check(inputs(1, 70, (2, 3, 16, 8), 4, seed, dtype=BF16, **each), "split_columns")
        emulated_check(inputs(1, 70, (2, 3, 16, 8), 4, seed, dtype=BF16, channels_last=False, **each), "split_conv")
    emulated_check(inputs(1, 9, (2, 3, 24, 8), 4, seed, l2norm=False), "split_columns")


@pytest.mark.parametrize("L", [0, 1, 2, 3, 31, 32, 33, 128, 129, 260])
def test_lengths(L: int, seed: int) -> None:
    x = inputs(2, L, (1, 1, 8, 8), 4, seed)
    with emulated():
        check(x)


@pytest.mark.parametrize("heads", [(1, 2, 16, 8), (1, 2, 5, 3)], ids=str)
@pytest.mark.parametrize("width", [0, 3])
def test_pool(width: int, heads: tuple[int, int, int, int], seed: int) -> None:
    kernel = "split_columns" if heads[2] == 16 else "split_conv"
    x = inputs(1, 80, heads, 4, seed, dtype=BF16, packed=[0, 2, 2, 66, 68, 80])
    emulated_check(with_pool(x, [3, 1, 0, -1, 5], 6, seed, fresh=[2], width=width), kernel)
    x = inputs(3, 2, heads, 4, seed)
    emulated_check(with_pool(x, [3, -7, 0], 6, seed, fresh=[0], width=width), kernel)


@pytest.mark.parametrize("heads", [(1, 2, 16, 8), (1, 2, 5, 3)], ids=str)
def test_slots_past_the_pool(heads: tuple[int, int, int, int], seed: int) -> None:
    """The output is NaN, nothing is touched, and other sequences do not change."""
    x = inputs(1, 40, heads, 4, seed, packed=[0, 10, 30, 40])
    clean = with_pool(x, [0, 1, 2], 3, seed, fresh=[])
    pool = clean.options["conv_state"].clone()
    with emulated():
        expected = clean.call()
        invalid = replace(x, options=x.options | {"conv_state": pool.clone(), "state_indices": torch.tensor([0, 2**40, 2])})
        found = invalid.call()
    for mine, theirs in zip(found, expected, strict=True):
        assert bool(mine[:, 10:30].isnan().all())
        assert torch.equal(mine[:, :10], theirs[:, :10]) and torch.equal(mine[:, 30:], theirs[:, 30:])
    after = invalid.options["conv_state"]
    assert torch.equal(after[1], pool[1]) and torch.equal(after[[0, 2]], clean.options["conv_state"][[0, 2]])


@pytest.mark.parametrize("offsets", [[-5, 400], [0, 10**9, -(10**9)], [7, 3, 50], [40, 0], [0, 0]])
@pytest.mark.parametrize("heads", [(1, 2, 16, 8), (1, 2, 5, 3)], ids=str)
def test_invalid_offsets_touch_nothing_outside(heads: tuple[int, int, int, int], offsets: list[int], seed: int) -> None:
    x = inputs(1, 40, heads, 4, seed, packed=offsets)
    with emulated():
        x.call()
        with_pool(x, [0] * (len(offsets) - 1), 2, seed, fresh=[]).call()


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients(dtype: torch.dtype, seed: int) -> None:
    options: list[dict[str, Any]] = [{}, {"l2norm": False, "bias": False}, {"packed": [0, 7, 7, 30]}, {"channels_last": False}]
    for heads in ((2, 3, 16, 8), (1, 2, 5, 3), (1, 1, 70, 33)):
        for each in options:
            x = inputs(1, 40, heads, 4, seed, dtype=dtype, **each)
            with emulated():
                check_gradients(x, seed)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_values_that_are_not_finite_stay_in_their_head_and_window(bad: float, seed: int) -> None:
    x = inputs(1, 40, (2, 3, 16, 8), 4, seed)
    with emulated():
        clean = x.call()
        x.x[0, 20, 10] = bad  # head 1 of q
        found = x.call()
    assert not found[0][0, 10:14, 1].isfinite().all(-1).any()
    touched = torch.zeros(1, 40, 2, dtype=torch.bool)
    touched[0, 10:14, 1] = True
    assert torch.equal(found[0][~touched], clean[0][~touched])
    assert torch.equal(found[1], clean[1]) and torch.equal(found[2], clean[2])


def test_heads_of_zeros(seed: int) -> None:
    x = inputs(1, 5, (1, 1, 16, 8), 4, seed, bias=False)
    x.x.zero_()
    with emulated():
        assert not any(y.any() for y in x.call())
        x.options["eps"] = 0.0
        q, k, v = x.call()
    assert bool(q.isnan().all() & k.isnan().all()) and not v.any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(1, 2, 16, 8), (1, 3, 5, 4)], ids=str)
def test_gates(heads: tuple[int, int, int, int], dtype: torch.dtype, seed: int) -> None:
    """Whole and partial blocks; gates do not change the bits of q, k and v."""
    kernel = "split_columns" if heads[2] == 16 else "split_conv"
    for B, L in ((2, 1), (2, 37), (1, 600)):
        x = inputs(B, L, heads, 4, seed, dtype=dtype)
        with emulated():
            alone = x.call()
        for gate_dtype, views in ((dtype, False), (F32, True), (BF16, False)):
            given = with_gates(x, seed, dtype=gate_dtype, views=views)
            emulated_check(given, kernel)
            with emulated():
                found = given.call()
            assert all(torch.equal(mine, theirs) for mine, theirs in zip(found[:3], alone, strict=True))
    emulated_check(with_pool(with_gates(inputs(2, 40, heads, 4, seed), seed), [3, -1], 6, seed, fresh=[0]), kernel)


@pytest.mark.parametrize("heads", [(1, 2, 16, 8), (1, 3, 5, 4), (2, 0, 16, 8)], ids=str)
@pytest.mark.parametrize("B, L", [(0, 4), (2, 0), (1, 1)])
def test_gates_of_sizes_0_and_1(B: int, L: int, heads: tuple[int, int, int, int], seed: int) -> None:
    with emulated():
        check(with_gates(inputs(B, L, heads, 4, seed), seed))


def test_gates_that_are_not_finite_and_whose_factors_leave_the_range(seed: int) -> None:
    x = with_gates(inputs(1, 4, (1, 2, 16, 8), 4, seed), seed)
    with emulated():
        clean = x.call()
        x.options["a"][0, :3, 0] = torch.tensor([torch.nan, torch.inf, -torch.inf])
        x.options["b"][0, :3, 0] = torch.tensor([torch.nan, torch.inf, -torch.inf])
        *_, beta, gate = x.call()
    assert beta[0, 0, 0].isnan() and gate[0, 0, 0].isnan()
    assert beta[0, 1:3, 0].tolist() == [1.0, 0.0] and gate[0, 1:3, 0].tolist() == [-torch.inf, 0.0]
    assert torch.equal(beta[..., 1], clean[3][..., 1]) and torch.equal(gate[..., 1], clean[4][..., 1])
    x.options |= {"A_log": torch.tensor([95.0, 120.0]), "dt_bias": torch.zeros(2)}
    x.options["a"][:] = torch.tensor([-100.0, -119.0])
    with emulated():
        gate = x.call()[4]
    assert torch.allclose(gate, -torch.exp(torch.tensor([-5.0, 1.0])).expand_as(gate), rtol=1e-4)


def test_gradients_of_gates_at_the_ends(seed: int) -> None:
    with emulated():
        check_gates_at_the_ends(seed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_heads_of_one_channel(dtype: torch.dtype, seed: int) -> None:
    """q / |q| is ±1 up to eps, so a gradient computed as a difference would cancel to 0."""
    with emulated():
        for eps in (1e-6, 0.5):
            check_gradients(inputs(1, 40, (2, 3, 1, 5), 4, seed, dtype=dtype, eps=eps), seed)
