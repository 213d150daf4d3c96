"""conv_split_l2norm on the GPU; a model's sizes, long segments, graphs and compiled code, a prefill of three calls."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers import rel_rms
from split_cases import GATES, check, gates_oracle, inputs, oracle, with_gates
from split_on_device import *  # noqa: F403
from split_on_device import DTYPES, OTHERS

from gdn_cuda import chunked_forward, fused_gdn_gating, rms_norm_gated


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("W", [1, 4, 32])
def test_packed_rows_of_many_taps(W: int, channels_last: bool, seed: int) -> None:
    for heads in ((2, 3, 16, 8), (1, 2, 5, 3)):
        x = inputs(
            1, 200, heads, W, seed, dtype=torch.bfloat16, device="cuda", packed=[0, 70, 190], channels_last=channels_last
        )
        check(x)


@pytest.mark.parametrize("W", [2, 3])
@pytest.mark.parametrize("heads", [(1, 2, 128, 128), *OTHERS], ids=str)
def test_heads_of_fewer_taps(heads: tuple[int, int, int, int], W: int, seed: int) -> None:
    for dtype in DTYPES:
        check(inputs(2, 150, heads, W, seed, dtype=dtype, device="cuda"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gates_of_a_layer(dtype: torch.dtype, seed: int) -> None:
    """The bits of fused_gdn_gating, and q, k and v as without gates."""
    for L in (1, 37, 600):
        x = inputs(2, L, (16, 32, 128, 128), 4, seed, dtype=dtype, device="cuda")
        alone = x.call()
        for gate_dtype, views in ((dtype, False), (torch.float32, True), (torch.bfloat16, False)):
            given = with_gates(x, seed, dtype=gate_dtype, views=views)
            a, b, A_log, dt_bias = (given.options[name] for name in GATES)
            expected = *alone, *fused_gdn_gating(A_log, dt_bias, a.contiguous(), b.contiguous())
            assert all(torch.equal(mine, theirs) for mine, theirs in zip(given.call(), expected, strict=True))


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
