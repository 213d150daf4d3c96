"""How states travel between many ranks: what is sent, results of one process, and its bits. Ranks are threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradient_cases import GradientCase, drawn
from parallel_cases import RAW, SMALL, SPLITS, check, compare, expected, modes, on_rank, results
from thread_ranks import ThreadRanks, on_threads
from torch import Tensor

import gdn_cuda
from gdn_cuda import chunked_summary, parallel
from gdn_cuda.parallel import passes

HEADS, DK, DV = 2, SMALL["dk"], SMALL["dv"]


def test_ten_ranks_have_the_results_of_one() -> None:
    """By doubling, without a mode: chains of ten slices, of twenty, and of slices of which two are on a rank."""

    def run(ranks: ThreadRanks) -> None:
        for split, case, mode in modes():
            if mode == "doubling":
                check(ranks, split, case)

    on_threads(10, run)


@pytest.mark.parametrize("size", [5, 8, 9])
def test_doubling_reaches_all_that_is_before_a_rank(size: int) -> None:
    case = GradientCase(lengths=(9 * size,), gates=0.01, options=RAW, **SMALL)
    on_threads(size, lambda ranks: check(ranks, SPLITS[0], case, "doubling"))


def test_doubling_sends_states_and_maps_of_what_lacks_the_sequence_s_beginning() -> None:
    """On five ranks at distance 1 rank 0 sends a state and ranks 1 to 3 maps, at 2 ranks 0 and 1 states and rank 2 a map, at 4
    rank 0 a state; backward the same from the end."""
    state, both = HEADS * DV * DK * 4, HEADS * (DV + DK) * DK * 4
    forward = [[state, state, state], [both, state, 0], [both, both, 0], [both, 0, 0], [0, 0, 0]]

    def run(ranks: ThreadRanks) -> None:
        context = parallel.context(ranks, [50], mode="doubling")
        x = {name: torch.ones(1, context.tokens, HEADS, n) for name, n in (("query", DK), ("key", DK), ("value", DV))}
        x["value"].requires_grad_()
        out, _ = parallel.chunked_forward(**x, beta=None, gate=None, context=context)
        out.sum().backward()
        assert ranks.exchanged == [*forward[ranks.rank], *forward[4 - ranks.rank]]

    on_threads(5, run)


@pytest.mark.parametrize("options", [{"gates": 1e-3}, {"gates": 0.1, "resets": True}, {"options": RAW}], ids=str)
@pytest.mark.parametrize(("lengths", "size"), [((512,), 4), ((192, 64, 384), 2), ((256, 256), 2)], ids=str)
def test_a_ring_has_the_bits_of_one_process(lengths: tuple[int, ...], size: int, options: dict[str, object]) -> None:
    """In fp32, with borders on multiples of 64 of each sequence. Other gradients read states that one process's backward
    computes anew."""
    case = GradientCase(lengths=lengths, **SMALL | options)
    x, grads = drawn(case, 0, torch.float32)
    wanted = results(lambda **given: gdn_cuda.chunked_forward(**given, deterministic=True), x, grads)

    def run(ranks: ThreadRanks) -> None:
        found, context = on_rank(ranks, SPLITS[0], case, x | {"deterministic": True}, grads, "ring")
        parts = expected(context, case, wanted)
        compare(found, parts, f"rank {ranks.rank}", 1e-5)
        for name in ("out", "last", "value", "state"):
            assert torch.equal(found[name], parts[name][0]), name

    on_threads(size, run)


@pytest.mark.parametrize(
    ("size", "lengths", "mode", "between"),
    [(2, [40], "gather", 0), (3, [30], "gather", 1), (3, [15, 15], "gather", 0), (9, [90], None, 7), (4, [40], "ring", 0)],
)
def test_maps_are_computed_only_between_the_first_and_the_last_rank_of_a_sequence(
    size: int, lengths: list[int], mode: str | None, between: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward; backward reads those of the forward."""
    calls = []

    def counted(*args: Any, **given: Any) -> Tensor:
        if given.get("transition", True):
            calls.append(1)
        return chunked_summary(*args, **given)

    monkeypatch.setattr(passes, "chunked_summary", counted)

    def run(ranks: ThreadRanks) -> None:
        context = parallel.context(ranks, lengths, mode=mode)
        x = torch.ones(1, context.tokens, HEADS, DK, requires_grad=True)
        out, _ = parallel.chunked_forward(x, x, x, None, None, context=context)
        out.sum().backward()

    on_threads(size, run)
    assert len(calls) == between
