"""layers/decode_layer in the emulator against the layer's definition in fp64."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from emulated import emulated
from layer_oracle import HOSTILE, check
from torch import Tensor

from gdn_cuda import gdn_decode_layer
from gdn_cuda.layers.decode_layer import by_operators, layer_arguments

# Devices for which the heuristic divides each value head of three sequences into so many parts; 0: without clusters.
DEVICES = {4: {"multiprocessors": 132}, 2: {"multiprocessors": 3}, 1: {"multiprocessors": 1}, 0: {"capability": 89}}


def layer(parts: int = 4, **x: Any) -> Tensor:
    with emulated(**DEVICES[parts]) as launched:
        out = gdn_decode_layer(**x)
    assert x["qkvz"].numel() == 0 or [name.partition("{")[0] for name in launched()] == ["layers/decode_layer"], launched()
    return out


@pytest.mark.parametrize("io", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dk,dv", [(64, 64), (128, 128), (96, 192), (192, 96), (256, 256)])
@pytest.mark.parametrize("parts", DEVICES)
def test_head_dimensions(parts: int, dk: int, dv: int, state: torch.dtype, io: torch.dtype, seed: int) -> None:
    for T in (1, 3, 5):
        x = layer_arguments(3, T, seed, "qwen3_next", (1, 2), dk, dv, io=io, state=state)
        check(x, functools.partial(layer, parts))


@pytest.mark.parametrize("dk,dv,heads", [(64, 8, 1), (128, 40, 3), (96, 24, 1)])
def test_fewer_rows_than_blocks_have_room_for(dk: int, dv: int, heads: int, seed: int) -> None:
    for parts in DEVICES:
        for T in (1, 2):
            check(layer_arguments(3, T, seed, "qwen3_5", (1, heads), dk, dv), functools.partial(layer, parts))


@pytest.mark.parametrize("io", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["qwen3_next", "qwen3_5", "split"])
@pytest.mark.parametrize("heads", [(1, 1), (2, 6), (1, 9), (1, 17)])
def test_layouts_and_heads(heads: tuple[int, int], layout: str, io: torch.dtype, seed: int) -> None:
    """9 and 17 value heads per key head take several passes."""
    for T in (1, 2):
        check(layer_arguments(2, T, seed, layout, heads, 64, 72, io=io), layer)


def test_value_heads_that_fill_shared_memory(seed: int) -> None:
    for T, heads in ((1, 6), (2, 4), (7, 3)):
        check(layer_arguments(1, T, seed, "qwen3_5", (1, heads), 64, 248), layer)


@pytest.mark.parametrize("T", [1, 2, 16])
def test_verify(T: int, seed: int) -> None:
    """Invalid accepted counts, slots that are not written, null slots of the state and of the inputs, slots past the pool."""
    B = 9
    slots = torch.randperm(B * T + 3)[: B * T].view(B, T)
    slots[1, T - 1] = -1
    slots[2] = 4
    slots[3, 0] = -(2**63)
    slots[4, 0], slots[5, T - 1] = 2**32, 2**31 - 1
    accepted = torch.tensor([1, T, -5, 2, T, T, 2**40, T // 2, -(2**63)])
    more = {"state_indices": slots, "num_accepted_tokens": accepted, "null_slot": 4}
    for columns in (T + 2, T + 5):
        check(layer_arguments(B, T, seed, "qwen3_next", slots=B * T + 3, columns=columns) | more, layer)
    narrow = more | {"state_indices": slots.clamp(-1, 2**30).int(), "num_accepted_tokens": accepted.clamp(-5, 99).int()}
    check(layer_arguments(B, T, seed, "qwen3_5", slots=B * T + 3, columns=T + 2, state=torch.bfloat16) | narrow, layer)
    del more["num_accepted_tokens"]
    check(layer_arguments(B, T, seed, slots=B * T + 3, columns=T + 2) | more, layer)


@pytest.mark.parametrize("by_token", [False, True])
def test_step_states(by_token: bool, seed: int) -> None:
    B, T = 5, 3
    for rows in ([4, 0, -1, 2**40, 2], [0, 1, 2, 3, 4]):
        x = layer_arguments(B, T, seed, "split", columns=T + 2, slots=B * T)
        x["step_states"] = torch.randn(5, T + 1, 2, 8, 64)
        x["step_conv"] = torch.randn(5, T + 1, 3, x["conv_weight"].shape[0]).mT
        x["step_slots"] = torch.tensor(rows)
        if by_token:
            x["state_indices"] = torch.arange(B * T).view(B, T)
            x["num_accepted_tokens"] = torch.tensor([1, 2, 3, 0, 2])
        check(x, layer)


def test_invalid_slots(seed: int) -> None:
    for T in (1, 4):
        for index in (torch.int64, torch.int32):
            slots = torch.tensor(HOSTILE).clamp(torch.iinfo(index).min, torch.iinfo(index).max).to(index)
            check(layer_arguments(5, T, seed, slots=6) | {"state_indices": slots}, layer)


@pytest.mark.parametrize("conv_state", [torch.float32, torch.float16])
def test_pools_and_weights_of_any_strides(conv_state: torch.dtype, seed: int) -> None:
    for T in (1, 3):
        x = layer_arguments(3, T, seed, "qwen3_5", columns=4, conv_state=conv_state)
        x["conv_pool"] = x["conv_pool"].contiguous()  # (slots, C, columns)
        x["conv_weight"] = x["conv_weight"].float().T.contiguous().T
        x["conv_bias"] = None
        x["norm_weight"] = x["norm_weight"].float().repeat_interleave(2)[::2]
        x["ba"] = x["ba"].float().repeat_interleave(3, -1)[..., ::3]
        wide = torch.randn(3, T, x["qkvz"].shape[2] + 5).bfloat16()
        x["qkvz"] = wide[..., 5:]
        x["state_indices"] = torch.tensor([3, 0, 1])
        check(x, layer)


def test_no_sequences_and_no_tokens(seed: int) -> None:
    for B, T in ((0, 1), (2, 0), (0, 0)):
        check(layer_arguments(B, T, seed), layer)


def test_gates_that_reset_and_states_that_are_not_finite(seed: int) -> None:
    for T in (1, 3):
        x = layer_arguments(3, T, seed, "split")
        x["a"][0] = 1e30
        x["state_pool"][0, 1] = torch.nan
        x["state_pool"][1, 0, 3, 5] = torch.inf
        x["state_pool"][2, 1, 2] = torch.nan
        with emulated():
            out = gdn_decode_layer(**x).unflatten(-1, (2, 8))
        assert out[0].isfinite().all() and x["state_pool"][0].isfinite().all()
        others = out[1, 0, 0][[0, 1, 2, 4, 5, 6, 7]]  # by the norm 0 if row 3 is infinite, NaN if it is ∞ − ∞
        assert out[1, 0, 0, 3].isnan() and (others.isnan().all() or not others.any())
        assert out[1, :, 1].isfinite().all()
        assert out[2, :, 1].isnan().all() and out[2, :, 0].isfinite().all()
        assert x["state_pool"][2, 1].isnan().any(-1).tolist() == [row == 2 for row in range(8)]


def test_outputs_whose_squares_fp32_cannot_hold(seed: int) -> None:
    for factor in (1e25, 1e-30, 0.0):
        x = layer_arguments(2, 1, seed, "split")
        x["state_pool"].mul_(factor)
        x["ba"] = torch.full_like(x["ba"], -100.0)  # beta is 0: the state alone counts
        x["norm_eps"] = 0.0 if factor else 1e-6
        check(x, layer)


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
def test_states_have_the_bits_of_the_operators(state: torch.dtype, seed: int) -> None:
    for T, dk in ((1, 128), (4, 64)):
        x = layer_arguments(3, T, seed, "qwen3_5", (2, 4), dk, 64, columns=T + 2, slots=3 * T, state=state)
        if T > 1:
            x |= {"state_indices": torch.arange(3 * T).view(3, T), "num_accepted_tokens": torch.tensor([1, 3, 4])}
        pools = {name: x[name].clone(memory_format=torch.preserve_format) for name in ("conv_pool", "state_pool")}
        with emulated():
            expected = by_operators(**x | pools)
            out = gdn_decode_layer(**x)
        assert torch.equal(x["state_pool"], pools["state_pool"]) and torch.equal(x["conv_pool"], pools["conv_pool"])
        torch.testing.assert_close(out, expected, rtol=2**-6, atol=2**-9)
