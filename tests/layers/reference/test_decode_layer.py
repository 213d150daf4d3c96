"""gdn_decode_layer on CPU tensors against its definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layer_oracle import check

from gdn_cuda import gdn_decode_layer
from gdn_cuda.layers.decode_layer import by_operators, layer_arguments
from gdn_cuda.operators import examples

CASES = [case for name, case in examples.load().items() if name.startswith("gdn_decode_layer")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("B,T", [(3, 4), (1, 1), (2, 0), (0, 2), (2, 16)])
def test_examples(case: Any, B: int, T: int, seed: int) -> None:
    check(case.make(B, T, seed), gdn_decode_layer)


@pytest.mark.parametrize("layout", ["qwen3_next", "qwen3_5", "split"])
@pytest.mark.parametrize("heads", [(1, 1), (2, 6), (3, 3)])
def test_layouts_and_heads(heads: tuple[int, int], layout: str, seed: int) -> None:
    check(layer_arguments(2, 3, seed, layout, heads, 96, 24, io=torch.float16), gdn_decode_layer)


@pytest.mark.parametrize("layout", ["qwen3_next", "qwen3_5", "split"])
@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
def test_equals_the_sequence_of_operators(layout: str, state: torch.dtype, seed: int) -> None:
    slots = torch.tensor([[5, 1, 4], [-1, 2, 3], [7, 6, 0], [3, -1, 2]], dtype=torch.int32)
    for T, indices in ((1, slots[:, 0].contiguous()), (3, slots[:, 0].contiguous()), (3, slots)):
        more = {"state_indices": indices, "null_slot": 0}
        if indices.dim() == 2:
            more["num_accepted_tokens"] = torch.tensor([3, 1, 2, 1])
        x = layer_arguments(4, T, seed, layout, slots=8, columns=T + 2, state=state) | more
        copies = {name: x[name].clone(memory_format=torch.preserve_format) for name in ("conv_pool", "state_pool")}
        found, expected = gdn_decode_layer(**x), by_operators(**x | copies)
        assert torch.equal(x["conv_pool"], copies["conv_pool"])
        torch.testing.assert_close(found, expected, rtol=2**-6, atol=2**-9)
        torch.testing.assert_close(x["state_pool"], copies["state_pool"], rtol=2**-7, atol=1e-6)
