"""rms_norm_gated's kernels against its definition in fp64."""

from __future__ import annotations

import pytest
import torch
from devices import Device
from rms_norm_cases import DTYPES, ONE_COLUMN, OPTIONS, check, drawn, inputs
from rms_norm_oracle import NormOptions
from torch import Tensor

from gdn_cuda import rms_norm_gated

F32, BF16, F16 = DTYPES
Arguments = tuple[Tensor, Tensor | None, Tensor | None]


def check_on(device: Device, x: Arguments, options: NormOptions, seed: int, multiprocessors: int = 132) -> None:
    with device.kernels(multiprocessors):
        check(x, options, seed)


# A row by part of a warp, by a warp, by a block, and in chunks; whole vectors and not.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 8, 64, 70, 120, 128, 250, 256, 264, 1024, 1030, 2048, 4096, 4099, 8192, 8200])
def test_row_lengths(columns: int, dtype: torch.dtype, device: Device, seed: int) -> None:
    """Each of few blocks takes several rows, the last one fewer."""
    few, many = (41, 5000) if columns <= 256 else (5, 300) if columns < 4096 else (3, 17)
    # The gradient of one weight by many rows would be one sum, which cancels and has no relative bound.
    weight = device.size(dtype, None if columns == 1 else dtype)
    x = inputs(device.size(few, many), columns, seed=seed, dtypes=(dtype, dtype, weight), device=device.name)
    for multiprocessors in device.size((132, 1), (132,)):
        check_on(device, x, NormOptions(), seed, multiprocessors)
    if columns >= 4096:
        check_on(device, x, NormOptions(norm_before_gate=False), seed, 1)


@pytest.mark.parametrize(
    "options", [*OPTIONS, *ONE_COLUMN, NormOptions(group_size=8), NormOptions(norm_before_gate=False, group_size=24)], ids=str
)
def test_options(options: NormOptions, device: Device, seed: int) -> None:
    for dtypes in (
        (BF16, BF16, F32), (F32, None, F32), (F32, None, BF16), (BF16, BF16, None), (BF16, F32, None), (F16, F32, BF16),
        (F32, F16, F16),
    ):  # fmt: skip
        check_on(device, inputs(2, device.size(3, 33), 48, seed=seed, dtypes=dtypes, device=device.name), options, seed)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0), (1,), (1, 1), (0,), (16,)])
def test_sizes_of_0_and_1(shape: tuple[int, ...], device: Device, seed: int) -> None:
    for eps in (1e-5, 20.0):
        check_on(device, inputs(*shape, seed=seed, dtypes=(F32, F32, F32), device=device.name), NormOptions(eps), seed)


def test_strides(device: Device, seed: int) -> None:
    """Heads of a projection, transposed rows, rows that do not start on 16 bytes, one row for all, strided weights."""
    for dtype in DTYPES:
        wide = drawn(2, device.size(3, 30), 112, seed=seed, dtype=dtype, device=device.name)
        weight = drawn(32, seed=seed, dtype=F32, device=device.name)
        x, gate = (wide[..., at : at + 48].unflatten(-1, (3, 16)) for at in (0, 64))
        check_on(device, (x, gate, weight[:16]), NormOptions(), seed)
        check_on(device, (x.transpose(0, 2), gate.transpose(0, 2), weight[::2]), NormOptions(), seed)
        check_on(device, (x.mT, gate.mT, weight[1:4]), NormOptions(), seed)
        check_on(device, (wide[..., 1:17], wide[..., 33:49], weight[1:17]), NormOptions(), seed)
        one_row = x[:, :, :1].expand(-1, -1, 5, 16), x.new_ones(1).expand(2, x.shape[1], 5, 16)
        check_on(device, (*one_row, weight[:16]), NormOptions(), seed)


@pytest.mark.parametrize("size", [1e30, 3e38, 1e-30, 1e-38])
@pytest.mark.parametrize("columns", [16, 70, 512, 5000])
def test_squares_beyond_fp32(size: float, columns: int, device: Device, seed: int) -> None:
    """In a row beside ordinary ones, which do not change; a gradient of this size too."""
    plain = drawn(5, columns, seed=seed, dtype=F32, device=device.name)
    x = plain.clone()
    x[2] = plain[2].sign() * size
    with device.kernels():
        clean, out = (rms_norm_gated(y, None, None, 0.0) for y in (plain, x))
        leaf = x.clone().requires_grad_()
        grad = torch.ones_like(x)
        grad[2] = torch.linspace(-1, 1, columns) * min(1.0, size)
        (found,) = torch.autograd.grad(rms_norm_gated(leaf, None, None, 0.0), leaf, grad)
    torch.testing.assert_close(out[2], plain[2].sign(), rtol=1e-6, atol=0)
    assert torch.equal(out[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])
    scaled, scaled_grad = plain[2].sign().double(), grad[2].double() / size
    expected = scaled_grad - scaled * (scaled_grad * scaled).mean()
    torch.testing.assert_close(found[2].double(), expected, rtol=1e-5, atol=1e-6 * float(scaled_grad.abs().max()))


@pytest.mark.parametrize("columns", [1, 16, 70, 512, 5000])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite_stay_in_their_row(bad: float, columns: int, device: Device, seed: int) -> None:
    rows = device.size(5, 300)
    x, gate, weight = inputs(rows, columns, seed=seed, dtypes=(BF16, BF16, F32), device=device.name)
    assert gate is not None and weight is not None
    grad, others = torch.ones_like(x), [row for row in range(rows) if row != 2]

    def run() -> list[Tensor]:
        leaves = [y.detach().clone().requires_grad_() for y in (x, gate)]
        with device.kernels():
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


def test_gates_at_the_ends(device: Device) -> None:
    gate = torch.tensor([[torch.inf, -torch.inf, torch.nan, -1e4, -88.0, 88.0, -104.0, 0.0]], device=device.name)
    with device.kernels():
        for activation, function in (("sigmoid", torch.sigmoid), ("silu", torch.nn.functional.silu)):
            out = rms_norm_gated(torch.ones(1, 8, device=device.name), gate, None, 0.0, activation)
            torch.testing.assert_close(out, function(gate), equal_nan=True, rtol=1e-5, atol=1e-36)
