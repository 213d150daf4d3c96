"""S4 (DPLR): closed form, recurrence, three modes of steps and FFT convolution agree."""

import math

import pytest
import torch
from helpers import rel_rms
from s4_cases import convolution, make_param_config

from gdn_cuda.reference import s4

SHAPES = (
    {},
    {"rank": 2},
    {"rank": 3, "N": 5},
    {"rank": 0},
    {"H": 4, "repeat": 2, "dt_per_state": True},
    {"N": 1, "H": 1, "channels": 1},
)


def draw(rng, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=rng, dtype=dtype)


def outputs(step, u, state):
    """y (B,channels,H,L) and the last state, step by step."""
    steps = []
    for t in range(u.shape[-1]):
        y, state = step(u[..., t], state)
        steps.append(y)
    return torch.stack(steps, -1), state


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("L", [1, 2, 3, 7, 16, 101])
def test_the_closed_form_equals_the_recurrence(shape, L, rng):
    """Even lengths have ω = −1, where z is infinite."""
    system = s4.system_of(make_param_config(rng, **shape))
    discrete, (H, N) = s4.discretized(system), system.A.shape
    half = draw(rng, 2, H, N, dtype=torch.complex128)
    k, k_state = s4.kernel_by_recurrence(discrete, system.C, L, half)
    truncated = system._replace(C=s4.truncated_output(discrete, system.C, L))
    assert k.shape == (system.C.shape[0], H, L)
    assert k_state.shape == (2, *k.shape)
    for state in (half, s4.with_conjugates(half)):
        closed, closed_state = s4.kernel_by_resolvent(truncated, L, state=state)
        assert rel_rms(closed, k) < 1e-12
        assert rel_rms(closed_state, k_state) < 1e-12
    shorter, none = s4.kernel_by_resolvent(truncated, L, (L + 1) // 2)
    assert none is None
    assert rel_rms(shorter, k[..., : (L + 1) // 2]) < 1e-12


@pytest.mark.parametrize("L", [4, 5])
def test_formula_of_the_paper(L, rng):
    """The formula of the specification, with z and without its limit at ω = −1; rank 1 by a division."""
    from gdn_cuda.reference.structured_cauchy import cauchy_conj

    system = s4.system_of(make_param_config(rng))
    discrete = s4.discretized(system)
    C = s4.truncated_output(discrete, system.C, L)
    omega = torch.polar(torch.ones(3).double(), -2 * torch.pi * torch.arange(3).double() / L)
    omega[2] = omega[2] * (1 + 1e-9j) if L == 4 else omega[2]
    z = 2 * (1 - omega) / (1 + omega)
    v = torch.cat([system.B, system.P])[:, None] * torch.cat([C, system.P.conj()]) * system.dt
    r = cauchy_conj(v, z, system.A * system.dt)
    transform = (r[0, :-1] - r[:1, -1] * r[1:, :-1][0] / (1 + r[1, -1])) * 2 / (1 + omega)
    expected, _ = s4.kernel_by_resolvent(system._replace(C=C), L)
    assert rel_rms(torch.fft.irfft(transform, n=L), expected) < (1e-6 if L == 4 else 1e-12)


@pytest.mark.parametrize("shape", [{}, {"rank": 2}], ids=str)
def test_discretization_of_scipy(shape, rng):
    """On the real system of twice the size: x = [Re, Im] of half of each pair."""
    signal = pytest.importorskip("scipy.signal", reason="SciPy is not installed")
    system = s4.system_of(make_param_config(rng, **shape))
    discrete, N = s4.discretized(system), system.A.shape[-1]
    to_pairs = torch.cat(
        [torch.cat([torch.eye(N), 1j * torch.eye(N)], 1), torch.cat([torch.eye(N), -1j * torch.eye(N)], 1)]
    ).to(torch.complex128)
    generator = torch.linalg.solve(to_pairs, s4.dense_generator(system) @ to_pairs)
    start = torch.linalg.solve(to_pairs, s4.with_conjugates(system.B[0])[..., None])
    output = s4.with_conjugates(system.C).movedim(0, 1) @ to_pairs
    assert max(x.imag.abs().max() for x in (generator, start, output)) < 1e-12
    for h in range(system.A.shape[0]):
        continuous = (
            generator[h].real.numpy(),
            start[h].real.numpy(),
            output[h].real.numpy(),
            0 * output[h, :, :1].real.numpy(),
        )
        A, B, *_ = signal.cont2discrete(continuous, system.dt[h].item(), "bilinear")
        assert rel_rms(discrete.A[h], to_pairs @ torch.from_numpy(A).to(to_pairs) @ torch.linalg.inv(to_pairs)) < 1e-12
        assert rel_rms(discrete.B[h], (to_pairs @ torch.from_numpy(B).to(to_pairs))[:, 0]) < 1e-12
        _, impulse = signal.dimpulse((A, B, output[h].real.numpy(), 0 * continuous[3], 1.0), n=11)
        k, _ = s4.kernel_by_recurrence(discrete, system.C, 10)
        assert rel_rms(k[:, h], torch.from_numpy(impulse[0][1:].T)) < 1e-12


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_steps_convolution_and_kernel_agree(shape, rng):
    system = s4.system_of(make_param_config(rng, **shape))
    discrete, (H, N), L = s4.discretized(system), system.A.shape, 23
    u, state = draw(rng, 2, H, L), draw(rng, 2, H, N, dtype=torch.complex128)
    k, k_state = s4.kernel_by_recurrence(discrete, system.C, L, state)
    expected = convolution(u, k) + k_state
    full = s4.with_conjugates(state)
    y, last = outputs(lambda u, s: s4.step_dense(discrete, system.C, u, s), u, full)
    assert rel_rms(y, expected) < 1e-12
    assert rel_rms(s4.forward_state(discrete, u, full), last) < 1e-13
    assert rel_rms(s4.forward_state(discrete, u, state), last[..., :N]) < 1e-13
    assert rel_rms(last[..., N:], last[..., :N].conj()) < 1e-13
    y, half = outputs(lambda u, s: s4.step_linear(system, system.C, u, s), u, state)
    assert rel_rms(y, expected) < 1e-12
    assert rel_rms(half, last[..., :N]) < 1e-12
    eigen, C = s4.diagonalized(discrete, system.C)
    V = torch.linalg.eig(discrete.A)[1]
    y, _ = outputs(lambda u, s: s4.step_diagonal(eigen, C, u, s), u, torch.linalg.solve(V, full[..., None]).squeeze(-1))
    assert rel_rms(y, expected) < 1e-10


@pytest.mark.parametrize("length", [1, 5, 8])
def test_output_for_a_length_doubles_and_is_undone(length, rng):
    system = s4.system_of(make_param_config(rng, rank=2))
    discrete = s4.discretized(system)
    C = s4.truncated_output(discrete, system.C, length)
    assert rel_rms(s4.original_output(discrete, C, length), system.C) < 1e-11
    for doubled in (2 * length, 4 * length):
        C = s4.doubled_output(discrete, C, doubled // 2)
        assert rel_rms(C, s4.truncated_output(discrete, system.C, doubled)) < 1e-12
        k, _ = s4.kernel_by_resolvent(system._replace(C=C), doubled)
        assert rel_rms(k, s4.kernel_by_recurrence(discrete, system.C, doubled)[0]) < 1e-11
    assert s4.original_output(discrete, system.C, 0) is system.C


@pytest.mark.parametrize("rate", [0.5, 2.0])
def test_rate(rate, rng):
    """C̃ is for rate 1. At another rate the closed form is the kernel of the C that would give C̃ at *that* rate. For short steps
    this is nearly the C of rate 1, since Ā^length at one rate is nearly Ā^(length/rate) at the other."""
    config, length, distances = make_param_config(rng), 64, []
    for halvings in (5, 6):
        shorter = config | {"inv_dt": config["inv_dt"] - halvings * math.log(2)}
        system, other = s4.system_of(shorter), s4.system_of(shorter, rate)
        assert torch.equal(other.dt, rate * system.dt)
        samples = round(length / rate)
        C = s4.truncated_output(s4.discretized(system), system.C, length)
        discrete = s4.discretized(other)
        k, _ = s4.kernel_by_resolvent(other._replace(C=C), samples)
        meant = s4.original_output(discrete, C, samples)
        assert rel_rms(k, s4.kernel_by_recurrence(discrete, meant, samples)[0]) < 1e-10
        distances.append(rel_rms(k, s4.kernel_by_recurrence(discrete, system.C, samples)[0]))
    assert distances[1] < 0.5 * distances[0] < 0.02


@pytest.mark.parametrize("transform", s4.TRANSFORMS)
@pytest.mark.parametrize("dt_fast", [False, True])
def test_parameters(transform, dt_fast, rng):
    config = make_param_config(rng, H=4, repeat=2, rank=2, transform=transform, dt_fast=dt_fast)
    system = s4.system_of(config)
    by_hand = {
        "none": lambda x: x,
        "exp": torch.exp,
        "relu": torch.nn.functional.relu,
        "sigmoid": torch.nn.functional.sigmoid,
        "softplus": torch.nn.functional.softplus,
    }[transform]
    inv_dt = config["inv_dt"].sinh() if dt_fast else config["inv_dt"]
    assert rel_rms(system.dt, by_hand(inv_dt)) < 1e-14
    for h in range(4):
        expected = -by_hand(config["A_real"][h % 2]) - 1j * config["A_imag"][h % 2]
        assert rel_rms(system.A[h], expected) < 1e-14
        assert torch.equal(system.B[0, h], torch.view_as_complex(config["B"])[0, h % 2])
        assert torch.equal(system.P[:, h], torch.view_as_complex(config["P"])[:, h % 2])
    with pytest.raises(ValueError, match=r"param_config: transform: expected one of .* got 'tanh'"):
        s4.system_of(config | {"dt_transform": "tanh"})


def test_softplus_of_large_values_keeps_full_precision():
    x = torch.tensor([-40.0, 0.0, 20.5, 30.0, 800.0], dtype=torch.float64)
    expected = torch.where(x > 0, x + (-x).exp().log1p(), x.exp().log1p())
    assert rel_rms(s4.transformed(x, "softplus")[:4] - x[:4], expected[:4] - x[:4]) < 1e-15
    assert s4.transformed(x, "softplus")[4] == 800


def test_real_system(rng):
    """Real pairs count twice; parameters may be real (…,N) or (…,N,2)."""
    config = make_param_config(rng) | {"is_real": True}
    for name in ("B", "C", "P"):
        config[name][..., 1] = 0
    bare = config | {name: config[name][..., 0] for name in ("B", "C", "P")} | {"A_imag": None}
    system = s4.system_of(bare)
    assert all(torch.equal(x, y) for x, y in zip(system, s4.system_of(config), strict=True))
    k, _ = s4.kernel_by_recurrence(s4.discretized(system), system.C, 1)
    half = (0.5 * system.dt * system.A).real
    P = system.P.real
    M = torch.diag_embed(half) - system.dt[..., None] * torch.einsum("rhm,rhn->hmn", P, P)  # both halves of a pair are one
    start = torch.linalg.solve(torch.eye(4) - M, (system.dt * system.B[0].real)[..., None]).squeeze(-1)
    assert rel_rms(k[..., 0], 2 * (system.C.real * start).sum(-1)) < 1e-13


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_parameters_are_widened_before_anything_is_computed(dtype, rng):
    config = make_param_config(rng, dtype=dtype)
    wide = {name: x.double() if isinstance(x, torch.Tensor) else x for name, x in config.items()}
    system = s4.system_of(config)
    assert system.dt.dtype == torch.float64
    assert all(x.dtype == torch.complex128 for x in system[1:])
    assert all(torch.equal(x, y) for x, y in zip(system, s4.system_of(wide), strict=True))


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("form", ["recurrence", "resolvent"])
def test_gradients(rank, form, rng):
    config = make_param_config(rng, H=2, N=2, rank=rank, repeat=2, transform="softplus", dt_fast=True)
    names = ("A_real", "A_imag", "B", "C", "P", "inv_dt") if rank else ("A_real", "A_imag", "B", "C", "inv_dt")
    state = draw(rng, 1, 2, 2, dtype=torch.complex128)

    def kernel(state, *parameters):
        system = s4.system_of(config | dict(zip(names, parameters, strict=True)))
        if form == "resolvent":
            return s4.kernel_by_resolvent(system, 4, 3, state)
        return s4.kernel_by_recurrence(s4.discretized(system), system.C, 3, state)

    assert torch.autograd.gradcheck(kernel, [x.requires_grad_() for x in (state, *(config[name] for name in names))])


def test_gradients_of_steps(rng):
    system = s4.system_of(make_param_config(rng, H=2, N=2))
    u, state = draw(rng, 2), draw(rng, 2, 2, dtype=torch.complex128)
    leaves = [x.detach().requires_grad_() for x in (*system, u, state)]

    def linear(dt, A, B, C, P, u, state):
        return s4.step_linear(s4.System(dt, A, B, C, P), C, u, state)

    def dense(dt, A, B, C, P, u, state):
        return s4.step_dense(s4.discretized(s4.System(dt, A, B, C, P)), C, u, s4.with_conjugates(state))

    assert torch.autograd.gradcheck(linear, leaves)
    assert torch.autograd.gradcheck(dense, leaves)


def test_kernels_of_length_zero(rng):
    system = s4.system_of(make_param_config(rng))
    state = draw(rng, 2, 3, 4, dtype=torch.complex128)
    k, k_state = s4.kernel_by_resolvent(system, 0, state=state)
    other, other_state = s4.kernel_by_recurrence(s4.discretized(system), system.C, 0, state)
    assert k.shape == other.shape == (2, 3, 0)
    assert k_state.shape == other_state.shape == (2, 2, 3, 0)
    assert s4.kernel_by_resolvent(system, 8, 0)[0].shape == (2, 3, 0)
    with pytest.raises(ValueError, match=r"kernel_by_resolvent: L: expected 0 … length=4, got 5"):
        s4.kernel_by_resolvent(system, 4, 5)


def test_c_cannot_be_recovered_with_an_undamped_root_of_unity(rng):
    """A = 0 gives Ā = 1: C̃ = C (1 − 1) has lost that component."""
    config = make_param_config(rng, rank=0, transform="none") | {"P": None}
    config["A_real"][1, 2] = config["A_imag"][1, 2] = 0
    system = s4.system_of(config)
    discrete = s4.discretized(system)
    C = s4.truncated_output(discrete, system.C, 8)
    assert not C[:, 1, 2].any()
    with pytest.raises(torch.linalg.LinAlgError):
        s4.original_output(discrete, C, 8)


def test_a_pole_of_the_discretization(rng):
    """dt A = 2: I − M/2 is singular."""
    config = make_param_config(rng, rank=0, transform="none") | {"P": None}
    config["A_real"][1, 2], config["A_imag"][1, 2], config["inv_dt"][1] = -4, 0, 0.5
    with pytest.raises(torch.linalg.LinAlgError):
        s4.discretized(s4.system_of(config))
