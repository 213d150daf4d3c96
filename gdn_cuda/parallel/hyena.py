"""Hyena's gated convolutions of sequences whose tokens are on several ranks: short and medium ones by the last inputs before a
fragment, long ones by their modal states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..conv.hyena_long import hyena_long as long_in_one_process
from ..operators.dtypes import state_dtype
from ..operators.registration import check_call
from .chained import ChainedScan, split_channels
from .contexts import Context
from .eager import outside_graphs
from .halos import histories
from .layout import Run, Slice
from .tokens import part_of


@outside_graphs
def gated_convolution(
    context: Context,
    function: Callable[..., Tensor],
    x1: Tensor,
    x2: Tensor,
    v: Tensor,
    taps: int,
    padding_mask: Tensor | None = None,
    **given: Any,
) -> Tensor:
    """`gdn_cuda.hyena_short` or `gdn_cuda.hyena_medium`, by `function`, of x1, x2 and v (B, D, T) with this rank's tokens."""
    check_call(function.__name__, x1=x1, x2=x2, v=v, padding_mask=padding_mask, **given)
    history = None
    if context.chains and taps > 1:
        (x1, v), history = histories(context, taps - 1, (x1, v))
    parts = []
    for i, each in enumerate(context.slices):
        mask, state = None if padding_mask is None else part_of(padding_mask, each), None if history is None else history[i]
        rows = (part_of(x, each) for x in (x1, x2, v))
        parts.append(function(*rows, **given, padding_mask=mask, initial_state=state))
    return parts[0] if len(parts) == 1 else torch.cat(parts or [x1], 2)


class _Long(ChainedScan):
    factors_are_known = True

    def __init__(
        self, context: Context, rows: tuple[Tensor, Tensor, Tensor], residues: Tensor, log_poles: Tensor, bias: Tensor
    ):
        self.rows, self.filter = rows, (residues, log_poles, bias)
        x1, channels = rows[0], rows[0].shape[1]
        repeats = channels // residues.shape[0]
        self.rates = log_poles.reshape(residues.shape).double().repeat_interleave(repeats, 0)  # (D, S)
        zeros = x1.new_zeros((x1.shape[0], *self.rates.shape), dtype=state_dtype(x1))
        super().__init__(context, zeros, [*rows, *self.filter])

    def in_channel_groups(self, groups: int) -> list[ChainedScan]:
        residues, log_poles, bias = self.filter
        if residues.shape[0] % groups > 0:
            return []
        rows = zip(*(split_channels(x, groups, 1) for x in self.rows), strict=True)
        filters = zip(*(split_channels(x, groups, 0) for x in (residues, log_poles, bias)), strict=True)
        return [_Long(self.context, x, *each) for x, each in zip(rows, filters, strict=True)]

    def compute(self, run: Run, state: Tensor | None) -> tuple[Tensor, Tensor]:
        x1, x2, v = (part_of(x, run) for x in self.rows)
        out, last = long_in_one_process(x1, x2, v, *self.filter, initial_state=state, return_state=True)
        return out, last

    def addition(self, run: Run) -> Tensor:
        return self.compute(run, None)[1]

    def factor(self, each: Slice) -> Tensor:
        return torch.exp(self.rates * (each.stop - each.start)).to(self.zeros.dtype)

    def nothing(self) -> Tensor:
        return self.rows[0]


@outside_graphs
def hyena_long(
    context: Context, x1: Tensor, x2: Tensor, v: Tensor, residues: Tensor, log_poles: Tensor, bias: Tensor
) -> Tensor:
    """`gdn_cuda.hyena_long` of x1, x2 and v (B, D, T) with this rank's tokens, from zeros."""
    given = {"residues": residues, "log_poles": log_poles, "bias": bias}
    check_call("hyena_long", x1=x1, x2=x2, v=v, **given)
    out, _ = _Long(context, (x1, x2, v), residues, log_poles, bias).run()
    return out
