"""common/transposed_copy on the GPU: calls of selective_scan whose tensors are in different layouts."""

from __future__ import annotations

from typing import Any

import oracle
import pytest
import torch
from selective_inputs import DTYPES, channels_last, identity_scan, selective_inputs
from torch import Tensor

import gdn_cuda
from gdn_cuda import _C

ROWS = ("u", "delta", "z", "delta_a")
TO_BOTH_LAYOUTS = pytest.mark.parametrize("last", [False, True], ids=["to-tokens", "to-channels"])


def scan(**x: Any) -> tuple[Tensor, Tensor]:
    return gdn_cuda.selective_scan(**x, return_last_state=True)


def poison() -> None:
    """Fills memory that the allocator hands out next with NaN."""
    for size in (1 << 12, 1 << 16, 1 << 20, 1 << 24):
        torch.full((size,), torch.nan, device="cuda")


def check(u: Tensor, last: bool) -> None:
    poison()
    for found in identity_scan(u, last):
        assert torch.equal(found, u)


def laid_out(x: dict[str, Any], names: tuple[str, ...], last: bool) -> dict[str, Any]:
    return x | {k: channels_last(x[k]) if last else x[k].contiguous() for k in names}


# ---- A scan that returns u

SIZES = [(1, 70), (70, 1), (2, 3), (8, 8), (63, 65), (64, 64), (72, 136), (129, 200), (128, 67), (35, 512), (1536, 2048)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim, length", SIZES)
@TO_BOTH_LAYOUTS
def test_sizes(dim: int, length: int, last: bool, dtype: torch.dtype) -> None:
    u = torch.randn(3, dim, length, device="cuda", dtype=dtype)
    check(u if last else channels_last(u), last)
    loaded = {event["configuration"] for event in _C.load_events() if event["kernel"] == "common/transposed_copy"}
    assert min(dim, length) == 1 or f"{{.element_bytes = {u.element_size()}}}" in loaded


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("begin", range(9))
@TO_BOTH_LAYOUTS
def test_parts_of_other_tensors(begin: int, last: bool, dtype: torch.dtype) -> None:
    more = torch.randn(4, 90, 160, device="cuda", dtype=dtype)
    for part in (more[::2, :, begin:], more[1:, begin:, begin : begin + 64], more[:, ::2, begin:-8], more[:, :72, ::2]):
        check(part if last else part.mT, last)


@pytest.mark.parametrize("batch, dim, length", [(70_000, 3, 2), (1, 64 * 300, 64 * 300)])
@TO_BOTH_LAYOUTS
def test_more_than_65535_batches_or_tiles(batch: int, dim: int, length: int, last: bool) -> None:
    u = torch.randn(batch, dim, length, device="cuda", dtype=torch.bfloat16)
    check(u if last else u.view(batch, length, dim).mT, last)


@pytest.mark.parametrize("dim, length", [(4104, 1 << 19), (4099, (1 << 19) + 3)], ids=["vectors", "elements"])
@TO_BOTH_LAYOUTS
def test_offsets_beyond_2_to_the_31_elements(dim: int, length: int, last: bool) -> None:
    u = torch.randn(1, dim, length, device="cuda", dtype=torch.bfloat16)
    check(u if last else u.view(1, length, dim).mT, last)


# ---- Any scan


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("other", [("u",), ("delta",), ("z", "delta"), ("u", "delta_a"), ("grad",), ("grad", "z")])
@pytest.mark.parametrize("dim, length", [(24, 136), (20, 75)], ids=["vectors", "elements"])
@pytest.mark.parametrize("last", [False, True], ids=["tokens", "channels"])
def test_results_are_those_of_tensors_in_one_layout(
    dim: int, length: int, other: tuple[str, ...], last: bool, dtype: torch.dtype, seed: int
) -> None:
    """Bit for bit. u decides a tie, in forward and backward; results then have the layout of fewer tensors."""
    x = selective_inputs(seed, dim=dim, length=length, N=16, dtype=dtype, last=last, device="cuda")
    mixed = laid_out(x, tuple(k for k in other if k in ROWS), not last)
    if other == ("u", "delta_a"):
        x = laid_out(x, ROWS, not last)
    poison()
    results = scan(**mixed)
    wanted = scan(**x)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(results, wanted, strict=True))
    out, state = wanted
    grad, grad_state = torch.randn_like(out), torch.randn_like(state)
    other_grad = (grad.contiguous() if last else channels_last(grad)) if "grad" in other else grad
    gradients = oracle.gradients(scan, x, grad, grad_state)
    poison()
    for argument, found in oracle.gradients(scan, mixed, other_grad, grad_state).items():
        assert torch.equal(found, gradients[argument]), argument


@pytest.mark.parametrize("last", [False, True], ids=["tokens", "channels"])
def test_graphs_capture_copies(last: bool, seed: int) -> None:
    form = {"length": 200, "dim": 40, "N": 16, "dtype": torch.bfloat16, "last": last, "device": "cuda"}
    x, other = (laid_out(selective_inputs(seed + i, **form), ("delta", "z"), not last) for i in range(2))
    grads = [torch.randn_like(y) for y in scan(**x)]
    oracle.gradients(scan, x, *grads)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = *scan(**x), *oracle.gradients(scan, x, *grads).values()
    for k, v in other.items():
        if isinstance(v, Tensor):
            x[k].copy_(v)
    for y in captured:
        y.fill_(torch.nan)
    graph.replay()
    wanted = *scan(**other), *oracle.gradients(scan, other, *grads).values()
    assert all(torch.equal(found, each) for found, each in zip(captured, wanted, strict=True))


@TO_BOTH_LAYOUTS
def test_copies_are_made_on_the_stream_of_the_call(last: bool) -> None:
    u = torch.randn(2, 256, 512, device="cuda")
    u = u if last else channels_last(u)
    check(u, last)  # compiles
    late = torch.full_like(u, torch.nan)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(100_000_000)
        late.copy_(u)
        found = identity_scan(late, last)
    torch.cuda.synchronize()
    assert all(torch.equal(each, u) for each in found)
