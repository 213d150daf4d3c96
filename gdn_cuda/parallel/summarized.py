"""Scans of sequences whose tokens are on several ranks, whose states after a part are known before its outputs.

Each rank first computes the state after its part of a sequence, from the tail that matters, and sends it; then it scans the
part from what the others sent. Backward the same from the end, with gradients of the states before parts. Parts between two
others send the decay over them too.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..gdn.reference import decayed
from ..operators.autograd import needs_gradients
from .contexts import Context
from .layout import Run, Slice
from .tokens import part_of

# A state (batch, channels, …), or the gradient of one, and the decay over the part, of the same rank.
Summary = tuple[Tensor, Tensor]


@dataclass
class SummarizedScan(ABC):
    """A scan of a rank's tensors. A run is one call of the operator.

    flags: arguments of the operator that are no tensors."""

    context: Context
    flags: dict[str, Any]
    tensors: dict[str, Tensor | None]

    NAMES: ClassVar[tuple[str, ...]]  # the names of all tensors; `initial_state` has a row for each sequence of the batch
    TIME: ClassVar[int] = -1  # the dimension of tokens

    def __getitem__(self, name: str) -> Any:
        return self.tensors[name]

    # ---- What a scan defines

    @property
    def runs(self) -> tuple[Run, ...]:
        return self.context.runs

    @property
    @abstractmethod
    def zeros(self) -> Tensor:
        """The state of a sequence, (channels, …)."""

    @property
    def state_size(self) -> int:
        """Elements of a channel's state."""
        return math.prod(self.zeros.shape[1:])

    @property
    def decay_size(self) -> int:
        """Elements of a channel's decay."""
        return self.state_size

    @property
    @abstractmethod
    def in_time(self) -> Sequence[str]:
        """What has tokens. `rows`, the first of them, has the sizes of the output."""

    def readable(self, grad_out: Tensor) -> Tensor:
        """The gradient of the output as the operator reads it."""
        return grad_out

    @abstractmethod
    def summary(self, run: Run, state: Tensor | None) -> Summary:
        """The state after the run, whose state before it is `state`, or zeros."""

    @abstractmethod
    def scan(self, run: Run, state: Tensor | None, training: bool) -> tuple[Tensor, Tensor, Tensor]:
        """The output, the last states, and what the backward needs."""

    @abstractmethod
    def summary_backward(self, run: Run, given: RunBackward) -> Summary:
        """The gradient of the state before the run."""

    @abstractmethod
    def backward(self, run: Run, given: RunBackward) -> dict[str, Tensor]:
        """Gradients of tensors by name."""

    # ---- Runs and states

    @property
    def rows(self) -> Tensor:
        found: Tensor = self[self.in_time[0]]
        return found

    @property
    def crossing(self) -> list[Run]:
        return [run for run in self.runs if run.continues or run.is_continued]

    def _sequences(self, run: Run) -> Tensor | None:
        """The run's rows of a tensor with all sequences; None for all, with a batch of one sequence."""
        if self.rows.shape[0] > 1:
            return None
        name = f"sequences {run.start} {run.stop}"
        return self.context.integers(name, self.rows.device, (each.sequence for each in run.slices))

    def states_of(self, run: Run, states: Tensor | None) -> Tensor | None:
        rows = self._sequences(run)
        return states if states is None or rows is None else states.index_select(0, rows)

    def put_back(self, found: dict[Run, Tensor], without_tokens: Tensor | None) -> Tensor:
        """The runs' states as a tensor with all sequences, and of those without tokens on this rank what is given."""
        zeros = self.zeros
        states = zeros.new_zeros((self.rows.shape[0] * len(self.context.lengths), *zeros.shape))
        if without_tokens is not None and self.context.without_tokens:
            empty = self.context.integers("without tokens", states.device, self.context.without_tokens)
            states.index_copy_(0, empty, without_tokens.index_select(0, empty))
        for run, own in found.items():
            states = own if (rows := self._sequences(run)) is None else states.index_copy_(0, rows, own)
        return states

    def gathered(self, sent: dict[Run, Summary]) -> Tensor:
        """All ranks' states, and decays if somebody needs them, of each of the runs' fragments. Complete before a scan begins:
        one that fills the GPU would leave no multiprocessor to the collective, and other ranks would wait for its end."""
        zeros, needs_maps = self.zeros, self.context.needs_maps
        width = self.state_size + self.decay_size * needs_maps
        mine = zeros.new_zeros((self.context.slots, self.rows.shape[0], zeros.shape[0], width))
        for run, (state, decay) in sent.items():
            mine[run.fragment] = torch.cat([state.flatten(2), decay.flatten(2)], -1) if needs_maps else state.flatten(2)
        is_complex = mine.is_complex()
        every = self.context.ranks.start_all_gather(torch.view_as_real(mine) if is_complex else mine)()
        return torch.view_as_complex(every) if is_complex else every

    def through(self, every: Tensor, slices: Sequence[Slice]) -> Tensor:
        """What arrives from the first of the slices through the others. Nothing passes a decay of 0, as no infinity or NaN."""
        (first, *others), size = slices, self.state_size
        state = every[first.rank, first.fragment, ..., :size]
        for each in others:
            sent = every[each.rank, each.fragment]
            state = decayed(state, sent[..., size:]) + sent[..., :size]
        return state.reshape(*state.shape[:2], *self.zeros.shape[1:]).contiguous()

    def run(self) -> tuple[Tensor, Tensor]:
        """The output, and the last states of all sequences."""
        tensors = [self[name] for name in self.NAMES]
        found: tuple[Tensor, Tensor] = _Scan.apply(type(self), self.context, self.flags, needs_gradients(*tensors), *tensors)
        return found


@dataclass
class RunBackward:
    """What the backward of a run is given. `grad_last_state`: None for zeros."""

    grad_out: Tensor
    grad_last_state: Tensor | None
    state: Tensor | None  # before the run
    kept: Tensor


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kind: type[SummarizedScan], context: Context, flags: dict[str, Any], training: bool, *tensors: Tensor | None
    ) -> Any:
        call = kind(context, flags, dict(zip(kind.NAMES, tensors, strict=True)))
        initial, runs = call.tensors.get("initial_state"), call.runs
        starts = {run: call.states_of(run, initial) for run in runs if not run.continues}
        if context.chains:
            every = call.gathered({run: call.summary(run, starts.get(run)) for run in call.crossing if run.is_continued})
            for run in call.crossing:
                if run.continues:
                    starts[run] = call.through(every, context.before(run.slices[0]))
        found = {run: call.scan(run, starts[run], training) for run in runs}
        ctx.call = kind, context, flags
        ctx.save_for_backward(*tensors, *(starts[run] for run in runs), *(found[run][2] for run in runs))
        outs = [found[run][0] for run in runs]
        out = torch.cat(outs, kind.TIME) if len(outs) > 1 else outs[0] if outs else torch.empty_like(call.rows)
        return out, call.put_back({run: found[run][1] for run in runs if not run.is_continued}, initial)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor, grad_last: Tensor) -> Any:
        kind, context, flags = ctx.call
        tensors, rest = ctx.saved_tensors[: len(kind.NAMES)], ctx.saved_tensors[len(kind.NAMES) :]
        call = kind(context, flags, dict(zip(kind.NAMES, tensors, strict=True)))
        runs = call.runs
        starts, kept = (dict(zip(runs, some, strict=True)) for some in (rest[: len(runs)], rest[len(runs) :]))
        grad_out = call.readable(grad_out)
        ends = {run: call.states_of(run, grad_last) for run in runs if not run.is_continued}

        def given(run: Run) -> RunBackward:
            return RunBackward(part_of(grad_out, run, dim=kind.TIME), ends.get(run), starts[run], kept[run])

        if context.chains:
            every = call.gathered({run: call.summary_backward(run, given(run)) for run in call.crossing if run.continues})
            for run in call.crossing:
                if run.is_continued:
                    ends[run] = call.through(every, context.after(run.slices[0])[::-1])
        found = {run: call.backward(run, given(run)) for run in runs}
        return None, None, None, None, *_gradients(call, found, grad_last, ctx.needs_input_grad[4:])


def _gradients(
    call: SummarizedScan, found: dict[Run, dict[str, Tensor]], grad_last: Tensor, needs: Sequence[bool]
) -> list[Tensor | None]:
    def joined(name: str) -> Tensor:
        if name == "initial_state":
            return call.put_back({run: x[name] for run, x in found.items() if not run.continues}, grad_last)
        parts = [found[run][name] for run in call.runs]
        if not parts:
            return torch.zeros_like(call[name])
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts, call.TIME) if name in call.in_time else torch.stack(parts).sum(0)

    return [joined(name) if need else None for name, need in zip(call.NAMES, needs, strict=True)]
