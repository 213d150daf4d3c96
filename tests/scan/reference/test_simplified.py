"""simplified_scan and s5_inner on CPU tensors: the definition as a loop, singular points, a sequence in two calls."""

from __future__ import annotations

import pytest
import simplified_oracle as oracle
import torch
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import s5_inner, simplified_scan

EVERY = pytest.mark.parametrize("name", oracle.NAMES)
FORMS = [(False, False, False), (True, False, True), (True, True, False), (False, True, True)]


@EVERY
@pytest.mark.parametrize("varying,with_a,with_state", FORMS)
@pytest.mark.parametrize("L", [0, 1, 7])
def test_values_and_last_state(name: str, varying: bool, with_a: bool, with_state: bool, L: int, seed: int) -> None:
    for dtype, bound in ((torch.complex64, 1e-6), (torch.complex128, 1e-13)):
        x = oracle.drawn(seed, 2, 3, 5, L, varying=varying, with_a=with_a, with_state=with_state, dtype=dtype)
        y, last = simplified_scan(**x, discretization=name, return_last_state=True)
        expected, expected_last = oracle.simplified_scan(**x, discretization=name)
        assert y.dtype == last.dtype == dtype
        assert rel_rms(y, expected) < bound and rel_rms(last, expected_last) < bound
        alone = simplified_scan(**x | {"A": x["A"][:, None]}, discretization=name)
        assert isinstance(alone, Tensor) and torch.equal(alone, y)


@EVERY
@pytest.mark.parametrize("varying,with_a,with_state", FORMS)
def test_gradients_equal_finite_differences(name: str, varying: bool, with_a: bool, with_state: bool, seed: int) -> None:
    """In fp64, with a step size of 0, and A at 0, near 0, and where the series ends."""
    x = oracle.drawn(seed, 2, 2, 4, 3, varying=varying, with_a=with_a, with_state=with_state, dtype=torch.complex128)
    x["A"][:3] = torch.tensor([0, 1e-9 - 1e-9j, 0.05 / 0.2j])
    x["delta"][..., 1:3] = x["delta"].new_tensor([0, 0.2])
    leaves = {key: value.requires_grad_() for key, value in x.items()}

    def both(*given: Tensor) -> tuple[Tensor, Tensor]:
        return simplified_scan(**dict(zip(leaves, given, strict=True)), discretization=name, return_last_state=True)

    assert torch.autograd.gradcheck(both, tuple(leaves.values()))


@pytest.mark.parametrize("conj_sym", [True, False])
def test_s5_inner_is_real_and_adds_the_input(conj_sym: bool, seed: int) -> None:
    x = oracle.drawn(seed, 2, 3, 5, 6, varying=True, dtype=torch.complex128)
    D = torch.randn(3, dtype=torch.float64)
    y = s5_inner(**x, D=D, discretization="zoh", conj_sym=conj_sym)
    expected = (2 if conj_sym else 1) * oracle.simplified_scan(**x, discretization="zoh")[0].real + D[:, None] * x["u"].real
    assert y.dtype == torch.float64 and rel_rms(y, expected) < 1e-13
    leaves = [z.requires_grad_() for z in (*x.values(), D)]
    assert torch.autograd.gradcheck(lambda *z: s5_inner(*z, discretization="zoh", conj_sym=conj_sym), leaves)


@EVERY
@pytest.mark.parametrize("varying", [False, True])
def test_a_sequence_in_two_calls_equals_one_call(name: str, varying: bool, seed: int) -> None:
    """Gradients flow through the state between the calls."""
    x = oracle.drawn(seed, 2, 3, 5, 9, varying=varying, with_state=True, dtype=torch.complex128)
    leaves = [z.requires_grad_() for z in x.values()]
    whole = simplified_scan(**x, discretization=name, return_last_state=True)
    parts, state = [], x["initial_state"]
    for tokens in (slice(0, 4), slice(4, 4), slice(4, 9)):
        some = x | {"u": x["u"][..., tokens], "initial_state": state}
        if varying:
            some["delta"] = x["delta"][..., tokens]
        y, state = simplified_scan(**some, discretization=name, return_last_state=True)
        parts.append(y)
    torch.testing.assert_close((torch.cat(parts, -1), state), whole)
    loss = lambda y, last: (y.abs() ** 2).sum() + (last * last.abs()).real.sum()  # noqa: E731
    found, expected = (torch.autograd.grad(loss(*each), leaves) for each in ((torch.cat(parts, -1), state), whole))
    torch.testing.assert_close(found, expected)


@EVERY
def test_long_memory_and_fast_phases(name: str, seed: int) -> None:
    """Decays of 1e-7 to 1e-6 a step and phases of up to 1e6 rad a step, in complex64."""
    L = 2000
    x = oracle.drawn(seed, 1, 1, 4, L, varying=False)
    x["A"] = torch.tensor([-1e-7, -1e-6 + 1e4j, -1e-7 + 3j, -1e3 - 1e4j], dtype=torch.complex64)
    x["delta"] = torch.ones(4)
    for step in (1.0, 100.0):
        x["delta"].fill_(step)
        assert rel_rms(simplified_scan(**x, discretization=name), oracle.simplified_scan(**x, discretization=name)[0]) < 1e-6


def test_infinities_and_nans_stay_in_their_row(seed: int) -> None:
    x = oracle.drawn(seed, 2, 2, 3, 5, varying=True)
    x["B"], x["C"] = torch.eye(3)[:, :2].cfloat(), torch.eye(3)[:2].cfloat()
    clean = simplified_scan(**x)
    for bad in (torch.inf, torch.nan):
        u = x["u"].clone()
        u[0, 0, 2] = bad
        x["B"] = x["B"].clone()
        y, last = simplified_scan(**x | {"u": u}, return_last_state=True)
        assert torch.equal(y[1], clean[1]) and torch.isfinite(last[1]).all()


def test_a_row_of_zeros_stays_zero(seed: int) -> None:
    x = oracle.drawn(seed, 2, 3, 4, 6, varying=True)
    assert not simplified_scan(**x | {"u": torch.zeros_like(x["u"])}).any()
