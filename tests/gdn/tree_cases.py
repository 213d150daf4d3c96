"""Trees of tokens for fused_decode, and their expected results: each path from the root as a sequence of its own, in fp64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from helpers import rel_rms
from replay_cases import literal
from torch import Tensor

OUTPUT_BOUND = {torch.bfloat16: 4e-3, torch.float32: 1e-5}
STATE_BOUND = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def draw_tree(
    seed: int,
    parents: Tensor,
    *,
    heads: tuple[int, int, int] = (1, 1, 2),
    dk: int = 64,
    dv: int = 24,
    io: torch.dtype = torch.bfloat16,
    state: torch.dtype = torch.float32,
    device: str = "cpu",
) -> dict[str, Any]:
    """Arguments of fused_decode; `heads` are the head counts of query, key and value."""
    (Hq, Hk, Hv), H = heads, max(heads)
    sequences, tokens = parents.shape
    rng = torch.Generator().manual_seed(seed)

    def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=rng).to(device=device, dtype=dtype)

    return {
        "query": draw(sequences, tokens, Hq, dk, dtype=io),
        "key": draw(sequences, tokens, Hk, dk, dtype=io),
        "value": draw(sequences, tokens, Hv, dv, dtype=io),
        "a": draw(sequences, tokens, H),
        "b": draw(sequences, tokens, H),
        "A_log": draw(H) - 2,
        "dt_bias": draw(H),
        "state_pool": draw(sequences + 1, H, dv, dk, dtype=state),
        "state_indices": torch.arange(sequences, 0, -1, device=device),
        "step_states": torch.full((sequences + 2, tokens + 1, H, dv, dk), 7.0, device=device, dtype=state),
        "step_slots": torch.arange(sequences, device=device).flip(0) + 1,
        "parents": parents.to(device),
    }


def expected_tree(x: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Outputs and states (N, T, …) in fp64; NaN for tokens with an invalid parent, and for tokens after them in the tree."""
    x = {name: y.cpu() for name, y in x.items()}
    heads = {"A_log": x["A_log"], "dt_bias": x["dt_bias"]}
    after = torch.full((*x["value"].shape[:2], *x["state_pool"].shape[1:]), torch.nan, dtype=torch.float64)
    output = after[..., 0].clone()
    for n, slot in enumerate(x["state_indices"].tolist()):
        for t, parent in enumerate(x["parents"][n].tolist()):
            if not -1 <= parent < t:
                continue
            state = x["state_pool"][slot].double() if parent < 0 else after[n, parent]
            token = {name: x[name][n, t] for name in ("query", "key", "value", "a", "b")}
            output[n, t], after[n, t] = literal(state, token, heads, x["query"].shape[-1] ** -0.5, True, 1)
    return output, after


def check_tree(x: dict[str, Any], decode: Callable[..., Tensor]) -> None:
    """Checks outputs and step states, and that nothing else is written."""
    expected, after = expected_tree(x)
    pool, steps = x["state_pool"].clone(), x["step_states"].clone()
    output = decode(**x, out=torch.zeros(expected.shape, dtype=x["value"].dtype, device=x["value"].device))
    assert torch.equal(output.isnan().cpu(), expected.isnan())
    state = x["state_pool"].dtype
    assert rel_rms(output.nan_to_num(), expected.nan_to_num()) <= max(OUTPUT_BOUND[output.dtype], STATE_BOUND[state])
    assert torch.equal(x["state_pool"], pool)
    kept = x["step_states"][x["step_slots"]][:, : expected.shape[1]]
    alive = ~after.isnan().flatten(2).any(-1)
    assert rel_rms(kept.cpu()[alive], after[alive]) <= STATE_BOUND[state]
    written = torch.zeros(steps.shape[:2], dtype=torch.bool)
    written[x["step_slots"].cpu(), : expected.shape[1]] = alive
    assert torch.equal(x["step_states"].cpu()[~written], steps.cpu()[~written])


def random_trees(seed: int, sequences: int, tokens: int) -> Tensor:
    """A chain, a star and random trees, some with several roots."""
    rng = torch.Generator().manual_seed(seed)
    parents = torch.randint(0, 2**20, (sequences, tokens), generator=rng) % (torch.arange(tokens) + 1) - 1
    parents[0] = torch.arange(tokens) - 1
    parents[-1, 1:] = 0
    return parents


INVALID_PARENTS = torch.tensor(
    [[-1, 0, 2, 1, 3, 1], [-2, 0, 1, -1, 3, 4], [-1, 2**40, 0, -(2**63), 3, 2], [0, -1, 1, 7, 1, 2**63 - 1]]
)
