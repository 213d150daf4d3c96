"""rms_norm_gated on a GPU against its definition in fp64."""

from __future__ import annotations

import pytest
import torch
from rms_norm_cases import DTYPES, ONE_COLUMN, WAYS, check, drawn, inputs
from rms_norm_oracle import Way
from torch import Tensor

from gdn_cuda import rms_norm_gated

BF16 = torch.bfloat16


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 8, 64, 70, 128, 250, 256, 264, 1024, 1030, 4096, 4099, 8192, 20000])
def test_row_lengths(columns: int, dtype: torch.dtype, seed: int) -> None:
    rows = 5000 if columns <= 256 else 300 if columns < 4096 else 17
    weight = None if columns == 1 else dtype  # its gradient would be one sum, which cancels and has no relative bound
    check(inputs(rows, columns, seed=seed, dtypes=(dtype, dtype, weight), device="cuda"), Way(), seed)


@pytest.mark.parametrize("way", [*WAYS, *ONE_COLUMN, Way(group_size=8), Way(norm_before_gate=False, group_size=24)], ids=str)
def test_ways(way: Way, seed: int) -> None:
    for dtypes in ((BF16, BF16, torch.float32), (torch.float32, None, BF16), (BF16, torch.float32, None)):
        check(inputs(2, 33, 48, seed=seed, dtypes=dtypes, device="cuda"), way, seed)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0), (1,), (1, 1), (0,)])
def test_sizes_of_0_and_1(shape: tuple[int, ...], seed: int) -> None:
    for eps in (1e-5, 20.0):
        check(inputs(*shape, seed=seed, dtypes=(torch.float32,) * 3, device="cuda"), Way(eps), seed)


def test_strides(seed: int) -> None:
    for dtype in DTYPES:
        wide = drawn(2, 30, 112, seed=seed, dtype=dtype, device="cuda")
        weight = drawn(32, seed=seed, dtype=torch.float32, device="cuda")
        x, gate = (wide[..., at : at + 48].unflatten(-1, (3, 16)) for at in (0, 64))
        check((x, gate, weight[:16]), Way(), seed)
        check((x.transpose(0, 2), gate.transpose(0, 2), weight[::2]), Way(), seed)
        check((x.mT, gate.mT, weight[1:4]), Way(), seed)
        check((wide[..., 1:17], wide[..., 33:49], weight[1:17]), Way(), seed)


def test_strides_beyond_32_bits(seed: int) -> None:
    """The last row begins 2^32 elements behind the first."""
    memory = torch.zeros(2**32 + 128, dtype=BF16, device="cuda")
    for columns in (128, 70):
        x = memory.as_strided((3, columns), (2**31, 1))
        x.copy_(drawn(3, columns, seed=seed, dtype=BF16))
        check((x, x, None), Way(), seed)


def test_more_than_2_to_the_31_elements(seed: int) -> None:
    rows = 2**24 + 3
    x = drawn(64, 128, seed=seed, dtype=BF16, device="cuda").repeat(rows // 64 + 1, 1)[:rows]
    out = rms_norm_gated(x, x, None)
    expected = rms_norm_gated(x[:64], x[:64], None)
    assert torch.equal(out[-3:], expected[[rows % 64 - 3, rows % 64 - 2, rows % 64 - 1]])
    assert bool((out[: rows // 64 * 64].view(-1, 64, 128) == expected).all())


@pytest.mark.parametrize("size", [1e30, 3e38, 1e-30, 1e-38])
@pytest.mark.parametrize("columns", [16, 70, 512, 5000])
def test_squares_beyond_fp32(size: float, columns: int, seed: int) -> None:
    plain = drawn(5, columns, seed=seed, dtype=torch.float32, device="cuda")
    x = plain.clone()
    x[2] = plain[2].sign() * size
    clean, out = (rms_norm_gated(y, None, None, 0.0) for y in (plain, x))
    torch.testing.assert_close(out[2], plain[2].sign(), rtol=1e-6, atol=0)
    assert torch.equal(out[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


@pytest.mark.parametrize("columns", [16, 70, 512, 5000])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_in_its_row(bad: float, columns: int, seed: int) -> None:
    x, gate, weight = inputs(300, columns, seed=seed, dtypes=(BF16, BF16, torch.float32), device="cuda")
    assert gate is not None
    others = torch.arange(300, device="cuda") != 7

    def run() -> list[Tensor]:
        leaves = [y.detach().clone().requires_grad_() for y in (x, gate)]
        out = rms_norm_gated(*leaves, weight)
        return [out, *torch.autograd.grad(out, leaves, torch.ones_like(out))]

    clean = run()
    x[7, 3] = bad
    found = run()
    assert not found[0][7].isfinite().all()
    assert all(torch.equal(mine[others], other[others]) for mine, other in zip(found, clean, strict=True))


def test_gates_at_the_ends() -> None:
    gate = torch.tensor([[torch.inf, -torch.inf, torch.nan, -1e4, -88.0, 88.0, -104.0, 0.0]], device="cuda")
    for activation, function in (("sigmoid", torch.sigmoid), ("silu", torch.nn.functional.silu)):
        out = rms_norm_gated(torch.ones(1, 8, device="cuda"), gate, None, 0.0, activation)
        torch.testing.assert_close(out, function(gate), equal_nan=True, rtol=1e-5, atol=1e-36)


def test_two_runs_give_the_same_bits(seed: int) -> None:
    leaves = [
        y.requires_grad_() for y in inputs(4000, 128, seed=seed, dtypes=(BF16, BF16, BF16), device="cuda") if y is not None
    ]
    grad = drawn(4000, 128, seed=seed + 3, dtype=BF16, device="cuda")
    first, second = (torch.autograd.grad(rms_norm_gated(*leaves), leaves, grad) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_graphs_and_compiled_code(seed: int) -> None:
    given = inputs(100, 32, 128, seed=seed, dtypes=(BF16, BF16, torch.float32), device="cuda")
    expected = rms_norm_gated(*given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = rms_norm_gated(*given)
    graph.replay()
    assert torch.equal(out, expected)
    compiled = torch.compile(lambda *x: rms_norm_gated(*x), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*given), expected)
