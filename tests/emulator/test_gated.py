"""The kernels of rglru_scan and s7_scan, forward and backward, in the emulator against their recurrences in fp64."""

from __future__ import annotations

from typing import Any

import gated_oracle as oracle
import pytest
import torch
from emulated import emulated
from helpers import rel_rms
from rglru_cases import Inputs, inputs, laid_out
from torch import Tensor

from gdn_cuda import rglru_scan, s7_scan

BOUND = {torch.float32: 1e-5, torch.bfloat16: 4e-3, torch.float16: 1e-3}
BOTH_LAYOUTS = pytest.mark.parametrize("channels_last", [False, True], ids=["tokens", "channels"])
OPTIONS: list[dict[str, Any]] = [
    {},
    {"first_multiplier": True},
    {"initial": True, "resets": True, "first_multiplier": True},
    {"packed": [0, 0, 17, 17, 150, 200], "resets": True},
    {"packed": [0, 1, 2, 64, 128, 200], "initial": True, "resets": True},
    {"packed": [0, 128, 128, 200], "initial": True, "first_multiplier": True},
]


def gradients(results: tuple[Tensor, ...], leaves: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
    """Gradients; zeros for a leaf on which an empty result does not depend."""
    pairs = [(y, g.double()) for y, g in zip(results, grads, strict=True) if y.requires_grad]
    if not pairs:
        return [torch.zeros_like(leaf) for leaf in leaves]
    found = torch.autograd.grad([y for y, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True)
    return [torch.zeros_like(leaf) if x is None else x for x, leaf in zip(found, leaves, strict=True)]


def compare(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert rel_rms(mine, other) < BOUND[mine.dtype]


def rglru_check(x: Inputs) -> None:
    leaves = [y.requires_grad_() for y in x.leaves()]
    wide = [y.detach().double().requires_grad_() for y in leaves]
    starts = [{"initial_state": given[3]} if len(given) > 3 else {} for given in (leaves, wide)]
    expected = oracle.rglru(*wide[:3], **x.options | starts[1])
    rng = torch.Generator().manual_seed(1)
    grads = [torch.randn(y.shape, generator=rng) for y in expected]
    grads[0] = laid_out(grads[0].to(x.u.dtype), x.u.stride(1) == 1)
    with emulated():
        found = rglru_scan(*leaves[:3], True, **x.options | starts[0])
        ours = torch.autograd.grad(found, leaves, grads)
    compare((*found, *ours), (*expected, *gradients(expected, wide, grads)))


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("N", [1, 3])
@BOTH_LAYOUTS
def test_options_of_rglru(dtype: torch.dtype, N: int, channels_last: bool, seed: int) -> None:
    for each in OPTIONS:
        rglru_check(inputs(1, 5, 200, N, seed, dtype=dtype, channels_last=channels_last, **each))


@BOTH_LAYOUTS
@pytest.mark.parametrize(
    "B, D, L, N", [(1, 1, 1, 1), (3, 2, 0, 2), (0, 2, 5, 1), (2, 33, 65, 2), (1, 3, 130, 16), (2, 34, 64, 1), (1, 1, 300, 1)]
)
def test_sizes_of_rglru(B: int, D: int, L: int, N: int, channels_last: bool, seed: int) -> None:
    rglru_check(inputs(B, D, L, N, seed, channels_last=channels_last, initial=True))


@BOTH_LAYOUTS
def test_mixed_layouts_of_rglru_off_16_bytes(channels_last: bool, seed: int) -> None:
    x = inputs(2, 5, 131, 1, seed, dtype=torch.bfloat16, channels_last=channels_last)
    other = laid_out(x.delta, not channels_last)
    rglru_check(Inputs(x.u[..., 1:].detach(), other[..., 1:].detach(), x.A, x.options))


def test_a_channel_of_a_wider_tensor(seed: int) -> None:
    """Kernels and shape function take one channel of (B, L, D) as a transposed view, with the same tile length."""
    x = inputs(2, 3, 300, 2, seed, channels_last=True, initial=True)
    start = x.options["initial_state"][:, :1].contiguous()
    given = x.u.detach()[:, :1], x.delta.detach()[:, :1], x.A[:1], start, None, None, False, None
    expected = torch.ops.gdn_cuda.rglru_scan(*given)
    with emulated():
        found = torch.ops.gdn_cuda.rglru_scan(*given)
    assert [y.shape for y in found] == [y.shape for y in expected]
    compare(found, expected)


@pytest.mark.parametrize("offsets", [[-5, 400], [0, 10**9, -(10**9)], [7, 3, 150], [200, 0], [0, 0]])
@BOTH_LAYOUTS
def test_invalid_offsets_touch_nothing_outside(offsets: list[int], channels_last: bool, seed: int) -> None:
    x = inputs(1, 5, 200, 2, seed, channels_last=channels_last, initial=True, packed=[0] * len(offsets))
    x.options["cu_seqlens"] = torch.tensor(offsets)
    leaves = [y.requires_grad_() for y in x.leaves()]
    with emulated():
        out = rglru_scan(*leaves[:3], **x.options)
        torch.autograd.grad(out.sum(), leaves)


@BOTH_LAYOUTS
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_resets_and_rows_stop_infinities_and_nans(bad: float, channels_last: bool, seed: int) -> None:
    x = inputs(1, 35, 200, 2, seed, channels_last=channels_last, packed=[0, 100, 200], initial=True)
    x.options["reset"] = torch.zeros(1, 200, dtype=torch.bool).index_fill_(1, torch.tensor(150), True)
    spoilt = x.u.clone(memory_format=torch.preserve_format)
    spoilt[0, 3, 10] = spoilt[0, 4, 110] = bad
    with emulated():
        clean, out = (rglru_scan(u, x.delta, x.A, **x.options) for u in (x.u, spoilt))
    assert not out[0, 3, 10].isfinite() and not out[0, 4, 110].isfinite()
    assert torch.equal(out[0, 3, 100:], clean[0, 3, 100:]) and torch.equal(out[0, 4, 150:], clean[0, 4, 150:])
    rows = [d for d in range(35) if d not in (3, 4)]
    assert torch.equal(out[0, rows], clean[0, rows])


# ---- S7


def s7_check(given: list[Tensor]) -> None:
    leaves = [x.requires_grad_() for x in given]
    wide = [x.detach().double().requires_grad_() for x in given]
    expected = oracle.s7(*wide)
    grads = [torch.randn(expected[0].shape).to(given[0].dtype), torch.randn(expected[1].shape)]
    with emulated():
        found = s7_scan(*leaves, return_last_state=True)
        ours = torch.autograd.grad(found, leaves, grads)
    compare((*found, *ours), (*expected, *gradients(expected, wide, grads)))


def s7_inputs(b: int, H: int, N: int, L: int, seed: int, dtype: torch.dtype, bias: bool) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    shapes = [(b, H, L), (b, N, L), (b, N, H, L), (b, H, N, L), *([(b, N, L)] if bias else [])]
    return [torch.randn(shape, generator=rng).to(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize(
    "b, H, N, L", [(2, 5, 3, 37), (1, 3, 6, 130), (1, 2, 2, 1104), (1, 1, 1, 1), (2, 3, 2, 0), (0, 3, 2, 4)]
)
@pytest.mark.parametrize("bias", [False, True])
def test_s7(b: int, H: int, N: int, L: int, bias: bool, dtype: torch.dtype, seed: int) -> None:
    s7_check(s7_inputs(b, H, N, L, seed, dtype, bias))


def test_s7_off_16_bytes(seed: int) -> None:
    given = s7_inputs(1, 3, 5, 72, seed, torch.bfloat16, True)
    s7_check([torch.cat([x[..., :1], x], -1)[..., 1:] for x in given])


def test_nan_of_s7_stays_in_its_batch(seed: int) -> None:
    given = s7_inputs(2, 3, 5, 72, seed, torch.float32, True)
    with emulated():
        clean = s7_scan(*given)
        given[1][0, 2, 40] = torch.nan
        out = s7_scan(*given)
    assert torch.equal(out[1], clean[1]) and torch.equal(out[0, :, :40], clean[0, :, :40])
    assert bool(out[0, :, 40:].isnan().all())
