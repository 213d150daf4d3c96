"""hyena_medium's kernels and those of its gradients on the GPU; long rows, strides past 2³¹, bits of two calls."""

from __future__ import annotations

import pytest
import torch
from helpers import rel_rms
from hyena_cases import fir_parameters, gated_inputs
from hyena_fir_checks import laid_out
from hyena_medium_checks import BOUND, SUM_BOUND, check_medium_gradients, literal_medium
from hyena_medium_on_device import *  # noqa: F403

from gdn_cuda import hyena_medium


@pytest.mark.parametrize("layout", ["tokens", "channels"])
def test_gradients_of_long_rows(layout: str, seed: int) -> None:
    """Gradients of weights are sums over 100000 tokens of 24 channels."""
    check_medium_gradients(1, 96, 100000, 128, seed, layout=layout, groups=4, device="cuda")
    check_medium_gradients(1, 16, 20000, 1024, seed, torch.float32, layout, groups=4, device="cuda")


@pytest.mark.parametrize("layout", ["tokens", "channels"])
def test_two_runs_give_the_same_gradients(layout: str, seed: int) -> None:
    x = [laid_out(y.bfloat16().cuda(), layout) for y in gated_inputs(1, 256, 8192, seed)]
    leaves = [y.requires_grad_() for y in (*x, *(y.float().cuda() for y in fir_parameters(16, 256, 128, seed)))]
    y = hyena_medium(*leaves)
    grad = torch.randn_like(y)
    first, again = (torch.autograd.grad(y, leaves, grad, retain_graph=True) for _ in range(2))
    assert all(torch.equal(mine, other) for mine, other in zip(first, again, strict=True))


@pytest.mark.parametrize("layout", ["tokens", "channels"])
def test_gradients_past_2_to_the_31(layout: str, seed: int) -> None:
    """The second sequence begins 2³¹ elements after the first."""
    far = 2**31 + 64
    x = [y.bfloat16() for y in gated_inputs(2, 16, 600, seed)]
    memory = torch.empty(far + 16 * 600, dtype=torch.bfloat16, device="cuda")
    strides = (far, 600, 1) if layout == "tokens" else (far, 1, 16)
    spread = torch.as_strided(memory, (2, 16, 600), strides).copy_(x[0])
    weight, bias = (y.float() for y in fir_parameters(16, 16, 128, seed))
    rest = [laid_out(y.cuda(), layout) for y in x[1:]] + [weight.cuda(), bias.cuda()]
    leaves = [y.detach().requires_grad_() for y in (spread, *rest)]
    exact = [y.double().requires_grad_() for y in (*x, weight, bias)]
    grad = torch.ones(2, 16, 600).bfloat16()
    found = torch.autograd.grad(hyena_medium(*leaves), leaves, grad.cuda())
    expected, _ = literal_medium(dict(zip(("x1", "x2", "v", "weight", "bias"), exact, strict=True)))
    wanted = torch.autograd.grad(expected, exact, grad.double())
    bounds = (*(3 * [BOUND[torch.bfloat16]]), *(2 * [SUM_BOUND[torch.bfloat16]]))
    assert all(rel_rms(mine.cpu(), theirs) < bound for mine, theirs, bound in zip(found, wanted, bounds, strict=True))


def test_gradients_in_compiled_code(seed: int) -> None:
    leaves = [y.bfloat16().cuda().requires_grad_() for y in gated_inputs(1, 64, 1024, seed)]
    leaves += [y.float().cuda().requires_grad_() for y in fir_parameters(64, 64, 128, seed)]
    compiled = torch.compile(lambda *x: hyena_medium(*x), fullgraph=True, backend="aot_eager")
    grad = torch.ones(1, 64, 1024, dtype=torch.bfloat16, device="cuda")
    mine, theirs = (torch.autograd.grad(f(*leaves), leaves, grad) for f in (compiled, hyena_medium))
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_two_runs_give_the_same_bits(seed: int) -> None:
    x1, x2, v = (x.bfloat16().cuda() for x in gated_inputs(1, 256, 8192, seed))
    weight, bias = (x.float().cuda() for x in fir_parameters(16, 256, 128, seed))
    first = hyena_medium(x1, x2, v, weight, bias, return_state=True)
    again = hyena_medium(x1, x2, v, weight, bias, return_state=True)
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
