"""FLA's functions of the Gated Delta Net and its layer, as in fla-core and flash-linear-attention 0.6.0, with gradients, and of
Kimi Delta Attention (`fla_kda`).

    from gdn_cuda.compat.fla import GatedDeltaNet, chunk_gated_delta_rule

`chunk_gated_delta_rule` is also what Megatron and torchtitan call; docs/training.md has the lines.
`fused_recurrent_gated_delta_rule`, which has no backward in FLA, has one here: forward stays token by token, and gradients are
computed by chunks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..gdn.by_token import by_token
from ..operators.caller import in_words_of_caller
from ..operators.schema import refuse
from .fla_arguments import betas, layout, states, widened
from .fla_chunked import chunked
from .fla_conv import causal_conv1d
from .fla_kda import chunk_kda, fused_kda_gate, fused_recurrent_kda, naive_recurrent_kda
from .fla_layer import GatedDeltaNet

__all__ = [
    "FLACPContext",
    "GatedDeltaNet",
    "build_cp_context",
    "causal_conv1d",
    "chunk_gated_delta_rule",
    "chunk_gdn",
    "chunk_kda",
    "fused_kda_gate",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_gdn",
    "fused_recurrent_kda",
    "naive_recurrent_kda",
]
if TYPE_CHECKING:
    from .fla_context import FLACPContext, build_cp_context
else:

    def __getattr__(name: str) -> Any:
        """The names of contexts, whose module imports torch.distributed."""
        if name not in ("FLACPContext", "build_cp_context"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import fla_context

        return getattr(fla_context, name)


_CHUNK_SIZES = (16, 32, 64)
_NAMES = {"query": "q", "key": "k", "value": "v", "gate": "g", "state": "initial_state"}
_in_words_of_fla = in_words_of_caller(**_NAMES)


@_in_words_of_fla
def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool | None = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    cp_context: Any = None,
    *,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    chunk_size: int = 64,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """`gdn_cuda.chunked_forward`: returns the output and, with `output_final_state`, the final state, which is fp32 at least.

    States are (N, HV, K, V) views of memory with K contiguous, or (N, HV, V, K) with `state_v_first`. With `use_gate_in_kernel`
    g is raw, and A_log (HV,) is needed; dt_bias None is 0. `cu_seqlens_cpu`, `chunk_indices` and `chunk_size` (16, 32 or 64)
    change nothing. `transpose_state_layout` is `state_v_first` with a DeprecationWarning; `head_first` is refused; other
    keywords are ignored, as in FLA.

    With `cp_context`, from `build_cp_context` here or FLA's, tensors have this rank's tokens, B is 1, and cu_seqlens is the
    context's. States, which FLA refuses, are those of the rows of `cp_context.cu_seqlens`: an initial one is read where a
    sequence begins, and a final one is 0 where it goes on.
    """
    function = "chunk_gated_delta_rule"
    v_first = layout(function, state_v_first, others)
    if chunk_size not in _CHUNK_SIZES:
        refuse(function, "chunk_size", "16, 32 or 64", chunk_size)
    raw = _raw_gates(function, g, use_gate_in_kernel, A_log, dt_bias)
    gates = raw | betas(function, v, beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    call: dict[str, Any] = gates | {"state": states(initial_state, v_first), "cu_seqlens": cu_seqlens, "scale": scale}
    call |= {"use_qk_l2norm": use_qk_l2norm_in_kernel, "output_final_state": bool(output_final_state)}
    output, state = chunked(function, q, k, v, call, cp_context)
    return output, states(state, v_first)


@_in_words_of_fla
def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool | None = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Token by token, in the bits of decode also where an input requires a gradient, so that a policy is trained on the numbers
    that it was sampled with.

    Arguments and results as of `chunk_gated_delta_rule`. Without g nothing decays; beta None is 1. gk and gv, gates of every
    column, are refused.
    """
    function = "fused_recurrent_gated_delta_rule"
    v_first = layout(function, state_v_first, others)
    for name, given in (("gk", gk), ("gv", gv)):
        if given is not None:
            refuse(function, name, "None, as a head has one gate for all columns", "a tensor")
    if use_gate_in_kernel and g is None:
        refuse(function, "g", "raw gates with use_gate_in_kernel", None)
    raw = _raw_gates(function, g, use_gate_in_kernel, A_log, dt_bias)
    gates = raw | betas(function, v, beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    state = states(initial_state, v_first)
    gates |= {"state": widened(function, state, v), "cu_seqlens": cu_seqlens, "scale": scale}
    more: dict[str, Any] = {"use_qk_l2norm": use_qk_l2norm_in_kernel, "output_final_state": bool(output_final_state)}
    output, after = by_token(q, k, v, **gates, **more)
    return output, states(after, v_first)


# FLA has these names, too.
chunk_gdn = chunk_gated_delta_rule
fused_recurrent_gdn = fused_recurrent_gated_delta_rule


def _raw_gates(function: str, g: Tensor | None, are_raw: bool, A_log: Tensor | None, dt_bias: Tensor | None) -> dict[str, Any]:
    if not are_raw:
        return {"gate": g, "A_log": None, "dt_bias": None}
    if A_log is None:
        refuse(function, "A_log", "a tensor (HV,) with use_gate_in_kernel", None)
    return {"gate": g, "A_log": A_log, "dt_bias": dt_bias}
