"""Whatever cu_seqlens, slots, accepted counts and step slots contain, nothing out of range is read or written.

Guard bands around the tensors catch stray writes nearby; compute-sanitizer catches all others, and stray reads:

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --kernel-name kernel_substring=gdn_cuda \\
        python -m pytest -q -p no:xdist tests/gdn/gpu/test_fuzz.py

(the variable gives each tensor its own allocation). GDN_PREFILL=mma and =recurrent select the other kernels of chunked_forward.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from helpers import rel_rms
from torch import Tensor

import gdn_cuda
from gdn_cuda import InferenceMode
from gdn_cuda.gdn.inputs import make_gdn_inputs

ROUNDS = 12
BOUND = 1e-2  # loose: other files test the accuracy
MARGIN, GUARD = 1 << 14, 12288.0  # elements on either side, and their value, exact in bf16
EXTREMES = {torch.int32: (-(2**31), 2**31 - 1), torch.int64: (-(2**63), 2**63 - 1)}


class Guarded:
    """Tensors with guard bands."""

    def __init__(self) -> None:
        self.bands: list[Tensor] = []

    def new(self, *shape: int, dtype: torch.dtype = torch.bfloat16, fill: float = float("nan")) -> Tensor:
        numel = int(torch.Size(shape).numel())
        wide = torch.full((numel + 2 * MARGIN,), GUARD, dtype=dtype, device="cuda")
        self.bands += [wide[:MARGIN], wide[MARGIN + numel :]]
        return wide[MARGIN : MARGIN + numel].view(shape).fill_(fill)

    def copy(self, x: Tensor) -> Tensor:
        return self.new(*x.shape, dtype=x.dtype).copy_(x)

    def check(self) -> None:
        torch.cuda.synchronize()
        assert all(bool((band == GUARD).all()) for band in self.bands)


def some_number(rng: random.Random, dtype: torch.dtype, near: int) -> int:
    lowest, highest = EXTREMES[dtype]
    numbers = [-1, near, near + 1, -near, 2 * near, 2**31 - 1, -(2**31), lowest, highest, lowest + 1, highest - 1]
    numbers += [rng.randint(lowest, highest), rng.randint(-near - 3, 2 * near + 3), 2**32 + 1 if dtype == torch.int64 else 0]
    return rng.choice(numbers)


def offsets(rng: random.Random, tokens: int, sequences: int, dtype: torch.dtype) -> list[int]:
    """cu_seqlens, most of them wrong."""
    form = rng.choice(["right", "decreasing", "anywhere", "in range", "a few wrong", "all", "extreme"])
    inside = [rng.randint(0, tokens) for _ in range(sequences + 1)]
    if form == "decreasing":
        return sorted(inside, reverse=True)
    if form == "all":  # every second span is the whole batch
        return [tokens * (i % 2) for i in range(sequences + 1)]
    if form == "extreme":
        return [some_number(rng, dtype, tokens) for _ in inside]
    if form == "anywhere":
        return [rng.randint(-tokens, 2 * tokens) for _ in inside]
    if form == "in range":
        return inside
    inside = [0, *sorted(inside[1:])]
    for _ in range(2 if form == "a few wrong" else 0):
        inside[rng.randrange(sequences + 1)] = some_number(rng, dtype, tokens)
    return inside


def rounds(seed: int) -> Iterator[tuple[random.Random, torch.dtype]]:
    rng = random.Random(seed)
    for _ in range(ROUNDS):
        yield rng, rng.choice([torch.int32, torch.int64])


def packed_inputs(rng: random.Random, dtype: torch.dtype, dk: int, dv: int) -> dict[str, Tensor]:
    tokens, sequences = rng.choice([1, 63, 64, 200, 700]), rng.choice([1, 5, 40])
    options = {"Hk": 1, "Hv": 2, "dk": dk, "dv": dv, "dtype": torch.bfloat16, "device": "cuda", "gate_range": (-1.0, 0.0)}
    x = {name: t[0] for name, t in make_gdn_inputs(B=1, T=tokens, seed=rng.randrange(2**31), **options).items()}  # type: ignore[arg-type]
    state = torch.randn(sequences, 2, dv, dk, device="cuda")
    return x | {"state": state, "cu_seqlens": torch.tensor(offsets(rng, tokens, sequences, dtype), dtype=dtype).cuda()}


def check_in_range(x: dict[str, Tensor], out: Tensor, states: Tensor) -> None:
    """Checks states of sequences with valid offsets, and outputs of tokens that belong to exactly one of them. Tokens after the
    last sequence belong to none: their outputs are zero."""
    tokens, cu_seqlens = x["value"].shape[0], x["cu_seqlens"].tolist()
    spans = []
    for first, last in pairwise(cu_seqlens):
        start = min(max(first, 0), tokens)
        spans.append((start, min(max(last, start), tokens)))
    owners = torch.zeros(tokens, dtype=torch.int64)
    for start, end in spans:
        owners[start:end] += 1
    for n, (start, end) in enumerate(spans):
        if cu_seqlens[n : n + 2] != [start, end] or start == end:
            continue
        alone = {name: x[name][start:end][None] for name in ("query", "key", "value", "beta", "gate")}
        expected, state = gdn_cuda.recurrent_forward(**alone, state=x["state"][n : n + 1])
        assert rel_rms(states[n], state[0]) < BOUND
        mine = [t for t in range(start, end) if owners[t] == 1 and t < spans[-1][1]]
        if mine:
            assert rel_rms(out[mine], expected[0, [t - start for t in mine]]) < BOUND


@pytest.mark.parametrize("dk,dv", [(64, 64), (128, 128), (192, 64), (40, 24)])
def test_chunked_forward_stays_in_range_for_any_offsets(dk: int, dv: int, seed: int) -> None:
    for rng, dtype in rounds(seed):
        x, guarded = packed_inputs(rng, dtype, dk, dv), Guarded()
        every = rng.choice([0, 64, 128])
        out = guarded.new(*x["value"].shape)
        results = gdn_cuda.chunked_forward(**x, checkpoint_every=every, deterministic=rng.random() < 0.5, out=out)
        guarded.check()
        check_in_range(x, out, results[1])  # type: ignore[arg-type]


def test_checkpoints_of_decreasing_offsets_stay_in_range(seed: int) -> None:
    for tokens in (64, 4096):
        x = make_gdn_inputs(B=1, T=tokens, Hk=1, Hv=2, dk=128, dv=128, dtype=torch.bfloat16, device="cuda", seed=seed)
        x = {name: t[0] for name, t in x.items()} | {"state": torch.randn(5, 2, 128, 128, device="cuda")}
        cu_seqlens = torch.tensor([0, tokens, 0, tokens, 0, tokens], dtype=torch.int32, device="cuda")
        _, states, checkpoints = gdn_cuda.chunked_forward(**x, cu_seqlens=cu_seqlens, checkpoint_every=64)
        torch.cuda.synchronize()
        assert checkpoints.shape[0] == tokens // 64
        alone = {name: t[None] if name != "state" else t[:1] for name, t in x.items()}
        expected = gdn_cuda.chunked_forward(**alone, checkpoint_every=64)
        assert rel_rms(checkpoints, expected[2]) < BOUND and rel_rms(states[0], expected[1][0]) < BOUND


@pytest.mark.parametrize("mode", list(InferenceMode))
@pytest.mark.parametrize("dk,dv", [(128, 128), (40, 24)])
def test_recurrent_forward_stays_in_range_for_any_offsets(dk: int, dv: int, mode: InferenceMode, seed: int) -> None:
    for rng, dtype in rounds(seed):
        x, guarded = packed_inputs(rng, dtype, dk, dv), Guarded()
        out = guarded.new(*x["value"].shape)
        _, states = gdn_cuda.recurrent_forward(**x, inference_mode=mode, out=out)
        guarded.check()
        if mode != InferenceMode.SPEC_VERIFY:
            check_in_range(x, out, states)


def test_recurrent_forward_clamps_any_accepted_count(seed: int) -> None:
    for rng, dtype in rounds(seed):
        B, S = rng.choice([1, 7, 40]), rng.choice([1, 4])
        x = make_gdn_inputs(B=B, T=3, Hk=2, Hv=8, dk=64, dv=64, dtype=torch.bfloat16, device="cuda", seed=rng.randrange(2**31))
        guarded = Guarded()
        x["state"] = guarded.copy(torch.randn(B, S, 8, 64, 64, device="cuda"))
        accepted = torch.tensor([some_number(rng, dtype, S) for _ in range(B)], dtype=dtype).cuda()
        options = {"inference_mode": InferenceMode.SPEC_VERIFY, "out": guarded.new(*x["value"].shape)}
        out, states = gdn_cuda.recurrent_forward(**x, num_accepted_tokens=accepted, **options)  # type: ignore[arg-type]
        guarded.check()
        options["out"] = None
        clean = gdn_cuda.recurrent_forward(**x, num_accepted_tokens=accepted.clamp(1, S), **options)  # type: ignore[arg-type]
        assert torch.equal(out, clean[0]) and torch.equal(states, clean[1])


def spoilt(rng: random.Random, indices: Tensor, slots: int) -> Tensor:
    """The indices, some replaced by negative, too large or arbitrary ones."""
    flat = indices.flatten().tolist()
    for i in range(len(flat)):
        if rng.random() < 0.3:
            number = some_number(rng, indices.dtype, slots)
            flat[i] = number if not 0 <= number < slots else -1  # two sequences on one slot would race
    return torch.tensor(flat, dtype=indices.dtype).view(indices.shape).cuda()


def decode_step(rng: random.Random, guarded: Guarded, B: int, T: int, slots: int, dk: int, dv: int) -> dict[str, Tensor]:
    x = make_gdn_inputs(B=B, T=T, Hk=8, Hv=16, dk=dk, dv=dv, dtype=torch.bfloat16, device="cuda", seed=rng.randrange(2**31))
    heads = torch.randn(16, device="cuda")
    pool = guarded.copy(torch.randn(slots, 16, dv, dk, device="cuda"))
    step = {"a": x["gate"], "b": x["beta"], "A_log": heads, "dt_bias": heads, "state_pool": pool}
    return {name: x[name] for name in ("query", "key", "value")} | step


@pytest.mark.parametrize("dk,dv", [(128, 128), (40, 24)])
@pytest.mark.parametrize("how", ["decode", "verify in slots", "verify in step states", "packed"])
def test_fused_decode_treats_any_wrong_slot_as_absent(how: str, dk: int, dv: int, seed: int) -> None:
    """Equals the call with -1 in place of each wrong index, but for NaN in the outputs of those past the pool."""
    for rng, dtype in rounds(seed):
        B, T = rng.choice([1, 3, 40]), 1 if how in ("decode", "packed") else rng.choice([1, 2, 5])
        per_token, slots = how == "verify in slots", B * T + 3
        guarded = Guarded()
        step = decode_step(rng, guarded, B, T, slots, dk, dv)
        order = list(range(slots))
        rng.shuffle(order)
        right = torch.tensor(order[: B * T if per_token else B], dtype=dtype)
        indices = spoilt(rng, right.view(B, T) if per_token else right, slots)
        beyond = indices >= slots
        clean = torch.where(beyond | (indices < 0), -1, indices)
        given, wanted = dict(step), dict(step)
        wanted["state_pool"] = step["state_pool"].clone()
        read = beyond
        if per_token:
            accepted = torch.tensor([some_number(rng, dtype, T) for _ in range(B)], dtype=dtype).cuda()
            given["num_accepted_tokens"], wanted["num_accepted_tokens"] = accepted, accepted.clamp(1, T)
            read = beyond.gather(1, (accepted.clamp(1, T) - 1)[:, None].long())[:, 0]
        if how == "verify in step states":
            rows = torch.tensor(rng.sample(range(B + 2), B), dtype=dtype)
            given["step_slots"] = spoilt(rng, rows, B + 2)
            wrong = (given["step_slots"] < 0) | (given["step_slots"] >= B + 2)
            wanted["step_slots"] = torch.where(wrong, -1, given["step_slots"])
            given["step_states"] = guarded.new(B + 2, T, 16, dv, dk, dtype=torch.float32, fill=0)
            wanted["step_states"] = torch.zeros_like(given["step_states"])
        if how == "packed":
            for arguments in (given, wanted):
                arguments.update({name: arguments[name].flatten(0, 1) for name in ("query", "key", "value", "a", "b")})
                arguments["cu_seqlens"] = torch.arange(B + 1, dtype=dtype, device="cuda")
        out = gdn_cuda.fused_decode(**given, state_indices=indices, out=guarded.new(*given["value"].shape))  # type: ignore[arg-type]
        guarded.check()
        expected = gdn_cuda.fused_decode(**wanted, state_indices=clean)  # type: ignore[arg-type]
        expected[read] = float("nan")
        assert torch.equal(out.nan_to_num(GUARD), expected.nan_to_num(GUARD))
        for name in ("state_pool", "step_states"):
            assert name not in given or torch.equal(given[name], wanted[name])


def test_fused_decode_stays_in_range_for_any_offsets(seed: int) -> None:
    for rng, dtype in rounds(seed):
        tokens, sequences, guarded = rng.choice([1, 9, 40]), rng.choice([1, 5]), Guarded()
        step = decode_step(rng, guarded, tokens, 1, sequences + 2, 128, 128)
        step.update({name: step[name].flatten(0, 1) for name in ("query", "key", "value", "a", "b")})
        cu_seqlens = torch.tensor(offsets(rng, tokens, sequences, dtype), dtype=dtype).cuda()
        options: dict[str, Tensor] = {"state_indices": torch.arange(sequences, device="cuda")}
        states = rng.randrange(3)
        if states == 1:  # fewer columns than tokens
            options["state_indices"] = torch.randperm(sequences + 2)[:2].repeat(sequences, 1).cuda()
        elif states == 2:
            options["step_states"] = guarded.new(sequences, 2, 16, 128, 128, dtype=torch.float32, fill=0)
            options["step_slots"] = torch.arange(sequences, device="cuda")
        gdn_cuda.fused_decode(**step, **options, cu_seqlens=cu_seqlens, out=guarded.new(*step["value"].shape))  # type: ignore[arg-type]
        guarded.check()


@pytest.mark.parametrize("packed", [False, True])
def test_chunked_forward_stays_in_range_for_any_slots(packed: bool, seed: int) -> None:
    for rng, dtype in rounds(seed):
        guarded = Guarded()
        x = packed_inputs(rng, dtype, 128, 128)
        if not packed:
            names = ("query", "key", "value", "beta", "gate")
            x = {name: x[name][None].expand(len(x["state"]), *x[name].shape) for name in names} | {"state": x["state"]}
        sequences = x["state"].shape[0]
        order = list(range(sequences + 3))
        rng.shuffle(order)
        indices = spoilt(rng, torch.tensor(order[:sequences], dtype=dtype), len(order))
        pool = guarded.copy(torch.randn(len(order), 2, 128, 128, device="cuda"))
        before = pool.clone()
        valid = (indices >= 0) & (indices < len(order))
        out = guarded.new(*x["value"].shape)
        tokens = {name: t for name, t in x.items() if name != "state"}
        every = rng.choice([0, 64])
        gdn_cuda.chunked_forward(**tokens, state=pool, state_indices=indices, checkpoint_every=every, out=out)
        guarded.check()
        untouched = torch.ones(len(order), dtype=torch.bool, device="cuda")
        untouched[indices[valid].long()] = False
        assert torch.equal(pool[untouched], before[untouched])
        if not packed:
            starts = torch.where(valid[:, None, None, None], before[indices.long().clamp(0, len(order) - 1)], 0)
            expected, states = gdn_cuda.recurrent_forward(**tokens, state=starts)
            if valid.any():
                assert rel_rms(out[valid], expected[valid]) < BOUND
                assert rel_rms(pool[indices[valid].long()], states[valid]) < BOUND
            assert not out[indices < 0].any() and out[indices >= len(order)].isnan().all()


def test_the_pieces_stay_in_range_for_any_offsets(seed: int) -> None:
    for rng, dtype in rounds(seed):
        dk, dv = rng.choice([(64, 64), (128, 128), (40, 24)])
        x, guarded = packed_inputs(rng, dtype, dk, dv), Guarded()
        k, v, cu_seqlens = x["key"], x["value"], x["cu_seqlens"]
        tokens, sequences = v.shape[0], x["state"].shape[0]
        cumulated = guarded.new(2, tokens, dtype=torch.float32, fill=0).mT
        gdn_cuda.chunk_local_cumsum_bf16(x["gate"], cumulated, sequences, tokens, 2, False, cu_seqlens)
        beta = gdn_cuda.transpose_to_mn_major(x["beta"])
        u, w, o = guarded.new(tokens, 2, dv, fill=0), guarded.new(tokens, 2, dk, fill=0), guarded.new(tokens, 2, dv, fill=0)
        gdn_cuda.bf16_gdn_compute_u_w(k, v, u, w, beta, cumulated, cu_seqlens=cu_seqlens)
        chunks = -(-tokens // 64) + rng.choice([0, sequences])
        states = guarded.new(chunks, 2, dv, dk, dtype=torch.float32, fill=0)
        last = guarded.new(sequences, 2, dv, dk, dtype=torch.float32, fill=0)
        gdn_cuda.bf16_chunked_seq_state_update(k, u, w, states, last, cumulated, True, True, cu_seqlens=cu_seqlens)
        gdn_cuda.bf16_gdn_chunked_compute_O(x["query"], states, k, u, o, cumulated, cu_seqlens=cu_seqlens)
        guarded.check()
