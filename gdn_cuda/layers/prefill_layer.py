"""A layer's prompts between its projections: gdn_decode_layer's counterpart, composed of three operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..gdn.operators import chunked_forward
from ..operators.caller import in_words_of_caller
from ..operators.calls import typical_call
from ..operators.composed import composed
from ..operators.registration import check_call
from ..operators.schema import refuse, require_tensor, require_tensors
from .conv_split_l2norm import conv_split_l2norm
from .layer_parts import LayerParts, check_heads, check_parts, layer_parts, split_heads
from .rms_norm_gated import rms_norm_gated

_NAME = "gdn_prefill_layer"


@in_words_of_caller(
    **dict.fromkeys(("query", "key", "value", "x"), "qkvz"),
    **{"chunked_forward.gate": "a|ba", "beta": "ba", "state": "state_pool", "conv_state": "conv_pool"},
    **{"conv_split_l2norm.weight": "conv_weight", "bias": "conv_bias", "b": "ba"},
    **{"rms_norm_gated.gate": "z|qkvz", "rms_norm_gated.weight": "norm_weight", "eps": "norm_eps"},
    activation="gate_activation",
)
def gdn_prefill_layer(
    qkvz: Tensor,
    ba: Tensor,
    *,
    conv_weight: Tensor,
    conv_bias: Tensor | None = None,
    A_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    norm_eps: float = 1e-6,
    conv_pool: Tensor | None = None,
    state_pool: Tensor | None = None,
    state_indices: Tensor | None = None,
    heads: tuple[int, int],
    dk: int,
    dv: int,
    layout: str = "qwen3_next",
    gate_activation: str = "silu",
    allow_negative_eigenvalues: bool = False,
    cu_seqlens: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    null_slot: int | None = None,
    scale: float | None = None,
    deterministic: bool = False,
    state_scales: Tensor | None = None,
    z: Tensor | None = None,
    a: Tensor | None = None,
) -> Tensor:
    """A layer's prompts without its projections, with states of two pools in place; without pools it has gradients, for
    training. Returns the input of the output projection.

    Formula:
        q, k, v = conv_split_l2norm(q, k, v);  beta and gate of b and a as in `gdn_decode_layer`
        out = rms_norm_gated(chunked_forward(q, k, v, beta, gate), z, norm_weight, norm_eps, gate_activation)

    Shapes:
        qkvz, ba, z, a, heads, dk, dv, layout: as in `gdn_decode_layer`, but dk and dv are multiples of 8 up to 256, and T is
          any length
        conv_weight, conv_bias, A_log, dt_bias, norm_weight, conv_pool, state_pool, state_scales: as in `gdn_decode_layer`, but
          conv_weight is (C, W), W up to 32, and silu follows the convolution
        out: (B, T, Hv dv), the dtype of qkvz
        cu_seqlens: (sequences + 1,), int32 or int64: packed sequences, for which B is 1
        state_indices, has_initial_state: (B or sequences,); int32 or int64, and bool

    Parameters:
        norm_eps, gate_activation, allow_negative_eigenvalues, scale, null_slot: as in `gdn_decode_layer`
        deterministic: as in `chunked_forward`

    Without pools every sequence starts from zeros, its states are dropped, and qkvz, ba, z, a and all weights have gradients.
    With pools there are none.

    A sequence whose has_initial_state is False starts from zeros, and its slot is not read. After a prompt its last inputs are
    in the last columns of `conv_pool`, as decode without verify expects; for verify, which expects them in the first columns,
    pass `conv_pool[..., :3]`. A call runs three operators and does not synchronize, so it can be part of a CUDA graph.

    Edge cases:
        A slot that is negative or null_slot skips the sequence: output 0 for finite z, nothing touched.
        A slot past the pool touches nothing: on CPU tensors it raises IndexError; on a GPU the output of the sequence is NaN.
        Tokens after the last packed sequence have the output 0.

    Example:
        >>> Hk, Hv, dk, dv = 1, 2, 64, 8
        >>> qkvz, ba = torch.randn(1, 90, 2 * Hk * dk + 2 * Hv * dv).bfloat16(), torch.randn(1, 90, 2 * Hv)
        >>> layer = {"conv_weight": torch.randn(2 * Hk * dk + Hv * dv, 4), "norm_weight": torch.ones(dv)}
        >>> layer |= {"A_log": torch.zeros(Hv), "dt_bias": torch.zeros(Hv), "heads": (Hk, Hv), "dk": dk, "dv": dv}
        >>> layer |= {"conv_pool": torch.zeros(3, 2 * Hk * dk + Hv * dv, 3), "state_pool": torch.zeros(3, Hv, dv, dk)}
        >>> layer |= {"state_indices": torch.tensor([2])}
        >>> prompt = gdn_cuda.gdn_prefill_layer(qkvz[:, :89], ba[:, :89], **layer)
        >>> token = gdn_cuda.gdn_decode_layer(qkvz[:, 89:], ba[:, 89:], **layer)
        >>> prompt.shape, token.shape
        (torch.Size([1, 89, 16]), torch.Size([1, 1, 16]))
    """
    require_tensors(_NAME, conv_weight=conv_weight, A_log=A_log, dt_bias=dt_bias, norm_weight=norm_weight)
    heads = heads_k, heads_v = check_heads(_NAME, heads)
    check_parts(_NAME, qkvz, ba, z, a, heads, dk, dv, layout)
    for name, given in (("state_indices", state_indices), ("cu_seqlens", cu_seqlens)):
        if given is not None:
            require_tensor(_NAME, name, given, optional=True)
    if cu_seqlens is not None and qkvz.shape[0] != 1:
        refuse(_NAME, "qkvz", "(1, T, …) with cu_seqlens", str(tuple(qkvz.shape)))
    parts = layer_parts(qkvz, ba, z, a, heads, dk, dv, layout)
    convolution: dict[str, Any] = {"weight": conv_weight, "bias": conv_bias, "cu_seqlens": cu_seqlens}
    convolution |= {"key_heads": heads_k, "value_heads": heads_v, "dk": dk, "dv": dv}
    recurrence: dict[str, Any] = {
        "cu_seqlens": cu_seqlens,
        "A_log": A_log,
        "dt_bias": dt_bias,
        "beta_is_logit": True,
        "allow_negative_eigenvalues": allow_negative_eigenvalues,
        "scale": scale,
        "deterministic": deterministic,
    }
    norm = (parts.z, norm_weight, norm_eps, gate_activation)
    if conv_pool is None and state_pool is None:
        slots = {"state_indices": state_indices, "has_initial_state": has_initial_state, "state_scales": state_scales}
        for name, given in slots.items():
            if given is not None:
                refuse(_NAME, name, "None without pools", "a tensor")
        recur = partial(chunked_forward, **recurrence, output_final_state=False)
        return without_pools(parts, partial(conv_split_l2norm, **convolution), recur, *norm)
    read: dict[str, Tensor | None] = {
        "qkvz": qkvz,
        "ba": ba,
        "conv_weight": conv_weight,
        "conv_bias": conv_bias,
        "A_log": A_log,
        "dt_bias": dt_bias,
        "norm_weight": norm_weight,
        "state_indices": state_indices,
        "cu_seqlens": cu_seqlens,
        "has_initial_state": has_initial_state,
        "z": z,
        "a": a,
    }
    pools = {"conv_pool": conv_pool, "state_pool": state_pool}
    if state_scales is not None:
        pools["state_scales"] = state_scales
    return with_pools(_NAME, parts, convolution, recurrence, norm, pools, read, null_slot)


def with_pools(
    function: str,
    parts: LayerParts,
    convolution: dict[str, Any],
    recurrence: dict[str, Any],
    norm: tuple[Any, ...] | None,
    pools: dict[str, Tensor | None],
    read: dict[str, Tensor | None],
    null_slot: int | None,
) -> Tensor:
    """A layer's prompts with states of two pools in place. `convolution`, `recurrence` and `norm` are arguments of
    conv_split_l2norm, chunked_forward and rms_norm_gated, and `read` has all tensors of the call by argument."""
    for name, pool in pools.items():
        require_tensor(function, name, pool)
    conv_pool, state_pool = pools["conv_pool"], pools["state_pool"]
    assert conv_pool is not None and state_pool is not None
    if conv_pool.shape[:1] != state_pool.shape[:1]:
        refuse(function, "conv_pool", f"as many slots as state_pool {tuple(state_pool.shape)}", str(tuple(conv_pool.shape)))
    state_indices, cu_seqlens, has_initial_state = (read[x] for x in ("state_indices", "cu_seqlens", "has_initial_state"))
    if null_slot is not None and state_indices is not None:
        state_indices = torch.where(state_indices == null_slot, -1, state_indices)
    slots, mixed = state_indices, parts.mixed
    if slots is None:
        sequences = mixed.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        slots = torch.arange(sequences, device=mixed.device)
    dk, dv, heads = convolution["dk"], convolution["dv"], (convolution["key_heads"], convolution["value_heads"])
    o = mixed.new_empty(*mixed.shape[:2], heads[1], dv)
    recurrence = recurrence | {"state": state_pool, "state_indices": slots, "has_initial_state": has_initial_state}
    recurrence["state_scales"] = pools.get("state_scales")

    def rows_and_out(query: Tensor, key: Tensor, value: Tensor) -> dict[str, Tensor]:
        rows = {"query": query, "key": key, "value": value, "beta": parts.b, "gate": parts.a, "out": o}
        return rows if cu_seqlens is None else {name: x[0] for name, x in rows.items()}

    def checks() -> None:
        """Checks the operators that run after the convolution has written its states; shapes of results are those of inputs."""
        plain = {"use_qk_l2norm": False, "checkpoint_every": 0, "gate_is_linear": False, "update_state": True}
        check_call("chunked_forward_pool", **rows_and_out(*split_heads(mixed, heads, dk, dv)), **recurrence, **plain)
        if norm is not None:
            named = dict(zip(("gate", "weight", "eps", "activation"), norm, strict=True))
            check_call("rms_norm_gated", x=o, norm_before_gate=True, **named)

    def run() -> Tensor:
        found = conv_split_l2norm(
            mixed.mT,
            **convolution,
            conv_state=conv_pool,
            state_indices=state_indices,
            has_initial_state=has_initial_state,
        )
        chunked_forward(**rows_and_out(*found[:3]), **recurrence)
        return (o if norm is None else rms_norm_gated(o, *norm)).flatten(-2)

    return composed(function, f"{function} without pools", pools, read, run, checks)


def without_pools(
    parts: LayerParts,
    convolve: Callable[[Tensor], tuple[Tensor, ...]],
    recur: Callable[..., tuple[Tensor, Any]],
    *norm: Any,
) -> Tensor:
    """The layer with gradients: `convolve` of q, k and v, `recur` of these, b and a, and the gated norm, if it has
    arguments."""
    query, key, value, *_ = convolve(parts.mixed.mT)
    o = recur(query, key, value, parts.b, parts.a)[0]
    return (rms_norm_gated(o, *norm) if norm else o).flatten(-2)


typical_call(
    gdn_prefill_layer,
    {"B": 1, "T": 8192, "Q": 12288, "C": 8192, "W": 4, "S": 3, "Hk": 16, "Hv": 32, "G": 64, "dk": 128, "dv": 128, "slots": 64},
    "qkvz: B T Q; ba: B T G; conv_weight: C W; A_log, dt_bias: Hv f32; norm_weight: dv; conv_pool: slots C S mn; "
    "state_pool: slots Hv dv dk f32; state_indices: B i32; heads = (Hk Hv); dk = dk; dv = dv",
)
