"""Toeplitz solvers as operators: values, gradients, info, dtypes, tracing, errors. CPU tensors, and the GPU's ways on them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import rel_rms
from torch import Tensor
from torch._subclasses import FakeTensorMode

from gdn_cuda.ops import structured_toeplitz_solve as ways
from gdn_cuda.ops.structured_toeplitz import (
    gs_compute_generators,
    toeplitz_inverse_apply,
    toeplitz_solve,
    toeplitz_solve_ex,
    toeplitz_solve_symmetric,
    toeplitz_solve_symmetric_ex,
    toeplitz_to_cauchy,
)
from gdn_cuda.reference import structured_toeplitz as oracle

LinAlgError = torch.linalg.LinAlgError
DOUBLES = (torch.float64, torch.complex128)


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
        assert torch.equal(out, expected)
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


def test_generators_are_no_more_exact_beside_a_wide_x() -> None:
    c, r = torch.tensor([1 / 3, 0.7, 0.3]), torch.tensor([1 / 3, (1 / 9) / 0.7, 0.9])
    u, v = gs_compute_generators(c, r)
    assert u[0] != 0
    for x in (torch.ones(3), torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.complex128)):
        with pytest.raises(LinAlgError, match=r"^toeplitz_inverse_apply: gs_u: expected u\[0\] that is not zero"):
            toeplitz_inverse_apply(u, v, x)


@pytest.mark.parametrize("of_c", [1e-300, 1e300])
@pytest.mark.parametrize("of_b", [1e-300, 1.0, 1e300])
def test_numbers_at_the_ends_of_the_range(of_c: float, of_b: float) -> None:
    """Regular matrices stay so, and a solution is right where it does not itself leave the range."""
    c, r = (torch.tensor(line, dtype=torch.float64) for line in ([4, 1, 0], [4, 2, 1]))
    b = torch.ones(3, dtype=torch.float64)
    x, info = toeplitz_solve_ex(of_c * c, of_c * r, of_b * b)
    assert info == 0
    expected = toeplitz_solve(c, r, b) / of_c * of_b
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
def test_dtypes_meet(dtype: torch.dtype, rng: torch.Generator) -> None:
    c, r, b = well(rng, 6).to(dtype), draw(rng, 6).to(dtype), draw(rng, 6).to(dtype)
    bound = 4e-3 if dtype.itemsize == 2 else 1e-7
    x, info = toeplitz_solve_ex(c, r, b)
    assert x.dtype == dtype and info.dtype == torch.int32
    assert rel_rms(x, oracle.toeplitz_solve(c, r, b)) < bound
    u, v = gs_compute_generators(c, r)
    assert u.dtype == v.dtype == toeplitz_inverse_apply(u, v, b).dtype == dtype
    assert toeplitz_solve(c, r, b.to(torch.complex128)).dtype == torch.complex128


def test_info_and_errors_of_singular_matrices(rng: torch.Generator) -> None:
    """In a batch, the others are as ever. The precision of the inputs decides."""
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
    for solved in (toeplitz_solve_ex(c, c, b), toeplitz_solve_symmetric_ex(c, b), ways.solve(c, c, b, False)):
        assert solved[0].shape == b.shape and solved[1].shape == batch and not solved[1].any()
    u, v = gs_compute_generators(c, c)
    assert u.shape == v.shape == toeplitz_inverse_apply(u, v, c).shape == c.shape
    assert toeplitz_to_cauchy(torch.zeros(0, 5), torch.zeros(5)).shape == (0, 5, 5)
    assert toeplitz_inverse_apply(u, v, b).shape == b.shape


@pytest.mark.parametrize("dtype", DOUBLES)
def test_tracing(dtype: torch.dtype, rng: torch.Generator) -> None:
    x = [t.requires_grad_() for t in (well(rng, 2, 1, 4, dtype=dtype), draw(rng, 3, 4, dtype=dtype), draw(rng, 2, 1, 4, 2, dtype=dtype))]  # fmt: skip  # noqa: E501
    torch.library.opcheck(torch.ops.gdn_cuda.toeplitz_solve.default, (*x, False))
    torch.library.opcheck(torch.ops.gdn_cuda.toeplitz_gko.default, (*(t.detach() for t in x), 1e-15))
    torch.library.opcheck(torch.ops.gdn_cuda.toeplitz_generators.default, [t.detach() for t in x])
    sides = [draw(rng, 2, rows, 4, dtype=torch.complex128) for rows in (2, 2, 3)]
    torch.library.opcheck(torch.ops.gdn_cuda.toeplitz_eliminate.default, (*sides, -1))

    def all_of_it(c: Tensor, r: Tensor, b: Tensor) -> Tensor:
        (x, info), (y, _) = toeplitz_solve_ex(c, r, b), toeplitz_solve_symmetric_ex(c, b)
        z = toeplitz_inverse_apply(x[..., 0], y[..., 0], b)
        return (x.sum((-1, -2)) + info).abs().sum() + z.abs().sum() + toeplitz_to_cauchy(c, r).abs().sum()

    compiled = torch.compile(all_of_it, fullgraph=True, backend="aot_eager")
    eager, traced = (torch.autograd.grad(f(*x), x) for f in (all_of_it, compiled))
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
    apart, x = (torch.ones(2, 3), torch.ones(4, 3)), torch.ones(3)
    for call, argument in ((lambda: toeplitz_inverse_apply(*apart, x), "toeplitz_inverse_apply: gs_v"),
                           (lambda: gs_compute_generators(*apart), "gs_compute_generators: r"),
                           (lambda: toeplitz_to_cauchy(*apart), "toeplitz_to_cauchy: r"),
                           (lambda: toeplitz_solve_ex(*apart, x), "toeplitz_solve_ex: r"),
                           (lambda: toeplitz_inverse_apply(apart[0], x, apart[1]), "toeplitz_inverse_apply: x"),
                           (lambda: toeplitz_solve_symmetric_ex(*apart), "toeplitz_solve_symmetric_ex: b")):  # fmt: skip
        with pytest.raises(ValueError, match=rf"^{argument}: expected leading dimensions that broadcast with .* got \(4, 3\)$"):
            call()
    with pytest.raises(ValueError, match=r"^toeplitz_to_cauchy: r: expected \(…, 3\) as c has, got \(1,\)$"):
        toeplitz_to_cauchy(torch.ones(3), torch.ones(1))
    with pytest.raises(ValueError, match=r"^toeplitz_solve: b: expected a real or complex .* got torch.int64$"):
        toeplitz_solve(torch.ones(3), torch.ones(3), torch.ones(3).long())


# ---- what a GPU does, with the kernels' CPU implementations


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("way", ["_by_gko", "_by_dense_lu"])
def test_ways_of_the_gpu(way: str, dtype: torch.dtype, rng: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    if way != "_by_gko":
        monkeypatch.setattr(ways, "GKO_LONGEST", 0)
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
        (x, info), (expected, told) = ways.solve(c, r, b, False), oracle.toeplitz_solve_ex(c, r, b)
        assert x.dtype == dtype and x.shape == expected.shape and torch.equal(info, told)
        assert rel_rms(x, expected) < (1e-6 if single else 1e-11)
    for scale in (1e-30, 1e30) if single else (1e-200, 1e200):
        (x, info), (expected, _) = ways.solve(c * scale, r * scale, b, False), oracle.toeplitz_solve_ex(c * scale, r * scale, b)
        assert not info.any() and rel_rms(x * scale, expected * scale) < (1e-5 if single else 1e-10)


@pytest.mark.parametrize("way", ["_by_gko", "_by_dense_lu"])
def test_ways_of_the_gpu_tell_singular_matrices(way: str, rng: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    if way != "_by_gko":
        monkeypatch.setattr(ways, "GKO_LONGEST", 0)
    c = torch.tensor([[2.0, 1, 0], [1, 1, 1], [0, 0, 0], [torch.nan, 0, 0], [1, 1 - 2.0**-23, 1 - 2.0**-21]])
    b = draw(rng, 5, 3).float()
    for dtype, nearly in ((torch.float32, 4), (torch.float64, 0)):
        x, info = ways.solve(c.to(dtype), c.to(dtype), b.to(dtype), True)
        assert info[0] == 0 and rel_rms(x[0], oracle.toeplitz_solve(c[0], c[0], b[0])) < 1e-6
        assert info[1] in (2, 3, 4) and info[2] == 1 and x[2].isnan().all() and info[3] > 0 and info[4] == nearly


def test_no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices are judged all the same."""
    c, b = torch.tensor([[2.0, 1, 0], [0, 0, 0]]), torch.zeros(2, 3, 0)
    general = [toeplitz_solve_ex, lambda *x: ways.solve(*x, False)]
    for x, info in (*(way(c, c, b) for way in general), toeplitz_solve_symmetric_ex(c, b), ways.solve_symmetric(c, b)):
        assert x.shape == b.shape and info.tolist() == [0, 1]
    assert toeplitz_solve_symmetric_ex(c, b, assume_positive=True)[1].tolist() == [0, -1]
    assert torch.ops.gdn_cuda.toeplitz_pcg_long(c[0], b[0])[1] == 0
    assert torch.ops.gdn_cuda.toeplitz_pcg(c, b, 1e-7)[1].tolist() == [0, -1]
    monkeypatch.setattr(ways, "GKO_LONGEST", 0)
    x, info = ways.solve(c, c, b, False)
    assert x.shape == b.shape and info.tolist() == [0, 1]


def test_explanations_name_the_way() -> None:
    assert ways.explain_toeplitz_solve(1024).startswith("toeplitz_gko: 1024 rows")
    assert "clusters" in ways.explain_toeplitz_solve(513) and "clusters" not in ways.explain_toeplitz_solve(512)
    assert ways.explain_toeplitz_solve(1025).startswith("toeplitz_eliminate: 1025 rows")
    assert ways.explain_toeplitz_solve(8193).startswith("dense LU in fp64: 8193 rows")
    assert ways.explain_toeplitz_solve(1024, True).startswith("toeplitz_schur: 1024 rows")
    assert ways.explain_toeplitz_solve(4096, True).startswith("toeplitz_pcg: 4096 rows")
    assert "toeplitz_schur" in ways.explain_toeplitz_solve(4096, True)
    assert ways.explain_toeplitz_solve(4097, True).startswith("toeplitz_pcg: 4097 rows")
    assert "toeplitz_schur" not in ways.explain_toeplitz_solve(4097, True)
    assert ways.explain_toeplitz_solve(8193, True).startswith("conjugate gradients in torch operations: 8193 rows")


# ---- symmetric positive definite ones


def symmetric(n: int) -> Tensor:
    """Positive definite, nearly not, indefinite, singular, no numbers."""
    distance = torch.arange(n, dtype=torch.float64)
    first = distance == 0
    return torch.stack([0.9**distance + 0.1 * first, (-((distance / 3) ** 2)).exp() + 1e-5 * first,
                        distance.cos() - 0.5 * (distance == 1), torch.ones(n).double(), distance * torch.nan])  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_positive_ones(dtype: torch.dtype, rng: torch.Generator) -> None:
    c, b = symmetric(20).to(dtype), draw(rng, 5, 20, 2).to(dtype)
    x, info = toeplitz_solve_symmetric_ex(c, b, assume_positive=True)
    assert info.tolist()[:2] == [0, 0] and (info[2:] < 0).all() and x[2:].isnan().all()
    assert rel_rms(x[:2], oracle.toeplitz_solve_symmetric(c[:2], b[:2])) < (1e-7 if dtype == torch.float32 else 1e-11)
    leaves = [symmetric(4)[:1].requires_grad_(), draw(rng, 4).requires_grad_()]
    assert torch.autograd.gradcheck(lambda c, b: toeplitz_solve_symmetric_ex(c, b, assume_positive=True)[0], leaves)
    torch.library.opcheck(torch.ops.gdn_cuda.toeplitz_schur.default, (*leaves, 1e-15))
    torch.library.opcheck(torch.ops.gdn_cuda.toeplitz_pcg.default, (*leaves, 1e-15))
    assert toeplitz_solve_symmetric_ex(c[0], b[0].bfloat16().to(dtype), assume_positive=True)[1].shape == ()
    compiled = torch.compile(toeplitz_solve_symmetric_ex, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(c[:2], b[:2], assume_positive=True)[0], x[:2])
    with FakeTensorMode():
        on_gpu = torch.empty(9, device="cuda")
        assert toeplitz_solve_symmetric_ex(on_gpu, on_gpu, assume_positive=True)[0].shape == (9,)
    with pytest.raises(ValueError, match=r"^toeplitz_solve_symmetric_ex: c: expected real numbers and at most 8192 rows with"):
        toeplitz_solve_symmetric_ex(c + 0j, b, assume_positive=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("limits", [(4096, 1025, 8192), (4096, 0, 8192), (0, 0, 8192), (0, 0, 0)])
def test_symmetric_ways_of_the_gpu(
    limits: tuple[int, int, int], dtype: torch.dtype, rng: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one matrix of a batch is not positive definite, all take the general way."""
    for name, limit in zip(("SCHUR_LONGEST", "PCG_SHORTEST", "PCG_LONGEST"), limits, strict=True):
        monkeypatch.setattr(ways, name, limit)
    c, b = symmetric(40).to(dtype), draw(rng, 5, 40).to(dtype)
    for which in ([0, 1], [0, 2]):
        x, info = ways.solve_symmetric(c[which], b[which])
        expected = oracle.toeplitz_solve_symmetric(c[which], b[which])
        assert not info.any() and rel_rms(x, expected) < (1e-6 if dtype == torch.float32 else 1e-10)
    assert ways.solve_symmetric(c, b)[1][3:].all()


def test_what_one_block_of_gradients_tells(rng: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """That it does not come to an end, where it does so for one right-hand side of a matrix and not for another."""
    monkeypatch.setattr(ways, "SCHUR_LONGEST", 0)
    c, b = symmetric(6)[None, :3], draw(rng, 4, 3, 6)
    x, info = toeplitz_solve_symmetric_ex(c, b, assume_positive=True)
    assert info.tolist() == [[0, 0, -1]] and x[:, 2].isnan().all() and x[:, :2].isfinite().all()
    told = torch.zeros(4, 3, dtype=torch.int32)
    told[1, 0], told[2, 0], told[:, 1:] = -1, 7, 7
    monkeypatch.setattr(ways, "_ops", type("Ops", (), {"toeplitz_pcg": staticmethod(lambda c, b, epsilon: (b, told))}))
    assert ways.solve_positive(c, b)[1].tolist() == [[-1, 7, 7]]


def test_no_right_hand_sides_of_a_matrix() -> None:
    c = torch.tensor([[2.0, 1.0, 0.0]])
    for b in (torch.zeros(0, 3), torch.zeros(0, 3, 2)):
        for way in (ways.solve_positive, ways._by_pcg, ways.solve_symmetric, lambda c, b: ways.solve(c, c, b, False)):
            x, info = way(c, b)
            assert x.shape == b.shape and info.tolist() == [0]


def test_a_correction_of_huge_numbers_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transforms of T x overflow where T x itself does not."""
    monkeypatch.setattr(ways, "_product", lambda c, r, x, many: torch.full_like(x, torch.inf))
    c, b = symmetric(5)[0], torch.full((5,), 1e305, dtype=torch.float64)
    x, info = ways.solve(c, c, b, False)
    assert info == 0 and rel_rms(x / 1e300, oracle.toeplitz_solve(c, c, b / 1e300)) < 1e-12


def test_conjugate_gradients(rng: torch.Generator) -> None:
    c, b = torch.stack([symmetric(300)[0], 1 / (1 + torch.arange(300.0).double()) ** 1.1]), draw(rng, 3, 2, 300, 2)
    b[0, 0, :, 1] = 0
    x, info = torch.ops.gdn_cuda.toeplitz_pcg_long(c, b)
    assert info.tolist() == [0, 0] and not x[0, 0, :, 1].any()
    assert rel_rms(x, oracle.toeplitz_solve_symmetric(c, b)) < 1e-9
    for of_c, of_b in ((1, 1e-170), (1e-165, 1e-165), (1e170, 1e200)):  # squares would leave the range
        scaled = torch.ops.gdn_cuda.toeplitz_pcg_long(of_c * c, of_b * b)[0]
        assert rel_rms(scaled * of_c / of_b, x) < 1e-9
    single = torch.ops.gdn_cuda.toeplitz_pcg_long(c.float(), b.float())[0]
    assert rel_rms(single, oracle.toeplitz_solve_symmetric(c.float(), b.float())) < 1e-6
    assert torch.ops.gdn_cuda.toeplitz_pcg_long(symmetric(300)[2], b)[1].item() == -1
    leaves = [symmetric(6)[0].requires_grad_(), draw(rng, 6, 2).requires_grad_()]
    assert torch.autograd.gradcheck(lambda c, b: torch.ops.gdn_cuda.toeplitz_pcg_long(c, b)[0], leaves)
    torch.library.opcheck(torch.ops.gdn_cuda.toeplitz_pcg_long.default, leaves)
    for n in (0, 1):
        assert torch.ops.gdn_cuda.toeplitz_pcg_long(2 * torch.ones(n), torch.ones(n))[0].tolist() == [0.5] * n
