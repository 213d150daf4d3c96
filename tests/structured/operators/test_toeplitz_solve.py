"""Toeplitz solvers as operators: values, gradients, info, dtypes, tracing, errors. CPU tensors, also with the methods of the
GPU."""

from __future__ import annotations

from typing import Any

import literal
import numpy
import pytest
import scipy.linalg
import torch
from helpers import rel_rms
from torch import Tensor
from torch._subclasses import FakeTensorMode

from gdn_cuda.reference import structured_toeplitz as oracle
from gdn_cuda.structured.toeplitz import (
    explain_toeplitz_solve,
    gs_compute_generators,
    toeplitz_inverse_apply,
    toeplitz_matvec,
    toeplitz_solve,
    toeplitz_solve_ex,
    toeplitz_solve_symmetric,
    toeplitz_solve_symmetric_ex,
    toeplitz_to_cauchy,
)

LinAlgError = torch.linalg.LinAlgError
DOUBLES = (torch.float64, torch.complex128)
_ops = torch.ops.gdn_cuda

# The GPU's methods (toeplitz_solve.cpp) on CPU tensors, with the kernels' CPU equivalents. Limits in rows: maxima of GKO and of
# Schur's recursion, minimum and maximum of conjugate gradients in one kernel.
DEFAULT_LIMITS = (1024, 4096, 1025, 8192)
ALGORITHMS = {"gko": DEFAULT_LIMITS, "dense LU": (0, 4096, 1025, 8192)}


def solved_within_limits(c: Tensor, r: Tensor, b: Tensor, limits: tuple[int, ...] = DEFAULT_LIMITS) -> tuple[Tensor, Tensor]:
    return _ops.toeplitz_solve_within(c, r, b, False, False, limits)  # type: ignore[no-any-return]


def solved_within_limits_symmetric(c: Tensor, b: Tensor, limits: tuple[int, ...] = DEFAULT_LIMITS) -> tuple[Tensor, Tensor]:
    """Waits for the device: tries the methods for positive definite matrices first."""
    return _ops.toeplitz_solve_within(c, c, b, True, True, limits)  # type: ignore[no-any-return]


def solved_within_limits_positive(c: Tensor, b: Tensor, limits: tuple[int, ...] = DEFAULT_LIMITS) -> tuple[Tensor, Tensor]:
    return _ops.toeplitz_solve_positive_within(c, b, limits)  # type: ignore[no-any-return]


def draw(rng: torch.Generator, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=dtype)


def well(rng: torch.Generator, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    c = draw(rng, *shape, dtype=dtype)
    c[..., :1] += 4
    return c


@pytest.mark.parametrize("dtype", DOUBLES)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_values_and_gradients(n: int, dtype: torch.dtype, rng: torch.Generator) -> None:
    c, r = well(rng, 2, 1, n, dtype=dtype), draw(rng, n, dtype=dtype)
    for b in (draw(rng, 3, n, dtype=dtype), draw(rng, 2, 2, n, 2, dtype=dtype)):
        leaves = [t.clone().requires_grad_() for t in (c, r, b)]
        b = leaves[2] if b.dim() == 4 else leaves[2][None]
        out, expected = toeplitz_solve(*leaves[:2], b), oracle.toeplitz_solve(*leaves[:2], b)
        matrix, right = literal.toeplitz(c, r), b.detach() if b.dim() == 4 else b.detach()[..., None]
        by_lapack = torch.linalg.solve(matrix, right)  # independent, as CPU tensors run the oracle itself
        assert rel_rms(out, by_lapack if b.dim() == 4 else by_lapack.squeeze(-1)) < 1e-12
        grad = draw(rng, *out.shape, dtype=dtype)
        for ours, theirs in zip(
            torch.autograd.grad(out, leaves, grad), torch.autograd.grad(expected, leaves, grad), strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)
    if n == 2:
        assert torch.autograd.gradcheck(toeplitz_solve, leaves)
        assert torch.autograd.gradcheck(toeplitz_solve_symmetric, [leaves[0], leaves[2]])
        assert dtype.is_complex or torch.autograd.gradgradcheck(toeplitz_solve, leaves)


@pytest.mark.parametrize("dtype", DOUBLES)
def test_gohberg_semencul(dtype: torch.dtype, rng: torch.Generator) -> None:
    c, r, x = well(rng, 2, 6, dtype=dtype), draw(rng, 6, dtype=dtype), draw(rng, 2, 6, 3, dtype=dtype)
    u, v = gs_compute_generators(c, r)
    expected = oracle.gs_compute_generators(c, r)
    assert torch.equal(u, expected[0]) and torch.equal(v, expected[1])
    for right in (x, x[..., 0], x[0, :, 0]):
        assert rel_rms(toeplitz_inverse_apply(u, v, right), oracle.toeplitz_inverse_apply(u, v, right)) < 1e-13
    leaves = [t[..., :3].clone().requires_grad_() for t in (c, r, x.mT[..., 0, :])]
    assert torch.autograd.gradcheck(gs_compute_generators, leaves[:2])
    assert torch.autograd.gradcheck(lambda c, r, x: toeplitz_inverse_apply(*gs_compute_generators(c, r), x), leaves)


def test_first_entry_of_the_inverse_may_be_zero() -> None:
    swap = torch.tensor([0.0, 1.0])
    u, v = gs_compute_generators(swap, swap)
    assert (u.tolist(), v.tolist()) == ([0, 1], [1, 0])
    with pytest.raises(LinAlgError, match=r"^toeplitz_inverse_apply: gs_u: expected u\[0\] that is not zero .* toeplitz_solve"):
        toeplitz_inverse_apply(u, v, swap)
    one_bad = torch.compile(toeplitz_inverse_apply, fullgraph=True, backend="aot_eager")(
        torch.stack([u, v]), torch.stack([v, u]), torch.ones(2, 2)
    )
    assert one_bad[0].isnan().all() and one_bad[1].tolist() == oracle.toeplitz_inverse_apply(v, u, torch.ones(2)).tolist()


def test_near_zero_u0_is_judged_in_the_precision_of_the_generators() -> None:
    c, r = torch.tensor([1 / 3, 0.7, 0.3]), torch.tensor([1 / 3, (1 / 9) / 0.7, 0.9])
    u, v = gs_compute_generators(c, r)
    assert u[0] != 0
    for x in (torch.ones(3), torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.complex128)):
        with pytest.raises(LinAlgError, match=r"^toeplitz_inverse_apply: gs_u: expected u\[0\] that is not zero"):
            toeplitz_inverse_apply(u, v, x)


@pytest.mark.parametrize("matrix_scale", [1e-300, 1e300])
@pytest.mark.parametrize("right_scale", [1e-300, 1.0, 1e300])
def test_values_at_the_limits_of_the_range(matrix_scale: float, right_scale: float) -> None:
    """Nonsingular matrices are solved whenever the solution is in range."""
    c, r = (torch.tensor(line, dtype=torch.float64) for line in ([4, 1, 0], [4, 2, 1]))
    b = torch.ones(3, dtype=torch.float64)
    x, info = toeplitz_solve_ex(matrix_scale * c, matrix_scale * r, right_scale * b)
    assert info == 0
    expected = toeplitz_solve(c, r, b) / matrix_scale * right_scale
    torch.testing.assert_close(x, expected, rtol=1e-14, atol=1e-323)


@pytest.mark.parametrize("dtype", DOUBLES)
@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_to_cauchy(n: int, dtype: torch.dtype, rng: torch.Generator) -> None:
    c, r = draw(rng, 2, n, dtype=dtype), draw(rng, n, dtype=dtype)
    out = toeplitz_to_cauchy(c, r)
    assert out.dtype == torch.complex128
    assert rel_rms(out, oracle.toeplitz_to_cauchy(c, r)) < 1e-14
    assert toeplitz_to_cauchy(c.to(torch.complex64).real.bfloat16(), r.real.float()).dtype == torch.complex64
    assert n != 2 or torch.autograd.gradcheck(toeplitz_to_cauchy, [c.requires_grad_(), r.requires_grad_()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.complex64])
def test_mixed_dtypes_are_promoted(dtype: torch.dtype, rng: torch.Generator) -> None:
    c, r, b = well(rng, 6).to(dtype), draw(rng, 6).to(dtype), draw(rng, 6).to(dtype)
    bound = 4e-3 if dtype.itemsize == 2 else 1e-7
    x, info = toeplitz_solve_ex(c, r, b)
    assert x.dtype == dtype and info.dtype == torch.int32
    assert rel_rms(x, oracle.toeplitz_solve(c, r, b)) < bound
    u, v = gs_compute_generators(c, r)
    assert u.dtype == v.dtype == toeplitz_inverse_apply(u, v, b).dtype == dtype
    assert toeplitz_solve(c, r, b.to(torch.complex128)).dtype == torch.complex128


def test_info_and_errors_of_singular_matrices(rng: torch.Generator) -> None:
    """Other matrices of the batch are solved. The precision of the inputs decides what is singular."""
    c = torch.tensor([[2.0, 1, 0], [1, 1, 1], [1, 1 - 2.0**-23, 1 - 2.0**-21], [torch.nan, 0, 0]])
    b = draw(rng, 4, 3).float()
    x, info = toeplitz_solve_symmetric_ex(c, b)
    assert info.tolist() == [0, 2, 4, 4] and x[1].isnan().all()
    assert torch.equal(x[0], toeplitz_solve_symmetric(c[0], b[0]))
    assert toeplitz_solve_symmetric_ex(c[2].double(), b[2].double())[1].item() == 0
    for call, name in ((lambda: toeplitz_solve(c, c, b), "toeplitz_solve: c, r"),
                       (lambda: toeplitz_solve_symmetric(c, b), "toeplitz_solve_symmetric: c"),
                       (lambda: gs_compute_generators(c, c), "gs_compute_generators: c, r")):  # fmt: skip
        with pytest.raises(LinAlgError, match=rf"^{name}: expected matrices that are nonsingular .* info \[0, 2, 4, 4\]$"):
            call()
    leaf = c.clone().requires_grad_()
    gradient = torch.autograd.grad(toeplitz_solve_symmetric_ex(leaf, b)[0][0].sum(), leaf)[0]
    assert gradient[0].isfinite().all() and gradient[0].any()


@pytest.mark.parametrize("batch", [(), (2,), (0,)])
def test_no_rows(batch: tuple[int, ...]) -> None:
    c, b = torch.zeros(*batch, 0), torch.zeros(*batch, 0, 3)
    for solved in (toeplitz_solve_ex(c, c, b), toeplitz_solve_symmetric_ex(c, b), solved_within_limits(c, c, b)):
        assert solved[0].shape == b.shape and solved[1].shape == batch and not solved[1].any()
    u, v = gs_compute_generators(c, c)
    assert u.shape == v.shape == toeplitz_inverse_apply(u, v, c).shape == c.shape
    assert toeplitz_to_cauchy(torch.zeros(0, 5), torch.zeros(5)).shape == (0, 5, 5)
    assert toeplitz_inverse_apply(u, v, b).shape == b.shape


@pytest.mark.parametrize("dtype", DOUBLES)
def test_tracing(dtype: torch.dtype, rng: torch.Generator) -> None:
    x = [t.requires_grad_() for t in (well(rng, 2, 1, 4, dtype=dtype), draw(rng, 3, 4, dtype=dtype), draw(rng, 2, 1, 4, 2, dtype=dtype))]  # fmt: skip  # noqa: E501
    torch.library.opcheck(torch.ops.gdn_cuda.toeplitz_solve.default, (*x, False, False))

    def solver_results(c: Tensor, r: Tensor, b: Tensor) -> Tensor:
        (x, info), (y, _) = toeplitz_solve_ex(c, r, b), toeplitz_solve_symmetric_ex(c, b)
        z = toeplitz_inverse_apply(x[..., 0], y[..., 0], b)
        return (x.sum((-1, -2)) + info).abs().sum() + z.abs().sum() + toeplitz_to_cauchy(c, r).abs().sum()

    compiled = torch.compile(solver_results, fullgraph=True, backend="aot_eager")
    eager, traced = (torch.autograd.grad(f(*x), x) for f in (solver_results, compiled))
    for a, b in zip(eager, traced, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


BAD: dict[str, tuple[Any, str]] = {
    "length": (((5,), (4,), (5,)), r"toeplitz_solve: r: expected \(…, 5\) as c has, got \(4,\)"),
    "right": (((5,), (5,), (4,)),
              r"toeplitz_solve: b: expected \(…, 5\), or with more dimensions than the matrix \(…, 5, k\), got \(4,\)"),
    "leading": (((2, 5), (3, 5), (5,)),
                r"toeplitz_solve: r: expected leading dimensions that broadcast with those of c, got \(3, 5\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_errors_say_what_is_wrong(name: str, rng: torch.Generator) -> None:
    shapes, message = BAD[name]
    x = [draw(rng, *shape) for shape in shapes]
    with pytest.raises(ValueError, match=f"^{message}$"):
        toeplitz_solve(*x)
    with pytest.raises(ValueError, match=r"^toeplitz_solve_symmetric: b: expected \(…, 3\), .* got \(2,\)$"):
        toeplitz_solve_symmetric(torch.ones(3), torch.ones(2))
    with pytest.raises(ValueError, match=r"^toeplitz_inverse_apply: gs_v: expected \(…, 3\) as gs_u has, got \(1,\)$"):
        toeplitz_inverse_apply(torch.ones(3), torch.ones(1), torch.ones(3))
    with pytest.raises(ValueError, match=r"^toeplitz_inverse_apply: x: expected \(…, 3\), .* got \(2, 3\)$"):
        toeplitz_inverse_apply(torch.ones(3), torch.ones(3), torch.ones(2, 3))
    pair, x = (torch.ones(2, 3), torch.ones(4, 3)), torch.ones(3)
    for call, argument in ((lambda: toeplitz_inverse_apply(*pair, x), "toeplitz_inverse_apply: gs_v"),
                           (lambda: gs_compute_generators(*pair), "gs_compute_generators: r"),
                           (lambda: toeplitz_to_cauchy(*pair), "toeplitz_to_cauchy: r"),
                           (lambda: toeplitz_solve_ex(*pair, x), "toeplitz_solve_ex: r"),
                           (lambda: toeplitz_inverse_apply(pair[0], x, pair[1]), "toeplitz_inverse_apply: x"),
                           (lambda: toeplitz_solve_symmetric_ex(*pair), "toeplitz_solve_symmetric_ex: b")):  # fmt: skip
        with pytest.raises(ValueError, match=rf"^{argument}: expected leading dimensions that broadcast with .* got \(4, 3\)$"):
            call()
    with pytest.raises(ValueError, match=r"^toeplitz_to_cauchy: r: expected \(…, 3\) as c has, got \(1,\)$"):
        toeplitz_to_cauchy(torch.ones(3), torch.ones(1))
    with pytest.raises(ValueError, match=r"^toeplitz_solve: b: expected a real or complex .* got list$"):
        toeplitz_solve(torch.ones(3), torch.ones(3), [1.0, 2.0, 3.0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^toeplitz_solve_symmetric_ex: c: expected float32 or float64, got complex64$"):
        toeplitz_solve_symmetric_ex(x.cfloat(), x, assume_positive=True)


# ---- the GPU's methods with the kernels' CPU equivalents


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_methods_of_the_gpu_equal_the_oracle(algorithm: str, dtype: torch.dtype, rng: torch.Generator) -> None:
    single = dtype in (torch.float32, torch.complex64)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    for shapes in (
        ((2, 1, 12), (3, 12), (2, 1, 12, 2)),
        ((1,), (1,), (1,)),
        ((1, 33), (33,), (4, 33)),
        ((5, 40), (5, 40), (40,)),
    ):
        c, r, b = (draw(rng, *shape, dtype=wide).to(dtype) for shape in shapes)
        c[..., 0] = 1e-6 if c.shape[-1] > 1 else 2  # a tiny leading minor
        r[..., 0] = torch.nan
        (x, info), (expected, told) = solved_within_limits(c, r, b, ALGORITHMS[algorithm]), oracle.toeplitz_solve_ex(c, r, b)
        assert x.dtype == dtype and x.shape == expected.shape and torch.equal(info, told)
        assert rel_rms(x, expected) < (1e-6 if single else 1e-11)
    for scale in (1e-30, 1e30) if single else (1e-200, 1e200):
        (x, info), (expected, _) = (
            solved_within_limits(c * scale, r * scale, b, ALGORITHMS[algorithm]),
            oracle.toeplitz_solve_ex(c * scale, r * scale, b),
        )
        assert not info.any() and rel_rms(x * scale, expected * scale) < (1e-5 if single else 1e-10)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_methods_of_the_gpu_report_singular_matrices(algorithm: str, rng: torch.Generator) -> None:
    c = torch.tensor([[2.0, 1, 0], [1, 1, 1], [0, 0, 0], [torch.nan, 0, 0], [1, 1 - 2.0**-23, 1 - 2.0**-21]])
    b = draw(rng, 5, 3).float()
    for dtype, nearly in ((torch.float32, 4), (torch.float64, 0)):
        x, info = solved_within_limits(c.to(dtype), c.to(dtype), b.to(dtype), ALGORITHMS[algorithm])
        assert info[0] == 0 and rel_rms(x[0], oracle.toeplitz_solve(c[0], c[0], b[0])) < 1e-6
        assert info[1] in (2, 3, 4) and info[2] == 1 and x[2].isnan().all() and info[3] > 0 and info[4] == nearly


def test_no_columns() -> None:
    """Singular matrices are still reported."""
    c, b = torch.tensor([[2.0, 1, 0], [0, 0, 0]]), torch.zeros(2, 3, 0)
    solved = [toeplitz_solve_ex(c, c, b), toeplitz_solve_symmetric_ex(c, b), solved_within_limits_symmetric(c, b)]
    for x, info in (*solved, *(solved_within_limits(c, c, b, limits) for limits in ALGORITHMS.values())):
        assert x.shape == b.shape and info.tolist() == [0, 1]
    assert toeplitz_solve_symmetric_ex(c, b, assume_positive=True)[1].tolist() == [0, -1]
    assert solved_within_limits_positive(c, b)[1].tolist() == [0, -1]
    assert _ops.toeplitz_pcg_long(c[0], b[0])[1] == 0
    assert _ops.toeplitz_pcg(c, b, 1e-7)[1].tolist() == [0, -1]


def test_corrections_of_huge_values_do_not_overflow(rng: torch.Generator) -> None:
    """Entries near 1e304: the transforms of T x overflow though T x does not. There is no finite residual for refinement, so x
    is the result of the elimination."""
    n, size = 1100, 1e304
    c, r, x = well(rng, n), draw(rng, n), draw(rng, n)
    c[0] += 4 * n**0.5
    b = size * oracle.toeplitz_matvec(c, r, x)
    assert b.isfinite().all()
    assert not toeplitz_matvec(size * c, size * r, x).isfinite().all()
    found, info = solved_within_limits(size * c, size * r, b, (n, *DEFAULT_LIMITS[1:]))
    assert info == 0 and rel_rms(found, x) < 1e-11


def test_refinement_recovers_digits(rng: torch.Generator) -> None:
    """Generators that grow cost the elimination in fp64 some digits; one step of refinement restores them."""
    c, r, b = draw(rng, 400), draw(rng, 400), draw(rng, 400)
    expected, plain = oracle.toeplitz_solve_ex(c, r, b)[0], _ops.toeplitz_gko(c, r, b, 1e-15)[0]
    assert rel_rms(solved_within_limits(c, r, b)[0], expected) < 0.2 * rel_rms(plain, expected)


def test_explanations_name_the_algorithm() -> None:
    methods = (
        "toeplitz_gko",
        "toeplitz_eliminate",
        "dense LU",
        "toeplitz_schur",
        "toeplitz_pcg",
        "conjugate gradients in torch",
    )

    def named(n: int, symmetric: bool = False) -> list[str]:
        text = explain_toeplitz_solve(n, symmetric)
        return sorted((method for method in methods if method in text), key=text.index)

    assert named(512) == ["toeplitz_gko"]
    assert named(513) == named(8192) == ["toeplitz_eliminate"] or torch.cuda.is_available(), "an H200's clusters"
    assert named(8193) == ["dense LU"]
    assert named(512, True) == ["toeplitz_schur", "toeplitz_gko"]
    assert named(4096, True)[:2] == ["toeplitz_pcg", "toeplitz_schur"]
    assert named(4097, True)[0] == "toeplitz_pcg" and "toeplitz_schur" not in named(4097, True)
    assert named(8193, True) == ["conjugate gradients in torch", "dense LU"]


# ---- symmetric positive definite matrices


def symmetric(n: int) -> Tensor:
    """First columns: positive definite, nearly singular, indefinite, singular, NaN."""
    distance = torch.arange(n, dtype=torch.float64)
    first = distance == 0
    return torch.stack([0.9**distance + 0.1 * first, (-((distance / 3) ** 2)).exp() + 1e-5 * first,
                        distance.cos() - 0.5 * (distance == 1), torch.ones(n).double(), distance * torch.nan])  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_positive_definite_matrices(dtype: torch.dtype, rng: torch.Generator) -> None:
    c, b = symmetric(20).to(dtype), draw(rng, 5, 20, 2).to(dtype)
    x, info = toeplitz_solve_symmetric_ex(c, b, assume_positive=True)
    assert info.tolist()[:2] == [0, 0] and (info[2:] < 0).all() and x[2:].isnan().all()
    assert rel_rms(x[:2], oracle.toeplitz_solve_symmetric(c[:2], b[:2])) < (1e-7 if dtype == torch.float32 else 1e-11)
    assert toeplitz_solve_symmetric_ex(c[0], b[0].bfloat16().to(dtype), assume_positive=True)[1].shape == ()
    compiled = torch.compile(toeplitz_solve_symmetric_ex, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(c[:2], b[:2], assume_positive=True)[0], x[:2])


def test_gradients_and_tracing_of_positive_definite_matrices(rng: torch.Generator) -> None:
    leaves = [symmetric(4)[:1].requires_grad_(), draw(rng, 4).requires_grad_()]
    assert torch.autograd.gradcheck(lambda c, b: toeplitz_solve_symmetric_ex(c, b, assume_positive=True)[0], leaves)
    torch.library.opcheck(torch.ops.gdn_cuda.toeplitz_solve_positive.default, leaves)
    with FakeTensorMode():
        on_gpu = torch.empty(9, device="cuda")
        assert toeplitz_solve_symmetric_ex(on_gpu, on_gpu, assume_positive=True)[0].shape == (9,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("limits", [(4096, 1025, 8192), (4096, 0, 8192), (0, 0, 8192), (0, 0, 0)])
def test_symmetric_methods_of_the_gpu_equal_the_oracle(
    limits: tuple[int, int, int], dtype: torch.dtype, rng: torch.Generator
) -> None:
    """If one matrix of a batch is not positive definite, all are solved by the general algorithm."""
    own = (1024, *limits)
    c, b = symmetric(40).to(dtype), draw(rng, 5, 40).to(dtype)
    for which in ([0, 1], [0, 2]):
        x, info = solved_within_limits_symmetric(c[which], b[which], own)
        expected = oracle.toeplitz_solve_symmetric(c[which], b[which])
        assert not info.any() and rel_rms(x, expected) < (1e-6 if dtype == torch.float32 else 1e-10)
    assert solved_within_limits_symmetric(c, b, own)[1][3:].all()


def test_conjugate_gradients_in_one_block_report_no_convergence(rng: torch.Generator) -> None:
    c, b = symmetric(6)[None, :3], draw(rng, 4, 3, 6)
    x, info = solved_within_limits_positive(c, b, (1024, 0, 0, 8192))
    assert info.tolist() == [[0, 0, -1]] and x[:, 2].isnan().all() and x[:, :2].isfinite().all()


def test_one_failing_right_hand_side_marks_its_matrix() -> None:
    """Conjugate gradients in torch operations do not converge with infinities; those in one kernel solve the other right-hand
    sides."""
    c, b = symmetric(6)[:1], torch.ones(4, 6, dtype=torch.float64)
    b[2, 3] = torch.inf
    x, info = _ops.toeplitz_pcg_long(c, b)
    assert info.tolist() == [-1] and x.isnan().all()


@pytest.mark.parametrize("limits", [DEFAULT_LIMITS, (0, 4096, 0, 8192), (0, 0, 0, 8192), (0, 0, 0, 0)])
def test_no_right_hand_sides_of_a_matrix(limits: tuple[int, ...]) -> None:
    c = torch.tensor([[2.0, 1.0, 0.0]])
    for b in (torch.zeros(0, 3), torch.zeros(0, 3, 2)):
        methods = [solved_within_limits_symmetric(c, b, limits), solved_within_limits(c, c, b, limits)]
        for x, info in [*methods, solved_within_limits_positive(c, b, limits)] if any(limits[1:]) else methods:
            assert x.shape == b.shape and info.tolist() == [0]


def test_the_limit_of_assume_positive() -> None:
    with pytest.raises(
        ValueError, match=r"^toeplitz_solve_symmetric_ex: c: expected at most 8 rows with assume_positive, got \(9"
    ):
        solved_within_limits_positive(torch.ones(9), torch.ones(9), (0, 4, 2, 8))


def test_columns_of_the_inverse_and_their_products_in_torch(rng: torch.Generator) -> None:
    """The GPU's `toeplitz_inverse_apply` on CPU tensors: NaN in place of an error."""
    for dtype in (torch.float32, *DOUBLES):
        c, r = (y.to(dtype) for y in (well(rng, 2, 1, 9), draw(rng, 3, 9)))
        u, v = gs_compute_generators(c, r)
        for x in (draw(rng, 9), draw(rng, 2, 3, 9), draw(rng, 2, 3, 9, 2)):
            x = x.to(dtype) if x.dim() > 1 else x.to(dtype)[None, None]
            found = _ops.toeplitz_inverse_apply_in_torch(u, v, x, 1e-15)
            assert rel_rms(found, oracle.toeplitz_solve(c, r, x)) < (1e-5 if dtype == torch.float32 else 1e-13)
        u[0, 0, 0] = 0
        found = _ops.toeplitz_inverse_apply_in_torch(u, v, x, 1e-15)
        assert found[0, 0].isnan().all() and found[1].isfinite().all()
    none = torch.zeros(2, 0)
    assert _ops.toeplitz_inverse_apply_in_torch(none, none, none, 1e-7).shape == (2, 0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool])
def test_integers_are_converted_to_the_default_dtype(dtype: torch.dtype) -> None:
    """As in scipy.linalg.solve_toeplitz."""
    c, r, b = torch.tensor([4, 1, 0]).to(dtype), torch.tensor([4, 0, 1]).to(dtype), torch.tensor([1, 0, 1]).to(dtype)
    given = tuple(x.numpy().astype(float) for x in (c, r, b))
    expected = torch.from_numpy(scipy.linalg.solve_toeplitz(given[:2], given[2])).float()
    assert rel_rms(toeplitz_solve(c, r, b), expected) < 1e-7 and toeplitz_solve(c, r, b).dtype == torch.float32
    x, info = toeplitz_solve_ex(c, r, b.double())
    assert x.dtype == torch.float64 and info == 0
    symmetric = torch.from_numpy(numpy.linalg.solve(scipy.linalg.toeplitz(given[0]), given[2])).float()
    assert rel_rms(toeplitz_solve_symmetric(c, b), symmetric) < 1e-7
    assert rel_rms(toeplitz_inverse_apply(*gs_compute_generators(c, r), b), expected) < 1e-6
    assert toeplitz_to_cauchy(c, r).dtype == torch.complex64


def test_conjugate_gradients(rng: torch.Generator) -> None:
    c, b = torch.stack([symmetric(300)[0], 1 / (1 + torch.arange(300.0).double()) ** 1.1]), draw(rng, 3, 2, 300, 2)
    b[0, 0, :, 1] = 0
    x, info = torch.ops.gdn_cuda.toeplitz_pcg_long(c, b)
    assert info.tolist() == [0, 0] and not x[0, 0, :, 1].any()
    assert rel_rms(x, oracle.toeplitz_solve_symmetric(c, b)) < 1e-9
    for matrix_scale, right_scale in ((1, 1e-170), (1e-165, 1e-165), (1e170, 1e200)):  # squares would leave the range
        scaled = torch.ops.gdn_cuda.toeplitz_pcg_long(matrix_scale * c, right_scale * b)[0]
        assert rel_rms(scaled * matrix_scale / right_scale, x) < 1e-9
    single = torch.ops.gdn_cuda.toeplitz_pcg_long(c.float(), b.float())[0]
    assert rel_rms(single, oracle.toeplitz_solve_symmetric(c.float(), b.float())) < 1e-6
    assert torch.ops.gdn_cuda.toeplitz_pcg_long(symmetric(300)[2], b)[1].item() == -1
    for n in (0, 1):
        assert torch.ops.gdn_cuda.toeplitz_pcg_long(2 * torch.ones(n), torch.ones(n))[0].tolist() == [0.5] * n
