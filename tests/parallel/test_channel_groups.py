"""Scans of long slices, whose channels go through the ranks in groups. Ranks are threads, groups a channel or two."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from layer_cases_on_ranks import drawn
from module_cases_on_ranks import BY_SCANS, check_module, modules
from thread_ranks import ThreadRanks, on_threads
from torch import Tensor

from gdn_cuda import parallel
from gdn_cuda.parallel import chained
from gdn_cuda.parallel.scans import rglru_scan


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The numbers of groups of the calls."""
    found: list[int] = []
    original = chained.ChainedScan._in_groups

    def counted(scan: chained.ChainedScan, scans: list[chained.ChainedScan]) -> tuple[Tensor, Tensor]:
        found.append(len(scans))
        return original(scan, scans)

    monkeypatch.setattr(chained, "LEAST_CHANNELS", 1)
    monkeypatch.setattr(chained, "LEAST_ELEMENTS", 0)
    monkeypatch.setattr(chained.ChainedScan, "_in_groups", counted)
    yield found


@pytest.mark.parametrize("size", [2, 3])
def test_results_and_gradients_of_one_process(size: int, groups: list[int]) -> None:
    def run(ranks: ThreadRanks) -> None:
        for split, name, lengths, batch in modules():
            if name.startswith(BY_SCANS):
                check_module(ranks, split, name, lengths, batch)

    on_threads(size, run)
    assert {2, 4} <= set(groups)


def test_no_scan_is_computed_twice(groups: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step gathers a state of each rank's group; maps would take two more scans on the second of three ranks."""
    calls: list[int] = []
    original = chained.ChainedScan._at_once
    monkeypatch.setattr(chained.ChainedScan, "_at_once", lambda scan: calls.append(1) or original(scan))
    x, A = drawn(1, 4, 60, seed=0), torch.sigmoid(drawn(4, 1, seed=1))

    def run(ranks: ThreadRanks) -> list[int]:
        context = parallel.context(ranks, [60])
        mine = parallel.shard(x, context, 2)
        rglru_scan(mine, mine.abs(), A, context=context, first_multiplier=False)
        return ranks.gathered[-5:]

    found, _ = on_threads(3, run)
    assert not calls and groups == [4, 4, 4]
    assert all(len(set(each)) == 1 and each[0] > 0 for each in found)  # 4 groups + 3 ranks - 2 gathers
    assert torch.is_grad_enabled()


def test_short_slices_and_few_channels_are_not_split(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("expected maps")

    monkeypatch.setattr(chained.ChainedScan, "_in_groups", refused)

    def run(ranks: ThreadRanks) -> None:
        split, name, lengths, batch = next(each for each in modules() if each[1].startswith(BY_SCANS))
        check_module(ranks, split, name, lengths, batch)

    on_threads(2, run)
