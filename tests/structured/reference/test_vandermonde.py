"""Sums of powers: phases up to 1e6 rad against 40 digits of mpmath, limits, and gradients."""

import pytest
import torch
from gdn_cuda.reference.structured_vandermonde import log_vandermonde, log_vandermonde_transpose
from helpers import rel_rms

EPSILON = 2.0**-52


def draw(rng, *shape, dtype=torch.complex128):
    return torch.randn(*shape, generator=rng, dtype=dtype)


def exponents(rng, N, L, phase, decay=2.0):
    """x with phases up to `phase` and |e^{x l}| down to e^{−decay} at l = L − 1."""
    last = max(L - 1, 1)
    size = torch.rand(N, generator=rng, dtype=torch.float64)
    return torch.complex(-decay / last * size, phase / last * (1 - 0.1 * torch.rand(N, generator=rng, dtype=torch.float64)))


def exact_powers(x, steps):
    """e^{x l} (N,steps) with x·l exact."""
    mpmath = pytest.importorskip("mpmath", reason="mpmath is not installed (it comes with torch's sympy)")
    with mpmath.workdps(40):
        return torch.tensor(
            [[complex(mpmath.exp(mpmath.mpc(a) * l)) for l in steps] for a in x.tolist()], dtype=torch.complex128
        )


@pytest.mark.parametrize("phase", [1.0, 1e3, 1e6, 1e9])
@pytest.mark.parametrize("decay", [0.0, 2.0, 600.0, -600.0])
def test_powers_equal_mpmath_to_the_last_digits(phase, decay, rng):
    L = 16384
    x, steps = exponents(rng, 6, L, phase, decay), [0, 1, 2, 777, 8191, 16383]
    expected = exact_powers(x, steps)
    got = 0.5 * log_vandermonde(torch.ones(6, 1), x[:, None], L)[:, steps]
    assert ((got - expected.real).abs() <= 4 * EPSILON * expected.abs()).all()
    got = 0.5 * log_vandermonde(torch.full((6, 1), -1j), x[:, None], L)[:, steps]
    assert ((got - expected.imag).abs() <= 4 * EPSILON * expected.abs()).all()
    unit = torch.zeros(len(steps), L)
    unit[range(len(steps)), steps] = 1
    transposed = log_vandermonde_transpose(unit, torch.ones(6), x, L).T
    assert ((transposed - expected).abs() <= 4 * EPSILON * expected.abs()).all()


def test_these_cases_detect_a_rounded_product(rng):
    """Shows that the test above can fail: without the rounding error of x·l, phases of 1e6 have errors of 1e-11."""
    x = exponents(rng, 6, 16384, 1e6)
    expected = exact_powers(x, [16383])
    assert ((x[:, None] * 16383).exp() - expected).abs().max() > 1e-12


def test_vandermonde_matrix_of_numpy(rng):
    np = pytest.importorskip("numpy", reason="numpy is not installed")
    v, x = draw(rng, 5), 0.1 * draw(rng, 5)
    matrix = torch.from_numpy(np.vander(x.exp().numpy(), 12, increasing=True))
    assert rel_rms(log_vandermonde(v, x, 12), 2 * (v @ matrix).real) < 1e-13
    u = draw(rng, 12)
    assert rel_rms(log_vandermonde_transpose(u, v, x, 12), v * (matrix @ u)) < 1e-13


@pytest.mark.parametrize("L", [1, 2, 3, 17, 1000])
def test_a_shorter_sum_is_the_beginning_of_a_longer_one(L, rng):
    v, x = draw(rng, 2, 7), exponents(rng, 7, 1000, 1e6)
    assert rel_rms(log_vandermonde(v, x, L), log_vandermonde(v, x, 1000)[:, :L]) < 1e-14


def test_real_exponents(rng):
    v, x = draw(rng, 4, dtype=torch.float64), -draw(rng, 4, dtype=torch.float64).abs()
    out = log_vandermonde(v, x, 9)
    assert out.dtype == torch.float64
    assert rel_rms(out, log_vandermonde(v.to(torch.complex128), x.to(torch.complex128), 9)) < 1e-14


@pytest.mark.parametrize("complex_", [False, True])
def test_logarithm_of_zero(complex_):
    """e^{−∞ l} is 1 at l = 0 and 0 after it."""
    x = torch.tensor([-torch.inf], dtype=torch.complex128 if complex_ else torch.float64)
    assert log_vandermonde(torch.full((1,), 3.0), x, 4).tolist() == [6, 0, 0, 0]
    assert torch.autograd.grad(log_vandermonde(torch.full((1,), 3.0), x.requires_grad_(), 4).sum(), x)[0].item() == 0
    assert log_vandermonde_transpose(torch.tensor([5.0, 1.0, 1.0]), torch.full((1,), 3.0), x, 3).tolist() == [15]


def test_overflowing_powers_are_infinite_and_underflowing_ones_zero():
    assert log_vandermonde(torch.ones(1), torch.tensor([800.0]), 3).tolist() == [2, torch.inf, torch.inf]
    assert log_vandermonde(torch.ones(1), torch.tensor([-800.0]), 3).tolist() == [2, 0, 0]


@pytest.mark.parametrize("complex_", [False, True])
@pytest.mark.parametrize("L", [0, 1, 5])
def test_gradients(complex_, L, rng):
    dtype = torch.complex128 if complex_ else torch.float64
    v, x = draw(rng, 2, 1, 3, dtype=dtype), 0.3 * draw(rng, 4, 3, dtype=dtype)
    u = draw(rng, 2, 4, L, dtype=dtype)
    leaves = [t.requires_grad_() for t in (u, v, x)]
    if L:
        assert torch.autograd.gradcheck(lambda v, x: log_vandermonde(v, x, L), leaves[1:])
    assert torch.autograd.gradcheck(lambda u, v, x: log_vandermonde_transpose(u, v, x, L), leaves)


def test_gradient_of_large_phases_is_as_exact_as_the_sum(rng):
    """d/dx of Re Σ v e^{x l} has a factor l."""
    x, step = exponents(rng, 3, 16384, 1e6).requires_grad_(), 16383
    out = 0.5 * log_vandermonde(torch.ones(3, 1), x[:, None], step + 1)[:, step]
    gradient = torch.autograd.grad(out.sum(), x)[0]
    assert rel_rms(gradient, step * exact_powers(x.detach(), [step])[:, 0].conj()) < 4 * EPSILON


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128]
)
def test_dtypes_are_widened_before_anything_is_computed(dtype, rng):
    wide = dtype if dtype.is_complex else torch.float64
    u, v, x = (draw(rng, n, dtype=wide).to(dtype) for n in (8, 3, 3))
    wide = torch.complex128 if dtype.is_complex else torch.float64
    out = log_vandermonde(v, x, 8)
    assert out.dtype == torch.float64
    assert torch.equal(out, log_vandermonde(v.to(wide), x.to(wide), 8))
    out = log_vandermonde_transpose(u, v, x, 8)
    assert out.dtype == torch.complex128
    assert torch.equal(out, log_vandermonde_transpose(u.to(wide), v.to(wide), x.to(wide), 8))


def test_broadcasting(rng):
    """S4D's shapes: v (channels,H,N), x (H,N); and u (B,H,L), v (H,N)."""
    v, x, u = draw(rng, 2, 3, 4), 0.1 * draw(rng, 3, 4), draw(rng, 5, 3, 6)
    out, transposed = log_vandermonde(v, x, 6), log_vandermonde_transpose(u, v[0], x, 6)
    assert out.shape == (2, 3, 6)
    assert transposed.shape == (5, 3, 4)
    for h in range(3):
        assert rel_rms(out[1, h], log_vandermonde(v[1, h], x[h], 6)) < 1e-14
        assert rel_rms(transposed[4, h], log_vandermonde_transpose(u[4, h], v[0, h], x[h], 6)) < 1e-14


def test_nothing_to_sum():
    none, some = torch.zeros(2, 0, dtype=torch.complex64), torch.ones(2, 3, dtype=torch.complex64)
    assert log_vandermonde(none, none, 4).tolist() == [[0] * 4] * 2
    assert log_vandermonde(some, some, 0).shape == (2, 0)
    assert log_vandermonde_transpose(torch.zeros(2, 0), some, some, 0).tolist() == [[0] * 3] * 2
    assert log_vandermonde_transpose(torch.zeros(2, 4), none, none, 4).shape == (2, 0)


def test_bad_input():
    one, two = torch.ones(1), torch.ones(2)
    with pytest.raises(ValueError, match=r"log_vandermonde: x: expected \(…, 2\) as v has, got \(1,\)"):
        log_vandermonde(two, one, 3)
    with pytest.raises(ValueError, match=r"log_vandermonde: L: expected >= 0, got -1"):
        log_vandermonde(two, two, -1)
    with pytest.raises(ValueError, match=r"log_vandermonde_transpose: u: expected \(…, L=3\), got \(1,\)"):
        log_vandermonde_transpose(one, two, two, 3)
