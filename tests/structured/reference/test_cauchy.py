"""Cauchy sums: against 40 digits of mpmath, at and near poles, and their gradients."""

import pytest
import torch
from gdn_cuda.reference.structured_cauchy import cauchy_conj, cauchy_kernel
from helpers import rel_rms

mpmath = pytest.importorskip("mpmath", reason="mpmath is not installed (it comes with torch's sympy)")
EPSILON = 2.0**-52
NODES = ("spread", "close", "clustered", "unit circle")
inf, nan = float("inf"), float("nan")


def draw(rng, *shape, complex_=True):
    return torch.randn(*shape, generator=rng, dtype=torch.complex128 if complex_ else torch.float64)


def nodes(layout, N, L, complex_, rng):
    """omega (L) and lambd (N)."""
    omega, lambd = draw(rng, L, complex_=complex_), draw(rng, N, complex_=complex_)
    if layout == "close":
        lambd = omega[torch.arange(N) % L] + 1e-12 * (1 + torch.rand(N, generator=rng, dtype=torch.float64))
    elif layout == "clustered":
        lambd = lambd[:1] + 1e-9 * lambd
    elif layout == "unit circle":
        omega = torch.polar(torch.ones(L, dtype=torch.float64), 6 * torch.rand(L, generator=rng, dtype=torch.float64))
        lambd = omega.flip(0).repeat(N)[:N] * torch.polar(torch.ones(N).double(), torch.full((N,), 1e-7).double())
    return omega, lambd


def exactly(terms):
    """The exact sum of v / d, and the sum of sizes, which bounds its rounding error."""
    with mpmath.workdps(40):
        quotients = [mpmath.mpc(v) / (mpmath.mpc(a) - mpmath.mpc(b)) for v, a, b in terms]
        return complex(mpmath.fsum(quotients)), float(mpmath.fsum([abs(q) for q in quotients]))


@pytest.mark.parametrize("layout", NODES)
@pytest.mark.parametrize("complex_", [False, True])
@pytest.mark.parametrize(("N", "L"), [(1, 1), (2, 3), (13, 7), (40, 5)])
def test_sums_equal_mpmath_to_the_last_digits(layout, complex_, N, L, rng):
    omega, lambd = nodes(layout, N, L, complex_, rng)
    v = draw(rng, N, complex_=complex_)
    out = cauchy_kernel(v, omega, lambd)
    conj = cauchy_conj(v, omega, lambd)
    assert out.is_complex() == (complex_ or layout == "unit circle")
    for l, point in enumerate(omega.tolist()):
        pairs = [(a, point, b) for a, b in zip(v.tolist(), lambd.tolist(), strict=True)]
        expected, size = exactly(pairs)
        assert abs(complex(out[l].item()) - expected) < (8 + N) * EPSILON * size
        expected, size = exactly(pairs + [(complex(a).conjugate(), p, complex(b).conjugate()) for a, p, b in pairs])
        assert abs(conj[l].item() - expected) < (8 + 2 * N) * EPSILON * size


def test_partial_fractions(rng):
    """Σ v_n / (ω − λ_n) with v_n = p(λ_n) / Π (λ_n − λ_m) is p(ω) / Π (ω − λ_m)."""
    lambd = torch.arange(8, dtype=torch.float64) - 3.3
    omega, p = draw(rng, 5), draw(rng, 4)
    value = lambda x: sum(a * x**i for i, a in enumerate(p))  # noqa: E731
    gaps = lambd[:, None] - lambd
    v = value(lambd) / (gaps + torch.eye(8)).prod(1)
    expected = value(omega) / (omega[:, None] - lambd).prod(1)
    assert rel_rms(cauchy_kernel(v, omega, lambd), expected) < 1e-12


@pytest.mark.parametrize(
    ("residues", "expected"),
    [([2.0], inf), ([-2.0], -inf), ([0.0], 5.0), ([1.0, -3.0], -inf), ([1.0, -1.0], 5.0), ([nan], nan)],
)
def test_real_pole_on_a_point(residues, expected):
    v = torch.tensor([*residues, 5.0], dtype=torch.float64)
    lambd = torch.tensor([1.0] * len(residues) + [0.0], dtype=torch.float64)
    out = cauchy_kernel(v, torch.tensor([1.0, 2.0], dtype=torch.float64), lambd)
    assert torch.equal(out[:1].nan_to_num(0.125), torch.tensor([expected], dtype=torch.float64).nan_to_num(0.125))
    assert out[1].item() == pytest.approx(sum(residues) + 2.5, nan_ok=True)


@pytest.mark.parametrize(
    ("v", "expected"), [(2 - 3j, complex(inf, -inf)), (-2, complex(-inf, 1)), (4j, complex(1, inf)), (0, 1 + 1j)]
)
def test_complex_pole_on_a_point(v, expected):
    z = torch.tensor([0.3 + 0.4j], dtype=torch.complex128)
    others = torch.tensor([v, 1 + 1j], dtype=torch.complex128)
    got = cauchy_kernel(others, z, torch.cat([z, z - 1])).item()
    assert (got.real, got.imag) == (
        expected.real if expected.real in (inf, -inf) else pytest.approx(1),
        pytest.approx(expected.imag),
    )


def test_conjugate_pair_of_a_real_pole_on_a_point():
    """Both terms of the pair are infinite: (v + v̄) / ε has no imaginary part."""
    one = torch.ones(1, dtype=torch.complex128)
    assert cauchy_conj(one * (1 + 7j), one, one).item() == complex(inf, 0)
    assert cauchy_conj(one * 7j, one, one).item() == 0


def test_gradients_at_a_pole_are_nan_and_the_others_untouched(rng):
    v, omega, lambd = draw(rng, 4), draw(rng, 3), draw(rng, 4)
    lambd[2] = omega[1]
    leaves = [x.requires_grad_() for x in (v, omega, lambd)]
    out = cauchy_kernel(*leaves)
    gradients = torch.autograd.grad(out, leaves, torch.ones_like(out))
    assert [g.isnan().nonzero().flatten().tolist() for g in gradients] == [[2], [1], [2]]
    kept = [0, 1, 3]
    separate = [v[kept].detach(), omega.detach(), lambd[kept].detach()]
    assert torch.autograd.gradcheck(cauchy_kernel, [x.requires_grad_() for x in separate])
    sums = cauchy_kernel(*separate)
    expected = torch.autograd.grad(sums[[0, 2]], separate[1], torch.ones(2, dtype=sums.dtype))[0]
    poles = [0, 2]
    rest = torch.autograd.grad(cauchy_kernel(*leaves)[poles], leaves[1], torch.ones(2, dtype=sums.dtype))[0]
    assert rest[1].isnan()  # 0 / 0, although the gradient of its output is 0
    third = v[2].detach() / (omega[poles].detach() - lambd[2].detach()) ** 2
    assert rel_rms(rest[poles], expected[poles] - third.conj()) < 1e-13


@pytest.mark.parametrize("complex_", [False, True])
def test_gradients(complex_, rng):
    v, omega, lambd = draw(rng, 2, 1, 3, complex_=complex_), draw(rng, 4), draw(rng, 5, 3, complex_=complex_)
    leaves = [x.requires_grad_() for x in (v, omega, lambd)]
    assert torch.autograd.gradcheck(cauchy_kernel, leaves)
    assert torch.autograd.gradcheck(cauchy_conj, leaves)
    assert torch.autograd.gradgradcheck(cauchy_kernel, leaves)


def test_mixed_real_and_complex_gradients_are_real_where_the_input_is(rng):
    v, omega, lambd = draw(rng, 3, complex_=False), draw(rng, 2), draw(rng, 3, complex_=False)
    leaves = [x.requires_grad_() for x in (v, omega, lambd)]
    assert torch.autograd.gradcheck(cauchy_kernel, leaves)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128]
)
def test_dtypes_are_widened_before_anything_is_computed(dtype, rng):
    v, omega, lambd = (draw(rng, n).real.to(dtype) if not dtype.is_complex else draw(rng, n).to(dtype) for n in (6, 4, 6))
    wide = torch.complex128 if dtype.is_complex else torch.float64
    out = cauchy_kernel(v, omega, lambd)
    assert out.dtype == wide
    assert torch.equal(out, cauchy_kernel(v.to(wide), omega.to(wide), lambd.to(wide)))
    conj = cauchy_conj(v, omega, lambd)
    assert conj.dtype == torch.complex128
    assert torch.equal(conj, cauchy_conj(v.to(wide), omega.to(wide), lambd.to(wide)))


@pytest.mark.parametrize("function", [cauchy_kernel, cauchy_conj])
def test_broadcasting(function, rng):
    """S4's shapes: v (inputs,outputs,H,N), z (L), w (H,N)."""
    v, z, w = draw(rng, 2, 3, 4, 5), draw(rng, 6), draw(rng, 4, 5)
    out = function(v, z, w)
    assert out.shape == (2, 3, 4, 6)
    for i, j, h in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(4)).tolist():
        assert rel_rms(out[i, j, h], function(v[i, j, h], z, w[h])) < 1e-14


@pytest.mark.parametrize("function", [cauchy_kernel, cauchy_conj])
@pytest.mark.parametrize(("N", "L"), [(0, 3), (3, 0), (0, 0)])
def test_nothing_to_sum(function, N, L):
    out = function(torch.zeros(2, N), torch.zeros(L), torch.zeros(N))
    assert out.shape == (2, L)
    assert not out.any()


def test_bad_input():
    one, two = torch.ones(1), torch.ones(2)
    with pytest.raises(ValueError, match=r"cauchy_kernel: lambd: expected \(…, 2\) as v has, got \(1,\)"):
        cauchy_kernel(two, two, one)
    with pytest.raises(ValueError, match=r"cauchy_conj: w: expected \(…, 1\) as v has, got \(2,\)"):
        cauchy_conj(one, two, two)
    with pytest.raises(
        ValueError, match=r"cauchy_kernel: v: expected a real or complex floating-point tensor, got torch.int64"
    ):
        cauchy_kernel(two.long(), two, two)
