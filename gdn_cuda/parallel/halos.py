"""Causal convolutions of sequences whose tokens are on several ranks: the last inputs before a fragment are gathered from the
fragments before it, as many of them as have these inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..conv.causal_conv1d import causal_conv1d as in_one_process
from ..operators.dtypes import state_dtype
from ..operators.registration import check_call
from ..operators.schema import refuse, require_tensors
from .contexts import Context, require_context
from .eager import outside_graphs
from .layout import Slice

_NAME = "parallel.causal_conv1d"
Result = TypeVar("Result", Tensor, tuple[Tensor, ...])


@outside_graphs
def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    context: Context,
    initial_states: Tensor | None = None,
) -> Tensor:
    """`gdn_cuda.causal_conv1d` of sequences whose tokens ranks share, with its gradients.

    Formula:
        as in `causal_conv1d`

    Shapes:
        x: (B, D, T) with this rank's tokens in the order of its fragments; with several sequences B is 1; out is like x
        weight, bias: as in `causal_conv1d`. Their gradients are those of the rank's tokens
        initial_states: (sequences, D, W − 1), or with one sequence (B, D, W − 1), of x's dtype. Of a sequence the rank reads it
          that has the first token; it has the gradient too, and those of others are 0. None for zeros

    Parameters:
        activation: as in `causal_conv1d`
        context: from `gdn_cuda.parallel.context`, equal on all ranks

    Forward makes one all-gather, of W − 1 inputs for each fragment, and backward one all-to-all, none where no sequence crosses
    from one rank to another. A history may reach over several ranks.
    """
    require_tensors(_NAME, x=x, weight=weight)
    require_context(_NAME, context)
    context.check(_NAME, "x", x, 2)
    if activation not in (None, "silu", "swish"):
        refuse(_NAME, "activation", "None, 'silu' or 'swish'", repr(activation))
    check_call("causal_conv1d", x=x, weight=weight, bias=bias, silu=activation is not None, return_final_states=False)

    def convolve(part: Tensor, cu_seqlens: Tensor | None, states: Tensor | None) -> Tensor:
        found: Tensor = in_one_process(part, weight, bias, initial_states=states, activation=activation, cu_seqlens=cu_seqlens)
        return found

    return by_slices(_NAME, x, weight.shape[1], context, convolve, 2, initial_states)


def by_slices(
    function: str,
    x: Tensor,
    taps: int,
    context: Context,
    convolve: Callable[[Tensor, Tensor | None, Tensor | None], Result],
    dim: int,
    initial_states: Tensor | None = None,
) -> Result:
    """`convolve(inputs, cu_seqlens, initial states)` of all slices of x, (B, D, T), in one call unless there is a batch of
    several fragments. Its results have the tokens along `dim`."""
    batch, slices = x.shape[0], context.slices
    context.check_batch(function, "x", x)
    if initial_states is not None:
        context.check_states(function, "initial_states", initial_states, x, x.shape[1], taps - 1)
        if initial_states.dtype != x.dtype:
            refuse(function, "initial_states", f"{x.dtype}, as x", initial_states.dtype)
    history: Tensor | None = None
    if context.chains and taps > 1:
        x, history = histories(context, taps - 1, x, initial_states)
    elif initial_states is not None:
        history = torch.stack([_initial(x, initial_states, each) for each in slices]) if slices else None
    if len(slices) <= 1:
        return convolve(x, None, history[0] if slices and history is not None else None)
    if batch == 1:
        return convolve(x, context.offsets(slices, x.device), None if history is None else history[:, 0])
    every = zip(slices, [None] * len(slices) if history is None else history, strict=True)
    parts = [convolve(x[..., each.start : each.stop], None, states) for each, states in every]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts, dim)
    return tuple(torch.cat(each, dim) for each in zip(*parts, strict=True))


def histories(context: Context, width: int, x: Tensor, initial_states: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x, to be used in place of x, and the last `width` inputs before each of the rank's slices, (slices, B, D, width). One
    all-gather, and one all-to-all in the backward."""
    found: tuple[Tensor, Tensor] = _Halo.apply(context, width, x, initial_states)
    return found


def _initial(x: Tensor, initial_states: Tensor, each: Slice) -> Tensor:
    """The initial states (B, D, W − 1) of a slice's sequence."""
    return initial_states if x.shape[0] > 1 else initial_states[each.sequence : each.sequence + 1]


class _Halo(torch.autograd.Function):
    """x, and the last `width` inputs before each of the rank's slices, (slices, B, D, width). As x passes through, the backward
    of a rank that gets nothing runs too: all ranks make its collective. It adds to the gradient in place: x has been used once,
    by a convolution, whose gradient is new."""

    @staticmethod
    def forward(ctx: Any, context: Context, width: int, x: Tensor, initial_states: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.call = context, width
        ctx.initial_states = None if initial_states is None else initial_states.shape
        zeros = x.new_zeros((x.shape[0], x.shape[1], width))
        sent = [zeros] * context.slots
        for each in context.slices:
            initial = zeros if initial_states is None or each.continues else _initial(x, initial_states, each)
            if each.is_continued:
                own = x[..., max(each.start, each.stop - width) : each.stop]
                sent[each.fragment] = torch.cat([initial[..., own.shape[-1] :], own], -1)
        every = context.ranks.start_all_gather(torch.stack(sent))()
        found = [zeros] * len(context.slices)
        for i, each in enumerate(context.slices):
            if each.continues:
                found[i] = torch.cat([every[at] for at in reversed(_sources(context, each, width))], -1)
            elif initial_states is not None:
                found[i] = _initial(x, initial_states, each)
        return x.view_as(x), torch.stack(found) if found else x.new_zeros((0, *zeros.shape))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_before: Tensor) -> Any:
        context, width = ctx.call
        to_initial = None if ctx.initial_states is None else grad.new_zeros(ctx.initial_states)
        size, sizes = context.ranks.size, (context.slots, grad.shape[0], grad.shape[1], width)
        to_every = grad.new_zeros((size, *sizes))
        for each, own in zip(context.slices, grad_before, strict=True):
            if each.continues:
                until = width
                for at in _sources(context, each, width):
                    count = width - at[-1].start
                    to_every[at] += own[..., until - count : until]
                    until -= count
            elif to_initial is not None:
                _initial(grad, to_initial, each).add_(own)
        rows = [context.slots] * size
        to_sent = context.ranks.all_to_all(to_every.flatten(0, 1), rows, rows).view(size, *sizes)
        to_sent = to_sent.sum(0, dtype=state_dtype(grad)).to(grad.dtype)
        for each in context.slices:
            if each.is_continued:
                count = min(width, each.stop - each.start)
                grad[..., each.stop - count : each.stop] += to_sent[each.fragment, ..., width - count :]
                if to_initial is not None and not each.continues:
                    _initial(grad, to_initial, each)[..., count:] += to_sent[each.fragment, ..., : width - count]
        return None, None, grad, to_initial


def _sources(context: Context, each: Slice, width: int) -> list[tuple[Any, ...]]:
    """Indices of what is before a slice, the latest first, in the last inputs of the fragments of all ranks. Those of a
    sequence's first slice begin with its initial state, so they are as many as are missing."""
    found: list[tuple[Any, ...]] = []
    missing = width
    for earlier in reversed(context.before(each)):
        count = min(missing, earlier.stop - earlier.start) if earlier.continues else missing
        found.append((earlier.rank, earlier.fragment, ..., slice(width - count, width)))
        missing -= count
        if missing == 0:
            break
    return found
