"""ssd_replay_decode and ssd_commit_replay on CPU tensors, against a server whose recurrence is a loop over tokens and heads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import rel_rms
from ssd_replay_cases import BF16, F16, F32, I8, Server, serve

import gdn_cuda
from gdn_cuda import SsdReplayBuffers, ssd_commit_replay, ssd_replay_buffers, ssd_replay_decode


@pytest.mark.parametrize("verifies", [False, True])
@pytest.mark.parametrize("state", [F32, BF16, F16, I8])
@pytest.mark.parametrize("io", [BF16, F16, F32])
@pytest.mark.parametrize("tokens, window", [(1, 4), (3, 3), (2, 5), (1, 1)])
def test_a_server(tokens: int, window: int, io: torch.dtype, state: torch.dtype, verifies: bool, seed: int) -> None:
    if (io, state) == (F32, I8):
        pytest.skip("refused")
    serve(Server(seed, window=window, io=io, state=state, verifies=verifies), ssd_replay_decode, ssd_commit_replay, tokens)


def test_in_fp64_the_reference_is_exact(seed: int) -> None:
    for verifies in (False, True):
        server = Server(seed, io=torch.float64, state=torch.float64, verifies=verifies, D=2, limit=(0.1, 0.7))
        serve(server, ssd_replay_decode, ssd_commit_replay, 2)


def test_more_tokens_than_the_ring_has_room_for(seed: int) -> None:
    """Without verify, the state takes them."""
    server = Server(seed, window=2)
    server.decode(ssd_replay_decode, [1, 1, 1])
    server.decode(ssd_replay_decode, [5, 5, 5])
    server.commit()


def test_states_in_16_bits_are_nearer_than_those_of_a_step_in_place(seed: int) -> None:
    server = Server(seed, window=16, state=BF16, io=F32, rate=0.02, sequences=1, z=False, D=0)
    pool = server.pool.clone()
    for _ in range(64):
        tokens = server.tokens(1, 1)
        server.tokens = lambda *lead, tokens=tokens: tokens  # type: ignore[method-assign]
        server.decode(ssd_replay_decode, [1])
        del server.tokens
        A = server.heads["A"][:, None, None].expand(pool.shape[1:])
        dt, bias = (y[..., None].expand(*y.shape, server.P) for y in (tokens["dt"][:, 0], server.heads["dt_bias"]))
        in_place = gdn_cuda.selective_state_update(
            pool, tokens["x"][:, 0], dt, A, tokens["B"][:, 0], tokens["C"][:, 0], dt_bias=bias, dt_softplus=True,
            state_batch_indices=server.slots,
        )  # fmt: skip
        assert in_place.isfinite().all()
    server.commit()
    mine, other = (rel_rms(y[server.slots.long()], server.states) for y in (server.pool, pool))
    assert mine < other / 2


def test_negative_and_null_slots_are_skipped(seed: int) -> None:
    server = Server(seed)
    x = server.arguments(server.tokens(3, 2))
    before = [y.clone() for y in (server.pool, *server.buffers)]
    out = ssd_replay_decode(**x | {"state_indices": torch.tensor([-1, 4, -(2**40)])}, null_slot=4, fold=True)
    assert not out.any()
    for mine, wanted in zip((server.pool, *server.buffers), before, strict=True):
        assert torch.equal(mine.nan_to_num(7), wanted.nan_to_num(7))


@pytest.mark.parametrize("wrong", [torch.inf, torch.nan])
@pytest.mark.parametrize("stored", [False, True])
def test_a_reset_clears_states_that_are_not_finite(wrong: float, stored: bool, seed: int) -> None:
    server = Server(seed, sequences=1, window=8, rate=1.0)
    server.pool[int(server.slots[0]), :, 3] = wrong
    tokens = server.tokens(1, 5)
    tokens["dt"][0, 2] = 1e5
    for part in [slice(0, 4), slice(4, 5)] if stored else [slice(0, 5)]:
        out = ssd_replay_decode(**server.arguments({name: y[:, part] for name, y in tokens.items()}))
        finite = out[0].isfinite().all(-1).all(-1)
        assert finite.tolist() == [t >= 2 for t in range(5)][part]
    ssd_commit_replay(server.pool, server.buffers, server.heads["A"], server.slots)
    assert server.pool[int(server.slots[0])].isfinite().all()


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"window": 0}, "window: expected 1 to 32, got 0"),
        ({"window": 33}, "window: expected 1 to 32, got 33"),
        ({"groups": 3}, "groups: expected a divisor of the pool's 4 heads, got 3"),
        ({"groups": 0}, "groups: expected a divisor of the pool's 4 heads, got 0"),
        ({"state_pool": torch.zeros(4, 16, 8)}, "state_pool: expected rank 4 (slots, H, P, N), got (4, 16, 8)"),
        ({"state_pool": None}, "state_pool: expected a tensor, got None"),
    ],
)
def test_arguments_that_the_buffers_refuse(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        ssd_replay_buffers(**{"state_pool": torch.zeros(2, 4, 16, 8), "window": 2, "groups": 2} | changes)
    assert str(caught.value) == f"ssd_replay_buffers: {text}"


ROWS, COLUMNS = torch.zeros(3, 2, 4, 16), torch.zeros(3, 2, 2, 32)


@pytest.mark.parametrize(
    "changes, error, text",
    [
        ({"x": ROWS[0]}, ValueError, "x: expected rank 4 (B, T, H, P), got (2, 4, 16)"),
        ({"x": ROWS.int()}, ValueError, "x: expected bfloat16 or float16 or float32 or float64, got int32"),
        ({"x": ROWS[..., :12]}, ValueError, "out: expected"),
        ({"dt": ROWS}, ValueError, "dt: expected (B, T, H) = (3, 2, 4), got (3, 2, 4, 16)"),
        ({"B": COLUMNS[..., 0]}, ValueError, "B: expected rank 4 (B, T, G, N), got (3, 2, 2)"),
        ({"B": COLUMNS[:, :, :1].expand(-1, -1, 3, -1)}, ValueError, "B: expected a number of groups that divides the 4 heads"),
        ({"C": COLUMNS[:, :, :1]}, ValueError, "C: expected (B, T, G, N) = (3, 2, 2, 32), got (3, 2, 1, 32)"),
        ({"z": ROWS.bfloat16()}, ValueError, "z: expected float32, got bfloat16"),
        ({"A": torch.zeros(3)}, ValueError, "A: expected (H,) = (4,), got (3,)"),
        ({"D": torch.zeros(4, 3)}, ValueError, "D: expected (H,) or (H, P) = (4, 16), got (4, 3)"),
        ({"dt_limit": (1.0, 0.0)}, ValueError, "dt_limit: expected a lower bound that is not above the upper one, got (1, 0)"),
        ({"state_pool": torch.zeros(5, 4, 16, 16)}, ValueError, "state_pool: expected (slots, H, P, N) = (5, 4, 16, 32)"),
        ({"state_pool": torch.zeros(5, 4, 32, 32)[:, :, ::2]}, ValueError, "state_pool: expected contiguous states that begin"),
        ({"state_indices": torch.tensor([0, 5, 1])}, IndexError, "state_indices: expected < 5, got 5"),
        ({"state_indices": torch.zeros(3, 2).int()}, ValueError, "state_indices: expected (sequences,), a slot each"),
        (
            {"state_indices": torch.zeros(2).int()},
            ValueError,
            "state_indices: expected (3,) or (3, T), a row for each sequence",
        ),
        ({"num_accepted_tokens": torch.tensor([0, 5, 1])}, IndexError, "num_accepted_tokens: expected <= 4 beside 0 pending"),
        (
            {"num_accepted_tokens": torch.zeros(2).int()},
            ValueError,
            "num_accepted_tokens: expected (sequences,) = (3,), got (2,)",
        ),
        ({"pending": torch.full((5,), 5, dtype=torch.int32)}, IndexError, "pending: expected 0 to 4, got 5"),
        ({"pending": torch.zeros(5).long()}, ValueError, "pending: expected int32, got int64"),
        ({"pending": torch.zeros(1).int().expand(5)}, ValueError, "pending: expected"),
        ({"x_ring": torch.zeros(5, 33, 4, 16)}, ValueError, "x_ring: expected room for 1 to 32 tokens in each slot"),
        ({"x_ring": torch.zeros(5, 4, 4, 16).half()}, ValueError, "x_ring: expected float32, got float16"),
        (
            {"x_ring": torch.zeros(5, 4, 4, 17)[..., 1:]},
            ValueError,
            "x_ring: expected rows that begin at multiples of 16 bytes",
        ),
        (
            {"B_ring": torch.zeros(5, 3, 2, 32)},
            ValueError,
            "B_ring: expected (slots, W, G, N) = (5, 4, 2, 32), got (5, 3, 2, 32)",
        ),
        ({"delta_ring": torch.zeros(5, 4, 3)}, ValueError, "delta_ring: expected (slots, W, H) = (5, 4, 4), got (5, 4, 3)"),
        ({"fold_mask": torch.ones(2, dtype=torch.bool)}, ValueError, "fold_mask: expected (sequences,) = (3,), got (2,)"),
        ({"fold_mask": torch.ones(3)}, ValueError, "fold_mask: expected bool, got float32"),
        ({"null_slot": -1}, ValueError, "null_slot: expected a slot number, or None, got -1"),
        ({"out": ROWS}, ValueError, "out: expected memory that does not overlap that of x"),
    ],
)
def test_calls_that_are_refused_write_nothing(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    pool = torch.zeros(5, 4, 16, 32)
    buffers = ssd_replay_buffers(pool, 4, 2, dtype=F32)
    x: dict[str, Any] = {"x": ROWS, "dt": ROWS[..., 0], "A": torch.zeros(4), "B": COLUMNS, "C": COLUMNS, "state_pool": pool}
    x |= buffers._asdict() | {"out": torch.full(ROWS.shape, 3.0)} | changes
    with pytest.raises(error) as caught:
        ssd_replay_decode(**x)
    assert str(caught.value).startswith(f"ssd_replay_decode: {text}"), str(caught.value)
    assert not any(y.any() for y in (pool, *buffers))
    assert x["out"] is ROWS or (x["out"] == 3).all()


CODES, SCALES = torch.ones(5, 4, 16, 32, dtype=I8), torch.ones(5, 4, 16, 1)
BESIDE = "state_scales: expected "


@pytest.mark.parametrize(
    "io, changes, text",
    [
        (BF16, {"state_pool": CODES}, BESIDE + "a tensor, as state_pool is int8, got None"),
        (BF16, {"state_scales": SCALES}, BESIDE + "None, as state_pool is float32, got a tensor"),
        (BF16, {"state_pool": CODES, "state_scales": SCALES.bfloat16()}, BESIDE + "float32, got bfloat16"),
        (BF16, {"state_pool": CODES, "state_scales": SCALES[..., 0]}, BESIDE + "the shape of state_pool"),
        (BF16, {"state_pool": CODES, "state_scales": SCALES[1:]}, BESIDE + "the shape of state_pool"),
        (BF16, {"state_pool": CODES, "state_scales": SCALES[:1].expand(5, -1, -1, -1)}, BESIDE),
        (BF16, {"state_pool": CODES, "state_scales": torch.ones(5, 65)[:, 1:].view(5, 4, 16, 1)}, BESIDE + "scales of slots"),
        (F32, {"state_pool": CODES, "state_scales": SCALES}, "x: expected bfloat16 or float16, as state_pool is int8, got"),
    ],
)  # fmt: skip
def test_scales_that_are_refused(io: torch.dtype, changes: dict[str, Any], text: str) -> None:
    pool = torch.zeros(5, 4, 16, 32)
    rows, columns = ROWS.to(io), COLUMNS.to(io)
    x: dict[str, Any] = {"x": rows, "dt": rows[..., 0], "A": torch.zeros(4), "B": columns, "C": columns, "state_pool": pool}
    with pytest.raises(ValueError) as caught:
        ssd_replay_decode(**x | ssd_replay_buffers(pool, 4, 2, dtype=io)._asdict() | changes)
    assert str(caught.value).startswith(f"ssd_replay_decode: {text}"), str(caught.value)


def test_columns_that_are_no_groups_are_refused() -> None:
    pool, x, B = torch.zeros(2, 2, 8, 40, dtype=I8), torch.zeros(1, 1, 2, 8).bfloat16(), torch.zeros(1, 1, 1, 40).bfloat16()
    with pytest.raises(ValueError, match="state_pool: expected N that is a multiple of 32, as it is int8"):
        ssd_replay_decode(
            x, x[..., 0], torch.zeros(2), B, B, pool, *ssd_replay_buffers(pool, 4, 1), state_scales=torch.ones(2, 2, 8, 1)
        )


@pytest.mark.parametrize("rate", [1.0, 0.05, 0.002])
def test_errors_of_codes_with_a_ring_of_16(rate: float, seed: int) -> None:
    """Beside bf16 states written at every token, over outputs of 400 tokens: at most 1.5 times the error."""
    shape = {"sequences": 1, "H": 2, "G": 1, "P": 8, "N": 64, "rate": rate, "z": False, "D": 0, "io": F16}
    servers = [Server(seed, state=state, window=window, **shape) for state, window in ((F32, 16), (I8, 16), (BF16, 1))]
    for server in servers:
        server.slots.copy_(servers[0].slots)
        server.pool.zero_()
        server.heads = servers[0].heads
    errors, total = [0.0, 0.0], 0.0
    for _ in range(400):
        tokens = servers[0].tokens(1, 1)
        exact, *outs = (ssd_replay_decode(**server.arguments(tokens), fold=n == 2) for n, server in enumerate(servers))
        total += float((exact.double() ** 2).sum())
        for n, out in enumerate(outs):
            errors[n] += float(((out.double() - exact.double()) ** 2).sum())
    mine, other = ((error / total) ** 0.5 for error in errors)
    assert mine <= 1.5 * max(other, 1e-3), (mine, other)


def test_sizes_that_no_kernel_takes_are_refused() -> None:
    for H, P, N, text in (
        (2, 12, 32, "x: expected channels of a head that are a multiple of 8, got 12"),
        (2, 16, 20, "B: expected states that are a multiple of 8, at most 256, got 20"),
        (2, 16, 264, "B: expected states that are a multiple of 8, at most 256, got 264"),
    ):
        pool, x, B = torch.zeros(2, H, P, N), torch.zeros(1, 1, H, P), torch.zeros(1, 1, 1, N)
        with pytest.raises(ValueError, match=text):
            buffers = ssd_replay_buffers(pool, 4, 1, dtype=F32)
            ssd_replay_decode(x, x[..., 0], torch.zeros(H), B, B, pool, *buffers, state_indices=torch.tensor([1]))
    pool, x, B = torch.zeros(2, 2, 8, 8), torch.zeros(1, 17, 2, 8), torch.zeros(1, 17, 1, 8)
    with pytest.raises(ValueError, match=r"x: expected at most 16 tokens, got \(1, 17, 2, 8\)"):
        ssd_replay_decode(x, x[..., 0], torch.zeros(2), B, B, pool, *ssd_replay_buffers(pool, 32, 1, dtype=F32))


def test_verify_of_more_tokens_than_the_ring_has_room_for_is_refused(seed: int) -> None:
    server = Server(seed, window=2, verifies=True)
    with pytest.raises(ValueError, match=r"x: expected at most 2 tokens, the room of x_ring .*, got"):
        ssd_replay_decode(**server.arguments(server.tokens(3, 3)))
    with pytest.raises(IndexError, match="cu_seqlens: expected sequences of at most 2 tokens, got 3"):
        ssd_replay_decode(**server.arguments(server.tokens(9)) | {"cu_seqlens": torch.tensor([0, 3, 4, 5])})


def test_buffers_that_overlap_are_refused(seed: int) -> None:
    server = Server(seed, io=F32)
    x = server.arguments(server.tokens(3, 1))
    inside = server.pool.as_strided(x["x_ring"].shape, x["x_ring"].stride())
    with pytest.raises(ValueError, match="x_ring: expected memory that does not overlap that of state_pool"):
        ssd_replay_decode(**x | {"x_ring": inside})


def test_errors_of_commit(seed: int) -> None:
    server = Server(seed)
    wrong: list[tuple[tuple[Any, ...], str]] = [
        ((None, server.buffers, server.heads["A"]), "state_pool: expected a tensor, got None"),
        (
            (server.pool, None, server.heads["A"]),
            "buffers: expected SsdReplayBuffers, which ssd_replay_buffers makes, got NoneType",
        ),
        ((server.pool, server.buffers, None), "A: expected a tensor, got None"),
        ((server.pool, server.buffers, server.heads["A"][1:]), "A: expected (H,) = (4,), got (3,)"),
        ((server.pool, server.buffers._replace(x_ring=server.pool[0]), server.heads["A"]), "buffers.x_ring: expected rank 4"),
        (
            (server.pool, server.buffers._replace(pending=None), server.heads["A"]),
            "buffers.pending: expected a tensor, got None",
        ),
        (
            (server.pool, server.buffers._replace(delta_ring=server.buffers.delta_ring[:1]), server.heads["A"]),
            "buffers.delta_ring: expected (slots, W, H) = (5, 4, 4), got (1, 4, 4)",
        ),
    ]
    for arguments, text in wrong:
        with pytest.raises(ValueError) as caught:
            ssd_commit_replay(*arguments)
        assert str(caught.value).startswith(f"ssd_commit_replay: {text}"), str(caught.value)


def test_commit_of_all_slots(seed: int) -> None:
    server = Server(seed, sequences=5)
    server.decode(ssd_replay_decode, [2] * 5)
    assert ssd_commit_replay(server.pool, server.buffers, server.heads["A"]) is server.pool
    assert rel_rms(server.pool[server.slots.long()], server.states) < 1e-5
    assert not server.buffers.pending.any() and isinstance(server.buffers, SsdReplayBuffers)


def test_gradients_are_refused(seed: int) -> None:
    server = Server(seed)
    x = server.arguments(server.tokens(3, 1))
    x["A"] = x["A"].clone().requires_grad_()
    out = ssd_replay_decode(**x)
    with pytest.raises(RuntimeError, match="ssd_scan"):
        out.float().sum().backward()


def test_an_engine_that_counts_by_itself(seed: int) -> None:
    """FlashInfer's checkpointing_ssu has rings (slots, heads, R, P) of R = window + T tokens and counts that the engine keeps:
    prev_num_accepted_tokens, and whether the last call wrote the state, which follows from them. `pending` is set to these."""
    T, window = 3, 5
    server = Server(seed, window=window, verifies=True, H=4, G=2, P=16, N=32)
    wide = ssd_replay_buffers(server.pool, window + T, server.G)
    rings = [y.transpose(1, 2).contiguous().transpose(1, 2)[:, :window] for y in wide[:3]]
    server.buffers = SsdReplayBuffers(*rings, wide.pending)
    slots, counts = server.slots.long(), torch.zeros(len(server.slots), dtype=torch.int32)
    for _ in range(12):
        server.pending, before = counts.tolist(), server.pool.clone()
        server.buffers.pending.index_copy_(0, slots, counts)
        server.accepted.zero_()
        server.decode(ssd_replay_decode, [T] * len(slots))
        writes = counts + T > window
        assert [not torch.equal(before[slot], server.pool[slot]) for slot in slots] == writes.tolist()
        server.accept_some()
        accepted = server.accepted.to(torch.int32)
        counts = torch.where(writes, accepted, counts + accepted)


def test_an_engine_that_says_when_states_are_written(seed: int) -> None:
    """vLLM's selective_state_update_replayssm_output_only takes positions in the rings, and flags of the sequences whose states
    are written, with their new tokens: at the last position, or earlier."""
    server, positions = Server(seed, window=4), torch.zeros(3, dtype=torch.int32)
    for step in range(9):
        server.buffers.pending.index_copy_(0, server.slots.long(), positions)
        flags = [int(position) == 3 or (n == 1 and step % 5 == 1) for n, position in enumerate(positions)]
        server.decode(ssd_replay_decode, [1] * 3, fold=flags)
        positions = torch.where(torch.tensor(flags), 0, positions + 1).int()
    server.commit()


def test_compiled_code(seed: int) -> None:
    """Without graph breaks, with the results of eager calls."""
    servers = [Server(seed, window=3) for _ in range(2)]
    tokens = servers[0].tokens(3, 2)

    def step(**x: Any) -> torch.Tensor:
        return ssd_replay_decode(**x) * 2

    def committed(*x: Any) -> torch.Tensor:
        return ssd_commit_replay(*x) + 1

    for function, arguments in (
        (step, lambda server: ((), server.arguments(tokens))),
        (committed, lambda server: ((server.pool, server.buffers, server.heads["A"]), {})),
    ):
        torch._dynamo.reset()
        compiled: Any = torch.compile(function, fullgraph=True, backend="aot_eager")
        results = []
        for server, call in zip(servers, (compiled, function), strict=True):
            positional, named = arguments(server)
            results.append([call(*positional, **named), server.pool, *server.buffers])
        assert all(torch.equal(mine.nan_to_num(7), other.nan_to_num(7)) for mine, other in zip(*results, strict=True))
