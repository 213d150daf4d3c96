"""What sequences the arguments of a call have."""

from __future__ import annotations

from typing import Any

from .reference import Span, spans_of_packed, spans_of_rows


def sequences_of(x: Any) -> Any:
    return x.x.shape[0] if x.cu_seqlens is None else x.cu_seqlens.shape[0] - 1


def spans_of(x: Any) -> list[Span]:
    batch, tokens = x.x.shape[:2]
    if getattr(x, "seq_idx", None) is not None:
        return spans_of_rows(x.seq_idx)
    return [Span(row, 0, tokens, row, row) for row in range(batch)] if x.cu_seqlens is None else spans_of_packed(x.cu_seqlens)
