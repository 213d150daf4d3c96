"""The kernels of causal_conv1d, forward and backward, in the emulator against their definition in fp64."""

from __future__ import annotations

import itertools

import causal_accuracy
import conv_oracle as oracle
import pytest
import scan_accuracy
import torch
from causal_cases import CASES, LAYOUTS, inputs, laid_out
from causal_conv1d_on_device import *  # noqa: F403
from causal_conv1d_on_device import BOTH_LAYOUTS, check
from devices import Device
from emulated import emulated
from helpers import rel_rms

from gdn_cuda import causal_conv1d


@BOTH_LAYOUTS
@pytest.mark.parametrize("case", ["biased, silu", "packed, states"])
def test_many_tiles_per_block(case: str, layout: str, device: Device, seed: int) -> None:
    """On one multiprocessor a block takes several tiles, and a warp long segments."""
    B, D, L = (1, 264, 1304) if layout == "channels" else (1, 136, 1600) if "packed" in case else (11, 16, 1032)
    check(device, inputs(B, D, L, 4, seed, layout=layout, **CASES[case]), multiprocessors=1)


@BOTH_LAYOUTS
@pytest.mark.parametrize("case", ["plain", "packed", "seq_idx"])
def test_gradients_without_states(case: str, layout: str, device: Device, seed: int) -> None:
    check(device, inputs(1, 40, 1600, 4, seed, layout=layout, **CASES[case]), multiprocessors=1, final_states=False)


@BOTH_LAYOUTS
def test_indices_of_long_rows(layout: str, device: Device, seed: int) -> None:
    """Segments of many steps; the last block of a row has fewer channels."""
    ids = [(0, 257), (1, 254), (2, 1), (-1, 5), (0, 767), (3, 900), (1, 40)]
    for channels in (10, 72):
        check(device, inputs(1, channels, 2304, 4, seed, layout=layout, states=True, seq_idx=ids), multiprocessors=1)


def test_which_kernels_run(seed: int) -> None:
    few = {
        "tokens": ("causal_conv{", "causal_conv_backward_rows{"),
        "channels": ("causal_conv_channels_last{", "causal_conv_backward_columns{"),
    }
    for layout, W in itertools.product(LAYOUTS, (1, 2, 4, 8, 9)):
        x = inputs(1, 16, 64, W, seed, layout=layout, dtype=torch.bfloat16)
        with emulated() as launches:
            out = causal_conv1d(**x | {"x": x["x"].requires_grad_()})
            torch.autograd.grad(out, x["x"], laid_out(torch.ones(1, 16, 64, dtype=torch.bfloat16), layout))
            found = sorted(launches())
        expected = few.get(layout) if 2 <= W <= 8 else None
        for kernel, name in zip(found, sorted(expected or ("causal_conv_tile{", "causal_conv_backward{")), strict=True):
            assert f"conv/{name}" in kernel


def test_which_kernels_run_with_indices(seed: int) -> None:
    few = {"tokens": "causal_conv_backward_rows{", "channels": "causal_conv_backward_columns{"}
    for layout, W, states in itertools.product(LAYOUTS, (2, 8, 9), (False, True)):
        x = inputs(1, 16, 64, W, seed, layout=layout, dtype=torch.bfloat16, states=states, seq_idx=[(0, 9), (1, 9)])
        with emulated() as launches:
            out = causal_conv1d(**x | {"x": x["x"].requires_grad_()})
            torch.autograd.grad(out, x["x"], laid_out(torch.ones(1, 16, 64, dtype=torch.bfloat16), layout))
            found = [kernel for kernel in launches() if "conv_backward" in kernel]
        assert len(found) == 1 and few.get(layout if W <= 8 else "", "causal_conv_backward{") in found[0]
        assert ".sequences = true" in found[0]


@BOTH_LAYOUTS
@pytest.mark.parametrize("W", [2, 5])
def test_missing_taps_read_nothing(W: int, layout: str, seed: int) -> None:
    """By the kernels for up to 3 and up to 8 taps: an infinite input reaches W outputs, and no gradient of x."""
    x = inputs(1, 16, 64, W, seed, dtype=torch.bfloat16, layout=layout)
    x["x"][..., 20] = torch.inf
    leaf = x["x"].requires_grad_()
    grad = laid_out((torch.arange(64) >= 20 + W).to(torch.bfloat16).expand(1, 16, 64), layout)
    with emulated():
        out = causal_conv1d(**x)
        (gradient,) = torch.autograd.grad(out, leaf, grad)
    assert not out[..., 20 : 20 + W].isfinite().any() and bool(out[..., 20 + W :].isfinite().all())
    assert bool(gradient.isfinite().all())


@BOTH_LAYOUTS
def test_pools_of_a_batch(layout: str, seed: int) -> None:
    x = inputs(3, 8, 40, 4, seed, activation="silu", layout=layout)
    pool = torch.randn(3, 8, 3, generator=torch.Generator().manual_seed(seed))
    expected, after = oracle.into_pool(x["x"], x["weight"], None, pool, None, None, True)
    with emulated():
        out = causal_conv1d(**x, conv_state=pool)
    assert rel_rms(out, expected) < 1e-5 and rel_rms(pool, after) < 1e-6


@BOTH_LAYOUTS
def test_gradients_of_any_strides(layout: str, seed: int) -> None:
    """An expanded gradient, as that of a sum, and gradients in every layout."""
    x = inputs(2, 8, 40, 4, seed, layout=layout, activation="silu")
    given = x["x"].requires_grad_()
    grads = [torch.ones(()).expand(2, 8, 40), *(laid_out(torch.ones(2, 8, 40), each) for each in LAYOUTS)]
    with emulated():
        first, *others = (torch.autograd.grad(causal_conv1d(**x), given, grad)[0] for grad in grads)
    assert all(torch.equal(first, other) for other in others)


# ---- Accuracy

PARTS = causal_accuracy.parts(length=504)


@pytest.mark.parametrize("part", PARTS)
def test_accuracy(part: str, seed: int) -> None:
    """The table of causal_accuracy.py, without errors of approximate instructions; `pytest -s` prints it."""
    with emulated():
        scan_accuracy.check(part, PARTS, "cpu", seed)
