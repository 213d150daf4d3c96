"""Examples of the Gated Delta Net's operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..operators import verify
from ..operators.examples import Arguments, Case, poisoned, random
from ..runtime import package as gdn_cuda
from . import InferenceMode, replay_examples, ring_examples
from .inputs import make_gdn_inputs, make_packed_gdn_inputs, with_raw_gates
from .reference import CHUNK
from .state_codes import encode

HK, HV, DK, DV = 2, 4, 16, 8
HEADS: Arguments = {"Hk": HK, "Hv": HV, "dk": DK, "dv": DV, "gate_range": (-8.0, 0.0)}
LENGTHS = (70, 0, 3)  # packed sequences: of more than a chunk, of no tokens, of a few


def gdn(B: int, T: int, seed: int, packed: bool = False, dtype: torch.dtype = torch.bfloat16, **options: Any) -> Arguments:
    if packed:
        return make_packed_gdn_inputs(list(LENGTHS), dtype=dtype, seed=seed, **HEADS, **options)
    return make_gdn_inputs(B, T, dtype=dtype, seed=seed, **HEADS, **options)


# ---- recurrent_forward


def recurrent(
    mode: InferenceMode, packed: bool = False, state: torch.dtype | None = torch.float32, steps: int = 0, **more: Any
) -> Callable[[int, int, int], Arguments]:
    def make(B: int, T: int, seed: int) -> Arguments:
        inputs = gdn(B, T, seed, packed)
        if state is None:
            inputs["state"] = None
        else:
            inputs["state"] = inputs["state"].to(state)
        if steps:
            sequences = inputs["state"].shape[0]
            inputs["state"] = random(sequences, steps, HV, DV, DK, seed=seed, dtype=state or torch.float32)
            inputs |= verify.counts(sequences, steps)
        return inputs | {"inference_mode": mode} | more

    return make


Make = Callable[[int, int, int], Arguments]


def with_channels(make_inputs: Make, raw: bool = True, linear: bool = False, **more: Any) -> Make:
    """The call with a gate for every channel of the key."""

    def make(B: int, T: int, seed: int) -> Arguments:
        inputs = make_inputs(B, T, seed)
        gate = random(*inputs["value"].shape[:-1], DK, seed=seed + 1, dtype=torch.bfloat16 if raw else torch.float32)
        if raw:
            bias = random(HV, DK, seed=seed + 2)
            inputs |= {"dt_bias": bias.flatten() if "cu_seqlens" in inputs else bias, "beta_is_logit": True}
        else:
            gate = gate.sigmoid() if linear else -gate.abs()
        return inputs | {"gate": gate, "gate_is_linear": linear} | more

    return make


def recurrent_channels(packed: bool = False, **options: Any) -> Make:
    return with_channels(lambda B, T, seed: gdn(B, T, seed, packed), **options)


# ---- fused_decode


def decode(
    indices: str = "slot",
    packed: bool = False,
    pool: torch.dtype = torch.float32,
    index: torch.dtype = torch.int32,
    gaps: bool = False,
    steps: bool = False,
    **more: Any,
) -> Callable[[int, int, int], Arguments]:
    def make(B: int, T: int, seed: int) -> Arguments:
        tokens, sequences, longest = ((sum(LENGTHS),), len(LENGTHS), max(LENGTHS)) if packed else ((B, T), B, T)
        # All tensors are strided views of one projection.
        rows = random(*tokens, 2 * HK * DK + HV * DV + 2 * HV, seed=seed, dtype=torch.bfloat16)
        query, key, value, a, b = rows.split([HK * DK, HK * DK, HV * DV, HV, HV], dim=-1)
        width = max(longest, 1)
        slots = sequences * width + 2
        memory = random(slots, (2 if gaps else 1) * HV * DV * DK, seed=seed + 1, dtype=pool)
        inputs: Arguments = {
            "query": query.unflatten(-1, (HK, DK)),
            "key": key.unflatten(-1, (HK, DK)),
            "value": value.unflatten(-1, (HV, DV)),
            "a": a,
            "b": b,
            "A_log": random(HV, seed=seed + 2),
            "dt_bias": random(HV, seed=seed + 3, dtype=torch.bfloat16),
            "state_pool": memory[:, : HV * DV * DK].unflatten(-1, (HV, DV, DK)),
        }
        if packed:
            inputs["cu_seqlens"] = torch.tensor([0, *LENGTHS]).cumsum(0).to(index)
        if indices == "slot":
            chosen = torch.arange(sequences, dtype=index).flip(0) + 1
            chosen[2:3] = -1  # a padding row
            inputs["state_indices"] = chosen
        elif indices == "token":
            inputs |= verify.slots_and_counts(sequences, width, dtype=index)
        if steps:
            inputs["step_states"] = random(sequences + 1, longest + 1, HV, DV, DK, seed=seed + 4, dtype=pool)
            inputs["step_slots"] = torch.arange(sequences, dtype=index).flip(0)
        return inputs | more

    return make


def channel_gates(make: Callable[[int, int, int], Arguments], **more: Any) -> Callable[[int, int, int], Arguments]:
    """The call with a gate for every channel of the key."""

    def changed(B: int, T: int, seed: int) -> Arguments:
        inputs = make(B, T, seed)
        dk = inputs["query"].shape[-1]
        bias = random(*inputs["b"].shape[-1:], dk, seed=seed + 6)
        gates = {"a": random(*inputs["b"].shape, dk, seed=seed + 5, dtype=torch.bfloat16), "dt_bias": bias}
        return inputs | gates | more

    return changed


def with_codes(make: Make) -> Make:
    """The call with int8 states, and keys of 32 columns."""

    def changed(B: int, T: int, seed: int) -> Arguments:
        inputs = make(B, T, seed)
        for name in ("query", "key"):
            inputs[name] = torch.cat([inputs[name], inputs[name].flip(-1)], -1)
        coded = {"state_pool": "state_scales", "step_states": "step_scales", "state": "state_scales"}
        for pool, scales in (coded | {"final_state": "final_scales"}).items():
            if pool in inputs:
                inputs[pool], inputs[scales] = encode(torch.cat([inputs[pool], 2 * inputs[pool]], -1))
        return inputs

    return changed


def recurrent_to_final_state(B: int, T: int, seed: int) -> Arguments:
    inputs = recurrent(InferenceMode.PREFILL)(B, T, seed)
    return inputs | {"final_state": torch.full_like(inputs["state"], 7.0)}


def decode_log_decays(B: int, T: int, seed: int) -> Arguments:
    inputs = channel_gates(decode(steps=True), A_log=None, dt_bias=None)(B, T, seed)
    return inputs | {"a": -inputs["a"].abs().float()}


def decode_steps_and_last(B: int, T: int, seed: int) -> Arguments:
    """States after every token to step_states, and the last one to the pool, except that of the first sequence."""
    inputs = decode(steps=True)(B, T, seed)
    written = inputs["state_indices"].clone()
    written[:1] = -1
    return inputs | {"write_indices": written}


def decode_tree(B: int, T: int, seed: int) -> Arguments:
    """Every token continues from an earlier token, or from the slot."""
    tokens = min(T, 64)
    picked = torch.randint(0, 2**20, (B, tokens), generator=torch.Generator().manual_seed(seed))
    return decode(steps=True)(B, tokens, seed) | {"parents": (picked % (torch.arange(tokens) + 1) - 1).int()}


# ---- chunked_forward


def chunked(
    packed: bool = False, state: torch.dtype | None = torch.float32, **more: Any
) -> Callable[[int, int, int], Arguments]:
    def make(B: int, T: int, seed: int) -> Arguments:
        inputs = gdn(B, T, seed, packed)
        inputs["state"] = None if state is None else inputs["state"].to(state)
        return inputs | more

    return make


def with_offsets(make_inputs: Make, buffer: bool = False) -> Make:
    """The call with the state after some tokens of each sequence, in the caller's rows or in new ones."""

    def make(B: int, T: int, seed: int) -> Arguments:
        inputs = make_inputs(B, T, seed)
        lengths = torch.tensor(LENGTHS) if "cu_seqlens" in inputs else torch.full((B,), T)
        rows = {"checkpoints": torch.full((len(lengths), HV, DV, DK), 7.0).half()} if buffer else {}
        return inputs | {"checkpoint_offsets": (lengths * 2 // 3).int()} | rows

    return make


# ---- Arguments as serving engines have them


def has_initial_state(sequences: int) -> Tensor:
    return torch.arange(sequences) % 3 != 1


def recurrent_by_engine(B: int, T: int, seed: int) -> Arguments:
    inputs = with_raw_gates(gdn(B, T, seed), seed)
    final_state = torch.full_like(inputs["state"].mT, 7.0, dtype=torch.float16).mT  # [K, V]
    return inputs | {"has_initial_state": has_initial_state(B), "final_state": final_state}


def decode_by_engine(B: int, T: int, seed: int) -> Arguments:
    more = {"has_initial_state": has_initial_state(B), "write_indices": torch.arange(B) * T + 1}
    return decode()(B, T, seed) | more | {"allow_negative_eigenvalues": True}


def _rows(inputs: Arguments) -> Arguments:
    rows = torch.full((20, HV, DV, DK), 7.0)
    return inputs | {"checkpoint_every": CHUNK, "checkpoints": rows[:6], "states_before": rows[6:].half()}


def chunked_by_engine(B: int, T: int, seed: int) -> Arguments:
    inputs = _rows(gdn(B, T, seed, packed=True))
    gates = {"gate": inputs["gate"].exp(), "gate_is_linear": True, "has_initial_state": has_initial_state(len(LENGTHS))}
    return inputs | gates | {"final_state": torch.full_like(inputs["state"], 7.0, dtype=torch.bfloat16)}


def chunked_pool_by_engine(B: int, T: int, seed: int) -> Arguments:
    inputs = with_raw_gates(_rows(chunked_pool(packed=True)(B, T, seed)), seed)
    slots = torch.arange(len(LENGTHS))
    return inputs | {"has_initial_state": has_initial_state(len(LENGTHS)), "write_indices": (slots + 1) % len(LENGTHS)}


def more_queries(make: Callable[[int, int, int], Arguments]) -> Callable[[int, int, int], Arguments]:
    """The call with HV heads of query, and half as many of key and value."""

    def changed(B: int, T: int, seed: int) -> Arguments:
        inputs = make(B, T, seed)
        query = torch.cat([inputs["query"], inputs["key"]], dim=-2)
        return inputs | {"query": query, "value": inputs["value"][..., : HV // 2, :]}

    return changed


CHUNKS = [-(-length // CHUNK) for length in LENGTHS]  # how many each packed sequence has


def _pairs() -> Tensor:
    return torch.tensor([(n, chunk) for n, count in enumerate(CHUNKS) for chunk in range(count)], dtype=torch.int32)


def _chunks_before() -> Tensor:
    return torch.tensor([0, *CHUNKS]).cumsum(0).to(torch.int32)


def chunked_hints(B: int, T: int, seed: int) -> Arguments:
    return gdn(B, T, seed, packed=True) | {"chunk_indices": _pairs(), "cu_chunks": _chunks_before()}


def chunked_pool(packed: bool = False, pool: torch.dtype = torch.float32, **more: Any) -> Callable[[int, int, int], Arguments]:
    def make(B: int, T: int, seed: int) -> Arguments:
        inputs = gdn(B, T, seed, packed)
        sequences = inputs["state"].shape[0]
        inputs["state"] = random(sequences + 2, 2, HV, DV, DK, seed=seed, dtype=pool)[:, 0]
        inputs["state_indices"] = torch.arange(sequences).flip(0)
        inputs["state_indices"][:1] = -1
        return inputs | more

    return make


# ---- Layout, cumsum, and the steps of the chunked form


def mn_major(dtype: torch.dtype, leading: bool = True, **more: Any) -> Callable[[int, int, int], Arguments]:
    def make(B: int, T: int, seed: int) -> Arguments:
        x = random(B, T, 2 * HV, seed=seed, dtype=dtype)[..., ::2]
        return {"input": x if leading else x.flatten(0, 1)} | more

    return make


def cumsum(dtype: torch.dtype, head_first: bool, packed: bool) -> Callable[[int, int, int], Arguments]:
    def make(B: int, T: int, seed: int) -> Arguments:
        batch, tokens = (len(LENGTHS), sum(LENGTHS)) if packed else (B, T)
        x = random(*(() if packed else (B,)), tokens, HV, seed=seed, dtype=dtype)
        x = x.mT.contiguous() if head_first else x
        inputs = {"input": x, "output": poisoned(x.float()), "batch_size": batch, "seq_len": tokens, "num_heads": HV}
        if packed:
            inputs |= {"cu_seqlens": torch.tensor([0, *LENGTHS]).cumsum(0), "chunk_indices": _pairs()}
        return inputs | {"head_first": head_first}

    return make


def _step_inputs(B: int, T: int, seed: int, packed: bool, gated: bool) -> Arguments:
    x = gdn(B, T, seed, packed)
    summed = gdn_cuda.reference.chunk_local_cumsum(x["gate"], cu_seqlens=x.get("cu_seqlens"))
    x["gate"] = gdn_cuda.transpose_to_mn_major(summed) if gated else None
    x["beta"] = gdn_cuda.transpose_to_mn_major(x["beta"])
    return x


def _offsets(x: Arguments, **hints: Tensor) -> Arguments:
    return {"cu_seqlens": x["cu_seqlens"]} | hints if "cu_seqlens" in x else {}


def compute_u_w(packed: bool = False, gated: bool = True) -> Callable[[int, int, int], Arguments]:
    def make(B: int, T: int, seed: int) -> Arguments:
        x = _step_inputs(B, T, seed, packed, gated)
        w = x["value"].new_empty((*x["value"].shape[:-1], DK))
        results = {"u": poisoned(x["value"]), "w": poisoned(w)}
        return (
            {"k": x["key"], "v": x["value"], "beta": x["beta"], "gate": x["gate"]}
            | results
            | _offsets(x, chunk_indices=_pairs())
        )

    return make


def _states(x: Arguments, packed: bool) -> Tensor:
    chunks = sum(CHUNKS) + 1 if packed else -(-x["value"].shape[1] // CHUNK)
    shape = (chunks,) if packed else (x["value"].shape[0], chunks)
    return torch.full((*shape, HV, DV, DK), 7.0)


def state_update(packed: bool = False, initial: bool = False, gated: bool = True) -> Callable[[int, int, int], Arguments]:
    def make(B: int, T: int, seed: int) -> Arguments:
        x = _step_inputs(B, T, seed, packed, gated)
        u, w = gdn_cuda.reference.compute_u_w(x["key"], x["value"], x["beta"], x["gate"], x.get("cu_seqlens"))
        states = {"state": _states(x, packed), "final_state": poisoned(x["state"]), "is_initial_state": initial}
        return (
            {"k": x["key"], "u": u.bfloat16().contiguous(), "w": w.bfloat16().contiguous(), "gate": x["gate"]}
            | states
            | _offsets(x)
        )

    return make


def compute_o(packed: bool = False, gated: bool = True) -> Callable[[int, int, int], Arguments]:
    def make(B: int, T: int, seed: int) -> Arguments:
        x = _step_inputs(B, T, seed, packed, gated)
        states = random(*_states(x, packed).shape, seed=seed)
        tensors = {"q": x["query"], "k": x["key"], "u": x["value"], "o": poisoned(x["value"]), "gate": x["gate"]}
        return tensors | {"state": states} | _offsets(x, chunk_indices=_pairs(), cu_chunks=_chunks_before())

    return make


def _cases() -> Iterator[Case]:
    bf16, fp32 = torch.bfloat16, torch.float32
    for mode in InferenceMode:
        yield Case(f"recurrent-{mode.name}", gdn_cuda.recurrent_forward, recurrent(mode))
        yield Case(f"recurrent-{mode.name}-packed", gdn_cuda.recurrent_forward, recurrent(mode, packed=True), packed=True)
    verify = InferenceMode.SPEC_VERIFY
    yield Case("recurrent-no-state", gdn_cuda.recurrent_forward, recurrent(InferenceMode.PREFILL, state=None, is_qk_norm=True))
    yield Case("recurrent-bf16-state", gdn_cuda.recurrent_forward, recurrent(InferenceMode.DECODE, state=bf16, scale=0.5))
    yield Case("recurrent-accepted", gdn_cuda.recurrent_forward, recurrent(verify, steps=3))
    yield Case("recurrent-int8", gdn_cuda.recurrent_forward, with_codes(recurrent_to_final_state))
    yield Case("recurrent-int8-accepted", gdn_cuda.recurrent_forward, with_codes(recurrent(verify, steps=3)))
    packed_verify = recurrent(verify, packed=True, state=bf16, steps=4)
    yield Case("recurrent-accepted-packed", gdn_cuda.recurrent_forward, packed_verify, packed=True)

    rates, forward = random(HV, seed=1), gdn_cuda.recurrent_forward
    yield Case("recurrent-channels", forward, recurrent_channels(raw=False))
    linear = recurrent_channels(raw=False, linear=True, inference_mode=verify)
    yield Case("recurrent-channels-linear", forward, linear)
    yield Case("recurrent-channels-raw", forward, recurrent_channels(A_log=rates, is_qk_norm=True))
    yield Case("recurrent-channels-bound", forward, recurrent_channels(packed=True, lower_bound=-5.0), packed=True)

    yield Case("decode", gdn_cuda.fused_decode, decode())
    yield Case("decode-no-indices", gdn_cuda.fused_decode, decode("none", pool=bf16, use_qk_l2norm=False, scale=0.1))
    yield Case("decode-null-slot", gdn_cuda.fused_decode, decode(index=torch.int64, gaps=True, null_slot=1))
    yield Case("decode-packed", gdn_cuda.fused_decode, decode(packed=True, pool=bf16), packed=True)
    yield Case("decode-verify", gdn_cuda.fused_decode, decode("token", gaps=True))
    yield Case("decode-verify-packed", gdn_cuda.fused_decode, decode("token", packed=True, index=torch.int64), packed=True)
    yield Case("decode-step-states", gdn_cuda.fused_decode, decode(steps=True))
    yield Case("decode-steps-and-last", gdn_cuda.fused_decode, decode_steps_and_last)
    yield Case("decode-tree", gdn_cuda.fused_decode, decode_tree)
    yield Case("decode-step-states-packed", gdn_cuda.fused_decode, decode(packed=True, steps=True, pool=bf16), packed=True)

    yield Case("decode-int8", gdn_cuda.fused_decode, with_codes(decode()))
    yield Case("decode-int8-verify", gdn_cuda.fused_decode, with_codes(decode("token")))
    yield Case("decode-int8-tree", gdn_cuda.fused_decode, with_codes(decode_tree))
    yield Case("decode-int8-packed", gdn_cuda.fused_decode, with_codes(decode(packed=True, steps=True)), packed=True)
    yield Case("decode-int8-channels", gdn_cuda.fused_decode, channel_gates(with_codes(decode()), lower_bound=-5.0))

    yield Case("decode-channels", gdn_cuda.fused_decode, channel_gates(decode(), lower_bound=-5.0))
    unbounded = channel_gates(decode("token", packed=True, pool=bf16))
    yield Case("decode-channels-verify-packed", gdn_cuda.fused_decode, unbounded, packed=True)
    yield Case("decode-channels-tree", gdn_cuda.fused_decode, channel_gates(decode_tree, A_log=None, lower_bound=-0.5))
    yield Case("decode-channels-log-decays", gdn_cuda.fused_decode, decode_log_decays)

    yield Case("chunked", gdn_cuda.chunked_forward, chunked())
    yield Case("chunked-no-state", gdn_cuda.chunked_forward, chunked(state=None, use_qk_l2norm=True))
    yield Case("chunked-to-bf16", gdn_cuda.chunked_forward, chunked(state_dtype=bf16, checkpoint_every=CHUNK))
    yield Case("chunked-to-fp32", gdn_cuda.chunked_forward, chunked(state=bf16, state_dtype=fp32, scale=0.3))
    yield Case("chunked-no-final-state", gdn_cuda.chunked_forward, chunked(output_final_state=False))
    yield Case("chunked-packed", gdn_cuda.chunked_forward, chunked(packed=True, checkpoint_every=CHUNK), packed=True)
    yield Case("chunked-packed-hints", gdn_cuda.chunked_forward, chunked_hints, packed=True)
    yield Case("chunked-pool", gdn_cuda.chunked_forward, chunked_pool(checkpoint_every=CHUNK))
    pool_packed = chunked_pool(packed=True, pool=bf16, checkpoint_every=CHUNK)
    yield Case("chunked-pool-packed", gdn_cuda.chunked_forward, pool_packed, packed=True)

    yield Case("chunked-pool-int8", gdn_cuda.chunked_forward, with_codes(chunked_pool(checkpoint_every=CHUNK)))
    pool_codes = with_codes(with_offsets(chunked_pool(packed=True)))
    yield Case("chunked-pool-int8-packed", gdn_cuda.chunked_forward, pool_codes, packed=True)

    yield Case("chunked-offsets", gdn_cuda.chunked_forward, with_offsets(chunked(state_dtype=bf16)))
    pool_offsets = with_offsets(chunked_pool(packed=True), buffer=True)
    yield Case("chunked-offsets-pool-packed", gdn_cuda.chunked_forward, pool_offsets, packed=True)
    channel_offsets = with_offsets(with_channels(chunked(packed=True), raw=False))
    yield Case("chunked-offsets-channels", gdn_cuda.chunked_forward, channel_offsets, packed=True)

    yield Case("chunked-channels", gdn_cuda.chunked_forward, with_channels(chunked(checkpoint_every=CHUNK), raw=False))
    raw_channels = with_channels(chunked(state=None, use_qk_l2norm=True), A_log=rates)
    yield Case("chunked-channels-raw", gdn_cuda.chunked_forward, raw_channels)
    bound_channels = with_channels(chunked_pool(packed=True, checkpoint_every=CHUNK), lower_bound=-5.0)
    yield Case("chunked-channels-pool-packed", gdn_cuda.chunked_forward, bound_channels, packed=True)
    linear_channels = with_channels(chunked(packed=True), raw=False, linear=True)
    yield Case("chunked-channels-linear", gdn_cuda.chunked_forward, linear_channels, packed=True)

    yield Case("recurrent-by-engine", gdn_cuda.recurrent_forward, recurrent_by_engine)
    yield Case("decode-by-engine", gdn_cuda.fused_decode, decode_by_engine)
    yield Case("chunked-by-engine", gdn_cuda.chunked_forward, chunked_by_engine, packed=True)
    yield Case("chunked-pool-by-engine", gdn_cuda.chunked_forward, chunked_pool_by_engine, packed=True)

    yield Case("recurrent-more-queries", gdn_cuda.recurrent_forward, more_queries(recurrent(verify, state=bf16)))
    yield Case("decode-more-queries", gdn_cuda.fused_decode, more_queries(decode(null_slot=1)))
    yield Case("chunked-more-queries", gdn_cuda.chunked_forward, more_queries(chunked(checkpoint_every=CHUNK)))

    yield Case("replay", gdn_cuda.replay_decode, replay_examples.later_call)
    yield Case("replay-first-call", gdn_cuda.replay_decode, replay_examples.first_call)
    yield Case("replay-channels", gdn_cuda.replay_decode, replay_examples.channel_gates)
    yield Case("replay-packed", gdn_cuda.replay_decode, replay_examples.packed, packed=True)

    yield Case("ring", gdn_cuda.ring_decode, ring_examples.decode)
    yield Case("ring-verify", gdn_cuda.ring_decode, ring_examples.verify)
    yield Case("ring-packed", gdn_cuda.ring_decode, ring_examples.packed, packed=True)
    yield Case("ring-int8", gdn_cuda.ring_decode, ring_examples.codes)

    yield Case("mn-major-fp32", gdn_cuda.transpose_to_mn_major, mn_major(fp32))
    yield Case("mn-major-bf16", gdn_cuda.transpose_to_mn_major, mn_major(bf16, leading=False, alignment=128))
    for head_first in (False, True):
        name = "-head-first" if head_first else ""
        yield Case(f"cumsum{name}", gdn_cuda.chunk_local_cumsum_bf16, cumsum(bf16, head_first, False))
        yield Case(f"cumsum{name}-packed", gdn_cuda.chunk_local_cumsum_bf16, cumsum(fp32, head_first, True), packed=True)

    for packed in (False, True):
        name = "-packed" if packed else ""
        yield Case(f"u-w{name}", gdn_cuda.bf16_gdn_compute_u_w, compute_u_w(packed), packed=packed)
        update = state_update(packed, initial=True)
        yield Case(f"state-update{name}", gdn_cuda.bf16_chunked_seq_state_update, update, packed=packed)
        yield Case(f"compute-o{name}", gdn_cuda.bf16_gdn_chunked_compute_O, compute_o(packed), packed=packed)
    yield Case("u-w-no-gate", gdn_cuda.bf16_gdn_compute_u_w, compute_u_w(gated=False))
    yield Case("state-update-no-gate", gdn_cuda.bf16_chunked_seq_state_update, state_update(gated=False))
    yield Case("compute-o-no-gate", gdn_cuda.bf16_gdn_chunked_compute_O, compute_o(gated=False))


CASES = {case.name: case for case in _cases()}
