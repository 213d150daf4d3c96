"""`chunked_forward` of sequences whose tokens are on several ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..gdn.reference import heads_of
from ..gdn.training import WORKSPACE
from ..operators.autograd import needs_gradients
from ..operators.registration import check_call
from ..operators.schema import require_tensor
from .contexts import Context, require_context
from .eager import outside_graphs
from .passes import TENSORS, Backward, Call, Forward, exchanged
from .ranks import all_gather

_NAME = "parallel.chunked_forward"


class _Rule(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, context: Context, options: dict[str, Any], how: tuple[bool, bool], *tensors: Tensor | None) -> Any:
        training, output_final_state = how
        call = Call(context, dict(zip(TENSORS, tensors, strict=True)), options)
        half = Forward(call, training, output_final_state)
        every = exchanged(context, half)
        results = half.finish(every)
        if training:
            maps = half.maps_after(every)
            by_run: list[dict[Any, Any]] = [half.initial, {run: each[2] for run, each in half.found.items()}, maps]
            saved = [kept.get(run) for kept in by_run for run in context.runs]
            ctx.save_for_backward(*tensors, *saved)
            ctx.call = context, options
            ctx.set_materialize_grads(False)
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor | None, grad_last: Tensor | None) -> Any:
        context, options = ctx.call
        saved, count = ctx.saved_tensors, len(TENSORS)
        call = Call(context, dict(zip(TENSORS, saved[:count], strict=True)), options)
        runs, kept = context.runs, saved[count:]
        initial, checkpoints, maps = (dict(zip(runs, kept[i * len(runs) :], strict=False)) for i in range(3))
        needs = dict(zip(TENSORS, ctx.needs_input_grad[3:], strict=True))
        only = {"value", "state"}.issuperset(name for name in TENSORS if needs[name])
        half = Backward(call, initial, checkpoints, maps, grad_out, grad_last, only)
        every = exchanged(context, half)
        found = half.finish(every)
        return None, None, None, *(found[name].to(call[name].dtype) if needs[name] else None for name in TENSORS)


# ---- What users call


@outside_graphs
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
        scale, use_qk_l2norm, deterministic, beta_is_logit, allow_negative_eigenvalues, gate_is_linear, workspace: as in
          `chunked_forward`

    Forward and backward make one all-gather each, none where no sequence crosses from one rank to another. All ranks call it,
    and its backward, also those without tokens. Links between ranks are computed in fp64.

    Edge cases:
        A reset, a gate of −∞, stops NaN and infinities of other ranks too.
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
        "workspace": WORKSPACE if workspace is None else workspace,
    }
    _check(context, given, weights, options, state)
    how = needs_gradients(*given.values(), state, A_log, dt_bias), output_final_state
    out, last = _Rule.apply(context, options, how, *given.values(), state, A_log, dt_bias)
    if packed:
        out = out[0]
    if not output_final_state:
        return out, None
    if broadcast_final_state and context.ranks.size > 1:
        last = _of_owners(context, last)
    return out, last if state is None else last.to(state.dtype)


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
    require_context(_NAME, context)
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
