"""The operators in plain torch: what runs on CPU tensors, and what the tests of the kernels compare with.

Needs torch only: neither the compiled library nor CUDA.
"""

from .gdn import chunked, recurrent
from .gdn_ops import (
    chunk_local_cumsum,
    chunked_forward,
    compute_o,
    compute_u_w,
    fused_decode,
    fused_gdn_gating,
    recurrent_forward,
    seq_state_update,
    transpose_to_mn_major,
)

__all__ = [
    "chunk_local_cumsum",
    "chunked",
    "chunked_forward",
    "compute_o",
    "compute_u_w",
    "fused_decode",
    "fused_gdn_gating",
    "recurrent",
    "recurrent_forward",
    "seq_state_update",
    "transpose_to_mn_major",
]
