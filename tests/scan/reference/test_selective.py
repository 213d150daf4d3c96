"""selective_scan on CPU tensors against the literal recurrence in fp64: values, gradients, singular points, long memories."""

from __future__ import annotations

from typing import Any

import oracle
import pytest
import torch
from oracle import DISCRETIZATIONS, REAL_ONLY, relative_rms
from selective_inputs import Draw, selective_inputs
from torch import Tensor

import gdn_cuda
from gdn_cuda.scan import discretizations, reference_selective

ROUNDING = 1e-6  # of fp32 inputs and results
CASES = [(name, False) for name in DISCRETIZATIONS] + [(name, True) for name in DISCRETIZATIONS if name not in REAL_ONLY]
EVERY_DISCRETIZATION = pytest.mark.parametrize("name, is_complex", CASES, ids=[f"{n}-complex" if c else n for n, c in CASES])
FORMS: dict[str, dict[str, Any]] = {
    "varying": {},
    "bare": {"bare": True},
    "B-constant": {"B": "constant", "groups": 2},
    "C-constant": {"C": "constant", "groups": 4, "last": True},
    "constant": {"B": "constant", "C": "constant", "length": 64},
    "one-token": {"length": 1, "dim": 1, "N": 1},
    "packed": {"batch": 1, "length": 133, "groups": 2, "cu_seqlens": [0, 0, 1, 64, 65, 130, 130]},
}


def ours(**x: Any) -> tuple[Tensor, Tensor]:
    return gdn_cuda.selective_scan(**x, return_last_state=True)


def check(x: dict[str, Any], seed: int, bound: float = ROUNDING) -> None:
    out, last = ours(**x)
    expected, expected_last = oracle.selective_scan(**x)
    assert out.dtype == x["u"].dtype and last.dtype == x["A"].dtype
    assert relative_rms(out, expected) < bound and relative_rms(last, expected_last) < bound
    draw = Draw(seed + 1)
    grads = draw.normal(*out.shape, dtype=out.dtype), draw.normal(*last.shape, dtype=last.dtype)
    wanted = oracle.gradients(oracle.selective_scan, x, *grads)
    for argument, found in oracle.gradients(ours, x, *grads).items():
        assert found.dtype == x[argument].dtype and relative_rms(found, wanted[argument]) < bound, argument


@EVERY_DISCRETIZATION
@pytest.mark.parametrize("form", FORMS)
def test_values_and_gradients(name: str, is_complex: bool, form: str, seed: int) -> None:
    check(selective_inputs(seed, name, is_complex=is_complex, **FORMS[form]), seed)


@pytest.mark.parametrize("name", sorted(set(DISCRETIZATIONS) - set(REAL_ONLY)))
@pytest.mark.parametrize("form", ["varying", "B-constant", "packed"])
def test_complex_coefficients_in_pairs(name: str, form: str, seed: int) -> None:
    check(selective_inputs(seed, name, is_complex=True, in_pairs=True, **FORMS[form]), seed)


@pytest.mark.parametrize("dtype, bound", [(torch.bfloat16, 4e-3), (torch.float16, 5e-4), (torch.float64, 1e-13)])
@pytest.mark.parametrize("wide_coefficients", [False, True])
def test_other_dtypes(dtype: torch.dtype, bound: float, wide_coefficients: bool, seed: int) -> None:
    check(selective_inputs(seed, dtype=dtype, wide_coefficients=wide_coefficients), seed, bound)


def test_a_batch_in_several_blocks(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(reference_selective, "_BLOCK", 2 * 4 * 3 * 64)
    check(selective_inputs(seed, batch=5), seed)


@pytest.mark.parametrize("rate", [1e-6, 1.0, 1e3])
def test_rates_from_memories_of_65536_tokens_to_none(rate: float, seed: int) -> None:
    length = 65536 if rate < 1 else 300
    x = selective_inputs(seed, batch=1, dim=2, N=2, length=length, bare=True)
    x["A"] = torch.full_like(x["A"], -rate)
    out, last = ours(**x)
    expected, expected_last = oracle.selective_scan(**x)
    assert relative_rms(out, expected) < ROUNDING and relative_rms(last, expected_last) < ROUNDING


@pytest.mark.parametrize("delta", [0.0, 100.0])
@pytest.mark.parametrize("name", sorted(set(DISCRETIZATIONS) - {"rglru"}))
def test_steps_of_0_and_100(name: str, delta: float, seed: int) -> None:
    x = selective_inputs(seed, name, bare=True)
    x["delta"] = torch.full_like(x["delta"], delta)
    check(x, seed)


def test_infinities_and_nans_stay_in_their_row(seed: int) -> None:
    x = selective_inputs(seed, batch=3, dim=3)
    clean, clean_last = ours(**x)
    for argument, value in (("u", torch.nan), ("delta", torch.nan), ("z", torch.inf)):
        spoilt = x | {argument: x[argument].clone()}
        spoilt[argument][1, 2, 40] = value
        out, last = ours(**spoilt)
        touched = torch.zeros(3, 3, 70, dtype=torch.bool)
        touched[1, 2, 40:] = True
        assert torch.equal(out[~touched], clean[~touched]), argument
        assert torch.equal(last[0], clean_last[0]) and torch.equal(last[1, :2], clean_last[1, :2])


# ---- Singular points, in fp64 by finite differences


def gradcheck(name: str, **given: Tensor) -> None:
    x = selective_inputs(0, name, batch=1, dim=2, N=2, length=3, dtype=torch.float64, bare=True) | given
    leaves = {k: v.requires_grad_() for k, v in x.items() if isinstance(v, Tensor)}

    def run(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return ours(discretization=name, **dict(zip(leaves, tensors, strict=True)))

    assert torch.autograd.gradcheck(run, tuple(leaves.values()))


def steps(value: float) -> Tensor:
    return torch.full((1, 2, 3), value, dtype=torch.float64)


def rates(value: complex) -> Tensor:
    return torch.full((2, 2), value, dtype=torch.complex128 if isinstance(value, complex) else torch.float64)


@pytest.mark.parametrize("name", DISCRETIZATIONS)
def test_gradients_where_the_step_is_0(name: str) -> None:
    if name == "rglru":  # a root of 0, whose derivative is infinite
        gradcheck(name, delta=steps(1e-4))
    else:
        gradcheck(name, delta=steps(0.0))
        if name != "s7":  # which takes no delta_a
            gradcheck(name, delta=steps(0.0), delta_a=steps(0.0))


@pytest.mark.parametrize("rate", [0.0, 1e-9, -1e-3, -0.049, -0.051, 1e-9j, 0.05j, 0.0 + 0.0j])
@pytest.mark.parametrize("name", sorted(set(DISCRETIZATIONS) - set(REAL_ONLY)))
def test_gradients_where_A_is_almost_0(name: str, rate: complex) -> None:
    if isinstance(rate, complex):
        constant = torch.randn(2, 2, 2, dtype=torch.complex128, generator=torch.Generator().manual_seed(1))
        gradcheck(name, A=rates(rate), delta=steps(1.0), B=constant[0], C=constant[1])
    else:
        gradcheck(name, A=rates(rate), delta=steps(1.0))


def test_gradients_where_the_decay_is_0() -> None:
    gradcheck("s7", delta=steps(2**-0.5))
    gradcheck("rglru", A=rates(1e-3), delta=steps(9.0))
    gradcheck("bilinear", A=rates(-2.0), delta=steps(1.0))


def test_gradients_where_the_decay_is_almost_1() -> None:
    gradcheck("rglru", A=rates(0.9999), delta=steps(0.01))
    gradcheck("mamba", A=rates(-1e-9), delta=steps(0.01))


@pytest.mark.parametrize("A, delta", [(0.0, 1.0), (0.0, 0.0), (1.0, 1.0), (0.5, 0.0), (1e-30, 30.0)])
def test_rglru_at_the_ends_of_its_range_is_finite(A: float, delta: float) -> None:
    x = selective_inputs(0, "rglru", bare=True)
    x["A"], x["delta"] = torch.full_like(x["A"], A), torch.full_like(x["delta"], delta)
    out, last = ours(**x)
    expected, expected_last = oracle.selective_scan(**x)
    assert relative_rms(out, expected) < ROUNDING and relative_rms(last, expected_last) < ROUNDING
    for found in oracle.gradients(ours, x, torch.ones_like(out), torch.ones_like(last)).values():
        assert bool(torch.isfinite(found).all())


@EVERY_DISCRETIZATION
def test_gradients_of_a_discretization_are_those_of_autograd(name: str, is_complex: bool, seed: int) -> None:
    draw = Draw(seed)
    delta, delta_a = (draw.uniform(5, 1, dtype=torch.float64, low=0.01).requires_grad_() for _ in range(2))
    A = draw.uniform(4, dtype=torch.float64, low=0.1, high=0.9)
    A = (torch.complex(-A, A.flip(0)) if is_complex else A if name == "rglru" else -A).requires_grad_()
    decay, factor = discretizations.TRANSITIONS[name](delta, delta_a, A)
    grads = [draw.normal(*decay.shape, dtype=decay.dtype), draw.normal(*factor.shape, dtype=factor.dtype)]
    leaves = [delta, delta_a, A]
    wanted = torch.autograd.grad([decay, factor + 0 * delta], leaves, grads, allow_unused=True, materialize_grads=True)
    with torch.no_grad():
        found = discretizations.GRADIENTS[name](delta, delta_a, A, decay, *grads)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.shape == theirs.shape and relative_rms(mine, theirs) < 1e-12
