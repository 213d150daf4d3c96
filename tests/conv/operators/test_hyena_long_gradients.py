"""Gradients of hyena_long on CPU tensors: its adjoint in fp64, refusals of wrong gradients, and of higher derivatives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hyena_fir_checks import LAYOUTS
from hyena_long_gradients import check_long_gradients

from gdn_cuda import hyena_long


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("L", [0, 1, 5, 140])
def test_definition(dtype: torch.dtype, layout: str, L: int, seed: int) -> None:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    for S in (1, 16):
        state = torch.randn(2, 6, S, generator=torch.Generator().manual_seed(seed), dtype=wide)
        check_long_gradients(2, 6, L, S, seed, dtype, layout, groups=2)
        check_long_gradients(2, 6, L, S, seed, dtype, layout, groups=3, initial_state=state)


def given() -> list[torch.Tensor]:
    x = [torch.ones(2, 6, 10) for _ in range(3)] + [torch.ones(3, 5), -torch.ones(3, 5, 1)[..., 0], torch.ones(6)]
    return [y.requires_grad_() for y in x]


def test_log_poles_with_a_last_dimension_of_one_have_gradients_of_that_shape() -> None:
    x = given()
    x[4] = x[4].detach()[..., None].requires_grad_()
    (gradient,) = torch.autograd.grad(hyena_long(*x).sum(), x[4])
    (same,) = torch.autograd.grad(hyena_long(*given()[:4], x[4].detach()[..., 0].requires_grad_(), x[5]).sum(), x[5])
    assert gradient.shape == (3, 5, 1) and same.shape == (6,)


WRONG: list[tuple[str, Any, str]] = [
    ("grad", torch.ones(2, 6, 9), r"\(B, D, L\) .*got \(2, 6, 9\)"),
    ("grad", torch.ones(2, 6, 10).half(), "float32, got float16"),
    ("grad_state", torch.ones(2, 6, 4), r"\(B, D, S\) .*got \(2, 6, 4\)"),
    ("grad_state", torch.ones(2, 6, 5).bfloat16(), "float32, got bfloat16"),
]


@pytest.mark.parametrize("argument, wrong, got", WRONG)
def test_wrong_gradients_are_refused_by_name(argument: str, wrong: Any, got: str) -> None:
    grads = {"grad": torch.ones(2, 6, 10), "grad_state": torch.ones(2, 6, 5)} | {argument: wrong}
    with pytest.raises(ValueError, match=rf"^hyena_long_backward: {argument}: expected .*{got}"):
        torch.ops.gdn_cuda.hyena_long_backward(*grads.values(), *(x.detach() for x in given()), None)


def test_gradients_of_gradients_and_forward_mode_are_refused() -> None:
    x = given()
    (dx1,) = torch.autograd.grad(hyena_long(*x).sum(), x[0], create_graph=True)
    with pytest.raises(RuntimeError, match=r"^hyena_long: gradients of gradients are not computed"):
        torch.autograd.grad(dx1.sum(), x[1])
    with pytest.raises(RuntimeError, match=r"^hyena_long: forward-mode derivatives are not computed"):
        torch.func.jvp(lambda x1: hyena_long(x1, *(y.detach() for y in x[1:])), (x[0].detach(),), (x[0].detach(),))


def test_inference_mode() -> None:
    with torch.inference_mode():
        y = hyena_long(*given())
    assert y.shape == (2, 6, 10) and not y.requires_grad
