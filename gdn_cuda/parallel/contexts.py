"""What all ranks know about a batch whose tokens they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, count
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor

from ..operators.schema import refuse, require_tensor
from . import layout as layouts
from .layout import Fragments, Run, Slice
from .ranks import Ranks, ranks_of

_MOST_GATHERED = 8  # ranks that gather states and maps, unless `mode` says otherwise
_MODES = ("gather", "doubling", "ring")
_NAME = "parallel.context"


@dataclass(frozen=True)
class Context:
    """Sequences whose tokens ranks share; `context` makes one. It is hashable, and equal to one of the same group, lengths and
    fragments. Layers, their backward and recomputation share it."""

    ranks: Ranks
    lengths: tuple[int, ...]
    fragments: tuple[Fragments, ...]  # by rank
    mode: str = "gather"  # how states of `chunked_forward` travel
    _tensors: dict[Any, Tensor] = field(default_factory=dict, repr=False, compare=False)
    number: int = field(default=-1, repr=False, compare=False)  # what operators of torch take in its place

    @property
    def rank(self) -> int:
        return self.ranks.rank

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of tokens of each rank."""
        return tuple(sum(end - first for first, end in one_rank) for one_rank in self.fragments)

    @property
    def tokens(self) -> int:
        """The number of tokens of this rank."""
        return self.counts[self.rank]

    @cached_property
    def slots(self) -> int:
        """As many fragments as the rank with most has."""
        return max(len(one_rank) for one_rank in self.fragments)

    @cached_property
    def slices_by_rank(self) -> tuple[tuple[Slice, ...], ...]:
        return tuple(layouts.slices_of(self.lengths, rank, each) for rank, each in enumerate(self.fragments))

    @property
    def slices(self) -> tuple[Slice, ...]:
        return self.slices_by_rank[self.rank]

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """This rank's."""
        return layouts.runs_of(self.slices)

    @cached_property
    def chains(self) -> dict[int, tuple[Slice, ...]]:
        """By sequence, those that cross from one fragment to another: their slices in the order of tokens."""
        return layouts.chains_of([each for one_rank in self.slices_by_rank for each in one_rank], self.fragments)

    @cached_property
    def needs_maps(self) -> bool:
        """Whether a slice somewhere both continues a sequence and is continued."""
        return any(len(chain) > 2 for chain in self.chains.values())

    def before(self, each: Slice) -> tuple[Slice, ...]:
        """The slices of its sequence before it."""
        chain = self.chains[each.sequence]
        return chain[: chain.index(each)]

    def after(self, each: Slice) -> tuple[Slice, ...]:
        chain = self.chains[each.sequence]
        return chain[chain.index(each) + 1 :]

    @cached_property
    def owners(self) -> tuple[int, ...]:
        """The rank that has the last token of each sequence, 0 for sequences without tokens."""
        found = [0] * len(self.lengths)
        for each in (each for one_rank in self.slices_by_rank for each in one_rank if not each.is_continued):
            found[each.sequence] = each.rank
        return tuple(found)

    @cached_property
    def without_tokens(self) -> list[int]:
        """This rank's sequences without tokens, all of which belong to rank 0."""
        return [] if self.rank else [i for i, length in enumerate(self.lengths) if length == 0]

    @cached_property
    def is_in_order(self) -> bool:
        """Whether the tokens of rank 0, rank 1 and so on are all tokens in order."""
        starts = [first for one_rank in self.fragments for first, _ in one_rank]
        return starts == sorted(starts)

    def on_device(self, name: str, device: torch.device, make: Callable[[], Tensor]) -> Tensor:
        """`make()` on the device, made and copied once."""
        if (name, device) not in self._tensors:
            with torch.inference_mode(False):  # a later call may save it for its backward
                self._tensors[name, device] = make().to(device)
        return self._tensors[name, device]

    def integers(self, name: str, device: torch.device, values: Iterable[int], dtype: torch.dtype = torch.int64) -> Tensor:
        return self.on_device(name, device, lambda: torch.tensor(list(values), dtype=dtype))

    def offsets(self, slices: Sequence[Slice], device: torch.device, before: int = 0) -> Tensor:
        """`cu_seqlens` of consecutive slices of this rank, of tokens that begin so many before them."""
        name = f"offsets {slices[0].start} {slices[-1].stop} {before}"
        values = accumulate((each.stop - each.start for each in slices), initial=before)
        return self.integers(name, device, values, torch.int32)

    def check(self, function: str, name: str, x: Tensor, dim: int) -> None:
        """Raises unless x has this rank's tokens along `dim`, on a device of which ranks exchange tensors."""
        who = f"rank {self.rank} of {self.ranks.size}"
        check_tokens(function, name, x, dim, self.tokens, f"{self.tokens} tokens, those of {who},")
        self.check_device(function, name, x)

    def check_whole(self, function: str, name: str, x: Tensor, dim: int) -> None:
        check_tokens(function, name, x, dim, sum(self.lengths), f"all {sum(self.lengths)} tokens")

    def check_device(self, function: str, name: str, x: Tensor) -> None:
        if self.ranks.size > 1 and not self.ranks.supports(x.device):
            refuse(function, name, "a tensor on a device for which the group has a backend", f"one on {x.device}")

    def check_batch(self, function: str, name: str, x: Tensor) -> None:
        if x.shape[0] != 1 and len(self.lengths) != 1:
            refuse(function, name, f"a batch of 1 with {len(self.lengths)} sequences", str(tuple(x.shape)))

    def check_states(self, function: str, name: str, states: Tensor, like: Tensor, *sizes: int) -> None:
        """Raises unless there is a state for each sequence of the batch of `like`, beside it."""
        require_tensor(function, name, states)
        expected = (like.shape[0] * len(self.lengths), *sizes)
        if tuple(states.shape) != expected:
            refuse(function, name, f"{expected}, a state for each sequence", str(tuple(states.shape)))
        if states.device != like.device:
            refuse(function, name, f"a tensor on {like.device}", f"one on {states.device}")

    def explain(self, heads: int = 32, dk: int = 128, dv: int = 128) -> str:
        """Who has which tokens, which sequences cross, and what a layer with these sizes exchanges."""
        mine, size = self.rank, self.ranks.size
        lines = [f"{sum(self.lengths)} tokens in {len(self.lengths)} sequences on {size} ranks; this is rank {mine}"]
        for rank, one_rank in enumerate(self.fragments):
            spans = ", ".join(f"{first} to {end - 1}" for first, end in one_rank) or "none"
            lines.append(f"rank {rank}: {self.counts[rank]} tokens: {spans}")
        for sequence, chain in self.chains.items():
            path = " → ".join(str(each.rank) for each in chain)
            lines.append(f"sequence {sequence}, {self.lengths[sequence]} tokens: ranks {path}")
        if not self.chains or size == 1:
            return "\n".join([*lines, "no states are exchanged"])
        state = self.slots * heads * dv * dk * 4
        maps = self.slots * heads * dk * dk * 4 * self.needs_maps
        sizes = f"with {heads} value heads, dk = {dk}, dv = {dv} and one sequence a batch, in fp32"
        longest = max(map(len, self.chains.values())) - 1
        if self.mode != "gather":
            rounds, most = (longest, state) if self.mode == "ring" else (longest.bit_length(), state + maps)
            lines.append(f"each way, {self.mode}: {rounds} all-to-alls of at most {_size(most)} from each rank")
            return "\n".join([*lines, sizes])
        lines.append(f"forward: an all-gather of {_size(state + maps)} from each rank, of states{' and maps' * bool(maps)}")
        lines.append(f"backward: an all-gather of {_size(state)} from each rank, of gradients of states")
        return "\n".join([*lines, sizes])


def check_tokens(function: str, name: str, x: Tensor, dim: int, count: int, what: str) -> None:
    require_tensor(function, name, x)
    if dim < 0:
        refuse(function, "dim", "a dimension counted from the first, 0 or more", dim)
    if x.dim() <= dim or x.shape[dim] != count:
        refuse(function, name, f"{what} in dimension {dim}", str(tuple(x.shape)))


def require_context(function: str, context: object) -> None:
    if not isinstance(context, Context):
        refuse(function, "context", "one from gdn_cuda.parallel.context", type(context).__name__)


def _size(count: int) -> str:
    return f"{count / 2**20:.2f} MiB"


def context(
    group: Any,
    lengths: Sequence[int],
    layout: str = "contiguous",
    fragments: Sequence[Sequence[tuple[int, int]]] | None = None,
    *,
    mode: str | None = None,
) -> Context:
    """The sequences of a batch, and which rank has which of their tokens. On the host, once a batch; all ranks call it with the
    same arguments, which one collective checks.

    Shapes:
        lengths: integers on the host, of the sequences in order, 0 too. With one sequence, tensors may have a batch

    Parameters:
        group: a ProcessGroup, or a DeviceMesh of one dimension, as `mesh["cp"]`
        layout: "contiguous": rank r has the r-th part of all tokens; "zigzag": of twice as many parts as ranks, the r-th and
          the r-th from the end. Parts differ by one token at most
        fragments: in place of a layout, for each rank a list of (first token, the one past its last), of any lengths; together
          they are all tokens, each once
        mode: how states of `chunked_forward` travel. "gather": one all-gather each way; "doubling": all-to-alls at distances
          1, 2, 4 … along a sequence; "ring": from rank to rank, one computing after the other. With `deterministic` and borders
          at multiples of 64 tokens of a sequence, "ring" has the output and states of one process to the bit on a CPU, and the
          gradients of value and state. None: "gather" on up to 8 ranks, else "doubling"

    Example:
        >>> from torch import distributed
        >>> distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        >>> context = gdn_cuda.parallel.context(distributed.group.WORLD, lengths=[70, 30])
        >>> context.fragments
        (((0, 100),),)
        >>> distributed.destroy_process_group()
    """
    ranks = ranks_of(_NAME, group)
    try:
        made = _made(ranks, lengths, layout, fragments, mode)
    except ValueError as error:
        ranks.texts(f"an error, {error}")  # others are told, and do not wait
        raise
    fragments = [list(each) for each in made.fragments]
    texts, digests = ranks.texts(f"mode={made.mode}, lengths={list(made.lengths)}, {fragments=}")
    for rank, digest in enumerate(digests):
        if digest != digests[ranks.rank]:
            same = f"what rank {ranks.rank} got, {texts[ranks.rank]}"
            refuse(_NAME, "lengths, layout, fragments, mode", f"on all ranks {same}", f"on rank {rank} {texts[rank]}")
    return _kept(made)


_by_number: WeakValueDictionary[int, Context] = WeakValueDictionary()
_numbers: WeakKeyDictionary[Context, int] = WeakKeyDictionary()
_next, _lock = count(), Lock()


def _kept(made: Context) -> Context:
    """An equal one that is in use, so that code is compiled once for both, or this one with a new number."""
    with _lock:
        if (found := _by_number.get(_numbers.get(made, -1))) is not None:
            return found
        made = replace(made, number=next(_next))
        _by_number[made.number], _numbers[made] = made, made.number
        return made


def numbered(number: int) -> Context:
    found = _by_number.get(number)
    if found is None:
        refuse("gdn_cuda.parallel", "context", "to be kept until its backward has run", "one that is gone")
    return found


def _made(ranks: Ranks, lengths: Any, layout: str, fragments: Any, mode: Any) -> Context:
    if isinstance(lengths, Tensor) or not isinstance(lengths, Sequence):
        refuse(_NAME, "lengths", "a list of integers on the host", type(lengths).__name__)
    wrong = [n for n in lengths if isinstance(n, bool) or not isinstance(n, int) or n < 0]
    if wrong or not lengths:
        refuse(_NAME, "lengths", "one integer or more, none negative", repr(wrong[0]) if wrong else "none")
    if mode is None:
        mode = "gather" if ranks.size <= _MOST_GATHERED else "doubling"
    if mode not in _MODES:
        refuse(_NAME, "mode", "None, " + ", ".join(map(repr, _MODES)), repr(mode))
    tokens = sum(lengths)
    if fragments is None:
        found = layouts.fragments_of(_NAME, layout, tokens, ranks.size)
    elif layout != "contiguous":
        refuse(_NAME, "layout", "its default with fragments", repr(layout))
    else:
        found = layouts.checked(_NAME, fragments, tokens, ranks.size)
    return Context(ranks, tuple(lengths), tuple(map(layouts.merged, found)), mode)
