"""hyena_short's kernels and those of its gradients against its definition in fp64."""

from __future__ import annotations

from typing import Any

import hyena_oracle as oracle
import pytest
import torch
from devices import Device
from helpers import rel_rms
from hyena_cases import fir_parameters, gated_inputs, mask
from hyena_fir_checks import LAYOUTS, laid_out
from hyena_short_checks import BOUND, check_short, check_short_gradients, literal_short, reach_of_a_nan
from torch import Tensor

from gdn_cuda import hyena_short

BOTH_LAYOUTS = pytest.mark.parametrize("layout", ["tokens", "channels"])


def check(device: Device, *args: Any, **options: Any) -> None:
    """The backward recomputes y and the state."""
    with device.kernels():
        check_short(*args, device=device.name, **options)
        check_short_gradients(*args, device=device.name, **options)


def rows(device: Device, B: int, D: int, L: int, layout: str, seed: int) -> list[Tensor]:
    """x1, x2 and v in bf16."""
    return [laid_out(x.to(device.name, torch.bfloat16), layout) for x in gated_inputs(B, D, L, seed)]


def parameters(device: Device, D: int, K: int, seed: int) -> list[Tensor]:
    return [x.to(device.name, torch.float32) for x in fir_parameters(D, D, K, seed)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("K", [1, 2, 7, 8, 9, 32])
def test_layouts_and_taps(K: int, layout: str, dtype: torch.dtype, device: Device, seed: int) -> None:
    D, L, groups = device.size((6, 80, 3), (136, 1032, 17))
    check(device, 2, D, L, K, seed, dtype, layout, groups=groups)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("L", [0, 1, 2, 5, 7, 8, 127, 128, 129, 255, 256, 257, 1032, 4099, 20000])
def test_lengths_and_options(L: int, layout: str, device: Device, seed: int) -> None:
    """With a state and without; the state of 12 taps may be longer than the sequence."""
    device.skip_above(1032, L)
    B, D = device.size((1, 3), (2, 6))
    for K in (3, 7, 12, 32):
        state = torch.randn(B, D, K - 1, generator=torch.Generator().manual_seed(seed))
        options = {"padding_mask": mask(B, L, seed), "initial_state": state, "gated_bias": K == 7} if K < 32 else {}
        check(device, B, D, L, K, seed, layout=layout, **options)


@BOTH_LAYOUTS
def test_whole_vectors_of_many_channels(layout: str, device: Device, seed: int) -> None:
    for K in (7, 32):
        check(device, 1, 136, 264, K, seed, layout=layout)
        check(device, 1, 130, 21, K, seed, layout=layout)


@pytest.mark.parametrize("B, D", [(0, 3), (2, 0)])
@BOTH_LAYOUTS
def test_empty_tensors(layout: str, B: int, D: int, device: Device, seed: int) -> None:
    check(device, B, D, 5, 7, seed, layout=layout, groups=1)


@BOTH_LAYOUTS
@pytest.mark.parametrize("K", [3, 12])
@pytest.mark.parametrize("gated_bias", [False, True])
def test_every_option(gated_bias: bool, K: int, layout: str, device: Device, seed: int) -> None:
    B, D, L = 2, 4, 300
    state = torch.randn(B, D, K - 1, generator=torch.Generator().manual_seed(seed))
    for dtype in (torch.bool, torch.int32, torch.int64, torch.float32, torch.bfloat16):
        options = {"padding_mask": mask(B, L, seed).to(dtype), "initial_state": state, "gated_bias": gated_bias}
        check(device, B, D, L, K, seed, layout=layout, weights=torch.bfloat16, **options)
    check(device, B, D, L, K, seed, layout=layout, bias=None, initial_state=state.bfloat16())


@BOTH_LAYOUTS
def test_in_parts_as_in_one(layout: str, device: Device, seed: int) -> None:
    """The same bits, with segments of other lengths."""
    D, L, K = 3, 1000, 7
    x1, x2, v = rows(device, 1, D, L, layout, seed)
    weight, bias = parameters(device, D, K, seed)
    with device.kernels(1):
        whole, last = hyena_short(x1, x2, v, weight, bias, return_state=True)
    parts, state = [], None
    with device.kernels():
        for first, end in ((0, 300), (300, 302), (302, 1000)):
            now = [x[..., first:end] for x in (x1, x2, v)]
            y, state = hyena_short(*now, weight, bias, initial_state=state, return_state=True)
            parts.append(y)
    assert torch.equal(torch.cat(parts, -1), whole)
    assert state is not None and torch.equal(state, last)


@BOTH_LAYOUTS
@pytest.mark.parametrize("K", [5, 20])
def test_infinities_end_with_the_filter(K: int, layout: str, device: Device, seed: int) -> None:
    x1, x2, v = rows(device, 1, 3, 600, layout, seed)
    hit = torch.zeros(600, dtype=torch.bool)
    for token in (0, 3, 250, 255, 256, 511):
        x1[:, :, token] = torch.inf
        hit[token : token + K] = True
    with device.kernels():
        y = hyena_short(x1, x2, v, parameters(device, 3, K, seed)[0]).cpu()
    assert y[:, :, ~hit].isfinite().all() and not y[:, :, hit].isfinite().any()


@BOTH_LAYOUTS
@pytest.mark.parametrize("K", [5, 20])
def test_how_far_a_nan_reaches_in_gradients(K: int, layout: str, device: Device, seed: int) -> None:
    """At the ends of tiles, steps, segments and the sequence."""
    with device.kernels():
        for at in (0, 7, 223, 247, 248, 255, 256, 511, 598, 599):
            reach_of_a_nan(layout, K, at, 600, seed, device.name)


@BOTH_LAYOUTS
def test_gradients_of_other_strides(layout: str, device: Device, seed: int) -> None:
    """An expanded scalar, the other layout, rows that do not begin on 16 bytes, inputs in both layouts."""
    x1, x2, v = (y.to(device.name, torch.bfloat16) for y in gated_inputs(2, 6, 80, seed))
    other = "channels" if layout == "tokens" else "tokens"
    x = {"x1": laid_out(x1, layout), "x2": laid_out(x2, other), "v": laid_out(v, "neither")}
    weight = parameters(device, 6, 7, seed)[0]
    wide = torch.randn(2, 6, 81, generator=torch.Generator().manual_seed(seed)).to(device.name, torch.bfloat16)
    leaves = {name: y.requires_grad_() for name, y in x.items()} | {"weight": weight.requires_grad_()}
    exact = {name: y.detach().cpu().double().requires_grad_() for name, y in leaves.items()}
    one = torch.ones((), dtype=torch.bfloat16, device=device.name)
    for grad in (one.expand(2, 6, 80), laid_out(wide[..., 1:], other), wide[..., 1:]):
        with device.kernels():
            found = torch.autograd.grad(hyena_short(**leaves), list(leaves.values()), grad)
        wanted = torch.autograd.grad(literal_short(exact)[0], list(exact.values()), grad.cpu().double())
        assert all(rel_rms(mine.cpu(), theirs) < BOUND[torch.bfloat16] for mine, theirs in zip(found, wanted, strict=True))


def test_interleaved_channels(device: Device, seed: int) -> None:
    """Views with steps of three channels, as Evo 2 splits its projections."""
    z = torch.randn(2, 9, 264, generator=torch.Generator().manual_seed(seed)).bfloat16()
    x2, x1, v = z[:, 0::3], z[:, 1::3], z[:, 2::3]
    weight = torch.randn(1, 1, 7, generator=torch.Generator().manual_seed(seed))
    for layout in ("tokens", "channels"):
        given = laid_out(z.to(device.name), layout)
        with device.kernels():
            y = hyena_short(given[:, 1::3], given[:, 0::3], given[:, 2::3], weight.to(device.name))
        expected, _ = oracle.short(x1, x2, v, weight)
        assert rel_rms(y.cpu(), torch.from_numpy(expected)) < BOUND[torch.bfloat16]
