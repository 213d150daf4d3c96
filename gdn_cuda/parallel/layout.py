"""Which rank has which tokens, and where sequences cross from one rank to another. Integers on the host alone.

A rank has *fragments*, consecutive tokens of the whole; a fragment consists of *slices*, consecutive tokens of a sequence. The
first slice of a fragment may continue a sequence, and its last one may be continued."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from ..operators.schema import refuse

Fragments = tuple[tuple[int, int], ...]  # of a rank: first token, and the one past the last


class Slice(NamedTuple):
    sequence: int
    rank: int
    fragment: int  # of those of the rank
    start: int  # among the rank's tokens
    stop: int
    continues: bool  # a sequence whose first token is in an earlier slice
    is_continued: bool  # whether a later slice has the sequence's last token


class Run(NamedTuple):
    """Slices that one call of an operator computes: one that crosses a border of its fragment, or whole sequences."""

    slices: tuple[Slice, ...]

    @property
    def start(self) -> int:
        return self.slices[0].start

    @property
    def stop(self) -> int:
        return self.slices[-1].stop

    @property
    def fragment(self) -> int:
        return self.slices[0].fragment

    @property
    def continues(self) -> bool:
        return self.slices[0].continues

    @property
    def is_continued(self) -> bool:
        return self.slices[-1].is_continued


def split_evenly(tokens: int, parts: int) -> list[tuple[int, int]]:
    """Parts that differ by one token at most, longer ones first."""
    each, longer = divmod(tokens, parts)
    return list(pairwise(accumulate([each + (i < longer) for i in range(parts)], initial=0)))


def fragments_of(function: str, layout: str, tokens: int, ranks: int) -> tuple[Fragments, ...]:
    if layout == "contiguous":
        return tuple((part,) for part in split_evenly(tokens, ranks))
    if layout != "zigzag":
        refuse(function, "layout", "'contiguous' or 'zigzag'", repr(layout))
    parts = split_evenly(tokens, 2 * ranks)
    return tuple((parts[rank], parts[2 * ranks - 1 - rank]) for rank in range(ranks))


def checked(function: str, fragments: object, tokens: int, ranks: int) -> tuple[Fragments, ...]:
    """The fragments of all ranks, as the user gives them. Together they are all tokens, each once."""
    what = "a list of (first, last + 1) for each rank"
    try:
        found = tuple(tuple((int(first), int(end)) for first, end in one_rank) for one_rank in fragments)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        refuse(function, "fragments", what, repr(fragments))
    if len(found) != ranks:
        refuse(function, "fragments", f"{what}, of which there are {ranks}", f"{len(found)} lists")
    until = 0
    for first, end, rank in sorted((*each, rank) for rank, one_rank in enumerate(found) for each in one_rank):
        if not 0 <= first <= end <= tokens:
            refuse(
                function, "fragments", f"0 ≤ first ≤ end ≤ {tokens}, the number of tokens", f"({first}, {end}) of rank {rank}"
            )
        if first < until and first < end:
            refuse(function, "fragments", "every token once", f"token {first} a second time, on rank {rank}")
        if first > until:
            refuse(function, "fragments", "every token once", f"none with token {until}")
        until = max(until, end)
    if until != tokens:
        refuse(function, "fragments", "every token once", f"none with token {until}")
    return found


def merged(fragments: Fragments) -> Fragments:
    """Without empty fragments; one that continues the one before it is joined to it."""
    found: list[tuple[int, int]] = []
    for first, end in fragments:
        if found and found[-1][1] == first:
            found[-1] = found[-1][0], end
        elif first < end:
            found.append((first, end))
    return tuple(found)


def slices_of(lengths: Sequence[int], rank: int, fragments: Fragments) -> tuple[Slice, ...]:
    starts = list(accumulate(lengths, initial=0))
    found, before = [], 0
    for i, (first, end) in enumerate(fragments):
        sequence = bisect_right(starts, first) - 1
        while sequence < len(lengths) and starts[sequence] < end:
            one, last = max(first, starts[sequence]), min(end, starts[sequence + 1])
            if one < last:
                borders = one > starts[sequence], last < starts[sequence + 1]
                found.append(Slice(sequence, rank, i, before + one - first, before + last - first, *borders))
            sequence += 1
        before += end - first
    return tuple(found)


def runs_of(slices: Sequence[Slice]) -> tuple[Run, ...]:
    found: list[list[Slice]] = []
    for each in slices:
        crosses = each.continues or each.is_continued
        last = found[-1][-1] if found else None
        if last is None or crosses or last.continues or last.is_continued or last.fragment != each.fragment:
            found.append([])
        found[-1].append(each)
    return tuple(Run(tuple(each)) for each in found)


def chains_of(slices: Sequence[Slice], fragments: Sequence[Fragments]) -> dict[int, tuple[Slice, ...]]:
    """By sequence, those that have several slices: their slices in the order of tokens."""
    by_sequence: dict[int, list[Slice]] = {}
    for each in sorted(slices, key=lambda each: fragments[each.rank][each.fragment]):
        if each.continues or each.is_continued:
            by_sequence.setdefault(each.sequence, []).append(each)
    return {sequence: tuple(found) for sequence, found in by_sequence.items()}
