"""Verify by replay on the GPU: servers against the recurrence in fp64, and everything a serving engine does to them."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from helpers import rel_rms
from replay_cases import Server
from torch import Tensor

import gdn_cuda
from gdn_cuda import commit_replay, fused_decode, replay_decode

WRITTEN = ("state_pool", "keys", "updates", "decays", "banks")


def serve(server: Server, tokens: int) -> None:
    """Padded and packed calls, sequences of no tokens among them."""
    count = len(server.slots)
    for lengths in ([tokens] * count, [tokens - tokens // 2] * count, [1] * count):
        server.verify(replay_decode, lengths)
        server.accept_some()
    server.verify(replay_decode, ([tokens, 0, tokens - 1] * count)[:count], packed=True)
    server.accept([len(after) - 1 for after in server.after])
    server.commit()


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "dk, dv", [(64, 136), (96, 192), (128, 128), (192, 96), (256, 256), (8, 8), (40, 72), (120, 16), (200, 40)]
)
def test_head_dimensions(dk: int, dv: int, state: torch.dtype, seed: int) -> None:
    for io, steps in ((torch.bfloat16, 3), (torch.float16, 9)):
        serve(Server(seed, dk=dk, dv=dv, state=state, io=io, steps=steps, device="cuda"), steps)


@pytest.mark.parametrize("steps", [1, 2, 8, 16])
@pytest.mark.parametrize("Hk, Hv", [(1, 1), (2, 6), (1, 8)])
def test_steps_and_heads(steps: int, Hk: int, Hv: int, seed: int) -> None:
    serve(Server(seed, Hk=Hk, Hv=Hv, dk=64, dv=24, steps=steps, index=torch.int64, device="cuda"), steps)


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
def test_many_sequences(state: torch.dtype, seed: int) -> None:
    """Several row steps a block."""
    serve(Server(seed, sequences=60, Hk=2, Hv=8, dv=128, steps=4, state=state, device="cuda"), 4)


def test_rows_that_do_not_start_on_16_bytes(seed: int) -> None:
    server = Server(seed, dk=72, dv=16, device="cuda")
    tokens = server.tokens

    def shifted(*lead: int) -> dict[str, Tensor]:
        x = tokens(*lead)
        wide = torch.zeros(*x["key"].shape[:-1], 73, dtype=x["key"].dtype, device="cuda")
        return x | {"key": wide[..., 1:].copy_(x["key"])}

    server.tokens = shifted  # type: ignore[method-assign]
    serve(server, 4)


def test_a_long_service(seed: int) -> None:
    """Errors do not pile up, whatever is accepted. Weak gates: states remember all of it."""
    server = Server(seed, dk=128, dv=64, steps=5, device="cuda")
    server.heads["A_log"] -= 5
    for _ in range(30):
        server.verify(replay_decode, [5] * 3)
        server.accept_some()
    server.commit()


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


def test_hostile_slots_and_counts(seed: int) -> None:
    """NaN for slots past the pool and counts past the steps, 0 for slots that are none; nothing of either is touched."""
    server = Server(seed, sequences=8, steps=5, device="cuda")
    x: dict[str, Any] = server.arguments(server.tokens(8, 3))
    for name in ("keys", "updates"):
        x[name].normal_()
    x["decays"].fill_(0.5)
    x["state_indices"] = torch.tensor([2**63 - 1, 1, 2, -(2**63), 2**32, 3, 4, 5], device="cuda")
    x["num_accepted_tokens"] = torch.tensor([1, 2**63 - 1, -(2**63), 2**62, 6, 6, 2**32, 5], device="cuda")
    before = {name: x[name].clone() for name in WRITTEN}
    out = replay_decode(**x, null_slot=4)
    assert out[[0, 1, 4, 5]].isnan().all() and not out[[3, 6]].any() and out[[2, 7]].isfinite().all()
    for name, old in before.items():
        changed = [slot for slot in range(old.shape[0]) if not torch.equal(x[name][slot], old[slot])]
        assert changed == ([5] if name == "state_pool" else [2, 5])


@pytest.mark.parametrize("offsets", [[0, 9, 0, 9], [300, 200, 100, 0], [-(2**63), 2**63 - 1, 5, -(2**63)], [0, 6, 6, 2**32]])
def test_hostile_offsets(offsets: list[int], seed: int) -> None:
    server = Server(seed, steps=5, device="cuda")
    x = server.arguments(server.tokens(9)) | {"cu_seqlens": torch.tensor(offsets, device="cuda")}
    out = replay_decode(**x)
    torch.cuda.synchronize()
    if offsets[1] == 6:
        assert out[:6].isnan().all()


def test_nothing_is_read_of_steps_that_were_not_accepted(seed: int) -> None:
    """Buffers begin full of NaN (replay_cases.py); here the accepted steps alone hold numbers."""
    server = Server(seed, device="cuda")
    server.verify(replay_decode, [4] * 3)
    server.accept([1, 2, 3])
    for n, slot in enumerate(server.slots.tolist()):
        bank = int(server.buffers.banks[slot, 0, 0])
        server.buffers.keys[slot, bank, n + 1 :], server.buffers.decays[slot, bank, n + 1 :] = torch.nan, torch.nan
        server.buffers.updates[slot, n + 1 :] = torch.nan
    server.verify(replay_decode, [4] * 3)
    server.accept_some()
    server.commit()


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
    pool = torch.empty(6000, 32, 128, 128, dtype=torch.bfloat16, device="cuda")  # slot 5999 lies past 2^31 elements
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
