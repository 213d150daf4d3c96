"""What `chunked_forward` over ranks computes of each run, forward and backward; `exchange` says when, and what is sent between.

A run (`layout.Run`) is one call of the operator, the same in both passes. Forward, runs that begin their sequences need nothing
from others. Others need their last states, and of runs that continue a sequence and are continued the maps (M, L); on Hopper
both take a fraction of the outputs' time, where decays are a model's (kernels/gdn/summary). Backward the same from the end:
runs that end their sequences need nothing. Others need the gradients of the states before them, and of runs between L', which
with forward's M takes the gradient on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..gdn import training
from ..gdn.chunked_summary import chunked_summary
from ..gdn.fold_states import fold_states
from ..gdn.operators import chunked_forward
from ..gdn.reference import heads_of, repeat_heads
from ..operators.dtypes import state_dtype
from .contexts import Context
from .layout import Run, Slice

_ROWS = ("query", "key", "value", "beta", "gate")
TENSORS = (*_ROWS, "state", "A_log", "dt_bias")  # as of torch.ops.gdn_cuda.gated_delta_rule


@dataclass
class Call:
    """A rank's tensors, with a batch, and the options of the operator."""

    context: Context
    tensors: dict[str, Tensor | None]
    options: dict[str, Any]

    def __post_init__(self) -> None:
        query, value = self["query"], self["value"]
        self.value, self.batch, self.heads = value, value.shape[0], heads_of(query, value)
        self.dv, self.dk, self.wide = value.shape[-1], query.shape[-1], state_dtype(value)
        # If there are several runs, the longest one with several sequences is called with all of the rank's tokens. Results of
        # the others are copied into its own, where it has no sequence. Kernels take offsets that start above 0; on a CPU they
        # are an error.
        packed = [run for run in self.context.runs if len(run.slices) > 1]
        several = packed and len(self.context.runs) > 1 and value.is_cuda
        self.unsliced = max(packed, key=lambda run: run.stop - run.start) if several else None

    def __getitem__(self, name: str) -> Any:
        return self.tensors[name]

    def states(self, *leading: int) -> Tensor:
        return self.value.new_zeros((*leading, self.heads, self.dv, self.dk), dtype=self.wide)

    @property
    def all_states(self) -> Tensor:
        """Zeros, a state for each sequence of the batch."""
        return self.states(self.batch * len(self.context.lengths))

    def of_sequences(self, run: Run) -> slice | Tensor:
        """An index of the run's rows of a tensor with all sequences: with a batch there is one sequence."""
        first, last, count = run.slices[0].sequence, run.slices[-1].sequence, len(run.slices)
        if self.batch > 1:
            return slice(None)
        if last - first + 1 == count:
            return slice(first, last + 1)
        name = f"sequences {run.start} {run.stop}"  # sequences without tokens are between them
        return self.context.integers(name, self.value.device, (each.sequence for each in run.slices))

    @property
    def without_tokens(self) -> Tensor | None:
        """Rows of this rank's sequences without tokens, if there are any."""
        rows = self.context.without_tokens
        return self.context.integers("without tokens", self.value.device, rows) if rows else None

    def initial(self, run: Run) -> Tensor | None:
        return None if self["state"] is None else self["state"][self.of_sequences(run)].to(self.wide)

    def part(self, run: Run, x: Tensor) -> Tensor:
        """A run's tokens of x, which has the rank's; all of them for the run that is called with all."""
        return x if run == self.unsliced else x[:, run.start : run.stop]

    def rows(self, run: Run, *names: str) -> dict[str, Tensor | None]:
        return {name: None if (x := self[name]) is None else self.part(run, x) for name in names}

    def joined(self, results: dict[Run, Tensor]) -> Tensor:
        """The results of the rank's tokens, from those of each run."""
        if self.unsliced is None:
            parts = [results[run] for run in self.context.runs]
            return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        found = results[self.unsliced]
        for run, part in results.items():
            if run != self.unsliced:
                found[:, run.start : run.stop] = part
        return found

    def given(self, run: Run, state: Tensor | None) -> dict[str, Any]:
        before = run.start if run == self.unsliced else 0
        cu_seqlens = None if len(run.slices) == 1 else self.context.offsets(run.slices, self.value.device, before)
        weights = {"A_log": self["A_log"], "dt_bias": self["dt_bias"]}
        return self.rows(run, *_ROWS) | weights | self.options | {"state": state, "cu_seqlens": cu_seqlens}

    def summary(self, run: Run, **what: Any) -> Tensor:
        """(batch, heads, dv + dk, dk): L above M. `what`: `state` and `transition`, as in `chunked_summary`."""
        rows = self.rows(run, "key", "value", "beta", "gate")
        if self.heads > self.value.shape[-2]:
            rows |= {name: repeat_heads(x, self.heads) for name in ("key", "value") if (x := rows[name]) is not None}
        left_out = ("scale", "deterministic", "workspace")
        options = {name: x for name, x in self.options.items() if name not in left_out}
        options |= {"A_log": self["A_log"], "dt_bias": self["dt_bias"]} | what
        return chunked_summary(**rows, **options)  # type: ignore[arg-type]


class Forward:
    def __init__(self, call: Call, training: bool, output_final_state: bool):
        self.call, self.training, self.output_final_state = call, training, output_final_state
        self.found: dict[Run, tuple[Tensor, Tensor, Tensor]] = {}  # output, last states, checkpoints for the backward
        self.states: dict[Run, Tensor] = {}  # before runs that continue a sequence
        self.kept_maps: dict[Run, Tensor] = {}  # maps that the backward needs

    def waits(self, run: Run) -> bool:
        return run.continues

    def is_needed(self, run: Run) -> bool:
        return run.is_continued

    def chain(self, slices: tuple[Slice, ...]) -> tuple[Slice, ...]:
        return slices

    def element(self, run: Run) -> Tensor:
        """The last state of a run that waits for none, whose outputs are computed while the state travels; else (batch, heads,
        dv + dk, dk): L above M."""
        if not run.continues:
            initial = self.call.initial(run)
            return self.call.summary(run, state=None if initial is None else initial.contiguous(), transition=False)
        found = self.call.summary(run)
        if self.training and self.call.context.mode == "doubling":
            self.kept_maps[run] = found[None, ..., self.call.dv :, :].clone()
        return found

    def result(self, run: Run) -> Tensor:
        return self.found[run][1]

    def compute(self, run: Run, state: Tensor | None = None) -> None:
        if state is not None:
            self.states[run] = state
        given = self.call.given(run, self.call.initial(run) if state is None else state)
        if self.training:
            self.found[run] = _operator(training._rule, given)
        else:
            wanted = self.output_final_state or run.is_continued
            out, last = chunked_forward(**given, output_final_state=wanted)
            self.found[run] = out, self.call.states(0) if last is None else last, self.call.states(0)

    def keep_maps(self, run: Run, every: Tensor) -> None:
        """Copies the maps that the backward needs from what all ranks have sent."""
        if self.training and run.is_continued and len(after := self.call.context.after(run.slices[-1])) > 1:
            self.kept_maps[run] = _sent(every, after[:-1])[..., self.call.dv :, :].contiguous()

    def folded(self, run: Run, every: Tensor) -> Tensor:
        """The state before a run, from what all ranks have sent."""
        first, *others = self.call.context.before(run.slices[0])
        dv, sent = self.call.dv, _sent(every, [first, *others])
        state = sent[0, ..., :dv, :].contiguous()
        return fold_states(state, sent[1:, ..., :dv, :], sent[1:, ..., dv:, :]) if others else state

    @property
    def rows(self) -> int:
        """Rows of what a rank sends: those of a state, and of M where some rank needs one."""
        return self.call.dv + (self.call.dk if self.call.context.needs_maps else 0)

    def results(self) -> tuple[Tensor, Tensor]:
        """The output, and the last states if they are wanted."""
        outs = {run: found[0] for run, found in self.found.items()}
        out = self.call.joined(outs) if outs else _no_output(self.call)
        return out, self._last() if self.output_final_state else self.call.states(0)

    def _last(self) -> Tensor:
        call, context = self.call, self.call.context
        last = call.all_states
        if call["state"] is not None and (empty := call.without_tokens) is not None:
            last[empty] = call["state"][empty].to(call.wide)
        for run in context.runs:
            if not run.is_continued:
                last[call.of_sequences(run)] = self.found[run][1]
        return last

    def saved(self) -> list[Tensor]:
        """What the backward needs beside the inputs, as `Saved.of` reads it."""
        runs = self.call.context.runs
        kept = [self.states[run] for run in runs if run.continues] + [self.found[run][2] for run in runs]
        return kept + [self.kept_maps[run] for run in runs if run in self.kept_maps]


@dataclass
class Saved:
    states: dict[Run, Tensor]
    checkpoints: dict[Run, Tensor | None]
    maps: dict[Run, Tensor]

    @classmethod
    def of(cls, context: Context, tensors: Sequence[Tensor]) -> Saved:
        every, runs = iter(tensors), context.runs
        states = {run: next(every) for run in runs if run.continues}
        checkpoints = {run: x if (x := next(every)).shape[0] else None for run in runs}
        return cls(states, checkpoints, {run: next(every) for run in runs if _keeps_maps(context, run)})


def _keeps_maps(context: Context, run: Run) -> bool:
    if context.mode == "doubling":
        return run.continues and run.is_continued
    return context.mode == "gather" and run.is_continued and len(context.after(run.slices[-1])) > 1


class Backward:
    def __init__(self, call: Call, saved: Saved, grad_out: Tensor | None, grad_last: Tensor | None, only: bool):
        """`only`: whether gradients of value and state alone are wanted."""
        self.call, self.saved, self.grad_out, self.grad_last, self.only = call, saved, grad_out, grad_last, only
        self.found: dict[Run, dict[str, Tensor]] = {}
        self.rows = call.dv

    def waits(self, run: Run) -> bool:
        return run.is_continued

    def is_needed(self, run: Run) -> bool:
        return run.continues

    def chain(self, slices: tuple[Slice, ...]) -> tuple[Slice, ...]:
        return slices[::-1]

    def element(self, run: Run) -> Tensor:
        """The gradient of the state before a run, without what it waits for; others wait for it, so it is computed alone. By
        doubling, of a run that waits above Mᵀ."""
        found = self._gradients(run, self._known(run), only_state=True)["state"]
        has_link = self.call.context.mode == "doubling" and run.is_continued
        return torch.cat([found, self.saved.maps[run][0].mT], -2) if has_link else found

    def result(self, run: Run) -> Tensor:
        return self.found[run]["state"]

    def compute(self, run: Run, grad_last: Tensor | None = None) -> None:
        given = self._known(run) if grad_last is None else grad_last
        self.found[run] = self._gradients(run, given, only_value_and_state=self.only)

    def keep_maps(self, run: Run, every: Tensor) -> None:
        """The forward has kept them."""

    def folded(self, run: Run, every: Tensor) -> Tensor:
        """The gradient of the state after a run, from what all ranks have sent."""
        sent = _sent(every, self.call.context.after(run.slices[-1]))
        return fold_states(sent[-1], sent[:-1], self.saved.maps[run], reverse=True) if len(sent) > 1 else sent[-1]

    def _gradients(self, run: Run, grad_last: Tensor | None, **only: bool) -> dict[str, Tensor]:
        grad_out = None if self.grad_out is None else self.call.part(run, self.grad_out)
        state = self.saved.states[run] if run.continues else self.call.initial(run)
        own = {"grad_out": grad_out, "grad_final_state": grad_last, "checkpoints": self.saved.checkpoints[run]}
        given = self.call.given(run, state) | own | {"only_value_and_state": False, "only_state": False} | only
        return dict(zip(TENSORS, _operator(training._backward, given), strict=True))

    def _known(self, run: Run) -> Tensor | None:
        """The gradient of the run's last states, as far as this rank knows it."""
        return None if self.grad_last is None or run.is_continued else self.grad_last[self.call.of_sequences(run)]

    def results(self) -> dict[str, Tensor]:
        call, context = self.call, self.call.context
        found = {name: self._joined(name) for name in ("value",) if self.only}
        if not self.only:
            found = {name: self._joined(name) for name in _ROWS if call[name] is not None}
            for name in ("A_log", "dt_bias"):
                if call[name] is not None:
                    parts = [self.found[run][name] for run in context.runs]
                    found[name] = torch.stack(parts).sum(0) if parts else torch.zeros_like(call[name])
        if call["state"] is not None:
            found["state"] = self._of_states()
        return found

    def _joined(self, name: str) -> Tensor:
        parts = {run: found[name] for run, found in self.found.items()}
        return self.call.joined(parts) if parts else torch.zeros_like(self.call[name])

    def _of_states(self) -> Tensor:
        call, context = self.call, self.call.context
        found = call.all_states
        if self.grad_last is not None and (empty := call.without_tokens) is not None:
            found[empty] = self.grad_last[empty]
        for run in context.runs:
            if not run.continues:
                found[call.of_sequences(run)] = self.found[run]["state"]
        return found


def _operator(operator: Any, given: dict[str, Any]) -> Any:
    fixed = {"has_initial_state": None, "recurrent": False}
    return operator(*((given | fixed)[name] for name in operator.schema.arguments))


def _sent(every: Tensor, slices: Sequence[Slice]) -> Tensor:
    """What slices have sent, (slices, batch, heads, rows, dk), of what all ranks have."""
    return torch.stack([every[each.rank, each.fragment] for each in slices])


def _no_output(call: Call) -> Tensor:
    return call.value.new_empty((call.batch, 0, call.heads, call.dv))
