"""SGLang's Mamba layers: the step of both kinds, and of Mamba-2 the scan of prompts."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..runtime import package as gdn_cuda
from .counted import Declined
from .sglang_plan import deterministic, parents

# ---- Steps


def selective_step(
    backend: Any,
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
    pad_slot_id: int = -1,
    out: Tensor | None = None,
    disable_state_update: bool = False,
    intermediate_states_buffer: Tensor | None = None,
    cache_steps: int | None = None,
    retrieve_parent_token: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
) -> None:
    """One token per request, or drafts (B, T, …), as in `_target_verify`."""
    if backend._enable_stochastic_rounding and not disable_state_update:
        raise Declined("stochastic rounding")
    if pad_slot_id < -1:
        raise Declined("another slot of padding")
    has_padding = pad_slot_id >= 0 and state_batch_indices is not None
    options: dict[str, Any] = {"null_slot": pad_slot_id if has_padding else None, "out": out}
    if intermediate_states_buffer is None:
        options["update_state"] = not disable_state_update
    else:
        rows = state_batch_indices if intermediate_state_indices is None else intermediate_state_indices
        if rows is None or cache_steps != intermediate_states_buffer.shape[1]:
            raise Declined("no rows for states of drafts, or a buffer of another number of drafts")
        options |= {"step_states": intermediate_states_buffer, "step_slots": rows[: x.shape[0]]}
        options["write_indices"] = None if disable_state_update else state_batch_indices
        if retrieve_parent_token is not None:
            options["parents"] = parents(retrieve_parent_token[: x.shape[0]])
    given = (state, x, dt, A, B, C, D, z, dt_bias, dt_softplus)
    gdn_cuda.selective_state_update(*given, state_batch_indices=state_batch_indices, **options)


# ---- Prompts


def _states_before_chunks(
    given: tuple[Any, ...], cu_seqlens: Tensor | None, chunk: int, dtype: torch.dtype, options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """The states before each of a row's chunks, (rows, chunks, H, P, N), and the last states."""
    x, B = given[0], given[3]
    before = x.new_empty((x.shape[0], -(-x.shape[1] // chunk), *x.shape[2:], B.shape[-1]), dtype=dtype)
    buffers = {"states_before": before.flatten(0, 1), "checkpoints": before.flatten(0, 1)[:0]}  # the latter are the same again
    _, last, _ = gdn_cuda.ssd_scan(*given, cu_seqlens, checkpoint_every=chunk, **buffers, **options)
    return before, last


def _states_at(
    given: tuple[Any, ...], cu_seqlens: Tensor, chunk: int, ends: Tensor, sequences: Tensor, options: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """The states before each chunk of the packed tokens, of whichever sequence has the token before; the last states; and the
    states of `sequences` after the tokens before `ends`."""
    x, initial = given[0], given[8]
    ends = ends.to(cu_seqlens)
    grid = torch.arange(1, max(-(-x.shape[1] // chunk), 1), dtype=cu_seqlens.dtype, device=x.device) * chunk
    boundaries = torch.cat([cu_seqlens, grid, ends]).sort().values
    _, last, rows = gdn_cuda.ssd_scan(*given, cu_seqlens, boundaries=boundaries, **options)
    zeros = torch.zeros_like(last[:1])
    before = torch.cat([zeros if initial is None else initial[:1].to(last.dtype), rows[_rows(boundaries, grid)]])
    at = rows[_rows(boundaries, ends)]
    # A boundary at a sequence's first token is the end of the one before.
    first = zeros if initial is None else initial[sequences].to(last.dtype)
    begins = (ends == cu_seqlens[sequences])[:, None, None, None]
    return before, last, torch.where(begins, first, at)


def _rows(boundaries: Tensor, tokens: Tensor) -> Tensor:
    return torch.searchsorted(boundaries[1:], tokens)


def chunk_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    chunk_offsets: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    out: Tensor | None = None,
    return_final_states: bool = False,
    return_varlen_states: bool = False,
    return_intermediate_states: bool = False,
    state_dtype: torch.dtype | None = None,
    return_track_states: bool = False,
    track_seq_idx: Tensor | None = None,
    track_end_locs: Tensor | None = None,
) -> Any:
    """The scan of prompts (1, T, H, P), packed, or of rows. Returns, of packed prompts, the states before each chunk of all
    tokens, the last states, and states after other tokens, for the radix cache; or fewer of them."""
    if out is None or (return_track_states and not return_varlen_states):
        raise Declined("no output, or tracked states of rows")
    given = (x, dt, A, B, C, D, z, dt_bias, initial_states)
    dtype = C.dtype if state_dtype is None else state_dtype
    options: dict[str, Any] = {"dt_softplus": dt_softplus, "dt_limit": dt_limit, "out": out, "return_last_state": True}
    options["deterministic"] = deterministic()
    if not return_varlen_states:
        return _padded(given, chunk_size, seq_idx, return_intermediate_states, return_final_states, dtype, options)
    if cu_seqlens is None or seq_idx is None or return_final_states:
        raise Declined("packed prompts without offsets or numbers, or the state of the last chunk")
    options["state_dtype"] = dtype
    if not (return_intermediate_states or return_track_states):
        return gdn_cuda.ssd_scan(*given, cu_seqlens, **options)[1]
    tracks = track_seq_idx is not None and track_end_locs is not None and track_end_locs.numel() > 0
    if cu_seqlens.shape[0] == 2 and not tracks and chunk_size % 64 == 0:
        before, last = _states_before_chunks(given, cu_seqlens, chunk_size, dtype, options)
        found = before, last, None
    else:
        none = cu_seqlens[:0]
        ends, sequences = (track_end_locs, track_seq_idx) if tracks else (none, none)
        before, last, tracked = _states_at(given, cu_seqlens, chunk_size, ends, sequences, options)
        found = before[None], last, tracked[None] if tracks else None
    return found if return_track_states else found[:2]


def _padded(
    given: tuple[Any, ...],
    chunk: int,
    seq_idx: Tensor | None,
    before_chunks: bool,
    with_final: bool,
    dtype: torch.dtype,
    options: dict[str, Any],
) -> Any:
    if seq_idx is not None and (given[8] is not None or before_chunks):
        raise Declined("numbered sequences with initial states, or with the states before chunks")
    if not before_chunks:
        _, last = gdn_cuda.ssd_scan(*given, seq_idx=seq_idx, **options)
        return last if with_final else None
    before, last = _states_before_chunks(given, None, chunk, dtype, options)
    return (before, last) if with_final else before
