"""scan/selective_step_codes against fp64: one token of many heads on states of int8 codes."""

from __future__ import annotations

import pytest
import torch
from coded_steps_on_device import Call, drawn, expected_of, moved, others_stay
from devices import Device
from state_codes_on_device import is_rounded, read
from step_cases import OUT_BOUND, close
from torch import Tensor

from gdn_cuda import selective_state_update
from gdn_cuda.gdn.state_codes import LARGEST_SCALE

KERNEL = "scan/selective_step_codes"
BF16 = torch.bfloat16
MULTIPROCESSORS = 1  # of the emulator: a few heads are many


def as_in_a_layer(x: Call, dim: int) -> Call:
    """dt, A, D and the bias of a head, expanded to its channels."""
    wide = {name: x[name][..., None].expand(*x[name].shape, dim) for name in ("dt", "D", "dt_bias") if name in x}
    return x | wide | {"A": x["A"][:, None, None].expand(*x["A"].shape, dim, 128)}


def many(device: Device, seed: int, dim: int = 32, io: torch.dtype = BF16, bare: bool = False, **form: int) -> Call:
    """So many rows that each multiprocessor has 24 heads of 128."""
    heads, batch = device.size((4, 25 * max(32 // dim, 1)), (48, 67 * 128 // dim))
    return drawn(seed, 128, heads=heads, dim=dim, batch=batch, io=io, bare=bare, **form)


def step(device: Device, x: Call, kernel: str = KERNEL) -> tuple[Tensor, Call]:
    there = {name: moved(y, device) for name, y in x.items()}
    there["out"] = torch.full(x["x"].shape, torch.nan, dtype=x["x"].dtype, device=device.name)
    with device.only(kernel, multiprocessors=MULTIPROCESSORS):
        assert selective_state_update(**there) is there["out"]
    return there["out"].cpu(), {name: y.cpu() if isinstance(y, Tensor) else y for name, y in there.items()}


def check(device: Device, x: Call, written: list[int]) -> None:
    expected, states = expected_of(x)
    out, after = step(device, x)
    close(out, expected, OUT_BOUND[x["x"].dtype])
    assert is_rounded(after["state"][written], after["state_scales"][written], states[written], pairs=True)
    assert others_stay(after, x, written)


@pytest.mark.parametrize("dim", [16, 48, 64, 256])
@pytest.mark.parametrize("io", [BF16, torch.float16])
def test_a_token(io: torch.dtype, dim: int, device: Device, seed: int) -> None:
    """With a gate, D, a bias and softplus, and bare; parameters a head, and expanded to channels."""
    for bare in (False, True):
        x = many(device, seed, dim, io, bare)
        check(device, x, list(range(x["x"].shape[0])))
    x = as_in_a_layer(x, dim)
    check(device, x, list(range(x["x"].shape[0])))


def test_slots(device: Device, seed: int) -> None:
    """Padding is not read and not written; its outputs are 0."""
    x = many(device, seed, 64)
    batch = x["x"].shape[0]
    slots = torch.randperm(batch, generator=torch.Generator().manual_seed(seed))
    slots[[1, 4]] = torch.tensor([-1, -(2**31)])
    x |= {"state_batch_indices": slots, "null_slot": int(slots[2])}
    check(device, x, [int(slot) for n, slot in enumerate(slots) if n not in (1, 2, 4)])


def test_hostile_states(device: Device, seed: int) -> None:
    """Scales of 0 beside any codes, small and large ones, NaN, infinite inputs, resets of NaN: a group that is finite stays so,
    and one that is not keeps it to its 32 columns."""
    x = many(device, seed, 32, bare=True)
    scales = x["state_scales"]
    scales[0, 0, :4, 0] = 0  # the codes stay as they are
    scales[0, 1, 5] = LARGEST_SCALE / 1e4  # sums over a row do not overflow
    scales[0, 1, 6] = 3e-38
    scales[1, 1, 3, 1] = torch.nan
    x["x"][1, 0, 2], x["x"][1, 2, 4] = torch.inf, -torch.inf
    x["state"][2], x["x"][2] = 0, 0  # nothing at all
    x["x"][3, 0] = 1e-38
    x["x"][3, 1] = 1e30
    scales[4], x["dt"][4] = torch.nan, 1e6
    x["A"] = -x["A"].abs().clamp_min(1e-3)
    clean = scales.clone()
    clean[4] = 0
    expected, states = expected_of(x | {"state_scales": clean})
    out, after = step(device, x)
    groups = states.unflatten(-1, (-1, 32))
    finite = groups.isfinite().all(-1) & (groups.abs().amax(-1) < 3.4e38)
    found = read(after["state"], after["state_scales"]).unflatten(-1, (-1, 32))
    assert is_rounded(
        after["state"].unflatten(-1, (-1, 32))[finite], after["state_scales"][finite][:, None], groups[finite], pairs=True
    )
    infinite = groups.isinf() & ~groups.isnan().any(-1, keepdim=True)
    assert bool(infinite.any()) and bool((found[infinite].abs() > 3.39e38).all())
    assert torch.equal(after["state_scales"].isnan(), groups.isnan().any(-1)) and bool(after["state_scales"].isnan().any())
    assert not after["state"][2].any() and not after["state_scales"][2].any() and not out[2].any()
    wanted = torch.from_numpy(expected)
    plain = wanted.isfinite() & (wanted.abs() < 3e38)
    plain[3] = False  # beyond bf16's precision beside 1e30
    assert bool(out[plain].isfinite().all())
    close(out[5:], expected[5:], OUT_BOUND[BF16])


def test_what_others_take(device: Device, seed: int) -> None:
    """Rows that are no multiple of a tile, parameters of channels, states for other slots, and rows between multiples of 16
    bytes take scan/selective_step_tied."""
    tied = "scan/selective_step_tied"
    x = many(device, seed, 24)
    step(device, x, tied)
    x = many(device, seed, 32)
    batch = x["x"].shape[0]
    step(device, x | {"D": torch.rand(x["D"].shape[0], 32)}, tied)
    step(device, x | {"write_indices": torch.arange(batch), "state_batch_indices": torch.arange(batch)}, tied)
    memory = torch.zeros(*x["x"].shape[:-1], 40, dtype=BF16)
    memory[..., 1:33] = x["x"]
    expected, states = expected_of(x)
    there = {name: moved(y, device) for name, y in x.items()} | {"x": memory.to(device.name)[..., 1:33]}
    with device.only(tied, multiprocessors=MULTIPROCESSORS):
        out = selective_state_update(**there)
    close(out.cpu(), expected, OUT_BOUND[BF16])
    assert is_rounded(there["state"].cpu(), there["state_scales"].cpu(), states)


def test_many_tokens_are_close_to_float32_states(device: Device, seed: int) -> None:
    """Beside the same with fp32 and bf16 states: at most 4 times bf16's error."""
    x = many(device, seed, 16, bare=True)
    states = {"fp32": (read(x["state"], x["state_scales"]).float(), None)}
    states |= {"bf16": (states["fp32"][0].bfloat16(), None), "int8": (x["state"], x["state_scales"])}
    states = {name: tuple(moved(y, device) for y in pair) for name, pair in states.items()}
    names = {"fp32", "bf16", "int8"}
    for t in range(device.size(6, 48)):
        token = many(device, seed + t + 1, 16, bare=True)
        token = {name: moved(y, device) for name, y in token.items()} | {"A": moved(x["A"] * 0.05, device)}
        for state, scales in states.values():
            with device.kernels(MULTIPROCESSORS):
                selective_state_update(**token | {"state": state, "state_scales": scales})
    found = {name: (read(*states[name]) if name == "int8" else states[name][0]).cpu().double() for name in names}
    errors = {name: float((found[name] - found["fp32"]).norm() / found["fp32"].norm()) for name in ("bf16", "int8")}
    assert 0 < errors["int8"] < 4 * errors["bf16"], errors
