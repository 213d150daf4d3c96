"""Gated Delta Net."""

from .operators import InferenceMode, chunked_forward, fused_decode, fused_gdn_gating, recurrent_forward
from .pieces import (
    bf16_chunked_seq_state_update,
    bf16_gdn_chunked_compute_O,
    bf16_gdn_compute_u_w,
    chunk_local_cumsum_bf16,
    transpose_to_mn_major,
)

__all__ = [
    "InferenceMode",
    "fused_gdn_gating",
    "recurrent_forward",
    "fused_decode",
    "chunked_forward",
    "transpose_to_mn_major",
    "chunk_local_cumsum_bf16",
    "bf16_gdn_compute_u_w",
    "bf16_chunked_seq_state_update",
    "bf16_gdn_chunked_compute_O",
]
