"""States through the summaries of consecutive parts of a sequence: the operator, its reference, examples and benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..operators import operator
from ..operators.calls import typical_call
from ..operators.examples import Arguments, example, random
from ..operators.measure import Case, Work, bench, normal


def _reference(x: Any) -> Tensor:
    """In fp64."""
    state, parts = x.state.double(), range(x.additions.shape[0])
    for part in reversed(parts) if x.reverse else parts:
        transition = x.transitions[part].double()
        through = state @ (transition.mT if x.reverse else transition)
        # Else nothing is left of the state, infinities and NaN included.
        is_left = transition.ne(0).any(-1).any(-1)[..., None, None]
        state = torch.where(is_left, through, 0) + x.additions[part]
    return state.to(x.state.dtype)


@operator(reference=_reference, out="state")
def fold_states(
    state: Tensor,
    additions: Tensor,
    transitions: Tensor,
    *,
    reverse: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """A state through the summaries (M, L) of consecutive parts of its sequence, which `chunked_summary` computes.

    Formula:
        S ← S M + L, from the first part to the last
        E ← E Mᵀ + L with `reverse`, from the last part to the first, of gradients of states

    Shapes:
        state: (N, Hv, dv, dk), contiguous fp32 (fp64 on CPU tensors): before the first part, or the gradient after the last
        additions: (parts, N, Hv, dv, dk), L; transitions: (parts, N, Hv, dk, dk), M; of state's dtype. Views with contiguous
          matrices are fine: `every[..., :dv, :]` and `every[..., dv:, :]` of summaries that were gathered
        out: as state

    Parameters:
        reverse: whether parts follow from the last to the first, each by the transpose of M
        out: where the result is written, contiguous; None allocates it

    One launch, in fp32. Without parts the result is a copy of the state.

    Edge cases:
        Where all of M is 0, as after a reset, nothing is left of the state, neither infinities nor NaN.

    Example:
        >>> state, transitions = torch.randn(1, 2, 4, 8), torch.randn(3, 1, 2, 8, 8) / 3
        >>> additions = torch.randn(3, 1, 2, 4, 8)
        >>> expected = state
        >>> for M, L in zip(transitions, additions):
        ...     expected = expected @ M + L
        >>> bool((gdn_cuda.fold_states(state, additions, transitions) - expected).abs().max() < 1e-4)
        True
    """


# ---- Examples


def _given(B: int, T: int, seed: int) -> Arguments:
    """T parts, but at most three."""
    parts = min(T, 3)
    return {
        "state": random(B, 2, 8, 16, seed=seed),
        "additions": random(parts, B, 2, 8, 16, seed=seed + 1),
        "transitions": random(parts, B, 2, 16, 16, seed=seed + 2) / 4,
    }


@example(fold_states)
def _example(B: int, T: int, seed: int) -> Arguments:
    return _given(B, T, seed)


@example(fold_states, "fold_states, reverse")
def _example_reverse(B: int, T: int, seed: int) -> Arguments:
    return _given(B, T, seed) | {"reverse": True}


typical_call(
    fold_states,
    {"P": 7, "B": 1, "Hv": 32, "dk": 128, "dv": 128},
    "state: B Hv dv dk f32; additions: P B Hv dv dk f32; transitions: P B Hv dk dk f32",
)


# ---- Benchmark


@bench(operator="fold_states")
def _bench(device: str) -> Iterator[Case]:
    heads, d = (32, 128) if device == "cuda" else (2, 16)

    def work(parts: int) -> Work:
        matrices = partial(normal, device=device, dtype=torch.float32)
        state, *rest = (matrices(*lead, heads, d, d) / d for lead in ((1,), (parts, 1), (parts, 1)))
        return Work(partial(fold_states, state, *rest), 4 * heads * d * d * (2 + 2 * parts), 2 * parts * heads * d**3)

    for parts, name in ((1, "1 part"), (3, "3 parts"), (7, "7 parts")):
        yield Case(f"{name}, {heads} heads", partial(work, parts), called=True)
