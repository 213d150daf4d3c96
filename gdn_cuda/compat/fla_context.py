"""FLA's contexts of sequences whose tokens ranks share, as in fla-core 0.6.0."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..operators.schema import refuse
from ..parallel import Context, context

_LAYOUTS = ("contiguous", "zigzag")


class Row(NamedTuple):
    """The tokens of a sequence in a part, one span in a rank's `cu_seqlens`."""

    sequence: int
    tokens: int
    begins: bool
    ends: bool


class Part(NamedTuple):
    """Consecutive tokens of a rank, which has one part if contiguous, two in zigzag."""

    rows: tuple[Row, ...]
    before: int  # parts with earlier tokens of its first sequence
    after: int  # and with later ones of its last
    tokens_before: int  # earlier tokens of its first sequence


class Shared(NamedTuple):
    """What our functions need of a context of FLA's."""

    context: Context
    rows: tuple[Row, ...]  # this rank's

    def to_sequences(self, rows: Tensor) -> Tensor:
        """States of all sequences, from those of this rank's rows; of others they are 0."""
        first = [i for i, row in enumerate(self.rows) if row.begins]
        at, of = (self._index(name, rows, each) for name, each in (("first", first), ("of", self._sequences(first))))
        states = rows.new_zeros((len(self.context.lengths), *rows.shape[1:]))
        return states.index_copy(0, of, rows.index_select(0, at))

    def to_rows(self, states: Tensor) -> Tensor:
        """States of this rank's rows, from those of all sequences; of a sequence that goes on they are 0."""
        found = states.index_select(0, self._index("rows", states, self._sequences(range(len(self.rows)))))
        ends = self._index("ends", states, (row.ends for row in self.rows)).bool()
        return torch.where(ends.view(-1, *[1] * (states.dim() - 1)), found, 0)

    def _sequences(self, rows: Iterable[int]) -> list[int]:
        return [self.rows[i].sequence for i in rows]

    def _index(self, name: str, like: Tensor, values: Iterable[int]) -> Tensor:
        return self.context.integers(f"fla {name} {len(self.rows)}", like.device, values)


@dataclass
class FLACPContext:
    """FLA's attributes, and what gdn_cuda's functions read. `build_cp_context` makes one."""

    group: Any = None
    cu_seqlens: Tensor | None = None
    cu_seqlens_cpu: Tensor | None = None
    is_last_rank: bool | None = None
    pre_num_ranks: int | None = None
    is_first_rank: bool | None = None
    post_num_ranks: int | None = None
    conv1d_kernel_size: int | None = None
    pre_num_conv_tokens: int | None = None
    layout: str = "contiguous"
    part_len: int | None = None
    front_num_seqs: int | None = None
    pre_num_ranks_by_part: tuple[int, ...] | None = None
    post_num_ranks_by_part: tuple[int, ...] | None = None
    is_first_by_part: tuple[bool, ...] | None = None
    is_last_by_part: tuple[bool, ...] | None = None
    pre_num_conv_tokens_by_part: tuple[int, ...] | None = None
    shared: Shared | None = field(default=None, repr=False)

    def copy_for_backward(self) -> FLACPContext:
        on_device, on_host = (None if x is None else x.clone() for x in (self.cu_seqlens, self.cu_seqlens_cpu))
        return replace(self, cu_seqlens=on_device, cu_seqlens_cpu=on_host)

    @property
    def num_seqs(self) -> int:
        """The number of rows of this rank."""
        return 0 if self.cu_seqlens is None else len(self.cu_seqlens) - 1

    @property
    def is_cp_enabled(self) -> bool:
        return self.group is not None


def build_cp_context(
    cu_seqlens: Tensor,
    group: Any,
    conv1d_kernel_size: int | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    use_tf32x3_affine_chain: bool = True,
    layout: str = "contiguous",
) -> FLACPContext:
    """Who has which tokens, for calls with `cp_context`. One collective, and without cu_seqlens_cpu a wait for the GPU: once a
    batch.

    cu_seqlens (N + 1,) has all tokens, a multiple of the number of ranks, or of twice as many in zigzag. Rank r has the r-th
    part, in zigzag the r-th and the r-th from the end. use_tf32x3_affine_chain changes nothing.
    """
    function = "build_cp_context"
    if layout not in _LAYOUTS:
        refuse(function, "layout", "'contiguous' or 'zigzag'", repr(layout))
    ends = (cu_seqlens if cu_seqlens_cpu is None else cu_seqlens_cpu).tolist()
    if ends[:1] != [0]:
        refuse(function, "cu_seqlens", "0 first", ends[0] if ends else "nothing")
    made, parts = _made(function, group, [end - first for first, end in pairwise(ends)], layout)
    rows = [row for part in parts for row in part.rows]
    offsets = torch.tensor(list(accumulate((row.tokens for row in rows), initial=0)), dtype=torch.int32)
    given: dict[str, Any] = {"group": group, "cu_seqlens": offsets.to(cu_seqlens.device), "cu_seqlens_cpu": offsets}
    given |= {"conv1d_kernel_size": conv1d_kernel_size, "layout": layout, "shared": Shared(made, tuple(rows))}
    by_part: dict[str, tuple[Any, ...]] = {
        "pre_num_ranks": tuple(part.before for part in parts),
        "post_num_ranks": tuple(part.after for part in parts),
        "is_first": tuple(part.before == 0 for part in parts),
        "is_last": tuple(part.after == 0 for part in parts),
        "pre_num_conv_tokens": tuple(part.tokens_before for part in parts),
    }
    if layout == "contiguous":
        names = {"is_first": "is_first_rank", "is_last": "is_last_rank"}
        return FLACPContext(**given | {names.get(name, name): x[0] for name, x in by_part.items()})
    given |= {"part_len": made.tokens // 2, "front_num_seqs": len(parts[0].rows)}
    return FLACPContext(**given | {f"{name}_by_part": x for name, x in by_part.items()})


def shared_of(function: str, cp_context: Any) -> Shared:
    """What ranks share, from FLA's context or ours. FLA's has what one rank knows, so the first call makes a collective."""
    if isinstance(found := getattr(cp_context, "shared", None), Shared):
        return found
    needed = ("group", "cu_seqlens", "layout", "pre_num_ranks", "pre_num_ranks_by_part", "front_num_seqs")
    if not all(hasattr(cp_context, name) for name in needed) or cp_context.group is None:
        got = f"a {type(cp_context).__name__}"
        refuse(function, "cp_context", "None, or what build_cp_context returns, with a group", got)
    offsets = cp_context.cu_seqlens if cp_context.cu_seqlens_cpu is None else cp_context.cu_seqlens_cpu
    counts = [end - first for first, end in pairwise(offsets.tolist())]
    fronts = cp_context.front_num_seqs
    mine = [(cp_context.pre_num_ranks, counts)]
    if cp_context.layout == "zigzag":
        mine = [*zip(cp_context.pre_num_ranks_by_part, (counts[:fronts], counts[fronts:]), strict=True)]
    every: list[Any] = [None] * dist.get_world_size(cp_context.group)
    dist.all_gather_object(every, mine, cp_context.group)
    lengths: list[int] = []
    for before, row_counts in [*(each[0] for each in every), *(each[1] for each in every[::-1] if len(each) > 1)]:
        rest = row_counts
        if before:
            lengths[-1] += row_counts[0]
            rest = row_counts[1:]
        lengths += rest
    made, parts = _made(function, cp_context.group, lengths, cp_context.layout)
    found = cp_context.shared = Shared(made, tuple(row for part in parts for row in part.rows))
    return found


def _made(function: str, group: Any, lengths: Sequence[int], layout: str) -> tuple[Context, list[Part]]:
    made = context(group, lengths, layout)
    size, rank, tokens = made.ranks.size, made.rank, sum(lengths)
    count = size if layout == "contiguous" else 2 * size
    if tokens < count or tokens % count:
        refuse(function, "cu_seqlens", f"a multiple of {count} tokens for {size} ranks, {layout}", tokens)
    starts = list(accumulate(lengths, initial=0))
    each = tokens // count
    places = (rank,) if layout == "contiguous" else (rank, count - 1 - rank)
    return made, [_part(starts, place, each) for place in places]


def _part(starts: list[int], place: int, tokens: int) -> Part:
    """The place-th of parts of as many tokens; `starts` has the first token of each sequence, and the one past the last."""
    first, end = place * tokens, (place + 1) * tokens
    rows, sequence = [], bisect_right(starts, first) - 1
    while sequence + 1 < len(starts) and starts[sequence] < end:
        a, b = starts[sequence], starts[sequence + 1]
        if a < b:
            rows.append(Row(sequence, min(b, end) - max(a, first), a >= first, b <= end))
        sequence += 1
    a, b = starts[rows[0].sequence], starts[rows[-1].sequence + 1]
    return Part(tuple(rows), place - a // tokens, (b - 1) // tokens - place, max(0, first - a))
