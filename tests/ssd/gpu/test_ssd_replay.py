"""Decode by rings on the GPU: ssd_replay_on_device.py, many sequences, graphs, compiled code, offsets beyond 2^31."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from devices import GPU
from helpers import rel_rms
from ssd_replay_cases import BF16, F32, I8, Server, serve
from ssd_replay_on_device import *  # noqa: F403
from ssd_replay_on_device import RING

import gdn_cuda
from gdn_cuda import ssd_commit_replay, ssd_replay_decode


@pytest.mark.parametrize("verifies", [False, True])
@pytest.mark.parametrize("state", [F32, BF16, I8])
def test_many_sequences(state: torch.dtype, verifies: bool, seed: int) -> None:
    """Blocks of as many rows as there are, more of them than run at once, and rings that become full in different calls."""
    server = Server(seed, sequences=64, H=32, G=2, P=64, N=128, state=state, window=5, verifies=verifies, device="cuda")
    serve(server, ssd_replay_decode, ssd_commit_replay, 2)


@pytest.mark.parametrize("verifies", [False, True])
def test_equals_a_step_in_place(verifies: bool, seed: int) -> None:
    """1000 tokens, from one state. Blocks of one sequence run at once: the last of them stores what others have read."""
    server = Server(seed, sequences=7, H=128, G=8, P=64, N=128, window=16, verifies=verifies, io=F32, device="cuda", rate=0.05)
    pool = server.pool.clone()
    A = server.heads["A"][:, None, None].expand(pool.shape[1:])
    bias = server.heads["dt_bias"][:, None].expand(128, 64)
    for step in range(1000):
        tokens = server.tokens(7, 1)
        out = ssd_replay_decode(**server.arguments(tokens))
        server.accepted.fill_(1)
        one = {name: y[:, 0] for name, y in tokens.items()}
        wanted = gdn_cuda.selective_state_update(
            pool, one["x"], one["dt"][..., None].expand(7, 128, 64), A, one["B"], one["C"],
            server.heads["D"][:, None].expand(128, 64), one["z"], bias, True, state_batch_indices=server.slots,
        )  # fmt: skip
        if step % 10 == 0:
            assert rel_rms(out[:, 0], wanted) < 1e-5
    accepted = server.accepted if verifies else None
    ssd_commit_replay(server.pool, server.buffers, server.heads["A"], server.slots, accepted)
    assert rel_rms(server.pool, pool) < 1e-5


@pytest.mark.parametrize("state", [F32, BF16, I8])
def test_same_bits_in_every_run(state: torch.dtype, seed: int) -> None:
    results = []
    for _ in range(2):
        server = Server(seed, sequences=16, H=64, G=8, P=64, N=128, window=3, state=state, device="cuda")
        outs = [ssd_replay_decode(**server.arguments(server.tokens(16, 1))) for _ in range(9)]
        results.append([*outs, server.pool, server.buffers.pending])
    assert all(torch.equal(*both) for both in zip(*results, strict=True))


def test_graphs_read_current_indices_and_counts(seed: int) -> None:
    servers = [Server(seed, window=3, P=64, N=128, verifies=True, device="cuda") for _ in range(2)]
    tokens = [server.tokens(3, 2) for server in servers]
    given = [server.arguments(x) for server, x in zip(servers, tokens, strict=True)]
    for x in given:
        x["out"] = torch.empty(x["x"].shape, dtype=BF16, device="cuda")
    ssd_replay_decode(**given[0]), ssd_replay_decode(**given[1])
    graph = torch.cuda.CUDAGraph()
    before = [given[0][name].clone() for name in RING.written]
    with torch.cuda.graph(graph):
        ssd_replay_decode(**given[0])
    for name, old in zip(RING.written, before, strict=True):
        given[0][name].copy_(old)
    for call in range(6):
        counts = torch.tensor([call % 3, 1, 2], device="cuda")
        for server in servers:
            server.accepted.copy_(counts)
            server.slots.copy_(server.slots.roll(call % 2))
        graph.replay()
        ssd_replay_decode(**given[1])
        for name in (*RING.written, "out"):
            assert torch.equal(given[0][name].nan_to_num(7), given[1][name].nan_to_num(7)), (call, name)


def test_compiled_code(seed: int) -> None:
    servers = [Server(seed, window=3, device="cuda") for _ in range(2)]
    tokens = servers[0].tokens(3, 2)

    @torch.compile(fullgraph=True)
    def step(**x: Any) -> torch.Tensor:
        return ssd_replay_decode(**x) * 2

    results = [
        function(**server.arguments(tokens))
        for server, function in zip(servers, (step, lambda **x: ssd_replay_decode(**x) * 2), strict=True)
    ]
    assert torch.equal(*results)
    for mine, other in zip((servers[0].pool, *servers[0].buffers), (servers[1].pool, *servers[1].buffers), strict=True):
        assert torch.equal(mine.nan_to_num(7), other.nan_to_num(7))


def test_offsets_beyond_2_to_the_31(seed: int) -> None:
    """Slots of a pool of 9 GB, and of a ring of as many elements."""
    gc.collect()
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GB of memory")
    server = Server(seed, sequences=2, H=128, G=1, P=64, N=128, state=BF16, window=16, device="cuda")
    slots = 4200
    pool = torch.empty(slots, 128, 64, 128, dtype=BF16, device="cuda")
    last = torch.tensor([slots - 1, 2100], device="cuda")
    pool[last] = server.pool[server.slots.long()]
    ring = torch.empty(slots, 4, 128, 1024, dtype=BF16, device="cuda")[..., :64]  # 4.4 GB
    server.pool, server.slots = pool, last.int()
    B_ring = torch.zeros(slots, 4, 1, 128, dtype=BF16, device="cuda")
    delta_ring = torch.zeros(slots, 4, 128, device="cuda")
    pending = torch.zeros(slots, dtype=torch.int32, device="cuda")
    server.buffers = gdn_cuda.SsdReplayBuffers(ring, B_ring, delta_ring, pending)
    for _ in range(6):
        tokens = server.tokens(2, 1)
        out = ssd_replay_decode(**server.arguments(tokens))
        assert out.isfinite().all()
    small = Server(seed, sequences=2, H=128, G=1, P=64, N=128, state=BF16, window=4, device="cuda")
    for _ in range(6):
        expected = ssd_replay_decode(**small.arguments(small.tokens(2, 1)))
    assert torch.equal(out, expected)
    assert torch.equal(pool[last], small.pool[small.slots.long()])


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_index_dtypes(index: torch.dtype, seed: int) -> None:
    serve(Server(seed, index=index, verifies=True, device=GPU.name), ssd_replay_decode, ssd_commit_replay, 2)
