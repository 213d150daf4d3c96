"""GatedDeltaNet trains on a GPU: gradients against the definition in fp64; graphs, compiled code, checkpoints, autocast."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers import rel_rms
from layer_cases import BOUND, HIDDEN, check, gradients, layer
from torch.utils.checkpoint import checkpoint

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SIZES = [((2, 4), 64, 64), ((1, 3), 128, 128), ((1, 2), 96, 192), ((2, 4), 16, 8)]


def tokens(seed: int, B: int = 2, L: int = 150, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    drawn = torch.randn(B, L, HIDDEN, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.to("cuda", dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads, dk, dv", SIZES)
@pytest.mark.parametrize("options", [{}, {"layout": "qwen3_5", "allow_negative_eigenvalues": True, "conv_bias": True}])
def test_gradients(options: dict[str, Any], heads: tuple[int, int], dk: int, dv: int, dtype: torch.dtype, seed: int) -> None:
    made = layer(seed, heads, dk, dv, device="cuda", dtype=dtype, **options)
    bound = 1e-3 if dtype == torch.float32 else None
    check(made, tokens(seed, dtype=dtype), seed, bound=bound)
    check(made, tokens(seed, B=1, dtype=dtype), seed, [70, 0, 1, 64, 9], bound)


def test_two_runs_have_the_same_bits(seed: int) -> None:
    made, x = layer(seed, (2, 4), 128, 128, device="cuda", dtype=torch.bfloat16), tokens(seed, L=600)
    (y, first), (z, second) = (gradients(made, x, torch.ones(x.shape)) for _ in range(2))
    assert torch.equal(y, z) and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("packed", [False, True])
def test_compiled(packed: bool, seed: int) -> None:
    made, x = layer(seed, (2, 4), 64, 64, device="cuda", dtype=torch.bfloat16), tokens(seed, B=1)
    options = {"cu_seqlens": torch.tensor([0, 70, 150], device="cuda")} if packed else {}
    y, found = gradients(made, x, torch.ones(x.shape), **options)
    torch._dynamo.reset()
    whole = copy.deepcopy(made)
    whole.compile(fullgraph=True)
    z, others = gradients(whole, x, torch.ones(x.shape), **options)
    assert rel_rms(z, y) < 1e-2
    for name, mine in found.items():
        assert rel_rms(others[name], mine) < 2e-2, name


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant: bool, seed: int) -> None:
    made, x = layer(seed, (2, 4), 64, 64, device="cuda", dtype=torch.bfloat16), tokens(seed)
    _, expected = gradients(made, x, torch.ones(x.shape))
    leaf = x.detach().requires_grad_()
    checkpoint(made, leaf, use_reentrant=reentrant).sum().backward()
    for name, p in (("x", leaf), *made.named_parameters()):
        assert p.grad is not None and torch.equal(p.grad, expected[name]), name


def test_a_graph_of_a_step(seed: int) -> None:
    """Forward and backward in one CUDA graph, replayed on other tokens."""
    made, x = layer(seed, (2, 4), 64, 64, device="cuda", dtype=torch.bfloat16), tokens(seed)
    grad, other = torch.ones(x.shape), tokens(seed + 1)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        gradients(made, x, grad)
    torch.cuda.synchronize()
    leaf = x.clone().requires_grad_()
    named, ones = {"x": leaf, **dict(made.named_parameters())}, torch.ones_like(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = made(leaf)
        found = torch.autograd.grad(y, list(named.values()), ones)
    with torch.no_grad():
        leaf.copy_(other)
    graph.replay()
    expected, wanted = gradients(made, other, grad)
    assert torch.equal(y.detach(), expected)
    for name, mine in zip(named, found, strict=True):
        assert torch.equal(mine, wanted[name]), name


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_autocast(given: torch.dtype, seed: int) -> None:
    made, x = layer(seed, (2, 4), 64, 64, device="cuda"), tokens(seed, dtype=torch.float32)
    _, expected = gradients(made, x, torch.ones(x.shape))
    with torch.autocast("cuda", torch.bfloat16):
        y, found = gradients(made, x.to(given), torch.ones(x.shape))
    assert y.dtype == torch.bfloat16
    for name, mine in found.items():
        assert rel_rms(mine, expected[name]) < BOUND[torch.bfloat16], name
