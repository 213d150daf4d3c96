"""A Gated Delta Net layer between its projections, of sequences whose tokens are on several ranks."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from ..layers.conv_split_l2norm import conv_split_l2norm
from ..layers.layer_parts import layer_parts
from ..layers.prefill_layer import without_pools
from ..operators.schema import refuse
from .contexts import Context, require_context
from .eager import outside_graphs
from .halos import by_slices
from .recurrence import chunked_forward

_NAME = "GatedDeltaNet"


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

    def convolve(x: Tensor) -> tuple[Tensor, ...]:
        def of_part(part: Tensor, cu_seqlens: Tensor | None, states: Tensor | None) -> tuple[Tensor, ...]:
            return conv_split_l2norm(part, conv_weight, conv_bias, cu_seqlens=cu_seqlens, initial_states=states, **sizes)

        return by_slices(_NAME, x, conv_weight.shape[1], context, of_part, 1)

    options: dict[str, Any] = {"beta_is_logit": True, "allow_negative_eigenvalues": allow_negative_eigenvalues}
    recur = partial(chunked_forward, context=context, A_log=A_log, dt_bias=dt_bias, output_final_state=False, **options)
    parts = layer_parts(qkvz, ba, None, None, heads, dk, dv, layout)
    return without_pools(parts, convolve, recur, parts.z, norm_weight, norm_eps, "silu")
