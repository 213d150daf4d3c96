"""LRU and S5 on CPU tensors: their formulas as loops, their initialisation, steps against sequences, checkpoints, errors."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import simplified_oracle as oracle
import torch
from helpers import rel_rms
from torch import Tensor

from gdn_cuda.nn import LRU, S5
from gdn_cuda.nn.s5 import diagonalized_hippo

H, BATCH, L = 3, 2, 11
LAYERS: dict[str, tuple[type, dict[str, Any]]] = {
    "lru": (LRU, {"d_state": 5, "r_min": 0.9, "r_max": 0.999}),
    "s5": (S5, {"d_state": 8, "blocks": 2}),
    "s5 bilinear": (S5, {"d_state": 6, "discretization": "bilinear", "conj_sym": False, "clip_eigs": True}),
    "s5 dirac": (S5, {"d_state": 6, "discretization": "dirac", "step_rescale": 0.5}),
}
EVERY = pytest.mark.parametrize("name", LAYERS)


def layer_of(name: str, seed: int) -> Any:
    make, more = LAYERS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(H, **more)


def inputs(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def expected_of(layer: Any, u: Tensor) -> Tensor:
    """The papers' formulas, token by token in complex128."""
    C, B, u = (torch.view_as_complex(layer.C.double()), torch.view_as_complex(layer.B.double()), u.double())
    if isinstance(layer, LRU):
        decay = torch.exp(torch.complex(-torch.exp(layer.nu_log.double()), torch.exp(layer.theta_log.double())))
        factor = torch.exp(layer.gamma_log.double())
        weight = 1
    else:
        step = layer.step_rescale * torch.exp(layer.log_step.double())
        A = torch.view_as_complex(layer.A.double())
        decay, factor = oracle.transition(layer.discretization, step, step, A)
        weight = 2 if layer.conj_sym else 1
    x, y = torch.zeros(len(u), layer.states, dtype=torch.complex128), []
    for t in range(u.shape[1]):
        x = decay * x + factor * (u[:, t].to(x.dtype) @ B.T)
        y.append(weight * (x @ C.T).real + layer.D.double() * u[:, t])
    return torch.stack(y, 1)


@EVERY
def test_outputs_equal_the_formula(name: str, seed: int) -> None:
    layer, u = layer_of(name, seed), inputs(seed, BATCH, L, H)
    y = layer(u)
    assert y.dtype == u.dtype and rel_rms(y, expected_of(layer, u)) < 1e-6
    assert layer(u.bfloat16()).dtype == torch.bfloat16
    wide = copy.deepcopy(layer).double()
    assert rel_rms(wide(u.double()), expected_of(layer, u)) < 1e-6
    assert layer(u[:, :0]).shape == (BATCH, 0, H)


@EVERY
def test_steps_equal_a_sequence(name: str, seed: int) -> None:
    layer, u = layer_of(name, seed), inputs(seed, BATCH, L, H)
    y, last = layer(u, return_last_state=True)
    state = layer.default_state(BATCH)
    stepped = []
    for t in range(L):
        out, state = layer.step(u[:, t], state)
        stepped.append(out)
    assert rel_rms(torch.stack(stepped, 1), y) < 1e-6 and rel_rms(state, last) < 1e-6
    later, _ = layer(u[:, 4:], layer(u[:, :4], return_last_state=True)[1], return_last_state=True)
    assert rel_rms(later, y[:, 4:]) < 1e-6


@EVERY
def test_every_parameter_learns_and_is_saved(name: str, seed: int) -> None:
    layer, u = layer_of(name, seed), inputs(seed, BATCH, L, H)
    layer(u).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters())
    other = layer_of(name, seed + 1)
    assert not torch.equal(other(u), layer(u))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(u), layer(u))


@EVERY
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(name: str, dtype: torch.dtype, seed: int) -> None:
    """Inputs, results and D have 16 bits; phases and decays do not, as 8 bits do not hold them."""
    make, more = LAYERS[name]
    made, converted = make(H, dtype=dtype, **more), layer_of(name, seed)
    u = inputs(seed, BATCH, 200, H)
    expected = expected_of(converted, u)
    converted.to(dtype)
    recurrence = torch.float64 if dtype == torch.float64 else torch.float32
    for layer in (made, converted):
        assert {p.dtype for name, p in layer.named_parameters() if name != "D"} == {recurrence}
        assert layer.D.dtype == dtype
    y, state = converted(u.to(dtype), return_last_state=True)
    assert y.dtype == dtype and state.dtype == converted.default_state(2).dtype
    assert state.dtype == (torch.complex128 if dtype == torch.float64 else torch.complex64)
    assert rel_rms(y, expected) < {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float64: 1e-6}[dtype]


def test_lrus_initial_poles_are_in_the_ring(seed: int) -> None:
    torch.manual_seed(seed)
    layer = LRU(2, 4000, r_min=0.4, r_max=0.8, max_phase=math.pi / 10)
    A = layer.system()["A"]
    radius = torch.exp(A.real)
    assert 0.4 <= radius.min() < 0.42 and 0.78 < radius.max() <= 0.8 + 1e-6
    # Uniform in the ring's area: the square of the radius is uniform.
    assert abs((radius**2).mean() - (0.4**2 + 0.8**2) / 2) < 0.01
    assert A.imag.min() >= 0 and A.imag.max() <= math.pi / 10 + 1e-6
    assert rel_rms(torch.exp(layer.gamma_log), torch.sqrt(1 - radius**2)) < 1e-5
    state = layer(torch.randn(40, 20, 2), return_last_state=True)[1]
    assert 0.8 < state.abs().square().mean() < 1.25, "γ keeps the state's size"


def test_s5s_initial_poles_are_those_of_hippo(seed: int) -> None:
    values, vectors = diagonalized_hippo(16)
    n = torch.arange(16, dtype=torch.float64)
    hippo = torch.zeros(16, 16, dtype=torch.float64)
    for i in range(16):
        hippo[i, i] = -(i + 1)
        for k in range(i):
            hippo[i, k] = -math.sqrt((2 * i + 1) * (2 * k + 1))
    rank_one = torch.outer(torch.sqrt(n + 0.5), torch.sqrt(n + 0.5)).to(torch.complex128)
    found = vectors @ torch.diag(values) @ vectors.mH - rank_one
    assert rel_rms(found, hippo.to(found.dtype)) < 1e-12
    torch.manual_seed(seed)
    layer = S5(4, 32, blocks=2, dt_min=0.01, dt_max=0.02)
    A = layer.system()["A"]
    assert torch.allclose(A, values[:8].repeat(2).to(A.dtype), rtol=1e-6), "one of each conjugate pair, in every block"
    step = layer.system()["delta"]
    assert step.min() >= 0.01 and step.max() <= 0.02
    assert layer.B.shape == (16, 4, 2) and layer.C.shape == (4, 16, 2)


@pytest.mark.parametrize(
    "make,message",
    [
        (lambda: LRU(2, 0), "LRU: d_state: expected a positive integer, got 0"),
        (lambda: LRU(2, 4, r_min=0.9, r_max=0.9), "LRU: r_min, r_max: expected 0 ≤ r_min < r_max ≤ 1, got 0.9 and 0.9"),
        (lambda: LRU(2, 4, max_phase=0), "LRU: max_phase: expected a positive number, got 0"),
        (lambda: S5(2, 6, blocks=2), "S5: blocks: expected a divisor of d_state=6 into blocks of an even size, got 2"),
        (lambda: S5(2, 4, discretization="mamba"), r"S5: discretization: expected one of \('bilinear', .*, got 'mamba'"),
        (lambda: S5(2, 4, dt_min=0), "S5: dt_min, dt_max: expected 0 < dt_min ≤ dt_max, got 0 and 0.1"),
        (lambda: LRU(2, 4)(torch.ones(1, 3, 5)), r"LRU: u: expected \(batch, L, d_model\) with a last dimension of 2, got"),
        (lambda: S5(2, 4).step(torch.ones(1, 2), torch.ones(1, 4)), r"S5: state: expected .* dimension of 2, got \(1, 4\)"),
    ],
)
def test_errors_name_argument_expected_and_got(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        make()
