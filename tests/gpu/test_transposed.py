"""torch.ops.gdn_cuda.transposed on the GPU, up to sizes beyond 2^31 elements."""

from __future__ import annotations

import pytest
import torch
from transposed_on_device import *  # noqa: F403
from transposed_on_device import operator

from gdn_cuda import _C


@pytest.mark.parametrize("rows, columns", [(1 << 18, 12288), ((1 << 18) + 3, 12289)], ids=["vectors", "elements"])
def test_sizes_beyond_2_to_the_31_elements(rows: int, columns: int) -> None:
    x = torch.randint(-(1 << 15), 1 << 15, (1, rows, columns), dtype=torch.int32, device="cuda").to(torch.int16)
    y = operator(x.view(torch.bfloat16)).view(torch.int16)
    assert y.shape == (1, columns, rows) and y.is_contiguous()
    for first in range(0, columns, 1024):  # so that torch's copy has 32-bit offsets
        assert torch.equal(y[:, first : first + 1024], x[..., first : first + 1024].mT)
    assert any(event["kernel"] == "common/transposed_copy" for event in _C.load_events())


def test_results_of_more_tiles_than_a_grid_has() -> None:
    """Batches of one element each: torch's copy."""
    x = torch.arange(256, dtype=torch.uint8, device="cuda").repeat(1 << 24).view(torch.bfloat16).view(-1, 1, 1)
    assert x.shape[0] == 1 << 31
    assert torch.equal(operator(x).flatten()[-1000:].view(torch.int16), x.flatten()[-1000:].view(torch.int16))


def test_it_is_captured_and_runs_on_the_stream_of_the_call(seed: int) -> None:
    x = torch.randn(2, 200, 72, device="cuda")
    operator(x)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = operator(x)
    x.copy_(torch.randn_like(x))
    y.fill_(torch.nan)
    graph.replay()
    assert torch.equal(y, x.mT)
