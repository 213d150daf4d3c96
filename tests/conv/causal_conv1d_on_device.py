"""causal_conv1d's kernels, forward and backward, against the definition in fp64: options, layouts and dtypes, pools, hostile
inputs."""

from __future__ import annotations

import itertools
from typing import Any

import conv_oracle as oracle
import pytest
import torch
from causal_cases import CASES, LAYOUTS, Inputs, for_oracle, inputs, laid_out, leaves
from devices import Device
from helpers import rel_rms

from gdn_cuda import causal_conv1d

OUT = {torch.float32: 1e-5, torch.bfloat16: 3e-3, torch.float16: 6e-4}
# Sums of gradients, in which a GPU's approximate instructions add up.
GRAD = {torch.float32: 1e-4, torch.bfloat16: 4e-3, torch.float16: 1e-3}
EVERY_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)
BOTH_LAYOUTS = pytest.mark.parametrize("layout", LAYOUTS[:2])


def check(device: Device, x: Inputs, multiprocessors: int = 132, final_states: bool = True) -> None:
    given = leaves(x)
    ours = {name: y.detach().requires_grad_() for name, y in given.items()}
    exact = {name: y.detach().cpu().double().requires_grad_() for name, y in given.items()}
    expected = oracle.causal_conv1d(**for_oracle(x) | exact)[: 1 + final_states]
    rng = torch.Generator().manual_seed(1)
    grads = [torch.randn(y.shape, generator=rng) for y in expected]
    grads[0] = laid_out(grads[0].to(x["x"].dtype), "channels" if x["x"].stride(1) == 1 else "tokens")
    with device.kernels(multiprocessors):
        found = causal_conv1d(**x | ours, return_final_states=final_states)
        found = found if final_states else (found,)
        gradients = torch.autograd.grad(found, list(ours.values()), [y.to(device.name) for y in grads])
    pairs = [(y, g.double()) for y, g in zip(expected, grads, strict=True) if y.requires_grad]
    wanted: Any = [torch.zeros_like(y) for y in exact.values()]
    if pairs:
        wanted = torch.autograd.grad(
            [y for y, _ in pairs], list(exact.values()), [g for _, g in pairs], allow_unused=True, materialize_grads=True
        )
    for mine, theirs in zip(found, expected, strict=True):
        assert rel_rms(mine.cpu(), theirs) < OUT[mine.dtype]
    for name, mine, theirs in zip(exact, gradients, wanted, strict=True):
        bound = device.size(OUT, GRAD) if mine.dtype == torch.float32 else GRAD
        assert rel_rms(mine.cpu(), theirs) < bound[mine.dtype], name


@pytest.mark.parametrize("dtype", OUT)
@pytest.mark.parametrize("W, D", [(2, 16), (3, 16), (4, 10), (4, 16), (6, 16), (7, 16), (8, 16), (20, 10), (32, 16)])
@EVERY_LAYOUT
def test_options(layout: str, W: int, D: int, dtype: torch.dtype, device: Device, seed: int) -> None:
    """Rows of 10 or 34 channels are not whole vectors where channels are contiguous."""
    for case in CASES.values():
        check(device, inputs(1, device.size(D, D + 24), 208, W, seed, device=device.name, dtype=dtype, layout=layout, **case))


@EVERY_LAYOUT
@pytest.mark.parametrize(
    "B, D, L, W",
    [(1, 1, 1, 1), (2, 3, 0, 4), (0, 3, 5, 4), (2, 0, 5, 4), (2, 3, 1, 4), (3, 2, 2, 32), (2, 70, 67, 4), (1, 9, 520, 3)],
)
def test_sizes(B: int, D: int, L: int, W: int, layout: str, device: Device, seed: int) -> None:
    check(device, inputs(B, D, L, W, seed, device=device.name, layout=layout, states=True, bias=True, activation="silu"))


@BOTH_LAYOUTS
@pytest.mark.parametrize("W", [2, 3, 4, 6, 7, 8])
@pytest.mark.parametrize("dtype", OUT)
def test_borders_of_sequences(dtype: torch.dtype, W: int, layout: str, device: Device, seed: int) -> None:
    """Gradients without states. A warp takes segments of 128 or 256 tokens; index 2 comes twice, with another one between."""
    D = device.size(16, 40)
    for L in device.size((520,), (520, 4104)):
        lengths = [100, 26, 1, 2, 0, 2, 123, 3, 1, L - 350]
        offsets = list(itertools.accumulate(lengths, initial=0))
        indices = list(zip((0, 1, 2, 1, 1, -1, 2, 3, 2, 3), lengths, strict=True))
        options: tuple[dict[str, Any], ...] = (
            {"packed": offsets, "bias": True},
            {"packed": [0, 100, 126, 127, 129, 129, 131, 254, 256, 261, L - 20], "bias": True},
            {"packed": [3, 128, 256]},
            {"seq_idx": indices, "bias": True},
        )
        for each in options:
            x = inputs(1, D, L, W, seed, device=device.name, dtype=dtype, layout=layout, activation="silu", **each)
            check(device, x, final_states=False)


@BOTH_LAYOUTS
@pytest.mark.parametrize("W", [2, 3, 4, 6])
@pytest.mark.parametrize("dtype", OUT)
def test_initial_states_without_final_ones(dtype: torch.dtype, W: int, layout: str, device: Device, seed: int) -> None:
    """As where a sequence goes on from another GPU."""
    for L in (1, 8, 520, *device.size((), (4104,))):
        x = inputs(2, 16, L, W, seed, device=device.name, dtype=dtype, layout=layout, states=True, bias=True, activation="silu")
        for states in (dtype, torch.float32):
            check(device, x | {"initial_states": x["initial_states"].to(states)}, final_states=False)


@BOTH_LAYOUTS
@pytest.mark.parametrize("W", [2, 3, 4, 7])
@pytest.mark.parametrize("dtype", OUT)
def test_any_indices(dtype: torch.dtype, W: int, layout: str, device: Device, seed: int) -> None:
    """Rows with different indices, tokens whose sequence has other tokens between, and strides."""
    rng = torch.Generator().manual_seed(seed)
    D, L = device.size((24, 528), (72, 536))
    x = inputs(2, D, L, W, seed, device=device.name, dtype=dtype, layout=layout, states=True, bias=True, activation="silu")
    often, seldom = (torch.rand(2, L, generator=rng) < rate for rate in (0.6, 0.01))
    for ids in (
        torch.randint(-1, 3, (2, L), generator=rng, dtype=torch.int32),
        often.long().cumsum(1) + 2**40,
        torch.stack([seldom.long().cumsum(1) % 3 - 1, torch.zeros(2, L).long()], 2)[..., 0],
        (torch.arange(L) // (L - 7))[None].expand(2, L),
    ):
        strided = ids.to(device.name).repeat_interleave(2, 1)[:, ::2]
        check(device, x | {"seq_idx": ids.to(device.name)}, multiprocessors=1 if ids.is_contiguous() else 132)
        check(device, x | {"seq_idx": strided})


@pytest.mark.parametrize("W", [3, 4])
def test_every_kernel_gives_the_same_bits(W: int, device: Device, seed: int) -> None:
    """The layouts take different kernels."""
    D, L = device.size((24, 264), (72, 2064))
    for case in ("biased, silu", "packed, states", "seq_idx"):
        x = inputs(1, D, L, W, seed, device=device.name, dtype=torch.bfloat16, **CASES[case])
        with device.kernels():
            first, *others = (causal_conv1d(**x | {"x": laid_out(x["x"], layout)}) for layout in LAYOUTS)
        assert all(torch.equal(first, other) for other in others), case


@BOTH_LAYOUTS
@pytest.mark.parametrize("W", [4, 6])
def test_packed_sequences_are_those_alone(layout: str, W: int, device: Device, seed: int) -> None:
    D, L = device.size((16, 264), (136, 3000))
    offsets = [0, 40, 40, 42, 168, L]
    x = inputs(
        1, D, L, W, seed, device=device.name, packed=offsets, states=True, bias=True, activation="silu", layout=layout
    )  # fmt: skip
    with device.kernels():
        out, states = causal_conv1d(**x, return_final_states=True)
        for i, (start, end) in enumerate(itertools.pairwise(offsets)):
            own = {name: y for name, y in x.items() if name != "cu_seqlens"}
            own |= {"x": x["x"][..., start:end], "initial_states": x["initial_states"][i : i + 1]}
            alone, state = causal_conv1d(**own, return_final_states=True)
            assert torch.equal(alone, out[..., start:end]) and torch.equal(state[0], states[i])


# ---- Pools


def pool_inputs(
    device: Device, W: int, width: int, layout: str, seed: int, dtype: torch.dtype = torch.bfloat16
) -> tuple[Inputs, Inputs]:
    """A pool whose slots are (W − 1, D) in memory, as engines have it."""
    D, offsets = device.size(16, 136), [0, 1, 3, 3, 140, 190]
    x = inputs(
        1, D, 200, W, seed, device=device.name, packed=offsets, bias=True, activation="silu", layout=layout, dtype=dtype
    )  # fmt: skip
    pool = torch.randn(7, width, D, generator=torch.Generator().manual_seed(seed)).to(device.name).mT
    slots, has_initial = torch.tensor([4, 0, 6, -1, 2]), torch.tensor([True, True, False, True, False])
    return x, {
        "conv_state": pool,
        "state_indices": slots.to(device.name),
        "has_initial_state": has_initial.to(device.name),
    }


@EVERY_LAYOUT
@pytest.mark.parametrize("W, width", [(2, 1), (4, 3), (4, 6), (12, 11), (1, 0)])
def test_pools(W: int, width: int, layout: str, device: Device, seed: int) -> None:
    x, pool = pool_inputs(device, W, width, layout, seed)
    given = for_oracle(x)
    order = ("conv_state", "state_indices", "has_initial_state")
    expected, after = oracle.into_pool(
        *(given[name] for name in ("x", "weight", "bias")), *(pool[name] for name in order), True, given["cu_seqlens"]
    )
    with device.kernels():
        out = causal_conv1d(**x, **pool)
    assert rel_rms(out.cpu(), expected) < OUT[torch.bfloat16] and rel_rms(pool["conv_state"].cpu(), after) < 1e-6


@EVERY_LAYOUT
def test_pools_with_indices(layout: str, device: Device, seed: int) -> None:
    """A row that continues, one from zeros, one without a slot and one whose slot is past the pool."""
    x = inputs(4, 16, 520, 4, seed, device=device.name, layout=layout, activation="silu", seq_idx=[(2, 1), (3, 255), (2, 9)])
    pool = torch.randn(3, 16, 3, generator=torch.Generator().manual_seed(seed))
    initial = torch.stack([pool[2], torch.zeros(16, 3)])
    two = for_oracle(x) | {"initial_states": initial, "x": x["x"][:2], "seq_idx": x["seq_idx"][:2]}
    expected, _ = oracle.causal_conv1d(**two)
    slots, has_initial = torch.tensor([2, 0, -1, 3]), torch.tensor([True, False, True, True])
    into = {"conv_state": pool, "state_indices": slots, "has_initial_state": has_initial}
    with device.kernels():
        out = causal_conv1d(**x, **{name: y.to(device.name) for name, y in into.items()}).cpu()
    assert rel_rms(out[:2], expected) < 1e-5 and not out[2].any() and bool(out[3].isnan().all())


# ---- Hostile inputs, also for compute-sanitizer


@EVERY_LAYOUT
@pytest.mark.parametrize("slot", [7, 2**31 - 1, -(2**31)])
def test_invalid_slots_touch_nothing(slot: int, layout: str, device: Device, seed: int) -> None:
    x, pool = pool_inputs(device, 4, 3, layout, seed, torch.float32)
    pool["state_indices"] = pool["state_indices"].int()
    pool["state_indices"][1] = slot
    before = pool["conv_state"].clone()
    with device.kernels():
        out = causal_conv1d(**x, **pool)
    invalid = out[..., 1:3]
    assert bool(invalid.isnan().all()) if slot > 0 else not invalid.any()
    assert torch.equal(pool["conv_state"][[0, 1, 3, 5]], before[[0, 1, 3, 5]]) and bool(out[..., 140:].isfinite().all())


@EVERY_LAYOUT
@pytest.mark.parametrize("offsets", [[-5, 400], [0, 10**9, -(10**9)], [7, 3, 150], [200, 0], [0, 0], [0, 90]])
def test_invalid_offsets_touch_nothing_outside(offsets: list[int], layout: str, device: Device, seed: int) -> None:
    packed = [0] * len(offsets)
    x = inputs(1, 8, 200, 4, seed, device=device.name, layout=layout, packed=packed, states=True, activation="silu")
    x["cu_seqlens"] = torch.tensor(offsets, device=device.name)
    given = {name: y.requires_grad_() for name, y in leaves(x).items()}
    with device.kernels():
        found = causal_conv1d(**x | given, return_final_states=True)
        torch.autograd.grad(found, list(given.values()), [torch.ones_like(y) for y in found])
    device.synchronize()


@EVERY_LAYOUT
@pytest.mark.parametrize("case, first, last", [("packed, states", 8, 128), ("seq_idx", 9, 69)])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nothing_comes_from_other_sequences(
    bad: float, case: str, first: int, last: int, layout: str, device: Device, seed: int
) -> None:
    x = inputs(1, 8, 200, 4, seed, device=device.name, layout=layout, **CASES[case])
    spoilt = laid_out(x["x"].clone(), layout)
    spoilt[..., :first] = bad
    spoilt[..., last:] = bad
    grad = torch.zeros(1, 8, 200, device=device.name)
    grad[..., :first] = bad
    grad[..., first + 20 : last] = 1
    with device.kernels():
        clean, out = (causal_conv1d(**x | {"x": y.requires_grad_()}) for y in (x["x"], spoilt))
        (found,) = torch.autograd.grad(out, spoilt, grad)
        (wanted,) = torch.autograd.grad(clean, x["x"], grad)
    assert torch.equal(out[..., first:last], clean[..., first:last])
    assert torch.equal(found[..., first:last], wanted[..., first:last]) and bool(found[..., first:last].isfinite().all())
