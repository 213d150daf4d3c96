"""The kernels of rms_norm_gated in the emulator against its definition in fp64."""

from __future__ import annotations

import pytest
import torch
from emulated import emulated
from rms_norm_cases import DTYPES, ONE_COLUMN, WAYS, check, drawn, inputs
from rms_norm_oracle import Way
from torch import Tensor

from gdn_cuda import rms_norm_gated

F32, BF16, F16 = DTYPES
# A row by part of a warp, by a warp, by a block, and in chunks; whole vectors and not.
COLUMNS = (1, 8, 64, 70, 120, 128, 250, 256, 264, 1024, 1030, 2048)
Given = tuple[Tensor, Tensor | None, Tensor | None]


def emulated_check(given: Given, way: Way, seed: int, multiprocessors: int = 132) -> None:
    with emulated(multiprocessors):
        check(given, way, seed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", COLUMNS)
def test_row_lengths(columns: int, dtype: torch.dtype, seed: int) -> None:
    """Few blocks take several rows each, and the last of them fewer."""
    rows = 41 if columns <= 256 else 5
    for multiprocessors in (132, 1):
        emulated_check(inputs(rows, columns, seed=seed, dtypes=(dtype,) * 3), Way(), seed, multiprocessors)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [4096, 8192, 8200, 4099])
def test_long_rows(columns: int, dtype: torch.dtype, seed: int) -> None:
    emulated_check(inputs(3, columns, seed=seed, dtypes=(dtype,) * 3), Way(norm_before_gate=False), seed, 1)


@pytest.mark.parametrize("way", [*WAYS, *ONE_COLUMN, Way(group_size=8), Way(norm_before_gate=False, group_size=24)], ids=str)
def test_ways(way: Way, seed: int) -> None:
    for dtypes in ((BF16, BF16, F32), (F32, None, F32), (BF16, BF16, None), (F16, F32, BF16), (F32, F16, F16)):
        emulated_check(inputs(2, 3, 48, seed=seed, dtypes=dtypes), way, seed)


@pytest.mark.parametrize("group_size", [5, 32, 160])
def test_groups(group_size: int, seed: int) -> None:
    """More groups than blocks."""
    emulated_check(inputs(7, 480, seed=seed, dtypes=(BF16, BF16, BF16)), Way(group_size=group_size), seed, 1)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0), (1,), (1, 1), (0,), (16,)])
def test_sizes_of_0_and_1(shape: tuple[int, ...], seed: int) -> None:
    emulated_check(inputs(*shape, seed=seed, dtypes=(F32, F32, F32)), Way(), seed)


def test_strides(seed: int) -> None:
    """Heads of a projection, transposed rows, rows that do not start on 16 bytes, one row for all, weights apart."""
    for dtype in DTYPES:
        wide = drawn(2, 3, 112, seed=seed, dtype=dtype)
        weight = drawn(32, seed=seed, dtype=F32)
        x, gate = (wide[..., at : at + 48].unflatten(-1, (3, 16)) for at in (0, 64))
        emulated_check((x, gate, weight[:16]), Way(), seed)
        emulated_check((x.transpose(0, 2), gate.transpose(0, 2), weight[::2]), Way(), seed)
        emulated_check((x.mT, gate.mT, weight[1:4]), Way(), seed)
        emulated_check((wide[..., 1:17], wide[..., 33:49], weight[1:17]), Way(), seed)
        emulated_check((x[:, :, :1].expand(2, 3, 5, 16), x.new_ones(1).expand(2, 3, 5, 16), weight[:16]), Way(), seed)


@pytest.mark.parametrize("size", [1e30, 3e38, 1e-30, 1e-38])
@pytest.mark.parametrize("columns", [16, 70, 512, 5000])
def test_squares_beyond_fp32(size: float, columns: int, seed: int) -> None:
    """Beside rows of ordinary numbers, which they do not change; a gradient of this size too."""
    plain = drawn(5, columns, seed=seed, dtype=F32)
    x = plain.clone()
    x[2] = plain[2].sign() * size
    with emulated():
        clean, out = (rms_norm_gated(y, None, None, 0.0) for y in (plain, x))
        leaf = x.clone().requires_grad_()
        grad = torch.ones_like(x)
        grad[2] = torch.linspace(-1, 1, columns) * min(1.0, size)
        (found,) = torch.autograd.grad(rms_norm_gated(leaf, None, None, 0.0), leaf, grad)
    torch.testing.assert_close(out[2], plain[2].sign(), rtol=1e-6, atol=0)
    assert torch.equal(out[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])
    scaled, of_scaled = plain[2].sign().double(), grad[2].double() / size
    expected = of_scaled - scaled * (of_scaled * scaled).mean()
    torch.testing.assert_close(found[2].double(), expected, rtol=1e-5, atol=1e-6 * float(of_scaled.abs().max()))


def test_rows_of_zeros(seed: int) -> None:
    zeros, ones = torch.zeros(2, 24, requires_grad=True), torch.ones(24)
    with emulated():
        out = rms_norm_gated(zeros, None, ones)
        (grad,) = torch.autograd.grad(out.sum(), zeros)
        without_eps = rms_norm_gated(zeros, None, ones, 0.0)
    assert not out.any() and torch.allclose(grad, torch.full_like(grad, 1e-5**-0.5))
    assert bool(without_eps.isnan().all())


@pytest.mark.parametrize("columns", [1, 16, 70, 512, 5000])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_in_its_row(bad: float, columns: int, seed: int) -> None:
    x, gate, weight = inputs(5, columns, seed=seed, dtypes=(BF16, BF16, F32))
    assert gate is not None and weight is not None
    grad, others = torch.ones_like(x), [0, 1, 3, 4]

    def run() -> list[Tensor]:
        leaves = [y.detach().clone().requires_grad_() for y in (x, gate)]
        with emulated():
            out = rms_norm_gated(*leaves, weight)
            return [out, *torch.autograd.grad(out, leaves, grad)]

    clean = run()
    for spoilt in (x, gate, grad):
        at = 2, min(3, columns - 1)
        kept = spoilt[at].clone()
        spoilt[at] = bad
        found = run()
        assert not found[1][2].isfinite().all()
        assert all(torch.equal(mine[others], other[others]) for mine, other in zip(found, clean, strict=True))
        spoilt[at] = kept


def test_gates_at_the_ends() -> None:
    gate = torch.tensor([[torch.inf, -torch.inf, torch.nan, -1e4, -88.0, 88.0, -104.0, 0.0]])
    with emulated():
        for activation, function in (("sigmoid", torch.sigmoid), ("silu", torch.nn.functional.silu)):
            out = rms_norm_gated(torch.ones(1, 8), gate, None, 0.0, activation)
            torch.testing.assert_close(out, function(gate), equal_nan=True, rtol=1e-5, atol=1e-36)


@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
def test_every_slope_of_the_gate(activation: str) -> None:
    """Element by element, also where the gate is nearly open or closed."""
    gate = torch.linspace(-80, 60, 136)[None].requires_grad_()
    wide = gate.detach().double()
    power = torch.exp(-wide.abs())
    slope = power / (1 + power) ** 2  # torch's has no digits in fp64 where the gate is open
    expected = slope if activation == "sigmoid" else wide.sigmoid() + wide * slope
    with emulated():
        (found,) = torch.autograd.grad(rms_norm_gated(torch.ones(1, 136), gate, None, 0.0, activation).sum(), gate)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-36)


def test_the_other_gradients_without_a_gate_or_a_weight(seed: int) -> None:
    """A tensor that needs no gradient gets none, and changes no other's."""
    given = [y for y in inputs(3, 16, seed=seed, dtypes=(F32, F32, F32)) if y is not None]
    with emulated():
        leaves = [y.clone().requires_grad_() for y in given]
        every = torch.autograd.grad(rms_norm_gated(*leaves).sum(), leaves)
        for i in range(3):
            alone = [y.clone().requires_grad_(i == j) for j, y in enumerate(given)]
            (found,) = torch.autograd.grad(rms_norm_gated(*alone).sum(), alone[i])
            assert torch.equal(found, every[i])
