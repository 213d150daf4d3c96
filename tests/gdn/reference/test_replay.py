"""replay_decode and commit_replay on CPU tensors against a server whose recurrence is a loop over tokens and heads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import rel_rms
from replay_cases import Server

import gdn_cuda
from gdn_cuda import ReplayBuffers, commit_replay, fused_decode, replay_decode


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("io", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("Hk, Hv, dk, dv", [(1, 1, 8, 8), (2, 6, 24, 16), (1, 4, 64, 40)])
def test_a_server_that_verifies_by_replay(
    Hk: int, Hv: int, dk: int, dv: int, io: torch.dtype, state: torch.dtype, seed: int
) -> None:
    server = Server(seed, sequences=3, steps=5, Hk=Hk, Hv=Hv, dk=dk, dv=dv, io=io, state=state, pace=0.5)
    for lengths in ([5, 5, 5], [2, 2, 2], [1, 1, 1]):
        server.verify(replay_decode, lengths)
        server.accept_some()
    server.verify(replay_decode, [5, 0, 3], packed=True)
    server.accept_some()
    server.commit()
    server.verify(replay_decode, [4, 4, 4])
    server.accept([4, 0, 2])
    server.commit()


def test_in_fp64_the_reference_is_exact(seed: int) -> None:
    """Each call runs three tokens, of which two are accepted."""
    server = Server(seed, sequences=2, Hk=2, Hv=4, dk=16, dv=8)
    server.io, server.pool = torch.float64, server.pool.double()
    server.buffers = ReplayBuffers(*(stored.double() for stored in server.buffers))
    states = server.states.clone()
    for _ in range(3):
        tokens = server.tokens(2, 3)
        mine = gdn_cuda.reference.replay_decode(**server.arguments(tokens))
        wanted = gdn_cuda.reference.fused_decode(**tokens, **server.heads, state_pool=states.clone())
        assert mine.dtype == torch.float64 and rel_rms(mine, wanted) < 1e-12
        gdn_cuda.reference.fused_decode(**{name: x[:, :2] for name, x in tokens.items()}, **server.heads, state_pool=states)
        server.accepted.fill_(2)


def test_fused_decode_with_buffers_equals_replay_decode(seed: int) -> None:
    """In the reference too."""
    outs, pools = [], []
    for call in ("fused", "flat", "reference"):
        server = Server(seed, dk=16, dv=8)
        x = server.arguments(server.tokens(3, 4)) | {"num_accepted_tokens": None}
        for name in ReplayBuffers._fields:
            x.pop(name)
        if call == "flat":
            outs.append(replay_decode(**x, **server.buffers._asdict()))
        else:
            function = fused_decode if call == "fused" else gdn_cuda.reference.fused_decode
            outs.append(function(**x, replay=server.buffers))
        pools.append([server.pool, *server.buffers])
    for out, pool in zip(outs[1:], pools[1:], strict=True):
        assert torch.equal(out, outs[0])
        for mine, wanted in zip(pool, pools[0], strict=True):
            assert torch.equal(mine.nan_to_num(7), wanted.nan_to_num(7))


@pytest.mark.parametrize(
    "changes, text",
    [
        (
            {"replay": 3},
            "replay: expected ReplayBuffers or RingBuffers, which replay_buffers and ring_buffers make, or None, got int",
        ),
        ({"step_states": torch.zeros(1)}, "step_states: expected None with replay, got Tensor"),
        ({"step_slots": torch.zeros(1)}, "step_slots: expected None with replay, got Tensor"),
    ],
)
def test_arguments_that_fused_decode_refuses_with_buffers(changes: dict[str, Any], text: str, seed: int) -> None:
    server = Server(seed, dk=16, dv=8)
    x = server.tokens(3, 4) | server.heads | {"state_pool": server.pool, "replay": server.buffers}
    with pytest.raises(ValueError) as caught:
        fused_decode(**x | changes)
    assert str(caught.value) == f"fused_decode: {text}"


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"steps": 0}, "steps: expected 1 to 16, got 0"),
        ({"steps": 17}, "steps: expected 1 to 16, got 17"),
        ({"heads_k": 3}, "heads_k: expected a divisor of the pool's 4 heads, got 3"),
        ({"heads_k": 0}, "heads_k: expected a divisor of the pool's 4 heads, got 0"),
        ({"state_pool": torch.zeros(4, 16, 8)}, "state_pool: expected rank 4 (slots, Hv, dv, dk), got (4, 16, 8)"),
        ({"state_pool": None}, "state_pool: expected a tensor, got None"),
    ],
)
def test_arguments_that_replay_buffers_refuses(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        gdn_cuda.replay_buffers(**{"state_pool": torch.zeros(2, 4, 16, 8), "steps": 2, "heads_k": 2} | changes)
    assert str(caught.value) == f"replay_buffers: {text}"


@pytest.mark.parametrize(
    "changes, error, text",
    [
        ({"state_indices": torch.tensor([0, 5, 1])}, IndexError, "state_indices: expected < 5, got 5"),
        ({"num_accepted_tokens": torch.tensor([0, 5, 1])}, IndexError, "num_accepted_tokens: expected <= 4, got 5"),
        (
            {"state_indices": torch.zeros(3, 4, dtype=torch.int32)},
            ValueError,
            "state_indices: expected (sequences,), a slot each",
        ),
        ({"null_slot": -1}, ValueError, "null_slot: expected a slot number, or None, got -1"),
    ],
)
def test_calls_that_are_refused_write_nothing(changes: dict[str, Any], error: type[Exception], text: str, seed: int) -> None:
    server = Server(seed, dk=16, dv=8)
    server.accepted.fill_(1)
    before = [x.clone() for x in (server.pool, *server.buffers)]
    with pytest.raises(error) as caught:
        replay_decode(**server.arguments(server.tokens(3, 4)) | changes)
    assert str(caught.value).startswith(f"replay_decode: {text}")
    for mine, wanted in zip((server.pool, *server.buffers), before, strict=True):
        assert torch.equal(mine.nan_to_num(7), wanted.nan_to_num(7))


def test_more_tokens_than_steps_are_refused(seed: int) -> None:
    server = Server(seed, dk=16, dv=8, steps=3)
    with pytest.raises(ValueError, match=r"query: expected at most 3 tokens, as keys .* have room for no more steps, got"):
        replay_decode(**server.arguments(server.tokens(3, 4)))
    with pytest.raises(IndexError, match="cu_seqlens: expected sequences of at most 3 tokens, got 4"):
        x = server.arguments(server.tokens(9)) | {"cu_seqlens": torch.tensor([0, 4, 5, 6])}
        replay_decode(**x)


def test_buffers_that_overlap_are_refused(seed: int) -> None:
    server = Server(seed, dk=16, dv=8)
    x = server.arguments(server.tokens(3, 4))
    memory = torch.zeros(5 * 8 * 16 * 8)
    pool = memory[: x["state_pool"].numel()].view(x["state_pool"].shape)
    inside = memory[: x["updates"].numel()].view(x["updates"].shape)
    with pytest.raises(ValueError, match="updates: expected memory that does not overlap that of state_pool"):
        replay_decode(**x | {"state_pool": pool, "updates": inside})
    with pytest.raises(ValueError, match="decays: expected memory that does not overlap that of updates"):
        replay_decode(**x | {"decays": x["updates"].flatten()[: x["decays"].numel()].view(x["decays"].shape)})


def test_commit_without_accepted_tokens_changes_nothing(seed: int) -> None:
    server = Server(seed, dk=16, dv=8)
    before = server.pool.clone()
    assert commit_replay(server.pool, server.buffers, server.slots, server.accepted) is server.pool
    assert torch.equal(server.pool, before)
    with pytest.raises(ValueError, match="commit_replay: num_accepted_tokens: expected a tensor, got None"):
        commit_replay(server.pool, server.buffers, server.slots)


def test_int8_pools_are_refused_with_the_name_of_what_takes_them() -> None:
    pool = torch.zeros(2, 1, 32, 32, dtype=torch.int8)
    buffers = gdn_cuda.replay_buffers(pool, 2, 1)
    with pytest.raises(
        ValueError, match=r"commit_replay: state_pool: expected .*ring_decode and ring_buffers take int8.*, got int8"
    ):
        commit_replay(pool, buffers, None, torch.zeros(1, dtype=torch.int32))
