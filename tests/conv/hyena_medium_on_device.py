"""hyena_medium's kernels and those of its gradients against its definition in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from devices import Device
from helpers import rel_rms
from hyena_cases import fir_parameters, gated_inputs, mask
from hyena_fir_checks import LAYOUTS, laid_out
from hyena_medium_checks import BOUND, check_medium, check_medium_gradients, literal_medium
from torch import Tensor

from gdn_cuda import hyena_medium

EVERY_DTYPE = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])


def check(device: Device, *args: Any, multiprocessors: int = 132, **options: Any) -> None:
    """The backward recomputes y and the state."""
    with device.kernels(multiprocessors):
        check_medium(*args, device=device.name, **options)
        check_medium_gradients(*args, device=device.name, **options)


def states(B: int, D: int, K: int, seed: int) -> Tensor:
    return torch.randn(B, D, K - 1, generator=torch.Generator().manual_seed(seed))


def parameters(device: Device, D: int, K: int, seed: int) -> list[Tensor]:
    return [x.to(device.name, torch.float32) for x in fir_parameters(D, D, K, seed)]


@EVERY_DTYPE
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("K", [1, 2, 3, 7, 33, 34, 35, 127, 128, 129, 700, 1024])
def test_layouts_and_taps(K: int, layout: str, dtype: torch.dtype, device: Device, seed: int) -> None:
    device.skip_above(700, K)
    B, D, L, groups = device.size((1, 3, 600, 1), (2, 34, 2056, 17))
    check(device, B, D, L, K, seed, dtype, layout, groups=groups)


@EVERY_DTYPE
@pytest.mark.parametrize("D", [8, 24, 40, 48])
@pytest.mark.parametrize("K", [1, 34, 128, 129, 300, 700])
def test_whole_vectors_of_channels(K: int, D: int, dtype: torch.dtype, device: Device, seed: int) -> None:
    """Whole and partial blocks, tiles that end early, one segment and several."""
    device.skip_above(24, D)
    B, L, multiprocessors = device.size((2, 600, 132) if D == 8 else (1, 1100, 1), (2, 2056, 132))
    check(device, B, D, L, K, seed, dtype, "channels", groups=D // 8, multiprocessors=multiprocessors)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("L", [0, 1, 2, 5, 31, 32, 33, 127, 128, 129, 256, 511, 512, 513, 1032, 3000, 4099, 40000])
def test_lengths_and_options(L: int, layout: str, device: Device, seed: int) -> None:
    device.skip_above(3000, L)
    sizes = ((1, 2, 128),) if device.emulate and L > 600 else ((2, 6, 7), (2, 8, 128), (2, 8, 300))
    for B, D, K in sizes:
        options = {"padding_mask": mask(B, L, seed), "initial_state": states(B, D, K, seed)}
        check(device, B, D, L, K, seed, layout=layout, **options)


def test_the_most_taps(device: Device, seed: int) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        for multiprocessors in device.size((132, 1), (132,)):
            check(device, 1, 1, 2600, 1024, seed, dtype, multiprocessors=multiprocessors)


@pytest.mark.parametrize("layout, D, L", [("tokens", 4, 530), ("channels", 24, 3 * 512 + 1)])
@pytest.mark.parametrize("K", [7, 128, 300])
def test_every_option(K: int, layout: str, D: int, L: int, device: Device, seed: int) -> None:
    state = states(2, D, K, seed)
    options = {"padding_mask": mask(2, 530, seed), "initial_state": state, "weights": torch.bfloat16}
    check(device, 2, D, 530, K, seed, layout=layout, **options)
    check(device, 2, D, L, K, seed, torch.float32, layout, groups=2, initial_state=state)


@pytest.mark.parametrize("layout", ["tokens", "channels"])
@pytest.mark.parametrize("B, D", [(0, 8), (2, 0), (0, 3)])
def test_empty_tensors(B: int, D: int, layout: str, device: Device, seed: int) -> None:
    check(device, B, D, 5, 7, seed, layout=layout, groups=1)


@pytest.mark.parametrize("K", [128, 140])
def test_calls_in_parts_equal_one_call(K: int, device: Device, seed: int) -> None:
    D, L = 2, 1300
    x1, x2, v = (x.to(device.name, torch.float32) for x in gated_inputs(1, D, L, seed))
    weight, bias = parameters(device, D, K, seed)
    with device.kernels(1):
        whole, last = hyena_medium(x1, x2, v, weight, bias, return_state=True)
    parts, state = [], None
    with device.kernels():
        for first, end in ((0, 300), (300, 302), (302, 1300)):
            now = [x[..., first:end] for x in (x1, x2, v)]
            y, state = hyena_medium(*now, weight, bias, initial_state=state, return_state=True)
            parts.append(y)
    torch.testing.assert_close(torch.cat(parts, -1), whole, rtol=1e-4, atol=1e-4)
    assert state is not None and torch.equal(state, last)


@pytest.mark.parametrize("layout, D", [("tokens", 3), ("channels", 8)])
@pytest.mark.parametrize("K", [128, 300])
def test_gradients_of_several_segments(K: int, layout: str, D: int, device: Device, seed: int) -> None:
    """Each segment reads the tokens before and after it."""
    for multiprocessors in device.size((1, 132), (132,)):
        with device.kernels(multiprocessors):
            check_medium_gradients(
                1, D, 2048 + 700, K, seed, layout=layout, device=device.name, initial_state=states(1, D, K, seed)
            )


@pytest.mark.parametrize("layout", ["tokens", "channels"])
def test_gradients_of_other_strides(layout: str, device: Device, seed: int) -> None:
    """An expanded scalar, the other layout, rows that do not begin on 16 bytes, inputs in both layouts."""
    x1, x2, v = (y.to(device.name, torch.bfloat16) for y in gated_inputs(2, 8, 80, seed))
    other = "channels" if layout == "tokens" else "tokens"
    x = {"x1": laid_out(x1, layout), "x2": laid_out(x2, other), "v": laid_out(v, "neither")}
    weight, bias = parameters(device, 8, 40, seed)
    wide = torch.randn(2, 8, 81, generator=torch.Generator().manual_seed(seed)).to(device.name, torch.bfloat16)
    leaves = {name: y.requires_grad_() for name, y in (x | {"weight": weight, "bias": bias}).items()}
    exact = {name: y.detach().cpu().double().requires_grad_() for name, y in leaves.items()}
    one = torch.ones((), dtype=torch.bfloat16, device=device.name)
    for grad in (one.expand(2, 8, 80), laid_out(wide[..., 1:], other), wide[..., 1:]):
        with device.kernels():
            found = torch.autograd.grad(hyena_medium(**leaves), list(leaves.values()), grad)
        wanted = torch.autograd.grad(literal_medium(exact)[0], list(exact.values()), grad.cpu().double())
        assert all(rel_rms(mine.cpu(), theirs) < BOUND[torch.bfloat16] for mine, theirs in zip(found, wanted, strict=True))


@pytest.mark.parametrize("layout, D", [("tokens", 2), ("channels", 8)])
def test_nan_in_gradients_reaches_no_further_than_documented(layout: str, D: int, device: Device, seed: int) -> None:
    K, L, at = 128, 1600, 777
    given = [laid_out(x.to(device.name, torch.bfloat16), layout) for x in gated_inputs(1, D, L, seed)]
    leaves = [x.requires_grad_() for x in (*given, *parameters(device, D, K, seed))]
    grad = laid_out(torch.ones_like(given[0]), layout)
    grad[:, :, at] = torch.nan
    with device.kernels():
        dx1, dx2, dv, *sums = torch.autograd.grad(hyena_medium(*leaves), leaves, grad)
    assert all(x.isnan().all() for x in sums)
    assert dx2.isnan().any(1)[0].nonzero().flatten().tolist() == [at]
    for gradient in (dx1, dv):
        finite = gradient.isfinite().all(1)[0]
        assert not finite[at - K + 1 : at + 1].any() and finite[: at - K - 30].all() and finite[at + 32 :].all()


def test_nan_reaches_no_further_than_documented(device: Device, seed: int) -> None:
    K, L, at = 128, 1600, 777
    x1, x2, v = (laid_out(x.to(device.name, torch.bfloat16), "tokens") for x in gated_inputs(1, 2, L, seed))
    x1[:, :, at] = torch.nan
    with device.kernels():
        finite = hyena_medium(x1, x2, v, *parameters(device, 2, K, seed)).isfinite().all(1)[0]
    assert not finite[at : at + K].any() and finite[: at - 31].all() and finite[at + K + 31 :].all()
