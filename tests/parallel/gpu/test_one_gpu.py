"""`gdn_cuda.parallel` with several parts on one GPU: ranks are threads, and collectives copies. Kernels, folds and contexts are
those of several GPUs. Errors against fp64 are compared with those of the same call without parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradient_cases import GradientCase, drawn, error
from layer_cases import HIDDEN, layer
from parallel_cases import RAW, ROWS, SPLITS, WEIGHTS, Split, on_rank, results
from thread_ranks import ThreadRanks, on_threads
from torch import Tensor

import gdn_cuda
from gdn_cuda import parallel

DEVICE = "cuda"
SIZES: dict[str, Any] = {"heads": (2, 4), "dk": 128, "dv": 128}
CASES = (
    GradientCase(lengths=(1500,), gates=1.0, **SIZES),
    GradientCase(lengths=(1500,), gates=(0.0, 1e-3, 1.0, 30.0), beta=2.0, **SIZES),
    GradientCase(lengths=(1500,), gates=1e-3, resets=True, **SIZES),
    GradientCase(lengths=(700, 0, 3, 64, 900), gates=1e-2, **SIZES),
    GradientCase(lengths=(320, 320), gates=1e-2, heads=(1, 2), dk=64, dv=32),
    GradientCase(lengths=(700, 300), options=RAW, **SIZES),
)


def on_device(x: Any) -> Any:
    if isinstance(x, dict):
        return {name: on_device(y) for name, y in x.items()}
    if isinstance(x, tuple):
        return tuple(map(on_device, x))
    return x.to(DEVICE) if isinstance(x, Tensor) else x


def wide(x: Any) -> Any:
    if isinstance(x, dict):
        return {name: wide(y) for name, y in x.items()}
    if isinstance(x, tuple):
        return tuple(map(wide, x))
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


def joined(found: list[tuple[dict[str, Tensor], parallel.Context]], like: dict[str, Tensor], dim: int) -> dict[str, Tensor]:
    """The results of all ranks as those of one call: states are 0 where a rank has none."""
    whole = {name: torch.zeros_like(y) for name, y in like.items()}
    for own, context in found:
        for name, y in own.items():
            if name in WEIGHTS:
                whole[name] = y
            elif name in ("out", *ROWS):
                spans = context.fragments[context.rank]
                parts = y.split([end - first for first, end in spans], dim) if spans else ()
                for (first, end), part in zip(spans, parts, strict=True):
                    whole[name].narrow(dim, first, end - first).copy_(part)
            else:
                whole[name] += y
    return whole


def in_parts(size: int, split: Split, case: GradientCase, x: Any, grads: Any, like: dict[str, Tensor]) -> dict[str, Tensor]:
    found, _ = on_threads(size, lambda ranks: on_rank(ranks, split, case, x, grads))
    return joined(found, like, 0 if case.packed else 1)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("split", SPLITS[:4], ids=lambda split: split.name)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_parts_have_the_errors_of_the_whole(size: int, split: Split, case: GradientCase, seed: int) -> None:
    x, grads = on_device(drawn(case, seed, torch.bfloat16))
    alone = results(gdn_cuda.chunked_forward, x, grads)
    exact = results(gdn_cuda.reference.chunked_forward, wide(x), wide(grads))
    found = in_parts(size, split, case, x, grads, alone)
    for name, y in found.items():
        mine, other = error(y, exact[name]), error(alone[name], exact[name])
        most = 5 if name in WEIGHTS else 1.5  # of four numbers the error is chance
        assert mine <= most * other + 1e-6, (name, mine, other)


@pytest.mark.parametrize("split", SPLITS[:3], ids=lambda split: split.name)
def test_two_runs_have_the_same_bits(split: Split, seed: int) -> None:
    x, grads = on_device(drawn(CASES[1], seed, torch.bfloat16))
    like = results(gdn_cuda.chunked_forward, x, grads)
    one, other = (in_parts(3, split, CASES[1], x, grads, like) for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in like)


@pytest.mark.parametrize("split", SPLITS[:3], ids=lambda split: split.name)
def test_a_layer_in_parts_is_the_layer(split: Split, seed: int) -> None:
    """Convolutions, gates and norm included, in fp32 against one call."""
    made, rng = layer(seed, (2, 4), 16, 8, device=DEVICE), torch.Generator().manual_seed(seed)
    tokens, grad = torch.randn(2, 1, 300, HIDDEN, generator=rng).to(DEVICE)
    lengths = [170, 130]
    offsets = torch.tensor([0, *lengths], device=DEVICE).cumsum(0)
    leaf = tokens.clone().requires_grad_()
    expected = made(leaf, cu_seqlens=offsets)
    (wanted,) = torch.autograd.grad(expected, leaf, grad)

    def run(ranks: ThreadRanks) -> tuple[Tensor, Tensor]:
        context = split.context(ranks, lengths)
        mine = parallel.shard(tokens, context).requires_grad_()
        y = made(mine, context=context)
        (found,) = torch.autograd.grad(y, mine, parallel.shard(grad, context))
        return parallel.unshard(y.detach(), context), parallel.unshard(found, context)

    for y, found in on_threads(3, run)[0]:
        assert error(y, expected.detach().double()) < 2e-4 and error(found, wanted.double()) < 2e-4
