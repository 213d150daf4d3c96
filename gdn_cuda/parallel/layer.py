"""Layers of the delta rule between their projections, of sequences whose tokens are on several ranks."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from ..layers.conv_split_l2norm import conv_split_l2norm
from ..layers.layer_parts import LayerParts, layer_parts
from ..layers.prefill_layer import without_pools
from ..operators.schema import refuse
from .contexts import Context, require_context
from .eager import outside_graphs
from .halos import by_slices
from .recurrence import chunked_forward


def check_tokens_of_rank(layer: str, context: Context, name: str, x: Tensor, **states: Any) -> None:
    """Raises unless a layer's input x (B, T, …), named `name`, has the rank's tokens, and no states are given or asked for."""
    for argument, given in states.items():
        if given is not None and given is not False:
            got = given if isinstance(given, bool) else type(given).__name__
            refuse(layer, argument, f"{False if isinstance(given, bool) else None} with a context", got)
    require_context(layer, context)
    context.check(layer, name, x, 1)
    context.check_batch(layer, name, x)


@outside_graphs
def layer_on_ranks(
    context: Context,
    qkvz: Tensor,
    ba: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    A_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    norm_eps: float,
    heads: tuple[int, int],
    dk: int,
    dv: int,
    layout: str,
    allow_negative_eigenvalues: bool,
) -> Tensor:
    """`gdn_prefill_layer` without pools, with arguments that `nn.GatedDeltaNet` has checked."""
    sizes: dict[str, Any] = {"key_heads": heads[0], "value_heads": heads[1], "dk": dk, "dv": dv}
    gates = {"A_log": A_log, "dt_bias": dt_bias, "allow_negative_eigenvalues": allow_negative_eigenvalues}
    parts = layer_parts(qkvz, ba, None, None, heads, dk, dv, layout)
    return _on_ranks("GatedDeltaNet", context, parts, (conv_weight, conv_bias), sizes, gates, (norm_weight, norm_eps, "silu"))


@outside_graphs
def kda_layer_on_ranks(
    context: Context,
    qkv: Tensor,
    a: Tensor,
    b: Tensor,
    z: Tensor,
    key_heads: int,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    A_log: Tensor,
    dt_bias: Tensor,
    lower_bound: float | None,
    norm_weight: Tensor,
    norm_eps: float,
    allow_negative_eigenvalues: bool,
) -> Tensor:
    """`kda_prefill_layer` without pools, with arguments that `nn.KimiDeltaAttention` has checked."""
    heads, dk = a.shape[2:]
    parts = LayerParts(qkv, z.unflatten(-1, (heads, -1)), b, a)
    sizes = {"key_heads": key_heads, "value_heads": heads, "dk": dk, "dv": parts.z.shape[-1]}
    gates: dict[str, Any] = {"A_log": A_log, "dt_bias": dt_bias, "lower_bound": lower_bound}
    gates |= {"allow_negative_eigenvalues": allow_negative_eigenvalues}
    norm = norm_weight, norm_eps, "sigmoid"
    return _on_ranks("KimiDeltaAttention", context, parts, (conv_weight, conv_bias), sizes, gates, norm)


def _on_ranks(
    layer: str,
    context: Context,
    parts: LayerParts,
    convolution: tuple[Tensor, Tensor | None],
    sizes: dict[str, Any],
    gates: dict[str, Any],
    norm: tuple[Tensor, float, str],
) -> Tensor:
    """`convolution`: weight and bias; `sizes`: as `conv_split_l2norm` takes them; `gates`: options of the recurrence."""
    taps = convolution[0].shape[1]

    def convolve(x: Tensor) -> tuple[Tensor, ...]:
        def of_part(part: Tensor, cu_seqlens: Tensor | None, states: Tensor | None) -> tuple[Tensor, ...]:
            return conv_split_l2norm(part, *convolution, cu_seqlens=cu_seqlens, initial_states=states, **sizes)

        return by_slices(layer, x, taps, context, of_part, 1)

    recur = partial(chunked_forward, context=context, output_final_state=False, beta_is_logit=True, **gates)
    return without_pools(parts, convolve, recur, parts.z, *norm)
