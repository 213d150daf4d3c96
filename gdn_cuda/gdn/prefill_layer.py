"""A layer's prompts between its projections: gdn_decode_layer's counterpart, composed of three operators."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import conv  # imports this family
from ..operators.caller import in_words_of_caller
from ..operators.calls import typical_call
from ..operators.registration import check_call
from ..operators.schema import not_a_tensor, refuse, require_tensors
from .layer_parts import LAYOUTS, check_heads, layer_parts, split_heads
from .operators import chunked_forward

_NAME = "gdn_prefill_layer"


def _check(
    qkvz: Tensor, ba: Tensor, z: Tensor | None, a: Tensor | None, heads: tuple[int, int], layout: str, width: int
) -> None:
    """What the operators would find in parts of the tensors only."""
    if layout not in LAYOUTS:
        refuse(_NAME, "layout", f"one of {', '.join(map(repr, LAYOUTS))}", repr(layout))
    if heads[0] < 1 or heads[1] % heads[0]:
        refuse(_NAME, "heads", "(Hk, Hv) with Hv a multiple of Hk", repr(heads))
    split = layout == "split"
    for name, given, needed in (("qkvz", qkvz, True), ("ba", ba, True), ("z", z, split), ("a", a, split)):
        if not isinstance(given, Tensor if needed else (Tensor, type(None))):
            raise ValueError(not_a_tensor(_NAME, name, given))
        if isinstance(given, Tensor) and not needed:
            refuse(_NAME, name, f"None with layout {layout!r}", "a tensor")
        if isinstance(given, Tensor) and given.dim() != 3:
            refuse(_NAME, name, "(B, T, …)", str(tuple(given.shape)))
    of_gates = heads[1] if split else 2 * heads[1]
    for name, given, expected in (("qkvz", qkvz, width), ("ba", ba, of_gates)):
        if given.shape[-1] != expected:
            refuse(_NAME, name, f"(B, T, {expected})", str(tuple(given.shape)))


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
    conv_pool: Tensor,
    state_pool: Tensor,
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
    z: Tensor | None = None,
    a: Tensor | None = None,
) -> Tensor:
    """A whole layer's prompts but for its projections, states of two pools in place: what goes into the output projection.

    Formula:
        q, k, v = conv_split_l2norm(q, k, v);  beta and gate of b and a as in `gdn_decode_layer`
        out = rms_norm_gated(chunked_forward(q, k, v, beta, gate), z, norm_weight, norm_eps, gate_activation)

    Shapes:
        qkvz, ba, z, a, heads, dk, dv, layout, weights, pools and out (B, T, Hv dv): as in `gdn_decode_layer`; dk and dv are
          multiples of 8 up to 256, T is any length, and conv_weight is (C, W), W up to 32, behind which comes silu
        cu_seqlens: (sequences + 1,), int32 or int64: packed sequences, for which B is 1
        state_indices, has_initial_state: (B or sequences,); int32 or int64, and bool

    A sequence whose has_initial_state is False starts from zeros, and its slot is not read. Behind a prompt the last inputs are
    in the last columns of `conv_pool`, as tokens without verify expect them; for a pool of verify, which begins with the first
    columns, pass `conv_pool[..., :3]`. Three operators and nothing that synchronizes: a call can be part of a CUDA graph.

    Edge cases:
        A slot that is negative or null_slot skips the sequence: output 0 for finite z, nothing touched.
        A slot past the pool touches nothing: on CPU tensors it raises IndexError; on a GPU the output of the sequence is NaN.
        Tokens behind the last packed sequence have the output 0.

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
    _check(qkvz, ba, z, a, heads, layout, 2 * heads_k * dk + heads_v * dv * (1 if layout == "split" else 2))
    for name, pool in (("conv_pool", conv_pool), ("state_pool", state_pool)):
        if not isinstance(pool, Tensor):
            raise ValueError(not_a_tensor(_NAME, name, pool))
    if conv_pool.shape[:1] != state_pool.shape[:1]:
        refuse(_NAME, "conv_pool", f"as many slots as state_pool {tuple(state_pool.shape)}", str(tuple(conv_pool.shape)))
    parts = layer_parts(qkvz, ba, z, a, heads, dk, dv, layout)
    if null_slot is not None and state_indices is not None:
        state_indices = torch.where(state_indices == null_slot, -1, state_indices)
    slots = state_indices
    if slots is None:
        sequences = qkvz.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        slots = torch.arange(sequences, device=qkvz.device)
    o = qkvz.new_empty(*qkvz.shape[:2], heads_v, dv)
    recurrence = {
        "state": state_pool,
        "cu_seqlens": cu_seqlens,
        "A_log": A_log,
        "dt_bias": dt_bias,
        "beta_is_logit": True,
        "allow_negative_eigenvalues": allow_negative_eigenvalues,
        "scale": scale,
        "deterministic": deterministic,
        "state_indices": slots,
        "has_initial_state": has_initial_state,
    }

    def rows_and_out(query: Tensor, key: Tensor, value: Tensor) -> dict[str, Tensor]:
        rows = {"query": query, "key": key, "value": value, "beta": parts.b, "gate": parts.a, "out": o}
        return rows if cu_seqlens is None else {name: x[0] for name, x in rows.items()}

    norm = (parts.z, norm_weight, norm_eps, gate_activation)
    if not torch.compiler.is_compiling():  # a trace refuses before anything runs
        # The convolution writes its states: so what the others refuse is refused before. Its results are like its inputs.
        plain = {"use_qk_l2norm": False, "checkpoint_every": 0, "gate_is_linear": False, "update_state": True}
        inputs = rows_and_out(*split_heads(parts.mixed, heads, dk, dv))
        check_call("chunked_forward_pool", **inputs, **recurrence, **plain)
        named = dict(zip(("gate", "weight", "eps", "activation"), norm, strict=True))
        check_call("rms_norm_gated", x=o, norm_before_gate=True, **named)
    found = conv.conv_split_l2norm(
        parts.mixed.mT,
        conv_weight,
        conv_bias,
        key_heads=heads_k,
        value_heads=heads_v,
        dk=dk,
        dv=dv,
        cu_seqlens=cu_seqlens,
        conv_state=conv_pool,
        state_indices=state_indices,
        has_initial_state=has_initial_state,
    )
    chunked_forward(**rows_and_out(*found[:3]), **recurrence)
    return conv.rms_norm_gated(o, *norm).flatten(-2)


typical_call(
    gdn_prefill_layer,
    {"B": 1, "T": 8192, "Q": 12288, "C": 8192, "W": 4, "S": 3, "Hk": 16, "Hv": 32, "G": 64, "dk": 128, "dv": 128, "slots": 64},
    "qkvz: B T Q; ba: B T G; conv_weight: C W; A_log, dt_bias: Hv f32; norm_weight: dv; conv_pool: slots C S mn; "
    "state_pool: slots Hv dv dk f32; state_indices: B i32; heads = (Hk Hv); dk = dk; dv = dv",
)
