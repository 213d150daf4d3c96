"""The two passes of `chunked_forward` over ranks, each in two halves with one all-gather between them.

A run (`layout.Run`) is one call of the operator, the same in both passes. Forward, runs that begin their sequences need nothing
from others. Their last states are sent, and of runs that continue a sequence and are continued the maps (M, L); every rank
folds what is before its first run. Backward the same from the end: runs that end their sequences need nothing. The gradients of
the states before them are sent, and of runs between L', which with forward's M takes the gradient on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..gdn import training
from ..gdn.chunked_summary import chunked_summary
from ..gdn.operators import chunked_forward
from ..gdn.reference import heads_of, repeat_heads
from ..operators.dtypes import state_dtype
from .contexts import Context
from .layout import Run
from .maps import fold

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

    def rows(self, run: Run, *names: str) -> dict[str, Tensor | None]:
        return {name: None if (x := self[name]) is None else x[:, run.start : run.stop] for name in names}

    def given(self, run: Run, state: Tensor | None) -> dict[str, Any]:
        cu_seqlens = None if len(run.slices) == 1 else self.context.offsets(run.slices, self.value.device)
        weights = {"A_log": self["A_log"], "dt_bias": self["dt_bias"]}
        return self.rows(run, *_ROWS) | weights | self.options | {"state": state, "cu_seqlens": cu_seqlens}

    def summary(self, run: Run) -> Tensor:
        """(batch, heads, dv + dk, dk): L above M."""
        rows = self.rows(run, "key", "value", "beta", "gate")
        if self.heads > self.value.shape[-2]:
            rows |= {name: repeat_heads(x, self.heads) for name in ("key", "value") if (x := rows[name]) is not None}
        left_out = ("scale", "deterministic", "workspace")
        options = {name: x for name, x in self.options.items() if name not in left_out}
        return chunked_summary(**rows, **options, A_log=self["A_log"], dt_bias=self["dt_bias"])  # type: ignore[arg-type]


class Forward:
    def __init__(self, call: Call, training: bool, output_final_state: bool):
        self.call, self.training, self.output_final_state = call, training, output_final_state
        self.found: dict[Run, tuple[Tensor, Tensor, Tensor | None]] = {}  # output, last states, states for the backward
        self.initial: dict[Run, Tensor | None] = {}

    def _run(self, run: Run, state: Tensor | None) -> None:
        given = self.call.given(run, state)
        self.initial[run] = state
        if self.training:
            out, last, checkpoints = _operator(training._rule, given)
            self.found[run] = out, last, checkpoints if checkpoints.shape[0] else None
        else:
            wanted = self.output_final_state or run.is_continued
            out, last = chunked_forward(**given, output_final_state=wanted)
            self.found[run] = out, self.call.states(0) if last is None else last, None

    def to_send(self) -> Tensor:
        """(fragments, batch, heads, dv + dk, dk): of what is continued the last states, or L, above M. Without dk rows where
        nobody needs an M."""
        call, context = self.call, self.call.context
        rows = call.dv + call.dk * context.has_links
        sent = call.value.new_zeros((context.slots, call.batch, call.heads, rows, call.dk), dtype=call.wide)
        for run in context.runs:
            if run.is_continued and run.continues:
                sent[run.fragment] = call.summary(run)
            elif run.is_continued:
                self._run(run, call.initial(run))
                sent[run.fragment, ..., : call.dv, :] = self.found[run][1]
        return sent

    def meanwhile(self) -> None:
        for run in self.call.context.runs:
            if not run.is_continued and not run.continues:
                self._run(run, self.call.initial(run))

    def finish(self, every: Tensor | None) -> tuple[Tensor, Tensor]:
        """The output, and the last states if they are wanted, of `to_send()` of all ranks: None where no sequence crosses."""
        call, context = self.call, self.call.context
        for run in context.runs:
            if run.continues:
                assert every is not None
                sent = [every[each.rank, each.fragment] for each in context.before(run.slices[0])]
                states, maps = [x[..., : call.dv, :] for x in sent], [x[..., call.dv :, :] for x in sent[1:]]
                self._run(run, fold(states[0], maps, states[1:]))
        outs = [self.found[run][0] for run in context.runs]
        out = outs[0] if len(outs) == 1 else torch.cat(outs or [_no_output(call)], 1)
        return out, self._last() if self.output_final_state else call.states(0)

    def _last(self) -> Tensor:
        call, context = self.call, self.call.context
        last = call.all_states
        if call["state"] is not None and (empty := call.without_tokens) is not None:
            last[empty] = call["state"][empty].to(call.wide)
        for run in context.runs:
            if not run.is_continued:
                last[call.of_sequences(run)] = self.found[run][1]
        return last

    def maps_after(self, every: Tensor | None) -> dict[Run, Tensor]:
        """The maps that the backward needs: those between a run and the end of its sequence, a copy."""
        if every is None or not self.call.context.has_links:
            return {}
        context, found = self.call.context, {}
        for run in context.runs:
            if run.is_continued and len(after := context.after(run.slices[-1])) > 1:
                maps = [every[each.rank, each.fragment, ..., self.call.dv :, :] for each in after[:-1]]
                found[run] = torch.stack(maps)
        return found


class Backward:
    def __init__(
        self,
        call: Call,
        initial: dict[Run, Tensor | None],
        checkpoints: dict[Run, Tensor | None],
        maps: dict[Run, Tensor],
        grad_out: Tensor | None,
        grad_last: Tensor | None,
        only_value_and_state: bool,
    ):
        self.call, self.initial, self.checkpoints, self.maps = call, initial, checkpoints, maps
        self.grad_out, self.grad_last, self.only = grad_out, grad_last, only_value_and_state
        self.found: dict[Run, dict[str, Tensor]] = {}

    def _gradients(self, run: Run, grad_last: Tensor | None, only_value_and_state: bool) -> dict[str, Tensor]:
        grad_out = None if self.grad_out is None else self.grad_out[:, run.start : run.stop]
        own = {"grad_out": grad_out, "grad_final_state": grad_last, "checkpoints": self.checkpoints[run]}
        given = self.call.given(run, self.initial[run])
        found = _operator(training._backward, given | own | {"only_value_and_state": only_value_and_state})
        return dict(zip(TENSORS, found, strict=True))

    def _known(self, run: Run) -> Tensor | None:
        """The gradient of the run's last states, as far as this rank knows it."""
        return None if self.grad_last is None or run.is_continued else self.grad_last[self.call.of_sequences(run)]

    def to_send(self) -> Tensor:
        """(fragments, batch, heads, dv, dk): of what continues a sequence the gradient of the state before it, or L'. Others
        wait for it, so it is computed alone first."""
        call, context = self.call, self.call.context
        sent = call.states(context.slots, call.batch)
        for run in context.runs:
            if run.continues:
                sent[run.fragment] = self._gradients(run, self._known(run), True)["state"]
        return sent

    def meanwhile(self) -> None:
        for run in self.call.context.runs:
            if not run.is_continued:
                self.found[run] = self._gradients(run, self._known(run), self.only)

    def finish(self, every: Tensor | None) -> dict[str, Tensor]:
        call, context = self.call, self.call.context
        for run in context.runs:
            if run.is_continued:
                assert every is not None
                *between, last = [every[each.rank, each.fragment] for each in context.after(run.slices[-1])]
                maps = self.maps[run].unbind(0) if between else ()
                self.found[run] = self._gradients(run, fold(last, maps[::-1], between[::-1], transposed=True), self.only)
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
        parts = [self.found[run][name] for run in self.call.context.runs]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1) if parts else torch.zeros_like(self.call[name])

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


def _no_output(call: Call) -> Tensor:
    return call.value.new_empty((call.batch, 0, call.heads, call.dv))


def exchanged(context: Context, half: Forward | Backward) -> Tensor | None:
    """What all ranks send; runs that need nothing from others are computed meanwhile."""
    wait: Callable[[], Tensor] | None = context.ranks.start_all_gather(half.to_send()) if context.chains else None
    half.meanwhile()
    return wait() if wait else None
