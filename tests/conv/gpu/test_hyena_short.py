"""hyena_short's kernels and those of its gradients against its definition in fp64: layouts, dtypes, taps, lengths, long rows,
strides past 2³¹."""

from __future__ import annotations

import hyena_oracle as oracle
import pytest
import torch
from helpers import rel_rms
from hyena_cases import fir_parameters, gated_inputs, mask
from hyena_fir_checks import LAYOUTS, laid_out
from hyena_short_checks import BOUND, check_short, check_short_gradients, literal_short, reach_of_a_nan

from gdn_cuda import hyena_short


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("K", [1, 7, 8, 9, 32])
def test_layouts_and_taps(dtype: torch.dtype, layout: str, K: int, seed: int) -> None:
    check_short(2, 136, 1032, K, seed, dtype, layout, groups=17, device="cuda")
    check_short_gradients(2, 136, 1032, K, seed, dtype, layout, groups=17, device="cuda")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("L", [0, 1, 2, 7, 127, 128, 129, 4099, 20000])
def test_lengths_and_options(layout: str, L: int, seed: int) -> None:
    for K in (3, 7, 12):
        state = torch.randn(2, 6, K - 1, generator=torch.Generator().manual_seed(seed))
        options = {"padding_mask": mask(2, L, seed), "initial_state": state, "gated_bias": K == 7}
        check_short(2, 6, L, K, seed, layout=layout, device="cuda", **options)
        check_short_gradients(2, 6, L, K, seed, layout=layout, device="cuda", **options)


@pytest.mark.parametrize("layout", ["tokens", "channels"])
@pytest.mark.parametrize("K", [7, 32])
def test_gradients_of_long_rows(layout: str, K: int, seed: int) -> None:
    """Gradients of weights are sums over 100000 tokens of 24 channels."""
    check_short_gradients(1, 96, 100000, K, seed, layout=layout, groups=4, device="cuda", gated_bias=K == 7)


@pytest.mark.parametrize("layout", ["tokens", "channels"])
@pytest.mark.parametrize("B, D", [(0, 3), (2, 0)])
def test_gradients_of_empty_tensors(layout: str, B: int, D: int, seed: int) -> None:
    check_short_gradients(B, D, 5, 7, seed, layout=layout, groups=1, device="cuda")


@pytest.mark.parametrize("layout", ["tokens", "channels"])
@pytest.mark.parametrize("K", [5, 20])
def test_reach_of_a_nan_in_gradients(layout: str, K: int, seed: int) -> None:
    for at in (0, 7, 223, 247, 248, 255, 256, 511, 598, 599):
        reach_of_a_nan(layout, K, at, 600, seed, "cuda")


@pytest.mark.parametrize("layout", ["tokens", "channels"])
def test_two_runs_give_the_same_gradients(layout: str, seed: int) -> None:
    x = [laid_out(y.bfloat16().cuda(), layout) for y in gated_inputs(1, 256, 8192, seed)]
    leaves = [y.requires_grad_() for y in (*x, *(y.float().cuda() for y in fir_parameters(16, 256, 7, seed)))]
    y = hyena_short(*leaves, gated_bias=True)
    grad = torch.randn_like(y)
    first, again = (torch.autograd.grad(y, leaves, grad, retain_graph=True) for _ in range(2))
    assert all(torch.equal(mine, other) for mine, other in zip(first, again, strict=True))


@pytest.mark.parametrize("layout", ["tokens", "channels"])
def test_infinities_end_with_the_filter(layout: str, seed: int) -> None:
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
