"""conv_split_l2norm on a GPU against its definition in fp64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import rel_rms
from split_cases import (
    GATES,
    check,
    check_gates_at_the_ends,
    check_gradients,
    gates_oracle,
    inputs,
    oracle,
    with_gates,
    with_pool,
)

from gdn_cuda import chunked_forward, fused_gdn_gating, rms_norm_gated

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HEADS = (
    (1, 2, 8, 8),
    (3, 5, 16, 8),
    (2, 3, 64, 24),
    (1, 2, 128, 128),
    (1, 2, 256, 8),
    (2, 3, 4, 5),
    (1, 2, 24, 8),
    (1, 1, 512, 70),
)
OPTIONS: list[dict[str, Any]] = [
    {"l2norm": False, "bias": False},
    {"packed": [0, 1, 1, 35, 200]},
    {"channels_last": False},
    {"channels_last": False, "packed": [0, 70, 190]},
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("W", [2, 3, 4])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_heads(heads: tuple[int, int, int, int], W: int, dtype: torch.dtype, seed: int) -> None:
    check(inputs(2, 150, heads, W, seed, dtype=dtype, device="cuda"))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options(options: dict[str, Any], seed: int) -> None:
    for heads in ((2, 3, 16, 8), (1, 2, 5, 3)):
        for W in (1, 4, 32):
            check(inputs(1, 200, heads, W, seed, dtype=torch.bfloat16, device="cuda", **options))


@pytest.mark.parametrize("L", [0, 1, 2, 3, 31, 32, 33, 128, 129, 260])
def test_lengths(L: int, seed: int) -> None:
    check(inputs(2, L, (1, 1, 8, 8), 4, seed, device="cuda"))


def test_a_layer(seed: int) -> None:
    """Qwen3-Next's heads; a view of a wider projection has bitwise the same result."""
    x = inputs(1, 600, (16, 32, 128, 128), 4, seed, dtype=torch.bfloat16, device="cuda")
    wide = torch.randn(1, 600, 8192 + 4096, device="cuda").bfloat16()
    wide[..., :8192] = x.x.mT
    for mine, other in zip(x.call(), replace(x, x=wide[..., :8192].mT).call(), strict=True):
        assert torch.equal(mine, other)
    check(replace(x, x=x.x[:, :, :90]))


def test_long_segments(seed: int) -> None:
    """So many tokens that a warp takes 64 at a time: bitwise the results of short segments."""
    x = inputs(1, 9, (16, 32, 128, 128), 4, seed, dtype=torch.bfloat16, device="cuda")
    rows = torch.randn(1, 8200, 8192, device="cuda").bfloat16()
    whole = replace(x, x=rows.mT).call()
    for start in (0, 4095, 8000):
        first = max(start - 3, 0)  # inputs of a token
        for mine, other in zip(replace(x, x=rows[:, first : start + 200].mT).call(), whole, strict=True):
            assert torch.equal(mine[:, start - first :], other[:, start : start + 200])


@pytest.mark.parametrize("heads", [(1, 2, 16, 8), (1, 2, 5, 3)], ids=str)
@pytest.mark.parametrize("width", [0, 3])
def test_pool(width: int, heads: tuple[int, int, int, int], seed: int) -> None:
    x = inputs(1, 80, heads, 4, seed, dtype=torch.bfloat16, packed=[0, 2, 2, 66, 68, 80], device="cuda")
    check(with_pool(x, [3, 1, 0, -1, 5], 6, seed, fresh=[2], width=width))
    x = inputs(3, 2, heads, 4, seed, device="cuda")
    check(with_pool(x, [3, -7, 0], 6, seed, fresh=[0], width=width))


@pytest.mark.parametrize("heads", [(1, 2, 16, 8), (1, 2, 5, 3)], ids=str)
def test_slots_past_the_pool(heads: tuple[int, int, int, int], seed: int) -> None:
    x = with_pool(inputs(1, 40, heads, 4, seed, packed=[0, 10, 30, 40], device="cuda"), [0, 1, 2], 3, seed, fresh=[])
    pool = x.options["conv_state"].clone()
    expected = x.call()
    slots = torch.tensor([0, 2**40, 2], device="cuda")
    invalid = replace(x, options=x.options | {"conv_state": pool.clone(), "state_indices": slots})
    for mine, theirs in zip(invalid.call(), expected, strict=True):
        assert bool(mine[:, 10:30].isnan().all())
        assert torch.equal(mine[:, :10], theirs[:, :10]) and torch.equal(mine[:, 30:], theirs[:, 30:])
    after = invalid.options["conv_state"]
    assert torch.equal(after[1], pool[1]) and torch.equal(after[[0, 2]], x.options["conv_state"][[0, 2]])


@pytest.mark.parametrize("offsets", [[-5, 400], [0, 10**9, -(10**9)], [7, 3, 50], [40, 0], [0, 0]])
@pytest.mark.parametrize("heads", [(1, 2, 16, 8), (1, 2, 5, 3)], ids=str)
def test_invalid_offsets_touch_nothing_outside(heads: tuple[int, int, int, int], offsets: list[int], seed: int) -> None:
    """Also run under compute-sanitizer."""
    x = inputs(1, 40, heads, 4, seed, packed=offsets, device="cuda")
    x.call()
    with_pool(x, [0] * (len(offsets) - 1), 2, seed, fresh=[]).call()
    torch.cuda.synchronize()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(2, 3, 16, 8), (1, 2, 5, 3), (1, 2, 128, 128)], ids=str)
def test_gradients(heads: tuple[int, int, int, int], dtype: torch.dtype, seed: int) -> None:
    cases: list[dict[str, Any]] = [{}, {"l2norm": False, "bias": False}, {"packed": [0, 7, 7, 60]}, {"channels_last": False}]
    for options in cases:
        check_gradients(inputs(1, 80, heads, 4, seed, dtype=dtype, device="cuda", **options), seed)


def test_runs_are_deterministic(seed: int) -> None:
    x = inputs(2, 500, (2, 4, 128, 128), 4, seed, dtype=torch.bfloat16, device="cuda")
    leaves = [y.requires_grad_() for y in (x.x, x.weight)]
    first, second = (torch.autograd.grad(sum(y.float().square().sum() for y in x.call()), leaves) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_graphs_and_compiled_code(seed: int) -> None:
    x = inputs(1, 100, (2, 4, 128, 128), 4, seed, dtype=torch.bfloat16, device="cuda")
    expected = x.call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = x.call()
    graph.replay()
    compiled = torch.compile(lambda rows: replace(x, x=rows).call(), fullgraph=False, backend="aot_eager")
    for mine, other, theirs in zip(found, compiled(x.x), expected, strict=True):
        assert torch.equal(mine, theirs) and torch.equal(other, theirs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(1, 2, 16, 8), (1, 3, 5, 4), (16, 32, 128, 128)], ids=str)
def test_gates(heads: tuple[int, int, int, int], dtype: torch.dtype, seed: int) -> None:
    """Gates are bitwise those of fused_gdn_gating; q, k and v are bitwise those without gates."""
    for L in (1, 37, 600):
        x = inputs(2, L, heads, 4, seed, dtype=dtype, device="cuda")
        alone = x.call()
        for gate_dtype, views in ((dtype, False), (torch.float32, True), (torch.bfloat16, False)):
            given = with_gates(x, seed, dtype=gate_dtype, views=views)
            found = given.call()
            a, b, A_log, dt_bias = (given.options[name] for name in GATES)
            expected = *alone, *fused_gdn_gating(A_log, dt_bias, a.contiguous(), b.contiguous())
            assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))
            if heads[0] == 1 and L < 600:
                check(given)
                check_gradients(given, seed)
    if heads[0] == 1:
        check(with_pool(with_gates(inputs(2, 40, heads, 4, seed, device="cuda"), seed), [3, -1], 6, seed, fresh=[0]))


def test_a_prefill_is_three_calls(seed: int) -> None:
    """conv_split_l2norm, chunked_forward and rms_norm_gated against the layer in fp64."""
    Hk, Hv, d, L = 2, 4, 64, 200
    x = with_gates(inputs(1, L, (Hk, Hv, d, d), 4, seed, dtype=torch.bfloat16, device="cuda"), seed)
    z, weight = torch.randn(1, L, Hv, d, device="cuda").bfloat16(), torch.rand(d, device="cuda")
    out, state = chunked_forward(*x.call())
    y = rms_norm_gated(out, z, weight)
    (query, key, value), _ = oracle(x)
    beta, gate = gates_oracle(x)
    S, rows = torch.zeros(Hv, d, d, dtype=torch.float64), []
    for t in range(L):
        q, k = (each[0, t].repeat_interleave(Hv // Hk, 0) for each in (query, key))
        S = torch.exp(gate[0, t])[:, None, None] * S
        S = S + (beta[0, t][:, None] * (value[0, t] - torch.einsum("hvk,hk->hv", S, k)))[:, :, None] * k[:, None]
        rows.append(torch.einsum("hvk,hk->hv", S, q) * d**-0.5)
    expected = torch.stack(rows)[None]
    expected = expected * torch.rsqrt(expected.square().mean(-1, keepdim=True) + 1e-5) * weight.cpu().double()
    expected = expected * torch.nn.functional.silu(z.cpu().double())
    assert rel_rms(state, S[None]) < 1e-2 and rel_rms(y, expected) < 1e-2


def test_gradients_of_extreme_gates(seed: int) -> None:
    check_gates_at_the_ends(seed, "cuda")


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_heads_of_one_channel(dtype: torch.dtype, seed: int) -> None:
    """q / |q| is ±1 but for eps: a difference would cancel its whole gradient."""
    for eps in (1e-6, 0.5):
        check_gradients(inputs(1, 40, (2, 3, 1, 5), 4, seed, dtype=dtype, eps=eps, device="cuda"), seed)
