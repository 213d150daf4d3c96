"""SGLang's prefill of Kimi Delta Attention: reads and writes slots of a pool, of which those below 0 are padding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..compat.fla_arguments import channel_gates
from ..runtime import package as gdn_cuda
from .sglang_plan import deterministic

_CHUNK = 64  # tokens between the states that SGLang's own prefill returns


def extend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    ssm_states: Tensor,
    cache_indices: Tensor,
    query_start_loc: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float | None = None,
    beta_is_raw: bool = False,
    return_intermediate_states: bool = False,
    track_state: Tensor | None = None,
    track_chunk_idx: Tensor | None = None,
    **others: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """The output, and with `return_intermediate_states` the states before every 64 tokens of each sequence, (1, rows, H, V, K),
    of which the last rows may be unused. `track_state[n]` gets the one before chunk `track_chunk_idx[n]` of sequence n, if the
    sequence has that chunk. Without A_log g is the logarithm of the decay."""
    gates: dict[str, Any] = {} if A_log is None else channel_gates(A_log, dt_bias, lower_bound)
    options: dict[str, Any] = gates | {"state_indices": cache_indices, "use_qk_l2norm": True, "beta_is_logit": beta_is_raw}
    options["deterministic"] = deterministic()
    call = (q, k, v, beta, g, ssm_states, query_start_loc)
    if not return_intermediate_states and track_state is None:
        return gdn_cuda.chunked_forward(*call, **options)[0]
    sequences = query_start_loc.shape[0] - 1
    most = q.shape[1] // _CHUNK + sequences  # chunks: the host does not know the lengths
    dtype = k.dtype if track_state is None else track_state.dtype
    before = torch.empty(most, *ssm_states.shape[1:], dtype=dtype, device=k.device)
    states = {"checkpoint_every": _CHUNK, "checkpoints": before[:0], "states_before": before}
    output = gdn_cuda.chunked_forward(*call, **options, **states)[0]
    if track_state is not None and track_chunk_idx is not None:
        _track(track_state, track_chunk_idx, before, query_start_loc)
    return (output, before[None]) if return_intermediate_states else output


def _track(track_state: Tensor, track_chunk_idx: Tensor, before: Tensor, query_start_loc: Tensor) -> None:
    chunks = ((query_start_loc.diff() + _CHUNK - 1) // _CHUNK)[: track_chunk_idx.shape[0]]
    has = (track_chunk_idx >= 0) & (track_chunk_idx < chunks)
    rows = (chunks.cumsum(0) - chunks + track_chunk_idx.clamp(min=0)).clamp(max=before.shape[0] - 1)
    track_state.copy_(torch.where(has.view(-1, 1, 1, 1), before[rows], track_state))
