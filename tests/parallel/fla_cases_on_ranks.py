"""`gdn_cuda.compat.fla` with `cp_context` beside one process, in fp64. Every rank checks what it has."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import torch
from layer_cases_on_ranks import drawn, gradients, offsets
from parallel_cases import BOUND
from torch import Tensor
from torch.nn.functional import normalize

from gdn_cuda.compat import fla
from gdn_cuda.compat.fla import FLACPContext

LAYOUTS = ("contiguous", "zigzag")
LENGTHS = (30, 0, 2, 80, 8)  # 120 tokens: a multiple of 2, 4, 6 and 8
NAMES = ("q", "k", "v", "g", "beta")


def as_of_fla(context: FLACPContext) -> Any:
    """A context with FLA's attributes alone."""
    return SimpleNamespace(**{each.name: getattr(context, each.name) for each in fields(context) if each.name != "shared"})


def tokens_of(rank: int, size: int, layout: str, tokens: int) -> Tensor:
    every = torch.arange(tokens).chunk(size if layout == "contiguous" else 2 * size)
    return every[rank] if layout == "contiguous" else torch.cat([every[rank], every[2 * size - 1 - rank]])


def call() -> dict[str, Tensor]:
    x = {name: drawn(1, sum(LENGTHS), 2, *[8] * (name in "qkv"), seed=i) for i, name in enumerate(NAMES)}
    return x | {"k": normalize(x["k"], dim=-1), "g": -x["g"].abs() / 10, "beta": x["beta"].sigmoid()}


def check_fla(group: Any, rank: int, size: int, layout: str, convert: Any = lambda context: context) -> None:
    """`convert` may make another kind of context."""
    cu_seqlens, x = offsets(LENGTHS), call()
    context = convert(fla.build_cp_context(cu_seqlens, group, 4, layout=layout))
    mine = tokens_of(rank, size, layout, sum(LENGTHS))
    rows = context.cu_seqlens.diff().tolist()
    starts = mine[context.cu_seqlens[:-1]].tolist()
    sequences = [int(torch.searchsorted(cu_seqlens, first, right=True)) - 1 for first in starts]
    begins = torch.tensor([first in cu_seqlens for first in starts])[:, None, None, None]
    ends = torch.tensor([first + n in cu_seqlens for first, n in zip(starts, rows, strict=True)])[:, None, None, None]
    state, grad, grad_last = (drawn(*sizes, seed=9) for sizes in ((5, 2, 8, 8), x["v"].shape, (5, 2, 8, 8)))

    def run(x: dict[str, Tensor], grad: Tensor, grad_last: Tensor, **more: Any) -> dict[str, Tensor]:
        leaves = {name: y.clone().requires_grad_() for name, y in x.items()}
        out, last = fla.chunk_gated_delta_rule(**leaves, output_final_state=True, **more)
        found = torch.autograd.grad([out, last], list(leaves.values()), [grad, grad_last])
        return {"out": out.detach(), "last": last.detach()} | dict(zip(leaves, found, strict=True))

    wanted = run(x | {"initial_state": state}, grad, grad_last, cu_seqlens=cu_seqlens)
    own = {name: y[:, mine] for name, y in x.items()} | {"initial_state": torch.where(begins, state[sequences], torch.nan)}
    found = run(own, grad[:, mine], torch.where(ends, grad_last[sequences], torch.nan), cp_context=context)
    parts = {name: wanted[name][:, mine] for name in ("out", *NAMES)}
    parts |= {"last": wanted["last"][sequences] * ends, "initial_state": wanted["initial_state"][sequences] * begins}
    for name, part in parts.items():
        assert (found[name] - part).norm() <= BOUND * wanted[name].norm(), (name, layout, rank, size)

    conv = {"x": drawn(1, sum(LENGTHS), 3, seed=1), "weight": drawn(3, 4, seed=2), "bias": drawn(3, seed=3)}
    grad = drawn(1, sum(LENGTHS), 3, seed=4)
    whole = {name: y.clone().requires_grad_() for name, y in conv.items()}
    wanted = gradients(fla.causal_conv1d(**whole, activation="swish", cu_seqlens=cu_seqlens)[0], grad, whole)
    own = {name: (y[:, mine] if name == "x" else y).clone().requires_grad_() for name, y in conv.items()}
    found = gradients(fla.causal_conv1d(**own, activation="swish", cp_context=context)[0], grad[:, mine], own)
    for name in ("out", "x"):
        assert (found[name] - wanted[name][:, mine]).norm() <= BOUND * wanted[name].norm(), (name, layout, rank, size)
