"""mamba2_decode_layer on the GPU: its definition, sizes of models, large pools, graphs and compiled calls."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from mamba2_layer_on_device import *  # noqa: F403
from mamba2_oracle import check, draws
from torch import Tensor

from gdn_cuda import mamba2_decode_layer
from gdn_cuda.layers.mamba2_decode_layer import by_operators

POOLS = ("conv_pool", "state_pool")


def copied(x: dict[str, Any]) -> dict[str, Any]:
    return x | {name: x[name].clone(memory_format=torch.preserve_format) for name in POOLS}


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "heads, dim, N, groups", [(128, 64, 128, 8), (64, 64, 128, 1), (24, 80, 128, 8), (32, 128, 256, 2), (112, 64, 64, 2)]
)
def test_models(heads: int, dim: int, N: int, groups: int, state: torch.dtype, seed: int) -> None:
    """From a few blocks to many, in clusters of 8 and alone."""
    for batch in (1, 9, 130):
        x = draws(seed, batch=batch, heads=heads, dim=dim, groups=groups, N=N, slots=batch + 3, state=state, device="cuda")
        y = copied(x)
        out = mamba2_decode_layer(**x)
        assert torch.equal(out, by_operators(**y))
        assert all(torch.equal(x[name], y[name]) for name in POOLS)
        if batch == 1:
            check(copied(y), mamba2_decode_layer)


def test_many_steps_in_place(seed: int) -> None:
    """Blocks that read the shared state of B and C while others write it would differ from run to run."""
    x = draws(seed, batch=64, heads=64, dim=64, groups=1, N=128, slots=64, device="cuda")
    y = copied(x)
    for _ in range(50):
        assert torch.equal(mamba2_decode_layer(**x), by_operators(**y))
    assert all(torch.equal(x[name], y[name]) for name in POOLS)


def test_slot_offsets_are_64_bit(seed: int) -> None:
    gc.collect()
    torch.cuda.empty_cache()
    x = draws(seed, batch=1, heads=64, dim=64, groups=8, N=128, slots=1, state=torch.bfloat16, device="cuda")
    x["state_indices"] = torch.tensor([0], device="cuda")
    pool = torch.empty(4200, 64, 64, 128, dtype=torch.bfloat16, device="cuda")  # the last slot is past 2^31 elements
    conv = x["conv_pool"].new_zeros(4200, *x["conv_pool"].mT.shape[1:]).mT
    pool[-1], conv[-1] = x["state_pool"][0], x["conv_pool"][0]
    far = x | {"state_pool": pool, "conv_pool": conv, "state_indices": torch.tensor([4199], device="cuda")}
    assert torch.equal(mamba2_decode_layer(**far), mamba2_decode_layer(**x))
    assert torch.equal(pool[-1], x["state_pool"][0]) and torch.equal(conv[-1], x["conv_pool"][0])


def test_a_replayed_graph_reads_the_current_slots(seed: int) -> None:
    x = draws(seed, batch=4, slots=12, device="cuda")
    x |= {"state_indices": torch.full((4,), -1, device="cuda"), "out": torch.empty(4, 32, dtype=torch.bfloat16, device="cuda")}
    mamba2_decode_layer(**x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mamba2_decode_layer(**x)
    for slots in ([0, 1, 2, 3], [11, -1, 5, 4], [3, 2, 1, 0]):
        x["state_indices"].copy_(torch.tensor(slots))
        eager = copied(x) | {"out": torch.empty_like(x["out"])}
        expected = mamba2_decode_layer(**eager)
        x["out"].fill_(float("nan"))
        graph.replay()
        assert torch.equal(x["out"], expected) and all(torch.equal(x[name], eager[name]) for name in POOLS)


def test_compiled(seed: int) -> None:
    x = draws(seed, device="cuda")
    eager = copied(x)
    expected = mamba2_decode_layer(**eager)

    @torch.compile(fullgraph=True)
    def step(**tensors: Any) -> Tensor:
        return mamba2_decode_layer(**tensors) * 2

    assert torch.equal(step(**x), expected * 2) and torch.equal(x["state_pool"], eager["state_pool"])
