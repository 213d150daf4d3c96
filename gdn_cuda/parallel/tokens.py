"""Tensors with all tokens, and with those of a rank; all heads of some tokens, and some heads of all tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..operators.schema import refuse
from .contexts import Context, require_context
from .eager import outside_graphs
from .layout import Run, Slice
from .ranks import all_gather, all_to_all


def part_of(x: Tensor, part: Slice | Run, times: int = 1, dim: int = -1) -> Tensor:
    """The tokens of a rank's part, along x's dimension `dim`, each `times` elements. x itself where it has no others, as the
    gradient of a slice is copied into zeros."""
    start, count = times * part.start, times * (part.stop - part.start)
    return x if count == x.shape[dim] else x.narrow(dim, start, count)


def shard(x: Tensor, context: Context, dim: int = 1) -> Tensor:
    """This rank's tokens of x, which has all, in the order of its fragments. No collective; the gradient of x is that of these
    tokens, and 0 for others.

    Shapes:
        x: any, with all tokens of the context along dim

    Parameters:
        context: whose tokens they are
        dim: the dimension of tokens
    """
    require_context("parallel.shard", context)
    context.check_whole("parallel.shard", "x", x, dim)
    parts = [x.narrow(dim, first, end - first) for first, end in context.fragments[context.rank]]
    return torch.cat(parts, dim) if len(parts) > 1 else parts[0] if parts else x.narrow(dim, 0, 0)


@outside_graphs
def unshard(x: Tensor, context: Context, dim: int = 1) -> Tensor:
    """All tokens in order, from those of each rank: the inverse of `shard`. One all-gather, padded to the rank with most.
    The gradient of x is the sum of what all ranks have for its tokens.

    Shapes:
        x: any, with this rank's tokens along dim; of the same other sizes and dtype on all ranks

    Parameters:
        context: whose tokens they are
        dim: the dimension of tokens
    """
    require_context("parallel.unshard", context)
    context.check("parallel.unshard", "x", x, dim)
    most = max(context.counts)
    rows = x.movedim(dim, 0)
    every = all_gather(context.ranks, pad(rows, (0, 0) * (rows.dim() - 1) + (0, most - context.tokens)))
    if context.is_in_order and most * context.ranks.size == sum(context.lengths):
        return every.flatten(0, 1).movedim(0, dim)
    starts = [rank * most for rank in range(context.ranks.size)]
    return every.flatten(0, 1).index_select(0, _places(context, starts, x.device)).movedim(0, dim)


@outside_graphs
def to_heads(x: Tensor, context: Context, dim: int = 1) -> Tensor:
    """All tokens in order of this rank's heads, from all heads of this rank's tokens. One all-to-all, whose gradient is that of
    `from_heads`. Rank r has the r-th part of the heads.

    Shapes:
        x: any, with this rank's tokens along dim, and along dim + 1 heads, a multiple of the number of ranks

    Parameters:
        context: whose tokens they are
        dim: the dimension of tokens
    """
    require_context("parallel.to_heads", context)
    context.check("parallel.to_heads", "x", x, dim)
    size = context.ranks.size
    if x.dim() <= dim + 1 or x.shape[dim + 1] % size:
        refuse("parallel.to_heads", "x", f"a multiple of {size} heads in dimension {dim + 1}", str(tuple(x.shape)))
    rows = x.movedim((dim, dim + 1), (0, 1)).unflatten(1, (size, -1)).transpose(0, 1).flatten(0, 1)
    found = all_to_all(context.ranks, rows, [context.tokens] * size, context.counts)
    if not context.is_in_order:
        starts = [sum(context.counts[:rank]) for rank in range(size)]
        found = found.index_select(0, _places(context, starts, x.device))
    return found.movedim((0, 1), (dim, dim + 1))


@outside_graphs
def from_heads(x: Tensor, context: Context, dim: int = 1) -> Tensor:
    """All heads of this rank's tokens, from all tokens of this rank's heads: the inverse of `to_heads`.

    Shapes:
        x: any, with all tokens in order along dim, and this rank's heads along dim + 1, as many on all ranks

    Parameters:
        context: whose tokens they are
        dim: the dimension of tokens
    """
    require_context("parallel.from_heads", context)
    context.check_whole("parallel.from_heads", "x", x, dim)
    if x.dim() <= dim + 1:
        refuse("parallel.from_heads", "x", f"heads in dimension {dim + 1}", str(tuple(x.shape)))
    context.check_device("parallel.from_heads", "x", x)
    size = context.ranks.size
    rows = x.movedim((dim, dim + 1), (0, 1))
    if not context.is_in_order:
        rows = rows.index_select(0, _tokens_by_rank(context, x.device))
    found = all_to_all(context.ranks, rows, context.counts, [context.tokens] * size)
    return found.unflatten(0, (size, -1)).transpose(0, 1).flatten(1, 2).movedim((0, 1), (dim, dim + 1))


def _places(context: Context, starts: list[int], device: torch.device) -> Tensor:
    """Where each token is among the rows of all ranks, of which those of a rank begin at `starts`."""

    def make() -> Tensor:
        found = torch.empty(sum(context.lengths), dtype=torch.int64)
        for start, one_rank in zip(starts, context.fragments, strict=True):
            for first, end in one_rank:
                found[first:end] = torch.arange(start, start + end - first)
                start += end - first
        return found

    return context.on_device(f"places {starts[-1]}", device, make)


def _tokens_by_rank(context: Context, device: torch.device) -> Tensor:
    """The tokens of rank 0, rank 1 and so on."""

    def make() -> Tensor:
        return torch.cat([torch.arange(first, end) for one_rank in context.fragments for first, end in one_rank])

    return context.on_device("tokens", device, make)
