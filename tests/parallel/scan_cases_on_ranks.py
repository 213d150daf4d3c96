"""`gdn_cuda.parallel.selective_scan` beside one process, in fp64. Every rank checks what it has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from layer_cases_on_ranks import drawn, firsts, offsets
from oracles import once
from parallel_cases import SPLITS, Split, compare
from torch import Tensor

import gdn_cuda
from gdn_cuda import parallel
from gdn_cuda.parallel.ranks import Ranks

DISCRETIZATIONS = ("mamba", "zoh", "bilinear", "dirac", "s7", "rglru")


def lasts(context: parallel.Context) -> Tensor:
    """Whether the rank has the last token of each sequence."""
    found = {each.sequence for each in context.slices if not each.is_continued} | {*context.without_tokens}
    return torch.tensor([i in found for i in range(len(context.lengths))])


def _summed(ranks: Ranks, x: Tensor) -> Tensor:
    every = ranks.start_all_gather(torch.view_as_real(x) if x.is_complex() else x)().sum(0)
    return torch.view_as_complex(every) if x.is_complex() else every


def scans() -> Iterator[tuple[Split, tuple[int, ...], int, str, bool]]:
    """Splits, lengths, batches, discretizations, and whether A is complex, and B has pairs."""
    for split in SPLITS:
        yield split, (70, 0, 2, 50, 0), 1, "mamba", False
        yield split, (90,), 2, "zoh", True
        yield split, (5, 0, 60), 1, "bilinear", True
    for i, discretization in enumerate(DISCRETIZATIONS):
        yield SPLITS[i % 3], (80,), 2, discretization, False


def scan_inputs(lengths: tuple[int, ...], batch: int, discretization: str, is_complex: bool) -> dict[str, Tensor]:
    tokens, D, N = sum(lengths), 4, 3
    x = {name: drawn(batch, D, tokens, seed=i) for i, name in enumerate(("u", "delta", "z", "delta_a"))}
    x |= {"delta_a": x["delta_a"].abs(), "D": drawn(D, seed=4), "delta_bias": drawn(D, seed=5)}
    x |= {"A": -drawn(D, N, seed=6).exp() / 8, "C": drawn(batch, 2, N, tokens, seed=7), "B": drawn(batch, N, tokens, seed=8)}
    x["initial_state"] = drawn(batch * len(lengths), D, N, seed=9)
    if discretization in ("s7", "rglru"):
        del x["delta_a"]
    if discretization == "rglru":
        x |= {"A": x["A"].exp(), "B": drawn(D, N, seed=8)}
    if is_complex:
        x |= {"A": torch.complex(x["A"], drawn(D, N, seed=10)), "B": drawn(batch, 2, N, 2 * tokens, seed=8)}
        x |= {"C": torch.complex(x["C"], drawn(*x["C"].shape, seed=11))}
        x["initial_state"] = torch.complex(x["initial_state"], drawn(*x["initial_state"].shape, seed=12))
    return x


def run(function: Any, x: dict[str, Tensor], grads: list[Tensor], discretization: str, **more: Any) -> dict[str, Tensor]:
    leaves = {name: y.clone().requires_grad_() for name, y in x.items()}
    out, last = function(**leaves, delta_softplus=True, discretization=discretization, return_last_state=True, **more)
    found = torch.autograd.grad([out, last], list(leaves.values()), grads, allow_unused=True)
    named = zip(leaves.items(), found, strict=True)
    return {"out": out.detach(), "last": last.detach()} | {
        name: torch.zeros_like(y) if g is None else g for (name, y), g in named
    }


@once
def scanned(
    lengths: tuple[int, ...], batch: int, discretization: str, is_complex: bool
) -> tuple[dict[str, Tensor], list[Tensor], dict[str, Tensor]]:
    x = scan_inputs(lengths, batch, discretization, is_complex)
    grads = [drawn(*x["u"].shape, seed=20), x["initial_state"].flip(-1)]
    packed = {} if batch > 1 else {"cu_seqlens": offsets(lengths)}
    return x, grads, run(gdn_cuda.selective_scan, x, grads, discretization, **packed)


def check_scan(ranks: Ranks, split: Split, lengths: tuple[int, ...], batch: int, discretization: str, is_complex: bool) -> None:
    context, (x, grads, wanted) = split.context(ranks, lengths), scanned(lengths, batch, discretization, is_complex)
    in_time = [name for name, y in x.items() if name != "initial_state" and y.dim() > 2]

    def own(y: Tensor) -> Tensor:
        """This rank's tokens; pairs of them are moved together."""
        pairs = y.unflatten(-1, (-1, 2)) if y.shape[-1] == 2 * sum(lengths) else y
        return parallel.shard(pairs, context, 3 if pairs is not y and y.dim() == 4 else y.dim() - 1).reshape(*y.shape[:-1], -1)

    first, last = (y[:, None, None] if batch == 1 else y[0] for y in (firsts(context), lasts(context)))
    mine = {name: own(y) if name in in_time else y for name, y in x.items()}
    mine["initial_state"] = torch.where(first, x["initial_state"], torch.nan)
    my_grads = [own(grads[0]), torch.where(last, grads[1], torch.nan)]
    found = run(parallel.selective_scan, mine, my_grads, discretization, context=context)
    for name in x.keys() - {*in_time, "initial_state"}:
        found[name] = _summed(ranks, found[name])
    parts = {name: own(wanted[name]) for name in ("out", *in_time)}
    parts |= {"last": wanted["last"] * last, "initial_state": wanted["initial_state"] * first}
    pairs = {name: (parts.get(name, y), y) for name, y in wanted.items()}
    what = f"rank {ranks.rank} of {ranks.size}, {split.name}, {lengths}, batch {batch}, {discretization}, {is_complex}"
    compare(found, pairs, what)
