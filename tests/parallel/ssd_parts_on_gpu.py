"""Errors of `gdn_cuda.parallel.ssd_scan` on GPUs against fp64, beside those of the same call on one GPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from devices import GPU
from gradient_cases import error
from parallel_cases import Split
from ssd_cases_on_ranks import IN_TIME, run
from ssd_on_device import drawn
from torch import Tensor

import gdn_cuda
from gdn_cuda import parallel
from gdn_cuda.parallel.ranks import Ranks

SUMS = ("A", "D", "dt_bias")


class Case(NamedTuple):
    lengths: tuple[int, ...]
    options: dict[str, Any]  # of ssd_on_device.drawn
    dtype: torch.dtype = torch.bfloat16


CASES = (
    Case((1500,), {"z": True, "D": 2}),
    Case((1500,), {"decay": 1e-4}),
    Case((1500,), {"decay": 1e3}),
    Case((700, 0, 3, 64, 900), {"N": 64}),
    Case((700, 300), {"z": True}, torch.float16),
    Case((200,), {"N": 256, "H": 2, "G": 1}),  # no kernel of gradients
)


class Call(NamedTuple):
    case: Case
    x: dict[str, Tensor]
    grads: list[Tensor]
    alone: dict[str, Tensor]  # the results on one GPU
    exact: dict[str, Tensor]


def call_of(case: Case, seed: int) -> Call:
    given = drawn(GPU, seed, T=sum(case.lengths), lengths=case.lengths, dtype=case.dtype, **case.options)
    offsets = given.pop("cu_seqlens")
    x = {name: y for name, y in given.items() if isinstance(y, Tensor)}
    torch.manual_seed(seed)
    grads = [torch.randn_like(x["x"]), torch.randn_like(x["initial_state"])]
    alone = run(gdn_cuda.ssd_scan, x, grads, dt_softplus=True, cu_seqlens=offsets)
    wide = {name: y.double().cpu() for name, y in x.items()}
    exact = run(gdn_cuda.ssd_scan, wide, [g.double().cpu() for g in grads], dt_softplus=True, cu_seqlens=offsets.cpu())
    return Call(case, x, grads, alone, exact)


def in_parts(ranks: Ranks, split: Split, call: Call) -> dict[str, Tensor]:
    """The results of all ranks as those of one call."""
    context = split.context(ranks, call.case.lengths)
    mine = {name: parallel.shard(y, context) if name in IN_TIME else y for name, y in call.x.items()}
    grads = [parallel.shard(call.grads[0], context), call.grads[1]]
    found = run(parallel.ssd_scan, mine, grads, context=context, dt_softplus=True)
    for name, y in found.items():
        if name in (*IN_TIME, "out"):
            found[name] = parallel.unshard(y, context)
        else:  # 0 where a rank has none, or a sum
            found[name] = ranks.start_all_gather(y.double())().sum(0)
    return found


def check_ssd_errors(ranks: Ranks, split: Split, call: Call) -> None:
    for name, y in in_parts(ranks, split, call).items():
        exact = call.exact[name]
        mine, other = error(y.double().cpu(), exact), error(call.alone[name].double().cpu(), exact)
        # Sums are few values, whose error is chance, and that of a state that a rank received is in all terms.
        most, chance = (5, 1.5e-2) if name in SUMS else (1.5, 3e-3)
        chance *= 0.25 if call.case.dtype == torch.float16 else 1
        assert mine <= max(most * other, chance), (split.name, call.case, name, mine, other)


def check_ssd_bits(ranks: Ranks, split: Split, call: Call) -> None:
    one, other = (in_parts(ranks, split, call) for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one), split.name
