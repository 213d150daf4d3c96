"""Arguments as engines pass them (tests/gdn/calls_by_engines.py), token by token. test_prefill.py has chunks."""

from __future__ import annotations

from collections.abc import Iterator
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
from emulated import emulated
from engine_indices import DESTINATIONS, check_drafts, check_invalid_indices, check_invalid_offsets

SHORT, LONG = (3, 0, 1, 5, 2), (70, 0, 65)
PLAIN = Call(SHORT, dk=16, dv=8, io=torch.bfloat16)
ODD = Call(SHORT, dk=21, dv=19)


@pytest.fixture(autouse=True)
def by_token(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GDN_PREFILL", "recurrent")
    with emulated():
        yield


@pytest.mark.parametrize("call", [PLAIN, ODD], ids=["plain", "odd"])
@pytest.mark.parametrize("form", FORMS)
def test_gates_in_every_form(form: str, call: Call) -> None:
    check_gates("recurrent", call, form, torch.float16, "cpu")


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("call", [PLAIN, ODD], ids=["plain", "odd"])
def test_packed_tensors_of_rank_4(call: Call, gaps: bool) -> None:
    check_rank_4("chunked", call, "cpu", gaps)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["recurrent", "chunked"])
@pytest.mark.parametrize("call", [PLAIN, ODD], ids=["plain", "odd"])
def test_states_of_any_layout_and_dtype(call: Call, name: str, layout: str) -> None:
    check_buffers(name, call, layout, torch.float16, "cpu")


@pytest.mark.parametrize("update", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("call", [PLAIN, ODD], ids=["plain", "odd"])
def test_a_pool(call: Call, layout: str, update: bool) -> None:
    check_pool(call, layout, "cpu", update=update)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lengths", [(3, 0, 0, 5, 2), (0, 0, 0)])
@pytest.mark.parametrize("call", [PLAIN, ODD], ids=["plain", "odd"])
def test_empty_sequences(call: Call, lengths: tuple[int, ...], layout: str) -> None:
    check_empty_sequences(replace(call, lengths=lengths), layout, "cpu")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("call", [Call(LONG, (1, 2), 16, 8, torch.bfloat16), Call(LONG, (1, 2), 7, 5)], ids=["plain", "odd"])
def test_rows_into_buffers(call: Call, layout: str) -> None:
    check_rows(call, layout, torch.bfloat16, "cpu")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("call", [PLAIN, ODD], ids=["plain", "odd"])
def test_padded_batches(call: Call, layout: str) -> None:
    call = replace(call, lengths=(3,) * 4)
    for name in ("recurrent", "chunked"):
        check_gates(name, call, "raw-logit", torch.float16, "cpu")
        check_buffers(name, call, layout, torch.bfloat16, "cpu")
    check_pool(call, layout, "cpu")
    check_rows(replace(call, lengths=(66, 66), heads=(1, 2)), layout, torch.float16, "cpu")
    check_decode(call, layout, "cpu", negative=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("call", [PLAIN, ODD], ids=["plain", "odd"])
def test_a_decode_step(call: Call, layout: str) -> None:
    check_decode(call, layout, "cpu", negative=True)


@pytest.mark.parametrize("to", DESTINATIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("call", [PLAIN, ODD], ids=["plain", "odd"])
def test_drafts(call: Call, layout: str, to: str) -> None:
    check_drafts(call, layout, to, "cpu", gaps=call is ODD)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("call", [PLAIN, ODD], ids=["plain", "odd"])
def test_invalid_indices(call: Call, layout: str) -> None:
    check_invalid_indices(replace(call, lengths=(3, 0, 1, 5, 2, 4)), layout, "cpu")
    check_invalid_indices(replace(call, lengths=(1,) * 6), layout, "cpu")


@pytest.mark.parametrize("call", [PLAIN, ODD], ids=["plain", "odd"])
def test_invalid_offsets(call: Call) -> None:
    check_invalid_offsets(replace(call, lengths=(70, 0, 5)), "cpu")


@pytest.mark.parametrize("io", [torch.float32, torch.bfloat16])
def test_more_heads_of_query_than_of_value(io: torch.dtype) -> None:
    check_more_queries(io, "cpu")
