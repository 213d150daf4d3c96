"""gdn/decode_codes against fp64: one token of many heads on states of int8 codes."""

from __future__ import annotations

import pytest
import torch
from devices import Device
from helpers import rel_rms
from state_codes_on_device import OUTPUT_BOUND, Call, decode, drawn, expected_of, is_rounded, others_stay, read
from torch import Tensor

KERNEL = "gdn/decode_codes"
MULTIPROCESSORS = 1  # of the emulator: a few heads are many


def many(rng: torch.Generator, device: Device, dv: int = 48, io: torch.dtype = torch.bfloat16) -> Call:
    """More heads than the warps of the grid, in some of which a head is in parts."""
    B, heads = device.size((7, (1, 3)), (72, (8, 24)))
    return drawn(rng, B, 1, heads, 128, dv, io)


def step(device: Device, x: Call) -> tuple[Tensor, Call]:
    return decode(device, x, KERNEL, multiprocessors=MULTIPROCESSORS)


def scales_of(states: Tensor) -> Tensor:
    return states.double().unflatten(-1, (-1, 32)).abs().amax(-1) / 127


@pytest.mark.parametrize("dv", [16, 48, 128, 256])
@pytest.mark.parametrize("io", [torch.bfloat16, torch.float16])
def test_a_token(io: torch.dtype, dv: int, device: Device, rng: torch.Generator) -> None:
    x = many(rng, device, dv, io)
    expected, states = expected_of(x)
    output, after = step(device, x)
    slots = x["state_indices"]
    assert rel_rms(output, expected) < OUTPUT_BOUND[io]
    assert is_rounded(after["state_pool"][slots], after["state_scales"][slots], states[:, 0], pairs=True)
    assert rel_rms(after["state_scales"][slots], scales_of(states[:, 0])) < 5e-4
    assert others_stay(after, x, slots.tolist())


def test_parts_of_heads(device: Device, rng: torch.Generator) -> None:
    """Fewer heads than warps."""
    x = many(rng, device, 128)
    names = ("query", "key", "value", "a", "b", "state_indices")
    x |= {name: x[name][: device.size(4, 66)] for name in names}
    expected, states = expected_of(x)
    output, after = step(device, x)
    slots = x["state_indices"]
    assert rel_rms(output, expected) < 3e-3 and others_stay(after, x, slots.tolist())
    assert is_rounded(after["state_pool"][slots], after["state_scales"][slots], states[:, 0], pairs=True)


def test_keys_of_any_size(device: Device, rng: torch.Generator) -> None:
    """One large and many tiny channels, also of one group alone, zeros, subnormal elements, and elements near the largest whose
    squares are finite. What a key makes of a state shows in its scales."""
    x = many(rng, device, 32)
    for vectors in (x["key"], x["query"]):
        vectors[0, ..., 7] = 1e15
        vectors[1] *= 1e-10
        vectors[1, ..., 64:96] *= 1e8
        vectors[2, ..., :96] = 0
        vectors[3, ..., 5:] *= 1e-39  # subnormal in bf16
        vectors[4, ..., ::2] = 1e18 * vectors[4, ..., ::2].sign()
        vectors[5, ..., 32:] = 0
        vectors[5, ..., :32] *= 1e-4
    x["key"][6] = 0
    x["value"][:] = 0  # updates are what S k makes
    expected, states = expected_of(x)
    output, after = step(device, x)
    slots = x["state_indices"]
    for n in range(7):
        assert rel_rms(output[n], expected[n]) < 3e-3, n
        assert is_rounded(after["state_pool"][slots[n]], after["state_scales"][slots[n]], states[n, 0], pairs=True), n
        assert rel_rms(after["state_scales"][slots[n]], scales_of(states[n, 0])) < 5e-4, n


def test_hostile_states_and_slots(device: Device, rng: torch.Generator) -> None:
    """Scales of 0 with any codes, scales near fp32's ends, NaN, infinite values, keys and queries that are not finite, resets
    of NaN, slots that are padding or past the pool. Other heads are as if alone."""
    x = many(rng, device, 32) | {"null_slot": 3}
    B = x["key"].shape[0]
    slots = torch.arange(B) + 2
    slots[[0, 1]] = torch.tensor([-1, 3])
    slots[3] = 2
    x["state_indices"] = slots
    scales = x["state_scales"]
    scales[slots[2], 0, :4, 0] = 0
    scales[slots[2], 1, 5] = 2e36
    scales[slots[2], 1, 6] = 3e-38
    scales[slots[2], 2, 3, 1] = torch.nan
    x["value"][2, 0, 0, 7], x["value"][2, 0, 1, 9] = torch.inf, torch.nan
    x["key"][3, 0, 0, 9] = torch.inf
    x["query"][4, 0, 0, 100] = torch.nan
    scales[slots[5]] = torch.nan
    x["a"][5, 0] = torch.inf  # a reset
    clean = scales.clone()
    clean[slots[5]] = 0
    expected, states = expected_of(x, read(x["state_pool"], clean)[slots.clamp(0)])
    call = x | {"state_indices": slots.clone()}
    if device.name != "cpu":  # the host sees slots past the pool of CPU tensors
        call["state_indices"][6] = 2**40
    output, after = step(device, call)
    assert not output[[0, 1]].any() and others_stay(after, x, slots[2:].tolist())
    first_heads = x["a"].shape[2] // x["key"].shape[2]  # heads of the first key
    assert not output[3, 0, :first_heads].isfinite().any() and not output[4, 0, :first_heads].isfinite().any()
    for n in (2, 4, 5) if device.name != "cpu" else (2, 4, 5, 6):
        good = states[n, 0].isfinite().all(-1)
        assert good.sum() >= good.numel() - 3
        found = (after["state_pool"][slots[n]], after["state_scales"][slots[n]])
        assert is_rounded(found[0][good], found[1][good], states[n, 0][good], pairs=True), n
        finite = expected[n].isfinite()
        assert rel_rms(output[n][finite], expected[n][finite]) < 3e-3 and not output[n][~finite].isfinite().any(), n
    assert device.name == "cpu" or bool(output[6].isnan().all())


def test_saturates(device: Device, rng: torch.Generator) -> None:
    """States that an update takes past fp32's largest number are finite, and read as just below it."""
    x = many(rng, device, 16)
    x["a"][:] = -100.0  # decays of 1
    x["b"][:] = 100.0
    x["key"][:] = 0
    x["key"][..., 3] = 1
    x["value"][:] = 0
    x["state_scales"][:] = 0
    slots = x["state_indices"]
    x["value"][0, 0, 0, 2] = torch.inf
    x["value"][0, 0, 1, 3] = -torch.inf
    _, after = step(device, x)
    states = read(after["state_pool"], after["state_scales"])[slots]
    # 0 times infinity is NaN in the group of the key's channel; what it is in others is theirs alone.
    rows = states[0, 0, 2], states[0, 1, 3]
    assert all(bool(row.isnan().all()) for row in rows)
    assert bool(states[1:].isfinite().all())
    x["key"][..., :32] = 1
    x["key"][..., 32:] = 2
    _, after = step(device, x)
    row = read(after["state_pool"], after["state_scales"])[slots][0, 0, 2]
    assert bool(row.isfinite().all()) and bool((row >= 0.999 * torch.finfo(torch.float32).max).all())


def test_refuses_no_alignment(device: Device, rng: torch.Generator) -> None:
    """Rows that are no multiple of a tile, and scales and values that begin between multiples of 16 bytes, take gdn/decode."""
    for change in ("rows", "scales", "values"):
        x = many(rng, device, 24 if change == "rows" else 32)
        if change == "scales":
            memory = torch.zeros(x["state_scales"].numel() + 1)
            x["state_scales"] = memory[1:].view(x["state_scales"].shape).copy_(x["state_scales"])
        expected, states = expected_of(x)
        there = {name: y.to(device.name) if isinstance(y, Tensor) else y for name, y in x.items()}
        if change == "scales":
            memory = torch.zeros(x["state_scales"].numel() + 1, device=device.name)
            there["state_scales"] = memory[1:].view(x["state_scales"].shape).copy_(x["state_scales"])
        if change == "values":
            memory = torch.zeros(x["value"].numel() + 1, dtype=x["value"].dtype, device=device.name)
            there["value"] = memory[1:].view(x["value"].shape).copy_(x["value"])
        with device.only("gdn/decode", multiprocessors=MULTIPROCESSORS):
            import gdn_cuda

            output = gdn_cuda.fused_decode(**there)
        assert rel_rms(output, expected) < 3e-3
        slots = x["state_indices"]
        found = (there["state_pool"].cpu()[slots], there["state_scales"].cpu()[slots])
        assert is_rounded(*found, states[:, 0])
