"""hyena_short's kernels and those of its gradients on the GPU; long rows, strides past 2³¹, bits of two calls."""

from __future__ import annotations

import hyena_oracle as oracle
import pytest
import torch
from helpers import rel_rms
from hyena_cases import fir_parameters, gated_inputs
from hyena_fir_checks import laid_out
from hyena_short_checks import BOUND, check_short_gradients, literal_short
from hyena_short_on_device import *  # noqa: F403

from gdn_cuda import hyena_short


@pytest.mark.parametrize("layout", ["tokens", "channels"])
@pytest.mark.parametrize("K", [7, 32])
def test_gradients_of_long_rows(layout: str, K: int, seed: int) -> None:
    """Gradients of weights are sums over 100000 tokens of 24 channels."""
    check_short_gradients(1, 96, 100000, K, seed, layout=layout, groups=4, device="cuda", gated_bias=K == 7)


@pytest.mark.parametrize("layout", ["tokens", "channels"])
def test_two_runs_give_the_same_gradients(layout: str, seed: int) -> None:
    x = [laid_out(y.bfloat16().cuda(), layout) for y in gated_inputs(1, 256, 8192, seed)]
    leaves = [y.requires_grad_() for y in (*x, *(y.float().cuda() for y in fir_parameters(16, 256, 7, seed)))]
    y = hyena_short(*leaves, gated_bias=True)
    grad = torch.randn_like(y)
    first, again = (torch.autograd.grad(y, leaves, grad, retain_graph=True) for _ in range(2))
    assert all(torch.equal(mine, other) for mine, other in zip(first, again, strict=True))


@pytest.mark.parametrize("layout", ["tokens", "channels"])
def test_nan_ends_with_the_filter_of_many_channels(layout: str, seed: int) -> None:
    K, at = 7, 1500
    x1, x2, v = (laid_out(x.bfloat16().cuda(), layout) for x in gated_inputs(1, 64, 4000, seed))
    x1[:, :, at] = torch.nan
    weight, bias = (x.float().cuda() for x in fir_parameters(64, 64, K, seed))
    finite = hyena_short(x1, x2, v, weight, bias).isfinite().all(1)[0]
    assert not finite[at : at + K].any() and finite[:at].all() and finite[at + K :].all()


def test_two_runs_give_the_same_bits(seed: int) -> None:
    x1, x2, v = (x.bfloat16().cuda() for x in gated_inputs(1, 256, 8192, seed))
    weight, bias = (x.float().cuda() for x in fir_parameters(16, 256, 7, seed))
    first = hyena_short(x1, x2, v, weight, bias, return_state=True)
    again = hyena_short(x1, x2, v, weight, bias, return_state=True)
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


@pytest.mark.parametrize("layout", ["tokens", "channels"])
def test_offsets_past_2_to_31(layout: str, seed: int) -> None:
    """Elements of the second row have offsets beyond 2³¹."""
    far = 2**31 + 64
    x1, x2, v = (x.bfloat16().cuda() for x in gated_inputs(2, 8, 264, seed))
    memory = torch.empty(far + 8 * 264, dtype=torch.bfloat16, device="cuda")
    strides = (far, 264, 1) if layout == "tokens" else (far, 1, 8)
    spread = torch.as_strided(memory, (2, 8, 264), strides).copy_(x1)
    weight, bias = (x.float().cuda() for x in fir_parameters(8, 8, 7, seed))
    y = hyena_short(spread, laid_out(x2, layout), laid_out(v, layout), weight, bias)
    expected, _ = oracle.short(x1, x2, v, weight, bias)
    assert rel_rms(y.cpu(), torch.from_numpy(expected)) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("layout", ["tokens", "channels"])
def test_gradients_of_offsets_past_2_to_31(layout: str, seed: int) -> None:
    far = 2**31 + 64
    x = [y.bfloat16() for y in gated_inputs(2, 8, 264, seed)]
    memory = torch.empty(far + 8 * 264, dtype=torch.bfloat16, device="cuda")
    strides = (far, 264, 1) if layout == "tokens" else (far, 1, 8)
    spread = torch.as_strided(memory, (2, 8, 264), strides).copy_(x[0])
    weight, _ = (y.float() for y in fir_parameters(8, 8, 7, seed))
    leaves = [y.detach().requires_grad_() for y in (spread, *(laid_out(y.cuda(), layout) for y in x[1:]), weight.cuda())]
    exact = [y.double().requires_grad_() for y in (*x, weight)]
    grad = torch.ones(2, 8, 264).bfloat16()
    found = torch.autograd.grad(hyena_short(*leaves), leaves, grad.cuda())
    expected, _ = literal_short(dict(zip(("x1", "x2", "v", "weight"), exact, strict=True)))
    wanted = torch.autograd.grad(expected, exact, grad.double())
    assert all(rel_rms(mine.cpu(), theirs) < BOUND[torch.bfloat16] for mine, theirs in zip(found, wanted, strict=True))


def test_gradients_in_compiled_code(seed: int) -> None:
    leaves = [y.bfloat16().cuda().requires_grad_() for y in gated_inputs(1, 64, 512, seed)]
    leaves.append(fir_parameters(64, 64, 7, seed)[0].float().cuda().requires_grad_())
    compiled = torch.compile(lambda *x: hyena_short(*x), fullgraph=True, backend="aot_eager")
    grad = torch.ones(1, 64, 512, dtype=torch.bfloat16, device="cuda")
    mine, theirs = (torch.autograd.grad(f(*leaves), leaves, grad) for f in (compiled, hyena_short))
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
