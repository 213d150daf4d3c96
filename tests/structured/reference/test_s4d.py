"""S4D: closed form, recurrence, steps and FFT convolution agree; limits of both discretizations."""

import pytest
import torch
from helpers import rel_rms
from s4_cases import convolution, make_param_config

from gdn_cuda.reference import s4, s4d

SHAPES = ({}, {"H": 4, "repeat": 2, "dt_per_state": True}, {"N": 1, "H": 1, "channels": 1}, {"N": 7, "transform": "softplus"})


def draw(rng, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=rng, dtype=dtype)


def one_state(dt_A, dt=0.5):
    """A system of one feature and one state with the given dt·A, and B = C = 1."""
    one = torch.ones(1, 1, 1, dtype=torch.complex128)
    return s4.System(torch.tensor([[dt]]).double(), torch.tensor([[dt_A / dt]], dtype=torch.complex128), one, one, one[:0])


@pytest.mark.parametrize("disc", s4d.DISCRETIZATIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("L", [0, 1, 2, 17])
def test_powers_recurrence_steps_and_convolution_agree(disc, shape, L, rng):
    system = s4.system_of(make_param_config(rng, **shape))
    discrete, (H, N) = s4d.discretized(system, disc), system.A.shape
    u, state = draw(rng, 2, H, L), draw(rng, 2, H, N, dtype=torch.complex128)
    K, K_state = s4d.kernel_by_powers(discrete, system.C, L, state)
    by_steps, state_by_steps = s4d.kernel_by_recurrence(discrete, system.C, L, state)
    assert K.shape == (system.C.shape[0], H, L)
    assert K_state.shape == (2, *K.shape)
    assert rel_rms(K, by_steps) < 1e-13
    assert rel_rms(K_state, state_by_steps) < 1e-13
    assert s4d.kernel_by_powers(discrete, system.C, L)[1] is None
    last, expected = state, convolution(u, K) + K_state if L else K_state
    for t in range(L):
        y, last = s4d.step(discrete, system.C, u[..., t], last)
        assert rel_rms(y, expected[..., t]) < 1e-11
    assert rel_rms(s4d.forward_state(discrete, u, state), last) < 1e-13


@pytest.mark.parametrize("disc", s4d.DISCRETIZATIONS)
def test_discretization_of_scipy(disc, rng):
    signal = pytest.importorskip("scipy.signal", reason="SciPy is not installed")
    system = s4.system_of(make_param_config(rng, N=3))
    discrete = s4d.discretized(system, disc)
    for h in range(3):
        parts = (
            torch.diag(system.A[h]).numpy(),
            system.B[0, h][:, None].numpy(),
            system.C[:, h].numpy(),
            0 * system.C[:, h, :1].numpy(),
        )
        A, B, *_ = signal.cont2discrete(parts, system.dt[h].item(), disc)
        assert rel_rms(torch.diag(discrete.A[h]), torch.from_numpy(A)) < 1e-12
        assert rel_rms(discrete.B[h], torch.from_numpy(B)[:, 0]) < 1e-12


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bilinear_is_s4_without_its_low_rank_part(shape, rng):
    config = make_param_config(rng, **shape) | {"P": None}
    system, state = s4.system_of(config), draw(rng, 2, *config["C"].shape[1:3], dtype=torch.complex128)
    K, K_state = s4d.kernel_by_powers(s4d.discretized(system, "bilinear"), system.C, 9, state)
    k, k_state = s4.kernel_by_recurrence(s4.discretized(system), system.C, 9, state)
    assert rel_rms(K, k) < 1e-13
    assert rel_rms(K_state, k_state) < 1e-13


@pytest.mark.parametrize("dt_A", [0, 1e-300, 1e-12, -1e-9 + 1e-9j, 0.4999, -0.5, -0.5001, -3 + 40j, -700])
def test_zoh_near_and_far_from_zero(dt_A):
    """(e^x − 1)/x in full precision, and dt B at A = 0."""
    mpmath = pytest.importorskip("mpmath", reason="mpmath is not installed (it comes with torch's sympy)")
    with mpmath.workdps(40):
        system = one_state(dt_A)
        x = mpmath.mpc(complex((system.A * system.dt).item()))
        expected = complex(0.5 * (mpmath.expm1(x) / x if x else 1))
    got = s4d.discretized(system, "zoh").B.item()
    assert abs(got - expected) < 1e-15 * abs(expected)


def test_bilinear_at_minus_two_has_no_memory():
    """Ā = 0: the kernel is its first entry, in the closed form too, though log Ā is −∞."""
    system = one_state(-2)
    discrete, state = s4d.discretized(system, "bilinear"), torch.ones(1, 1, 1, dtype=torch.complex128)
    for form in (s4d.kernel_by_powers, s4d.kernel_by_recurrence):
        K, K_state = form(discrete, system.C, 4, state)
        assert K.tolist() == [[[0.5, 0, 0, 0]]]
        assert not K_state.any()
    assert s4d.forward_state(discrete, torch.ones(1, 1, 3), state).item() == 0.25
    assert s4d.forward_state(discrete, torch.ones(1, 1, 0), state).item() == 1


def test_bilinear_at_two_is_not_finite():
    """A pole of Ā, which stable systems do not have."""
    system = one_state(2)
    assert not s4d.kernel_by_powers(s4d.discretized(system, "bilinear"), system.C, 4)[0].isfinite().any()


@pytest.mark.parametrize("disc", s4d.DISCRETIZATIONS)
def test_large_phases(disc, rng):
    """Im(dt A) l up to 1e6, against repeated multiplication in 40 digits."""
    mpmath = pytest.importorskip("mpmath", reason="mpmath is not installed (it comes with torch's sympy)")
    L = 4096
    system = one_state(-1e-4 + 244.0j)
    K, _ = s4d.kernel_by_powers(s4d.discretized(system, disc), system.C, L)
    with mpmath.workdps(40):
        dt, A = mpmath.mpf(0.5), mpmath.mpc(complex(system.A.item()))
        x = mpmath.mpc(complex((system.A * system.dt).item()))
        base, B = (mpmath.exp(x), (mpmath.exp(x) - 1) / A) if disc == "zoh" else ((1 + x / 2) / (1 - x / 2), dt / (1 - x / 2))
        expected = torch.tensor([float(2 * (B * base**l).real) for l in range(0, L, 273)], dtype=torch.float64)
    # zoh is as exact as its exponent; log Ā of the bilinear form is rounded, and the error grows with l.
    assert rel_rms(K[0, 0, ::273], expected) < (1e-14 if disc == "zoh" else 1e-12)


@pytest.mark.parametrize("disc", s4d.DISCRETIZATIONS)
@pytest.mark.parametrize("form", [s4d.kernel_by_recurrence, s4d.kernel_by_powers])
def test_gradients(disc, form, rng):
    config = make_param_config(rng, H=2, N=2, repeat=2, transform="softplus", dt_fast=True, dt_per_state=True)
    names = ("A_real", "A_imag", "B", "C", "inv_dt")
    state = draw(rng, 1, 2, 2, dtype=torch.complex128)

    def kernel(state, *parameters):
        system = s4.system_of(config | dict(zip(names, parameters, strict=True)))
        return form(s4d.discretized(system, disc), system.C, 3, state)

    assert torch.autograd.gradcheck(kernel, [x.requires_grad_() for x in (state, *(config[name] for name in names))])


def test_gradient_of_zoh_through_its_series(rng):
    """At A = 0, where the quotient is 0/0."""
    dt, B = torch.tensor([[0.5]], dtype=torch.float64), torch.ones(1, 1, 1, dtype=torch.complex128)
    A = torch.zeros(1, 1, dtype=torch.complex128)

    def start(dt, A, B):
        return s4d.discretized(s4.System(dt, A, B, B, B[:0]), "zoh").B

    assert torch.autograd.gradcheck(start, [x.requires_grad_() for x in (dt, A, B)])


def test_gradients_of_steps(rng):
    system = s4.system_of(make_param_config(rng, H=2, N=2))
    u, state = draw(rng, 3, 2), draw(rng, 3, 2, 2, dtype=torch.complex128)
    leaves = [x.detach().requires_grad_() for x in (*system[:4], u, state)]

    def one(dt, A, B, C, u, state):
        return s4d.step(s4d.discretized(s4.System(dt, A, B, C, system.P), "zoh"), C, u, state)

    def many(dt, A, B, C, u, state):
        discrete = s4d.discretized(s4.System(dt, A, B, C, system.P), "bilinear")
        return s4d.forward_state(discrete, u[..., None].expand(3, 2, 3), state)

    assert torch.autograd.gradcheck(one, leaves)
    assert torch.autograd.gradcheck(many, leaves)


def test_bad_input(rng):
    with pytest.raises(ValueError, match=r"S4DKernel: disc: expected one of \('zoh', 'bilinear'\), got 'dss'"):
        s4d.discretized(one_state(-1), "dss")
