"""What ranks send each other in a pass of `chunked_forward`, and in which order they compute their runs.

- gather: one all-gather of states and maps, and every rank folds those that it needs.
- doubling: after rounds at distances 1, 2, 4 and so on along a sequence, each an all-to-all, a rank has composed all that is
  before it. For many ranks, of which each would gather as many maps.
- ring: the state is handed on from rank to rank, and no maps are computed. One rank after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .layout import Run, Slice
from .maps import composed
from .passes import Backward, Call, Forward

Pass = Forward | Backward


def run_pass(half: Pass) -> None:
    """Computes all runs. Those that cross no border of ranks need no exchange."""
    if half.call.context.chains:
        _PASSES[half.call.context.mode](half)
    else:
        _compute_others(half)


def _compute_others(half: Pass) -> None:
    for run in half.call.context.runs:
        if not half.waits(run) and run not in half.found:
            half.compute(run)


def _gather(half: Pass) -> None:
    call, context = half.call, half.call.context
    sent = call.value.new_zeros((context.slots, call.batch, call.heads, half.rows, call.dk), dtype=call.wide)
    for run in context.runs:
        if half.is_needed(run):
            element = half.element(run)
            sent[run.fragment, ..., : element.shape[-2], :] = element
    wait = context.ranks.start_all_gather(sent)
    _compute_others(half)  # meanwhile
    every = wait()
    for run in _crossing(half).values():
        half.keep_maps(run, every)
        if half.waits(run):
            half.compute(run, half.folded(run, every))


def _double(half: Pass) -> None:
    call, runs = half.call, _crossing(half)
    chains = [half.chain(chain) for chain in call.context.chains.values()]
    longest, distance = max(map(len, chains)), 1
    through = {at: half.element(run) for at, run in runs.items() if half.is_needed(run)}  # from `distance` slices before on
    before: dict[Slice, Tensor] = {}
    while distance < longest:
        transfers = [
            _Transfer(chain[i], chain[i + distance], call.dv if i < distance else call.dv + call.dk)  # states are without M
            for chain in chains
            for i in range(len(chain) - distance)
        ]
        for at, found in _moved(call, transfers, through).items():
            before[at] = composed(found, before[at], call.dv) if at in before else found
            if at in through:
                through[at] = composed(found, through[at], call.dv)
        distance *= 2
    _compute_others(half)
    for at, run in runs.items():
        if half.waits(run):
            half.compute(run, before[at])


def _hand_on(half: Pass) -> None:
    call, runs = half.call, _crossing(half)
    chains = [half.chain(chain) for chain in call.context.chains.values()]
    before: dict[Slice, Tensor] = {}
    for i in range(max(map(len, chains))):
        now = [chain[i] for chain in chains if i < len(chain) and chain[i] in runs]
        for at in now:
            half.compute(runs[at], before.get(at))
        transfers = [_Transfer(chain[i], chain[i + 1], call.dv) for chain in chains if i + 1 < len(chain)]
        if transfers:
            before = _moved(call, transfers, {at: half.result(runs[at]) for at in now})
    _compute_others(half)


_PASSES: dict[str, Callable[[Pass], None]] = {"gather": _gather, "doubling": _double, "ring": _hand_on}


class _Transfer(NamedTuple):
    source: Slice
    target: Slice
    rows: int


def _crossing(half: Pass) -> dict[Slice, Run]:
    """This rank's runs that cross a border, by the slice that each consists of."""
    return {run.slices[0]: run for run in half.call.context.runs if run.continues or run.is_continued}


def _moved(call: Call, transfers: list[_Transfer], sent: dict[Slice, Tensor]) -> dict[Slice, Tensor]:
    """What is sent from sources to this rank's targets, by target. All ranks know all transfers, in the same order."""
    ranks = call.context.ranks
    mine = sorted((each for each in transfers if each.source.rank == ranks.rank), key=lambda each: each.target.rank)
    others = sorted((each for each in transfers if each.target.rank == ranks.rank), key=lambda each: each.source.rank)
    rows = [sent[each.source].movedim(-2, 0) for each in mine]
    send, receive = [0] * ranks.size, [0] * ranks.size
    for each in mine:
        send[each.target.rank] += each.rows
    for each in others:
        receive[each.source.rank] += each.rows
    nothing = call.value.new_empty((0, call.batch, call.heads, call.dk), dtype=call.wide)
    found = ranks.all_to_all(torch.cat([nothing, *rows]), send, receive).split([each.rows for each in others])
    return {each.target: x.movedim(0, -2) for each, x in zip(others, found, strict=True)}
