"""`chunked_forward` of sequences whose tokens are on several ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..gdn.reference import heads_of
from ..operators.autograd import needs_gradients
from ..operators.registration import check_call
from ..operators.schema import require_tensor
from .contexts import Context, require_context
from .eager import outside_graphs
from .ranks import all_gather
from .rule import rule

_NAME = "parallel.chunked_forward"


def chunked_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor | None,
    gate: Tensor | None,
    state: Tensor | None = None,
    *,
    context: Context,
    output_final_state: bool = True,
    broadcast_final_state: bool = False,
    scale: float | None = None,
    use_qk_l2norm: bool = False,
    deterministic: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    beta_is_logit: bool = False,
    allow_negative_eigenvalues: bool = False,
    gate_is_linear: bool = False,
    lower_bound: float | None = None,
    workspace: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`gdn_cuda.chunked_forward` of sequences whose tokens ranks share, with its gradients. Returns `(output, final_state)`.

    Formula:
        as in `chunked_forward`; before a rank's first token S = (…(S₀ M₀ + L₀) M₁ + L₁…), of the ranks before

    Shapes:
        query, key, value, beta, gate: as in `chunked_forward`, with this rank's tokens in the order of its fragments: (B, T, …)
          or packed (T, …); where the context has several sequences B is 1
        state: (sequences, Hv, dv, dk), or with one sequence (B, Hv, dv, dk). Of a sequence the rank reads it that has the first
          token; it has the gradient too, and those of others are 0. None for zeros
        final_state: as state: the rank that has a sequence's last token has it, others have zeros. A sequence without tokens
          belongs to rank 0
        A_log, dt_bias: as in `chunked_forward`. Their gradients are those of the rank's tokens: their sum over ranks is the
          gradient, which data-parallel wrappers compute for parameters

    Parameters:
        context: from `gdn_cuda.parallel.context`, equal on all ranks
        output_final_state: False: None is returned as final_state
        broadcast_final_state: whether all ranks have all final states, by one collective more; the same on all ranks
        scale, use_qk_l2norm, deterministic, beta_is_logit, allow_negative_eigenvalues, gate_is_linear: as in `chunked_forward`
        lower_bound, workspace: as in `chunked_forward`

    States travel as the context says, and no collective is made where no sequence crosses from one rank to another. All ranks
    call it, and its backward, also those without tokens. States and maps are composed in fp64.

    Edge cases:
        A reset, a gate of −∞, stops NaN and infinities of other ranks too; of gates of channels, one of all channels.
        Results differ from those of one process by rounding, since a rank's chunks begin at its first token.
    """
    given: dict[str, Tensor | None] = {"query": query, "key": key, "value": value, "beta": beta, "gate": gate}
    for name, x in given.items():
        if x is not None or name in ("query", "key", "value"):
            require_tensor(_NAME, name, x)
    packed = query.dim() == 3
    if packed:
        given = {name: None if x is None else x[None] for name, x in given.items()}
    weights = {"A_log": A_log, "dt_bias": dt_bias}
    options = {
        "scale": scale,
        "use_qk_l2norm": use_qk_l2norm,
        "deterministic": deterministic,
        "beta_is_logit": beta_is_logit,
        "allow_negative_eigenvalues": allow_negative_eigenvalues,
        "gate_is_linear": gate_is_linear,
        "lower_bound": lower_bound,
        "workspace": workspace,
    }
    require_context(_NAME, context)
    if not torch.compiler.is_compiling():
        _check(context, given, weights, options, state)
    tensors = given | weights | {"state": state}
    out, last = rule(context, tensors, options, needs_gradients(*tensors.values()), output_final_state)
    if packed:
        out = out.squeeze(0)  # a select would copy its gradient
    if not output_final_state:
        return out, None
    if broadcast_final_state and context.ranks.size > 1:
        last = _of_owners(context, last)
    return out, last if state is None else last.to(state.dtype)


@outside_graphs
def _of_owners(context: Context, last: Tensor) -> Tensor:
    every = all_gather(context.ranks, last)
    if len(context.lengths) == 1:
        return every[context.owners[0]]
    owners = context.integers("owners", last.device, context.owners)
    return every[owners, context.integers("rows", last.device, range(len(owners)))]


def _check(
    context: Context,
    given: dict[str, Tensor | None],
    weights: dict[str, Tensor | None],
    options: dict[str, Any],
    state: Tensor | None,
) -> None:
    """Refuses before the first collective what the operator would refuse after it."""
    for name, x in given.items():
        if x is not None:
            context.check(_NAME, name, x, 1)
    query, value = given["query"], given["value"]
    assert query is not None and value is not None
    flags = {"has_initial_state": None, "recurrent": False, "state": None, "cu_seqlens": None}
    check_call("gated_delta_rule", **given, **weights, **options, **flags)
    context.check_batch(_NAME, "query", query)
    if state is not None:
        context.check_states(_NAME, "state", state, query, heads_of(query, value), value.shape[-1], query.shape[-1])
