"""Convolutions, layers and moved tokens of `gdn_cuda.parallel` beside one process, in fp64. Every rank checks what it has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from layer_cases import HIDDEN, layer, oracle
from layer_cases import gradients as layer_gradients
from oracles import once
from parallel_cases import SPLITS, Split, compare
from torch import Tensor

import gdn_cuda
from gdn_cuda import parallel
from gdn_cuda.nn import GatedDeltaNet
from gdn_cuda.parallel.ranks import Ranks

LENGTHS = ((90,), (3, 0, 1, 70, 2, 0, 40), (7,), (5, 4))
WIDTHS = (1, 4, 32)
LAYER_BOUND = 1e-11
Module = TypeVar("Module", bound=torch.nn.Module)
_one_at_a_time = threading.Lock()


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def offsets(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def gradients(out: Tensor, grad: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    found = torch.autograd.grad(out, list(leaves.values()), grad, allow_unused=True)
    named = zip(leaves.items(), found, strict=True)
    return {"out": out.detach()} | {name: torch.zeros_like(y) if g is None else g for (name, y), g in named}


def firsts(context: parallel.Context) -> Tensor:
    """Whether the rank has the first token of each sequence; rank 0 has sequences without tokens."""
    found = {each.sequence for each in context.slices if not each.continues} | {*context.without_tokens}
    return torch.tensor([i in found for i in range(len(context.lengths))])


def convolutions() -> Iterator[tuple[Split, tuple[int, ...], int, int]]:
    """Splits, lengths, widths and batches: histories that reach over several ranks, and to the initial state, too."""
    for split in SPLITS:
        for lengths in LENGTHS:
            for width in WIDTHS:
                yield split, lengths, width, 1
        yield split, (50,), 4, 3


@once
def convolved(lengths: tuple[int, ...], width: int, batch: int) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
    D = 3
    x = {"x": drawn(batch, D, sum(lengths), seed=0), "weight": drawn(D, width, seed=1), "bias": drawn(D, seed=2)}
    x["initial_states"] = drawn(batch * len(lengths), D, width - 1, seed=3)
    grad = drawn(batch, D, sum(lengths), seed=4)
    whole = {name: y.clone().requires_grad_() for name, y in x.items()}
    packed = {} if batch > 1 else {"cu_seqlens": offsets(lengths)}
    return x, grad, gradients(gdn_cuda.causal_conv1d(**whole, activation="silu", **packed), grad, whole)


def check_convolution(ranks: Ranks, split: Split, lengths: tuple[int, ...], width: int, batch: int) -> None:
    context, (x, grad, wanted) = split.context(ranks, lengths), convolved(lengths, width, batch)
    own = firsts(context)[:, None, None] if batch == 1 else firsts(context)[0]
    mine = x | {"x": parallel.shard(x["x"], context, 2), "initial_states": torch.where(own, x["initial_states"], torch.nan)}
    mine = {name: y.clone().requires_grad_() for name, y in mine.items()}
    out = parallel.causal_conv1d(**mine, activation="silu", context=context)
    found = gradients(out, parallel.shard(grad, context, 2), mine)
    for name in ("weight", "bias"):
        found[name] = ranks.start_all_gather(found[name])().sum(0)
    parts = {name: parallel.shard(wanted[name], context, 2) for name in ("out", "x")}
    parts |= {"initial_states": wanted["initial_states"] * own}
    pairs = {name: (parts.get(name, y), y) for name, y in wanted.items()}
    compare(found, pairs, f"rank {ranks.rank} of {ranks.size}, {split.name}, {lengths}, {width} taps, batch {batch}")


LAYERS: tuple[dict[str, Any], ...] = ({}, {"layout": "qwen3_5", "conv_bias": True, "allow_negative_eigenvalues": True})


def layers() -> Iterator[tuple[Split, tuple[int, ...], int, int]]:
    """Splits, lengths, batches, and indices of LAYERS."""
    for form, split in zip((0, 1) * 2, SPLITS, strict=False):
        yield split, (35, 0, 2, 30), 1, form
        yield split, (40,), 2, form


def seeded(make: Callable[[], Module]) -> Module:
    """A module that is the same on all ranks. It draws from torch's own generator, which ranks that are threads share."""
    with _one_at_a_time, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def same_layer(*sizes: Any, **options: Any) -> GatedDeltaNet:
    return seeded(lambda: layer(*sizes, **options))


def _made(form: int) -> GatedDeltaNet:
    return same_layer(0, (1, 2), 8, 16, dtype=torch.float64, **LAYERS[form])


@once
def layer_in_one_process(lengths: tuple[int, ...], batch: int, form: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    x, grad = drawn(batch, sum(lengths), HIDDEN, seed=1), drawn(batch, sum(lengths), HIDDEN, seed=2)
    out, wide, parameters = oracle(_made(form), x, list(lengths) if batch == 1 else None)
    return x, grad, gradients(out, grad, {"x": wide} | parameters)


def check_layer(ranks: Ranks, split: Split, lengths: tuple[int, ...], batch: int, form: int) -> None:
    """Output, and gradients of x and of all parameters, against autograd of the definition token by token."""
    context, (x, grad, wanted) = split.context(ranks, lengths), layer_in_one_process(lengths, batch, form)
    y, found = layer_gradients(_made(form), parallel.shard(x, context), parallel.shard(grad, context), context=context)
    for name in found.keys() - {"x"}:
        found[name] = ranks.start_all_gather(found[name])().sum(0)
    pairs = {name: (parallel.shard(y, context) if name in ("out", "x") else y, y) for name, y in wanted.items()}
    what = f"rank {ranks.rank} of {ranks.size}, {split.name}, {lengths}, batch {batch}, {LAYERS[form]}"
    compare({"out": y} | found, pairs, what, LAYER_BOUND)


def check_tokens(ranks: Ranks, split: Split, tokens: int, dim: int) -> None:
    """Tokens that are gathered, and heads that are exchanged, are those of one process; so are their gradients."""
    context, heads, size = split.context(ranks, [tokens]), 2 * ranks.size, ranks.size
    x = drawn(*[3, 2][:dim], tokens, heads, 5, seed=0)
    grads = [drawn(*x.shape, seed=1 + rank) for rank in range(size)]
    own = parallel.shard(x, context, dim)
    mine = own.clone().requires_grad_()
    whole = parallel.unshard(mine, context, dim)
    assert torch.equal(whole, x)
    (found,) = torch.autograd.grad(whole, mine, grads[ranks.rank])
    assert torch.equal(found, parallel.shard(torch.stack(grads).sum(0), context, dim))

    by_heads = parallel.to_heads(mine, context, dim)
    assert torch.equal(by_heads, x.chunk(size, dim + 1)[ranks.rank])
    again = parallel.from_heads(by_heads, context, dim)
    assert torch.equal(again, own)
    own_grads = [grad.chunk(size, dim + 1)[ranks.rank] for grad in grads[:1]]
    (found,) = torch.autograd.grad(by_heads, mine, own_grads[0], retain_graph=True)
    assert torch.equal(found, parallel.shard(grads[0], context, dim))
    (found,) = torch.autograd.grad(again, by_heads, parallel.shard(grads[0], context, dim))
    assert torch.equal(found, own_grads[0])

    leaf = x.clone().requires_grad_()
    part = parallel.shard(leaf, context, dim)
    (found,) = torch.autograd.grad(part, leaf, torch.ones_like(part))
    assert found.sum() == part.numel() and torch.equal(parallel.shard(found, context, dim), torch.ones_like(part))
