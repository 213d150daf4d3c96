"""s7_scan on CPU tensors against its definition in fp64: values, gradients, singular points."""

from __future__ import annotations

import gated_oracle as oracle
import pytest
import torch
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import s7_scan


def inputs(b: int, H: int, N: int, L: int, seed: int, dtype: torch.dtype = torch.float64, bias: bool = True) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    shapes = [(b, H, L), (b, N, L), (b, N, H, L), (b, H, N, L), *([(b, N, L)] if bias else [])]
    return [torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype) for shape in shapes]


@pytest.mark.parametrize("b, H, N, L", [(2, 3, 4, 9), (1, 1, 1, 1), (1, 2, 7, 5), (2, 3, 2, 0), (0, 3, 2, 4)])
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients(b: int, H: int, N: int, L: int, bias: bool, seed: int) -> None:
    given = [x.requires_grad_() for x in inputs(b, H, N, L, seed, bias=bias)]
    out, last = s7_scan(*given, return_last_state=True)
    expected, expected_last = oracle.s7(*given)
    assert rel_rms(out, expected) < 1e-13 and rel_rms(last, expected_last) < 1e-13
    if L == 0:
        return
    grads = torch.randn(out.shape, dtype=out.dtype), torch.randn(last.shape, dtype=last.dtype)
    ours = torch.autograd.grad((out, last), given, grads)
    theirs = torch.autograd.grad((expected, expected_last), given, grads)
    for mine, other in zip(ours, theirs, strict=True):
        assert rel_rms(mine, other) < 1e-12


@pytest.mark.parametrize("A", [0.0, 2**-0.5, 1e3])
def test_gradcheck_where_the_decay_is_minus_one_zero_and_near_one(A: float, seed: int) -> None:
    given = inputs(1, 2, 2, 4, seed)
    given[1].fill_(A)
    assert torch.autograd.gradcheck(lambda *x: s7_scan(*x, True), [x.requires_grad_() for x in given])


def test_reduced_precision_rounds_the_output_only(seed: int) -> None:
    for dtype, bound in ((torch.bfloat16, 4e-3), (torch.float16, 5e-4), (torch.float32, 1e-6)):
        given = inputs(2, 3, 4, 9, seed, dtype)
        out, last = s7_scan(*given, return_last_state=True)
        expected, expected_last = oracle.s7(*given)
        assert out.dtype == dtype and last.dtype == torch.float32
        assert rel_rms(out, expected) < bound and rel_rms(last, expected_last) < 1e-6
