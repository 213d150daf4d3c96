"""The selective scan of sequences whose tokens are on several ranks.

Each rank first computes the state after its part of a sequence, from the tail that matters (kernels/scan/selective_pieces), and
sends it; then it scans its part from what the others sent. Backward the same from the end, with gradients of the states before
parts. Parts between two others send the decay over them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..operators.autograd import needs_gradients
from ..operators.registration import check_call
from ..operators.schema import require_tensors
from ..scan import selective as operators
from ..scan.selective_summary import summary, summary_backward
from .contexts import Context, require_context
from .eager import outside_graphs
from .layout import Run, Slice
from .tokens import part_of

_NAME = "parallel.selective_scan"
_TENSORS = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "delta_a", "initial_state")


@outside_graphs
def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_a: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    discretization: str = "mamba",
    *,
    context: Context,
    initial_state: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """`gdn_cuda.selective_scan` of sequences whose tokens ranks share, with its gradients. Returns out, or `(out, last state)`.

    Formula:
        as in `selective_scan`

    Shapes:
        u, delta, z, delta_a: (B, D, T) with this rank's tokens in the order of its fragments; with several sequences B is 1
        A, B, C, D, delta_bias: as in `selective_scan`; B and C that vary in time have this rank's tokens. Gradients of those
          that do not are those of the rank's tokens
        initial_state: (sequences, D, N), or with one sequence (B, D, N). Of a sequence the rank reads it that has the first
          token; it has the gradient too, and those of others are 0. None for zeros
        last state: as initial_state: the rank that has a sequence's last token has it, others have zeros. A sequence without
          tokens belongs to rank 0

    Parameters:
        delta_softplus, return_last_state, discretization: as in `selective_scan`
        context: from `gdn_cuda.parallel.context`, equal on all ranks

    A rank sends the state after its part before it scans the part: for 'mamba', 'zoh' and 'dirac' from the last tokens alone,
    where A and δ are a model's, otherwise from all, which takes about half as long as the scan. One all-gather of a state for
    each fragment, of two where a sequence crosses three fragments or more, and as much backward. No collective where no
    sequence crosses from one rank to another.

    Edge cases:
        What decays by 2^-80 before the end of a rank's part is not sent, neither are infinities and NaN there.
    """
    require_tensors(_NAME, u=u, A=A)
    require_context(_NAME, context)
    rows = {"u": u, "delta": delta, "z": z, "delta_a": delta_a}
    for name, x in rows.items():
        if x is not None:
            context.check(_NAME, name, x, 2)
    given = rows | {"A": A, "B": B, "C": C, "D": D, "delta_bias": delta_bias}
    flags = {"delta_softplus": delta_softplus, "discretization": discretization}
    check_call("selective_scan", **given, **flags, keep_states=False)
    context.check_batch(_NAME, "u", u)
    if initial_state is not None:
        context.check_states(_NAME, "initial_state", initial_state, u, *A.shape)
    tensors = [(given | {"initial_state": initial_state})[name] for name in _TENSORS]
    out, last = _Scan.apply(context, flags, needs_gradients(*tensors), *tensors)
    return (out, last) if return_last_state else out


@dataclass
class _Call:
    """A rank's tensors. A run (`layout.Run`) is one call of the operator."""

    context: Context
    flags: dict[str, Any]
    tensors: dict[str, Tensor | None]

    def __getitem__(self, name: str) -> Any:
        return self.tensors[name]

    @property
    def states(self) -> Tensor:
        """Zeros, a state for each sequence of the batch."""
        return self["A"].new_zeros((self["u"].shape[0] * len(self.context.lengths), *self["A"].shape))

    @property
    def crossing(self) -> list[Run]:
        return [run for run in self.context.runs if run.continues or run.is_continued]

    @property
    def varying(self) -> list[str]:
        """What has tokens, along its last dimension."""
        names = ["u", "delta", "z", "delta_a"]
        names += [name for name in ("B", "C") if self[name].dim() > 2]
        return [name for name in names if self[name] is not None]

    def part(self, run: Run, x: Tensor, name: str = "u") -> Tensor:
        """A run's tokens. B and C may be pairs beside a complex A."""
        in_pairs = name in ("B", "C") and self["A"].is_complex() and not x.is_complex()
        return part_of(x, run, 2 if in_pairs else 1)

    def given(self, run: Run, state: Tensor | None) -> dict[str, Any]:
        """The arguments of the operator."""
        varying = self.varying
        parts = {name: self.part(run, x, name) if name in varying else x for name, x in self.tensors.items()}
        cu_seqlens = None if len(run.slices) == 1 else self.context.offsets(run.slices, self["u"].device)
        return parts | self.flags | {"initial_state": state, "cu_seqlens": cu_seqlens}

    def rows(self, run: Run) -> Tensor | None:
        """The run's rows of a tensor with all sequences; None for all, with a batch of one sequence."""
        if self["u"].shape[0] > 1:
            return None
        name = f"sequences {run.start} {run.stop}"
        return self.context.integers(name, self["u"].device, (each.sequence for each in run.slices))

    def states_of(self, run: Run, states: Tensor | None) -> Tensor | None:
        rows = self.rows(run)
        return states if states is None or rows is None else states.index_select(0, rows)

    def put_back(self, found: dict[Run, Tensor], without_tokens: Tensor | None) -> Tensor:
        """The runs' states as a tensor with all sequences, and of those without tokens on this rank what is given."""
        states = self.states
        if without_tokens is not None and self.context.without_tokens:
            empty = self.context.integers("without tokens", states.device, self.context.without_tokens)
            states = states.index_copy(0, empty, without_tokens.index_select(0, empty))
        for run, own in found.items():
            states = own if (rows := self.rows(run)) is None else states.index_copy(0, rows, own)
        return states

    def gathered(self, sent: dict[Run, tuple[Tensor, Tensor]]) -> Tensor:
        """All ranks' states, and decays if somebody needs them, of each of the runs' fragments. Complete before a scan begins:
        one that fills the GPU would leave no multiprocessor to the collective, and other ranks would wait for its end."""
        each = 2 if self.context.needs_maps else 1
        mine = self["A"].new_zeros((self.context.slots, each, self["u"].shape[0], *self["A"].shape))
        for run, found in sent.items():
            mine[run.fragment] = torch.stack(found[:each])
        is_complex = mine.is_complex()
        every = self.context.ranks.start_all_gather(torch.view_as_real(mine) if is_complex else mine)()
        return torch.view_as_complex(every) if is_complex else every


def _through(every: Tensor, slices: Sequence[Slice]) -> Tensor:
    """What arrives from the first of the slices through the others."""
    first, *others = slices
    state: Tensor = every[first.rank, first.fragment, 0]
    for each in others:
        state = every[each.rank, each.fragment, 1] * state + every[each.rank, each.fragment, 0]
    return state


def _scan(given: dict[str, Any], training: bool) -> tuple[Tensor, ...]:
    scan = operators._scan
    found: tuple[Tensor, ...] = scan.below_autograd(*((given | {"keep_states": training})[x] for x in scan.schema.arguments))
    return found


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, context: Context, flags: dict[str, Any], training: bool, *tensors: Tensor | None) -> Any:
        call = _Call(context, flags, dict(zip(_TENSORS, tensors, strict=True)))
        starts = {run: call.states_of(run, call["initial_state"]) for run in context.runs if not run.continues}
        found = {}
        if context.chains:
            sent = {run: summary(**call.given(run, starts.get(run))) for run in call.crossing if run.is_continued}
            every = call.gathered(sent)
            for run in call.crossing:
                if run.continues:
                    starts[run] = _through(every, context.before(run.slices[0]))
        for run, start in starts.items():
            found[run] = _scan(call.given(run, start), training)
        runs = context.runs
        ctx.call, ctx.count = (context, flags), len(runs)
        ctx.save_for_backward(*tensors, *(starts[run] for run in runs), *(found[run][2] for run in runs))
        outs = [found[run][0] for run in runs]
        out = torch.cat(outs, 2) if len(outs) > 1 else outs[0] if outs else torch.empty_like(call["u"])
        last = {run: found[run][1] for run in runs if not run.is_continued}
        return out, call.put_back(last, call["initial_state"])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor, grad_last: Tensor) -> Any:
        context, flags = ctx.call
        tensors, rest = ctx.saved_tensors[: len(_TENSORS)], ctx.saved_tensors[len(_TENSORS) :]
        call, runs = _Call(context, flags, dict(zip(_TENSORS, tensors, strict=True))), context.runs
        starts, kept = (dict(zip(runs, some, strict=True)) for some in (rest[: ctx.count], rest[ctx.count :]))
        ends = {run: call.states_of(run, grad_last) for run in runs if not run.is_continued}
        found: dict[Run, dict[str, Tensor]] = {}

        def given(run: Run) -> dict[str, Any]:
            own = {"grad_out": call.part(run, grad_out), "grad_last_state": ends.get(run), "states": kept[run]}
            return call.given(run, starts[run]) | own

        def compute(run: Run) -> None:
            arguments, operator = given(run), operators._backward
            results = operator.below_autograd(*(arguments[name] for name in operator.schema.arguments))
            found[run] = dict(zip(operators._GRADIENTS, results, strict=True))

        if context.chains:
            every = call.gathered({run: summary_backward(**given(run)) for run in call.crossing if run.continues})
            for run in call.crossing:
                if run.is_continued:
                    ends[run] = _through(every, context.after(run.slices[0])[::-1])
        for run in runs:
            compute(run)
        return None, None, None, *_gradients(call, found, grad_last, ctx.needs_input_grad[3:])


def _gradients(
    call: _Call, found: dict[Run, dict[str, Tensor]], grad_last: Tensor, needs: Sequence[bool]
) -> list[Tensor | None]:
    varying = call.varying

    def joined(name: str) -> Tensor:
        if name == "initial_state":
            return call.put_back({run: x[name] for run, x in found.items() if not run.continues}, grad_last)
        parts = [found[run][name] for run in call.context.runs]
        if not parts:
            return torch.zeros_like(call[name])
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts, -1) if name in varying else torch.stack(parts).sum(0)

    return [joined(name) if need else None for name, need in zip(_TENSORS, needs, strict=True)]
