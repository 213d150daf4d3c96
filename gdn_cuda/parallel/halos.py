"""Causal convolutions of sequences whose tokens are on several ranks: the last inputs before a fragment are gathered from the
fragments before it, as many of them as have these inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
from .tokens import part_of

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
        (x,), history = histories(context, taps - 1, (x,), initial_states)
    elif initial_states is not None:
        history = torch.stack([_initial(x, initial_states, each) for each in slices]) if slices else None
    if len(slices) <= 1:
        return convolve(x, None, history[0] if slices and history is not None else None)
    if batch == 1:
        return convolve(x, context.offsets(slices, x.device), None if history is None else history[:, 0])
    every = zip(slices, [None] * len(slices) if history is None else history, strict=True)
    parts = [convolve(part_of(x, each), None, states) for each, states in every]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts, dim)
    return tuple(torch.cat(each, dim) for each in zip(*parts, strict=True))


def histories(
    context: Context, width: int, rows: tuple[Tensor, ...], initial_states: Tensor | None = None
) -> tuple[tuple[Tensor, ...], Tensor]:
    """`rows`, to be used in their place, and the last `width` inputs before each of the rank's slices, (slices, B, D, width):
    a convolution's rows, or the product of two in the dtype of states. One all-gather, and one all-to-all in the backward."""
    *found, history = _Halo.apply(context, width, initial_states, *rows)
    return tuple(found), history


def _initial(x: Tensor, initial_states: Tensor, each: Slice) -> Tensor:
    """The initial states (B, D, W − 1) of a slice's sequence."""
    return initial_states if x.shape[0] > 1 else initial_states[each.sequence : each.sequence + 1]


def _product(rows: Sequence[Tensor]) -> Tensor:
    if len(rows) == 1:
        return rows[0]
    wide = state_dtype(rows[0])
    return math.prod(x.to(wide) for x in rows)


class _Halo(torch.autograd.Function):
    """As `histories`. As rows pass through, the backward of a rank that gets nothing runs too: all ranks make its collective.
    It adds to their gradients in place: each has been used once, by a convolution, whose gradients are new."""

    @staticmethod
    def forward(ctx: Any, context: Context, width: int, initial_states: Tensor | None, *rows: Tensor) -> Any:
        tails = {
            each: [x[..., max(each.start, each.stop - width) : each.stop] for x in rows]
            for each in context.slices
            if each.is_continued
        }
        ctx.call = context, width, tuple(tails)
        ctx.initial_states = None if initial_states is None else initial_states.shape
        products = tails.values() if len(rows) > 1 else ()
        ctx.save_for_backward(*(x.clone() for tail in products for x in tail))
        x = _product([y[..., :0] for y in rows])
        zeros = x.new_zeros((*x.shape[:2], width))
        sent = [zeros] * context.slots
        for each, tail in tails.items():
            own = _product(tail)
            initial = zeros if initial_states is None or each.continues else _initial(x, initial_states, each)
            sent[each.fragment] = torch.cat([initial[..., own.shape[-1] :], own], -1)
        every = context.ranks.start_all_gather(torch.stack(sent))()
        found = [zeros] * len(context.slices)
        for i, each in enumerate(context.slices):
            if each.continues:
                found[i] = torch.cat([every[at] for at in reversed(_sources(context, each, width))], -1)
            elif initial_states is not None:
                found[i] = _initial(x, initial_states, each)
        history = torch.stack(found) if found else x.new_zeros((0, *zeros.shape))
        return *(y.view_as(y) for y in rows), history

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor) -> Any:
        (context, width, continued), (*grads, before), saved = ctx.call, given, iter(ctx.saved_tensors)
        to_initial = None if ctx.initial_states is None else before.new_zeros(ctx.initial_states)
        size, sizes = context.ranks.size, (context.slots, *before.shape[1:])
        to_every = before.new_zeros((size, *sizes))
        for each, own in zip(context.slices, before, strict=True):
            if each.continues:
                until = width
                for at in _sources(context, each, width):
                    count = width - at[-1].start
                    to_every[at] += own[..., until - count : until]
                    until -= count
            elif to_initial is not None:
                _initial(own, to_initial, each).add_(own)
        rows = [context.slots] * size
        to_sent = context.ranks.all_to_all(to_every.flatten(0, 1), rows, rows).view(size, *sizes)
        to_sent = to_sent.sum(0, dtype=state_dtype(before)).to(before.dtype)
        for each in continued:
            count = min(width, each.stop - each.start)
            own = to_sent[each.fragment, ..., width - count :]
            tails = [next(saved) for _ in grads] if len(grads) > 1 else grads
            for i, grad in enumerate(grads):
                grad[..., each.stop - count : each.stop] += _product([own, *tails[:i], *tails[i + 1 :]])
            if to_initial is not None and not each.continues:
                _initial(own, to_initial, each)[..., count:] += to_sent[each.fragment, ..., : width - count]
        return None, None, to_initial, *grads


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
