"""ring_decode and commit_replay on CPU tensors against a server whose recurrence is a loop over tokens and heads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import rel_rms
from ring_cases import BF16, F16, F32, I8, Server, serve

import gdn_cuda
from gdn_cuda import RingBuffers, commit_replay, fused_decode, ring_decode


@pytest.mark.parametrize("verifies", [False, True])
@pytest.mark.parametrize("state", [F32, BF16, F16])
@pytest.mark.parametrize("io", [BF16, F16])
@pytest.mark.parametrize("Hk, Hv, dk, dv", [(1, 1, 8, 8), (2, 6, 24, 16), (1, 4, 64, 40)])
def test_a_server_that_decodes_by_a_ring(
    Hk: int, Hv: int, dk: int, dv: int, io: torch.dtype, state: torch.dtype, verifies: bool, seed: int
) -> None:
    for tokens, window in ((1, 3), (2, 5), (5, 5)):
        server = Server(seed, window=window, Hk=Hk, Hv=Hv, dk=dk, dv=dv, io=io, state=state, pace=0.5, verifies=verifies)
        serve(server, ring_decode, commit_replay, tokens)
        if dk % 32 == 0:
            options = {"dk": dk, "dv": dv, "io": io, "state": I8, "verifies": verifies}
            serve(Server(seed, window=window, Hk=Hk, Hv=Hv, **options), ring_decode, commit_replay, tokens)


def test_more_tokens_than_the_ring_has_room_for(seed: int) -> None:
    server = Server(seed, window=2, dk=16, dv=8)
    for tokens in (1, 5, 16, 1, 2):
        server.decode(ring_decode, [tokens] * 3)
    server.commit()


@pytest.mark.parametrize("verifies", [False, True])
def test_in_fp64_the_reference_is_exact(verifies: bool, seed: int) -> None:
    server = Server(seed, sequences=2, Hk=2, Hv=4, dk=16, dv=8, verifies=verifies)
    server.io, server.pool, server.state_bound = torch.float64, server.pool.double(), 1e-13
    server.buffers = gdn_cuda.ring_buffers(server.pool, 4, 2, dtype=torch.float64)  # type: ignore[assignment]
    server.states = server.pool[server.slots.long()]
    serve(server, ring_decode, commit_replay, 2)


def test_fused_decode_with_buffers_equals_ring_decode(seed: int) -> None:
    """In the reference too."""
    outs, pools = [], []
    for call in ("fused", "flat", "reference"):
        server = Server(seed, window=5, dk=16, dv=8)
        x = server.arguments(server.tokens(3, 4))
        for name in (*RingBuffers._fields, "state_scales"):
            x.pop(name)
        for _ in range(2):
            if call == "flat":
                outs.append(ring_decode(**x, **server.buffers._asdict()))
            else:
                function = fused_decode if call == "fused" else gdn_cuda.reference.fused_decode
                outs.append(function(**x, replay=server.buffers))
        pools.append([server.pool, *server.buffers])
    for n in (2, 4):
        assert torch.equal(outs[n], outs[0]) and torch.equal(outs[n + 1], outs[1])
    for pool in pools[1:]:
        for mine, wanted in zip(pool, pools[0], strict=True):
            assert torch.equal(mine.nan_to_num(7), wanted.nan_to_num(7))


@pytest.mark.parametrize("state, bound", [(F32, 1e-4), (BF16, 6e-3)])
def test_a_ring_equals_steps_in_place(state: torch.dtype, bound: float, seed: int) -> None:
    """With fp32 pools up to roundings; with bf16 ones a ring is nearer to fp32."""
    server = Server(seed, window=3, dk=16, dv=8, state=F32)
    exact, pool = server.pool.clone(), server.pool.to(state)
    buffers = gdn_cuda.ring_buffers(pool, 3, 1)
    for _ in range(10):
        tokens = server.tokens(3, 1)
        given = tokens | server.heads | {"state_indices": server.slots}
        expected = fused_decode(**given, state_pool=exact)
        assert rel_rms(fused_decode(**given, state_pool=pool, replay=buffers), expected) <= max(bound, 4e-3)
    commit_replay(pool, buffers)
    assert rel_rms(pool[server.slots.long()], exact[server.slots.long()]) <= bound and not buffers.pending.any()


@pytest.mark.parametrize("split", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("wrong", [torch.inf, torch.nan])
def test_a_reset_clears_values_that_are_not_finite(wrong: float, split: int, seed: int) -> None:
    server = Server(seed, window=5, dk=16, dv=8)
    slot = int(server.slots[0])
    server.pool[slot, :, 3] = wrong
    tokens = server.tokens(3, 6)
    tokens["a"][0, 2], tokens["value"][0, 1] = 1e30, wrong
    outs = []
    for part in (slice(0, split), slice(split, 6)):
        outs.append(ring_decode(**server.arguments({name: y[:, part] for name, y in tokens.items()})))
    out = torch.cat(outs, 1)
    assert out[1:].isfinite().all() and out[0, 2:].isfinite().all() and not out[0, :2].isfinite().all()
    commit_replay(server.pool, server.buffers)
    assert server.pool[server.slots.long()].isfinite().all()


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"window": 0}, "window: expected 1 to 32, got 0"),
        ({"window": 33}, "window: expected 1 to 32, got 33"),
        ({"heads_k": 3}, "heads_k: expected a divisor of the pool's 4 heads, got 3"),
        ({"heads_k": 0}, "heads_k: expected a divisor of the pool's 4 heads, got 0"),
        ({"state_pool": torch.zeros(4, 16, 8)}, "state_pool: expected rank 4 (slots, Hv, dv, dk), got (4, 16, 8)"),
        ({"state_pool": None}, "state_pool: expected a tensor, got None"),
    ],
)
def test_arguments_that_ring_buffers_refuses(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        gdn_cuda.ring_buffers(**{"state_pool": torch.zeros(2, 4, 16, 8), "window": 2, "heads_k": 2} | changes)
    assert str(caught.value) == f"ring_buffers: {text}"


POOL = torch.zeros(5, 2, 8, 16)


@pytest.mark.parametrize(
    "changes, error, text",
    [
        ({"state_indices": torch.tensor([0, 5, 1])}, IndexError, "state_indices: expected < 5, got 5"),
        ({"pending": torch.full((5,), 5, dtype=torch.int32)}, IndexError, "pending: expected 0 to 4, got 5"),
        ({"pending": torch.full((5,), -1, dtype=torch.int32)}, IndexError, "pending: expected 0 to 4, got -1"),
        ({"pending": torch.zeros(5)}, ValueError, "pending: expected int32, got float32"),
        ({"pending": torch.zeros(4, dtype=torch.int32)}, ValueError, "pending: expected (slots,) = (5,), got (4,)"),
        (
            {"num_accepted_tokens": torch.tensor([0, 5, 1])},
            IndexError,
            "num_accepted_tokens: expected <= 4 beside 0 pending tokens, got 5",
        ),
        ({"state_indices": torch.zeros(3, 4).int()}, ValueError, "state_indices: expected (sequences,), a slot each"),
        ({"null_slot": -1}, ValueError, "null_slot: expected a slot number, or None, got -1"),
        ({"keys": torch.zeros(5, 33, 1, 16, dtype=BF16)}, ValueError, "keys: expected room for 1 to 32 tokens in each slot"),
        ({"keys": torch.zeros(5, 4, 1, 16)}, ValueError, "keys: expected bfloat16, got float32"),
        ({"updates": torch.zeros(5, 4, 2, 8, dtype=BF16)}, ValueError, "updates: expected float32, got bfloat16"),
        ({"decays": torch.zeros(5, 4, 3)}, ValueError, "decays: expected (slots, W, Hv) = (5, 4, 2), got (5, 4, 3)"),
        ({"fold_mask": torch.zeros(3)}, ValueError, "fold_mask: expected bool, got float32"),
        ({"fold_mask": torch.zeros(2, dtype=torch.bool)}, ValueError, "fold_mask: expected (sequences,) = (3,), got (2,)"),
        ({"state_pool": POOL.mT.contiguous().mT}, ValueError, "state_pool: expected contiguous states"),
        ({"a": torch.zeros(3, 4, 2, 16), "dt_bias": None}, ValueError, "a: expected a gate for each head, got a gate for"),
    ],
)  # fmt: skip
def test_calls_that_are_refused_write_nothing(changes: dict[str, Any], error: type[Exception], text: str, seed: int) -> None:
    server = Server(seed, dk=16, dv=8)
    before = [x.clone() for x in (server.pool, *server.buffers)]
    with pytest.raises(error) as caught:
        ring_decode(**server.arguments(server.tokens(3, 4)) | changes)
    assert text in str(caught.value) and str(caught.value).startswith("ring_decode: "), caught.value
    for mine, old in zip((server.pool, *server.buffers), before, strict=True):
        assert torch.equal(mine.nan_to_num(7), old.nan_to_num(7))


def test_more_than_16_tokens_are_refused(seed: int) -> None:
    server = Server(seed, dk=16, dv=8)
    with pytest.raises(ValueError, match="ring_decode: query: expected at most 16 tokens"):
        ring_decode(**server.arguments(server.tokens(3, 17)))


def test_buffers_that_overlap_are_refused(seed: int) -> None:
    server = Server(seed, dk=16, dv=8, io=BF16, state=BF16)
    server.pool = server.pool.contiguous()
    x = server.arguments(server.tokens(3, 1))
    x["updates"] = server.pool.view(-1)[: 5 * 4 * 2 * 8].view(5, 4, 2, 8)
    with pytest.raises(ValueError, match=r"ring_decode: .*updates.*memory"):
        ring_decode(**x)


def test_commit_names_its_arguments(seed: int) -> None:
    server = Server(seed, dk=16, dv=8)
    with pytest.raises(ValueError, match=r"commit_replay: buffers\.keys: expected rank 4"):
        commit_replay(server.pool, server.buffers._replace(keys=server.buffers.keys[0]))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"commit_replay: buffers\.updates: expected float32"):
        commit_replay(server.pool, server.buffers._replace(updates=server.buffers.updates.bfloat16()))  # type: ignore[arg-type]
