"""Contexts: who has which tokens, what is refused, and what is said about it. Without other processes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from parallel_cases import SPLITS, Split
from thread_ranks import Board, ThreadRanks, on_threads

import gdn_cuda
from gdn_cuda import parallel
from gdn_cuda.parallel import contexts, layout


def made(size: int = 1, **options: Any) -> parallel.Context:
    return on_threads(size, lambda ranks: parallel.context(ranks, **options))[0][0]


@pytest.mark.parametrize("tokens", [0, 1, 5, 8, 64, 131])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_layouts_balance_the_tokens(size: int, tokens: int) -> None:
    counts = made(size, lengths=[tokens]).counts
    assert sum(counts) == tokens and max(counts) - min(counts) <= 1
    parts = layout.fragments_of("f", "zigzag", tokens, size)
    assert sorted(parts[0][::-1] + parts[-1])[0][0] == 0 and parts[0][1][1] == tokens
    counts = made(size, lengths=[tokens], layout="zigzag").counts
    assert sum(counts) == tokens and max(counts) - min(counts) <= 2


def test_fragments_that_continue_each_other_are_joined_and_empty_ones_left_out() -> None:
    assert made(2, lengths=[8], layout="zigzag").fragments == (((0, 2), (6, 8)), ((2, 6),))
    fragments = [[(0, 3), (3, 3), (3, 5)], [(5, 5), (7, 8), (5, 7)]]
    assert made(2, lengths=[8], fragments=fragments).fragments == (((0, 5),), ((7, 8), (5, 7)))


def test_runs_are_slices_that_cross_or_whole_sequences() -> None:
    context = made(2, lengths=[3, 0, 2, 4, 9, 1], fragments=[[(0, 11)], [(11, 19)]])
    runs = [[each.sequence for each in run.slices] for run in context.runs]
    assert runs == [[0, 2, 3], [4]] and [run.is_continued for run in context.runs] == [False, True]
    assert [(each.rank, each.start, each.stop) for each in context.chains[4]] == [(0, 9, 11), (1, 0, 7)]
    assert context.owners == (0, 0, 0, 0, 1, 1) and set(context.chains) == {4} and not context.needs_maps


def test_a_sequence_on_three_ranks_needs_maps() -> None:
    assert made(3, lengths=[9]).needs_maps and not made(3, lengths=[2, 1, 6]).needs_maps


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"lengths": []}, "lengths: expected one integer or more, none negative, got none"),
    ({"lengths": [3, -2]}, "lengths: expected one integer or more, none negative, got -2"),
    ({"lengths": [3, 2.5]}, "lengths: expected one integer or more, none negative, got 2.5"),
    ({"lengths": torch.tensor([8])}, "lengths: expected a list of integers on the host, got Tensor"),
    ({"mode": "tree"}, "mode: expected None, 'gather', 'doubling', 'ring', got 'tree'"),
    ({"layout": "striped"}, "layout: expected 'contiguous' or 'zigzag', got 'striped'"),
    ({"layout": "zigzag", "fragments": [[(0, 8)]]}, "layout: expected its default with fragments, got 'zigzag'"),
    (
        {"fragments": [[(0, 8)], []]},
        "fragments: expected a list of (first, last + 1) for each rank, of which there are 1, got 2",
    ),
    ({"fragments": [[0, 8]]}, "fragments: expected a list of (first, last + 1) for each rank, got [[0, 8]]"),
    ({"fragments": [[(0, 5), (4, 8)]]}, "fragments: expected every token once, got token 4 a second time, on rank 0"),
    ({"fragments": [[(0, 5), (6, 8)]]}, "fragments: expected every token once, got none with token 5"),
    ({"fragments": [[(0, 7)]]}, "fragments: expected every token once, got none with token 7"),
    ({"fragments": [[(0, 9)]]}, "fragments: expected 0 ≤ first ≤ end ≤ 8, the number of tokens, got (0, 9) of rank 0"),
    ({"fragments": [[(5, 3)]]}, "fragments: expected 0 ≤ first ≤ end ≤ 8, the number of tokens, got (5, 3) of rank 0"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"parallel.context: {message}")):
        made(**{"lengths": [8]} | options)


@pytest.mark.parametrize("group", [None, "cp", torch.distributed.GroupMember.NON_GROUP_MEMBER])
def test_a_group_that_this_rank_is_not_in_is_refused(group: Any) -> None:
    with pytest.raises(
        ValueError, match=r"parallel\.context: group: expected a ProcessGroup that this rank is in, or a DeviceMesh"
    ):
        parallel.context(group, [8])


def test_unequal_lengths_are_an_error_on_every_rank_that_shows_both() -> None:
    def say(ranks: Any) -> str:
        with pytest.raises(ValueError, match="lengths, layout, fragments, mode") as raised:
            parallel.context(ranks, [8, 10 + (ranks.rank == 2)])
        return str(raised.value)

    for said in on_threads(3, say)[0]:
        assert "lengths=[8, 10]" in said and "lengths=[8, 11]" in said


def test_a_long_context_is_compared_as_a_whole() -> None:
    """The text that ranks exchange is shortened, its digest is not."""

    def compare(ranks: Any) -> None:
        with pytest.raises(ValueError, match="lengths, layout, fragments, mode"):
            parallel.context(ranks, [1] * 4000 + [5 + ranks.rank])

    on_threads(2, compare)
    assert made(2, lengths=[1] * 4000).counts == (2000, 2000)


def test_explain_names_ranks_tokens_sequences_and_bytes() -> None:
    text = made(3, lengths=[70, 20]).explain(heads=2, dk=128, dv=64)
    assert text.splitlines() == [
        "90 tokens in 2 sequences on 3 ranks; this is rank 0",
        "rank 0: 30 tokens: 0 to 29",
        "rank 1: 30 tokens: 30 to 59",
        "rank 2: 30 tokens: 60 to 89",
        "sequence 0, 70 tokens: ranks 0 → 1 → 2",
        "forward: an all-gather of 0.19 MiB from each rank, of states and maps",
        "backward: an all-gather of 0.06 MiB from each rank, of gradients of states",
        "with 2 value heads, dk = 128, dv = 64 and one sequence a batch, in fp32",
    ]
    text = made(9, lengths=[90]).explain(heads=2, dk=128, dv=64)
    assert "each way, doubling: 4 all-to-alls of at most 0.19 MiB from each rank" in text.splitlines()
    text = made(4, lengths=[90], mode="ring").explain(heads=2, dk=128, dv=64)
    assert "each way, ring: 3 all-to-alls of at most 0.06 MiB from each rank" in text.splitlines()
    assert made(2, lengths=[5, 5]).explain().endswith("rank 1: 5 tokens: 5 to 9\nno states are exchanged")


def test_a_context_is_equal_to_one_of_the_same_ranks_lengths_and_fragments() -> None:
    ranks = ThreadRanks(Board(1), 0, 1)
    one, other = parallel.context(ranks, [4, 4]), parallel.context(ranks, [4, 4], layout="zigzag")
    assert one == other and hash(one) == hash(other) and one != parallel.context(ranks, [8])


def test_equal_contexts_are_one_while_it_is_in_use() -> None:
    ranks = ThreadRanks(Board(1), 0, 1)
    context = parallel.context(ranks, [4, 4])
    number = context.number
    assert parallel.context(ranks, [4, 4]) is context and parallel.context(ranks, [8]).number != number
    assert contexts.numbered(number) is context
    del context
    with pytest.raises(ValueError, match="context: expected to be kept until its backward has run, got one that is gone"):
        contexts.numbered(number)


@pytest.mark.parametrize("split", SPLITS, ids=lambda split: split.name)
def test_every_slice_of_a_sequence_is_in_its_chain_once(split: Split) -> None:
    def check(ranks: Any) -> None:
        context = split.context(ranks, [130, 0, 2, 75])
        for sequence, chain in context.chains.items():
            assert sum(each.stop - each.start for each in chain) == context.lengths[sequence] and len(chain) > 1
            assert [each.continues for each in chain] == [i > 0 for i in range(len(chain))]
            assert [each.is_continued for each in chain] == [i < len(chain) - 1 for i in range(len(chain))]
        assert sum(run.stop - run.start for run in context.runs) == context.tokens

    on_threads(3, check)


def test_a_group_of_one_process(tmp_path: Any) -> None:
    """The example of the docstring, and a layer: no collective, so that no backend has to know the device."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'found'}", rank=0, world_size=1)
    try:
        context = parallel.context(torch.distributed.group.WORLD, lengths=[70, 30])
        assert context.fragments == (((0, 100),),)
        x = torch.randn(1, 100, 2, 8)
        out, last = parallel.chunked_forward(x, x, x, None, None, context=context, use_qk_l2norm=True)
        offsets = torch.tensor([0, 70, 100])
        expected, expected_last = gdn_cuda.chunked_forward(x, x, x, None, None, cu_seqlens=offsets, use_qk_l2norm=True)
        assert torch.equal(out, expected) and torch.equal(last, expected_last)
    finally:
        torch.distributed.destroy_process_group()
