"""Arguments as engines pass them, on a GPU: tests/gdn/calls_by_engines.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from calls_by_engines import (
    FORMS,
    LAYOUTS,
    Call,
    check_buffers,
    check_decode,
    check_empty_sequences,
    check_gates,
    check_more_queries,
    check_pool,
    check_rank_4,
    check_rows,
)
from engine_indices import DESTINATIONS, check_drafts, check_invalid_indices, check_invalid_offsets

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHORT, LONG = (3, 0, 1, 5, 2), (70, 0, 128, 3, 65)
CALLS = {
    "fp32": Call(SHORT, dk=20, dv=7),
    "fp32-96": Call(SHORT, dk=96, dv=192),
    "bf16": Call(LONG, dk=64, dv=64, io=torch.bfloat16),
    "fp16-bf16-states": Call(LONG, dk=128, dv=32, io=torch.float16, state=torch.bfloat16),
    "bf16-fp16-states": Call(LONG, dk=32, dv=40, io=torch.bfloat16, state=torch.float16),
    "bf16-odd": Call(SHORT, dk=30, dv=33, io=torch.bfloat16),
}
EACH_CALL = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
EACH_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)
BOTH = pytest.mark.parametrize("name", ["recurrent", "chunked"])


@BOTH
@EACH_CALL
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_gates_in_every_form(name: str, call: Call, form: str, dtype: torch.dtype) -> None:
    check_gates(name, call, form, dtype, "cuda")


@BOTH
@EACH_CALL
@pytest.mark.parametrize("gaps", [False, True])
def test_packed_tensors_of_rank_4(name: str, call: Call, gaps: bool) -> None:
    check_rank_4(name, call, "cuda", gaps)


@BOTH
@EACH_CALL
@EACH_LAYOUT
@pytest.mark.parametrize("stored", DTYPES)
def test_states_of_any_layout_and_dtype(name: str, call: Call, layout: str, stored: torch.dtype) -> None:
    check_buffers(name, call, layout, stored, "cuda")


@EACH_CALL
@EACH_LAYOUT
@pytest.mark.parametrize("gate", ["log", "raw-logit"])
@pytest.mark.parametrize("update", [True, False])
def test_a_pool(call: Call, layout: str, gate: str, update: bool) -> None:
    check_pool(call, layout, "cuda", gate, update)


@EACH_LAYOUT
@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize("io", DTYPES)
def test_rows_into_buffers(layout: str, stored: torch.dtype, io: torch.dtype) -> None:
    check_rows(Call(LONG, dk=64, dv=32, io=io), layout, stored, "cuda")


@EACH_CALL
@EACH_LAYOUT
@pytest.mark.parametrize("lengths", [(70, 0, 0, 5, 128), (0, 0, 0)])
def test_empty_sequences(call: Call, lengths: tuple[int, ...], layout: str) -> None:
    check_empty_sequences(replace(call, lengths=lengths), layout, "cuda")


@EACH_CALL
@EACH_LAYOUT
def test_padded_batches(call: Call, layout: str) -> None:
    call = replace(call, lengths=(66,) * 4)
    for name in ("recurrent", "chunked"):
        check_gates(name, call, "raw-logit", torch.float16, "cuda")
        check_buffers(name, call, layout, torch.bfloat16, "cuda")
    check_pool(call, layout, "cuda")
    check_rows(call, layout, torch.float16, "cuda")
    check_decode(call, layout, "cuda", negative=True)


@EACH_CALL
@EACH_LAYOUT
@pytest.mark.parametrize("negative", [False, True])
def test_a_decode_step(call: Call, layout: str, negative: bool) -> None:
    check_decode(call, layout, "cuda", negative)


@pytest.mark.parametrize("to", DESTINATIONS)
@EACH_LAYOUT
@EACH_CALL
def test_drafts(call: Call, layout: str, to: str) -> None:
    """Packed, and padded: gdn/verify where there are enough heads."""
    lengths = tuple(min(length, 9) for length in call.lengths)
    check_drafts(replace(call, lengths=lengths), layout, to, "cuda", gaps=call.dk % 8 != 0)
    check_drafts(replace(call, lengths=(3,) * 24, heads=(4, 16)), layout, to, "cuda", gaps=call.dk % 8 != 0)


@EACH_CALL
@EACH_LAYOUT
def test_invalid_indices(call: Call, layout: str) -> None:
    check_invalid_indices(replace(call, lengths=(3, 0, 1, 5, 2, 4)), layout, "cuda")
    check_invalid_indices(replace(call, lengths=(1,) * 6), layout, "cuda")


@EACH_CALL
def test_invalid_offsets(call: Call) -> None:
    check_invalid_offsets(replace(call, lengths=(70, 0, 5)), "cuda")


@pytest.mark.parametrize("io", [torch.float32, torch.bfloat16])
def test_more_heads_of_query_than_of_value(io: torch.dtype) -> None:
    check_more_queries(io, "cuda")


def test_a_captured_prefill_reads_what_is_there_at_replay() -> None:
    """Graph-safe: has_initial_state, slots and gates of a replay are those that the tensors hold then."""
    from gdn_cuda import chunked_forward

    call = Call((70, 65), dk=64, dv=64, io=torch.bfloat16)
    rows = {name: x.cuda() for name, x in call.rows().items()}
    gates = {"gate": call.draws(5, call.tokens, 4).cuda(), "beta": call.draws(6, call.tokens, 4).cuda()}
    heads = {"A_log": call.draws(7, 4).cuda(), "dt_bias": call.draws(8, 4).cuda(), "beta_is_logit": True}
    slots, fresh = torch.tensor([1, 2], device="cuda"), torch.tensor([True, True], device="cuda")
    pool = call.states(4).cuda()
    given = {**rows, **gates, **heads, "cu_seqlens": call.cu_seqlens().cuda(), "state_indices": slots}
    start = pool.clone()
    chunked_forward(**given, state=pool, has_initial_state=fresh)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output, _ = chunked_forward(**given, state=pool, has_initial_state=fresh)
    pool.copy_(start)
    slots.copy_(torch.tensor([3, 1]))
    fresh.copy_(torch.tensor([False, True]))
    graph.replay()
    after = pool.clone()
    pool.copy_(start)
    expected, _ = chunked_forward(**given, state=pool, has_initial_state=fresh)
    assert torch.equal(output, expected)
    assert torch.equal(after, pool)
