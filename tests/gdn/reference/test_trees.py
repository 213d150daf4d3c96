"""fused_decode with parents on CPU tensors: trees of tokens, each path compared with a sequence."""

from __future__ import annotations

import pytest
import torch
from tree_cases import INVALID_PARENTS, check_tree, draw_tree, random_trees

from gdn_cuda import fused_decode


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 2, 5, 17])
def test_trees(tokens: int, state: torch.dtype, seed: int) -> None:
    check_tree(draw_tree(seed, random_trees(seed, 3, tokens), dk=16, dv=8, state=state), fused_decode)


def test_trees_with_more_heads_of_query(seed: int) -> None:
    check_tree(draw_tree(seed, random_trees(seed, 3, 9), heads=(4, 2, 2), dk=16, dv=8), fused_decode)


def test_invalid_parents_give_nan_and_store_nothing(seed: int) -> None:
    check_tree(draw_tree(seed, INVALID_PARENTS, dk=16, dv=8), fused_decode)


def test_a_chain_equals_a_call_without_parents(seed: int) -> None:
    x = draw_tree(seed, torch.arange(5).expand(2, 5) - 1, dk=16, dv=8)
    plain = {name: y.clone() for name, y in x.items() if name != "parents"}
    assert torch.equal(fused_decode(**x), fused_decode(**plain))
    assert torch.equal(x["step_states"], plain["step_states"])


def test_packed_trees_equal_padded_ones(seed: int) -> None:
    x = draw_tree(seed, random_trees(seed, 2, 4), dk=16, dv=8)
    packed = {name: y.clone() for name, y in x.items()}
    for name in ("query", "key", "value", "a", "b"):
        packed[name] = x[name].flatten(0, 1)
    out = fused_decode(**packed, cu_seqlens=torch.tensor([0, 4, 8]))
    assert torch.equal(out.unflatten(0, (2, 4)), fused_decode(**x))
    assert torch.equal(packed["step_states"], x["step_states"])


def test_without_rows_for_step_states_only_chains_are_continued(seed: int) -> None:
    x = draw_tree(seed, torch.tensor([[-1, 0, 0, -1, 3]]), dk=16, dv=8)
    x["step_slots"].fill_(-1)
    out = fused_decode(**x)
    assert out[0, 2].isnan().all() and out[0, [0, 1, 3, 4]].isfinite().all()
    assert bool((x["step_states"] == 7).all())


def test_invalid_parents_tensors_are_refused(seed: int) -> None:
    x = draw_tree(seed, random_trees(seed, 2, 4), dk=16, dv=8)
    for changes, text in (
        ({"step_states": None, "step_slots": None}, r"parents: expected None without step_states, got a tensor"),
        (
            {"parents": x["parents"][:, :3]},
            r"parents: expected \(2, T\), a parent for each of 4 tokens, T at most 64, got \(2, 3\)",
        ),
        ({"parents": x["parents"][:1]}, r"parents: expected \(2, T\), .*, got \(1, 4\)"),
        ({"parents": torch.zeros(2, 65, dtype=torch.int32)}, r"parents: expected \(2, T\), .*, got \(2, 65\)"),
        ({"parents": x["parents"].float()}, r"parents: expected "),
    ):
        with pytest.raises(ValueError, match=text):
            fused_decode(**x | changes)
