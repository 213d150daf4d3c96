"""causal_conv1d's kernels on a GPU against the definition in fp64: cases, layouts and dtypes, hostile inputs, huge strides."""

from __future__ import annotations

import itertools
from typing import Any

import conv_oracle as oracle
import pytest
import torch
from causal_cases import CASES, LAYOUTS, Inputs, for_oracle, inputs, laid_out, leaves
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import causal_conv1d

OUT = {torch.float32: 1e-5, torch.bfloat16: 3e-3, torch.float16: 6e-4}
GRAD = {torch.float32: 1e-4, torch.bfloat16: 4e-3, torch.float16: 1e-3}
EVERY_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)
BOTH_LAYOUTS = pytest.mark.parametrize("layout", LAYOUTS[:2])


def check(x: Inputs, final_states: bool = True) -> None:
    given = leaves(x)
    ours = {name: y.detach().requires_grad_() for name, y in given.items()}
    exact = {name: y.detach().cpu().double().requires_grad_() for name, y in given.items()}
    expected = oracle.causal_conv1d(**for_oracle(x) | exact)[: 1 + final_states]
    found = causal_conv1d(**x | ours, return_final_states=final_states)
    found = found if final_states else (found,)
    rng = torch.Generator().manual_seed(1)
    grads = [torch.randn(y.shape, generator=rng).to(mine.dtype) for y, mine in zip(expected, found, strict=True)]
    on_gpu = [y.cuda() for y in grads]
    on_gpu[0] = laid_out(on_gpu[0], "channels" if x["x"].stride(1) == 1 else "tokens")
    gradients = torch.autograd.grad(found, list(ours.values()), on_gpu)
    pairs = [(y, g.double()) for y, g in zip(expected, grads, strict=True) if y.requires_grad]
    wanted: Any = [torch.zeros_like(y) for y in exact.values()]
    if pairs:
        wanted = torch.autograd.grad(
            [y for y, _ in pairs], list(exact.values()), [g for _, g in pairs], allow_unused=True, materialize_grads=True
        )
    for mine, theirs in zip(found, expected, strict=True):
        assert rel_rms(mine.cpu(), theirs) < OUT[mine.dtype]
    for name, mine, theirs in zip(exact, gradients, wanted, strict=True):
        assert rel_rms(mine.cpu(), theirs) < GRAD[mine.dtype], name


@pytest.mark.parametrize("dtype", OUT)
@pytest.mark.parametrize("W", [2, 3, 4, 7, 32])
@EVERY_LAYOUT
def test_every_case(layout: str, W: int, dtype: torch.dtype, seed: int) -> None:
    for case in CASES.values():
        check(inputs(1, 40, 208, W, seed, device="cuda", dtype=dtype, layout=layout, **case))


@pytest.mark.parametrize("dtype", OUT)
@pytest.mark.parametrize("W", [2, 3, 4, 7, 8])
@BOTH_LAYOUTS
def test_gradients_without_states(layout: str, W: int, dtype: torch.dtype, seed: int) -> None:
    """Warps' segments of 128 or 256 tokens begin and end next to sequences' borders."""
    for L in (520, 4104):
        lengths = [100, 26, 1, 2, 0, 2, 123, 3, 1, L - 350]
        offsets = list(itertools.accumulate(lengths, initial=0))
        indices = [(index, count) for index, count in zip((0, 1, 2, 1, 1, -1, 2, 3, 2, 3), lengths, strict=True)]
        for case in ({"packed": offsets}, {"seq_idx": indices}):
            given = inputs(1, 40, L, W, seed, device="cuda", dtype=dtype, layout=layout, bias=True, activation="silu", **case)
            check(given, final_states=False)


@pytest.mark.parametrize("dtype", OUT)
@pytest.mark.parametrize("W", [2, 4, 7])
@BOTH_LAYOUTS
def test_arbitrary_indices(layout: str, W: int, dtype: torch.dtype, seed: int) -> None:
    """Rows with different indices, tokens that see others across tokens of another sequence, and strides."""
    rng = torch.Generator().manual_seed(seed)
    x = inputs(2, 72, 536, W, seed, device="cuda", dtype=dtype, layout=layout, states=True, bias=True, activation="silu")
    often, seldom = (torch.rand(2, 536, generator=rng) < rate for rate in (0.6, 0.01))
    for ids in (
        torch.randint(-1, 3, (2, 536), generator=rng, dtype=torch.int32),
        often.long().cumsum(1) + 2**40,
        torch.stack([seldom.long().cumsum(1) % 3 - 1, torch.zeros(2, 536).long()], 2)[..., 0],
        (torch.arange(536) // 529)[None].expand(2, 536),
    ):
        check(x | {"seq_idx": ids.cuda() if ids.dtype == torch.int32 else ids.cuda().repeat_interleave(2, 1)[:, ::2]})


@BOTH_LAYOUTS
def test_indices_of_many_segments(layout: str, seed: int) -> None:
    """Segments of several steps and of 256 tokens: gradients equal those of the same sequences packed."""
    lengths = [1, 6, 1000, 255, 2, 8192, 1, 4000, 30000, 7]
    L, D = sum(lengths), 4104
    offsets = [0, *itertools.accumulate(lengths)]
    x = inputs(
        1, D, L, 4, seed, device="cuda", dtype=torch.bfloat16, layout=layout, bias=True, activation="silu", packed=offsets
    )
    given = {name: y.requires_grad_() for name, y in leaves(x).items()}
    packed = causal_conv1d(**x | given)
    counts = torch.tensor(lengths, device="cuda")
    ids = torch.arange(len(lengths), device="cuda").repeat_interleave(counts)[None]
    by_index = causal_conv1d(**{name: y for name, y in x.items() if name != "cu_seqlens"} | given, seq_idx=ids)
    assert torch.equal(by_index, packed)
    grad = torch.randn_like(packed)
    index_gradients, packed_gradients = (torch.autograd.grad(out, list(given.values()), grad) for out in (by_index, packed))
    for mine, wanted in zip(index_gradients, packed_gradients, strict=True):
        assert ((mine.float() - wanted.float()).norm() / wanted.float().norm()).item() < GRAD[torch.bfloat16]


@BOTH_LAYOUTS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fp32_weights_beside_16_bit_activations(dtype: torch.dtype, layout: str, seed: int) -> None:
    check(inputs(2, 136, 300, 4, seed, device="cuda", dtype=dtype, weight_dtype=torch.float32, bias=True, layout=layout))


@EVERY_LAYOUT
@pytest.mark.parametrize(
    "B, D, L, W", [(1, 1, 1, 1), (2, 3, 0, 4), (0, 3, 5, 4), (2, 0, 5, 4), (2, 3, 1, 4), (3, 2, 2, 32), (2, 264, 1032, 4)]
)
def test_sizes(B: int, D: int, L: int, W: int, layout: str, seed: int) -> None:
    check(inputs(B, D, L, W, seed, device="cuda", layout=layout, states=True, bias=True, activation="silu"))


@BOTH_LAYOUTS
def test_silu_over_its_range(layout: str) -> None:
    """Sums from −1e38 to 1e38, compared with silu in fp64."""
    powers = torch.logspace(-30, 38, 504, dtype=torch.float64)
    x = laid_out(torch.cat([-powers.flip(0), powers]).float().cuda()[None, None].expand(1, 8, -1), layout)
    weight = torch.zeros(8, 4, device="cuda")
    weight[:, 3] = 1
    out = causal_conv1d(x, weight, activation="silu").double()
    expected = torch.nn.functional.silu(x.double())
    assert bool(((out - expected).abs() <= 1e-5 * expected.abs() + 2e-36).all())


@BOTH_LAYOUTS
@pytest.mark.parametrize("case", ["biased, silu", "packed, states", "seq_idx"])
def test_two_runs_give_the_same_bits(case: str, layout: str, seed: int) -> None:
    x = inputs(1, 264, 5000, 4, seed, device="cuda", dtype=torch.bfloat16, layout=layout, **CASES[case])
    given = {name: y.requires_grad_() for name, y in leaves(x).items()}
    runs = []
    for _ in range(2):
        out = causal_conv1d(**x | given)
        runs.append((out, *torch.autograd.grad(out, list(given.values()), torch.ones_like(out))))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("W", [3, 4])
def test_every_kernel_gives_the_same_bits(W: int, seed: int) -> None:
    """Aligned rows, contiguous channels, any strides, and rows off 16-byte alignment."""
    for case in ("biased, silu", "packed, states", "seq_idx"):
        x = inputs(1, 72, 2064, W, seed, device="cuda", dtype=torch.bfloat16, **CASES[case])
        first, *others = (causal_conv1d(**x | {"x": laid_out(x["x"], layout)}) for layout in LAYOUTS)
        assert all(torch.equal(first, other) for other in others), case


@BOTH_LAYOUTS
@pytest.mark.parametrize("W", [4, 6])
def test_packed_sequences_equal_single_ones(layout: str, W: int, seed: int) -> None:
    offsets = [0, 40, 40, 42, 168, 3000]
    x = inputs(
        1, 136, 3000, W, seed, device="cuda", packed=offsets, states=True, bias=True, activation="silu", layout=layout
    )  # fmt: skip
    out, states = causal_conv1d(**x, return_final_states=True)
    for i, (start, end) in enumerate(itertools.pairwise(offsets)):
        own = {name: y for name, y in x.items() if name != "cu_seqlens"}
        own |= {"x": x["x"][..., start:end], "initial_states": x["initial_states"][i : i + 1]}
        alone, final = causal_conv1d(**own, return_final_states=True)
        assert torch.equal(alone, out[..., start:end]) and torch.equal(final[0], states[i])


@BOTH_LAYOUTS
def test_two_parts_equal_the_whole(layout: str, seed: int) -> None:
    x = inputs(2, 136, 3000, 4, seed, device="cuda", dtype=torch.bfloat16, bias=True, activation="silu", layout=layout)
    whole, last = causal_conv1d(**x, return_final_states=True)
    first, state = causal_conv1d(**x | {"x": x["x"][..., :1601]}, return_final_states=True)
    rest = x | {"x": x["x"][..., 1601:], "initial_states": state}
    second, end = causal_conv1d(**rest, return_final_states=True)
    assert torch.equal(torch.cat([first, second], -1), whole) and torch.equal(end, last)


# ---- Pools


def pool_inputs(W: int, width: int, layout: str, seed: int, dtype: torch.dtype = torch.bfloat16) -> tuple[Inputs, Inputs]:
    """A pool whose slots are (W − 1, D) in memory, the layout of engines."""
    x = inputs(
        1, 136, 200, W, seed, device="cuda", packed=[0, 1, 3, 3, 140, 190], bias=True, activation="silu", layout=layout,
        dtype=dtype,
    )  # fmt: skip
    pool = torch.randn(7, width, 136, generator=torch.Generator().manual_seed(seed)).cuda().mT
    slots, has_initial = torch.tensor([4, 0, 6, -1, 2]), torch.tensor([True, True, False, True, False])
    return x, {"conv_state": pool, "state_indices": slots.cuda(), "has_initial_state": has_initial.cuda()}


@EVERY_LAYOUT
@pytest.mark.parametrize("W, width", [(2, 1), (4, 3), (4, 6), (12, 11), (1, 0)])
def test_pools(W: int, width: int, layout: str, seed: int) -> None:
    x, pool = pool_inputs(W, width, layout, seed)
    given = for_oracle(x)
    order = ("conv_state", "state_indices", "has_initial_state")
    expected, after = oracle.into_pool(
        *(given[name] for name in ("x", "weight", "bias")), *(pool[name] for name in order), True, given["cu_seqlens"]
    )
    out = causal_conv1d(**x, **pool)
    assert rel_rms(out.cpu(), expected) < OUT[torch.bfloat16] and rel_rms(pool["conv_state"].cpu(), after) < 1e-6


@EVERY_LAYOUT
def test_pools_with_indices(layout: str, seed: int) -> None:
    """A row that continues, one from zeros, one without a slot and one with an invalid slot."""
    x = inputs(4, 16, 520, 4, seed, device="cuda", layout=layout, activation="silu", seq_idx=[(2, 1), (3, 255), (2, 9)])
    pool = torch.randn(3, 16, 3, generator=torch.Generator().manual_seed(seed))
    initial = torch.stack([pool[2], torch.zeros(16, 3)])
    two = for_oracle(x) | {"initial_states": initial, "x": x["x"][:2], "seq_idx": x["seq_idx"][:2]}
    expected, _ = oracle.causal_conv1d(**two)
    slots, has_initial = torch.tensor([2, 0, -1, 3]), torch.tensor([True, False, True, True])
    into = {"conv_state": pool.cuda(), "state_indices": slots.cuda(), "has_initial_state": has_initial.cuda()}
    out = causal_conv1d(**x, **into).cpu()
    assert rel_rms(out[:2], expected) < 1e-5 and not out[2].any() and bool(out[3].isnan().all())


@EVERY_LAYOUT
@pytest.mark.parametrize("slot", [7, 2**31 - 1, -(2**31)])
def test_invalid_slots_touch_nothing(slot: int, layout: str, seed: int) -> None:
    """Also for compute-sanitizer."""
    x, pool = pool_inputs(4, 3, layout, seed, torch.float32)
    pool["state_indices"] = pool["state_indices"].int()
    pool["state_indices"][1] = slot
    before = pool["conv_state"].clone()
    out = causal_conv1d(**x, **pool)
    invalid = out[..., 1:3]
    assert bool(invalid.isnan().all()) if slot > 0 else not invalid.any()
    assert torch.equal(pool["conv_state"][[0, 1, 3, 5]], before[[0, 1, 3, 5]]) and bool(out[..., 140:].isfinite().all())


# ---- Hostile inputs


@EVERY_LAYOUT
@pytest.mark.parametrize("offsets", [[-5, 400], [0, 10**9, -(10**9)], [7, 3, 150], [200, 0], [0, 0], [0, 90]])
def test_invalid_offsets_touch_nothing_outside(offsets: list[int], layout: str, seed: int) -> None:
    """Also for compute-sanitizer."""
    x = inputs(
        1, 8, 200, 4, seed, device="cuda", layout=layout, packed=[0] * len(offsets), states=True, activation="silu"
    )  # fmt: skip
    x["cu_seqlens"] = torch.tensor(offsets, device="cuda")
    given = {name: y.requires_grad_() for name, y in leaves(x).items()}
    found = causal_conv1d(**x | given, return_final_states=True)
    torch.autograd.grad(found, list(given.values()), [torch.ones_like(y) for y in found])
    torch.cuda.synchronize()


@EVERY_LAYOUT
@pytest.mark.parametrize("case, first, last", [("packed, states", 8, 128), ("seq_idx", 9, 69)])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_sequences_do_not_affect_each_other(bad: float, case: str, first: int, last: int, layout: str, seed: int) -> None:
    x = inputs(1, 8, 200, 4, seed, device="cuda", layout=layout, **CASES[case])
    spoilt = laid_out(x["x"].clone(), layout)
    spoilt[..., :first] = bad
    spoilt[..., last:] = bad
    grad = torch.zeros(1, 8, 200, device="cuda")
    grad[..., :first] = bad
    grad[..., first + 20 : last] = 1
    clean, out = (causal_conv1d(**x | {"x": y.requires_grad_()}) for y in (x["x"], spoilt))
    (dx,) = torch.autograd.grad(out, spoilt, grad)
    (wanted,) = torch.autograd.grad(clean, x["x"], grad)
    assert torch.equal(out[..., first:last], clean[..., first:last])
    assert torch.equal(dx[..., first:last], wanted[..., first:last]) and bool(dx[..., first:last].isfinite().all())


@pytest.mark.parametrize("along", ["batch", "channel", "token"])
def test_strides_beyond_2_to_the_31(along: str, seed: int) -> None:
    """A view whose last element is more than 2³¹ elements after its first."""
    shape, step = (2, 4, 40), 2**31 + 64
    strides = {"batch": (step, 40, 1), "channel": (40, 2**30, 1), "token": (4, 1, 2**26 + 64)}[along]
    reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    memory = torch.empty(reach, dtype=torch.bfloat16, device="cuda")
    x = inputs(*shape, 4, seed, device="cuda", dtype=torch.bfloat16, bias=True, activation="silu")
    view = memory.as_strided(shape, strides).copy_(x["x"])
    expected = causal_conv1d(**x)
    leaf = view.detach().requires_grad_()
    found = causal_conv1d(**x | {"x": leaf})
    assert torch.equal(found, expected)
    (dx,) = torch.autograd.grad(found, leaf, torch.ones_like(found))
    plain = x["x"].requires_grad_()
    (wanted,) = torch.autograd.grad(causal_conv1d(**x), plain, torch.ones_like(found))
    assert torch.equal(dx, wanted)


@BOTH_LAYOUTS
def test_rows_beyond_2_to_the_31_elements(layout: str) -> None:
    """All tokens but the first and the last ones are equal."""
    D, L = 1032, 2**21 + 8
    shape = (1, D, L) if layout == "tokens" else (1, L, D)
    x = torch.ones(shape, device="cuda", dtype=torch.bfloat16)
    x = x if layout == "tokens" else x.mT
    x[..., -1] = 3
    weight = torch.tensor([1.0, 2.0, 4.0, 8.0], device="cuda").expand(D, 4)
    out = causal_conv1d(x, weight)
    assert bool((out[0, -1, :4].cpu() == torch.tensor([8.0, 12.0, 14.0, 15.0])).all())
    assert bool((out[..., 3:-1] == 15).all()) and bool((out[..., -1] == 31).all())


@BOTH_LAYOUTS
def test_graphs_and_compiled_code(layout: str, seed: int) -> None:
    x = inputs(2, 64, 304, 4, seed, device="cuda", dtype=torch.bfloat16, bias=True, activation="silu", layout=layout)
    expected = causal_conv1d(**x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = causal_conv1d(**x)
    graph.replay()
    assert torch.equal(out, expected)
    given = [x[name].requires_grad_() for name in ("x", "weight", "bias")]

    def layer(*leaves: Tensor) -> Tensor:
        y: Tensor = causal_conv1d(*leaves, activation="silu")
        return y

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found = compiled(*given)
    assert torch.equal(found, expected)
    grads = (torch.autograd.grad(y, given, torch.ones_like(expected)) for y in (found, layer(*given)))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
