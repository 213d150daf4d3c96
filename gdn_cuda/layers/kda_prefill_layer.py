"""A Kimi Delta Attention layer's prompts between its projections: kda_decode_layer's counterpart, composed of three
operators."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from ..gdn.operators import chunked_forward
from ..operators.caller import in_words_of_caller
from ..operators.calls import typical_call
from ..operators.schema import refuse, require_tensor, require_tensors
from .conv_split_l2norm import conv_split_l2norm
from .layer_parts import LayerParts
from .prefill_layer import with_pools, without_pools

_NAME = "kda_prefill_layer"


@in_words_of_caller(
    **dict.fromkeys(("query", "key", "value", "x"), "qkv"),
    **{"chunked_forward.gate": "a", "beta": "b", "state": "state_pool", "conv_state": "conv_pool"},
    **{"conv_split_l2norm.weight": "conv_weight", "bias": "conv_bias"},
    **{"rms_norm_gated.gate": "z", "rms_norm_gated.weight": "norm_weight", "eps": "norm_eps"},
    activation="gate_activation",
)
def kda_prefill_layer(
    qkv: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    key_heads: int,
    conv_weight: Tensor,
    conv_bias: Tensor | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float | None = None,
    z: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_eps: float = 1e-5,
    conv_pool: Tensor | None = None,
    state_pool: Tensor | None = None,
    state_indices: Tensor | None = None,
    gate_activation: str = "sigmoid",
    allow_negative_eigenvalues: bool = False,
    cu_seqlens: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    null_slot: int | None = None,
    scale: float | None = None,
    deterministic: bool = False,
    state_scales: Tensor | None = None,
) -> Tensor:
    """A Kimi Delta Attention layer's prompts without its projections, with states of two pools in place, or of sequences that
    start from zeros, without pools. Returns the input of the output projection.

    Formula:
        q, k, v = conv_split_l2norm(q, k, v);  beta of b and gates of a as in `kda_decode_layer`
        out = rms_norm_gated(chunked_forward(q, k, v, beta, a), z, norm_weight, norm_eps, gate_activation)

    Shapes:
        qkv: (B, T, C), C = 2 key_heads dk + Hv dv, q, k and v of all heads; bf16, fp16 or fp32, and on the CPU fp64
        a: (B, T, Hv, dk); b: (B, T, Hv); z: (B, T, Hv dv); a and b of any strides
        conv_weight: (C, W), W up to 32, and silu follows the convolution
        conv_bias, A_log, dt_bias, norm_weight, conv_pool, state_pool, state_scales: as in `kda_decode_layer`, but dk and dv up
          to 256; one pool for all channels of the convolution
        out: (B, T, Hv dv), the dtype of qkv
        cu_seqlens: (sequences + 1,), int32 or int64: packed sequences, for which B is 1
        state_indices, has_initial_state: (B or sequences,); int32 or int64, and bool

    Parameters:
        key_heads: Hk, which divides Hv
        lower_bound, norm_eps, gate_activation, allow_negative_eigenvalues, scale, null_slot: as in `kda_decode_layer`
        deterministic: as in `chunked_forward`

    Without pools every sequence starts from zeros, its states are dropped, and the call has gradients. With pools there are
    none.

    A sequence whose has_initial_state is False starts from zeros, and its slot is not read. After a prompt its last inputs are
    in the last columns of `conv_pool`, as decode expects. A call runs three operators and does not synchronize, so it can be
    part of a CUDA graph.

    Edge cases:
        A slot that is negative or null_slot skips the sequence: output 0 for finite z, nothing touched.
        A slot past the pool touches nothing: on CPU tensors it raises IndexError; on a GPU the output of the sequence is NaN.
        Tokens after the last packed sequence have the output 0.

    Example:
        >>> Hk, Hv, dk, dv = 1, 2, 64, 8
        >>> qkv, z = torch.randn(1, 90, 2 * Hk * dk + Hv * dv).bfloat16(), torch.randn(1, 90, Hv * dv).bfloat16()
        >>> a, b = torch.randn(1, 90, Hv, dk).bfloat16(), torch.randn(1, 90, Hv)
        >>> layer = {"conv_weight": torch.randn(2 * Hk * dk + Hv * dv, 4), "norm_weight": torch.ones(dv)}
        >>> layer |= {"A_log": torch.zeros(Hv), "dt_bias": torch.zeros(Hv, dk), "lower_bound": -5.0}
        >>> layer |= {"conv_pool": torch.zeros(3, 2 * Hk * dk + Hv * dv, 3), "state_pool": torch.zeros(3, Hv, dv, dk)}
        >>> layer |= {"state_indices": torch.tensor([2])}
        >>> prompt = gdn_cuda.kda_prefill_layer(qkv[:, :89], a[:, :89], b[:, :89], z=z[:, :89], key_heads=Hk, **layer)
        >>> token = gdn_cuda.kda_decode_layer(qkv[:, 89], a[:, 89], b[:, 89], z=z[:, 89], **layer)
        >>> prompt.shape, token.shape
        (torch.Size([1, 89, 16]), torch.Size([1, 16]))
    """
    require_tensors(_NAME, qkv=qkv, a=a, b=b, conv_weight=conv_weight)
    sizes = _check_shapes(qkv, a, b, z, norm_weight, key_heads)
    for name, given in (("state_indices", state_indices), ("cu_seqlens", cu_seqlens)):
        if given is not None:
            require_tensor(_NAME, name, given, optional=True)
    if cu_seqlens is not None and qkv.shape[0] != 1:
        refuse(_NAME, "qkv", "(1, T, …) with cu_seqlens", str(tuple(qkv.shape)))
    parts = LayerParts(qkv, qkv if z is None else z.unflatten(-1, (sizes["value_heads"], sizes["dv"])), b, a)
    convolution: dict[str, Any] = {"weight": conv_weight, "bias": conv_bias, "cu_seqlens": cu_seqlens} | sizes
    recurrence: dict[str, Any] = {
        "cu_seqlens": cu_seqlens,
        "A_log": A_log,
        "dt_bias": dt_bias,
        "lower_bound": lower_bound,
        "beta_is_logit": True,
        "allow_negative_eigenvalues": allow_negative_eigenvalues,
        "scale": scale,
        "deterministic": deterministic,
    }
    norm = () if z is None else (parts.z, norm_weight, norm_eps, gate_activation)
    if conv_pool is None and state_pool is None:
        slots = {"state_indices": state_indices, "has_initial_state": has_initial_state, "state_scales": state_scales}
        for name, given in slots.items():
            if given is not None:
                refuse(_NAME, name, "None without pools", "a tensor")
        recur = partial(chunked_forward, **recurrence, output_final_state=False)
        return without_pools(parts, partial(conv_split_l2norm, **convolution), recur, *norm)
    read = {
        "qkv": qkv,
        "a": a,
        "b": b,
        "conv_weight": conv_weight,
        "conv_bias": conv_bias,
        "A_log": A_log,
        "dt_bias": dt_bias,
        "z": z,
        "norm_weight": norm_weight,
        "state_indices": state_indices,
        "cu_seqlens": cu_seqlens,
        "has_initial_state": has_initial_state,
    }
    pools = {"conv_pool": conv_pool, "state_pool": state_pool}
    if state_scales is not None:
        pools["state_scales"] = state_scales
    return with_pools(_NAME, parts, convolution, recurrence, norm or None, pools, read, null_slot)


def _check_shapes(
    qkv: Tensor, a: Tensor, b: Tensor, z: Tensor | None, norm_weight: Tensor | None, key_heads: int
) -> dict[str, int]:
    """Checks what operators could otherwise only report for parts of these tensors. Returns the sizes of heads."""
    if qkv.dim() != 3:
        refuse(_NAME, "qkv", "(B, T, C)", str(tuple(qkv.shape)))
    if a.dim() != 4 or a.shape[:2] != qkv.shape[:2]:
        refuse(_NAME, "a", f"(B, T, Hv, dk), (B, T) = {tuple(qkv.shape[:2])}", str(tuple(a.shape)))
    heads, dk = a.shape[2:]
    if b.shape != a.shape[:3]:
        refuse(_NAME, "b", f"(B, T, Hv) = {tuple(a.shape[:3])}", str(tuple(b.shape)))
    if not isinstance(key_heads, int) or key_heads < 1 or heads < 1 or heads % key_heads:
        refuse(_NAME, "key_heads", f"a divisor of the {heads} value heads", repr(key_heads))
    rows = qkv.shape[2] - 2 * key_heads * dk
    if rows < heads or rows % heads:
        refuse(_NAME, "qkv", f"(B, T, 2 {key_heads} {dk} + {heads} dv)", str(tuple(qkv.shape)))
    for name, given, other in (("z", z, norm_weight), ("norm_weight", norm_weight, z)):
        if given is None and other is not None:
            refuse(_NAME, name, "z with norm_weight, or neither", "None")
        if given is not None:
            require_tensor(_NAME, name, given, optional=True)
    if z is not None and z.shape != (*qkv.shape[:2], rows):
        refuse(_NAME, "z", f"(B, T, Hv dv) = {(*qkv.shape[:2], rows)}", str(tuple(z.shape)))
    return {"key_heads": key_heads, "value_heads": heads, "dk": dk, "dv": rows // heads}


typical_call(
    kda_prefill_layer,
    {"B": 1, "T": 8192, "C": 12288, "R": 4096, "Hk": 32, "Hv": 32, "dk": 128, "dv": 128, "W": 4, "S": 3, "slots": 64},
    "qkv: B T C; a: B T Hv dk; b: B T Hv; key_heads = Hk; conv_weight: C W; A_log: Hv f32; dt_bias: Hv dk f32; z: B T R; "
    "norm_weight: dv; conv_pool: slots C S mn; state_pool: slots Hv dv dk f32; state_indices: B i32",
)
