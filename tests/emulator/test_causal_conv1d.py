"""The kernels of causal_conv1d, forward and backward, in the emulator against their definition in fp64."""

from __future__ import annotations

import itertools
from typing import Any

import causal_accuracy
import conv_oracle as oracle
import pytest
import scan_accuracy
import torch
from causal_cases import CASES, LAYOUTS, Inputs, for_oracle, inputs, laid_out, leaves
from emulated import emulated
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import causal_conv1d

BOUND = {torch.float32: 1e-5, torch.bfloat16: 4e-3, torch.float16: 1e-3}
EVERY_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)
BOTH_LAYOUTS = pytest.mark.parametrize("layout", LAYOUTS[:2])


def check(x: Inputs, multiprocessors: int = 132, final_states: bool = True) -> None:
    given = leaves(x)
    ours = {name: y.detach().requires_grad_() for name, y in given.items()}
    exact = {name: y.detach().double().requires_grad_() for name, y in given.items()}
    expected = oracle.causal_conv1d(**for_oracle(x) | exact)[: 1 + final_states]
    rng = torch.Generator().manual_seed(1)
    grads = [torch.randn(y.shape, generator=rng) for y in expected]
    grads[0] = laid_out(grads[0].to(x["x"].dtype), "channels" if x["x"].stride(1) == 1 else "tokens")
    with emulated(multiprocessors):
        found = causal_conv1d(**x | ours, return_final_states=final_states)
        found = found if final_states else (found,)
        gradients = torch.autograd.grad(found, list(ours.values()), grads)
    pairs = [(y, g.double()) for y, g in zip(expected, grads, strict=True) if y.requires_grad]
    wanted: Any = [torch.zeros_like(y) for y in exact.values()]
    if pairs:
        wanted = torch.autograd.grad(
            [y for y, _ in pairs], list(exact.values()), [g for _, g in pairs], allow_unused=True, materialize_grads=True
        )
    names = (*("out", "states")[: len(found)], *exact)
    for name, mine, theirs in zip(names, (*found, *gradients), (*expected, *wanted), strict=True):
        assert rel_rms(mine, theirs) < BOUND[mine.dtype], name


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("W, D", [(2, 16), (3, 16), (4, 10), (4, 16), (6, 16), (8, 16), (20, 10)])
@BOTH_LAYOUTS
def test_every_case(layout: str, W: int, D: int, dtype: torch.dtype, seed: int) -> None:
    """With contiguous channels, rows of 10 channels are not whole vectors."""
    for case in CASES.values():
        check(inputs(1, D, 208, W, seed, dtype=dtype, layout=layout, **case))


@EVERY_LAYOUT
@pytest.mark.parametrize(
    "B, D, L, W",
    [(1, 1, 1, 1), (2, 3, 0, 4), (0, 3, 5, 4), (2, 0, 5, 4), (2, 3, 1, 4), (3, 2, 2, 32), (2, 70, 67, 4), (1, 9, 520, 3)],
)
def test_sizes(B: int, D: int, L: int, W: int, layout: str, seed: int) -> None:
    check(inputs(B, D, L, W, seed, layout=layout, states=True, bias=True, activation="silu"))


@BOTH_LAYOUTS
@pytest.mark.parametrize("case", ["biased, silu", "packed, states"])
def test_many_tiles_of_a_block(case: str, layout: str, seed: int) -> None:
    """With one multiprocessor, blocks iterate over several tiles, and warps over long segments."""
    B, D, L = (1, 264, 1304) if layout == "channels" else (1, 136, 1600) if "packed" in case else (11, 16, 1032)
    check(inputs(B, D, L, 4, seed, layout=layout, **CASES[case]), multiprocessors=1)


@BOTH_LAYOUTS
@pytest.mark.parametrize("W", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("dtype", BOUND)
def test_borders_of_segments_and_sequences(dtype: torch.dtype, W: int, layout: str, seed: int) -> None:
    """Gradients without states. A warp has 128 or 256 tokens; an index recurs after another."""
    cases: tuple[dict[str, Any], ...] = (
        {"packed": [0, 100, 126, 127, 129, 129, 131, 254, 256, 261, 500], "bias": True, "activation": "silu"},
        {"packed": [3, 128, 256], "activation": "silu"},
        {"seq_idx": [(0, 100), (1, 26), (2, 1), (1, 2), (-1, 2), (2, 123), (3, 2), (2, 1), (3, 300)], "activation": "silu"},
    )
    for case in cases:
        check(inputs(1, 16, 520, W, seed, dtype=dtype, layout=layout, **case), final_states=False)


@BOTH_LAYOUTS
@pytest.mark.parametrize("case", ["plain", "packed", "seq_idx"])
def test_gradients_without_states(case: str, layout: str, seed: int) -> None:
    check(inputs(1, 40, 1600, 4, seed, layout=layout, **CASES[case]), multiprocessors=1, final_states=False)


@BOTH_LAYOUTS
@pytest.mark.parametrize("W", [2, 3, 4, 7])
@pytest.mark.parametrize("dtype", BOUND)
def test_arbitrary_indices(dtype: torch.dtype, W: int, layout: str, seed: int) -> None:
    """Rows with different indices, tokens that see others across tokens of another sequence, and strides."""
    rng = torch.Generator().manual_seed(seed)
    x = inputs(2, 24, 528, W, seed, dtype=dtype, layout=layout, states=True, bias=True, activation="silu")
    often, seldom = (torch.rand(2, 528, generator=rng) < rate for rate in (0.6, 0.01))
    for ids in (
        torch.randint(-1, 3, (2, 528), generator=rng, dtype=torch.int32),
        often.long().cumsum(1) + 2**40,
        torch.stack([seldom.long().cumsum(1) % 3 - 1, torch.zeros(2, 528).long()], 2)[..., 0],
        (torch.arange(528) // 521)[None].expand(2, 528),
    ):
        check(x | {"seq_idx": ids}, multiprocessors=1 if ids.is_contiguous() else 132)


@BOTH_LAYOUTS
def test_indices_of_long_rows(layout: str, seed: int) -> None:
    """Segments of many steps, and a row's last block without all of its channels."""
    ids = [(0, 257), (1, 254), (2, 1), (-1, 5), (0, 767), (3, 900), (1, 40)]
    for channels in (10, 72):
        check(inputs(1, channels, 2304, 4, seed, layout=layout, states=True, seq_idx=ids), multiprocessors=1)


# ---- Bits


def results(x: Inputs, layout: str) -> Tensor:
    with emulated():
        found: Tensor = causal_conv1d(**x | {"x": laid_out(x["x"], layout)})
    return found


@pytest.mark.parametrize("W", [3, 4])
def test_every_kernel_gives_the_same_bits(W: int, seed: int) -> None:
    for case in ("biased, silu", "packed, states", "seq_idx"):
        x = inputs(1, 24, 264, W, seed, dtype=torch.bfloat16, **CASES[case])
        first, *others = (results(x, layout) for layout in LAYOUTS)
        assert all(torch.equal(first, other) for other in others), case


@BOTH_LAYOUTS
@pytest.mark.parametrize("W", [4, 6])
def test_packed_sequences_equal_single_ones(layout: str, W: int, seed: int) -> None:
    offsets = [0, 40, 40, 42, 168, 264]
    x = inputs(1, 16, 264, W, seed, packed=offsets, states=True, bias=True, activation="silu", layout=layout)
    with emulated():
        out, states = causal_conv1d(**x, return_final_states=True)
        for i, (start, end) in enumerate(itertools.pairwise(offsets)):
            own = {name: y for name, y in x.items() if name != "cu_seqlens"}
            own |= {"x": x["x"][..., start:end], "initial_states": x["initial_states"][i : i + 1]}
            alone, final = causal_conv1d(**own, return_final_states=True)
            assert torch.equal(alone, out[..., start:end]) and torch.equal(final[0], states[i])


def test_which_kernels_run(seed: int) -> None:
    few = {
        "tokens": ("causal_conv{", "causal_conv_backward_rows{"),
        "channels": ("causal_conv_channels_last{", "causal_conv_backward_columns{"),
    }
    for layout, W in itertools.product(LAYOUTS, (1, 2, 4, 8, 9)):
        x = inputs(1, 16, 64, W, seed, layout=layout, dtype=torch.bfloat16)
        with emulated() as launches:
            out = causal_conv1d(**x | {"x": x["x"].requires_grad_()})
            torch.autograd.grad(out, x["x"], laid_out(torch.ones(1, 16, 64, dtype=torch.bfloat16), layout))
            found = sorted(launches())
        expected = few.get(layout) if 2 <= W <= 8 else None
        for kernel, name in zip(found, sorted(expected or ("causal_conv_tile{", "causal_conv_backward{")), strict=True):
            assert f"conv/{name}" in kernel


def test_which_kernels_run_with_indices(seed: int) -> None:
    few = {"tokens": "causal_conv_backward_rows{", "channels": "causal_conv_backward_columns{"}
    for layout, W, states in itertools.product(LAYOUTS, (2, 8, 9), (False, True)):
        x = inputs(1, 16, 64, W, seed, layout=layout, dtype=torch.bfloat16, states=states, seq_idx=[(0, 9), (1, 9)])
        with emulated() as launches:
            out = causal_conv1d(**x | {"x": x["x"].requires_grad_()})
            torch.autograd.grad(out, x["x"], laid_out(torch.ones(1, 16, 64, dtype=torch.bfloat16), layout))
            found = [kernel for kernel in launches() if "conv_backward" in kernel]
        assert len(found) == 1 and few.get(layout if W <= 8 else "", "causal_conv_backward{") in found[0]
        assert ".sequences = true" in found[0]


@BOTH_LAYOUTS
@pytest.mark.parametrize("W", [2, 5])
def test_missing_taps_have_no_effect(W: int, layout: str, seed: int) -> None:
    """The kernels for up to 3 and 8 taps. An infinite input affects W tokens, and no gradient of inputs."""
    x = inputs(1, 16, 64, W, seed, dtype=torch.bfloat16, layout=layout)
    x["x"][..., 20] = torch.inf
    leaf = x["x"].requires_grad_()
    grad = laid_out((torch.arange(64) >= 20 + W).to(torch.bfloat16).expand(1, 16, 64), layout)
    with emulated():
        out = causal_conv1d(**x)
        (dx,) = torch.autograd.grad(out, leaf, grad)
    assert not out[..., 20 : 20 + W].isfinite().any() and bool(out[..., 20 + W :].isfinite().all())
    assert bool(dx.isfinite().all())


# ---- Pools


def pool_inputs(W: int, width: int, layout: str, seed: int, dtype: torch.dtype = torch.bfloat16) -> tuple[Inputs, Inputs]:
    x = inputs(1, 16, 200, W, seed, packed=[0, 1, 3, 3, 140, 190], bias=True, activation="silu", layout=layout, dtype=dtype)
    pool = torch.randn(7, width, 16, generator=torch.Generator().manual_seed(seed)).mT
    slots, has_initial = torch.tensor([4, 0, 6, -1, 2]), torch.tensor([True, True, False, True, False])
    return x, {"conv_state": pool, "state_indices": slots, "has_initial_state": has_initial}


@EVERY_LAYOUT
@pytest.mark.parametrize("W, width", [(2, 1), (4, 3), (4, 6), (12, 11), (1, 0)])
def test_pools(W: int, width: int, layout: str, seed: int) -> None:
    x, pool = pool_inputs(W, width, layout, seed)
    given = for_oracle(x)
    order = ("conv_state", "state_indices", "has_initial_state")
    expected, after = oracle.into_pool(
        *(given[name] for name in ("x", "weight", "bias")), *(pool[name] for name in order), True, given["cu_seqlens"]
    )
    with emulated():
        out = causal_conv1d(**x, **pool)
    assert rel_rms(out, expected) < BOUND[torch.bfloat16] and rel_rms(pool["conv_state"], after) < 1e-6


@BOTH_LAYOUTS
def test_pools_of_a_batch(layout: str, seed: int) -> None:
    x = inputs(3, 8, 40, 4, seed, activation="silu", layout=layout)
    pool = torch.randn(3, 8, 3, generator=torch.Generator().manual_seed(seed))
    expected, after = oracle.into_pool(x["x"], x["weight"], None, pool, None, None, True)
    with emulated():
        out = causal_conv1d(**x, conv_state=pool)
    assert rel_rms(out, expected) < 1e-5 and rel_rms(pool, after) < 1e-6


@EVERY_LAYOUT
def test_pools_with_indices(layout: str, seed: int) -> None:
    """A row that continues, one from zeros, one without a slot and one with an invalid slot."""
    x = inputs(4, 16, 520, 4, seed, layout=layout, activation="silu", seq_idx=[(2, 1), (3, 255), (2, 9)])
    pool = torch.randn(3, 16, 3, generator=torch.Generator().manual_seed(seed))
    initial = torch.stack([pool[2], torch.zeros(16, 3)])
    two = for_oracle(x) | {"initial_states": initial, "x": x["x"][:2], "seq_idx": x["seq_idx"][:2]}
    expected, _ = oracle.causal_conv1d(**two)
    slots, has_initial = torch.tensor([2, 0, -1, 3]), torch.tensor([True, False, True, True])
    with emulated():
        out = causal_conv1d(**x, conv_state=pool, state_indices=slots, has_initial_state=has_initial)
    assert rel_rms(out[:2], expected) < 1e-5 and not out[2].any() and bool(out[3].isnan().all())


@EVERY_LAYOUT
@pytest.mark.parametrize("slot", [7, 2**31 - 1, -(2**31)])
def test_invalid_slots_touch_nothing(slot: int, layout: str, seed: int) -> None:
    x, pool = pool_inputs(4, 3, layout, seed, torch.float32)
    pool["state_indices"] = pool["state_indices"].int()
    pool["state_indices"][1] = slot
    before = pool["conv_state"].clone()
    with emulated():
        out = causal_conv1d(**x, **pool)
    invalid = out[..., 1:3]
    assert bool(invalid.isnan().all()) if slot > 0 else not invalid.any()
    assert torch.equal(pool["conv_state"][[0, 1, 3, 5]], before[[0, 1, 3, 5]]) and bool(out[..., 140:].isfinite().all())


# ---- Hostile inputs


@EVERY_LAYOUT
@pytest.mark.parametrize("offsets", [[-5, 400], [0, 10**9, -(10**9)], [7, 3, 150], [200, 0], [0, 0], [0, 90]])
def test_invalid_offsets_touch_nothing_outside(offsets: list[int], layout: str, seed: int) -> None:
    x = inputs(1, 8, 200, 4, seed, layout=layout, packed=[0] * len(offsets), states=True, activation="silu")
    x["cu_seqlens"] = torch.tensor(offsets)
    given = leaves(x)
    ours = {name: y.requires_grad_() for name, y in given.items()}
    with emulated():
        found = causal_conv1d(**x | ours, return_final_states=True)
        torch.autograd.grad(found, list(ours.values()), [torch.ones_like(y) for y in found])


@EVERY_LAYOUT
@pytest.mark.parametrize("case, first, last", [("packed, states", 8, 128), ("seq_idx", 9, 69)])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_sequences_do_not_affect_each_other(bad: float, case: str, first: int, last: int, layout: str, seed: int) -> None:
    x = inputs(1, 8, 200, 4, seed, layout=layout, **CASES[case])
    spoilt = x["x"].clone(memory_format=torch.preserve_format)
    spoilt[..., :first] = bad
    spoilt[..., last:] = bad
    grad = torch.zeros(1, 8, 200)
    grad[..., :first] = bad
    grad[..., first + 20 : last] = 1
    with emulated():
        clean, out = (causal_conv1d(**x | {"x": y.requires_grad_()}) for y in (x["x"], spoilt))
        (dx,) = torch.autograd.grad(out, spoilt, grad)
        (wanted,) = torch.autograd.grad(clean, x["x"], grad)
    assert torch.equal(out[..., first:last], clean[..., first:last])
    assert torch.equal(dx[..., first:last], wanted[..., first:last]) and bool(dx[..., first:last].isfinite().all())


@BOTH_LAYOUTS
def test_gradients_of_any_strides(layout: str, seed: int) -> None:
    """An expanded gradient, as that of a sum, and one in the other layout."""
    x = inputs(2, 8, 40, 4, seed, layout=layout, activation="silu")
    given = x["x"].requires_grad_()
    grads = [torch.ones(()).expand(2, 8, 40), *(laid_out(torch.ones(2, 8, 40), each) for each in LAYOUTS)]
    with emulated():
        first, *others = (torch.autograd.grad(causal_conv1d(**x), given, grad)[0] for grad in grads)
    assert all(torch.equal(first, other) for other in others)


# ---- Accuracy

PARTS = causal_accuracy.parts(length=504)


@pytest.mark.parametrize("part", PARTS)
def test_accuracy(part: str, seed: int) -> None:
    """The table of causal_accuracy.py, without errors of approximate instructions; `pytest -s` prints it."""
    with emulated():
        scan_accuracy.check(part, PARTS, "cpu", seed)
