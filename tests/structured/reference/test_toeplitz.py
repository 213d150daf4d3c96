"""Toeplitz operators: against SciPy and exact rational arithmetic, on the matrices that break fast algorithms."""

from fractions import Fraction

import pytest
import torch
from gdn_cuda.reference.structured_toeplitz import (
    gs_compute_generators,
    toeplitz,
    toeplitz_inverse_apply,
    toeplitz_matvec,
    toeplitz_matvec_transpose,
    toeplitz_solve,
    toeplitz_solve_ex,
    toeplitz_solve_symmetric,
    toeplitz_to_cauchy,
)
from helpers import rel_rms

SIZES = (1, 2, 3, 5, 8, 31)
DTYPES = (torch.float64, torch.complex128)
WORKING = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128)
LinAlgError = torch.linalg.LinAlgError


def draw(rng, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=rng, dtype=dtype)


def scipy_linalg():
    return pytest.importorskip("scipy.linalg", reason="SciPy is not installed")


def matrices(n, rng):
    """(c, r) of every class of test matrices, with c[0] ≠ r[0] where c[0] must be used."""
    distance = torch.arange(n, dtype=torch.float64)
    positive = 0.9**distance + 0.1 * (distance == 0)
    tiny, zero, indefinite = draw(rng, 2, n), draw(rng, 2, n), draw(rng, n)
    tiny[:, 0], zero[:, 0], indefinite[0] = 1e-14, 0, 0.1
    nonsymmetric = draw(rng, 2, n)
    nearly_singular = 1 / (1 + distance**2 / n**2)  # condition numbers to about 1e14
    return {
        "SPD": (positive, positive),
        "indefinite": (indefinite, indefinite),
        "nonsymmetric": (nonsymmetric[0], nonsymmetric[1]),
        "tiny leading minor": (tiny[0], tiny[1]),
        "zero leading minor": (zero[0], zero[1]) if n > 1 else (zero[0] + 1, zero[1]),
        "nearly singular": (nearly_singular, nearly_singular),
    }


CLASSES = tuple(matrices(2, torch.Generator()))


def exact_solution(matrix, b):
    """Computed with Fractions and rounded once."""
    n = len(b)
    rows = [[Fraction(x) for x in row] + [Fraction(y)] for row, y in zip(matrix.tolist(), b.tolist(), strict=True)]
    for k in range(n):
        pivot = next(i for i in range(k, n) if rows[i][k])
        rows[k], rows[pivot] = rows[pivot], rows[k]
        rows[k] = [x / rows[k][k] for x in rows[k]]
        for i in range(n):
            if i != k and rows[i][k]:
                rows[i] = [x - rows[i][k] * y for x, y in zip(rows[i], rows[k], strict=True)]
    return torch.tensor([float(row[-1]) for row in rows], dtype=torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_matrix_and_products_of_scipy(n, dtype, rng):
    c, r, x = draw(rng, n, dtype=dtype), draw(rng, n, dtype=dtype), draw(rng, n, 3, dtype=dtype)
    matrix = torch.from_numpy(scipy_linalg().toeplitz(c.numpy(), r.numpy()))
    assert torch.equal(toeplitz(c, r), matrix)
    assert rel_rms(toeplitz_matvec(c, r, x), matrix @ x) < 1e-14
    assert rel_rms(toeplitz_matvec(c, r, x[:, 0]), matrix @ x[:, 0]) < 1e-14
    assert rel_rms(toeplitz_matvec_transpose(c, r, x), matrix.T @ x) < 1e-14
    assert (
        rel_rms(toeplitz_matvec(c, r, x), torch.from_numpy(scipy_linalg().matmul_toeplitz((c.numpy(), r.numpy()), x.numpy())))
        < 1e-13
    )


def test_the_first_column_decides_the_diagonal(rng):
    """r[0], even NaN, changes nothing and has no gradient."""
    c, r, b = draw(rng, 5), draw(rng, 5), draw(rng, 5)
    mismatched = torch.cat([torch.tensor([torch.nan]).double(), r[1:]])
    for function in (toeplitz_matvec, toeplitz_matvec_transpose, toeplitz_solve):
        assert torch.equal(function(c, mismatched, b), function(c, r, b))
        leaf = mismatched.clone().requires_grad_()
        gradient = torch.autograd.grad(function(c, leaf, b).sum(), leaf)[0]
        assert gradient[0] == 0
        assert gradient[1:].all()
    assert torch.equal(toeplitz_to_cauchy(c, mismatched), toeplitz_to_cauchy(c, r))
    assert torch.equal(gs_compute_generators(c, mismatched)[1], gs_compute_generators(c, r)[1])


@pytest.mark.parametrize("matrix", CLASSES)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 13])
def test_solutions_are_exact_to_the_last_digits(matrix, n, rng):
    c, r = matrices(n, rng)[matrix]
    b = draw(rng, n)
    expected = exact_solution(toeplitz(c, r), b)
    assert rel_rms(toeplitz_solve(c, r, b), expected) < 1e-15
    if matrix in ("SPD", "indefinite", "nearly singular"):
        assert rel_rms(toeplitz_solve_symmetric(c, b), expected) < 1e-15


def test_one_lapack_solve_would_not_be_as_exact(rng):
    """Shows that the test above can fail."""
    c, r = matrices(13, rng)["nearly singular"]
    b = draw(rng, 13)
    assert rel_rms(torch.linalg.solve(toeplitz(c, r), b), exact_solution(toeplitz(c, r), b)) > 1e-10


@pytest.mark.parametrize("n", [5, 12])
def test_complex_solutions_are_exact_to_the_last_digits(n, rng):
    """Compared with the real system of twice the size."""
    c, r = (torch.complex(x, 0.3 * y) for x, y in zip(matrices(n, rng)["nearly singular"], draw(rng, 2, n) * 1e-9, strict=True))
    b, matrix = draw(rng, n, dtype=torch.complex128), toeplitz(c, r)
    real = torch.cat([torch.cat([matrix.real, -matrix.imag], 1), torch.cat([matrix.imag, matrix.real], 1)])
    expected = torch.complex(*exact_solution(real, torch.cat([b.real, b.imag])).chunk(2))
    assert rel_rms(toeplitz_solve(c, r, b), expected) < 1e-15


@pytest.mark.parametrize("dtype", DTYPES)
def test_solutions_of_scipy(dtype, rng):
    """Levinson's recursion, which needs no pivots for dominant diagonals."""
    c, r, b = (draw(rng, 64, dtype=dtype) for _ in range(3))
    c[0] = 200
    expected = scipy_linalg().solve_toeplitz((c.numpy(), r.numpy()), b.numpy())
    assert rel_rms(toeplitz_solve(c, r, b), torch.from_numpy(expected)) < 1e-13


@pytest.mark.parametrize(
    ("c", "r", "info"),
    [
        ([0.0], [0.0], [1]),
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [2]),
        ([0.0, 0.0], [0.0, 1.0], [1, 2]),  # both are valid
        ([0.1, -0.3, 0.2], [0.1, 0.2, -0.3], [3, 4]),  # circulant, rows sum to zero up to rounding
        ([torch.nan, 1.0], [0.0, 1.0], [3]),
        ([2.0, 1.0], [0.0, torch.inf], [3]),
    ],
)
def test_singular_matrices_are_reported_in_info(c, r, info, rng):
    c, r = torch.tensor(c, dtype=torch.float64), torch.tensor(r, dtype=torch.float64)
    b = draw(rng, len(c), 2)
    x, told = toeplitz_solve_ex(c, r, b)
    assert told.item() in info
    assert told.dtype == torch.int32
    if told <= len(c):
        assert x.isnan().all()
    with pytest.raises(LinAlgError, match=r"toeplitz_solve: c, r: expected matrices that are nonsingular.* got info \d"):
        toeplitz_solve(c, r, b)
    with pytest.raises(LinAlgError, match="gs_compute_generators: "):
        gs_compute_generators(c, r)
    with pytest.raises(LinAlgError, match="toeplitz_solve_symmetric: "):
        toeplitz_solve_symmetric(torch.zeros(2), torch.zeros(2))


def test_the_precision_of_the_inputs_decides_what_is_singular(rng):
    """A condition number of 1e9 is too large for fp32 and harmless for fp64."""
    c = torch.tensor([1.0, 1.0 - 2.0**-23, 1.0 - 2.0**-21])
    b = torch.ones(3)
    x, info = toeplitz_solve_ex(c, c, b)
    wide, wide_info = toeplitz_solve_ex(c.double(), c.double(), b.double())
    assert (info.item(), wide_info.item()) == (4, 0)
    assert torch.equal(x, wide)


def test_one_singular_matrix_does_not_affect_its_batch(rng):
    c, r, b = draw(rng, 4, 3), draw(rng, 4, 3), draw(rng, 4, 3)
    c[1], r[1] = 1, 1
    c[2], c[2, 2] = 0, 2
    r[2] = 0
    x, info = toeplitz_solve_ex(c, r, b)
    assert (info != 0).tolist() == [False, True, True, False]
    for good in (0, 3):
        assert torch.equal(x[good], toeplitz_solve(c[good], r[good], b[good]))
    leaf = c.clone().requires_grad_()
    gradient = torch.autograd.grad(toeplitz_solve_ex(leaf, r, b)[0][[0, 3]].sum(), leaf)[0]
    assert gradient.isfinite().all()
    assert gradient[[0, 3]].any(1).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_gohberg_semencul(n, dtype, rng):
    c, r, x = draw(rng, n, dtype=dtype), draw(rng, n, dtype=dtype), draw(rng, n, 2, dtype=dtype)
    c[0] += 3
    inverse = torch.linalg.inv(toeplitz(c, r))
    u, v = gs_compute_generators(c, r)
    assert rel_rms(u, inverse[:, 0]) < 1e-11
    assert rel_rms(v, inverse[:, -1]) < 1e-11
    assert rel_rms(toeplitz_inverse_apply(u, v, torch.eye(n)), inverse) < 1e-11
    assert rel_rms(toeplitz_inverse_apply(u, v, x), toeplitz_solve(c, r, x)) < 1e-11
    assert rel_rms(toeplitz_inverse_apply(u, v, x[:, 0]), toeplitz_solve(c, r, x[:, 0])) < 1e-11


@pytest.mark.parametrize(
    ("c", "r"), [([0.0, 1.0], [0.0, 1.0]), ([1.0, 1.0, 2.0], [1.0, 1.0, 3.0]), ([0.1, 0.3, 0.7], [0.1, 1 / 30, 0.2])]
)
def test_first_entry_of_the_inverse_may_be_zero(c, r):
    """T is nonsingular, its leading minor of order n − 1 is singular: (u, v) exist, the formula fails, the solver works."""
    c, r = torch.tensor(c, dtype=torch.float64), torch.tensor(r, dtype=torch.float64)
    u, v = gs_compute_generators(c, r)
    assert abs(u[0]) < 1e-15
    b = torch.ones(len(c), dtype=torch.float64)
    with pytest.raises(LinAlgError, match=r"toeplitz_inverse_apply: gs_u: expected u\[0\] that is not zero"):
        toeplitz_inverse_apply(u, v, b)
    with pytest.raises(LinAlgError, match="toeplitz_inverse_apply"):
        toeplitz_inverse_apply(torch.stack([v + 1, u]), torch.stack([u, v]), b[None])
    assert rel_rms(toeplitz_matvec(c, r, toeplitz_solve(c, r, b)), b) < 1e-14


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_toeplitz_to_cauchy(n, dtype, rng):
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    c, r = draw(rng, n, dtype=dtype), draw(rng, n, dtype=dtype)
    matrix = toeplitz(c, r).numpy()
    expected = torch.from_numpy(np.fft.ifft(np.fft.fft(matrix, axis=0), axis=1))  # F T F⁻¹: the two scalings cancel
    cauchy = toeplitz_to_cauchy(c, r)
    assert rel_rms(cauchy, expected) < 1e-13
    omega = torch.polar(torch.ones(n).double(), -2 * torch.pi * torch.arange(n).double() / n)
    assert (torch.linalg.svdvals((omega[:, None] - omega) * cauchy)[2:] < 1e-12).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_gradients(n, dtype, rng):
    c, r = draw(rng, 2, 1, n, dtype=dtype), draw(rng, n, dtype=dtype)
    many, one = draw(rng, 2, 2, n, 2, dtype=dtype), draw(rng, 3, n, dtype=dtype)
    c[..., 0] += 4
    leaves = [t.requires_grad_() for t in (c, r, many, one)]
    for function in (toeplitz_matvec, toeplitz_matvec_transpose, toeplitz_solve):
        assert torch.autograd.gradcheck(function, leaves[:3])
        assert torch.autograd.gradcheck(function, [*leaves[:2], leaves[3][None]])
    assert n != 2 or torch.autograd.gradgradcheck(toeplitz_solve, leaves[:3])
    assert torch.autograd.gradcheck(toeplitz_solve_symmetric, [leaves[0], leaves[2]])
    assert torch.autograd.gradcheck(toeplitz_to_cauchy, leaves[:2])
    assert torch.autograd.gradcheck(gs_compute_generators, leaves[:2])
    u, v = (t.detach().requires_grad_() for t in gs_compute_generators(c, r))
    assert torch.autograd.gradcheck(toeplitz_inverse_apply, [u, v, leaves[2]])


@pytest.mark.parametrize("dtype", WORKING)
def test_dtypes_are_widened_before_anything_is_computed(dtype, rng):
    wide = torch.complex128 if dtype.is_complex else torch.float64
    c, r, x = (draw(rng, 6, dtype=wide).to(dtype) for _ in range(3))
    c[0] += 5
    for function in (toeplitz_matvec, toeplitz_matvec_transpose, toeplitz_solve):
        out = function(c, r, x)
        assert out.dtype == wide
        assert torch.equal(out, function(c.to(wide), r.to(wide), x.to(wide)))
    generators = gs_compute_generators(c, r)
    assert all(torch.equal(a, b) for a, b in zip(generators, gs_compute_generators(c.to(wide), r.to(wide)), strict=True))
    assert toeplitz_to_cauchy(c, r).dtype == torch.complex128


def test_real_matrix_and_complex_right_hand_side(rng):
    c, r, x = draw(rng, 4), draw(rng, 4), draw(rng, 4, dtype=torch.complex128)
    for function in (toeplitz_matvec, toeplitz_solve):
        out = function(c, r, x)
        assert rel_rms(out, torch.complex(function(c, r, x.real), function(c, r, x.imag))) < 1e-13


def test_ranks_decide_between_vectors_and_columns(rng):
    """n = k: only the number of dimensions distinguishes (B,n) from (n,k)."""
    c, r, x = draw(rng, 3), draw(rng, 3), draw(rng, 3, 3)
    assert rel_rms(toeplitz_matvec(c, r, x), toeplitz(c, r) @ x) < 1e-14
    assert rel_rms(toeplitz_matvec(c[None], r, x), x @ toeplitz(c, r).T) < 1e-14
    assert rel_rms(toeplitz_solve(c[None], r, x), toeplitz_solve(c, r, x.T).T) < 1e-14
    assert rel_rms(toeplitz_matvec(c, r[None], x), x @ toeplitz(c, r).T) < 1e-14
    assert toeplitz_matvec(c.expand(4, 1, 3), r, draw(rng, 5, 3)).shape == (4, 5, 3)
    assert toeplitz_solve(c.expand(4, 1, 3), r, draw(rng, 4, 5, 3, 2)).shape == (4, 5, 3, 2)
    assert toeplitz_solve_ex(c.expand(4, 1, 3), r.expand(5, 3), draw(rng, 3))[1].shape == (4, 5)


@pytest.mark.parametrize("batch", [(), (2,), (0,)])
def test_no_rows(batch):
    c, x = torch.zeros(*batch, 0), torch.zeros(*batch, 0, 3)
    for function in (toeplitz_matvec, toeplitz_matvec_transpose, toeplitz_solve):
        assert function(c, c, x).shape == (*batch, 0, 3)
        assert function(c, c, x[..., 0]).shape == (*batch, 0)
    u, v = gs_compute_generators(c, c)
    assert u.shape == v.shape == toeplitz_inverse_apply(u, v, x[..., 0]).shape == (*batch, 0)
    assert toeplitz_to_cauchy(c, c).shape == (*batch, 0, 0)
    assert toeplitz_solve_ex(c, c, x)[1].tolist() == torch.zeros(batch).tolist()


def test_one_row(rng):
    c, r, x = torch.tensor([-2.0]), torch.tensor([5.0]), torch.tensor([3.0])
    assert toeplitz_matvec(c, r, x).item() == -6
    assert toeplitz_solve(c, r, x).item() == -1.5
    u, v = gs_compute_generators(c, r)
    assert (u.item(), v.item(), toeplitz_inverse_apply(u, v, x).item()) == (-0.5, -0.5, -1.5)
    assert toeplitz_to_cauchy(c, r).item() == -2


def test_bad_input(rng):
    c, one = draw(rng, 3), draw(rng, 1)
    with pytest.raises(ValueError, match=r"toeplitz_matvec: x: expected \(…, 1\), or with more dimensions .*, got \(3,\)"):
        toeplitz_matvec(c, one, c)
    with pytest.raises(ValueError, match=r"toeplitz_solve: b: expected \(…, 3\), or .* \(…, 3, k\), got \(1,\)"):
        toeplitz_solve(c, c, one)
    with pytest.raises(ValueError, match=r"toeplitz_matvec: x: expected .* got \(2, 3\)"):
        toeplitz_matvec(c, c, draw(rng, 2, 3))
    with pytest.raises(ValueError, match=r"toeplitz_inverse_apply: gs_v: expected \(…, 3\) as gs_u has, got \(1,\)"):
        toeplitz_inverse_apply(c, one, c)
    with pytest.raises(ValueError, match=r"toeplitz_solve: b: expected a real or complex floating-point tensor"):
        toeplitz_solve(c, c, c.long())
