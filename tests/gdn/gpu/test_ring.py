"""Decode by rings on the GPU: ring_on_device.py, many sequences, graphs, compiled code, errors over many tokens."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from helpers import rel_rms
from ring_cases import BF16, F16, F32, I8, Server, serve
from ring_on_device import *  # noqa: F403
from ring_on_device import RING, STATES

import gdn_cuda
from gdn_cuda import RingBuffers, commit_replay, fused_decode, ring_decode
from gdn_cuda.gdn.state_codes import decode, encode


@pytest.mark.parametrize("verifies", [False, True])
@pytest.mark.parametrize("state", STATES)
def test_many_sequences(state: torch.dtype, verifies: bool, seed: int) -> None:
    """Blocks of as many rows as there are, more of them than run at once, and rings that become full in different calls."""
    server = Server(seed, sequences=90, Hk=2, Hv=8, dv=128, state=state, window=5, verifies=verifies, device="cuda")
    serve(server, ring_decode, commit_replay, 2)


@pytest.mark.parametrize("batch", [1, 40])
def test_equals_steps_in_place(batch: int, seed: int) -> None:
    """1000 tokens, from one state."""
    server = Server(seed, sequences=batch, Hk=16, Hv=32, dv=128, window=8, device="cuda")
    server.heads["A_log"] -= 5
    pool = server.pool.clone()
    for step in range(1000):
        x = server.arguments(server.tokens(batch, 1))
        out = ring_decode(**x)
        own = {name: y for name, y in x.items() if name not in ("keys", "updates", "decays", "pending", "state_scales")}
        wanted = fused_decode(**own | {"state_pool": pool})
        if step % 10 == 0:
            assert rel_rms(out, wanted) < 5e-4
    commit_replay(server.pool, server.buffers, server.slots)
    assert rel_rms(server.pool, pool) < 1e-5


@pytest.mark.parametrize("pace", [0.0, -3.0, -6.0])
def test_errors_over_many_tokens(pace: float, seed: int) -> None:
    """int8 with a ring of 8 beside bf16 states written at every token: outputs in fp16, as bf16 hides the difference."""
    generator = torch.Generator("cuda").manual_seed(seed)
    sequences, Hk, Hv, D, W = 4, 4, 8, 128, 8
    draw = lambda *shape: torch.randn(*shape, generator=generator, device="cuda")  # noqa: E731
    heads = (torch.full((Hv,), pace, device="cuda"), draw(Hv))
    start = torch.zeros(sequences, Hv, D, D, device="cuda")
    exact, in_place, coded = start.clone(), start.bfloat16(), encode(start)
    ring = gdn_cuda.ring_buffers(coded[0], W, Hk, dtype=F16)
    errors, total = {"in place": 0.0, "ring": 0.0}, 0.0
    for _ in range(1024):
        q, k = (draw(sequences, 1, Hk, D).to(F16) for _ in range(2))
        v = draw(sequences, 1, Hv, D).to(F16)
        a, b = (draw(sequences, 1, Hv).to(F16) for _ in range(2))
        wanted = fused_decode(q, k, v, a, b, *heads, exact).double()
        outs = {
            "in place": fused_decode(q, k, v, a, b, *heads, in_place),
            "ring": ring_decode(q, k, v, a, b, *heads, coded[0], *ring, state_scales=coded[1]),
        }
        total += float((wanted**2).sum())
        for name, out in outs.items():
            errors[name] += float(((out.double() - wanted) ** 2).sum())
    mine, other = (errors[name] / total for name in ("ring", "in place"))
    assert mine**0.5 <= 1.5 * other**0.5, (mine**0.5, other**0.5)
    commit_replay(coded[0], ring, state_scales=coded[1])
    assert rel_rms(decode(*coded), exact) <= 2 * max(rel_rms(in_place, exact), 3e-3)


@pytest.mark.parametrize("state", STATES)
def test_same_bits_in_every_run_and_alone(state: torch.dtype, seed: int) -> None:
    results = []
    for _ in range(2):
        server = Server(seed, sequences=40, Hk=16, Hv=32, dv=128, window=3, state=state, device="cuda")
        single = Server(seed, sequences=40, Hk=16, Hv=32, dv=128, window=3, state=state, device="cuda")
        outs = []
        for _ in range(9):
            x = server.arguments(server.tokens(40, 1))
            outs.append(ring_decode(**x))
            own = {name: y[7:8] for name, y in x.items() if name in ("query", "key", "value", "a", "b", "state_indices")}
            kept = {name: getattr(single.buffers, name) for name in RingBuffers._fields}
            alone = ring_decode(**x | own | kept | {"state_pool": single.pool, "state_scales": single.scales})
            assert torch.equal(alone[0], outs[-1][7])
        results.append([*outs, server.pool, server.buffers.pending])
    assert all(torch.equal(*both) for both in zip(*results, strict=True))


@pytest.mark.parametrize("state", [F32, BF16, I8])
def test_graphs_read_current_indices_and_counts(state: torch.dtype, seed: int) -> None:
    servers = [Server(seed, window=3, dv=128, state=state, verifies=True, device="cuda") for _ in range(2)]
    tokens = [server.tokens(3, 2) for server in servers]
    given = [server.arguments(x) for server, x in zip(servers, tokens, strict=True)]
    for x in given:
        x["out"] = torch.empty(x["value"].shape, dtype=BF16, device="cuda")
    written = (*RING.written, *(["state_scales"] if state == I8 else []))
    ring_decode(**given[0]), ring_decode(**given[1])
    graph = torch.cuda.CUDAGraph()
    before = [given[0][name].clone() for name in written]
    with torch.cuda.graph(graph):
        ring_decode(**given[0])
    for name, old in zip(written, before, strict=True):
        given[0][name].copy_(old)
    for call in range(6):
        counts = torch.tensor([call % 3, 1, 2], device="cuda")
        for server in servers:
            server.accepted.copy_(counts)
            server.slots.copy_(server.slots.roll(call % 2))
        graph.replay()
        ring_decode(**given[1])
        for name in (*written, "out"):
            assert torch.equal(given[0][name].nan_to_num(7), given[1][name].nan_to_num(7)), (call, name)


def test_compiled_code(seed: int) -> None:
    servers = [Server(seed, window=3, device="cuda") for _ in range(2)]
    tokens = servers[0].tokens(3, 2)

    @torch.compile(fullgraph=True)
    def step(buffers: RingBuffers, **x: Any) -> torch.Tensor:
        return fused_decode(**x, replay=buffers) * 2

    results = []
    for server, function in zip(servers, (step, lambda buffers, **x: fused_decode(**x, replay=buffers) * 2), strict=True):
        x = server.arguments(tokens)
        names = (*RING.written[1:], "state_scales", "num_accepted_tokens")
        results.append(function(server.buffers, **{name: y for name, y in x.items() if name not in names}))
    assert torch.equal(*results)
    for mine, other in zip(servers[0].buffers, servers[1].buffers, strict=True):
        assert torch.equal(mine.nan_to_num(7), other.nan_to_num(7))


def test_offsets_of_slots_are_64_bit(seed: int) -> None:
    gc.collect()
    torch.cuda.empty_cache()
    server = Server(seed, sequences=1, window=2, Hk=16, Hv=32, dv=128, state=BF16, device="cuda")
    slot = int(server.slots[0])
    pool = torch.empty(6000, 32, 128, 128, dtype=BF16, device="cuda")  # slot 5999 is past 2^31 elements
    pool[5999] = server.pool[slot]
    buffers = gdn_cuda.ring_buffers(pool, 2, 16)
    for _ in range(7):
        x = server.arguments(server.tokens(1, 1))
        near = ring_decode(**x)
        far = {"state_pool": pool, **buffers._asdict(), "state_indices": torch.tensor([5999], device="cuda")}
        assert torch.equal(near, ring_decode(**x | far))
    assert torch.equal(pool[5999], server.pool[slot])
