"""Scans of sequences whose tokens are on several ranks: the selective one, and those of S5, LRU and RG-LRU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..operators.registration import check_call
from ..operators.schema import require_tensors
from ..scan.diagonal import diagonal_scan
from ..scan.rglru import rglru_scan as rglru_in_one_process
from ..scan.selective import selective_scan as in_one_process
from ..scan.simplified_scan import check_composed
from .chained import ChainedScan, split_channels
from .contexts import Context, require_context
from .eager import outside_graphs
from .layout import Run, Slice
from .tokens import part_of

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

    Long slices of many channels go through the ranks in groups of channels, eight at most: while a rank scans a group, the next
    one has the group before it. An all-gather of a group's states follows each step, and an all-to-all in the backward. Others
    make one of each, of one or two states for each fragment, and a rank on which a sequence neither begins nor ends runs the
    scan three times. No collective where no sequence crosses from one rank to another.
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
    out, last = _Selective(context, given, flags, initial_state).run()
    return (out, last) if return_last_state else out


class _Selective(ChainedScan):
    """a and l are last states of the scan, without inputs from ones, and from zeros."""

    def __init__(self, context: Context, given: dict[str, Any], flags: dict[str, Any], initial_state: Tensor | None):
        self.given, self.flags, self.A = given, flags, given["A"]
        zeros = self.A.new_zeros((given["u"].shape[0], *self.A.shape))
        super().__init__(context, zeros, list(given.values()), initial_state, packs=True)

    def in_channel_groups(self, groups: int) -> list[ChainedScan]:
        def split(name: str, x: Tensor | None) -> list[Any]:
            if name in ("B", "C") and x is not None and x.dim() == 3:
                return [x] * groups  # all channels share it
            return split_channels(x, groups, 0 if x is None or x.dim() < 3 else 1)

        grouped = [x.shape[1] for name in ("B", "C") if (x := self.given[name]).dim() == 4]
        if any(count > 1 and count % groups > 0 for count in grouped):
            return []
        names, states = tuple(self.given), split_channels(self.initial_state, groups, 1)
        parts = zip(*(split(name, x) for name, x in self.given.items()), strict=True)
        given = [dict(zip(names, part, strict=True)) for part in parts]
        return [_Selective(self.context, x, self.flags, state) for x, state in zip(given, states, strict=True)]

    def _part(self, run: Run, *without: str) -> dict[str, Any]:
        """The call of a run's tokens. What varies in time has three dimensions or more, and may be pairs beside a complex A."""
        found = {name: None if name in without else x for name, x in self.given.items()}
        for name, x in found.items():
            if name in ("u", "delta", "z", "delta_a", "B", "C") and x is not None and x.dim() > 2:
                each = 2 if name in ("B", "C") and self.A.is_complex() and not x.is_complex() else 1
                found[name] = part_of(x, run, each)
        cu_seqlens = None if len(run.slices) == 1 else self.context.offsets(run.slices, self.zeros.device)
        return found | self.flags | {"cu_seqlens": cu_seqlens, "return_last_state": True}

    def compute(self, run: Run, state: Tensor | None) -> tuple[Tensor, Tensor]:
        out, last = in_one_process(**self._part(run), initial_state=state)
        return out, last

    def addition(self, run: Run) -> Tensor:
        last: Tensor = in_one_process(**self._part(run, "D", "z"))[1]
        return last

    def factor(self, each: Slice) -> Tensor:
        part = self._part(Run((each,)), "D", "z")
        last: Tensor = in_one_process(**part | {"u": torch.zeros_like(part["u"])}, initial_state=torch.ones_like(self.zeros))[1]
        return last

    def nothing(self) -> Tensor:
        out: Tensor = in_one_process(**self.given, **self.flags)
        return out


class _Diagonal(ChainedScan):
    def __init__(self, context: Context, Bu: Tensor, *system: Any):
        """system: delta, A, delta_a and discretization."""
        self.Bu, (self.delta, self.A, self.delta_a, self.discretization) = Bu, system
        super().__init__(context, Bu.new_zeros(Bu.shape[:2]), [Bu, *system[:3]])

    def in_channel_groups(self, groups: int) -> list[ChainedScan]:
        system = self.delta, self.A, self.delta_a
        parts = [split_channels(x, groups, 1 if x is not None and x.dim() == 3 else 0) for x in (self.Bu, *system)]
        return [_Diagonal(self.context, *part, self.discretization) for part in zip(*parts, strict=True)]

    def _scanned(self, Bu: Tensor, run: Run, state: Tensor | None) -> tuple[Tensor, Tensor]:
        delta, delta_a = (part_of(x, run) if x is not None and x.dim() == 3 else x for x in (self.delta, self.delta_a))
        states, last = diagonal_scan(Bu, delta, self.A, delta_a, state, self.discretization)
        return states, last

    def compute(self, run: Run, state: Tensor | None) -> tuple[Tensor, Tensor]:
        return self._scanned(part_of(self.Bu, run), run, state)

    def addition(self, run: Run) -> Tensor:
        return self.compute(run, None)[1]

    def factor(self, each: Slice) -> Tensor:
        without = torch.zeros_like(self.Bu[..., each.start : each.stop])
        return self._scanned(without, Run((each,)), torch.ones_like(self.zeros))[1]

    def nothing(self) -> Tensor:
        return self.Bu


@outside_graphs
def simplified_scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, discretization: str, *, context: Context
) -> tuple[Tensor, Tensor]:
    """`gdn_cuda.simplified_scan`, (y, last states), of u (batch, H, T) with this rank's tokens, from zeros."""
    given = u, delta, A, B, C, None, None, discretization
    check_composed("simplified_scan", given)
    states, last = _Diagonal(context, torch.matmul(B, u), delta, A.reshape(-1), None, discretization).run()
    return torch.matmul(C, states), last


class _Gated(ChainedScan):
    """RG-LRU's. A continued sequence has a state, zeros too, lest its first token count as the first of a sequence."""

    def __init__(self, context: Context, u: Tensor, delta: Tensor, A: Tensor, reset: Tensor | None, flags: dict[str, Any]):
        self.u, self.delta, self.A, self.reset, self.flags = u, delta, A, reset, flags
        super().__init__(context, A.new_zeros((u.shape[0], *A.shape)), [u, delta, A], packs=True)

    def in_channel_groups(self, groups: int) -> list[ChainedScan]:
        parts = (split_channels(x, groups, dim) for x, dim in ((self.u, 1), (self.delta, 1), (self.A, 0)))
        return [_Gated(self.context, u, delta, A, self.reset, self.flags) for u, delta, A in zip(*parts, strict=True)]

    def _scanned(self, u: Tensor, run: Run, state: Tensor | None) -> tuple[Tensor, Tensor]:
        cu_seqlens = None if len(run.slices) == 1 else self.context.offsets(run.slices, u.device)
        reset = None if self.reset is None else self.reset[:, run.start : run.stop]
        given: dict[str, Any] = {"initial_state": state, "cu_seqlens": cu_seqlens, "reset": reset}
        out, last = rglru_in_one_process(u, part_of(self.delta, run), self.A, True, **given, **self.flags)
        return out, last

    def compute(self, run: Run, state: Tensor | None) -> tuple[Tensor, Tensor]:
        return self._scanned(part_of(self.u, run), run, state)

    def addition(self, run: Run) -> Tensor:
        return self.compute(run, self.zeros)[1]

    def factor(self, each: Slice) -> Tensor:
        without = torch.zeros_like(self.u[..., each.start : each.stop])
        return self._scanned(without, Run((each,)), torch.ones_like(self.zeros))[1]

    def nothing(self) -> Tensor:
        out: Tensor = rglru_in_one_process(self.u, self.delta, self.A, **self.flags)
        return out


@outside_graphs
def rglru_scan(
    u: Tensor, delta: Tensor, A: Tensor, reset: Tensor | None = None, *, context: Context, **flags: Any
) -> tuple[Tensor, Tensor]:
    """`gdn_cuda.rglru_scan`, (out, last states), of u (B, D, T) with this rank's tokens, from the beginning of sequences."""
    check_call("rglru_scan", u=u, delta=delta, A=A, reset=None if reset is None else reset.int(), **flags)
    return _Gated(context, u, delta, A, reset, flags).run()
