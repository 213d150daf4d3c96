"""vLLM's Mamba layers: the step of both kinds, and of Mamba-2 the scan of prompts."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, dtype

from ..runtime import package as gdn_cuda
from .counted import Declined


def selective_step(
    backend: Any,
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    dt_bias: Tensor | None,
    z: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
    dst_state_batch_indices: Tensor | None = None,
    null_block_id: int = 0,
    out: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    is_blackwell: bool = False,
) -> None:
    """One token per request, or drafts, which have slots (N, S) to read and to write. Tables of slots and counts may have more
    rows than there are requests; without drafts their first column counts."""
    if backend._mamba_config.enable_stochastic_rounding:
        raise Declined("stochastic rounding")
    sequences = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1

    def slots_of(table: Tensor | None) -> Tensor | None:
        if table is None:
            return None
        return table[:sequences] if table.dim() == 1 or num_accepted_tokens is not None else table[:sequences, 0]

    is_other = dst_state_batch_indices is not None and dst_state_batch_indices is not state_batch_indices
    gdn_cuda.selective_state_update(
        *(state, x, dt, A, B, C, D, z, dt_bias, dt_softplus),
        state_batch_indices=slots_of(state_batch_indices),
        write_indices=slots_of(dst_state_batch_indices) if is_other else None,
        num_accepted_tokens=None if num_accepted_tokens is None else num_accepted_tokens[:sequences],
        cu_seqlens=cu_seqlens,
        null_slot=None if state_batch_indices is None else null_block_id,  # without slots, sequence 0 has slot 0
        out=out,
    )


def chunk_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    cu_seqlens: Tensor,
    cu_chunk_seqlens: Tensor,
    last_chunk_indices: Tensor,
    seq_idx: Tensor,
    out: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    return_intermediate_states: bool = False,
    state_dtype: dtype | None = None,
    final_states_out: Tensor | None = None,
    final_state_indices: Tensor | None = None,
) -> Tensor | None:
    """The scan of prompts (tokens, H, P). The last states go to slots, or are returned; or the states after all chunks are,
    which end at `cu_chunk_seqlens`: at multiples of chunk_size in a request, at its last token, and at a checkpoint."""
    given = (x, dt, A, B, C, D, z, dt_bias, initial_states, cu_seqlens)
    options: dict[str, Any] = {"dt_softplus": dt_softplus, "dt_limit": dt_limit, "out": out, "return_last_state": True}
    if final_states_out is not None:
        if return_intermediate_states or final_state_indices is None:
            raise Declined("slots for last states beside all states, or without their indices")
        gdn_cuda.ssd_scan(*given, last_state=final_states_out, write_indices=final_state_indices, **options)
        return None
    options["state_dtype"] = C.dtype if state_dtype is None else state_dtype
    if return_intermediate_states:
        return gdn_cuda.ssd_scan(*given, boundaries=cu_chunk_seqlens, **options)[2]
    return gdn_cuda.ssd_scan(*given, **options)[1]
