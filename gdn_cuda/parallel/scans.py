"""The scans of S5, LRU and RG-LRU of sequences whose tokens are on several ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..operators.registration import check_call
from ..scan.diagonal import diagonal_scan
from ..scan.rglru import rglru_scan as rglru_in_one_process
from ..scan.simplified_scan import check_composed
from .chained import ChainedScan, split_channels
from .contexts import Context
from .eager import outside_graphs
from .layout import Run, Slice
from .tokens import part_of


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
