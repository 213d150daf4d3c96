"""The kernels of selective_scan, forward and backward, in the emulator against the literal recurrence in fp64."""

from __future__ import annotations

from typing import Any

import oracle
import pytest
import torch
from emulated import emulated
from oracle import within
from selective_checks import BOTH_LAYOUTS, BOUND, EVERY_DISCRETIZATION, FEW_AND_MANY, ROWS, check, plain_inputs, scan, weights
from selective_inputs import INVALID_OFFSETS, channels_last, check_at_the_root, equal_steps, model_inputs, selective_inputs
from torch import Tensor

# ---- Sizes and forms


@pytest.mark.parametrize("length", [1, 63, 64, 65, 130])
@FEW_AND_MANY
@BOTH_LAYOUTS
def test_lengths(length: int, multiprocessors: int, last: bool, seed: int) -> None:
    """70 channels, in partial blocks and in several blocks."""
    check(selective_inputs(seed, length=length, dim=35, N=16, last=last), seed, multiprocessors)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim, length", [(32, 72), (37, 67)], ids=["vectors", "odd"])
@FEW_AND_MANY
@BOTH_LAYOUTS
def test_half_precision(dtype: torch.dtype, dim: int, length: int, multiprocessors: int, last: bool, seed: int) -> None:
    check(selective_inputs(seed, length=length, dim=dim, N=16, dtype=dtype, last=last), seed, multiprocessors)


@EVERY_DISCRETIZATION
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@BOTH_LAYOUTS
def test_plain_tiles(name: str, is_complex: bool, dtype: torch.dtype, last: bool, seed: int) -> None:
    check(plain_inputs(seed, name, is_complex=is_complex, dtype=dtype, last=last), seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("N", [16, 48])
@BOTH_LAYOUTS
def test_plain_tiles_of_many_channels(dtype: torch.dtype, N: int, last: bool, seed: int) -> None:
    check(plain_inputs(seed, N=N, dtype=dtype, last=last), seed, multiprocessors=1)


@pytest.mark.parametrize(
    "N, dim, is_complex", [(1, 9, False), (7, 9, False), (17, 9, False), (64, 3, False), (1, 9, True), (33, 3, True)]
)
@BOTH_LAYOUTS
def test_states(N: int, dim: int, is_complex: bool, last: bool, seed: int) -> None:
    check(selective_inputs(seed, length=70, dim=dim, N=N, is_complex=is_complex, last=last), seed)


@EVERY_DISCRETIZATION
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_whole_chunks_of_vectors(name: str, is_complex: bool, dtype: torch.dtype, seed: int) -> None:
    """Vectors of tokens, without delta_a: two chunks, and two blocks of 16 channels or less."""
    x = selective_inputs(seed, name, is_complex=is_complex, batch=1, length=128, dim=32, N=3, dtype=dtype)
    check(x | {"delta_a": None}, seed)


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
def test_discretizations(name: str, is_complex: bool, form: str, seed: int) -> None:
    x = {"length": 133, "dim": 8, "N": 5} | FORMS[form]
    check(selective_inputs(seed, name, is_complex=is_complex, last=bool(seed % 2), **x), seed)


@pytest.mark.parametrize("form", ["varying", "B-constant", "packed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_complex_coefficients_in_pairs(form: str, dtype: torch.dtype, seed: int) -> None:
    x = {"length": 133, "dtype": dtype, "last": bool(seed % 2)} | FORMS[form]
    check(selective_inputs(seed, is_complex=True, in_pairs=True, **x), seed)


@BOTH_LAYOUTS
def test_coefficients_in_fp32_beside_rows_in_half(last: bool, seed: int) -> None:
    check(selective_inputs(seed, length=70, dtype=torch.bfloat16, wide_coefficients=True, last=last), seed)
    mixed = selective_inputs(seed, length=70, dtype=torch.bfloat16, last=last)
    check(mixed | {"B": mixed["B"].float()}, seed)


@pytest.mark.parametrize("other", ["B", "C", "BC"])
@BOTH_LAYOUTS
def test_coefficients_in_the_other_layout(other: str, last: bool, seed: int) -> None:
    """Rows in the other layout have their own code for whole tiles."""
    x = selective_inputs(seed, batch=1, length=192, dim=32, N=16, dtype=torch.bfloat16, last=last) | {"delta_a": None}
    check(x | {name: x[name].contiguous() if last else x[name].mT.contiguous().mT for name in other}, seed)


@pytest.mark.parametrize("groups", [2, 3, 36])
@BOTH_LAYOUTS
def test_groups(groups: int, last: bool, seed: int) -> None:
    check(selective_inputs(seed, length=70, dim=36, N=16, groups=groups, last=last), seed)


@pytest.mark.parametrize("batch, dim, length, cu_seqlens", [(2, 4, 0, None), (0, 4, 5, None), (2, 0, 5, None), (1, 4, 5, [0])])
@pytest.mark.parametrize("B", ["varying", "constant"])
@BOTH_LAYOUTS
def test_empty_tensors(batch: int, dim: int, length: int, cu_seqlens: list[int] | None, B: str, last: bool, seed: int) -> None:
    x = selective_inputs(seed, batch=batch, dim=dim, length=length, cu_seqlens=cu_seqlens, B=B, last=last)
    with emulated():
        out, state = scan(**x)
        found = oracle.gradients(scan, x, torch.ones_like(out), torch.ones_like(state))
    assert out.shape == (batch, dim, length) and not out.any() and state.shape == x["initial_state"].shape
    assert torch.equal(state, x["initial_state"]) and torch.equal(found.pop("initial_state"), torch.ones_like(state))
    assert not any(gradient.any() for gradient in found.values())


# ---- Memory


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@BOTH_LAYOUTS
def test_slices_and_mixed_layouts(dtype: torch.dtype, last: bool, seed: int) -> None:
    """Rows that start off 16 bytes, in a larger tensor full of NaN; z in the other layout; strides that are never 1."""
    x = selective_inputs(seed, length=70, dim=6, N=16, dtype=dtype, last=last)

    def within_more(x: Tensor) -> Tensor:
        more = torch.full([size + 3 for size in x.shape], torch.nan, dtype=x.dtype)
        return (channels_last(more) if last else more)[1:-2, 1:-2, 1:-2].copy_(x)

    y = {k: within_more(v) if k in ROWS else v for k, v in x.items()}
    y["z"] = x["z"].contiguous() if last else channels_last(x["z"])
    y["B"] = channels_last(x["B"])
    check(y, seed)
    check({k: torch.stack([v, v], -1)[..., 0] if isinstance(v, Tensor) else v for k, v in x.items()}, seed)


@pytest.mark.parametrize("offsets", INVALID_OFFSETS)
@BOTH_LAYOUTS
def test_invalid_offsets_touch_nothing_outside(offsets: list[int], last: bool, seed: int) -> None:
    x = selective_inputs(seed, batch=1, length=271, cu_seqlens=[0, 5, 6, 7, 271], last=last)
    x |= {"cu_seqlens": torch.tensor(offsets)}
    with emulated():
        out, state = scan(**x)
        found = oracle.gradients(scan, x, torch.ones_like(out), torch.ones_like(state))
    assert all(torch.isfinite(y).all() for y in (out, state, *found.values()))


# ---- Values


@pytest.mark.parametrize("rate", [1e-6, 1.0, 1e3])
@pytest.mark.parametrize("name", ["mamba", "zoh", "bilinear"])
def test_rates(rate: float, name: str, seed: int) -> None:
    x = selective_inputs(seed, name, length=130, bare=True, last=bool(seed % 2))
    check(x | {"A": torch.full_like(x["A"], -rate) * torch.tensor([0.5, 1, 2])}, seed)


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("rate", [1e-6, 1e-4, 3e-3, 1e-2])
def test_equal_steps(rate: float, is_complex: bool, seed: int) -> None:
    """After the last token, a gradient only decays."""
    x = equal_steps(selective_inputs(seed, is_complex=is_complex, batch=1, dim=2, N=3, length=8192, bare=True), rate)
    state = torch.zeros(1, *x["A"].shape, dtype=x["A"].dtype, requires_grad=True)
    with emulated():
        out, last = scan(**x, initial_state=state)
        (found,) = torch.autograd.grad((out, last), [state], (torch.zeros_like(out), torch.ones_like(last)))
    for mine, theirs in zip((out, last), oracle.selective_scan(**x), strict=True):
        assert within(mine, theirs, BOUND)
    decay = torch.exp(8192 * x["delta"][0, :, :1].double() * oracle.wide(x["A"]))
    assert within(found, decay.conj()[None], 1e-4)


@pytest.mark.parametrize("delta", [0.0, 100.0])
@EVERY_DISCRETIZATION
def test_step_sizes(delta: float, name: str, is_complex: bool, seed: int) -> None:
    x = selective_inputs(seed, name, length=70, is_complex=is_complex, bare=True, last=bool(seed % 2))
    x["delta"] = torch.full_like(x["delta"], delta)
    if name == "rglru" and delta == 0:  # the root's derivative is infinite there, and counts as 0
        with emulated():
            results = scan(**x)
            check_at_the_root(seed)
        for mine, theirs in zip(results, oracle.selective_scan(**x), strict=True):
            assert within(mine, theirs, BOUND)
    else:
        check(x, seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@FEW_AND_MANY
@BOTH_LAYOUTS
def test_a_layer_at_initialisation(dtype: torch.dtype, multiprocessors: int, last: bool, seed: int) -> None:
    check(model_inputs(seed, 1, 64, 200, 16, dtype, last=last), seed, multiprocessors)


@pytest.mark.parametrize("argument, value", [("u", torch.nan), ("delta", torch.nan), ("z", torch.inf), ("u", torch.inf)])
@FEW_AND_MANY
@BOTH_LAYOUTS
def test_values_that_are_not_finite_stay_in_their_channel(
    argument: str, value: float, multiprocessors: int, last: bool, seed: int
) -> None:
    x = selective_inputs(seed, batch=2, dim=40, N=16, length=130, last=last)
    hurt = x | {argument: x[argument].clone(memory_format=torch.preserve_format)}
    hurt[argument][1, 22, 70] = value
    with emulated(multiprocessors):
        clean, clean_state = scan(**x)
        out, state = scan(**hurt)
        found = oracle.gradients(scan, hurt, *weights((out, state), seed))
    touched = torch.zeros_like(out, dtype=torch.bool)
    touched[1, 22, 70:] = True
    assert torch.equal(out[~touched], clean[~touched]) and not torch.isfinite(out[1, 22, 70])
    in_channel = touched.any(-1)
    assert torch.equal(state[~in_channel], clean_state[~in_channel])
    for row in ROWS:
        assert torch.isfinite(found[row][~in_channel]).all(), row
    for parameter in ("A", "D", "delta_bias"):
        assert torch.isfinite(found[parameter][torch.arange(40) != 22]).all(), parameter
