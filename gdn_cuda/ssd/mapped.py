"""torch.vmap of Mamba-2's scan: the mapped dimension becomes more heads, and as many more groups of B and C."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..operators import Differentiable
from ..operators.mapped import Mapped

# The dimension of heads, or of groups.
_HEADS = dict.fromkeys(("x", "dt", "B", "C", "z", "out_gradient"), 2)
_HEADS |= dict.fromkeys(("A", "D", "dt_bias"), 0) | dict.fromkeys(("initial_state", "state_gradient"), 1)


def with_more_heads(operator: Differentiable, heads_of_results: tuple[int, ...], x: Any, dims: Any) -> Any:
    mapped = Mapped(x, dims)
    for name in ("cu_seqlens", "seq_idx", "has_initial_state"):
        if getattr(dims, name, None) is not None:
            raise RuntimeError(f"ssd_scan: torch.vmap over {name} is not supported")

    def more(name: str) -> Any:
        given = getattr(x, name)
        return mapped.widened(name, _HEADS[name]).contiguous() if isinstance(given, Tensor) and name in _HEADS else given

    results = operator(*(more(name) for name in operator.schema.arguments))
    return tuple(zip(*(mapped.split(y, at) for y, at in zip(results, heads_of_results, strict=True)), strict=True))
