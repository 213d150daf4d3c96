"""The kernels of hyena_medium and its gradients in the emulator, against its definition in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from emulated import emulated
from helpers import rel_rms
from hyena_cases import fir_parameters, gated_inputs, mask
from hyena_fir_checks import laid_out
from hyena_medium_checks import BOUND, check_medium, check_medium_gradients, literal_medium

from gdn_cuda import hyena_medium


def check(*args: Any, multiprocessors: int = 132, **options: Any) -> None:
    """The backward recomputes y and the state."""
    with emulated(multiprocessors):
        check_medium(*args, **options)
        check_medium_gradients(*args, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("K", [1, 2, 3, 33, 34, 35, 127, 128, 129, 700])
def test_taps(dtype: torch.dtype, K: int, seed: int) -> None:
    check(1, 2, 600, K, seed, dtype, groups=1)


@pytest.mark.parametrize("L", [0, 1, 2, 31, 32, 33, 127, 128, 129, 256, 512, 513, 1032, 3000])
def test_lengths(L: int, seed: int) -> None:
    check(1, 2, L, 128, seed)


def test_the_most_taps(seed: int) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        check(1, 1, 2600, 1024, seed, dtype)
        check(1, 1, 2600, 1024, seed, dtype, multiprocessors=1)


@pytest.mark.parametrize("layout", ["channels", "neither"])
def test_layouts(layout: str, seed: int) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        check(2, 3, 520, 128, seed, dtype, layout)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("K", [1, 34, 128, 129, 700])
def test_contiguous_channels(dtype: torch.dtype, K: int, seed: int) -> None:
    """Vectors of channels: whole and partial blocks, tiles that end early, several segments."""
    check(2, 8, 600, K, seed, dtype, "channels", groups=2)
    check(1, 24, 1100, K, seed, dtype, "channels", groups=1, multiprocessors=1)


@pytest.mark.parametrize("K", [7, 128, 300])
def test_every_option_of_contiguous_channels(K: int, seed: int) -> None:
    B, D = 2, 24
    state = torch.randn(B, D, K - 1, generator=torch.Generator().manual_seed(seed))
    for L in (0, 1, 5, 530):
        check(B, D, L, K, seed, layout="channels", padding_mask=mask(B, L, seed), initial_state=state)
    check(B, D, 3 * 512 + 1, K, seed, torch.float32, "channels", groups=2, initial_state=state)


@pytest.mark.parametrize("K", [7, 128, 300])
def test_every_option(K: int, seed: int) -> None:
    B, D, L = 2, 4, 530
    state = torch.randn(B, D, K - 1, generator=torch.Generator().manual_seed(seed))
    check(B, D, L, K, seed, padding_mask=mask(B, L, seed), initial_state=state, weights=torch.bfloat16)
    check(B, D, L, K, seed, torch.float32, groups=2, initial_state=state)
    check(B, D, 5, K, seed, initial_state=state)
    check(B, D, 0, K, seed, initial_state=state)


@pytest.mark.parametrize("B, D", [(0, 3), (2, 0)])
def test_empty_tensors(B: int, D: int, seed: int) -> None:
    check(B, D, 5, 7, seed, groups=1)


@pytest.mark.parametrize("K", [128, 140])
def test_calls_in_parts_equal_one_call(K: int, seed: int) -> None:
    D, L = 2, 1300
    x1, x2, v = (x.float() for x in gated_inputs(1, D, L, seed))
    weight, bias = (x.float() for x in fir_parameters(D, D, K, seed))
    with emulated(multiprocessors=1):
        whole, last = hyena_medium(x1, x2, v, weight, bias, return_state=True)
    parts, state = [], None
    with emulated():
        for first, end in ((0, 300), (300, 302), (302, 1300)):
            now = [x[..., first:end] for x in (x1, x2, v)]
            y, state = hyena_medium(*now, weight, bias, initial_state=state, return_state=True)
            parts.append(y)
    torch.testing.assert_close(torch.cat(parts, -1), whole, rtol=1e-4, atol=1e-4)
    assert state is not None and torch.equal(state, last)


@pytest.mark.parametrize("layout, D", [("tokens", 3), ("channels", 8)])
@pytest.mark.parametrize("K", [128, 300])
def test_gradients_of_several_segments(layout: str, D: int, K: int, seed: int) -> None:
    """Each segment reads the tokens before and after it."""
    state = torch.randn(1, D, K - 1, generator=torch.Generator().manual_seed(seed))
    for multiprocessors in (1, 132):
        with emulated(multiprocessors):
            check_medium_gradients(1, D, 2048 + 700, K, seed, layout=layout, initial_state=state)


@pytest.mark.parametrize("layout", ["tokens", "channels"])
def test_gradients_of_other_strides(layout: str, seed: int) -> None:
    """An expanded scalar, the other layout, rows that do not begin on 16 bytes, inputs in both layouts."""
    x1, x2, v = (y.bfloat16() for y in gated_inputs(2, 8, 80, seed))
    other = "channels" if layout == "tokens" else "tokens"
    x = {"x1": laid_out(x1, layout), "x2": laid_out(x2, other), "v": laid_out(v, "neither")}
    weight, bias = (y.float() for y in fir_parameters(2, 8, 40, seed))
    wide = torch.randn(2, 8, 81, generator=torch.Generator().manual_seed(seed)).bfloat16()
    leaves = {name: y.requires_grad_() for name, y in (x | {"weight": weight, "bias": bias}).items()}
    exact = {name: y.detach().double().requires_grad_() for name, y in leaves.items()}
    for grad in (torch.ones(()).bfloat16().expand(2, 8, 80), laid_out(wide[..., 1:], other), wide[..., 1:]):
        with emulated():
            found = torch.autograd.grad(hyena_medium(**leaves), list(leaves.values()), grad)
        wanted = torch.autograd.grad(literal_medium(exact)[0], list(exact.values()), grad.double())
        assert all(rel_rms(mine, theirs) < BOUND[torch.bfloat16] for mine, theirs in zip(found, wanted, strict=True))


@pytest.mark.parametrize("layout, D", [("tokens", 2), ("channels", 8)])
def test_nan_in_gradients_reaches_no_further_than_documented(layout: str, D: int, seed: int) -> None:
    K, L, at = 128, 1600, 777
    given = [laid_out(x.bfloat16(), layout) for x in gated_inputs(1, D, L, seed)]
    given += [x.float() for x in fir_parameters(D, D, K, seed)]
    leaves = [x.requires_grad_() for x in given]
    grad = laid_out(torch.ones(1, D, L).bfloat16(), layout)
    grad[:, :, at] = torch.nan
    with emulated():
        dx1, dx2, dv, *sums = torch.autograd.grad(hyena_medium(*leaves), leaves, grad)
    assert all(x.isnan().all() for x in sums)
    assert dx2.isnan().any(1)[0].nonzero().flatten().tolist() == [at]
    for gradient in (dx1, dv):
        finite = gradient.isfinite().all(1)[0]
        assert not finite[at - K + 1 : at + 1].any() and finite[: at - K - 30].all() and finite[at + 32 :].all()


def test_nan_reaches_no_further_than_documented(seed: int) -> None:
    K, L, at = 128, 1600, 777
    x1, x2, v = (laid_out(x.bfloat16(), "tokens") for x in gated_inputs(1, 2, L, seed))
    x1[:, :, at] = torch.nan
    weight, bias = (x.float() for x in fir_parameters(2, 2, K, seed))
    with emulated():
        finite = hyena_medium(x1, x2, v, weight, bias).isfinite().all(1)[0]
    assert not finite[at : at + K].any() and finite[: at - 31].all() and finite[at + K + 31 :].all()
