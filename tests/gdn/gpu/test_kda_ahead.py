"""Chunks of Kimi Delta Attention prepared beside the owners of states, on the GPU: in other processes, by GDN_KDA_AHEAD."""

from pathlib import Path

import pytest
import torch
from devices import GPU
from kda_ahead_on_device import *  # noqa: F403
from kda_ahead_on_device import FORCED, ahead
from kda_chunks_on_device import inputs, there
from other_kernels import check_with

import gdn_cuda


@pytest.mark.skipif(FORCED != "auto", reason="this is the child")
@pytest.mark.parametrize("file", ["test_kda_ahead.py", "test_kda_prefill.py", "test_kda_chunks.py", "test_kda_segments.py"])
@pytest.mark.parametrize("chosen", ["1", "0"])
def test_all_tests_pass_with_and_without_it(chosen: str, file: str) -> None:
    if chosen == "0" and file == "test_kda_ahead.py":
        pytest.skip("its tests are of one launch")
    check_with(chosen, str(Path(__file__).with_name(file)), "GDN_KDA_AHEAD")


# 16 heads: owners prepare nothing; 32: they prepare first; 64: all blocks own rows, once everything is prepared.
@pytest.mark.parametrize("heads", [16, 32, 64])
@pytest.mark.parametrize("work", ["long blocks", "other calls"])
def test_it_ends_beside_other_work(heads: int, work: str) -> None:
    """Preparing waits for nobody, and comes first, whatever part of the card is free: neither blocks of another kernel that
    keep half of it nor calls of its own kind on other streams stop it."""
    x = there(GPU, inputs(4000, "init", Hk=heads, Hv=heads, dv=128))
    expected = ahead(GPU, x)
    streams = [torch.cuda.Stream() for _ in range(4)]
    busy = torch.randn(66 * 1024, 4096, device="cuda")
    torch.cuda.synchronize()
    results = []
    for _ in range(10):
        for stream in streams:
            with torch.cuda.stream(stream):
                if work == "long blocks":
                    busy[: 66 * 32].sort(dim=1)
                    busy.logcumsumexp(1)
                results.append(gdn_cuda.chunked_forward(**x, use_qk_l2norm=True))
    torch.cuda.synchronize()
    for out, state in results:
        assert torch.equal(out.cpu(), expected["out"]) and torch.equal(state.cpu(), expected["state"])
