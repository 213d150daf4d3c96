"""The gradients of selective_scan where rows are not whole vectors: from any element on, of any length, packed."""

from __future__ import annotations

from typing import Any

import oracle
import pytest
import torch
from oracle import within
from selective_inputs import DTYPES, Draw, channels_last, selective_inputs
from torch import Tensor

import gdn_cuda

ROWS = ("u", "delta", "z", "delta_a")
BOTH_LAYOUTS = pytest.mark.parametrize("last", [False, True], ids=["tokens", "channels"])
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES)


def inputs(seed: int, *args: Any, **form: Any) -> dict[str, Any]:
    return selective_inputs(seed, *args, device="cuda", **form)


def among_nans(x: Tensor, start: int, more: int, last: bool = False) -> Tensor:
    """The same values, from element `start` of a tensor on, in rows that are `more` elements longer; all others are NaN."""
    shape = list((x.mT if last else x).shape)
    shape[-1] += more
    size = torch.Size(shape).numel()
    memory = torch.full((start + size + 16,), torch.nan, dtype=x.dtype, device=x.device)
    view = memory[start : start + size].view(shape)
    view = view[..., : shape[-1] - more]
    return (view.mT if last else view).copy_(x)


def displaced(x: dict[str, Any], start: int, last: bool) -> dict[str, Any]:
    """u, delta, z, delta_a, B and C each from another element on."""
    y = dict(x)
    for i, argument in enumerate(a for a in (*ROWS, "B", "C") if x.get(a) is not None):
        rows = argument in ROWS
        y[argument] = among_nans(x[argument], (start + i * (start % 3)) % 16, (start * 5 + i) % 9, last and rows)
    return y


def backward(x: dict[str, Any], states: Tensor, grad_out: Tensor, grad_last: Tensor) -> tuple[Tensor, ...]:
    given = [x.get(argument) for argument in gdn_cuda.scan.selective._scan.schema.arguments[:-1]]
    return torch.ops.gdn_cuda.selective_scan_backward(grad_out, grad_last, *given, states)


def cotangents(x: dict[str, Any], seed: int, last: bool) -> tuple[Tensor, Tensor]:
    draw = Draw(seed + 1, "cuda")
    out = draw.normal(*x["u"].shape, dtype=x["u"].dtype)
    return channels_last(out) if last else out, draw.normal(*x["initial_state"].shape, dtype=x["initial_state"].dtype)


def check(x: dict[str, Any], seed: int) -> None:
    grads = cotangents(x, seed, False)
    wanted = oracle.gradients(oracle.selective_scan, x, *grads)
    found = oracle.gradients(lambda **y: gdn_cuda.selective_scan(**y, return_last_state=True), x, *grads)
    for argument, gradient in found.items():
        assert within(gradient, wanted[argument], 1e-4), argument


@pytest.mark.parametrize("form", [{"length": 192, "dim": 64}, {"length": 131, "dim": 37}], ids=["whole", "ragged"])
@pytest.mark.parametrize("start", [1, 2, 3, 4, 5, 7, 8, 13])
@EVERY_DTYPE
@BOTH_LAYOUTS
def test_displaced_tensors_have_the_same_gradients(
    form: dict[str, int], start: int, dtype: torch.dtype, last: bool, seed: int
) -> None:
    """The same bits as for aligned tensors: only the loads and stores differ."""
    x = inputs(seed, N=16, dtype=dtype, last=last, **form)
    given = [x.get(argument) for argument in gdn_cuda.scan.selective._scan.schema.arguments[:-1]]
    states = torch.ops.gdn_cuda.selective_scan(*given, True)[2]
    grad_out, grad_last = cotangents(x, seed, last)
    wanted = backward(x, states, grad_out, grad_last)
    moved = among_nans(grad_out, start, 3, last)
    for _ in range(2):
        for found, expected in zip(backward(displaced(x, start, last), states, moved, grad_last), wanted, strict=True):
            assert found.stride() == expected.stride() and torch.equal(found, expected)


@pytest.mark.parametrize("length", [1, 3, 7, 9, 31, 63, 65, 71, 127, 129, 199])
@EVERY_DTYPE
@BOTH_LAYOUTS
def test_lengths_that_are_not_whole_vectors(length: int, dtype: torch.dtype, last: bool, seed: int) -> None:
    check(inputs(seed, length=length, dim=33, N=16, dtype=dtype, last=last), seed)


@pytest.mark.parametrize("start", range(1, 9))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@BOTH_LAYOUTS
def test_sequences_packed_from_any_token(start: int, dtype: torch.dtype, last: bool, seed: int) -> None:
    bounds = [0, start, start + 64, 2 * start + 64, 250]
    check(inputs(seed, batch=1, length=260, dim=32, N=16, cu_seqlens=bounds, dtype=dtype, last=last), seed)


@pytest.mark.parametrize("N", [1, 7, 16, 33, 64])
@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("start", [1, 6])
@BOTH_LAYOUTS
def test_states_at_any_element(N: int, is_complex: bool, start: int, last: bool, seed: int) -> None:
    x = inputs(seed, length=135, dim=9, N=N, is_complex=is_complex, last=last)
    check(displaced(x, start, last), seed)


@pytest.mark.parametrize("name", [n for n in oracle.DISCRETIZATIONS if n != "mamba"])
@BOTH_LAYOUTS
def test_discretizations_at_any_element(name: str, last: bool, seed: int) -> None:
    x = inputs(seed, name, length=135, dim=40, N=5, dtype=torch.bfloat16, last=last)
    check(displaced(x, 3, last), seed)


def test_strides_of_4_gib_are_refused(seed: int) -> None:
    x = inputs(seed, batch=1, length=3, dim=2, N=2, dtype=torch.bfloat16)
    given = [x.get(argument) for argument in gdn_cuda.scan.selective._scan.schema.arguments[:-1]]
    states = torch.ops.gdn_cuda.selective_scan(*given, True)[2]
    strided = torch.empty_strided((1, 2, 3), (1 << 32, 1 << 31, 1), dtype=torch.bfloat16, device="cuda").copy_(x["u"])
    message = "selective_scan_backward: u: expected strides below 4 GiB, got 2147483648 elements"
    with pytest.raises((ValueError, RuntimeError), match=message):
        backward(x | {"u": strided}, states, *cotangents(x, seed, False))
