"""The chunked form of both rules of FLA's, in one process or, with a context, over ranks."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..gdn import chunked_forward
from ..operators.dtypes import state_dtype
from ..operators.schema import refuse
from .fla_arguments import widened


def chunked(
    function: str, q: Tensor, k: Tensor, v: Tensor, call: dict[str, Any], cp_context: Any
) -> tuple[Tensor, Tensor | None]:
    """`call` has arguments of `gdn_cuda.chunked_forward`. A context has its own offsets, and states are those of its rows."""
    if cp_context is None:
        output, state = chunked_forward(q, k, v, **call, state_dtype=state_dtype(v))
        return output, state
    from ..parallel import chunked_forward as on_ranks  # imports torch.distributed's device meshes
    from .fla_context import shared_of

    shared, rows = shared_of(function, cp_context), call["state"]
    if rows is not None:
        if rows.shape[0] != len(shared.rows):
            refuse(function, "initial_state", f"{len(shared.rows)} states, those of cp_context.cu_seqlens", rows.shape[0])
        rows = shared.to_sequences(widened(function, rows, v))
    given = {name: x for name, x in call.items() if name != "cu_seqlens"} | {"state": rows}
    output, last = on_ranks(q, k, v, context=shared.context, **given)
    return output, None if last is None else shared.to_rows(last)
