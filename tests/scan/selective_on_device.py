"""selective_scan's kernels, forward and backward, against the literal recurrence in fp64."""

from __future__ import annotations

from typing import Any

import oracle
import pytest
import torch
from devices import Device
from oracle import DISCRETIZATIONS, REAL_ONLY, within
from selective_inputs import (
    DTYPES,
    INVALID_OFFSETS,
    Draw,
    channels_last,
    check_at_the_root,
    equal_steps,
    model_inputs,
    selective_inputs,
)
from torch import Tensor

import gdn_cuda

F32, BF16, F16 = DTYPES
FORWARD = 1e-5
CASES = [(name, False) for name in DISCRETIZATIONS] + [(name, True) for name in DISCRETIZATIONS if name not in REAL_ONLY]
EVERY_DISCRETIZATION = pytest.mark.parametrize("name, is_complex", CASES, ids=[f"{n}-complex" if c else n for n, c in CASES])
BOTH_LAYOUTS = pytest.mark.parametrize("last", [False, True], ids=["tokens", "channels"])
ROWS = ("u", "delta", "z", "delta_a")


def scan(**x: Any) -> tuple[Tensor, Tensor]:
    return gdn_cuda.selective_scan(**x, return_last_state=True)


def few_and_many(device: Device) -> tuple[int, ...]:
    """With one multiprocessor, the emulator's heuristics choose as for many channels."""
    return device.size((132, 1), (132,))


def layouts(device: Device, seed: int) -> tuple[bool, ...]:
    return device.size((bool(seed % 2),), (False, True))


def weights(results: tuple[Tensor, Tensor], seed: int) -> tuple[Tensor, Tensor]:
    out, last = results
    draw = Draw(seed + 1, str(out.device))
    return draw.normal(*out.shape, dtype=out.dtype), draw.normal(*last.shape, dtype=last.dtype)


def poison(device: Device) -> None:
    """Fills memory that the GPU's allocator hands out next with NaN; the emulator does it by itself."""
    if device.emulate:
        return
    large = torch.full((1 << 24,), torch.nan, device=device.name)
    small = torch.full((64, 1 << 12), torch.nan, device=device.name).unbind()
    kept = [x.clone() for x in small]
    del large, small, kept


def check_forward(device: Device, x: dict[str, Any], multiprocessors: int = 132) -> tuple[Tensor, Tensor]:
    poison(device)
    with torch.no_grad():
        with device.kernels(multiprocessors):
            results = scan(**x)
        for mine, theirs in zip(results, oracle.selective_scan(**x), strict=True):
            assert within(mine, theirs, FORWARD)
    return results


def check(device: Device, x: dict[str, Any], seed: int, multiprocessors: int = 132) -> None:
    """Checks the results, and gradients of everything for which there are any."""
    grads = weights(check_forward(device, x, multiprocessors), seed)
    wanted = oracle.gradients(oracle.selective_scan, x, *grads)
    poison(device)
    with device.kernels(multiprocessors):
        found = oracle.gradients(scan, x, *grads)
    for argument, gradient in found.items():
        assert gradient.dtype == x[argument].dtype
        assert within(gradient, wanted[argument], device.size(1e-5, 1e-4)), argument


def inputs(device: Device, seed: int, *args: Any, **form: Any) -> dict[str, Any]:
    return selective_inputs(seed, *args, device=device.name, **form)


def plain_inputs(device: Device, seed: int, *args: Any, length: int = 136, N: int = 16, **form: Any) -> dict[str, Any]:
    """Aligned and without delta_a: only the last tile and the last channels are partial."""
    x = inputs(device, seed, *args, batch=1, dim=40, length=length, N=N, **form)
    x.pop("delta_a", None)
    return x


# ---- Sizes and forms


@pytest.mark.parametrize("length", [1, 2, 5, 31, 32, 63, 64, 65, 130, 1000, 2049])
@BOTH_LAYOUTS
def test_lengths(last: bool, length: int, device: Device, seed: int) -> None:
    """70 channels, in partial blocks and in several blocks."""
    device.skip_above(130, length)
    for dtype in device.size((F32,), DTYPES):
        x = inputs(device, seed, length=length, dim=35, N=16, dtype=dtype, last=last)
        for multiprocessors in few_and_many(device):
            check(device, x, seed, multiprocessors)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("dim, length", [(32, 72), (37, 67)], ids=["vectors", "odd"])
@BOTH_LAYOUTS
def test_half_precision(last: bool, dim: int, length: int, dtype: torch.dtype, device: Device, seed: int) -> None:
    x = inputs(device, seed, length=length, dim=dim, N=16, dtype=dtype, last=last)
    for multiprocessors in few_and_many(device):
        check(device, x, seed, multiprocessors)


@EVERY_DISCRETIZATION
@pytest.mark.parametrize("dtype", [F32, BF16])
@BOTH_LAYOUTS
def test_plain_tiles(last: bool, dtype: torch.dtype, name: str, is_complex: bool, device: Device, seed: int) -> None:
    check(device, plain_inputs(device, seed, name, is_complex=is_complex, dtype=dtype, last=last), seed)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("N", [16, 48])
@BOTH_LAYOUTS
def test_plain_tiles_of_many_channels(last: bool, N: int, dtype: torch.dtype, device: Device, seed: int) -> None:
    check(device, plain_inputs(device, seed, N=N, dtype=dtype, last=last), seed, multiprocessors=1)


@pytest.mark.parametrize("N", [1, 2, 7, 16, 17, 33, 64, 256])
@pytest.mark.parametrize("is_complex", [False, True])
@BOTH_LAYOUTS
def test_states(last: bool, is_complex: bool, N: int, device: Device, seed: int) -> None:
    device.skip_above(64, N)
    length, dim = device.size((70, 9 if N < 32 else 3), (150, 9))
    check(device, inputs(device, seed, length=length, dim=dim, N=N, is_complex=is_complex, last=last), seed)


@EVERY_DISCRETIZATION
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_whole_chunks_of_vectors(dtype: torch.dtype, name: str, is_complex: bool, device: Device, seed: int) -> None:
    """Vectors of tokens, without delta_a: two chunks, and two blocks of 16 channels or less."""
    x = inputs(device, seed, name, is_complex=is_complex, batch=1, length=128, dim=32, N=3, dtype=dtype)
    check(device, x | {"delta_a": None}, seed)


FORMS: dict[str, dict[str, Any]] = {
    "varying": {},
    "bare": {"bare": True},
    "B-constant": {"B": "constant", "groups": 2},
    "C-constant": {"C": "constant", "groups": 4},
    "constant": {"B": "constant", "C": "constant", "length": 64},
    "packed": {"batch": 1, "groups": 2, "cu_seqlens": [0, 0, 1, 64, 65, 130, 130, 133]},
    "packed-with-a-tail": {"batch": 1, "cu_seqlens": [0, 100]},
}


@EVERY_DISCRETIZATION
@pytest.mark.parametrize("form", FORMS)
def test_discretizations(form: str, name: str, is_complex: bool, device: Device, seed: int) -> None:
    x = {"length": 133, "dim": 8, "N": 5} | FORMS[form]
    for last in layouts(device, seed):
        check(device, inputs(device, seed, name, is_complex=is_complex, last=last, **x), seed)


@pytest.mark.parametrize("form", ["varying", "B-constant", "packed"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_complex_coefficients_in_pairs(dtype: torch.dtype, form: str, device: Device, seed: int) -> None:
    x = {"length": 133, "dtype": dtype, "in_pairs": True} | FORMS[form]
    for last in layouts(device, seed):
        for wide_coefficients in device.size((False,), (False, True)):
            check(device, inputs(device, seed, is_complex=True, wide_coefficients=wide_coefficients, last=last, **x), seed)


@pytest.mark.parametrize("dtype", [BF16, F16])
@BOTH_LAYOUTS
def test_coefficients_in_fp32_beside_rows_in_half(last: bool, dtype: torch.dtype, device: Device, seed: int) -> None:
    length = device.size(70, 133)
    check(device, inputs(device, seed, length=length, dtype=dtype, wide_coefficients=True, last=last), seed)
    mixed = inputs(device, seed, length=length, dtype=dtype, last=last)
    check(device, mixed | {"B": mixed["B"].float()}, seed)


@pytest.mark.parametrize("other", ["B", "C", "BC"])
@BOTH_LAYOUTS
def test_coefficients_in_the_other_layout(last: bool, other: str, device: Device, seed: int) -> None:
    """Rows in the other layout have their own code for whole tiles."""
    x = inputs(device, seed, batch=1, length=192, dim=32, N=16, dtype=BF16, last=last) | {"delta_a": None}
    check(device, x | {name: x[name].contiguous() if last else x[name].mT.contiguous().mT for name in other}, seed)


@pytest.mark.parametrize("groups", [1, 2, 3, 6, 36])
@BOTH_LAYOUTS
def test_groups(last: bool, groups: int, device: Device, seed: int) -> None:
    check(device, inputs(device, seed, length=device.size(70, 100), dim=36, N=16, groups=groups, last=last), seed)


@pytest.mark.parametrize("dim", [1, 2, 31, 64, 130])
@BOTH_LAYOUTS
def test_channels(last: bool, dim: int, device: Device, seed: int) -> None:
    check(device, inputs(device, seed, length=70, dim=dim, N=16, dtype=BF16, last=last), seed)


@pytest.mark.parametrize(
    "batch, dim, length, cu_seqlens",
    [(2, 4, 0, None), (0, 4, 5, None), (2, 0, 5, None), (1, 4, 5, [0]), (1, 4, 0, [0]), (1, 4, 0, [0, 0, 0])],
)
@pytest.mark.parametrize("B", ["varying", "constant"])
@BOTH_LAYOUTS
def test_empty_tensors(
    last: bool, B: str, batch: int, dim: int, length: int, cu_seqlens: list[int] | None, device: Device, seed: int
) -> None:
    x = inputs(device, seed, batch=batch, dim=dim, length=length, cu_seqlens=cu_seqlens, B=B, last=last)
    with device.kernels():
        out, state = scan(**x)
        found = oracle.gradients(scan, x, torch.ones_like(out), torch.ones_like(state))
        fresh = scan(**{name: y for name, y in x.items() if name != "initial_state"})[1]
    assert out.shape == (batch, dim, length) and not out.any() and state.shape == x["initial_state"].shape
    assert torch.equal(state, x["initial_state"]) and torch.equal(found.pop("initial_state"), torch.ones_like(state))
    assert not fresh.any() and not any(gradient.any() for gradient in found.values())


# ---- Memory


@pytest.mark.parametrize("dtype", DTYPES)
@BOTH_LAYOUTS
def test_slices_and_mixed_layouts(last: bool, dtype: torch.dtype, device: Device, seed: int) -> None:
    """Rows that start off 16 bytes, in a larger tensor full of NaN; z in the other layout; strides that are never 1."""
    x = inputs(device, seed, length=device.size(70, 101), dim=6, N=16, dtype=dtype, last=last)

    def within_more(x: Tensor) -> Tensor:
        more = torch.full([size + 3 for size in x.shape], torch.nan, dtype=x.dtype, device=x.device)
        return (channels_last(more) if last else more)[1:-2, 1:-2, 1:-2].copy_(x)

    y = {k: within_more(v) if k in ROWS else v for k, v in x.items()}
    y["z"] = x["z"].contiguous() if last else channels_last(x["z"])
    y["B"] = channels_last(x["B"])
    out, _ = check_forward(device, y)
    assert out.mT.is_contiguous() if last else out.is_contiguous()
    check(device, y, seed)
    check(device, {k: torch.stack([v, v], -1)[..., 0] if isinstance(v, Tensor) else v for k, v in x.items()}, seed)


@pytest.mark.parametrize("offsets", INVALID_OFFSETS)
@BOTH_LAYOUTS
def test_invalid_offsets_touch_nothing_outside(last: bool, offsets: list[int], device: Device, seed: int) -> None:
    x = inputs(device, seed, batch=1, length=271, cu_seqlens=[0, 5, 6, 7, 271], last=last)
    x |= {"cu_seqlens": torch.tensor(offsets, device=device.name)}
    with device.kernels():
        out, state = scan(**x)
        found = oracle.gradients(scan, x, torch.ones_like(out), torch.ones_like(state))
    device.synchronize()
    assert all(torch.isfinite(y).all() for y in (out, state, *found.values()))


# ---- Values


@pytest.mark.parametrize("rate", [1e-6, 1e-3, 1.0, 30.0, 1e3])
@pytest.mark.parametrize("name", ["mamba", "zoh", "bilinear", "dirac"])
def test_rates(name: str, rate: float, device: Device, seed: int) -> None:
    for last in layouts(device, seed):
        x = inputs(device, seed, name, length=device.size(130, 300), bare=True, last=last)
        rates = -rate * torch.tensor([0.5, 1, 2], device=device.name)
        check(device, x | {"A": torch.ones_like(x["A"]) * rates}, seed)


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("rate", [1e-6, 1e-5, 1e-4, 3e-3, 1e-2, 1.0])
def test_equal_steps(rate: float, is_complex: bool, device: Device, seed: int) -> None:
    """After the last token, a gradient only decays."""
    dim, length = device.size((2, 8192), (8, 65536))
    x = equal_steps(inputs(device, seed, is_complex=is_complex, batch=1, dim=dim, N=3, length=length, bare=True), rate)
    check_forward(device, x)
    if rate > device.size(1e-2, 1e-4):  # nothing is left of the gradient
        return
    state = torch.zeros(1, *x["A"].shape, dtype=x["A"].dtype, device=device.name, requires_grad=True)
    with device.kernels():
        out, last = scan(**x, initial_state=state)
        (found,) = torch.autograd.grad((out, last), [state], (torch.zeros_like(out), torch.ones_like(last)))
    decay = torch.exp(length * x["delta"][0, :, :1].double() * oracle.wide(x["A"]))
    assert within(found, decay.conj()[None], 1e-4)


@pytest.mark.parametrize("delta", [0.0, 1e-6, 100.0])
@EVERY_DISCRETIZATION
def test_step_sizes(name: str, is_complex: bool, delta: float, device: Device, seed: int) -> None:
    for last in layouts(device, seed):
        x = inputs(device, seed, name, length=device.size(70, 100), is_complex=is_complex, bare=True, last=last)
        x["delta"] = torch.full_like(x["delta"], delta)
        if name == "rglru" and delta == 0:  # the root's derivative is infinite there, and counts as 0
            check_forward(device, x)
            with device.kernels():
                check_at_the_root(seed, device.name)
        else:
            check(device, x, seed)


@pytest.mark.parametrize("name", ["mamba", "zoh", "bilinear", "dirac"])
@BOTH_LAYOUTS
def test_phases_of_up_to_1e4(last: bool, name: str, device: Device, seed: int) -> None:
    x = inputs(device, seed, name, length=100, is_complex=True, bare=True, last=last)
    x["A"] = torch.complex(x["A"].real, x["A"].imag * 3e3)
    check_forward(device, x)


@BOTH_LAYOUTS
def test_large_biases_and_softplus_from_both_sides(last: bool, device: Device, seed: int) -> None:
    x = inputs(device, seed, length=100, last=last)
    x["delta"] = torch.linspace(-40, 40, 2 * 4 * 100, device=device.name).view(2, 4, 100)
    x["delta"] = channels_last(x["delta"]) if last else x["delta"]
    del x["delta_a"]
    check(device, x, seed)


@pytest.mark.parametrize("dtype", [F32, BF16])
@BOTH_LAYOUTS
def test_a_layer_at_initialisation(last: bool, dtype: torch.dtype, device: Device, seed: int) -> None:
    for N in device.size((16,), (16, 64)):
        B, dim, length = device.size((1, 64, 200), (2, 96, 1500))
        x = model_inputs(seed, B, dim, length, N, dtype, last=last, device=device.name)
        for multiprocessors in few_and_many(device):
            check(device, x, seed, multiprocessors)


@pytest.mark.parametrize("zero", ["u", "delta", "B", "C", "z", "A"])
def test_zeros(zero: str, device: Device, seed: int) -> None:
    x = inputs(device, seed, length=100, bare=zero != "z")
    check(device, x | {zero: torch.zeros_like(x[zero])}, seed)


@pytest.mark.parametrize("argument, value", [("u", torch.nan), ("delta", torch.nan), ("z", torch.inf), ("u", torch.inf)])
@BOTH_LAYOUTS
def test_values_that_are_not_finite_stay_in_their_channel(
    last: bool, argument: str, value: float, device: Device, seed: int
) -> None:
    batch, length, at = device.size((2, 130, 70), (3, 200, 140))
    x = inputs(device, seed, batch=batch, dim=40, N=16, length=length, last=last)
    hurt = x | {argument: x[argument].clone(memory_format=torch.preserve_format)}
    hurt[argument][1, 22, at] = value
    for multiprocessors in few_and_many(device):
        with device.kernels(multiprocessors):
            clean, clean_state = scan(**x)
            out, state = scan(**hurt)
            found = oracle.gradients(scan, hurt, *weights((out, state), seed))
        touched = torch.zeros_like(out, dtype=torch.bool)
        touched[1, 22, at:] = True
        assert torch.equal(out[~touched], clean[~touched]) and not torch.isfinite(out[1, 22, at])
        in_channel = touched.any(-1)
        assert torch.equal(state[~in_channel], clean_state[~in_channel])
        for row in ROWS:
            assert torch.isfinite(found[row][~in_channel]).all(), row
        for parameter in ("A", "D", "delta_bias"):
            assert torch.isfinite(found[parameter][torch.arange(40) != 22]).all(), parameter
