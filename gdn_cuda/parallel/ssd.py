"""Mamba-2's scan of sequences whose tokens are on several ranks."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from ..operators.dtypes import state_dtype
from ..operators.registration import check_call
from ..operators.schema import refuse, require_tensors
from ..ssd import ssd_scan as in_one_process
from ..ssd import ssd_summary
from ..ssd.parts import TENSORS, part_gradients, state_gradient_before
from .contexts import Context, require_context
from .eager import outside_graphs
from .layout import Run
from .summarized import RunBackward, SummarizedScan, Summary
from .tokens import part_of

_NAME = "parallel.ssd_scan"


@outside_graphs
def ssd_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_state: Tensor | None = None,
    *,
    context: Context,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    seq_idx: Tensor | None = None,
    return_last_state: bool = False,
    deterministic: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`gdn_cuda.ssd_scan` of sequences whose tokens ranks share, with its gradients. Returns out, or `(out, last state)`.

    Formula:
        as in `ssd_scan`

    Shapes:
        x, dt, B, C, z: as in `ssd_scan` with a batch, with this rank's tokens in the order of its fragments; with several
          sequences B is 1
        A, D, dt_bias: as in `ssd_scan`. Their gradients are those of the rank's tokens
        initial_state: (sequences, H, P, N), or with one sequence (B, H, P, N). Of a sequence the rank reads it that has the
          first token; it has the gradient too, and those of others are 0. None for zeros
        last state: as initial_state, fp32: the rank that has a sequence's last token has it, others have zeros. A sequence
          without tokens belongs to rank 0

    Parameters:
        context: from `gdn_cuda.parallel.context`, equal on all ranks; its `lengths` are in the place of cu_seqlens and seq_idx
        dt_softplus, dt_limit, return_last_state, deterministic: as in `ssd_scan`
        seq_idx: None, as the context has the sequences

    A rank sends the state after its part before it scans the part: from all of its tokens, without outputs. One all-gather of a
    state for each fragment, with a number for each head where a sequence crosses three fragments or more, and as much backward.
    No collective where no sequence crosses from one rank to another.

    Edge cases:
        A decay of 0 over a rank's part stops infinities and NaN of the ranks before it.
    """
    require_tensors(_NAME, x=x, A=A)
    require_context(_NAME, context)
    if seq_idx is not None:
        refuse(_NAME, "seq_idx", "None, as the context has the sequences: its `lengths`", type(seq_idx).__name__)
    rows = {"x": x, "dt": dt, "B": B, "C": C, "z": z}
    for name, y in rows.items():
        if y is not None or name != "z":
            context.check(_NAME, name, y, 1)
    weights = {"A": A, "D": D, "dt_bias": dt_bias}
    flags: dict[str, Any] = {"dt_softplus": dt_softplus, "deterministic": deterministic}
    limits = {"dt_lowest": float(dt_limit[0]), "dt_highest": float(dt_limit[1])}
    check_call("ssd_scan", **rows, **weights, **flags, **limits)
    context.check_batch(_NAME, "x", x)
    wide = state_dtype(x)
    if initial_state is not None:
        context.check_states(_NAME, "initial_state", initial_state, x, *x.shape[2:], B.shape[-1])
        if not initial_state.is_floating_point():
            refuse(_NAME, "initial_state", "floating point", initial_state.dtype)
        initial_state = initial_state.to(wide).contiguous()
    # Sums of the runs' gradients are rounded once.
    summed = {name: None if y is None else y.to(wide) for name, y in weights.items()}
    out, last = _Ssd(context, flags | limits, rows | summed | {"initial_state": initial_state}).run()
    return (out, last) if return_last_state else out


class _Ssd(SummarizedScan):
    NAMES = TENSORS
    TIME = 1
    decay_size = 1

    @property
    def zeros(self) -> Tensor:
        x = self["x"]
        return x.new_zeros((*x.shape[2:], self["B"].shape[-1]), dtype=state_dtype(x))

    @property
    def in_time(self) -> list[str]:
        return [name for name in ("x", "dt", "B", "C", "z") if self[name] is not None]

    def _given(self, run: Run, state: Tensor | None) -> dict[str, Any]:
        parts = {name: part_of(self[name], run, dim=1) for name in self.in_time}
        cu_seqlens = None if len(run.slices) == 1 else self.context.offsets(run.slices, self["x"].device)
        return self.tensors | parts | {"initial_state": state, "cu_seqlens": cu_seqlens}

    def _part(self, run: Run, state: Tensor | None) -> Any:
        return SimpleNamespace(**self._given(run, state), **self.flags, seq_idx=None, has_initial_state=None)

    @property
    def _options(self) -> dict[str, Any]:
        limits = self.flags["dt_lowest"], self.flags["dt_highest"]
        return {"dt_softplus": self.flags["dt_softplus"], "dt_limit": limits}

    def summary(self, run: Run, state: Tensor | None) -> Summary:
        part = self._part(run, state)
        after, decay = ssd_summary(part.x, part.dt, part.A, part.B, part.dt_bias, state, **self._options)
        return after, decay[..., None]

    def scan(self, run: Run, state: Tensor | None, training: bool) -> tuple[Tensor, Tensor, Tensor]:
        options = self._options | {"deterministic": self.flags["deterministic"], "return_last_state": True}
        out, last = in_one_process(**self._given(run, state), **options)
        return out, last, out.new_empty(0)

    def summary_backward(self, run: Run, given: RunBackward) -> Summary:
        before, decay = state_gradient_before(self._part(run, None), given.grad_out, given.grad_last_state)
        return before, decay[..., None]

    def backward(self, run: Run, given: RunBackward) -> dict[str, Tensor]:
        return part_gradients(self._part(run, given.state), given.grad_out, given.grad_last_state)
