"""selective_scan on the GPU where rows begin at any element: the same bits as from rows that begin on 16 bytes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import oracle
import pytest
import torch
from oracle import relative_rms, within
from selective_inputs import DTYPES, channels_last, selective_inputs
from torch import Tensor

import gdn_cuda

ROWS = ("u", "delta", "z", "delta_a")
FORWARD = 1e-5
BOTH_LAYOUTS = pytest.mark.parametrize("last", [False, True], ids=["tokens", "channels"])


def scan(**x: Any) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        return gdn_cuda.selective_scan(**x, return_last_state=True)


def amid_nan(x: Tensor, before: int, after: int) -> Tensor:
    """x, as a slice of a tensor whose last dimension has more elements, which are NaN."""
    more = x.new_full((*x.shape[:-1], before + x.shape[-1] + after), torch.nan)
    return more[..., before : before + x.shape[-1]].copy_(x)


def placed(x: Tensor, before: int, after: int, last: bool) -> Tensor:
    return amid_nan(x.mT, before, after).mT if last else amid_nan(x, before, after)


def on_16_bytes(x: Tensor, last: bool) -> Tensor:
    return placed(x, 0, -x.shape[1 if last else 2] % 64, last)


def same(x: dict[str, Any], y: dict[str, Any]) -> None:
    for found, wanted in zip(scan(**x), scan(**y), strict=True):
        assert found.isfinite().all() and torch.equal(found, wanted)


def inputs(seed: int, last: bool = False, **form: Any) -> dict[str, Any]:
    return selective_inputs(seed, device="cuda", last=last, **form)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("before", range(1, 8))
@BOTH_LAYOUTS
def test_rows_at_every_element(before: int, dtype: torch.dtype, last: bool, seed: int) -> None:
    x = inputs(seed, last, dim=72, length=200, N=16, dtype=dtype)
    aligned = {k: on_16_bytes(v, last) if k in ROWS else v for k, v in x.items()}
    same({k: placed(v, before, 5, last) if k in ROWS else v for k, v in x.items()}, aligned)
    same(aligned | {"z": placed(x["z"], before, 8 - before, last)}, aligned)  # only the begin is unaligned


@pytest.mark.parametrize("dim", [2, 1100], ids=["few", "many"])
@pytest.mark.parametrize("length", [1, 7, 9, 31, 33, 63, 65, 95, 97, 127, 129, 199])
@pytest.mark.parametrize("dtype", DTYPES)
@BOTH_LAYOUTS
def test_odd_lengths(length: int, dtype: torch.dtype, dim: int, last: bool, seed: int) -> None:
    """Few channels have eight lanes each, many have four; next to a row's outputs are those of other rows."""
    x = inputs(seed, last, batch=8, dim=dim, length=length, N=16, dtype=dtype)
    out, state = scan(**x)
    wanted, wanted_state = oracle.selective_scan(**x)
    assert within(out, wanted, FORWARD) and within(state, wanted_state, FORWARD)
    assert all(torch.equal(found, again) for found, again in zip(scan(**x), (out, state), strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@BOTH_LAYOUTS
def test_packed_sequences_that_begin_anywhere(dtype: torch.dtype, last: bool, seed: int) -> None:
    lengths = [1, 40, 33, 0, 70, 2, 5, 129, 64, 3]
    offsets = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    x = inputs(seed, last, batch=1, dim=40, length=offsets[-1], N=16, cu_seqlens=offsets, dtype=dtype)
    out, state = scan(**x)
    for n, (first, end) in enumerate(pairwise(offsets)):
        alone = {k: x[k][..., first:end].clone() for k in (*ROWS, "B", "C")}
        expected, expected_state = scan(**x | alone | {"cu_seqlens": None, "initial_state": x["initial_state"][n : n + 1]})
        assert within(state[n : n + 1], expected_state, FORWARD)
        assert first == end or within(out[..., first:end], expected, FORWARD)


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("N", [1, 7, 16, 40, 64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_coefficients_at_every_element(N: int, is_complex: bool, dtype: torch.dtype, seed: int) -> None:
    """Along tokens and along states."""
    x = inputs(seed, dim=24, length=133, N=N, groups=2, dtype=dtype, is_complex=is_complex, in_pairs=is_complex)
    wanted = scan(**x)
    for before in range(8):
        moved = {k: amid_nan(x[k], before, 3) for k in ("B", "C")}
        assert all(torch.equal(found, each) for found, each in zip(scan(**x | moved), wanted, strict=True))
        if not is_complex:  # a pair is contiguous along tokens
            moved = {k: amid_nan(x[k].mT, before, 3).mT for k in ("B", "C")}
            assert all(torch.equal(found, each) for found, each in zip(scan(**x | moved), wanted, strict=True))
    spread = {k: torch.stack([x[k], x[k]], -1)[..., 0] for k in ("B", "C")}
    assert all(torch.equal(found, each) for found, each in zip(scan(**x | spread), wanted, strict=True))


@pytest.mark.parametrize("other", [("delta",), ("z", "delta"), ("u",), ("u", "z"), ("delta", "z", "delta_a")])
@BOTH_LAYOUTS
def test_mixed_layouts(other: tuple[str, ...], last: bool, seed: int) -> None:
    x = inputs(seed, last, dim=20, length=75, N=16, dtype=torch.bfloat16)
    mixed = x | {k: x[k].contiguous() if last else channels_last(x[k]) for k in other}
    same(mixed, x)
    cpu = {k: v.cpu() if isinstance(v, Tensor) else v for k, v in mixed.items()}
    assert scan(**mixed)[0].stride() == scan(**cpu)[0].stride()
    given = [mixed.get(argument) for argument in gdn_cuda.scan.selective._scan.schema.arguments[:-1]]
    out, state, states = torch.ops.gdn_cuda.selective_scan(*given, True)
    grads = torch.randn_like(out), torch.randn_like(state)
    found = torch.ops.gdn_cuda.selective_scan_backward(*grads, *given, states)
    on_cpu = [v.cpu() if isinstance(v, Tensor) else v for v in (*grads, *given, states)]
    for mine, wanted in zip(found, torch.ops.gdn_cuda.selective_scan_backward(*on_cpu), strict=True):
        assert mine.stride() == wanted.stride() and relative_rms(mine.cpu(), wanted) < 3e-3
