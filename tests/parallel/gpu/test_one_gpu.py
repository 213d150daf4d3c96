"""`gdn_cuda.parallel` with several parts on one GPU."""

from __future__ import annotations

import parts_on_gpu as parts
import pytest
import ssd_parts_on_gpu as ssd
import torch
from channel_gradient_cases import ChannelCase
from gradient_cases import GradientCase
from module_cases_on_ranks import BY_SCANS
from parallel_cases import SPLITS, Split
from thread_ranks import on_threads

# torch loads its solvers at their first use, and fails where two threads are the first.
torch.linalg.solve_triangular(*torch.eye(2, device="cuda").expand(2, 2, 2), upper=False)

SPLIT = pytest.mark.parametrize("split", SPLITS[:4], ids=lambda split: split.name)


@pytest.mark.parametrize("case", [*parts.CASES, *parts.CHANNEL_CASES], ids=str)
@SPLIT
def test_parts_have_the_errors_of_the_whole(split: Split, case: GradientCase | ChannelCase, seed: int) -> None:
    call = parts.call_of(case, seed)
    for size in (2, 3, 4):
        on_threads(size, lambda ranks: parts.check_errors(ranks, split, call))


@pytest.mark.parametrize("case", [parts.CASES[1], parts.CHANNEL_CASES[0]], ids=str)
@SPLIT
def test_two_runs_have_the_same_bits(split: Split, case: GradientCase | ChannelCase, seed: int) -> None:
    call = parts.call_of(case, seed)
    on_threads(3, lambda ranks: parts.check_bits(ranks, split, call))


@SPLIT
def test_a_layer_in_parts_is_the_layer(split: Split, seed: int) -> None:
    on_threads(3, lambda ranks: parts.check_layer(ranks, split, seed))


@pytest.mark.parametrize("case", ssd.CASES, ids=str)
@SPLIT
def test_parts_of_mamba_2_have_the_errors_of_the_whole(split: Split, case: ssd.Case, seed: int) -> None:
    call = ssd.call_of(case, seed)
    for size in (2, 3, 4):
        on_threads(size, lambda ranks: ssd.check_ssd_errors(ranks, split, call))
    on_threads(3, lambda ranks: ssd.check_ssd_bits(ranks, split, call))


@pytest.mark.parametrize("mode", ["doubling", "ring"])
@SPLIT
def test_other_modes_have_the_errors_of_the_whole(split: Split, mode: str, seed: int) -> None:
    call = parts.call_of(parts.CASES[3], seed)
    on_threads(4, lambda ranks: parts.check_errors(ranks, split, call, mode))


@pytest.mark.parametrize("name", parts.MODULES)
def test_a_module_in_parts_is_the_module(name: str) -> None:
    for split in SPLITS[:3]:
        on_threads(3, lambda ranks, split=split: parts.check_module(ranks, split, name))


@pytest.mark.parametrize("name", [name for name in parts.MODULES if name.startswith(BY_SCANS)])
def test_groups_of_channels_in_parts_are_the_module(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts.split_channels_of_small_calls(monkeypatch)
    for split in SPLITS[:3]:
        on_threads(3, lambda ranks, split=split: parts.check_module(ranks, split, name))
