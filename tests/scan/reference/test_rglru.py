"""rglru_scan on CPU tensors against its definition in fp64: values, gradients, packed sequences, resets, singular points."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import gated_oracle as oracle
import pytest
import torch
from helpers import rel_rms
from rglru_cases import Inputs, inputs
from torch import Tensor

from gdn_cuda import rglru_scan

OPTIONS: list[dict[str, Any]] = [
    {},
    {"first_multiplier": True},
    {"initial": True, "resets": True},
    {"initial": True, "resets": True, "first_multiplier": True, "channels_last": True},
    {"packed": [0, 4, 4, 9]},
    {"packed": [0, 0, 4, 9, 11], "initial": True, "resets": True, "first_multiplier": True},
    {"packed": [0, 3, 7], "initial": True},
]


def oracle_of(x: Inputs) -> tuple[Tensor, Tensor]:
    return oracle.rglru(x.u, x.delta, x.A, **x.options)


def covered(x: Inputs) -> int:
    """Tokens that belong to a sequence; the output of later ones is undefined."""
    offsets = x.options.get("cu_seqlens")
    return x.u.shape[2] if offsets is None else int(offsets[-1])


@pytest.mark.parametrize("form", OPTIONS, ids=str)
@pytest.mark.parametrize("N", [1, 7])
def test_values_and_gradients(form: dict[str, Any], N: int, seed: int) -> None:
    x = inputs(1 if "packed" in form else 2, 3, 11, N, seed, dtype=torch.float64, **form)
    for leaf in x.leaves():
        leaf.requires_grad_()
    out, last = rglru_scan(x.u, x.delta, x.A, True, **x.options)
    assert out.stride() == x.u.stride() and last.dtype == torch.float64
    expected, expected_last = oracle_of(x)
    out = out[..., : covered(x)]
    assert rel_rms(out, expected) < 1e-13 and rel_rms(last, expected_last) < 1e-13
    grads = torch.randn(out.shape, dtype=out.dtype), torch.randn(last.shape, dtype=last.dtype)
    ours = torch.autograd.grad((out, last), x.leaves(), grads)
    theirs = torch.autograd.grad((expected, expected_last), x.leaves(), grads)
    for mine, other in zip(ours, theirs, strict=True):
        assert rel_rms(mine, other) < 1e-11


@pytest.mark.parametrize("L", [0, 1])
@pytest.mark.parametrize("initial", [False, True])
def test_short_sequences(L: int, initial: bool, seed: int) -> None:
    x = inputs(2, 3, L, 2, seed, initial=initial)
    out, last = rglru_scan(x.u, x.delta, x.A, True, **x.options)
    expected, expected_last = oracle_of(x)
    assert out.shape == (2, 3, L) and rel_rms(out, expected) < 1e-6 and rel_rms(last, expected_last) < 1e-6


def test_empty_batches() -> None:
    out, last = rglru_scan(torch.ones(0, 3, 5), torch.ones(0, 3, 5), torch.full((3, 2), 0.5), True)
    assert out.shape == (0, 3, 5) and last.shape == (0, 3, 2)


@pytest.mark.parametrize("form", OPTIONS[:4], ids=str)
def test_gradcheck(form: dict[str, Any], seed: int) -> None:
    x = inputs(2, 2, 4, 2, seed, dtype=torch.float64, **form)
    options = {name: value for name, value in x.options.items() if name != "initial_state"}
    leaves = [leaf.requires_grad_() for leaf in x.leaves()]

    def run(u: Tensor, delta: Tensor, A: Tensor, initial_state: Tensor | None = None) -> Any:
        return rglru_scan(u, delta, A, True, initial_state=initial_state, **options)

    assert torch.autograd.gradcheck(run, leaves)


def test_delta_of_0_keeps_the_state() -> None:
    """delta = 0: the state stays, the input is ignored, and the infinite derivative of the root counts as 0."""
    u, delta = torch.ones(1, 1, 2, dtype=torch.float64), torch.tensor([[[1.0, 0.0]]], dtype=torch.float64)
    A = torch.tensor([[0.5, 0.0]], dtype=torch.float64)
    leaves = [x.requires_grad_() for x in (u, delta, A)]
    out = rglru_scan(*leaves)
    assert torch.equal(out[0, 0, 0], out[0, 0, 1])
    grads = torch.autograd.grad(out.sum(), leaves)
    assert all(bool(x.isfinite().all()) for x in grads) and grads[0][0, 0, 1] == 0 and grads[2][0, 1] == 0


@pytest.mark.parametrize("bound", [3.0, 1000.0])
def test_the_derivative_of_the_root_is_bounded(bound: float, seed: int) -> None:
    """As RecurrentGemma bounds it: g / √max(4 (1 − a²), 1 / bound²)."""

    class Bounded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sqrt()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad / (4 * ctx.saved_tensors[0]).clip(min=bound**-2).sqrt()

    x = inputs(1, 2, 5, 1, seed, dtype=torch.float64)
    x.delta[0, 0, 2], x.delta[0, 1, 1] = 0, 1e-9
    leaves = [leaf.requires_grad_() for leaf in x.leaves()]
    state, expected = torch.zeros(2, dtype=torch.float64), []
    for t in range(5):
        log = x.delta[0, :, t] * x.A[:, 0].log()
        state = log.exp() * state + Bounded.apply(-torch.expm1(2 * log)) * x.u[0, :, t]
        expected.append(state)
    out = rglru_scan(*leaves, max_sqrt_gradient=bound)
    grad = torch.randn(out.shape, dtype=out.dtype)
    ours = torch.autograd.grad(out, leaves, grad)
    theirs = torch.autograd.grad(torch.stack(expected, -1)[None], leaves, grad)
    for mine, other in zip(ours, theirs, strict=True):
        assert rel_rms(mine, other) < 1e-12


def test_packed_sequences_equal_separate_calls(seed: int) -> None:
    offsets = [0, 4, 4, 9, 10]
    x = inputs(1, 3, 10, 2, seed, packed=offsets, initial=True, first_multiplier=True)
    out, last = rglru_scan(x.u, x.delta, x.A, True, **x.options)
    for i, (start, end) in enumerate(pairwise(offsets)):
        alone, alone_last = rglru_scan(
            *(y[..., start:end] for y in (x.u, x.delta)), x.A, True, initial_state=x.options["initial_state"][i : i + 1]
        )
        assert torch.equal(out[..., start:end], alone) and torch.equal(last[i : i + 1], alone_last)


def test_a_sequence_in_two_calls_equals_one_call(seed: int) -> None:
    x = inputs(2, 3, 10, 2, seed, first_multiplier=True)
    out, last = rglru_scan(x.u, x.delta, x.A, True, **x.options)
    first, state = rglru_scan(x.u[..., :6], x.delta[..., :6], x.A, True, **x.options)
    second, end = rglru_scan(x.u[..., 6:], x.delta[..., 6:], x.A, True, initial_state=state, **x.options)
    assert torch.equal(first, out[..., :6])
    assert rel_rms(second, out[..., 6:]) < 1e-7 and rel_rms(end, last) < 1e-7  # the state between them is rounded to fp32


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_resets_stop_infinities_and_nans(bad: float, seed: int) -> None:
    x = inputs(1, 2, 8, 2, seed, packed=[0, 5, 8], initial=True)
    x.options["reset"] = torch.zeros(1, 8, dtype=torch.int64).index_fill_(1, torch.tensor(2), 1)
    leaves = [leaf.requires_grad_() for leaf in x.leaves()]
    clean = rglru_scan(*leaves[:3], **x.options)
    x.u.data[0, 0, 1] = bad
    out = rglru_scan(*leaves[:3], **x.options)
    assert not out[0, 0, 1].isfinite() and torch.equal(out[0, 0, 2:], clean[0, 0, 2:]) and torch.equal(out[0, 1], clean[0, 1])


def test_reduced_precision_rounds_the_output_only(seed: int) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        x = inputs(2, 3, 9, 2, seed, dtype=dtype)
        out, last = rglru_scan(x.u, x.delta, x.A, True)
        expected, expected_last = oracle_of(x)
        assert out.dtype == dtype and last.dtype == torch.float32
        assert rel_rms(out, expected) < (4e-3 if dtype == torch.bfloat16 else 5e-4) and rel_rms(last, expected_last) < 1e-6
