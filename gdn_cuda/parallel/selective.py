"""The selective scan of sequences whose tokens are on several ranks. kernels/scan/selective_pieces computes states after parts
from the tail that matters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..operators import Differentiable
from ..operators.registration import check_call
from ..operators.schema import require_tensors
from ..scan import selective as operators
from ..scan.selective_summary import summary, summary_backward
from .contexts import Context, require_context
from .eager import outside_graphs
from .layout import Run
from .summarized import RunBackward, SummarizedScan, Summary
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
    out, last = _Selective(context, flags, given | {"initial_state": initial_state}).run()
    return (out, last) if return_last_state else out


class _Selective(SummarizedScan):
    NAMES = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "delta_a", "initial_state")

    @property
    def zeros(self) -> Tensor:
        return torch.zeros_like(self["A"])

    @property
    def in_time(self) -> list[str]:
        names = ["u", "delta", "z", "delta_a"]
        names += [name for name in ("B", "C") if self[name].dim() > 2]
        return [name for name in names if self[name] is not None]

    def _part(self, run: Run, name: str) -> Tensor:
        """A run's tokens. B and C may be pairs beside a complex A."""
        in_pairs = name in ("B", "C") and self["A"].is_complex() and not self[name].is_complex()
        return part_of(self[name], run, 2 if in_pairs else 1)

    def _given(self, run: Run, state: Tensor | None) -> dict[str, Any]:
        in_time = self.in_time
        parts = {name: self._part(run, name) if name in in_time else x for name, x in self.tensors.items()}
        cu_seqlens = None if len(run.slices) == 1 else self.context.offsets(run.slices, self["u"].device)
        return parts | self.flags | {"initial_state": state, "cu_seqlens": cu_seqlens}

    def _given_back(self, run: Run, given: RunBackward) -> dict[str, Any]:
        own = {"grad_out": given.grad_out, "grad_last_state": given.grad_last_state, "states": given.kept}
        return self._given(run, given.state) | own

    def summary(self, run: Run, state: Tensor | None) -> Summary:
        return summary(**self._given(run, state))

    def scan(self, run: Run, state: Tensor | None, training: bool) -> tuple[Tensor, Tensor, Tensor]:
        given = self._given(run, state) | {"keep_states": training}
        found: tuple[Tensor, Tensor, Tensor] = _below_autograd(operators._scan, given)
        return found

    def summary_backward(self, run: Run, given: RunBackward) -> Summary:
        return summary_backward(**self._given_back(run, given))

    def backward(self, run: Run, given: RunBackward) -> dict[str, Tensor]:
        found = _below_autograd(operators._backward, self._given_back(run, given))
        return dict(zip(operators._GRADIENTS, found, strict=True))


def _below_autograd(operator: Differentiable, given: dict[str, Any]) -> Any:
    return operator.below_autograd(*(given[name] for name in operator.schema.arguments))
