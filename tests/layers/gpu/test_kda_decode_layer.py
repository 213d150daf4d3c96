"""kda_decode_layer on the GPU: its definition, sizes of models, large pools, graphs and compiled calls."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from devices import GPU
from kda_layer_on_device import *  # noqa: F403
from kda_layer_on_device import check, copied, moved
from torch import Tensor

from gdn_cuda import kda_decode_layer
from gdn_cuda.layers.kda_decode_layer import by_operators, layer_arguments


def draws(seed: int, batch: int, heads: int = 4, slots: int = 0, **more: Any) -> dict[str, Any]:
    x = layer_arguments(batch, seed, (heads, heads), 128, 128, slots=slots or batch + 1, **more)
    return moved(x | {"lower_bound": -5.0, "state_indices": torch.randperm(slots or batch + 1)[:batch]}, GPU)


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [12, 24, 32, 96])
def test_models(heads: int, state: torch.dtype, seed: int) -> None:
    """From a few blocks to many, in clusters and alone; with the contract's fp32 weights and pages too."""
    for batch in (1, 9, 65):
        x = draws(seed, batch, heads, state=state)
        for change in ({}, {"conv_weight": x["conv_weight"].float(), "lower_bound": None}):
            mine, y = x | change | copied(x), x | change | copied(x)
            out, expected = kda_decode_layer(**mine), by_operators(**y)
            torch.testing.assert_close(out, expected, rtol=2**-6, atol=2**-9)
            assert all(torch.equal(mine[name], y[name]) for name in copied(x))
        if batch == 1:
            check(x | copied(x), kda_decode_layer)


@pytest.mark.parametrize("separate", [False, True])
def test_many_steps_in_place(separate: bool, seed: int) -> None:
    """Blocks that read the shared state of query and key while others write it would differ from run to run."""
    x = layer_arguments(16, seed, (2, 8), 128, 128, slots=16, separate=separate) | {"lower_bound": -5.0}
    x = moved(x, GPU)
    y = x | copied(x)
    for _ in range(50):
        kda_decode_layer(**x), by_operators(**y)
    assert all(torch.equal(x[name], y[name]) for name in copied(x))


@pytest.mark.parametrize("batch", [1, 64])
def test_consecutive_steps_wait_for_each_other(batch: int, seed: int) -> None:
    """Each launch may start before the previous one has ended."""
    x = draws(seed, batch, 16)

    def steps(between: Callable[[], None]) -> list[Tensor]:
        pools, outs = copied(x), []
        for _ in range(30):
            outs.append(kda_decode_layer(**x | pools))
            between()
        return [*outs, *pools.values()]

    expected = steps(torch.cuda.synchronize)
    in_stream, graph = steps(lambda: None), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        in_graph = steps(lambda: None)
    graph.replay()
    for results in (in_stream, in_graph):
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(results, expected, strict=True))


def test_results_are_bitwise_independent_of_the_batch(seed: int) -> None:
    x = draws(seed, 70)
    alone, pools = x | copied(x), copied(x)
    out = kda_decode_layer(**x | pools)
    for n in (0, 37, 69):
        one = {name: x[name][n : n + 1] for name in ("qkv", "a", "b", "z", "state_indices")}
        assert torch.equal(kda_decode_layer(**alone | one), out[n : n + 1])
        assert all(
            torch.equal(alone[name][int(one["state_indices"])], pools[name][int(one["state_indices"])]) for name in pools
        )


def test_slot_offsets_are_64_bit(seed: int) -> None:
    gc.collect()
    torch.cuda.empty_cache()
    x = draws(seed, 1, 32, slots=1, state=torch.bfloat16)
    pool = torch.empty(4200, 32, 128, 128, dtype=torch.bfloat16, device="cuda")  # the last slot is past 2^31 elements
    conv = x["conv_pool"].new_zeros(4200, *x["conv_pool"].mT.shape[1:]).mT
    pool[-1], conv[-1] = x["state_pool"][0], x["conv_pool"][0]
    far = x | {"state_pool": pool, "conv_pool": conv, "state_indices": torch.tensor([4199], device="cuda")}
    assert torch.equal(kda_decode_layer(**far), kda_decode_layer(**x))
    assert torch.equal(pool[-1], x["state_pool"][0]) and torch.equal(conv[-1], x["conv_pool"][0])


def test_a_replayed_graph_reads_the_current_slots(seed: int) -> None:
    x = draws(seed, 4, slots=12)
    x |= {"state_indices": torch.full((4,), -1, device="cuda"), "out": torch.empty(4, 512, dtype=torch.bfloat16, device="cuda")}
    kda_decode_layer(**x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kda_decode_layer(**x)
    for slots in ([0, 1, 2, 3], [11, -1, 5, 4], [3, 2, 1, 0]):
        x["state_indices"].copy_(torch.tensor(slots))
        eager = x | copied(x) | {"out": torch.empty_like(x["out"])}
        expected = kda_decode_layer(**eager)
        x["out"].fill_(float("nan"))
        graph.replay()
        assert torch.equal(x["out"], expected) and all(torch.equal(x[name], eager[name]) for name in copied(x))


def test_compiled(seed: int) -> None:
    x = draws(seed, 3)
    eager = x | copied(x)
    expected = kda_decode_layer(**eager)

    @torch.compile(fullgraph=True)
    def step(**tensors: Any) -> Tensor:
        return kda_decode_layer(**tensors) * 2

    assert torch.equal(step(**x), expected * 2) and torch.equal(x["state_pool"], eager["state_pool"])
