"""Recurrences of sequences whose tokens are on several ranks, in which a slice maps the state before it to a x + l,
elementwise. Autograd is the backward."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from .contexts import Context
from .layout import Run, Slice
from .ranks import all_gather, tied


class ChainedScan(ABC):
    """A call of a scan on this rank's tokens. One all-gather of l, and of a where it is needed and not known to all.

    zeros: a state (batch, …); tensors: all that may require gradients; packs: whether one call computes several sequences, of
    a batch of 1."""

    factors_are_known = False

    def __init__(
        self,
        context: Context,
        zeros: Tensor,
        tensors: list[Tensor | None],
        initial_state: Tensor | None = None,
        packs: bool = False,
    ):
        self.context, self.zeros, self.initial_state = context, zeros, initial_state
        self.batch, self.tensors = zeros.shape[0], [x for x in (*tensors, initial_state) if x is not None]
        self.runs = context.runs if packs else tuple(Run((each,)) for each in context.slices)

    @abstractmethod
    def compute(self, run: Run, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """The output, with tokens last, and the last states. Without a state sequences begin."""

    @abstractmethod
    def addition(self, run: Run) -> Tensor:
        """l, the last state from zeros."""

    @abstractmethod
    def factor(self, each: Slice) -> Tensor:
        """a, of this rank's slices, or of all where `factors_are_known`."""

    @abstractmethod
    def nothing(self) -> Tensor:
        """The output of a rank without tokens."""

    def run(self) -> tuple[Tensor, Tensor]:
        """The output, and the last states of all sequences."""
        context, tensors = self.context, self.tensors
        found = {run: self.compute(run, self._initial(run)) for run in self.runs if not run.continues}
        every = None
        if context.chains:
            sent = [self._sent(self.zeros, None)] * context.slots
            for run in self.runs:
                if run.is_continued:
                    sent[run.fragment] = self._map(run) if run.continues else self._sent(found[run][1], None)
            every = all_gather(context.ranks, tied(torch.stack(sent), *tensors))
            tensors = [*tensors, every]
        for run in self.runs:
            if run.continues:
                assert every is not None
                found[run] = self.compute(run, self._before(run, every))
        outs = [found[run][0] for run in self.runs]
        out = outs[0] if len(outs) == 1 else torch.cat(outs, 2) if outs else self.nothing()
        return tied(out, *tensors), tied(self._last(found), *tensors)

    def _map(self, run: Run) -> Tensor:
        return self._sent(self.addition(run), None if self.factors_are_known else self.factor(run.slices[0]))

    def _initial(self, run: Run) -> Tensor | None:
        if self.initial_state is None or self.batch > 1:
            return self.initial_state
        return self.initial_state.index_select(0, self._sequences(run))

    def _sequences(self, run: Run) -> Tensor:
        name = f"sequences {run.start} {run.stop}"
        return self.context.integers(name, self.zeros.device, (each.sequence for each in run.slices))

    def _sent(self, addition: Tensor, factor: Tensor | None) -> Tensor:
        """l, and a where somebody needs it; complex values as pairs."""
        states = [addition]
        if self.context.needs_maps and not self.factors_are_known:
            states.append(self.zeros if factor is None else factor)
        found = torch.stack(states)
        return torch.view_as_real(found) if found.is_complex() else found

    def _before(self, run: Run, every: Tensor) -> Tensor:
        values = torch.view_as_complex(every) if self.zeros.is_complex() else every
        first, *between = self.context.before(run.slices[0])
        state: Tensor = values[first.rank, first.fragment, 0]
        for each in between:
            sent = values[each.rank, each.fragment]
            state = (self.factor(each) if self.factors_are_known else sent[1]) * state + sent[0]
        return state

    def _last(self, found: dict[Run, tuple[Tensor, Tensor]]) -> Tensor:
        context = self.context
        last = self.zeros.new_zeros((self.batch * len(context.lengths), *self.zeros.shape[1:]))
        if self.initial_state is not None and context.without_tokens:
            rows = context.integers("without tokens", last.device, context.without_tokens)
            last = last.index_copy(0, rows, self.initial_state.index_select(0, rows))
        for run, (_, own) in found.items():
            if not run.is_continued:
                last = own if self.batch > 1 else last.index_copy(0, self._sequences(run), own)
        return last
