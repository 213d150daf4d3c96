"""Typical calls of the family's operators, for the command `explain`: gdn_cuda/operators/calls.py describes the format."""

from ..operators.calls import typical

AXES = {"B": 1, "T": 8192, "N": 8192, "Hk": 16, "Hv": 32, "dk": 128, "dv": 128, "slots": 1024}

_ROWS = "query, key: B T Hk dk; value: B T Hv dv"
_PACKED = "query, key: N Hk dk; value: N Hv dv"
_GATES = "beta, gate: B T Hv f32"
_PIECE = "gate: B T Hv f32 mn"
_DECODE = "a, b: B T Hv; A_log, dt_bias: Hv f32; state_pool: slots Hv dv dk f32; state_indices: B i32"
_DECODE_PACKED = "a, b: N Hv; A_log, dt_bias: Hv f32; state_pool: slots Hv dv dk f32; state_indices: B i32; cu_seqlens: B+1 i32"
_PACKED_GATES = "beta, gate: N Hv f32; state: B Hv dv dk f32; cu_seqlens: B+1 i32"

CALLS = {
    "fused_decode": typical(AXES | {"B": 64, "T": 1}, f"{_ROWS}; {_DECODE}", f"{_PACKED}; {_DECODE_PACKED}"),
    "recurrent_forward": typical(
        AXES | {"B": 16, "T": 4, "N": 64}, f"{_ROWS}; state: B Hv dv dk f32; {_GATES}", f"{_PACKED}; {_PACKED_GATES}"
    ),
    "chunked_forward": typical(
        AXES,
        f"{_ROWS}; {_GATES}; state: B Hv dv dk f32",
        f"{_ROWS}; {_GATES}; state: slots Hv dv dk f32; state_indices: B i64",
        f"{_PACKED}; {_PACKED_GATES}",
    ),
    "transpose_to_mn_major": typical(AXES, "input: B T Hv f32"),
    "chunk_local_cumsum_bf16": typical(
        AXES, "input: B T Hv f32; output: B T Hv f32; batch_size = B; seq_len = T; num_heads = Hv"
    ),
    "bf16_gdn_compute_u_w": typical(AXES, f"k: B T Hk dk; v, u: B T Hv dv; w: B T Hv dk; beta: B T Hv f32 mn; {_PIECE}"),
    "bf16_chunked_seq_state_update": typical(
        AXES, f"k: B T Hk dk; u: B T Hv dv; w: B T Hv dk; state: B T/64 Hv dv dk f32; final_state: B Hv dv dk f32; {_PIECE}"
    ),
    "bf16_gdn_chunked_compute_O": typical(AXES, f"q, k: B T Hk dk; u, o: B T Hv dv; state: B T/64 Hv dv dk f32; {_PIECE}"),
}
