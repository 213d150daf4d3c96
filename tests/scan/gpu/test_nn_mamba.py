"""gdn_cuda.nn.S6 and Mamba on the GPU: the same parameters in fp64 on the CPU, steps against forward, graphs, equal bits."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import mamba_block as literal
import pytest
import torch
from helpers import rel_rms
from torch import Tensor

from gdn_cuda.nn import S6, Mamba, mamba

EVERY_DISCRETIZATION = pytest.mark.parametrize("discretization", mamba.DISCRETIZATIONS)
BATCH, L, WIDTH = 2, 300, 64


def make(seed: int, dtype: torch.dtype = torch.float32, **options: Any) -> tuple[Mamba, Mamba]:
    """On the GPU, and in fp64 on the CPU."""
    torch.manual_seed(seed)
    exact = Mamba(WIDTH, **options).to(dtype)
    with torch.no_grad():
        exact.dt_proj.bias.add_(1)
        exact.D.normal_()
    return copy.deepcopy(exact).cuda(), exact.double()


def draw(rng: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=rng).to(dtype)


@EVERY_DISCRETIZATION
@pytest.mark.parametrize("options", [{}, {"d_state": 7, "bias": True, "d_conv": 2}], ids=["usual", "odd"])
def test_a_block_and_its_gradients(discretization: str, options: dict[str, Any], seed: int, rng: torch.Generator) -> None:
    ours, exact = make(seed, discretization=discretization, **options)
    u, weights = draw(rng, BATCH, L, WIDTH), draw(rng, BATCH, L, WIDTH)
    results = []
    for run, on, dtype in ((ours, "cuda", torch.float32), (exact, "cpu", torch.float64)):
        leaf = u.to(on, dtype).requires_grad_()
        if run is ours:
            y, state = run(leaf, return_last_state=True)
            last = state.ssm
        else:
            y, last = literal.block(run, leaf)
        loss = (y * weights.to(y)).sum() + last.square().sum()
        results.append([y, last, *torch.autograd.grad(loss, [leaf, *run.parameters()])])
    bounds = [1e-5, 1e-5] + [1e-4] * (len(results[0]) - 2)
    for a, b, bound in zip(*results, bounds, strict=True):
        assert rel_rms(a, b) < bound


@EVERY_DISCRETIZATION
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_a_prompt_then_steps(discretization: str, dtype: torch.dtype, bound: float, seed: int, rng: torch.Generator) -> None:
    ours, exact = make(seed, dtype, discretization=discretization)
    u = draw(rng, BATCH, L, WIDTH, dtype=dtype).cuda()
    y, state = ours(u[:, :-9], return_last_state=True)
    steps = [ours.step(u[:, t], state)[0] for t in range(L - 9, L)]
    expected, last = literal.block(exact, u.cpu())
    assert rel_rms(torch.cat([y, torch.stack(steps, 1)], 1), expected) < bound
    assert rel_rms(state.ssm, last) < bound


def test_a_step_in_a_graph(seed: int, rng: torch.Generator) -> None:
    ours, _ = make(seed)
    u = draw(rng, 5, BATCH, WIDTH).cuda()
    state, other = ours.default_state(BATCH), ours.default_state(BATCH)
    expected = [ours.step(x, state)[0] for x in u]
    fed = u[0].clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, _ = ours.step(fed, other)
    for tensor in other:
        tensor.zero_()
    for x, wanted in zip(u, expected, strict=True):
        fed.copy_(x)
        graph.replay()
        assert rel_rms(y, wanted) < 1e-6
    assert all(rel_rms(a, b) < 1e-6 for a, b in zip(other, state, strict=True))


def test_packed_sequences_equal_separate_calls(seed: int, rng: torch.Generator) -> None:
    ours, _ = make(seed)
    u, offsets = draw(rng, 1, L, WIDTH).cuda(), [0, 2, 2, 130, 131, L]
    packed = ours(u, cu_seqlens=torch.tensor(offsets, device="cuda"))
    alone = torch.cat([ours(u[:, a:b]) for a, b in pairwise(offsets)], 1)
    assert rel_rms(packed, alone) < 3e-6
    u[0, 1] = torch.nan
    poisoned = ours(u, cu_seqlens=torch.tensor(offsets, device="cuda"))
    assert poisoned[:, 1].isnan().all() and torch.equal(poisoned[:, 2:], packed[:, 2:])


def test_two_runs_have_the_same_bits(seed: int, rng: torch.Generator) -> None:
    ours, _ = make(seed)
    u = draw(rng, BATCH, L, WIDTH).cuda()
    runs = [[y := ours(u), *torch.autograd.grad(y.square().sum(), ours.parameters())] for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_s6_alone(seed: int, rng: torch.Generator) -> None:
    torch.manual_seed(seed)
    exact = S6(WIDTH)
    ours, exact = copy.deepcopy(exact).cuda(), exact.double()
    u, z, start = draw(rng, BATCH, L, WIDTH), draw(rng, BATCH, L, WIDTH), draw(rng, BATCH, WIDTH, 16)
    found = ours(u.cuda(), start.cuda(), z=z.cuda(), return_last_state=True)
    for a, b in zip(found, literal.selective(exact, u.double(), z.double(), start.double()), strict=True):
        assert rel_rms(a, b) < 1e-5
