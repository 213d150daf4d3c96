"""fused_decode with parents on the GPU: trees of tokens against each of their paths."""

from __future__ import annotations

import pytest
import torch
from tree_cases import INVALID_PARENTS, check_tree, draw_tree, random_trees

from gdn_cuda import fused_decode


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dk, dv", [(64, 24), (128, 128), (40, 8), (96, 192)])
@pytest.mark.parametrize("tokens", [1, 6, 20])
def test_trees(tokens: int, dk: int, dv: int, state: torch.dtype, seed: int) -> None:
    check_tree(draw_tree(seed, random_trees(seed, 5, tokens), dk=dk, dv=dv, state=state, device="cuda"), fused_decode)


@pytest.mark.parametrize("io", [torch.bfloat16, torch.float32])
def test_invalid_parents_give_nan_and_store_nothing(io: torch.dtype, seed: int) -> None:
    check_tree(draw_tree(seed, INVALID_PARENTS, io=io, device="cuda"), fused_decode)


def test_trees_of_any_rows_and_states(seed: int) -> None:
    x = draw_tree(seed, random_trees(seed, 4, 9), dk=33, dv=7, io=torch.float32, device="cuda")
    for name in ("state_pool", "step_states"):
        x[name] = x[name].mT.contiguous().mT
    check_tree(x, fused_decode)


def test_a_chain_equals_a_call_without_parents(seed: int) -> None:
    """The same bits, although gdn/verify runs the call without."""
    x = draw_tree(seed, torch.arange(5).expand(60, 5) - 1, heads=(4, 4, 8), dk=128, dv=128, device="cuda")
    plain = {name: y.clone() for name, y in x.items() if name != "parents"}
    assert torch.equal(fused_decode(**x), fused_decode(**plain))
    assert torch.equal(x["step_states"], plain["step_states"])
