"""kda_prefill_layer on the GPU: prompts against the same call on the CPU, tokens after them, and CUDA graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import rel_rms
from kda_prompts import PER_TOKEN, POOLS, prompts
from torch import Tensor

from gdn_cuda import kda_decode_layer, kda_prefill_layer


def moved(x: dict[str, Any]) -> dict[str, Any]:
    return {name: y.cuda() if isinstance(y, Tensor) else y for name, y in x.items()}


@pytest.mark.parametrize("lower_bound", [None, -5.0])
@pytest.mark.parametrize("dk, dv", [(64, 64), (128, 128), (96, 192)])
def test_packed_prompts_and_the_tokens_after_them(dk: int, dv: int, lower_bound: float | None, seed: int) -> None:
    lengths = [100, 0, 1, 3, 200]
    x = prompts(seed, sum(lengths) + 2, heads=(2, 4), dk=dk, dv=dv)
    x |= {
        "lower_bound": lower_bound,
        "state_indices": torch.tensor([4, 1, 2, -1, 0]),
    }
    packed = {
        "key_heads": 2,
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0),
        "has_initial_state": torch.tensor([True, True, False, True, False]),
    }
    on_gpu = moved(x)
    for name in POOLS:
        on_gpu[name][[2, 0]] = torch.nan
    expected, found = kda_prefill_layer(**x, **packed), kda_prefill_layer(**on_gpu, **moved(packed))
    assert rel_rms(found, expected.double()) < 1e-2
    steps = [{name: y[name][0, :5].contiguous() for name in PER_TOKEN} for y in (x, on_gpu)]
    expected, found = kda_decode_layer(**x | steps[0]), kda_decode_layer(**on_gpu | steps[1])
    assert rel_rms(found, expected.double()) < 1e-2
    assert torch.equal(on_gpu["conv_pool"].cpu(), x["conv_pool"])
    assert rel_rms(on_gpu["state_pool"], x["state_pool"].double()) < 1e-2


def test_a_graph(seed: int) -> None:
    x = moved(prompts(seed, 70, heads=(4, 4), dk=128, dv=128) | {"state_indices": torch.tensor([3]), "lower_bound": -5.0})
    first = {name: x[name].clone(memory_format=torch.preserve_format) for name in POOLS}
    expected = kda_prefill_layer(**x | first, key_heads=4)  # loads the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kda_prefill_layer(**x, key_heads=4)
    graph.replay()
    assert torch.equal(out, expected) and all(torch.equal(x[name], first[name]) for name in POOLS)
