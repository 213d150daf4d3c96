"""layers/mamba2_decode_layer against its definition in fp64: one block of a group, and clusters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from devices import Device
from mamba2_oracle import OUT_BOUND, check, close, draws, layer, rounded
from state_codes_on_device import coded, is_rounded, read
from torch import Tensor

from gdn_cuda import mamba2_decode_layer, rms_norm_gated
from gdn_cuda.layers.mamba2_decode_layer import by_operators

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
KERNEL = "layers/mamba2_decode_layer"
PLACES = ("conv_pool", "state_pool", "state_scales")
HOSTILE = [2**63 - 1, -(2**63), 2**32, -1, 1]


def layer_on(device: Device, multiprocessors: int = 132) -> Callable[..., Tensor]:
    def call(**x: Any) -> Tensor:
        with device.only(KERNEL, multiprocessors=multiprocessors):
            return mamba2_decode_layer(**x)

    return call


def check_on(device: Device, x: dict[str, Any]) -> Tensor:
    """In the emulator by one block of a group too: with 0 multiprocessors, heuristics choose as for many sequences."""
    if device.emulate:
        copies = {name: x[name].clone(memory_format=torch.preserve_format) for name in ("conv_pool", "state_pool")}
        check(x | copies, layer_on(device, 0))
    return check(x, layer_on(device))


@pytest.mark.parametrize("state", [F32, BF16, F16])
@pytest.mark.parametrize("N", [64, 128, 256])
def test_states(N: int, state: torch.dtype, device: Device, seed: int) -> None:
    """Groups of several steps, the last one not full, and of several rounds of steps."""
    for heads, dim, groups in device.size(((2, 37, 1),), ((4, 37, 2), (24, 64, 3), (16, 80, 1))):
        check_on(device, draws(seed, heads=heads, dim=dim, groups=groups, N=N, state=state, device=device.name))


def test_more_steps_than_lanes(device: Device, seed: int) -> None:
    """The scalars of a block's rows in several rounds."""
    x = draws(seed, batch=1, heads=2, dim=150, groups=1, N=64, io=F32, device=device.name)
    check_on(device, x)


@pytest.mark.parametrize("io", [F32, BF16, F16])
@pytest.mark.parametrize("conv", [F32, BF16])
def test_dtypes_and_layouts(conv: torch.dtype, io: torch.dtype, device: Device, seed: int) -> None:
    for change in (
        lambda x: {},
        lambda x: {"conv_pool": x["conv_pool"].contiguous(), "D": x["state_pool"][0, :, :, 0].clone()},
        lambda x: {"z": None, "D": None, "dt_bias": None, "conv_bias": None, "activation": None},
        lambda x: {"xBC": x["xBC"].mT.contiguous().mT, "dt": x["dt"].float(), "A": x["A"].bfloat16(), "dt_softplus": False},
        lambda x: {"dt_limit": (0.1, 0.6), "conv_weight": x["conv_weight"].float().mT.contiguous().mT},
    ):
        x = draws(seed, io=io, conv=conv, columns=4, device=device.name)
        check_on(device, x | change(x))


def test_slots(device: Device, seed: int) -> None:
    """For slots past the pool the output is NaN, for negative ones and null_slot 0, and no state is touched."""
    x = draws(seed, batch=6, device=device.name)
    x["state_indices"] = torch.tensor([*HOSTILE, 3], device=device.name)
    out = check_on(device, x | {"null_slot": 3})
    assert out[0].isnan().all() and not out[1].any() and out[2].isnan().all() and not out[3].any() and not out[5].any()
    for index in (torch.int32, torch.int64):
        indices = torch.tensor([[5, 0], [0, 0], [2, 0]], dtype=index, device=device.name)[:, 0]
        check_on(device, draws(seed, device=device.name) | {"state_indices": indices})
    x = draws(seed, device=device.name)
    wide = torch.full((6, 2 * x["state_pool"][0].numel()), 7.0, device=device.name)
    pool = wide[:, : x["state_pool"][0].numel()].view(x["state_pool"].shape).copy_(x["state_pool"])
    check_on(device, x | {"state_pool": pool, "state_indices": None})
    assert bool((wide[:, x["state_pool"][0].numel() :] == 7).all())


def test_resets_and_values_that_are_not_finite(device: Device, seed: int) -> None:
    x = draws(seed, device=device.name)
    x["state_indices"] = torch.arange(3, device=device.name)
    x["A"][:], x["dt_bias"][:] = -2.0, 1.0
    x["dt_bias"][1] = 200.0
    x["state_pool"][0, 1, 3, :4], x["state_pool"][1, 1, 5], x["state_pool"][2, 0, 3] = torch.inf, torch.nan, torch.nan
    out = check_on(device, x).unflatten(-1, (4, 8))
    assert out[:2].isfinite().all() and x["state_pool"][:2].isfinite().all()
    assert out[2, 0, 3].isnan().all() and out[2, 1:].isfinite().all()


@pytest.mark.parametrize("state", [F32, BF16, torch.int8])
def test_pools_are_those_of_the_operators(state: torch.dtype, device: Device, seed: int) -> None:
    """The same bits."""
    for N in (64, 128):
        is_coded = state == torch.int8
        x = draws(seed, heads=4, dim=device.size(9, 64), groups=2, N=N, state=F32 if is_coded else state, device=device.name)
        if is_coded:
            x |= with_codes(x)
        pools = [name for name in ("conv_pool", "state_pool", "state_scales") if name in x]
        y = x | {name: x[name].clone(memory_format=torch.preserve_format) for name in pools}
        out = layer_on(device)(**x)
        with device.kernels():
            expected = by_operators(**y)
        assert torch.equal(out, expected) and all(torch.equal(x[name], y[name]) for name in pools)


def with_codes(x: dict[str, Any]) -> dict[str, Any]:
    codes, scales = coded(x["state_pool"].cpu())
    return {"state_pool": codes.to(x["xBC"].device), "state_scales": scales.to(x["xBC"].device)}


@pytest.mark.parametrize("N", [64, 128, 256])
def test_states_of_codes(N: int, device: Device, seed: int) -> None:
    """Against fp64 from the states that the codes are, in one block of a group and in clusters; some slots are padding."""
    for heads, dim, groups in device.size(((2, 37, 1),), ((4, 37, 2), (16, 80, 1))):
        for multiprocessors in device.size((0, 132), (132,)):
            x = draws(seed, heads=heads, dim=dim, groups=groups, N=N, io=F32, device=device.name)
            x |= with_codes(x) | {"state_indices": torch.tensor([4, -1, 2], device=device.name)}
            before = {name: x[name].cpu().clone() for name in ("state_pool", "state_scales")}
            out, conv, pool = layer(x | {"state_pool": read(*before.values())})
            found = layer_on(device, multiprocessors)(**x)
            close(found, out, OUT_BOUND[found.dtype])
            after = [x[name].cpu() for name in ("state_pool", "state_scales")]
            assert is_rounded(*(y[[4, 2]] for y in after), torch.from_numpy(pool)[[4, 2]])
            assert all(torch.equal(y[[0, 1, 3, 5]], was[[0, 1, 3, 5]]) for y, was in zip(after, before.values(), strict=True))
            assert torch.equal(x["conv_pool"].double().cpu(), torch.from_numpy(rounded(conv, x["conv_pool"].dtype)))


def test_a_norm_after_states_of_codes(device: Device, seed: int) -> None:
    x = draws(seed, N=64, device=device.name)
    x |= with_codes(x)
    pools = [{name: x[name].clone(memory_format=torch.preserve_format) for name in PLACES} for _ in range(2)]
    weight = torch.ones(x["z"].shape[-1], device=device.name)
    with device.kernels():
        found = mamba2_decode_layer(**x | pools[0], norm_weight=weight)
        y = mamba2_decode_layer(**x | pools[1] | {"z": None})
        expected = rms_norm_gated(y, x["z"], weight, norm_before_gate=False, group_size=y.shape[-1] // x["groups"])
    assert torch.equal(found, expected) and all(torch.equal(pools[0][name], pools[1][name]) for name in PLACES)


@pytest.mark.parametrize("batch, dim", [(0, 8), (1, 1), (3, 1)])
def test_sizes_of_0_and_1(batch: int, dim: int, device: Device, seed: int) -> None:
    x = draws(seed, batch=batch, heads=1, dim=dim, groups=1, device=device.name)
    if batch:
        check_on(device, x)
    else:
        with device.kernels():
            assert mamba2_decode_layer(**x).shape == (0, dim)
