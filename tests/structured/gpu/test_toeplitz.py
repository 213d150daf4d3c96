"""Products with Toeplitz matrices and by displacement on the GPU, against literal sums in fp64: values, gradients, layouts,
graphs, streams."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import rel_rms
from literal import toeplitz_matvec as exact
from torch import Tensor

from gdn_cuda.nn import DisplacementMV, ToeplitzMV
from gdn_cuda.reference import structured_displacement as displacement_oracle
from gdn_cuda.structured.displacement import DisplacementType, displacement_matvec
from gdn_cuda.structured.reference_toeplitz_operators import widened
from gdn_cuda.structured.toeplitz import toeplitz_matvec, toeplitz_matvec_transpose

BOUNDS = {torch.float32: 1e-6, torch.complex64: 1e-6, torch.float64: 1e-14, torch.complex128: 1e-14,
          torch.bfloat16: 4e-3, torch.float16: 5e-4}  # fmt: skip
# Around limits of algorithms: tiles and panels of sums, powers of two, capacities of transforms, torch's transforms beyond.
SIZES = [1, 2, 31, 32, 33, 64, 65, 129, 255, 256, 257, 511, 512, 513, 1000, 1024, 1025, 2047, 2048, 2049, 4095, 4096, 4097,
         8191, 8192, 8193, 20000]  # fmt: skip


def draw(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, generator=generator, dtype=wide, device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("n", SIZES)
def test_every_size(n: int, dtype: torch.dtype, seed: int) -> None:
    c, r, x = (draw(shape, dtype, seed + i) for i, shape in enumerate(((2, 1, n), (3, n), (2, 3, n, 2))))
    r[..., 0] = torch.nan  # not read
    for function, transpose in ((toeplitz_matvec, False), (toeplitz_matvec_transpose, True)):
        expected = exact(c, r, x, transpose)
        out = function(c, r, x)
        assert out.dtype == dtype and rel_rms(out, expected) < BOUNDS[dtype]
        assert rel_rms(function(c[:, 0], r[0], x[:, 0, :, 1]), expected[:, 0, :, 1]) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("n,m", [(5, 3), (3, 5), (1, 9), (9, 1), (64, 65), (700, 300), (300, 700), (2049, 1000), (1000, 8192),
                                 (8193, 10), (10, 8193), (9000, 9001), (20000, 300)])  # fmt: skip
def test_rectangular(n: int, m: int, dtype: torch.dtype, seed: int) -> None:
    """Padded with zeros up to the capacity of one block; torch's transforms support any size."""
    c, r = draw((2, 1, n), dtype, seed), draw((3, m), dtype, seed + 1)
    r[..., 0] = torch.nan
    for function, transpose, size in ((toeplitz_matvec, False, m), (toeplitz_matvec_transpose, True, n)):
        x = draw((2, 3, size, 2), dtype, seed + 2)
        expected, out = exact(c, r, x, transpose), function(c, r, x)
        assert out.dtype == dtype and out.is_contiguous() and rel_rms(out, expected) < BOUNDS[dtype]
        assert rel_rms(function(c[:, 0], r[0], x[:, 0, :, 1]), expected[:, 0, :, 1]) < BOUNDS[dtype]
    if dtype in (torch.float32, torch.complex128) and max(n, m) < 2000:
        leaves = [y.requires_grad_() for y in (c, draw((3, m), dtype, seed + 1), draw((2, 3, m, 2), dtype, seed + 2))]
        wide = [widened(y.detach()).requires_grad_() for y in leaves]
        grad = draw((2, 3, n, 2), dtype, seed + 9)
        ours = torch.autograd.grad(toeplitz_matvec(*leaves), leaves, grad)
        theirs = torch.autograd.grad(exact(*wide), wide, widened(grad))
        assert all(rel_rms(a, b) < 10 * BOUNDS[dtype] for a, b in zip(ours, theirs, strict=True))


def test_integers_and_transforms_of_torch_func(seed: int) -> None:
    c, r, x = (draw((300,), torch.float64, seed + i).mul(8).round().long() for i in range(3))
    assert toeplitz_matvec(c, r, x).dtype == torch.get_default_dtype()
    assert rel_rms(toeplitz_matvec(c, r, x), exact(c, r, x, False)) < 1e-6
    given, moved = ([draw((300,), torch.float64, seed + i) for i in of] for of in ((4, 5, 6), (7, 8, 9)))
    tangent = torch.func.jvp(toeplitz_matvec, tuple(given), tuple(moved))[1]
    expected = exact(moved[0], moved[1], given[2]) + exact(given[0], given[1], moved[2])
    assert rel_rms(tangent, expected) < 1e-13
    gradient = torch.func.grad(lambda x: toeplitz_matvec(given[0], given[1], x).square().sum())(given[2])
    assert rel_rms(gradient, 2 * exact(given[0], given[1], exact(*given), True)) < 1e-13
    mapped = torch.vmap(toeplitz_matvec, (0, None, None))(torch.stack([given[0], moved[0]]), given[1], given[2])
    assert rel_rms(mapped[1], exact(moved[0], given[1], given[2])) < 1e-13


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.float64, torch.complex128])
@pytest.mark.parametrize("n,systems", [(65, 2000), (128, 2000), (200, 2000), (512, 700), (700, 300), (1000, 300)])
def test_many_systems(n: int, systems: int, dtype: torch.dtype, seed: int) -> None:
    """Transforms of every length equal sums, which are the choice for few systems."""
    c, r, x = (draw(shape, dtype, seed + i) for i, shape in enumerate(((systems, n), (n,), (systems, n))))
    for function, transpose in ((toeplitz_matvec, False), (toeplitz_matvec_transpose, True)):
        out, expected = function(c, r, x), exact(c, r, x, transpose)
        assert rel_rms(out, expected) < BOUNDS[dtype]
        assert rel_rms(function(c[-2:], r, x[-2:]), expected[-2:]) < BOUNDS[dtype]


@pytest.mark.parametrize("n", [1, 64, 300])
def test_few_systems_are_summed_exactly(n: int, seed: int) -> None:
    """Sums of small integers are exact, transforms would not be."""
    c, r, x = (draw((2, n), torch.float32, seed + i).mul(8).round() for i in range(3))
    assert torch.equal(toeplitz_matvec(c, r, x).double(), exact(c, r, x, False).round())


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.float64])
@pytest.mark.parametrize("n,columns", [(32, 500), (64, 3), (200, 9), (200, 1000), (700, 300), (2048, 5), (2048, 60)])
def test_many_columns(n: int, columns: int, dtype: torch.dtype, seed: int) -> None:
    """Several columns per block, and blocks with fewer."""
    c, r, x = (draw(shape, dtype, seed + i) for i, shape in enumerate(((3, n), (n,), (3, n, columns))))
    assert rel_rms(toeplitz_matvec(c, r, x), exact(c, r, x, False)) < BOUNDS[dtype]
    by_columns = torch.stack([toeplitz_matvec(c, r, x[..., k].contiguous()) for k in (0, columns - 1)], -1)
    assert rel_rms(by_columns, exact(c, r, x[..., [0, columns - 1]], False)) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.float64, torch.complex128])
@pytest.mark.parametrize("n", [5, 100, 600, 9000])
def test_gradients(n: int, dtype: torch.dtype, seed: int) -> None:
    x = [draw(shape, dtype, seed + i).requires_grad_() for i, shape in enumerate(((2, n), (n,), (2, n, 2)))]
    wide = [widened(y.detach()).requires_grad_() for y in x]
    grad = draw((2, n, 2), dtype, seed + 9)
    for function, transpose in ((toeplitz_matvec, False), (toeplitz_matvec_transpose, True)):
        ours = torch.autograd.grad(function(*x), x, grad)
        theirs = torch.autograd.grad(exact(*wide, transpose), wide, widened(grad))
        assert all(rel_rms(a, b) < 10 * BOUNDS[dtype] for a, b in zip(ours, theirs, strict=True))


def test_layouts(seed: int) -> None:
    """Separate or adjacent columns, steps, broadcast dimensions, and uninitialized memory."""
    c, r, x = (draw(shape, torch.float32, seed + i) for i, shape in enumerate(((3, 1, 600), (600,), (3, 4, 2, 300))))
    for column, row, right in (
        (c[..., ::2], r[1::2], x.mT),
        (c[..., :300].expand(3, 4, 300), r[:300].flip(0), x.mT[..., :1]),
        (c[:1, :, 300:].expand(3, 1, 300), r[:300], x.permute(0, 1, 3, 2)[:, ::2]),
        # Three leading dimensions with different strides.
        (c[:, 0, :300], r.view(2, 1, 1, 300), x.mT.permute(1, 0, 2, 3).expand(2, 4, 3, 300, 2)),
    ):
        expected = exact(column, row, right, False)
        poison = torch.full_like(expected, torch.nan, dtype=torch.float32)
        del poison
        assert rel_rms(toeplitz_matvec(column, row, right), expected) < 1e-6
    for shapes in (((0,), (0,), (0, 2)), ((0, 4), (4,), (4,)), ((4,), (4,), (4, 0))):
        assert toeplitz_matvec(*(draw(shape, torch.float32, seed) for shape in shapes)).numel() == 0


@pytest.mark.parametrize("n", [100, 700])
def test_graphs_streams_and_out(n: int, seed: int) -> None:
    c, r, x = (draw((2, n), torch.float32, seed + i) for i in range(3))
    expected = toeplitz_matvec(c, r, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = toeplitz_matvec(c, r, x)
    captured.zero_()
    graph.replay()
    assert torch.equal(captured, expected)
    stream = torch.cuda.Stream()
    there = toeplitz_matvec(c, r, x, stream=stream)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(there, expected)
    out = torch.full_like(expected, torch.nan)
    assert toeplitz_matvec(c, r, x, out=out) is out and torch.equal(out, expected)
    compiled = torch.compile(ToeplitzMV(c, r), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), expected)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("disp_type", DisplacementType)
@pytest.mark.parametrize("n", [1, 2, 33, 500])
def test_displacement(n: int, disp_type: int, dtype: torch.dtype, seed: int) -> None:
    G, H, x = (draw(shape, dtype, seed + i) for i, shape in enumerate(((2, n, 3), (n, 3), (2, n))))
    expected = displacement_oracle.displacement_matvec(G, H, x, disp_type)
    bound = max(BOUNDS[dtype], 1e-12 if dtype in (torch.float64, torch.complex128) else 0)  # the oracle's own
    out = displacement_matvec(G, H, x, disp_type)
    assert out.dtype == dtype
    if n == 1 and disp_type != DisplacementType.CYCLIC_ANTICYCLIC:
        assert not out.any()
    else:
        assert rel_rms(out, expected) < bound


def test_displacement_forms_no_matrix(seed: int) -> None:
    n, rank = 1 << 20, 2  # a matrix would take 4 TB
    G, H, x = (draw(shape, torch.float32, seed + i) for i, shape in enumerate(((n, rank), (n, rank), (n,))))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    DisplacementMV(G, H)(x)
    assert torch.cuda.max_memory_allocated() - before < 64 * n * 8 * rank


def test_bad_input(seed: int) -> None:
    c: Any = draw((3,), torch.float32, seed)
    with pytest.raises(ValueError, match=r"^toeplitz_matvec: x: expected cuda:0, the device of c, got cpu$"):
        toeplitz_matvec(c, c, c.cpu())
    with pytest.raises(ValueError, match=r"^toeplitz_matvec: x: expected \(…, 1\), or with more dimensions .* got \(3,\)$"):
        toeplitz_matvec(c, c[:1], c)
    long = torch.ones(9000, device="cuda")
    with pytest.raises(ValueError, match=r"^toeplitz_matvec: x: expected \(…, 3\), or with more dimensions .* got \(9000,\)$"):
        toeplitz_matvec(long, c, long)
