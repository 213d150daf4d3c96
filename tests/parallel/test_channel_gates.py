"""`gdn_cuda.parallel` with a gate for every channel of the key (Kimi Delta Attention). Ranks are threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from channel_gradient_cases import ChannelCase
from gradient_cases import GradientCase
from module_cases_on_ranks import check_module
from parallel_cases import SMALL, SPLITS, Split, channel_cases, check_channels
from thread_ranks import on_threads, refused

from gdn_cuda import parallel

CASES = [*channel_cases()]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(("split", "case", "mode"), CASES, ids=[f"{split.name}-{case}-{mode}" for split, case, mode in CASES])
def test_ranks_have_the_results_and_gradients_of_one(split: Split, case: ChannelCase, mode: str | None, size: int) -> None:
    on_threads(size, lambda ranks: check_channels(ranks, split, case, mode))


def test_ten_ranks_have_the_results_of_one() -> None:
    """By doubling, without a mode."""
    case = ChannelCase(GradientCase(lengths=(100,), **SMALL), "init")
    on_threads(10, lambda ranks: check_channels(ranks, SPLITS[0], case))


@pytest.mark.parametrize("name", ["Kimi Delta Attention", "Kimi Delta Attention, bounded"])
@pytest.mark.parametrize("split", SPLITS[:3], ids=lambda split: split.name)
def test_a_layer_in_parts_is_the_layer(split: Split, name: str) -> None:
    for lengths, batch in (((40, 0, 2, 30), 1), ((50,), 2)):
        on_threads(3, lambda ranks, each=(lengths, batch): check_module(ranks, split, name, *each))


def rows(context: parallel.Context, **changes: Any) -> dict[str, Any]:
    x = {name: torch.ones(1, context.tokens, 2, n) for name, n in (("query", 8), ("key", 8), ("value", 6), ("gate", 8))}
    return x | {"beta": None, "context": context} | changes


def test_what_is_refused_before_a_collective() -> None:
    def gates(context: parallel.Context) -> None:
        parallel.chunked_forward(**rows(context, gate=torch.zeros(1, context.tokens, 2, 7)))

    refused(gates, "gate: expected (B, T, Hv, dk) = (1, 10, 2, 8), got (1, 10, 2, 7)")

    def bound(context: parallel.Context) -> None:
        parallel.chunked_forward(**rows(context, lower_bound=1.0))

    refused(bound, "lower_bound: expected a finite number below 0, or None, got 1")

    def bound_of_heads(context: parallel.Context) -> None:
        parallel.chunked_forward(**rows(context, gate=torch.zeros(1, context.tokens, 2), lower_bound=-1.0))

    refused(bound_of_heads, "lower_bound: expected None, as gate is (B, T, Hv), a gate for each head")
