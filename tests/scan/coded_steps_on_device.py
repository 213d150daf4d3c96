"""selective_state_update on int8 states, against fp64 from the states that the codes are: what a call stores is within half a
step of the expected state."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from devices import Device
from state_codes_on_device import coded, is_rounded, read
from step_cases import OUT_BOUND, close, draws, selective
from torch import Tensor

from gdn_cuda import selective_state_update
from gdn_cuda.gdn.state_codes import LARGEST_SCALE

KERNEL = "scan/selective_step_tied"
BF16 = torch.bfloat16
Call = dict[str, Any]


def drawn(seed: int, N: int = 64, *, heads: int = 4, dim: int = 20, bare: bool = False, **form: Any) -> Call:
    """Mamba-2's step with one value of A, dt, D and the bias a head; rows of a state differ in size."""
    x = draws(seed, N=N, heads=heads, dim=dim, groups=2, bare=bare, **form)
    x.pop("delta_a", None)
    for name in ("dt", "D", "dt_bias"):
        if name in x:
            x[name] = x[name][..., 0].contiguous()
    x["A"] = x["A"][:, 0, 0].contiguous()
    rng = torch.Generator().manual_seed(seed)
    states = x["state"] * torch.exp(torch.randn(*x["state"].shape[:-1], 1, generator=rng))
    x["state"], x["state_scales"] = coded(states)
    return x


def moved(x: Any, device: Device) -> Any:
    """A copy; one that is expanded stays so."""
    if not isinstance(x, Tensor):
        return x
    single = x[tuple(slice(0, 1 if stride == 0 else None) for stride in x.stride())]
    return single.to(device.name, copy=True).expand_as(x)


def run(device: Device, x: Call, multiprocessors: int = 132) -> tuple[Tensor, Call]:
    """The output, and the arguments after the call, all on the CPU; x stays as it is."""
    there = {name: moved(y, device) for name, y in x.items()}
    there["out"] = torch.full(x["x"].shape, torch.nan, dtype=x["x"].dtype, device=device.name)
    with device.only(KERNEL, multiprocessors=multiprocessors):
        assert selective_state_update(**there) is there["out"]
    return there["out"].cpu(), {name: y.cpu() if isinstance(y, Tensor) else y for name, y in there.items()}


def expected_of(x: Call) -> tuple[Any, Tensor]:
    out, state, _ = selective(x | {"state": read(x["state"], x["state_scales"])})
    return out, torch.from_numpy(state)


def others_stay(after: Call, before: Call, written: list[int]) -> bool:
    kept = [slot for slot in range(before["state"].shape[0]) if slot not in written]
    return all(torch.equal(after[name][kept], before[name][kept]) for name in ("state", "state_scales"))


def check(device: Device, x: Call, written: list[int], multiprocessors: int = 132) -> tuple[Tensor, Call]:
    """Compares the output and the states of the slots `written`; the others keep their bits."""
    expected, states = expected_of(x)
    out, after = run(device, x, multiprocessors)
    close(out, expected, OUT_BOUND[x["x"].dtype])
    if written:
        assert is_rounded(after["state"][written], after["state_scales"][written], states[written])
    assert others_stay(after, x, written)
    return out, after


@pytest.mark.parametrize("N", [64, 128, 256])
@pytest.mark.parametrize("io", [BF16, torch.float16, torch.float32])
def test_a_token(io: torch.dtype, N: int, device: Device, seed: int) -> None:
    """In place, one row step a block and several, the last one not full; with everything and bare, and with expanded A."""
    batch, dim = device.size((2, 37), (40, 64))
    for bare, multiprocessors in product((False, True), device.size((132, 0), (132,))):
        x = drawn(seed, N, dim=dim, batch=batch, io=io, bare=bare)
        found = check(device, x, list(range(batch)), multiprocessors)
        rows = x["x"].shape[1:]
        wide = {name: x[name][..., None].expand(*x[name].shape, dim) for name in ("dt", "D", "dt_bias") if name in x}
        wide["A"] = x["A"][:, None, None].expand(*rows, N)
        again = run(device, x | wide, multiprocessors)
        for name in ("state", "state_scales"):
            assert torch.equal(found[1][name], again[1][name])
        assert torch.equal(found[0], again[0])


def test_blocks_of_any_number_of_row_steps_have_the_same_bits(device: Device, seed: int) -> None:
    x = drawn(seed, 128, batch=3, dim=50, io=BF16)
    found = [run(device, x, multiprocessors) for multiprocessors in (0, 1, 132)]
    for out, after in found[1:]:
        assert torch.equal(out, found[0][0])
        assert all(torch.equal(after[name], found[0][1][name]) for name in ("state", "state_scales"))


def test_slots(device: Device, seed: int) -> None:
    """From slots to others; padding and slots past the pool are not written, and not read."""
    for N in (64, 128):
        x = drawn(seed, N, batch=7, slots=14, io=BF16)
        x |= {"state_batch_indices": torch.tensor([6, -1, 3, 0, 5, 2, 4]), "null_slot": 3}
        check(device, x, [0, 2, 4, 5, 6])
        check(device, x | {"update_state": False}, [])
        x["write_indices"] = torch.tensor([8, 1, 9, 3, -7, -(2**31), 4], dtype=torch.int32 if N == 64 else torch.int64)
        check(device, x, [8, 4])
    x = drawn(seed, batch=4, slots=6, io=BF16) | {"state_batch_indices": torch.tensor([2, -(2**31), -1, 5]).int()}
    if device.name != "cpu":  # the host sees slots past the pool of CPU tensors
        x["state_batch_indices"] = torch.tensor([2, 2**40, 2**63 - 1, 5])
        out, _ = check(device, x, [2, 5])
        assert bool(out[1:3].isnan().all())
        x["write_indices"] = torch.tensor([2**40, 0, 1, 6])
    check(device, x, [] if "write_indices" in x else [2, 5])


def test_slots_with_gaps_between_them(device: Device, seed: int) -> None:
    """Pages of codes, then scales, with bytes after them that stay."""
    x = drawn(seed, 128, batch=3, slots=5, io=BF16) | {"state_batch_indices": torch.tensor([4, 0, 2])}
    codes, scales = x["state"], x["state_scales"]
    bytes_of_codes, bytes_of_scales = codes[0].numel(), 4 * scales[0].numel()
    pages = torch.full((5, bytes_of_codes + bytes_of_scales + 64), 99, dtype=torch.int8, device=device.name)
    pool = pages[:, :bytes_of_codes].view(codes.shape)
    beside = pages[:, bytes_of_codes : bytes_of_codes + bytes_of_scales].view(torch.float32).view(scales.shape)
    pool.copy_(codes), beside.copy_(scales)
    there = {name: moved(y, device) for name, y in x.items()} | {"state": pool, "state_scales": beside}
    with device.only(KERNEL):
        out = selective_state_update(**there)
    expected, states = expected_of(x)
    close(out, expected, OUT_BOUND[BF16])
    assert bool((pages[:, bytes_of_codes + bytes_of_scales :] == 99).all())
    assert is_rounded(pool.cpu()[[4, 0, 2]], beside.cpu()[[4, 0, 2]], states[[4, 0, 2]])
    assert torch.equal(pool.cpu()[[1, 3]], codes[[1, 3]]) and torch.equal(beside.cpu()[[1, 3]], scales[[1, 3]])


@pytest.mark.parametrize("N", [64, 256])
def test_hostile_states(N: int, device: Device, seed: int) -> None:
    """Scales of 0 beside any codes and near fp32's largest, NaN, infinite inputs: finite states never give NaN, and a NaN
    keeps to its 32 columns, but for the output."""
    x = drawn(seed, N, batch=3, bare=True, io=torch.float32)
    x["state_scales"][0, 0, :4, 0] = 0  # the codes stay as they are
    x["state_scales"][0, 1, 5] = LARGEST_SCALE / 1e4  # sums over a row do not overflow
    x["state_scales"][1, 1, 3, 1] = torch.nan
    x["x"][1, 0, 2], x["x"][1, 2, 4] = torch.inf, -torch.inf
    x["state"][2], x["x"][2] = 0, 0  # nothing at all
    x["x"][0, 3, :3] = torch.tensor([1e-38, 1e-44, 1e33])
    expected, states = expected_of(x)
    out, after = run(device, x)
    finite = states.isfinite().reshape(*states.shape[:-1], -1, 32).all(-1)
    back = read(after["state"], after["state_scales"])
    groups = states.reshape(*finite.shape, 32)
    in_range = finite & (groups.abs().amax(-1) < 3.4e38)
    chosen = in_range.nonzero(as_tuple=True)
    found = back.reshape(groups.shape)[chosen], after["state_scales"][chosen]
    wanted = groups[chosen].abs().amax(-1) / 127
    assert bool(((found[0] - groups[chosen]).abs() <= 0.51 * wanted[:, None] + 1e-35).all())
    assert bool(((found[1] - wanted).abs() <= 1e-3 * wanted + 1e-35).all())
    infinite = states.isinf() & ~states.isnan().reshape(groups.shape).any(-1, keepdim=True).expand_as(groups).reshape(
        states.shape
    )
    assert bool(infinite.any()) and bool((back[infinite].abs() > 3.39e38).all())
    is_nan = after["state_scales"].isnan()
    assert bool(is_nan[1, 1, 3, 1]) and torch.equal(is_nan, states.isnan().reshape(groups.shape).any(-1))
    assert not after["state"][2].any() and not after["state_scales"][2].any() and not out[2].any()
    assert torch.equal(out.isnan(), torch.from_numpy(expected).isnan())


def test_a_reset_clears_a_state_that_is_nan(device: Device, seed: int) -> None:
    for N, multiprocessors in ((64, 132), (128, 0)):
        x = drawn(seed, N, batch=2, dim=40, bare=True, io=BF16)
        x["A"], x["dt"] = -torch.ones_like(x["A"]), torch.full_like(x["dt"], 200.0)
        x["dt"][1, 1] = 1.0
        x["state_scales"][:, :1], x["state_scales"][0, 2, 3] = torch.nan, torch.inf
        out, after = check(device, x, [0, 1], multiprocessors)
        assert bool(out.isfinite().all()) and bool(after["state_scales"].isfinite().all())


def test_many_tokens_are_close_to_float32_states(device: Device, seed: int) -> None:
    """48 tokens in place, beside the same with fp32 and bf16 states: at most 4 times bf16's error."""
    x = drawn(seed, batch=2, dim=16, bare=True, io=torch.float32)
    states = {"fp32": (read(x["state"], x["state_scales"]).float(), None)}
    states |= {"bf16": (states["fp32"][0].bfloat16(), None), "int8": (x["state"], x["state_scales"])}
    states = {name: tuple(moved(y, device) for y in pair) for name, pair in states.items()}
    outputs: dict[str, list[Tensor]] = {name: [] for name in states}
    for t in range(device.size(12, 48)):
        token = drawn(seed + t + 1, batch=2, dim=16, bare=True, io=torch.float32)
        token = {name: moved(y, device) for name, y in token.items()} | {"A": moved(x["A"] * 0.05, device)}
        for name, (state, scales) in states.items():
            with device.kernels():
                outputs[name].append(selective_state_update(**token | {"state": state, "state_scales": scales}).cpu().double())
    exact = torch.stack(outputs["fp32"])
    errors = {name: float((torch.stack(outputs[name]) - exact).norm() / exact.norm()) for name in ("bf16", "int8")}
    assert 0 < errors["int8"] < 4 * errors["bf16"], errors
