"""layers/decode_layer with gates of channels against its definition in fp64: head dimensions, gates, convolutions, slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from devices import Device
from kda_oracle import POOLS, check
from layer_oracle import HOSTILE
from torch import Tensor

from gdn_cuda import kda_decode_layer
from gdn_cuda.layers.kda_decode_layer import by_operators, layer_arguments

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
KERNEL = "layers/decode_layer"
# Gates of every size: of Kimi-Linear's trained layers some are below -2661.
GATES: dict[str, dict[str, Any]] = {
    "softplus": {},
    "bounded": {"lower_bound": -5.0},
    "bounded without A_log": {"lower_bound": -0.5, "A_log": None},
    "no dt_bias": {"dt_bias": None},
}


def moved(x: dict[str, Any], device: Device) -> dict[str, Any]:
    """Copies in the device's memory, with the same strides."""
    found = {}
    for name, y in x.items():
        found[name] = y
        if isinstance(y, Tensor) and y.device.type != device.name:
            extent = 1 + sum((size - 1) * stride for size, stride in zip(y.shape, y.stride(), strict=True)) if y.numel() else 0
            storage = torch.zeros(extent, dtype=y.dtype, device=device.name)
            found[name] = storage.as_strided(y.shape, y.stride()).copy_(y)
    return found


def copied(x: dict[str, Any]) -> dict[str, Any]:
    return {name: x[name].clone(memory_format=torch.preserve_format) for name in POOLS if x.get(name) is not None}


def layer_on(device: Device, multiprocessors: int = 132) -> Callable[..., Tensor]:
    def call(**x: Any) -> Tensor:
        with device.only(KERNEL, multiprocessors=multiprocessors):
            return kda_decode_layer(**x)

    return call


def check_on(device: Device, x: dict[str, Any]) -> Tensor:
    """In the emulator by one block of a head too: with 0 multiprocessors, heuristics choose as for many sequences."""
    x = moved(x, device)
    if device.emulate:
        check(x | copied(x), layer_on(device, 0))
    return check(x, layer_on(device))


@pytest.mark.parametrize("state", [F32, BF16])
@pytest.mark.parametrize("dk, dv", [(64, 64), (128, 128), (96, 192), (192, 96), (256, 256), (64, 8), (128, 40)])
def test_head_dimensions(dk: int, dv: int, state: torch.dtype, device: Device, seed: int) -> None:
    check_on(device, layer_arguments(2, seed, (1, 2), dk, dv, state=state, slots=2))


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("heads", [(1, 1), (2, 6), (1, 9), (1, 17)])
def test_heads_and_gates(heads: tuple[int, int], gate: str, device: Device, seed: int) -> None:
    """Several value heads a key head, more than a cluster has blocks among them, and every form of the gate."""
    check_on(device, layer_arguments(2, seed, heads, 64, 72, io=F16, slots=2) | GATES[gate])


@pytest.mark.parametrize("taps", [2, 3, 4])
@pytest.mark.parametrize("separate", [False, True])
def test_convolutions(separate: bool, taps: int, device: Device, seed: int) -> None:
    """Fewer taps, pools for each of query, key and value, more columns than needed, every order of a pool's dimensions."""
    for columns, more in ((taps - 1, {}), (taps + 1, {"activation": None, "conv_bias": None})):
        x = layer_arguments(3, seed, (1, 2), 64, 8, taps, columns, slots=4, separate=separate) | more
        x["state_indices"] = torch.tensor([3, 0, 1])
        check_on(device, dict(x))
        pools = {name: x[name].contiguous() for name in POOLS[:3] if name in x}
        check_on(device, x | pools)
        check_on(device, x | {name: y.float().repeat_interleave(2, 1)[:, ::2] for name, y in pools.items()})


@pytest.mark.parametrize("taps", [3, 4])
@pytest.mark.parametrize("io", [BF16, F16])
def test_weights(io: torch.dtype, taps: int, device: Device, seed: int) -> None:
    """Every layout and dtype of the taps, among them those that are read four channels at a time."""
    x = layer_arguments(3, seed, (2, 2), 64, 64, taps, slots=3, io=io)
    given = x["conv_weight"]
    by_parts = given.view(3, -1, taps).mT
    for weight in (given, given.float(), by_parts.contiguous(), by_parts.float().contiguous(), by_parts):
        check_on(device, x | {"conv_weight": weight})
    wide = torch.cat([by_parts.float(), by_parts.float()], 2)[..., 1:129]  # rows that do not start on 16 bytes
    check_on(device, x | {"conv_weight": wide, "conv_bias": None})
    other = {F32: BF16, BF16: F16, F16: BF16}[io]
    check_on(device, x | {"conv_weight": given.to(other), "conv_bias": x["conv_bias"].float()})


def test_pools_of_different_orders(device: Device, seed: int) -> None:
    x = layer_arguments(3, seed, slots=3, separate=True)
    check_on(device, x | {"key_conv_pool": x["key_conv_pool"].contiguous()})


def test_parts_of_projections(device: Device, seed: int) -> None:
    """Views of one projection, in which no row starts on 8 bytes, and gates whose channels are not contiguous."""
    x = layer_arguments(3, seed, slots=3)
    wide = torch.cat([torch.zeros(3, 5).bfloat16(), x["qkv"], x["z"]], 1)
    x["qkv"], x["z"] = wide[:, 5 : 5 + x["qkv"].shape[1]], wide[:, 5 + x["qkv"].shape[1] :]
    x["a"] = x["a"].float().mT.contiguous().mT
    x["b"] = x["b"].float().mT.contiguous().mT
    x["conv_weight"] = x["conv_weight"].float().mT.contiguous().mT
    x["dt_bias"] = x["dt_bias"].bfloat16().repeat_interleave(2, 0)[::2]
    x["norm_weight"] = x["norm_weight"].float().repeat_interleave(2)[::2]
    check_on(device, x)


def test_without_a_norm(device: Device, seed: int) -> None:
    x = layer_arguments(2, seed, (1, 2), 64, 40, slots=2) | {"z": None, "norm_weight": None, "allow_negative_eigenvalues": True}
    check_on(device, x)
    check_on(device, layer_arguments(2, seed, slots=2) | {"gate_activation": "silu", "norm_eps": 1e-3, "scale": 2.0})


def test_slots(device: Device, seed: int) -> None:
    """For slots past the pool the output is NaN, for negative ones and null_slot 0, and no state is touched."""
    for separate in (False, True):
        x = layer_arguments(6, seed, slots=6, separate=separate) | {"null_slot": 3}
        out = check_on(device, x | {"state_indices": torch.tensor([*HOSTILE, 3])})
        assert out[0].isnan().all() and not out[1].any() and out[2].isnan().all() and not out[3].any() and not out[5].any()
    narrow = torch.tensor(HOSTILE).clamp(-(2**31), 2**31 - 1).int()
    check_on(device, layer_arguments(5, seed, slots=6) | {"state_indices": narrow})


@pytest.mark.parametrize("state", [F32, BF16])
def test_resets_and_values_that_are_not_finite(state: torch.dtype, device: Device, seed: int) -> None:
    """A reset of one channel clears its column alone; NaN stays in its head and sequence."""
    x = layer_arguments(4, seed, (1, 2), 128, 8, slots=4, state=state)
    x["a"][0, 1, [0, 3, 127]] = 1e30
    x["a"][1, 0] = torch.inf
    x["state_pool"][0, 1, :, [0, 3, 127]] = torch.tensor([torch.inf, torch.nan, -torch.inf], dtype=state)
    x["state_pool"][1, 0] = torch.nan
    x["a"][2, 0, 5] = torch.nan
    x["state_pool"][3, 1, 2, 7] = torch.inf
    x["A_log"][:] = torch.tensor([0.5, 90.0])  # the second's exponential overflows
    x["a"][2:, 1] = -200.0
    x = moved(x, device)
    out = layer_on(device)(**x).unflatten(-1, (2, 8))
    assert out[:2].isfinite().all() and x["state_pool"][:2].isfinite().all()
    assert out[2, 0].isnan().all() and out[2, 1].isfinite().all() and x["state_pool"][2, 0, :, 5].isnan().all()
    assert out[3, 0].isfinite().all() and out[3, 1, 2].isnan()
    x = moved(layer_arguments(2, seed, slots=2) | {"A_log": torch.tensor([7.0, 5.3]), "dt_bias": None}, device)
    check_on(device, x)


@pytest.mark.parametrize("state", [F32, BF16])
@pytest.mark.parametrize("separate", [False, True])
def test_pools_are_those_of_the_operators(separate: bool, state: torch.dtype, device: Device, seed: int) -> None:
    """The same bits."""
    for dk, gate in ((128, "bounded"), (64, "softplus")):
        x = layer_arguments(3, seed, (2, 4), dk, 64, slots=3, state=state, separate=separate) | GATES[gate]
        x = moved(x, device)
        y = x | copied(x)
        out = layer_on(device)(**x)
        with device.kernels():
            expected = by_operators(**y)
        assert all(torch.equal(x[name], y[name]) for name in copied(x))
        torch.testing.assert_close(out, expected, rtol=2**-6, atol=2**-9)


def test_no_sequences(device: Device, seed: int) -> None:
    x = moved(layer_arguments(0, seed), device)
    with device.kernels():
        assert kda_decode_layer(**x).shape == (0, 16)
