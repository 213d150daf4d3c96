"""Hyena's gated convolutions of sequences whose tokens are on several ranks: short and medium ones by the last inputs before a
fragment, long ones by the modal states before it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ..conv.hyena_long import hyena_long as long_in_one_process
from ..conv.hyena_long import long_gradients
from ..conv.hyena_long_summary import summary, summary_backward
from ..conv.hyena_operator import readable_gradient
from ..operators.dtypes import state_dtype
from ..operators.registration import check_call
from .contexts import Context
from .eager import outside_graphs
from .halos import histories
from .layout import Run
from .summarized import RunBackward, SummarizedScan, Summary
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


class _Long(SummarizedScan):
    """A sequence a call."""

    NAMES = ("x1", "x2", "v", "residues", "log_poles", "bias")
    in_time = ("x1", "x2", "v")

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(Run((each,)) for each in self.context.slices)

    @property
    def zeros(self) -> Tensor:
        sizes = (self.rows.shape[1], self["residues"].shape[1])
        return self.rows.new_zeros(sizes, dtype=state_dtype(self.rows))

    def _given(self, run: Run, state: Tensor | None) -> dict[str, Any]:
        return self.tensors | {name: part_of(self[name], run) for name in self.in_time} | {"initial_state": state}

    def _given_back(self, run: Run, given: RunBackward) -> dict[str, Any]:
        grad_state = given.grad_last_state
        if grad_state is None:
            grad_state = self.rows.new_zeros((self.rows.shape[0], *self.zeros.shape), dtype=self.zeros.dtype)
        return self._given(run, given.state) | {"grad": given.grad_out, "grad_state": grad_state}

    def _with_decay(self, run: Run, state: Tensor) -> Summary:
        if not self.context.needs_maps:
            return state, state  # the decay is not sent
        rates = self["log_poles"].reshape(self["residues"].shape).double()
        decay = (rates * (run.stop - run.start)).exp().to(state.dtype)
        return state, decay.repeat_interleave(state.shape[1] // decay.shape[0], 0).expand_as(state)

    def readable(self, grad_out: Tensor) -> Tensor:
        return readable_gradient(self.rows, grad_out)

    def summary(self, run: Run, state: Tensor | None) -> Summary:
        return self._with_decay(run, summary(**self._given(run, state)))

    def scan(self, run: Run, state: Tensor | None, training: bool) -> tuple[Tensor, Tensor, Tensor]:
        y, last = long_in_one_process(**self._given(run, state), return_state=True)
        return y, last, last.new_empty(0)

    def summary_backward(self, run: Run, given: RunBackward) -> Summary:
        return self._with_decay(run, summary_backward(**self._given_back(run, given)))

    def backward(self, run: Run, given: RunBackward) -> dict[str, Tensor]:
        x, needs = self._given(run, given.state), SimpleNamespace(**dict.fromkeys([*self.NAMES, "initial_state"], True))
        needs.initial_state = given.state is not None
        grads = self._given_back(run, given)
        return long_gradients(SimpleNamespace(**x), needs, grads["grad"], grads["grad_state"])


@outside_graphs
def hyena_long(
    context: Context, x1: Tensor, x2: Tensor, v: Tensor, residues: Tensor, log_poles: Tensor, bias: Tensor
) -> Tensor:
    """`gdn_cuda.hyena_long` of x1, x2 and v (B, D, T) with this rank's tokens, from zeros."""
    given = {"x1": x1, "x2": x2, "v": v, "residues": residues, "log_poles": log_poles, "bias": bias}
    check_call("hyena_long", **given)
    out, _ = _Long(context, {}, given).run()
    return out
