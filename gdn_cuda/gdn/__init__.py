"""Gated Delta Net: decode, verify, prefill, and the steps of the chunked form.

The recurrence, for each token and value head h (which reads key head h // (Hv / Hk)):

    S ← exp(g)·S        v' = β·(v − S k)        S ← S + v' kᵀ        o = scale · S q

Padded tensors are rank 4, (B, T, H, d); packed ones rank 3, (N, H, d), or rank 4 with B = 1, with `cu_seqlens` (B+1, int32 or
int64). `recurrent_forward`, `fused_decode` and `chunked_forward` take tensors and states of any strides, head dimensions from 1
to 256, and bf16, fp16 and fp32; fastest are 16-bit rows whose last dimension is contiguous and a multiple of 8. Query may have
more heads than value, Hq, a multiple of Hv: key then has Hv, and outputs, gates and states have Hq, of which head h reads head
h // (Hq / Hv) of key and value. CUDA tensors run kernels compiled at first use, CPU tensors run `gdn_cuda.reference`.

CPU tensors may also be fp64, except in the steps of the chunked form: then query, key and value are all fp64, and gates,
weights and states have any of these dtypes. Everything is computed in fp64, and what is fp32 by default (new states, gates,
summaries) is fp64.

Wrong input raises ValueError, which names function, argument, expected and got, before anything is launched or written.
The host cannot read `cu_seqlens` and slot indices on a GPU without waiting for it. There, values out of range read and write
nothing, and each function's documentation says what it returns for them.

What a call writes (`out`, a pool, the results of the steps) must not share memory with its other arguments or overlap itself.
Interleaved slices share no memory: slots of a pool between other caches, or `out` beside the inputs in one buffer, are fine.

`chunked_forward` has gradients, which its documentation describes. The other functions have none; `gdn_cuda.reference` has. In
grad mode, with an input that requires a gradient, a call of these computes the same results, and backward through what it
returns or writes raises an error that names the function and an alternative with gradients. Tensors that autograd does not
allow a call to write then (a leaf that requires a gradient, an inference tensor, a view that it does not track) are refused;
under `torch.no_grad()` any tensor may be written. Compiled code does not give pools this history, and of int8 pools only the
scales have it. Forward mode and torch.func's gradients are refused.
"""

from .chunk_steps import (
    bf16_chunked_seq_state_update,
    bf16_gdn_chunked_compute_O,
    bf16_gdn_compute_u_w,
    chunk_local_cumsum_bf16,
    transpose_to_mn_major,
)
from .chunked_summary import chunked_summary
from .convert_states import convert_states
from .fold_states import fold_states
from .operators import InferenceMode, chunked_forward, fused_decode, recurrent_forward
from .replay import ReplayBuffers, commit_replay, replay_buffers, replay_decode
from .ring import RingBuffers, ring_buffers, ring_decode

__all__ = [
    "InferenceMode",
    "recurrent_forward",
    "fused_decode",
    "ReplayBuffers",
    "replay_buffers",
    "replay_decode",
    "commit_replay",
    "RingBuffers",
    "ring_buffers",
    "ring_decode",
    "chunked_forward",
    "chunked_summary",
    "fold_states",
    "convert_states",
    "transpose_to_mn_major",
    "chunk_local_cumsum_bf16",
    "bf16_gdn_compute_u_w",
    "bf16_chunked_seq_state_update",
    "bf16_gdn_chunked_compute_O",
]
