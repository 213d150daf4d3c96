"""Trees of tokens by the kernels of the recurrence in the emulator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from emulated import emulated
from torch import Tensor
from tree_cases import INVALID_PARENTS, check_tree, draw_tree, random_trees

from gdn_cuda import fused_decode


def decode(kernel: str, **x: Any) -> Tensor:
    with emulated() as launched:
        out = fused_decode(**x)
        assert all(each.startswith(f"gdn/{kernel}{{") for each in launched())
    return out


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dk, dv", [(64, 24), (128, 40), (40, 8)])
def test_trees(dk: int, dv: int, state: torch.dtype, seed: int) -> None:
    for tokens in (1, 6, 20):
        x = draw_tree(seed, random_trees(seed, 3, tokens), dk=dk, dv=dv, state=state)
        check_tree(x, lambda **x: decode("recurrent", **x))


def test_invalid_parents_give_nan_and_store_nothing(seed: int) -> None:
    check_tree(draw_tree(seed, INVALID_PARENTS), lambda **x: decode("recurrent", **x))
    check_tree(draw_tree(seed, INVALID_PARENTS, io=torch.float32), lambda **x: decode("recurrent_any", **x))


@pytest.mark.parametrize("dk, dv", [(64, 24), (33, 7)])
def test_trees_of_any_rows_and_states(dk: int, dv: int, seed: int) -> None:
    for tokens in (1, 6, 20):
        x = draw_tree(seed, random_trees(seed, 3, tokens), dk=dk, dv=dv, io=torch.float32)
        for name in ("state_pool", "step_states"):
            x[name] = x[name].mT.contiguous().mT
        check_tree(x, lambda **x: decode("recurrent_any", **x))


def test_trees_with_more_heads_of_query(seed: int) -> None:
    x = draw_tree(seed, random_trees(seed, 3, 9), heads=(4, 2, 2))
    check_tree(x, lambda **x: decode("recurrent_any", **x))


def test_packed_trees_and_sequences_longer_than_their_parents(seed: int) -> None:
    x = draw_tree(seed, random_trees(seed, 2, 4))
    for name in ("query", "key", "value", "a", "b"):
        x[name] = x[name].flatten(0, 1)
    other = {name: y.clone() for name, y in x.items()}
    offsets = torch.tensor([0, 3, 8])  # the second has a token more than parents
    out, expected = decode("recurrent", **x, cu_seqlens=offsets), fused_decode(**other, cu_seqlens=offsets)
    assert out[7].isnan().all() and out[:7].isfinite().all()
    torch.testing.assert_close(out, expected, rtol=2e-2, atol=1e-3, equal_nan=True)
