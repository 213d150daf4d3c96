"""causal_conv1d_update on the GPU; large batches and pools, graphs and compiled calls, the C++ API."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import step_conv_api
import torch
from causal_step_on_device import *  # noqa: F403
from causal_step_on_device import EVERY_LAYOUT, STATE_LAYOUTS, clone, drawn
from devices import GPU
from step_conv_oracle import as_rows, check
from torch import Tensor

from gdn_cuda import causal_conv1d_update


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("batch", [1, 7, 600, 2500])
def test_batches(batch: int, rows: bool, seed: int) -> None:
    """One to many sequences per block, a partial last block, and sequences without state."""
    x = drawn(GPU, seed, batch=batch, channels=1032, rows=rows, io=torch.bfloat16)
    slots = torch.randperm(batch, generator=torch.Generator().manual_seed(seed))
    if batch > 60:
        slots[[0, 9, 31, 59, batch - 1]] = torch.tensor([-1, batch, -(2**63), 2**40, -7])
    check(x | {"conv_state_indices": slots.cuda()}, causal_conv1d_update)


@pytest.mark.parametrize("rows", [False, True])
def test_slot_offsets_are_64_bit(rows: bool, seed: int) -> None:
    gc.collect()
    torch.cuda.empty_cache()
    x = drawn(GPU, seed, batch=1, channels=8192, io=torch.bfloat16)
    memory = torch.empty(90000, 3, 8192, dtype=torch.bfloat16, device="cuda")  # the last slot is past 2^31 elements
    pool = memory.mT if rows else memory.view(90000, 8192, 3)
    pool[89999] = x["conv_state"][0]
    far = x | {"conv_state": pool, "conv_state_indices": torch.tensor([89999], device="cuda")}
    assert torch.equal(causal_conv1d_update(**far), causal_conv1d_update(**x))
    assert torch.equal(pool[89999], x["conv_state"][0])


@EVERY_LAYOUT
def test_a_replayed_graph_reads_current_values(layout: dict[str, Any], seed: int) -> None:
    """Slots, offsets and accepted tokens of each replay: a padded batch of verify, as engines capture it."""
    x = drawn(GPU, seed, batch=12, columns=9, slots=12, **layout) | {"null_slot": 0}
    x["out"] = torch.empty_like(x["x"])
    for name, dtype in (("conv_state_indices", torch.int32), ("num_accepted_tokens", torch.int32), ("cu_seqlens", torch.int32)):
        x[name] = torch.zeros(5 if name == "cu_seqlens" else 4, dtype=dtype, device="cuda")
    causal_conv1d_update(**x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        causal_conv1d_update(**x)
    for slots, accepted, offsets in (
        ([1, 2, 3, 4], [1, 1, 1, 1], [0, 1, 2, 3, 4]),
        ([11, 0, 5, 4], [1, 2, 3, 1], [0, 3, 3, 6, 12]),
        ([7, 8, 0, 0], [2, 1, 1, 1], [0, 2, 5, 5, 5]),
    ):
        for name, values in (("conv_state_indices", slots), ("num_accepted_tokens", accepted), ("cu_seqlens", offsets)):
            x[name].copy_(torch.tensor(values))
        eager = clone(x)
        expected = causal_conv1d_update(**eager)
        x["out"].fill_(float("nan"))
        graph.replay()
        assert torch.equal(x["out"], expected) and torch.equal(x["conv_state"], eager["conv_state"])


def test_a_call_allocates_nothing_but_the_output(seed: int) -> None:
    for _, layout in STATE_LAYOUTS:
        x = drawn(GPU, seed, tokens=2, **layout)
        x["out"] = torch.empty_like(x["x"])
        causal_conv1d_update(**x)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        causal_conv1d_update(**x)
        assert torch.cuda.max_memory_allocated() == before


def test_a_step_compiled_by_torch_equals_the_eager_one(seed: int) -> None:
    x = drawn(GPU, seed, tokens=2)
    x["x"] = as_rows(x["x"])
    eager = clone(x)
    expected = causal_conv1d_update(**eager)

    @torch.compile(fullgraph=True)
    def step(**tensors: Any) -> Tensor:
        return causal_conv1d_update(**tensors) * 2

    assert torch.equal(step(**x), expected * 2) and torch.equal(x["conv_state"], eager["conv_state"])


@pytest.mark.parametrize("argument", ["conv_state", "weight", "bias"])
def test_an_argument_on_another_device_is_refused(argument: str, seed: int) -> None:
    x = drawn(GPU, seed)
    x[argument] = x[argument].cpu()
    with pytest.raises(ValueError, match=r"causal_conv1d_update: \w+: expected "):
        causal_conv1d_update(**x)


def test_the_cpp_api(seed: int, tmp_path: Any) -> None:
    step_conv_api.check(step_conv_api.load(tmp_path), "cuda", seed)
