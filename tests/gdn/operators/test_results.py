"""Results on CPU tensors: every public function against the reference in fp64, with outputs poisoned first.

tests/gdn/reference tests the reference itself; these tests cover arguments, dtypes, layouts and written memory.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gdn_cases import CASES, output_of
from gdn_inputs import take_sequence, to_double
from helpers import rel_rms
from operator_cases import copied
from torch import Tensor

import gdn_cuda
from gdn_cuda import InferenceMode, reference
from gdn_cuda.gdn.examples import LENGTHS
from gdn_cuda.gdn.state_codes import decode
from gdn_cuda.operators.examples import Arguments, Case, poisoned

# One rounding of a stored result; for fp32, the errors of its sums.
ROUNDING = {torch.bfloat16: 4e-3, torch.float16: 5e-4, torch.float32: 1e-5, torch.int8: 1e-3}
SCALES = {"state_pool": "state_scales", "state": "state_scales", "step_states": "step_scales", "final_state": "final_scales"}
SIZES = [(2, 5), (1, 1), (3, 130), (0, 3), (2, 0)]
WITH_OUT = {name: case for name, case in CASES.items() if case.out_argument}


def doubled(arguments: Arguments) -> Arguments:
    tensors = {name: copied(x) for name, x in arguments.items() if isinstance(x, Tensor)}
    return arguments | to_double(tensors)


def expected_results(case: Case, arguments: Arguments) -> tuple[list[Tensor], Arguments]:
    """Expected results, and expected contents of the written arguments, from the reference in fp64."""
    x = doubled(arguments)
    function = case.function
    if function is gdn_cuda.fused_gdn_gating:
        return list(reference.fused_gdn_gating(x["A_log"], x["dt_bias"], x["a"], x["b"])), {}
    if function is gdn_cuda.recurrent_forward:
        return list(reference.recurrent_forward(**x)), {name: x[name] for name in ("final_state", "final_scales") if name in x}
    if function is gdn_cuda.fused_decode:
        output = reference.fused_decode(**x)
        return [output], {name: x[name] for name in ("state_pool", "step_states", *SCALES.values()) if name in x}
    if function is gdn_cuda.replay_decode:
        output = reference.replay_decode(**x)
        return [output], {name: x[name] for name in ("state_pool", *gdn_cuda.ReplayBuffers._fields)}
    if function is gdn_cuda.ring_decode:
        output = reference.ring_decode(**x)
        written = ("state_pool", "state_scales", *gdn_cuda.RingBuffers._fields)
        return [output], {name: x[name] for name in written if name in x}
    if function is gdn_cuda.chunked_forward:
        return expected_chunked(x)
    if function is gdn_cuda.chunked_summary:
        return [reference.chunked_summary(**x)], {}
    if function is gdn_cuda.transpose_to_mn_major:
        return [x["input"]], {}
    if function is gdn_cuda.chunk_local_cumsum_bf16:
        return [], {"output": reference.chunk_local_cumsum(x["input"], x["head_first"], x.get("cu_seqlens"))}
    offsets = x.get("cu_seqlens")
    if function is gdn_cuda.bf16_gdn_compute_u_w:
        u, w = reference.compute_u_w(x["k"], x["v"], x["beta"], x["gate"], offsets)
        return [], {"u": u, "w": w}
    if function is gdn_cuda.bf16_chunked_seq_state_update:
        return [], expected_state_update(x)
    states = x["state"] if offsets is None else x["state"][: chunk_count(offsets)]
    return [], {"o": reference.compute_o(x["q"], states, x["k"], x["u"], x["gate"], offsets)}


def expected_chunked(x: Arguments) -> tuple[list[Tensor], Arguments]:
    with_final = x.pop("output_final_state", True)
    for hint in ("chunk_indices", "cu_chunks", "state_dtype"):
        x.pop(hint, None)
    output, final_state, checkpoints = reference.chunked_forward(**x)
    results = [output, final_state if with_final else None]
    if "checkpoint_offsets" in x:
        return [*results, checkpoints], written_by_chunked(x)
    if every := x.get("checkpoint_every", 0):
        tokens, packed = x["value"].shape[0 if "cu_seqlens" in x else 1], "cu_seqlens" in x
        rows = tokens // every * (1 if packed else x["value"].shape[0])
        if "checkpoints" in x:
            return [*results, checkpoints], written_by_chunked(x)
        # Packed: as many rows as there could be, zero after the last checkpoint.
        filled = checkpoints.new_zeros(rows, *checkpoints.shape[1:])
        filled[: checkpoints.shape[0]] = checkpoints
        results.append(filled)
    return results, written_by_chunked(x)


def written_by_chunked(x: Arguments) -> Arguments:
    written = ("final_state", "checkpoints", "states_before", "state" if "state_indices" in x else "", "state_scales")
    return {name: x[name] for name in written if name in x}


def chunk_count(offsets: Tensor) -> int:
    return int(((offsets.diff() + 63) // 64).sum())


def expected_state_update(x: Arguments) -> Arguments:
    offsets, initial = x.get("cu_seqlens"), None
    if x["is_initial_state"] and offsets is None:
        initial = x["state"][:, 0] if x["state"].shape[1] else torch.zeros_like(x["final_state"])
    elif x["is_initial_state"]:
        firsts = torch.tensor([0, 2, 2])  # the sequences of LENGTHS have two chunks, none, one
        initial = x["state"][firsts]
        initial[1] = 0
    before, final_state, v_new = reference.seq_state_update(x["k"], x["u"], x["w"], x["gate"], initial, offsets)
    states = x["state"].clone()
    if offsets is None:
        states = before
    else:
        states[: before.shape[0]] = before
    return {"state": states, "final_state": final_state, "u": v_new}


def check_close(got: Tensor, expected: Tensor, stored: torch.dtype, what: str) -> None:
    assert got.dtype == stored, what
    if stored == torch.int32:
        assert torch.equal(got, expected), what
        return
    tolerance = ROUNDING[stored]
    assert rel_rms(got, expected) <= tolerance, what


def check_call(case: Case, arguments: Arguments, out: Tensor | None) -> None:
    expected, left = expected_results(case, arguments)
    kept = {name: copied(x) for name, x in arguments.items() if isinstance(x, Tensor)}
    results = case.function(**arguments, **({} if out is None else {"out": out}))
    results = [] if results is None else [results] if isinstance(results, Tensor) else list(results)
    if out is not None:
        assert results[0] is out
    assert len(results) == len(expected)
    for i, (got, wanted) in enumerate(zip(results, expected, strict=True)):
        assert (got is None) == (wanted is None)
        if got is not None and got.dtype != torch.int8:  # a pool, which is compared below with its scales
            check_close(got, wanted, dtype_of_result(case, arguments, i), f"result {i}")
    for name, old in kept.items():
        if name in left and old.dtype == torch.int8:
            scales = SCALES[name]
            found, wanted = decode(arguments[name], arguments[scales]), decode(left[name], left[scales], torch.float64)
            assert rel_rms(found, wanted) <= ROUNDING[torch.int8], name  # a few codes may be rounded to the other side
        elif name in left:
            check_close(arguments[name], left[name], old.dtype, name)
        else:
            assert torch.equal(arguments[name], old), name


def dtype_of_result(case: Case, arguments: Arguments, i: int) -> torch.dtype:
    if case.function is gdn_cuda.fused_gdn_gating:
        return arguments["b"].dtype if i == 0 else torch.float32
    if case.function is gdn_cuda.transpose_to_mn_major:
        return arguments["input"].dtype
    if case.function is gdn_cuda.chunked_summary:
        return torch.float32
    if i == 0:
        return arguments["value"].dtype
    buffer = arguments.get("final_state" if i == 1 else "checkpoints")
    if buffer is not None:
        return buffer.dtype
    state = arguments.get("state")
    return arguments.get("state_dtype") or (torch.float32 if state is None or state.dtype == torch.int8 else state.dtype)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_results_equal_the_reference_in_fp64(case: Case, seed: int) -> None:
    for B, T in SIZES[:1] if case.packed else SIZES:
        check_call(case, case.make(B, T, seed), None)


# chunked_summary's out must be contiguous.
OUTS = [
    (name, strided)
    for name, case in WITH_OUT.items()
    for strided in (False, True)
    if not (strided and case.function is gdn_cuda.chunked_summary)
]


@pytest.mark.parametrize("name, strided", OUTS)
def test_results_written_into_out_equal_the_reference_in_fp64(name: str, strided: bool, seed: int) -> None:
    case = WITH_OUT[name]
    arguments = case.make(2, 5, seed)
    out = output_of(arguments)
    around = torch.cat([out] * 3, dim=-1)
    if strided:
        out = around[..., : out.shape[-1]]
    check_call(case, arguments, out)
    if strided:
        assert around[..., out.shape[-1] :].isnan().all()


DECODES = ["decode", "decode-null-slot", "decode-verify", "decode-step-states", "decode-steps-and-last", "decode-packed"]


@pytest.mark.parametrize("name", DECODES)
def test_decode_writes_only_the_slots_in_its_indices(name: str, seed: int) -> None:
    arguments = CASES[name].make(3, 2, seed)
    pool, slots = arguments["state_pool"], arguments["state_indices"]
    before = copied(pool)
    gdn_cuda.fused_decode(**arguments)
    changed = {slot for slot in range(pool.shape[0]) if not torch.equal(pool[slot], before[slot])}
    if name == "decode-step-states":
        assert changed == set()
    elif name == "decode-steps-and-last":
        assert changed == {int(slot) for slot in arguments["write_indices"] if slot >= 0} == {2}
    elif name == "decode-packed":
        assert changed == {int(slot) for n, slot in enumerate(slots) if slot >= 0 and LENGTHS[n]}
    else:
        assert changed == {int(slot) for slot in slots.flatten() if slot >= 0 and slot != arguments.get("null_slot")}


@pytest.mark.parametrize("null_slot", [None, 2])
def test_skipped_sequences_give_zero(null_slot: int | None, seed: int) -> None:
    arguments = CASES["decode"].make(3, 1, seed) | {"state_indices": torch.tensor([1, -1, 2]), "null_slot": null_slot}
    output = gdn_cuda.fused_decode(**arguments, out=poisoned(arguments["value"]))
    assert [bool(row.any()) for row in output] == [True, False, null_slot is None]


def test_two_steps_equal_one_call_of_two_tokens(seed: int) -> None:
    arguments = CASES["decode"].make(2, 2, seed)
    one_by_one = arguments | {"state_pool": copied(arguments["state_pool"])}
    per_token = ("query", "key", "value", "a", "b")
    together = gdn_cuda.fused_decode(**arguments)
    singly = [gdn_cuda.fused_decode(**one_by_one | {name: arguments[name][:, t : t + 1] for name in per_token}) for t in (0, 1)]
    assert rel_rms(torch.cat(singly, dim=1), together) <= ROUNDING[torch.float32]
    assert rel_rms(one_by_one["state_pool"], arguments["state_pool"]) <= ROUNDING[torch.float32]


@pytest.mark.parametrize("mode", list(InferenceMode))
def test_packed_recurrence_equals_each_sequence_alone(mode: InferenceMode, seed: int) -> None:
    packed = CASES[f"recurrent-{mode.name}-packed"].make(0, 0, seed)
    output, states = gdn_cuda.recurrent_forward(**packed)
    tensors = {name: x for name, x in packed.items() if isinstance(x, Tensor)}
    for n, (first, last) in enumerate(zip(packed["cu_seqlens"][:-1], packed["cu_seqlens"][1:], strict=True)):
        alone, alone_states = gdn_cuda.recurrent_forward(**take_sequence(tensors, n), inference_mode=mode)
        assert torch.equal(output[first:last], alone[0])
        verify = mode == InferenceMode.SPEC_VERIFY
        assert torch.equal(states[first:last] if verify else states[n : n + 1], alone_states[0] if verify else alone_states)


@pytest.mark.parametrize("pool", [False, True], ids=["dense", "pool"])
def test_packed_checkpoints_fill_the_first_rows(pool: bool, seed: int) -> None:
    """N // n rows: first the checkpoints of the sequences in order, then zeros."""
    packed = CASES["chunked-packed"].make(0, 0, seed)
    if pool:
        packed["state_indices"] = torch.arange(len(LENGTHS))
    tensors = {name: x for name, x in packed.items() if isinstance(x, Tensor) and name != "state_indices"}
    alone = take_sequence(tensors, 0) | {"state": packed["state"][:1].clone()}
    *_, expected = gdn_cuda.chunked_forward(**alone, checkpoint_every=64)
    # 57 more tokens after the sequences make room for two checkpoints; there is one.
    longer = {
        name: torch.cat([x, x[:57]]) if name in ("query", "key", "value", "beta", "gate") else x for name, x in packed.items()
    }
    *_, checkpoints = gdn_cuda.chunked_forward(**longer)
    assert checkpoints.shape[0] == longer["value"].shape[0] // 64 == 2
    assert torch.equal(checkpoints[:1], expected) and not checkpoints[1].any()


def test_the_pool_is_the_final_state(seed: int) -> None:
    arguments = CASES["chunked-pool"].make(2, 3, seed) | {"checkpoint_every": 0}
    assert gdn_cuda.chunked_forward(**arguments)[1] is arguments["state"]
    assert gdn_cuda.chunked_forward(**arguments, output_final_state=False)[1] is None


@pytest.mark.parametrize("T", [0, 1])
def test_returned_states_share_no_memory_with_initial_states(T: int, seed: int) -> None:
    for name in ("recurrent-DECODE", "recurrent-PREFILL", "chunked"):
        arguments = CASES[name].make(2, T, seed)
        before = arguments["state"].clone()
        CASES[name].function(**arguments)[1].fill_(torch.nan)
        assert torch.equal(arguments["state"], before), name


def test_mn_major_pads_with_zeros(seed: int) -> None:
    arguments = CASES["mn-major-bf16"].make(3, 7, seed)
    result = gdn_cuda.transpose_to_mn_major(**arguments)
    columns, padded = result.shape[1], 64  # 21 rows of 2 bytes: one unit of 128 bytes
    assert result.stride() == (1, padded)
    storage = result.as_strided((columns, padded), (padded, 1))
    assert torch.equal(storage[:, :21], arguments["input"].mT) and not storage[:, 21:].any()


def test_gating_of_very_small_and_very_large_inputs() -> None:
    wide = torch.tensor([[-200.0, 0.0, 20.5, 1e4]])
    heads: dict[str, Any] = {"A_log": torch.zeros(4), "dt_bias": torch.zeros(4)}
    beta, gate = gdn_cuda.fused_gdn_gating(**heads, a=wide, b=wide, is_var_len=True)
    assert torch.allclose(beta, torch.tensor([[0.0, 0.5, 1.0, 1.0]]), atol=1e-8)
    assert torch.equal(gate[0, 2:], -wide[0, 2:]) and gate[0, 0] == 0
    assert gate[0, 1].item() == pytest.approx(-(torch.tensor(2.0).log().item()))


UNREAD: dict[str, Arguments] = {
    "chunked": {"chunk_indices": torch.zeros(3), "cu_chunks": torch.zeros(2, 2)},
    "chunked-packed-hints": {"chunk_indices": torch.zeros(3, device="meta"), "cu_chunks": None},
    "cumsum": {"batch_size": 3, "seq_len": None, "num_heads": 2**40, "chunk_indices": torch.zeros(1)},
    "cumsum-packed": {"batch_size": -1, "seq_len": 0, "num_heads": "4", "chunk_indices": None},
    "u-w-packed": {"compiled_dims": "any", "chunk_indices": torch.zeros(1)},
    "state-update": {"compiled_dims": None},
    "compute-o": {"compiled_dims": 3, "chunk_indices": torch.zeros(1), "cu_chunks": torch.zeros(1)},
    "gating": {"is_var_len": True},
    "gating-packed-fp16": {"is_var_len": False},
}


@pytest.mark.parametrize("name", UNREAD)
def test_arguments_that_are_not_read_change_no_result(name: str, seed: int) -> None:
    """They exist because other libraries' functions need them."""
    case = CASES[name]
    results = []
    for changes in ({}, UNREAD[name]):
        arguments = case.make(2, 70, seed) | changes
        found = case.function(**arguments)
        tensors = [
            x for key, x in arguments.items() if isinstance(x, Tensor) and key not in changes and key not in UNREAD[name]
        ]
        results.append([*(found if isinstance(found, tuple) else (found,)), *tensors])
    torch.testing.assert_close(*results, rtol=0, atol=0, equal_nan=True)
