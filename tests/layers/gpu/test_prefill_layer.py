"""gdn_prefill_layer on the GPU: prompts against the same call on the CPU, tokens after them, and CUDA graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import gdn_decode_layer, gdn_prefill_layer
from gdn_cuda.layers.decode_layer import layer_arguments

POOLS = ("conv_pool", "state_pool")
PER_TOKEN = ("qkvz", "ba", "z", "a")


def prompts(seed: int, tokens: int, layout: str, dk: int, dv: int, state: torch.dtype) -> dict[str, Any]:
    x = layer_arguments(1, 1, seed, layout, (2, 4), dk, dv, slots=6, state=state)
    generator = torch.Generator().manual_seed(seed)
    for name in PER_TOKEN:
        if name in x:
            x[name] = torch.randn(1, tokens, x[name].shape[2], generator=generator).to(x[name].dtype)
    return x


def moved(x: dict[str, Any]) -> dict[str, Any]:
    return {name: y.cuda() if isinstance(y, Tensor) else y for name, y in x.items()}


@pytest.mark.parametrize("layout", ["qwen3_next", "qwen3_5", "split"])
@pytest.mark.parametrize("dk,dv", [(64, 64), (128, 128), (96, 192)])
def test_packed_prompts(dk: int, dv: int, layout: str, seed: int) -> None:
    lengths = [100, 0, 1, 3, 200, 0]
    x = prompts(seed, sum(lengths) + 2, layout, dk, dv, torch.float32)
    x["state_indices"] = torch.tensor([4, 1, 2, -1, 0, 3])
    x |= {
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0),
        "has_initial_state": torch.tensor([True, True, False, True, False, False]),
    }
    on_gpu = moved(x)
    for name in POOLS:
        on_gpu[name][[2, 0, 3]] = torch.nan
    expected, found = gdn_prefill_layer(**x), gdn_prefill_layer(**on_gpu)
    assert rel_rms(found, expected.double()) < 1e-2
    assert torch.equal(on_gpu["conv_pool"].cpu(), x["conv_pool"])
    assert rel_rms(on_gpu["state_pool"], x["state_pool"].double()) < 1e-2


def test_prompts_without_tokens(seed: int) -> None:
    x = moved(prompts(seed, 0, "qwen3_next", 128, 128, torch.float32))
    x |= {"state_indices": torch.tensor([3, 0, 4], device="cuda"), "cu_seqlens": torch.zeros(4, dtype=torch.int32).cuda()}
    before = {name: x[name].clone() for name in POOLS}
    gdn_prefill_layer(**x, has_initial_state=torch.tensor([False, True, False], device="cuda"))
    for name, pool in before.items():
        assert not x[name][[3, 4]].any() and torch.equal(x[name][:3], pool[:3]), name


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
def test_tokens_after_prompts(state: torch.dtype, seed: int) -> None:
    x = prompts(seed, 80, "qwen3_5", 128, 128, state) | {"state_indices": torch.tensor([3])}
    on_gpu, found, expected = moved(x), [], []
    for first, last in ((0, 70), (70, 71), (71, 80)):
        layer = gdn_prefill_layer if first == 0 else gdn_decode_layer
        expected.append(layer(**x | {name: x[name][:, first:last] for name in PER_TOKEN if name in x}))
        found.append(layer(**on_gpu | {name: on_gpu[name][:, first:last] for name in PER_TOKEN if name in x}))
    assert rel_rms(torch.cat(found, 1), torch.cat(expected, 1).double()) < 1e-2


def test_graphs_of_prompts(seed: int) -> None:
    x = moved(prompts(seed, 90, "qwen3_next", 128, 128, torch.float32))
    x |= {
        "state_indices": torch.tensor([1, 2], device="cuda"),
        "null_slot": 0,
        "cu_seqlens": torch.tensor([0, 30, 90], device="cuda"),
    }
    x["has_initial_state"] = torch.tensor([False, True], device="cuda")
    first = {name: x[name].clone() for name in POOLS}
    gdn_prefill_layer(**x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = gdn_prefill_layer(**x)
    for slots, offsets in (([2, 5], [0, 64, 90]), ([3, 0], [0, 1, 80])):
        for name in POOLS:
            x[name].copy_(first[name])
        x["state_indices"].copy_(torch.tensor(slots))
        x["cu_seqlens"].copy_(torch.tensor(offsets))
        pools = {name: y.clone() for name, y in first.items()}
        expected = gdn_prefill_layer(**x | pools)
        graph.replay()
        assert torch.equal(out, expected) and all(torch.equal(x[name], pools[name]) for name in POOLS)
