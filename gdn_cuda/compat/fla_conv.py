"""FLA's causal convolution."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..operators.schema import refuse
from .fla_layer import conv_by_token

_NAME = "causal_conv1d"


def causal_conv1d(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool | None = False,
    activation: str | None = None,
    backend: str | None = "triton",
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    cp_context: Any = None,
) -> tuple[Tensor, Tensor | None]:
    """FLA's `fla.modules.convolution.causal_conv1d`: the output, (B, T, D) as x, and with `output_final_state` the last W
    inputs, (N, D, W). All inputs have gradients.

    weight is (D, W). `backend`, `cu_seqlens_cpu` and `chunk_indices` change nothing; `residual` is refused. With `cp_context`,
    from `build_cp_context` here or FLA's, x has this rank's tokens, and states are refused, as in FLA.
    """
    if weight is None:
        refuse(_NAME, "weight", "a tensor (D, W)", None)
    if residual is not None:
        refuse(_NAME, "residual", "None", "a tensor")
    if cp_context is None:
        return conv_by_token(x, weight, bias, initial_state, bool(output_final_state), activation, cu_seqlens)
    if initial_state is not None:
        refuse(_NAME, "initial_state", "None with cp_context", "a tensor")
    if output_final_state:
        refuse(_NAME, "output_final_state", "False with cp_context", output_final_state)
    from ..parallel import causal_conv1d as on_ranks  # imports torch.distributed's device meshes
    from .fla_context import shared_of

    return on_ranks(x.mT, weight, bias, activation, context=shared_of(_NAME, cp_context).context).mT, None
