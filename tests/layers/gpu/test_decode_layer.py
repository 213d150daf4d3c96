"""gdn_decode_layer on the GPU against its definition in fp64, and against the operators that it fuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from layer_oracle import HOSTILE, check
from torch import Tensor

from gdn_cuda import gdn_decode_layer
from gdn_cuda.layers.decode_layer import by_operators, layer_arguments

POOLS = ("conv_pool", "state_pool")


def on_gpu(x: dict[str, Any]) -> dict[str, Any]:
    """Copies in GPU memory, with the same strides."""
    moved = {}
    for name, y in x.items():
        moved[name] = y
        if isinstance(y, Tensor):
            extent = 1 + sum((size - 1) * stride for size, stride in zip(y.shape, y.stride(), strict=True)) if y.numel() else 0
            moved[name] = torch.zeros(extent, dtype=y.dtype, device="cuda").as_strided(y.shape, y.stride()).copy_(y)
    return moved


def copied(x: dict[str, Any]) -> dict[str, Any]:
    return {name: x[name].clone(memory_format=torch.preserve_format) for name in POOLS}


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dk,dv", [(64, 64), (128, 128), (96, 192), (192, 96), (256, 256), (64, 8), (128, 40)])
@pytest.mark.parametrize("T", [1, 3, 5])
def test_head_dimensions(T: int, dk: int, dv: int, state: torch.dtype, seed: int) -> None:
    check(on_gpu(layer_arguments(2, T, seed, "qwen3_next", (1, 2), dk, dv, state=state)), gdn_decode_layer)


@pytest.mark.parametrize("io", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["qwen3_next", "qwen3_5", "split"])
@pytest.mark.parametrize("heads", [(1, 1), (2, 6), (1, 9), (1, 17)])
def test_layouts_and_heads(heads: tuple[int, int], layout: str, io: torch.dtype, seed: int) -> None:
    for T in (1, 2):
        check(on_gpu(layer_arguments(2, T, seed, layout, heads, 64, 72, io=io)), gdn_decode_layer)


@pytest.mark.parametrize("T", [1, 2, 4, 16])
def test_verify(T: int, seed: int) -> None:
    B = 9
    slots = torch.randperm(B * T + 3)[: B * T].view(B, T)
    slots[1, T - 1] = -1
    slots[2] = 4
    slots[3, 0] = -(2**63)
    slots[4, 0], slots[5, T - 1] = 2**32, 2**31 - 1
    accepted = torch.tensor([1, T, -5, 2, T, T, 2**40, T // 2, -(2**63)])
    more = {"state_indices": slots, "num_accepted_tokens": accepted, "null_slot": 4}
    for columns in (T + 2, T + 5):
        check(on_gpu(layer_arguments(B, T, seed, slots=B * T + 3, columns=columns) | more), gdn_decode_layer)
    del more["num_accepted_tokens"]
    x = layer_arguments(B, T, seed, "qwen3_5", slots=B * T + 3, columns=T + 2, state=torch.bfloat16)
    check(on_gpu(x | more), gdn_decode_layer)


def test_step_states(seed: int) -> None:
    B, T = 5, 3
    for rows in ([4, 0, -1, 2**40, 2], [0, 1, 2, 3, 4]):
        x = layer_arguments(B, T, seed, "split")
        x["step_states"] = torch.randn(5, T + 1, 2, 8, 64)
        x["step_conv"] = torch.randn(5, T + 1, 3, x["conv_weight"].shape[0]).mT
        x["step_slots"] = torch.tensor(rows)
        check(on_gpu(x), gdn_decode_layer)


def test_invalid_slots(seed: int) -> None:
    for T in (1, 4):
        for index in (torch.int64, torch.int32):
            slots = torch.tensor(HOSTILE).clamp(torch.iinfo(index).min, torch.iinfo(index).max).to(index)
            check(on_gpu(layer_arguments(5, T, seed, slots=6) | {"state_indices": slots}), gdn_decode_layer)


@pytest.mark.parametrize("conv_state", [torch.float32, torch.float16])
def test_pools_and_weights_of_any_strides(conv_state: torch.dtype, seed: int) -> None:
    for T in (1, 3):
        x = layer_arguments(3, T, seed, "qwen3_5", columns=4, conv_state=conv_state)
        x["conv_pool"] = x["conv_pool"].contiguous()
        x["conv_weight"] = x["conv_weight"].float().T.contiguous().T
        x["conv_bias"] = None
        x["norm_weight"] = x["norm_weight"].float().repeat_interleave(2)[::2]
        x["ba"] = x["ba"].float().repeat_interleave(3, -1)[..., ::3]
        x["qkvz"] = torch.randn(3, T, x["qkvz"].shape[2] + 5).bfloat16()[..., 5:]
        x["state_indices"] = torch.tensor([3, 0, 1])
        check(on_gpu(x), gdn_decode_layer)


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("B,T", [(1, 1), (64, 1), (300, 1), (2, 4), (64, 4)])
def test_states_are_bitwise_those_of_the_operators(B: int, T: int, state: torch.dtype, seed: int) -> None:
    x = layer_arguments(B, T, seed, "qwen3_next", (4, 8), 128, 128, columns=T + 2, slots=B * T, state=state)
    if T > 1:
        accepted = torch.arange(B) % (T + 1)
        x |= {"state_indices": torch.randperm(B * T).view(B, T), "num_accepted_tokens": accepted}
    x = on_gpu(x)
    pools = copied(x)
    expected, out = by_operators(**x | pools), gdn_decode_layer(**x)
    assert torch.equal(x["state_pool"], pools["state_pool"]) and torch.equal(x["conv_pool"], pools["conv_pool"])
    torch.testing.assert_close(out, expected, rtol=2**-6, atol=2**-9)


@pytest.mark.parametrize("call", [gdn_decode_layer, by_operators])
@pytest.mark.parametrize("B,T", [(1, 1), (64, 1), (2, 4), (64, 4)])
def test_consecutive_steps_wait_for_each_other(B: int, T: int, call: Callable[..., Tensor], seed: int) -> None:
    """Each launch may start before the previous one has ended."""
    x = layer_arguments(B, T, seed, "qwen3_next", (8, 16), 128, 128, columns=T + 2, slots=B * T)
    if T > 1:
        x |= {"state_indices": torch.randperm(B * T).view(B, T), "num_accepted_tokens": torch.arange(B) % (T + 1)}
    x = on_gpu(x)

    def steps(between: Callable[[], None]) -> list[Tensor]:
        pools, outs = copied(x), []
        for _ in range(30):
            outs.append(call(**x | pools))
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
    x = on_gpu(layer_arguments(70, 1, seed, heads=(2, 4), dk=128, dv=128))
    alone, pools = x | copied(x), copied(x)
    out = gdn_decode_layer(**x | pools)
    for n in (0, 37, 69):
        one = {"qkvz": x["qkvz"][n : n + 1], "ba": x["ba"][n : n + 1], "state_indices": torch.tensor([n], device="cuda")}
        assert torch.equal(gdn_decode_layer(**alone | one), out[n : n + 1])
        assert all(torch.equal(alone[name][n], pools[name][n]) for name in POOLS)


def test_graphs_with_other_slots(seed: int) -> None:
    x = on_gpu(layer_arguments(4, 1, seed, slots=9) | {"state_indices": torch.arange(4, dtype=torch.int32), "null_slot": 8})
    first = copied(x)
    out = torch.empty(4, 1, 16, dtype=torch.bfloat16, device="cuda")
    gdn_decode_layer(**x | copied(x))  # loads the kernel
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gdn_decode_layer(**x, out=out)
    for slots in ([5, 8, 0, -1], [3, 2, 7, 1]):
        for name in POOLS:
            x[name].copy_(first[name])
        x["state_indices"].copy_(torch.tensor(slots))
        expected = gdn_decode_layer(**x | (pools := {name: y.clone() for name, y in first.items()}))
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, expected) and all(torch.equal(x[name], pools[name]) for name in POOLS)


def test_pools_beyond_2_to_the_31_elements(seed: int) -> None:
    """Slots whose offsets need 64 bits, in views of one large buffer."""
    x = layer_arguments(2, 1, seed, "qwen3_5", heads=(1, 1), dv=64, slots=3)
    free, stride = torch.cuda.mem_get_info()[0], 2**31 + 64
    if free < 3 * 4 * stride * 2:
        pytest.skip("expected 52 GB of free GPU memory")
    x = on_gpu(x)
    wide = torch.empty(2 * stride + 64 * 64, dtype=torch.float32, device="cuda").as_strided(
        (3, 1, 64, 64), (stride, 4096, 64, 1)
    )
    columns = torch.empty(2 * stride + 3 * 192, dtype=torch.bfloat16, device="cuda").as_strided((3, 192, 3), (stride, 1, 192))
    x["state_pool"], x["conv_pool"] = wide.copy_(x["state_pool"]), columns.copy_(x["conv_pool"])
    x["state_indices"] = torch.tensor([2, 0], device="cuda")
    pools = {name: x[name].contiguous() for name in POOLS}
    expected = gdn_decode_layer(**x | pools)
    assert torch.equal(gdn_decode_layer(**x), expected)
    assert all(torch.equal(x[name], pools[name]) for name in POOLS)
