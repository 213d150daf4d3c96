"""`gdn_cuda.parallel.ssd_scan` beside one process, in fp64. Every rank checks what it has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from layer_cases_on_ranks import drawn, firsts, offsets
from oracles import once
from parallel_cases import SPLITS, Split, compare
from scan_cases_on_ranks import lasts
from torch import Tensor

import gdn_cuda
from gdn_cuda import parallel
from gdn_cuda.parallel.ranks import Ranks

IN_TIME = ("x", "dt", "B", "C", "z")
Options = tuple[tuple[str, Any], ...]
RAW: Options = (("dt_limit", (0.05, 1.5)), ("dt_softplus", True))  # limits that some steps are outside of


def ssd_scans() -> Iterator[tuple[Split, tuple[int, ...], int, str, Options]]:
    """Splits, lengths, batches, decays and options."""
    for split in SPLITS:
        yield split, (70, 0, 2, 150, 0), 1, "slow", RAW
        yield split, (90,), 2, "slow", RAW
        yield split, (5, 0, 60), 1, "resets", ()
        yield split, (64, 64, 0, 64), 1, "slow", ()
    yield SPLITS[0], (80,), 2, "none", ()
    yield SPLITS[1], (80,), 2, "fast", RAW
    yield SPLITS[1], (3, 2), 1, "slow", RAW  # fewer tokens than fragments, with four ranks


def ssd_inputs(lengths: tuple[int, ...], batch: int, decays: str) -> dict[str, Tensor]:
    """Without softplus some δ are 0, and with "resets" some decays are."""
    tokens, H, P, G, N = sum(lengths), 4, 3, 2, 5
    sizes = {"x": (batch, tokens, H, P), "B": (batch, tokens, G, N), "C": (batch, tokens, G, N), "z": (batch, tokens, H, P)}
    sizes |= {"dt": (batch, tokens, H), "dt_bias": (H,), "initial_state": (batch * len(lengths), H, P, N)}
    sizes["D"] = (H,) if batch == 1 else (H, P)
    x = {name: drawn(*size, seed=i) for i, (name, size) in enumerate(sizes.items())}
    scale = {"slow": 0.05, "resets": 0.05, "fast": 20.0, "none": 0.0}[decays]
    x["A"] = -scale * drawn(H, seed=20).exp()
    if decays == "resets":
        x["dt"] = torch.where(drawn(*x["dt"].shape, seed=21) > 1.8, 1e6, x["dt"])
    return x


def run(function: Any, x: dict[str, Tensor], grads: list[Tensor], **more: Any) -> dict[str, Tensor]:
    leaves = {name: y.clone().requires_grad_() for name, y in x.items()}
    out, last = function(**leaves, return_last_state=True, **more)
    found = torch.autograd.grad([out, last], list(leaves.values()), grads)
    return {"out": out.detach(), "last": last.detach()} | dict(zip(leaves, found, strict=True))


@once
def ssd_scanned(
    lengths: tuple[int, ...], batch: int, decays: str, options: Options
) -> tuple[dict[str, Tensor], list[Tensor], dict[str, Tensor]]:
    x = ssd_inputs(lengths, batch, decays)
    grads = [drawn(*x["x"].shape, seed=30), x["initial_state"].flip(-1)]
    packed = {} if batch > 1 else {"cu_seqlens": offsets(lengths)}
    return x, grads, run(gdn_cuda.ssd_scan, x, grads, **dict(options), **packed)


def check_ssd(ranks: Ranks, split: Split, lengths: tuple[int, ...], batch: int, decays: str, options: Options) -> None:
    """States that a rank must not read are NaN, and those that it does not have are 0."""
    context, (x, grads, wanted) = split.context(ranks, lengths), ssd_scanned(lengths, batch, decays, options)
    first, last = (y[:, None, None, None] if batch == 1 else y[0] for y in (firsts(context), lasts(context)))
    mine = x | {name: parallel.shard(x[name], context) for name in IN_TIME}
    mine["initial_state"] = torch.where(first, x["initial_state"], torch.nan)
    my_grads = [parallel.shard(grads[0], context), torch.where(last, grads[1], torch.nan)]
    found = run(parallel.ssd_scan, mine, my_grads, context=context, **dict(options))
    for name in ("A", "D", "dt_bias"):
        found[name] = ranks.start_all_gather(found[name])().sum(0)
    parts = {name: parallel.shard(wanted[name], context) for name in ("out", *IN_TIME)}
    parts |= {"last": wanted["last"] * last, "initial_state": wanted["initial_state"] * first}
    pairs = {name: (parts.get(name, y), y) for name, y in wanted.items()}
    what = f"rank {ranks.rank} of {ranks.size}, {split.name}, {lengths}, batch {batch}, {decays}, {options}"
    compare(found, pairs, what)
