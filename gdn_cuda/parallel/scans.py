"""The selective scan of sequences whose tokens are on several ranks. A slice maps the state before it to a x + l, elementwise:
a and l are last states of the scan, without inputs from ones, and from zeros. Autograd of these scans is the backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..operators.registration import check_call
from ..operators.schema import require_tensors
from ..scan.selective import selective_scan as in_one_process
from .contexts import Context, require_context
from .eager import outside_graphs
from .layout import Run
from .ranks import all_gather

_NAME = "parallel.selective_scan"


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

    Forward makes one all-gather, of one or two states for each fragment, and backward one all-to-all, none where no sequence
    crosses from one rank to another. A rank on which a sequence neither begins nor ends runs the scan three times.
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
    out, last = _Scan(context, given, flags, initial_state).run()
    return (out, last) if return_last_state else out


class _Scan:
    def __init__(self, context: Context, given: dict[str, Any], flags: dict[str, Any], initial_state: Tensor | None):
        self.context, self.given, self.flags, self.initial_state = context, given, flags, initial_state
        self.u, self.A = given["u"], given["A"]
        self.batch, self.zeros = self.u.shape[0], self.A.new_zeros((self.u.shape[0], *self.A.shape))

    def run(self) -> tuple[Tensor, Tensor]:
        context, found = self.context, {}
        for run in context.runs:
            if not run.continues:
                found[run] = self._of_run(run, self._initial(run))
        tensors = [x for x in (*self.given.values(), self.initial_state) if x is not None]
        every = None
        if context.chains:
            sent = [self._absent()] * context.slots
            for run in context.runs:
                if run.is_continued:
                    sent[run.fragment] = self._map(run) if run.continues else self._sent(found[run][1])
            every = all_gather(context.ranks, _Tied.apply(torch.stack(sent), *tensors))
            tensors.append(every)
        for run in context.runs:
            if run.continues:
                assert every is not None
                found[run] = self._of_run(run, self._before(run, every))
        outs = [found[run][0] for run in context.runs]
        out = outs[0] if len(outs) == 1 else torch.cat(outs, 2) if outs else in_one_process(**self.given, **self.flags)
        return _Tied.apply(out, *tensors), _Tied.apply(self._last(found), *tensors)

    def _part(self, run: Run, *without: str) -> dict[str, Any]:
        """The call of a run's tokens. What varies in time has three dimensions or more, and may be pairs beside a complex A."""
        found = {name: None if name in without else x for name, x in self.given.items()}
        for name, x in found.items():
            if name in ("u", "delta", "z", "delta_a", "B", "C") and x is not None and x.dim() > 2:
                each = 2 if name in ("B", "C") and self.A.is_complex() and not x.is_complex() else 1
                found[name] = x[..., each * run.start : each * run.stop]
        cu_seqlens = None if len(run.slices) == 1 else self.context.offsets(run.slices, self.u.device)
        return found | self.flags | {"cu_seqlens": cu_seqlens, "return_last_state": True}

    def _of_run(self, run: Run, state: Tensor | None) -> tuple[Tensor, Tensor]:
        out, last = in_one_process(**self._part(run), initial_state=state)
        return out, last

    def _initial(self, run: Run) -> Tensor | None:
        if self.initial_state is None or self.batch > 1:
            return self.initial_state
        return self.initial_state.index_select(0, self._sequences(run))

    def _sequences(self, run: Run) -> Tensor:
        name = f"sequences {run.start} {run.stop}"
        return self.context.integers(name, self.u.device, (each.sequence for each in run.slices))

    def _map(self, run: Run) -> Tensor:
        part = self._part(run, "D", "z")
        _, addition = in_one_process(**part)
        _, factor = in_one_process(**part | {"u": torch.zeros_like(part["u"])}, initial_state=torch.ones_like(self.zeros))
        return self._sent(addition, factor)

    def _sent(self, *states: Tensor) -> Tensor:
        """(2, B, D, N), or (1, B, D, N) where nobody needs the factor; complex values as pairs."""
        found = torch.stack([*states, self.zeros][: 1 + self.context.has_links])
        return torch.view_as_real(found) if found.is_complex() else found

    def _absent(self) -> Tensor:
        return self._sent(self.zeros)

    def _before(self, run: Run, every: Tensor) -> Tensor:
        values = torch.view_as_complex(every) if self.A.is_complex() else every
        first, *links = (values[each.rank, each.fragment] for each in self.context.before(run.slices[0]))
        state: Tensor = first[0]
        for addition, factor in links:
            state = factor * state + addition
        return state

    def _last(self, found: dict[Run, tuple[Tensor, Tensor]]) -> Tensor:
        context = self.context
        last = self.A.new_zeros((self.batch * len(context.lengths), *self.A.shape))
        if self.initial_state is not None and context.without_tokens:
            rows = context.integers("without tokens", last.device, context.without_tokens)
            last = last.index_copy(0, rows, self.initial_state.index_select(0, rows))
        for run, (_, own) in found.items():
            if not run.is_continued:
                last = own if self.batch > 1 else last.index_copy(0, self._sequences(run), own)
        return last


class _Tied(torch.autograd.Function):
    """x, whose backward reaches the other tensors too, with gradients of 0: a rank whose part sends or reads nothing makes the
    collective of the backward nevertheless."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *others: Tensor) -> Tensor:
        ctx.count = len(others)
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, *[None] * ctx.count
