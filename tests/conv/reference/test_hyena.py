"""The references of Hyena's operators against their definitions in fp64: values, states between calls, gradients."""

from __future__ import annotations

from itertools import product
from typing import Any

import hyena_oracle as oracle
import pytest
import torch
from helpers import rel_rms
from hyena_cases import fir_parameters, gated_inputs, mask, modal_parameters
from torch import Tensor

from gdn_cuda.conv import reference_hyena as reference

LENGTHS = [1, 2, 127, 128, 129]
GROUPS = [1, 4, 8]
TAPS = [1, 2, 3, 7, 32, 128, 129, 1024]
D = 8
BOUNDS = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 3e-3, torch.float16: 5e-4}


def agrees(found: tuple[Tensor, Tensor], expected: Any, dtype: torch.dtype) -> None:
    y, state = found
    kept = torch.float64 if dtype == torch.float64 else torch.float32
    assert y.dtype == dtype and state.dtype == kept
    assert rel_rms(y, torch.from_numpy(expected[0])) < BOUNDS[dtype]
    assert rel_rms(state, torch.from_numpy(expected[1])) < BOUNDS[kept]


@pytest.mark.parametrize("K", TAPS)
@pytest.mark.parametrize("L", LENGTHS)
def test_short_and_medium_filters(K: int, L: int, seed: int) -> None:
    for groups, options in zip(GROUPS, (False, True, True), strict=True):
        x = gated_inputs(2, D, L, seed)
        weight, bias = fir_parameters(groups, D, K, seed)
        state = torch.randn(2, D, K - 1, dtype=torch.float64) if options else None
        masked = mask(2, L, seed) if options else None
        given = (weight, bias if options else None, False, masked, state)
        agrees(reference.short(*x, *given), oracle.short(*x, *given), v64)
        given = (weight, bias, True, masked, state)
        agrees(reference.short(*x, *given), oracle.short(*x, *given), v64)
        given = (weight, bias, masked, state)
        agrees(reference.medium(*x, *given), oracle.medium(*x, *given), v64)


v64 = torch.float64


@pytest.mark.parametrize("S", [1, 3, 16, 64])
@pytest.mark.parametrize("L", [*LENGTHS, 63, 64, 65, 300])
def test_long_filters(S: int, L: int, seed: int) -> None:
    for groups, with_state in product(GROUPS, (False, True)):
        x = gated_inputs(2, D, L, seed)
        parameters = modal_parameters(groups, D, S, seed)
        state = torch.randn(2, D, S, dtype=torch.float64) if with_state else None
        expected = oracle.long(*x, *parameters, state)
        agrees(reference.long(*x, *parameters, state), expected, v64)
        if not with_state:
            assert rel_rms(torch.from_numpy(oracle.long_by_filter(*x, *parameters)), torch.from_numpy(expected[0])) < 1e-13


@pytest.mark.parametrize("log_pole", [0.0, -1e-6, -1e-3, -1.0, -50.0, -1000.0, -torch.inf])
def test_one_pole_at_the_limits_of_its_range(log_pole: float, seed: int) -> None:
    x = gated_inputs(1, 2, 500, seed)
    parameters = (torch.ones(2, 1, dtype=v64), torch.full((2, 1), log_pole, dtype=v64), torch.zeros(2, dtype=v64))
    agrees(reference.long(*x, *parameters, None), oracle.long(*x, *parameters), v64)
    h = reference.modal_filter(*parameters[:2], 500)
    expected = torch.exp(torch.tensor(log_pole, dtype=v64)) ** torch.arange(500)
    assert rel_rms(h, expected.expand(2, 500)) < 1e-12


@pytest.mark.parametrize("L", [0, *LENGTHS, 1000])
def test_filters(L: int, seed: int) -> None:
    residues, log_poles, _ = modal_parameters(3, 3, 16, seed)
    found = reference.modal_filter(residues, log_poles, L)
    assert found.shape == (3, L)
    assert rel_rms(found, torch.from_numpy(oracle.filter_of(residues, log_poles, L))) < 1e-13


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_arithmetic_is_more_precise_than_the_results_dtype(dtype: torch.dtype, seed: int) -> None:
    x = gated_inputs(2, D, 300, seed, dtype)
    for weight_dtype in {dtype, torch.float32}:
        weight, bias = fir_parameters(4, D, 128, seed, weight_dtype)
        given = (weight, bias, mask(2, 300, seed), None)
        agrees(reference.medium(*x, *given), oracle.medium(*x, *given), dtype)
        weight, bias = fir_parameters(D, D, 7, seed, weight_dtype)
        agrees(reference.short(*x, weight, bias, False, None, None), oracle.short(*x, weight, bias), dtype)
    parameters = modal_parameters(D, D, 16, seed, torch.float32)
    agrees(reference.long(*x, *parameters, None), oracle.long(*x, *parameters), dtype)


def test_a_slow_pole_does_not_drift(seed: int) -> None:
    """e^−1e−6 in fp32 has an error of 6e−8 a token, which grows to 2e−3 in 30,000 tokens."""
    L = 30_000
    x1, x2, v = gated_inputs(1, 1, L, seed, torch.float32)
    x1, v = x1.abs(), v.abs()
    residues, logs, bias = torch.ones(1, 1), torch.full((1, 1), -1e-6), torch.zeros(1)
    agrees(reference.long(x1, x2, v, residues, logs, bias, None), oracle.long(x1, x2, v, residues, logs, bias), torch.float32)


@pytest.mark.parametrize("K", [1, 3, 7, 128])
@pytest.mark.parametrize("split", [0, 1, 5, 100])
def test_calls_in_parts_equal_one_call(K: int, split: int, seed: int) -> None:
    """n tokens, then m, then single steps equal all tokens at once. States of prompts shorter than K − 1 begin with zeros."""
    L, singles = 150, 4
    x = gated_inputs(2, D, L, seed)
    weight, bias = fir_parameters(4, D, K, seed)
    modal = modal_parameters(4, D, 16, seed)
    for run, step in (
        (
            lambda x1, x2, v, state: reference.short(x1, x2, v, weight, bias, False, None, state),
            lambda x1, x2, v, state: gated(x2, oracle.fir_step(x1 * v, state, weight, bias)),
        ),
        (
            lambda x1, x2, v, state: reference.medium(x1, x2, v, weight, bias, None, state),
            lambda x1, x2, v, state: gated(x2, oracle.fir_step(x1 * v, state, weight, bias, True, True)),
        ),
        (
            lambda x1, x2, v, state: reference.long(x1, x2, v, *modal, state),
            lambda x1, x2, v, state: oracle.modal_step(x2, x1, v, modal[2], *modal[:2], state),
        ),
    ):
        expected, last = run(*x, None)
        parts, state = [], None
        for start, end in ((0, split), (split, L - singles)):
            y, state = run(*(part[..., start:end] for part in x), state)
            parts.append(y)
        for t in range(L - singles, L):
            single, after = step(*(part[..., t] for part in x), state)
            parts.append(torch.from_numpy(single)[..., None])
            state = torch.from_numpy(after.copy())
        assert rel_rms(torch.cat(parts, -1), expected) < 1e-13 and rel_rms(state, last) < 1e-13


def gated(x2: Tensor, result: Any) -> Any:
    return oracle.wide(x2) * result[0], result[1]


@pytest.mark.parametrize("shape", [(0, 4, 9), (2, 0, 9), (2, 4, 0)])
def test_empty_tensors(shape: tuple[int, int, int]) -> None:
    B, channels, L = shape
    x = tuple(torch.ones(shape) for _ in range(3))
    bias = torch.ones(channels)
    weight = torch.ones(channels, 1, 5)
    state = torch.full((B, channels, 4), 2.0)
    for y, after in (
        reference.short(*x, weight, bias, False, None, state),
        reference.medium(*x, weight, bias, None, state),
        reference.long(*x, weight[:, 0, :4], -weight[:, 0, :4], bias, state),
    ):
        assert y.shape == shape and after.shape == state.shape and (L > 0 or torch.equal(after, state))


def test_gradients(seed: int) -> None:
    x = gated_inputs(2, 4, 67, seed)
    weight, bias = fir_parameters(2, 4, 5, seed)
    modal = modal_parameters(2, 4, 3, seed)
    state = torch.randn(2, 4, 4, dtype=v64)
    masked = mask(2, 67, seed)

    def check(function: Any, *inputs: Tensor) -> None:
        assert torch.autograd.gradcheck(function, [y.detach().clone().requires_grad_() for y in inputs], fast_mode=True)

    check(lambda x1, x2, v, w, b, s: reference.short(x1, x2, v, w, b, False, masked, s), *x, weight, bias, state)
    check(lambda x1, x2, v, w, b, s: reference.medium(x1, x2, v, w, b, masked, s), *x, weight, bias, state)
    check(reference.long, *x, *modal, state[..., :3])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_later_tokens_do_not_affect_earlier_ones(bad: float, seed: int) -> None:
    x = gated_inputs(1, 4, 200, seed)
    weight, bias = fir_parameters(2, 4, 128, seed)
    modal = modal_parameters(2, 4, 3, seed)
    for run in (
        lambda: reference.short(*x, weight, bias, False, None, None)[0],
        lambda: reference.medium(*x, weight, bias, None, None)[0],
        lambda: reference.long(*x, *modal, None)[0],
    ):
        x[2][0, 1, 70] = 1
        clean = run()
        x[2][0, 1, 70] = bad
        y = run()
        assert torch.equal(y[0, 1, :70], clean[0, 1, :70]) and not y[0, 1, 70].isfinite()
        assert torch.equal(y[0, [0, 2, 3]], clean[0, [0, 2, 3]])
