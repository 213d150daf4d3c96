"""Verify by replay on the GPU: replay_on_device.py, many sequences, graphs, compiled code, offsets beyond 2^31."""

from __future__ import annotations

import gc

import pytest
import torch
from devices import GPU
from helpers import rel_rms
from replay_cases import Server
from replay_on_device import *  # noqa: F403
from replay_on_device import WRITTEN, serve
from torch import Tensor

import gdn_cuda
from gdn_cuda import commit_replay, fused_decode, replay_decode


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
def test_many_sequences(state: torch.dtype, seed: int) -> None:
    """Several row steps per block."""
    serve(GPU, Server(seed, sequences=60, Hk=2, Hv=8, dv=128, steps=4, state=state, device="cuda"), 4)


def kept(server: Server, tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(output, state after every token) by replay's rival, and the output and arguments by replay."""
    x = server.arguments(server.tokens(len(server.slots), tokens))
    own = {name: y for name, y in x.items() if name not in (*WRITTEN[1:], "num_accepted_tokens")}
    steps = torch.empty(len(server.slots), tokens, *server.pool.shape[1:], device="cuda", dtype=server.pool.dtype)
    rows = torch.arange(len(server.slots), device="cuda")
    own["state_pool"] = server.pool.clone()
    commit_replay(own["state_pool"], server.buffers, server.slots, server.accepted)
    expected = fused_decode(**own, step_states=steps, step_slots=rows)
    return replay_decode(**x), expected, steps, rows


@pytest.mark.parametrize("batch", [3, 64])
def test_equals_verify_that_keeps_states(batch: int, seed: int) -> None:
    """To the roundings of fp32 sums."""
    server = Server(seed, sequences=batch, Hk=2, Hv=8, dk=128, dv=128, device="cuda")
    for _ in range(3):
        out, expected, steps, rows = kept(server, 4)
        assert rel_rms(out, expected) <= 5e-4
        server.accepted.copy_(rows % 4 + 1)
        committed = server.pool.clone()
        commit_replay(committed, server.buffers, server.slots, server.accepted)
        assert rel_rms(committed[server.slots.long()], steps[rows, server.accepted.long() - 1]) <= 1e-6


def test_equal_calls_give_equal_bits_and_allocate_nothing(seed: int) -> None:
    results = []
    for _ in range(3):
        server = Server(seed, sequences=40, Hk=4, Hv=8, dv=128, device="cuda")
        first = server.tokens(40, 4)
        server.tokens(40, 4)
        x = server.arguments(first)
        out = torch.empty_like(x["value"], memory_format=torch.contiguous_format)
        replay_decode(**x, out=out)
        server.accepted.fill_(3)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        replay_decode(**x, out=out)
        assert torch.cuda.max_memory_allocated() == before
        results.append([out, *(x[name].nan_to_num(7) for name in WRITTEN)])
    for result in results[1:]:
        assert all(torch.equal(*both) for both in zip(result, results[0], strict=True))


def test_a_replayed_graph_reads_the_current_slots_and_counts(seed: int) -> None:
    server = Server(seed, sequences=4, device="cuda")
    eager = Server(seed, sequences=4, device="cuda")
    tokens = server.tokens(4, 3)
    x, wanted = server.arguments(tokens), eager.arguments(tokens)
    out = torch.empty_like(x["value"], memory_format=torch.contiguous_format)
    warm = {name: y.clone() for name, y in x.items()}
    replay_decode(**warm, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replay_decode(**x, out=out)
    for slots, accepted in (([0, 1, 2, 3], [0] * 4), ([3, -1, 0, 1], [2, 1, 0, 3]), ([0, 2, -1, 3], [1, 2, 3, 0])):
        for given in (x, wanted):
            given["state_indices"].copy_(torch.tensor(slots))
            given["num_accepted_tokens"].copy_(torch.tensor(accepted))
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, replay_decode(**wanted))
        assert all(torch.equal(x[name].nan_to_num(7), wanted[name].nan_to_num(7)) for name in WRITTEN)


def test_offsets_of_slots_are_64_bit(seed: int) -> None:
    gc.collect()
    torch.cuda.empty_cache()
    server = Server(seed, sequences=1, steps=2, Hk=16, Hv=32, dv=128, state=torch.bfloat16, device="cuda")
    slot = int(server.slots[0])
    x = server.arguments(server.tokens(1, 2))
    pool = torch.empty(6000, 32, 128, 128, dtype=torch.bfloat16, device="cuda")  # slot 5999 is past 2^31 elements
    pool[5999] = server.pool[slot]
    buffers = gdn_cuda.replay_buffers(pool, 2, 16)
    for _ in range(2):
        near = replay_decode(**x)
        out = replay_decode(
            **x | {"state_pool": pool, **buffers._asdict(), "state_indices": torch.tensor([5999], device="cuda")}
        )
        assert torch.equal(near, out)
        server.accepted.fill_(2)
    assert torch.equal(pool[5999], server.pool[slot])


def test_a_compiled_call_equals_the_eager_one(seed: int) -> None:
    servers = [Server(seed, dk=128, dv=64, device="cuda") for _ in range(2)]
    tokens = servers[0].tokens(3, 4)

    @torch.compile(fullgraph=True)
    def step(buffers: gdn_cuda.ReplayBuffers, **x: Tensor) -> Tensor:
        return fused_decode(**x, replay=buffers) * 2

    results = []
    for server, function in zip(servers, (step, lambda buffers, **x: fused_decode(**x, replay=buffers) * 2), strict=True):
        x = server.arguments(tokens)
        results.append(function(server.buffers, **{name: y for name, y in x.items() if name not in WRITTEN[1:]}))
    assert torch.equal(*results)
    assert all(
        torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(servers[0].buffers, servers[1].buffers, strict=True)
    )
