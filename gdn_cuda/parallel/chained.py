"""Recurrences of sequences whose tokens are on several ranks, in which a slice maps the state before it to a x + l,
elementwise. Autograd is the backward.

Long slices go through the ranks in groups of channels: while a rank computes a group, the next one has the group before it, so
that all work at once but for the first steps, and nothing is computed twice. Of short ones, whose groups would not fill a GPU,
each rank composes the maps of all slices before its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from .contexts import Context
from .layout import Run, Slice
from .ranks import all_gather, tied

MOST_GROUPS = 8
LEAST_CHANNELS, LEAST_ELEMENTS = 256, 1 << 26  # of a group


class ChainedScan(ABC):
    """A call of a scan on this rank's tokens. One all-gather of l, and of a where it is needed.

    zeros: a state (batch, …); tensors: all that may require gradients; packs: whether one call computes several sequences, of
    a batch of 1."""

    def __init__(self, context: Context, zeros: Tensor, tensors: list[Tensor | None], packs: bool = False):
        self.context, self.zeros = context, zeros
        self.batch, self.tensors = zeros.shape[0], [x for x in tensors if x is not None]
        self.runs = context.runs if packs else tuple(Run((each,)) for each in context.slices)

    @abstractmethod
    def compute(self, run: Run, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """The output, with tokens last, and the last states. Without a state sequences begin."""

    @abstractmethod
    def addition(self, run: Run) -> Tensor:
        """l, the last state from zeros."""

    @abstractmethod
    def factor(self, each: Slice) -> Tensor:
        """a, of this rank's slices."""

    @abstractmethod
    def nothing(self) -> Tensor:
        """The output of a rank without tokens."""

    @abstractmethod
    def in_channel_groups(self, groups: int) -> list[ChainedScan]:
        """The same scan of each of so many groups of channels; empty if they cannot be divided so."""

    def run(self) -> tuple[Tensor, Tensor]:
        """The output, and the last states of all sequences."""
        groups = MOST_GROUPS
        while groups > 1:
            if self._fills(groups) and (scans := self.in_channel_groups(groups)):
                return self._in_groups(scans)
            groups //= 2
        return self._at_once()

    def _fills(self, groups: int) -> bool:
        """Whether steps of so many groups take less time than maps, and a group has work for a GPU."""
        chains, channels = self.context.chains.values(), self.zeros.shape[1]
        if not chains or channels % groups > 0:
            return False
        tokens = max(each.stop - each.start for chain in chains for each in chain)
        elements = self.batch * tokens * channels // groups
        return max(map(len, chains)) <= groups + 1 and channels >= groups * LEAST_CHANNELS and elements >= LEAST_ELEMENTS

    def _in_groups(self, scans: list[ChainedScan]) -> tuple[Tensor, Tensor]:
        """At step i, the slice at position p of its sequence computes group i − p."""
        context, chains = self.context, self.context.chains
        tensors = list(self.tensors)
        found: list[dict[Run, tuple[Tensor, Tensor]]] = [{} for _ in scans]
        steps = len(scans) + max(map(len, chains.values())) - 1
        nothing = scans[0]._sent(scans[0].zeros, None)
        every = nothing
        for step in range(steps):
            sent = [nothing] * context.slots
            for run in self.runs:
                if not (run.continues or run.is_continued):
                    continue
                before = context.before(run.slices[0])
                group = step - len(before)
                if not 0 <= group < len(scans):
                    continue
                scan = scans[group]
                state = scan._last_of(every, before[-1]) if before else None
                found[group][run] = scan.compute(run, state)
                if run.is_continued:
                    sent[run.fragment] = scan._sent(found[group][run][1], None)
            if step + 1 < steps:
                every = all_gather(context.ranks, tied(torch.stack(sent), *tensors))
                tensors.append(every)
        for scan, results in zip(scans, found, strict=True):
            results.update({run: scan.compute(run, None) for run in self.runs if run not in results})
        outs = [scan._joined(results) for scan, results in zip(scans, found, strict=True)]
        lasts = [scan._last(results) for scan, results in zip(scans, found, strict=True)]
        return tied(torch.cat(outs, 1), *tensors), tied(torch.cat(lasts, 1), *tensors)

    def _at_once(self) -> tuple[Tensor, Tensor]:
        context, tensors = self.context, self.tensors
        found = {run: self.compute(run, None) for run in self.runs if not run.continues}
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
        return tied(self._joined(found), *tensors), tied(self._last(found), *tensors)

    def _joined(self, found: dict[Run, tuple[Tensor, Tensor]]) -> Tensor:
        outs = [found[run][0] for run in self.runs]
        return outs[0] if len(outs) == 1 else torch.cat(outs, 2) if outs else self.nothing()

    def _map(self, run: Run) -> Tensor:
        return self._sent(self.addition(run), self.factor(run.slices[0]))

    def _sequences(self, run: Run) -> Tensor:
        name = f"sequences {run.start} {run.stop}"
        return self.context.integers(name, self.zeros.device, (each.sequence for each in run.slices))

    def _sent(self, addition: Tensor, factor: Tensor | None) -> Tensor:
        """l, and a where somebody needs it; complex values as pairs."""
        states = [addition]
        if self.context.needs_maps:
            states.append(self.zeros if factor is None else factor)
        found = torch.stack(states)
        return torch.view_as_real(found) if found.is_complex() else found

    def _before(self, run: Run, every: Tensor) -> Tensor:
        first, *between = self.context.before(run.slices[0])
        state = self._last_of(every, first)
        for each in between:
            sent = self._values(every)[each.rank, each.fragment]
            state = sent[1] * state + sent[0]
        return state

    def _values(self, every: Tensor) -> Tensor:
        return torch.view_as_complex(every) if self.zeros.is_complex() else every

    def _last_of(self, every: Tensor, each: Slice) -> Tensor:
        """The state, or l, that a slice has sent."""
        found: Tensor = self._values(every)[each.rank, each.fragment, 0]
        return found

    def _last(self, found: dict[Run, tuple[Tensor, Tensor]]) -> Tensor:
        context = self.context
        last = self.zeros.new_zeros((self.batch * len(context.lengths), *self.zeros.shape[1:]))
        for run, (_, own) in found.items():
            if not run.is_continued:
                last = own if self.batch > 1 else last.index_copy(0, self._sequences(run), own)
        return last


def split_channels(x: Tensor | None, groups: int, dim: int) -> list[Any]:
    """What each group of channels has of x; all of x where it has a single one."""
    if x is None:
        return [None] * groups
    return [x] * groups if x.shape[dim] == 1 else list(x.split(x.shape[dim] // groups, dim))
