"""Toeplitz solvers on the GPU against fp64: every size and algorithm, info, gradients, layouts, graphs, no waiting."""

from __future__ import annotations

import pytest
import torch
from helpers import rel_rms
from literal import backward_error
from torch import Tensor

from gdn_cuda import _C
from gdn_cuda.nn import ToeplitzInverse, ToeplitzSolve
from gdn_cuda.reference import structured_toeplitz as oracle
from gdn_cuda.structured.reference_toeplitz_operators import widened
from gdn_cuda.structured.toeplitz import (
    gs_compute_generators,
    toeplitz_inverse_apply,
    toeplitz_solve,
    toeplitz_solve_ex,
    toeplitz_solve_symmetric,
    toeplitz_solve_symmetric_ex,
    toeplitz_to_cauchy,
)

BOUNDS = {torch.float32: 1e-6, torch.complex64: 1e-6, torch.float64: 1e-11, torch.complex128: 1e-11,
          torch.bfloat16: 4e-3, torch.float16: 5e-4}  # fmt: skip
LinAlgError = torch.linalg.LinAlgError
CONFIGURATIONS = next(len(each["configurations"]) for each in _C.kernels() if each["name"] == "toeplitz_eliminate")


def draw(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, generator=generator, dtype=wide, device="cuda").to(dtype)


def well(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """First columns that, with a random row, give small condition numbers."""
    c = draw(shape, torch.complex128 if dtype.is_complex else torch.float64, seed)
    c[..., :1] += 4 * shape[-1] ** 0.5
    return c.to(dtype)


def positive(n: int, dtype: torch.dtype) -> Tensor:
    distance = torch.arange(n, dtype=torch.float64, device="cuda")
    first = distance == 0
    return torch.stack([0.9**distance + 0.1 * first, (-((distance / 3) ** 2)).exp() + 1e-2 * first]).to(dtype)


def solved(c: Tensor, r: Tensor, b: Tensor) -> Tensor:
    """Dense LU in fp64: independent up to 8192 rows; beyond, where solvers use it too, `backward_error` is the test."""
    matrix, right = oracle.toeplitz(c, r), widened(b)
    working = torch.promote_types(matrix.dtype, right.dtype)
    many = b.dim() > max(c.dim(), r.dim())
    x = torch.linalg.solve(matrix.to(working), right.to(working) if many else right.to(working)[..., None])
    return x if many else x.squeeze(-1)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("n", [1, 2, 3, 31, 32, 33, 63, 64, 65, 255, 256, 257, 511, 513, 1023, 1024, 1025])
def test_every_size(n: int, dtype: torch.dtype, seed: int) -> None:
    """Odd and even numbers of right-hand sides; 1025 rows use a cluster of blocks."""
    c, r = well((2, 1, n), dtype, seed), draw((3, n), dtype, seed + 1)
    r[..., 0] = torch.nan  # not read
    for columns in (1, 4):
        b = draw((2, 3, n, columns), dtype, seed + 2)
        x, info = toeplitz_solve_ex(c, r, b)
        assert x.dtype == dtype and info.shape == (2, 3) and not info.any()
        assert rel_rms(x, solved(c, r, b)) < BOUNDS[dtype]
    assert rel_rms(toeplitz_solve(c[0, 0], r[0], b[0, 0, :, 1]), solved(c[0, 0], r[0], b[0, 0, :, 1])) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("n", [1500, 3000, 4097, 8191, 8192, 8193])
def test_every_long_size(n: int, dtype: torch.dtype, seed: int) -> None:
    """These need pivots, as no diagonal dominates. 8193 rows are solved by dense LU, whose residual is checked by literal
    sums."""
    c, r, b = (draw((1, n), dtype, seed + i) for i in range(3))
    x, info = toeplitz_solve_ex(c, r, b)
    rounding = torch.finfo(dtype).eps
    assert not info.any() and backward_error(c, r, x, b) < (rounding if rounding > 1e-10 else 100 * rounding)
    if n <= 8192:
        assert rel_rms(x, solved(c, r, b)) < 1e2 * BOUNDS[dtype]
    if n == 3000:
        c, b = torch.cat([c, well((2, n), dtype, seed)]), draw((3, n, 5), dtype, seed)
        assert rel_rms(toeplitz_solve(c, r, b), solved(c, r, b)) < 1e2 * BOUNDS[dtype]


def generators(n: int, columns: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(draw((3, rows, n), torch.complex128, seed + rows) for rows in (2, 2, columns))  # type: ignore[return-value]


@pytest.mark.parametrize("configuration", range(CONFIGURATIONS))
def test_every_configuration_of_clusters(configuration: int, seed: int) -> None:
    """So few rows that most blocks have none."""
    eliminate = torch.ops.gdn_cuda.toeplitz_eliminate
    for n, columns in ((1, 1), (2, 4), (33, 5), (200, 2)):
        given = generators(n, columns, seed)
        given[0][1] = 0  # a matrix of zeros
        found, info = eliminate(*given, configuration)
        expected, told = eliminate(*(x.cpu() for x in given), configuration)
        assert info.tolist() == told.tolist() == [0, 1, 0]
        assert rel_rms(found[::2].cpu(), expected[::2]) < 1e-9
        assert torch.equal(eliminate(*given, configuration)[0][::2], found[::2])
    with pytest.raises(ValueError, match=r"^toeplitz_eliminate: left: expected at most \d+ rows, got"):
        eliminate(*generators(8193, 1, seed), configuration)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("n", [1, 2, 31, 33, 64, 65, 256, 257, 1000, 1024, 1025, 2500, 4096, 4097, 6561, 8191, 8192, 8193])
def test_every_positive_size(n: int, dtype: torch.dtype, seed: int) -> None:
    """Conjugate gradients beyond 4096 rows, in torch operations beyond 8192. `solved` pivots, unlike these algorithms."""
    c, b = positive(n, dtype), draw((3, 2, n, 3), dtype, seed)
    x, expected = toeplitz_solve_symmetric(c, b), solved(c, c, b)
    assert x.dtype == dtype and rel_rms(x, expected) < BOUNDS[dtype]
    if n <= 8192:
        x, info = toeplitz_solve_symmetric_ex(c, b, assume_positive=True)
        assert info.shape == (2,) and not info.any() and rel_rms(x, expected) < BOUNDS[dtype]
        assert rel_rms(toeplitz_solve_symmetric_ex(c[:1], b[0, 0, :, 0], assume_positive=True)[0][0], expected[0, 0, :, 0]) < BOUNDS[dtype]  # fmt: skip  # noqa: E501


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [5, 100, 700, 2000])
def test_symmetric_and_not_definite(n: int, dtype: torch.dtype, seed: int) -> None:
    """An indefinite matrix in a batch is reported with assume_positive, and solved with pivots without."""
    distance = torch.arange(n, dtype=torch.float64, device="cuda")
    indefinite = (distance.cos() * (distance < 4) - 0.95 * (distance == 0)).to(dtype)
    c = torch.stack([positive(n, dtype)[0], indefinite])
    b = draw((2, n), dtype, seed)
    x, info = toeplitz_solve_symmetric_ex(c, b, assume_positive=True)
    assert info[0] == 0 and info[1] < 0 and x[1].isnan().all()
    expected = solved(c, c, b)
    assert rel_rms(x[0], expected[0]) < BOUNDS[dtype]
    for x in (toeplitz_solve_symmetric(c, b), toeplitz_solve_symmetric_ex(c, b)[0]):
        assert rel_rms(x, expected) < 1e2 * BOUNDS[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [4097, 5000, 8192])
def test_conjugate_gradients_report_failures_in_info(n: int, dtype: torch.dtype, seed: int) -> None:
    """Failing matrices and right-hand sides do not affect the others of a batch."""
    distance = torch.arange(n, dtype=torch.float64, device="cuda")
    first = (distance == 0).double()
    last = torch.where(distance == n - 1, torch.nan, first)
    good, indefinite, singular = positive(n, torch.float64)[0], first - 0.6 * (distance == 1), torch.ones_like(first)
    c = torch.stack([good, indefinite, singular, 0 * first, -good, last, 1e-20 * good]).to(dtype)
    b = draw((7, n, 3), dtype, seed)
    b[:, :, 1] = 0
    b[0, n // 2, 2] = torch.inf
    x, info = toeplitz_solve_symmetric_ex(c, b, assume_positive=True)
    assert info.tolist() == [0, -1, -1, -1, -1, -1, 0]
    expected = solved(c[0], c[0], b[0, :, :1])
    assert rel_rms(x[0, :, :1], expected) < BOUNDS[dtype] and not x[0, :, 1].any() and x[0, :, 2].isnan().all()
    assert rel_rms(1e-20 * x[6], 1e-20 * solved(c[6], c[6], b[6])) < BOUNDS[dtype] and x[1:6, :, 0].isnan().all()
    alone = toeplitz_solve_symmetric_ex(c[0], b[0, :, 0], assume_positive=True)[0]
    assert torch.equal(alone, x[0, :, 0])
    many = draw((40, n, 5), dtype, seed + 1)  # more right-hand sides than blocks
    x = toeplitz_solve_symmetric_ex(c[:1], many, assume_positive=True)[0]
    assert rel_rms(x, solved(c[0], c[0], many.movedim(0, 1).reshape(n, 200)).reshape(n, 40, 5).movedim(1, 0)) < BOUNDS[dtype]
    assert torch.equal(x, toeplitz_solve_symmetric_ex(c[:1], many, assume_positive=True)[0])
    near = (0.9999**distance).to(dtype)  # a condition number of 1e8
    assert toeplitz_solve_symmetric_ex(near, b[0, :, 0], assume_positive=True)[1] == (n + 1 if dtype == torch.float32 else 0)
    pivoted = toeplitz_solve_symmetric(c[:2], b[:2, :, 0])
    assert rel_rms(pivoted, solved(c[:2], c[:2], b[:2, :, 0])) < 1e2 * BOUNDS[dtype]


def test_conjugate_gradients_run_in_a_captured_graph(seed: int) -> None:
    c, b = positive(5000, torch.float32), draw((5000, 2), torch.float32, seed).mT
    expected, _ = toeplitz_solve_symmetric_ex(c, b, assume_positive=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x, info = toeplitz_solve_symmetric_ex(c, b, assume_positive=True)
    for _ in range(2):
        x.zero_(), info.fill_(7)
        graph.replay()
        assert torch.equal(x, expected) and not info.any()
    leaves = [c.double().requires_grad_(), b.double().requires_grad_()]
    grad = draw((2, 5000), torch.float64, seed + 1)
    ours, theirs = (
        torch.autograd.grad(function(*leaves), leaves, grad)
        for function in (
            lambda c, b: toeplitz_solve_symmetric_ex(c, b, assume_positive=True)[0],
            lambda c, b: solved(c, c, b),
        )
    )
    assert all(rel_rms(x, y) < 1e-9 for x, y in zip(ours, theirs, strict=True))
    compiled = torch.compile(toeplitz_solve_symmetric_ex, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(c, b, assume_positive=True)[0], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("n", [3, 100, 600, 1500])
def test_tiny_and_zero_leading_minors(n: int, dtype: torch.dtype, seed: int) -> None:
    for first in (1e-14, 0.0):
        c, r, b = (draw((2, n), dtype, seed + i) for i in range(3))
        c[:, 0] = first
        assert rel_rms(toeplitz_solve(c, r, b), solved(c, r, b)) < 1e2 * BOUNDS[dtype]


@pytest.mark.parametrize("n", [3, 100, 600, 1100])
def test_singular_matrices_are_reported_in_info(n: int, seed: int) -> None:
    c, r = well((4, n), torch.float32, seed), draw((4, n), torch.float32, seed + 1)
    c[1], r[1] = 1, 1
    c[2], r[2] = 0, 0
    c[3, 0] = torch.nan
    b = draw((4, n), torch.float32, seed + 2)
    x, info = toeplitz_solve_ex(c, r, b)
    assert info[0] == 0 and rel_rms(x[0], solved(c[0], r[0], b[0])) < 1e-6
    assert (info[1:] > 0).all() and (info <= n + 1).all() and info[2] == 1 and x[2].isnan().all()
    with pytest.raises(LinAlgError, match=r"^toeplitz_solve: c, r: expected matrices that are nonsingular"):
        toeplitz_solve(c, r, b)
    symmetric, told = toeplitz_solve_symmetric_ex(c[:3], b[:3])
    assert (told[1:] > 0).all() and symmetric[2].isnan().all()
    with pytest.raises(LinAlgError, match=r"^toeplitz_solve_symmetric: c: expected matrices that are nonsingular"):
        toeplitz_solve_symmetric(c[:3], b[:3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("n", [1, 2, 50, 300])
def test_gohberg_semencul(n: int, dtype: torch.dtype, seed: int) -> None:
    c, r, x = well((2, n), dtype, seed), draw((n,), dtype, seed + 1), draw((2, n, 3), dtype, seed + 2)
    u, v = gs_compute_generators(c, r)
    expected = oracle.gs_compute_generators(c, r)
    assert rel_rms(u, expected[0]) < BOUNDS[dtype] and rel_rms(v, expected[1]) < BOUNDS[dtype]
    if not dtype.is_complex:  # composed of differentiable operators, with the result of the single operator
        leaves = [c.clone().requires_grad_(), r.clone().requires_grad_()]
        ours = toeplitz_inverse_apply(*gs_compute_generators(*leaves), x)
        assert rel_rms(ours, toeplitz_inverse_apply(u, v, x)) < 10 * BOUNDS[dtype]
    assert rel_rms(toeplitz_inverse_apply(u, v, x), solved(c, r, x)) < 10 * BOUNDS[dtype]
    assert rel_rms(ToeplitzInverse(c, r)(x), solved(c, r, x)) < 10 * BOUNDS[dtype]
    zero = u.clone()
    zero[0, 0] = 0
    applied = toeplitz_inverse_apply(zero, v, x)
    assert applied[0].isnan().all() and rel_rms(applied[1], solved(c, r, x)[1]) < 10 * BOUNDS[dtype]
    assert rel_rms(toeplitz_to_cauchy(c, r), oracle.toeplitz_to_cauchy(c, r)) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("n", [6, 100])
def test_gradients(n: int, dtype: torch.dtype, seed: int) -> None:
    x = [well((2, n), dtype, seed), draw((n,), dtype, seed + 1), draw((2, n, 2), dtype, seed + 2)]
    grad = draw((2, n, 2), dtype, seed + 9)
    for ours_of, theirs_of, which in (
        (toeplitz_solve, solved, (0, 1, 2)),
        (toeplitz_solve_symmetric, lambda c, b: solved(c, c, b), (0, 2)),
        (lambda c, b: toeplitz_solve_symmetric_ex(c, b)[0], lambda c, b: solved(c, c, b), (0, 2)),
    ):
        leaves = [x[i].clone().requires_grad_() for i in which]
        wide = [widened(y.detach()).requires_grad_() for y in leaves]
        ours = torch.autograd.grad(ours_of(*leaves), leaves, grad)
        theirs = torch.autograd.grad(theirs_of(*wide), wide, widened(grad))
        assert all(rel_rms(a, b) < 10 * BOUNDS[dtype] for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("n", [1100, 5000])
def test_conjugate_gradients_keep_full_fp32_precision(n: int) -> None:
    """A smooth right-hand side of an ill-conditioned matrix."""
    d = torch.arange(n, dtype=torch.float64, device="cuda")
    c = ((-((d / 10) ** 2)).exp() + 1e-3 * (d == 0)).float()
    b = (-(((d - n / 2) / 100) ** 2)).exp().float()
    x, info = torch.ops.gdn_cuda.toeplitz_pcg(c, b, 1e-7)
    assert info == 0 and rel_rms(x, solved(c, c, b)) < 1e-7


def test_layouts(seed: int) -> None:
    c, b = positive(600, torch.float32), draw((2, 3, 600), torch.float32, seed)
    for column, right in ((c[:, :300], b.mT[:, ::2]), (c[:1, :300].expand(2, 300), b.mT[:, 300:, :1]), (c[:, :300].flip(0), b.mT[:, :300].flip(-1))):  # fmt: skip  # noqa: E501
        expected = solved(column, column, right)
        assert rel_rms(toeplitz_solve_symmetric(column, right), expected) < 1e-6
        assert rel_rms(toeplitz_solve(column, column, right), expected) < 1e-6
    for shapes in (((0,), (0, 2)), ((0, 4), (0, 4)), ((1, 4), (0, 4)), ((4,), (4, 0))):
        column, right = (torch.ones(shape, device="cuda") for shape in shapes)
        assert toeplitz_solve_ex(column, column, right)[0].numel() == 0
        assert toeplitz_solve_symmetric_ex(column, right, assume_positive=True)[0].numel() == 0
    none = torch.ones(2, 1100, 0, device="cuda")
    for n in (4, 600, 1100):  # singular matrices are reported even without columns
        first = torch.tensor([[0.0], [1.0]], device="cuda") * torch.eye(1, n, device="cuda")
        told = toeplitz_solve_ex(first, torch.zeros(n, device="cuda"), none[:, :n])[1]
        assert told.tolist() == [1, 0]
    assert toeplitz_solve_symmetric_ex(-torch.eye(2, 4, device="cuda")[:1], none[:1, :4], assume_positive=True)[1].tolist() == [
        -1
    ]


@pytest.mark.parametrize("n", [50, 300, 1100])
def test_calls_do_not_wait_for_the_device(n: int, seed: int) -> None:
    """`_ex` can be captured, and traced as one graph."""
    c, r, b = well((2, n), torch.float32, seed), draw((n,), torch.float32, seed + 1), draw((2, n), torch.float32, seed + 2)
    spd = positive(n, torch.float32)
    calls = (lambda: toeplitz_solve_ex(c, r, b), lambda: toeplitz_solve_symmetric_ex(c, b),
             lambda: toeplitz_solve_symmetric_ex(spd, b, assume_positive=True))  # fmt: skip
    for call in calls:
        expected, _ = call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x, info = call()
        x.zero_(), info.fill_(7)
        graph.replay()
        assert rel_rms(x, expected) < 1e-7 and not info.any()
        torch.cuda.set_sync_debug_mode("error")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    compiled = torch.compile(ToeplitzSolve(c, r).solve_ex, fullgraph=True, backend="aot_eager")
    assert rel_rms(compiled(b)[0], toeplitz_solve(c, r, b)) < 1e-6
    stream = torch.cuda.Stream()
    there, info = toeplitz_solve_ex(c, r, b, stream=stream)
    torch.cuda.current_stream().wait_stream(stream)
    assert backward_error(c, r, there, b) < 1e-6 and not info.any()


def test_results_are_deterministic(seed: int) -> None:
    """Bitwise equal in every run, whatever else is in the batch."""
    c, r, b = well((5, 200), torch.float32, seed), draw((5, 200), torch.float32, seed + 1), draw((5, 200), torch.float32, seed)
    x = toeplitz_solve(c, r, b)
    spd = positive(200, torch.float32)[[0, 1, 1, 0, 0]]
    y = toeplitz_solve_symmetric(spd, b)
    for _ in range(3):
        assert torch.equal(toeplitz_solve(c, r, b), x) and torch.equal(toeplitz_solve_symmetric(spd, b), y)
    assert torch.equal(toeplitz_solve_symmetric(spd[3], b[3]), y[3])


@pytest.mark.parametrize("n", [50, 700, 1500])
def test_transforms_of_torch_func(n: int, seed: int) -> None:
    """Tangents of the solution solve again; `jacrev` maps over right-hand sides."""
    given = (well((n,), torch.float64, seed), draw((n,), torch.float64, seed + 1), draw((n,), torch.float64, seed + 2))
    moved = tuple(draw((n,), torch.float64, seed + 3 + i) for i in range(3))
    x, tangent = torch.func.jvp(toeplitz_solve, given, moved)
    expected = solved(given[0], given[1], moved[2] - oracle.toeplitz_matvec(moved[0], moved[1], x))
    assert rel_rms(tangent, expected) < 1e-10
    (by_b,) = torch.func.jacrev(lambda b: toeplitz_solve_ex(given[0], given[1], b)[0], argnums=(0,))(given[2])
    assert rel_rms(by_b, torch.linalg.inv(oracle.toeplitz(given[0], given[1]))) < 1e-10
    gradient = torch.func.grad(lambda c: toeplitz_solve_symmetric(c, given[2]).square().sum())(given[0])
    leaf = given[0].clone().requires_grad_()
    (expected,) = torch.autograd.grad(solved(leaf, leaf, given[2]).square().sum(), leaf)
    assert rel_rms(gradient, expected) < 1e-9


def test_integers(seed: int) -> None:
    c, b = torch.tensor([5, 2, 1, 0], device="cuda"), torch.tensor([1, 2, 3, 4], device="cuda")
    assert toeplitz_solve(c, c, b).dtype == torch.float32
    assert rel_rms(toeplitz_solve(c, c, b), solved(c.double(), c.double(), b.double())) < 1e-6
