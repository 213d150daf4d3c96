"""Arguments in the forms that serving engines have, on CPU tensors (calls_by_engines.py)."""

from __future__ import annotations

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
from engine_indices import DESTINATIONS, check_drafts

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHORT, LONG = (3, 0, 1, 5, 2), (70, 0, 128, 3, 65)
EMPTY, NO_TOKENS = (3, 0, 0, 5, 2), (0, 0, 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["recurrent", "chunked"])
def test_gates_in_every_form(name: str, form: str, dtype: torch.dtype) -> None:
    check_gates(name, Call(SHORT), form, dtype, "cpu")


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("name", ["recurrent", "chunked"])
def test_packed_tensors_of_rank_4(name: str, gaps: bool) -> None:
    check_rank_4(name, Call(SHORT, dk=20, dv=7), "cpu", gaps)


@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["recurrent", "chunked"])
def test_states_of_any_layout_and_dtype(name: str, layout: str, stored: torch.dtype) -> None:
    check_buffers(name, Call(SHORT, state=torch.float16), layout, stored, "cpu")


@pytest.mark.parametrize("update", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lengths", [SHORT, LONG])
def test_states_in_a_pool(lengths: tuple[int, ...], layout: str, update: bool) -> None:
    check_pool(Call(lengths), layout, "cpu", update=update)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lengths", [EMPTY, NO_TOKENS])
def test_empty_sequences(lengths: tuple[int, ...], layout: str) -> None:
    check_empty_sequences(Call(lengths), layout, "cpu")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_checkpoints_and_states_before_blocks_into_buffers(layout: str) -> None:
    check_rows(Call(LONG), layout, torch.bfloat16, "cpu")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_padded_batches(layout: str) -> None:
    call = Call((3, 3, 3, 3), dk=20, dv=7)
    for name in ("recurrent", "chunked"):
        check_gates(name, call, "raw-logit", torch.float16, "cpu")
        check_buffers(name, call, layout, torch.bfloat16, "cpu")
    check_pool(call, layout, "cpu")
    check_rows(Call((130, 130)), layout, torch.float16, "cpu")
    check_decode(call, layout, "cpu", negative=True)


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_decode_from_slots_to_other_slots(layout: str, negative: bool) -> None:
    check_decode(Call(SHORT, dk=20), layout, "cpu", negative)


@pytest.mark.parametrize("to", DESTINATIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_verify_of_drafted_tokens(layout: str, to: str) -> None:
    check_drafts(Call(SHORT, dk=20, dv=7, state=torch.float16), layout, to, "cpu")
    check_drafts(Call((2, 2, 2, 2), dk=16, dv=8, io=torch.bfloat16), layout, to, "cpu", gaps=False)


@pytest.mark.parametrize("io", [torch.float32, torch.bfloat16])
def test_more_heads_of_query_than_of_value(io: torch.dtype) -> None:
    check_more_queries(io, "cpu")
