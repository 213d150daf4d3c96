"""Calls of `gdn_cuda.parallel` beside the same call in one process. Every rank checks what it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from channel_gradient_cases import ChannelCase
from channel_gradient_cases import drawn as drawn_channels
from gradient_cases import GradientCase, drawn
from oracles import once
from torch import Tensor

import gdn_cuda
from gdn_cuda import parallel
from gdn_cuda.parallel.ranks import Ranks

ROWS = ("query", "key", "value", "beta", "gate")
WEIGHTS = ("A_log", "dt_bias")
LEAVES = (*ROWS, "state", *WEIGHTS)
BOUND = 1e-12
Fragments = list[list[tuple[int, int]]]


class Split(NamedTuple):
    """How tokens are given to ranks: a layout, or a function of the numbers of tokens and ranks."""

    name: str
    fragments: Callable[[int, int], Fragments] | None = None

    def context(self, ranks: Ranks, lengths: Sequence[int], mode: str | None = None) -> parallel.Context:
        if self.fragments is None:
            return parallel.context(ranks, lengths, layout=self.name, mode=mode)
        return parallel.context(ranks, lengths, fragments=self.fragments(sum(lengths), ranks.size), mode=mode)


def _ragged(tokens: int, ranks: int) -> Fragments:
    """Fragments of 65, 0, 1 and 63 tokens in turn, and the rest, two for each rank, not in the order of ranks."""
    counts = [min(each, tokens) for each in ([65, 0, 1, 63] * ranks)[: 2 * ranks - 1]]
    ends = [min(each, tokens) for each in accumulate(counts, initial=0)] + [tokens]
    found: Fragments = [[] for _ in range(ranks)]
    for i, span in enumerate(pairwise(ends)):
        found[(i * 3 + 1) % ranks if ranks != 3 else (i * 2 + 1) % ranks].append(span)
    return found


def _backwards(tokens: int, ranks: int) -> Fragments:
    """Rank 0 has the last tokens, in two fragments of which the later one is first."""
    ends = [tokens * i // (2 * ranks) for i in range(2 * ranks + 1)]
    spans = list(pairwise(ends))[::-1]
    return [spans[2 * rank : 2 * rank + 2] for rank in range(ranks)]


def _one_has_all(tokens: int, ranks: int) -> Fragments:
    return [[(0, tokens)] if rank == ranks - 1 else [] for rank in range(ranks)]


SPLITS = (
    Split("contiguous"),
    Split("zigzag"),
    Split("ragged", _ragged),
    Split("backwards", _backwards),
    Split("one has all", _one_has_all),
)
GATES: tuple[Any, ...] = (0.0, 1e-5, 1.0, 30.0, (0.0, 30.0))
SMALL = {"heads": (1, 2), "dk": 8, "dv": 6}
RAW = {"A_log": True, "beta_is_logit": True, "use_qk_l2norm": True, "allow_negative_eigenvalues": True}


def cases() -> Iterator[tuple[Split, GradientCase]]:
    for split in SPLITS:
        for gates in GATES if split in SPLITS[:3] else GATES[-1:]:  # one sequence on all ranks
            yield split, GradientCase(lengths=(330,), gates=gates, beta=2.0, **SMALL)
        yield split, GradientCase(lengths=(210,), resets=True, beta=2.0, **SMALL)
        # Sequences that no, one and several borders cross, and sequences without tokens, at borders too.
        yield split, GradientCase(lengths=(0, 20, 1, 230, 0, 64, 0, 65, 3, 0), gates=0.1, **SMALL)
        yield split, GradientCase(lengths=(64, 64, 0, 128), gates=1e-5, resets=True, **SMALL)
        yield split, GradientCase(lengths=(100, 100, 100), gates=0.1, **SMALL)  # a batch
    for options in (RAW, {"gate_is_linear": True, "scale": 0.3}):
        yield SPLITS[1], GradientCase(lengths=(150, 60), options=options, **SMALL)
    yield SPLITS[0], GradientCase(lengths=(150, 60), state=False, **SMALL)
    yield SPLITS[0], GradientCase(lengths=(150, 60), last=False, **SMALL)
    yield SPLITS[0], GradientCase(lengths=(150, 60), out=False, **SMALL)
    yield SPLITS[1], GradientCase(lengths=(3, 2), **SMALL)  # fewer tokens than fragments, with four ranks


def modes() -> Iterator[tuple[Split, GradientCase, str]]:
    for split in SPLITS:
        for mode in ("doubling", "ring"):
            yield split, GradientCase(lengths=(210,), resets=True, beta=2.0, **SMALL), mode
            yield split, GradientCase(lengths=(0, 20, 1, 230, 0, 64, 0, 65, 3, 0), gates=0.1, **SMALL), mode
            yield split, GradientCase(lengths=(100, 100, 100), gates=0.1, **SMALL), mode


def channel_cases() -> Iterator[tuple[Split, ChannelCase, str | None]]:
    """With a gate for every channel of the key, in every mode and form."""
    one, several = GradientCase(lengths=(150,), beta=2.0, **SMALL), GradientCase(lengths=(0, 20, 1, 90, 0, 40, 0), **SMALL)
    batch = GradientCase(lengths=(70, 70), options={"use_qk_l2norm": True}, **SMALL)
    for i, mode in enumerate((None, "doubling", "ring")):
        yield SPLITS[i], ChannelCase(one, "heavy"), mode
        yield SPLITS[i], ChannelCase(several, "token reset"), mode
        yield SPLITS[(i + 1) % 3], ChannelCase(batch, "channel reset"), mode
    forms = ("softplus", "bounded raw", "bound", "linear")
    for split, form in zip(SPLITS, forms, strict=False):
        yield split, ChannelCase(several, form), None
    yield SPLITS[0], ChannelCase(GradientCase(lengths=(60, 50), state=False, last=False, **SMALL), "init"), None


def results(function: Callable[..., Any], x: dict[str, Any], grads: Any, names: tuple[str, ...] = LEAVES) -> dict[str, Tensor]:
    """The output, the last states, and the gradients of those of `names` that the call has."""
    leaves = {name: x[name].detach().clone().requires_grad_() for name in names if x.get(name) is not None}
    found = function(**(x | leaves))[:2]
    pairs = [(y, g.to(y.dtype)) for y, g in zip(found, grads, strict=True) if g is not None]
    outputs, cotangents = zip(*pairs, strict=True)
    gradients = torch.autograd.grad(outputs, list(leaves.values()), cotangents, allow_unused=True)
    named = {name: torch.zeros_like(x[name]) if g is None else g for name, g in zip(leaves, gradients, strict=True)}
    return {"out": found[0].detach(), "last": found[1].detach()} | named


@once
def in_one_process(case: GradientCase) -> tuple[dict[str, Any], Any, dict[str, Tensor]]:
    """The call, gradients of its results, and what autograd of the reference finds, in fp64."""
    x, grads = drawn(case, 0, torch.float64)
    return x, grads, results(gdn_cuda.reference.chunked_forward, x, grads)


def check(ranks: Ranks, split: Split, case: GradientCase, mode: str | None = None) -> None:
    """States that a rank must not read are NaN, and those that it does not have are 0."""
    x, grads, wanted = in_one_process(case)
    found, context = on_rank(ranks, split, case, x, grads, mode)
    compare(found, expected(context, case, wanted), f"rank {ranks.rank} of {ranks.size}, {split.name}, {case}, {mode}")


@once
def channels_in_one_process(case: ChannelCase) -> tuple[dict[str, Any], Any, dict[str, Tensor]]:
    x, grads = drawn_channels(case, 0, torch.float64)
    return x, grads, results(gdn_cuda.reference.chunked_forward, x, grads)


def check_channels(ranks: Ranks, split: Split, case: ChannelCase, mode: str | None = None) -> None:
    x, grads, wanted = channels_in_one_process(case)
    found, context = on_rank(ranks, split, case.shape, x, grads, mode)
    what = f"rank {ranks.rank} of {ranks.size}, {split.name}, {case}, {mode}"
    compare(found, expected(context, case.shape, wanted), what)


def on_rank(
    ranks: Ranks, split: Split, case: GradientCase, x: dict[str, Any], grads: Any, mode: str | None = None
) -> tuple[dict[str, Tensor], parallel.Context]:
    """The rank's results, of which gradients of weights are summed over ranks."""
    context = split.context(ranks, list(case.lengths) if case.packed else [case.lengths[0]], mode)
    dim, mine = (0 if case.packed else 1), {name: y for name, y in x.items() if name != "cu_seqlens"}
    mine |= {name: parallel.shard(x[name], context, dim) for name in ROWS}
    first, last = firsts_and_lasts(context, case)
    if "state" in x:
        mine["state"] = torch.where(first.to(x["state"].device), x["state"], torch.nan)
    grad_out, grad_last = grads
    mine_grads = (
        None if grad_out is None else parallel.shard(grad_out, context, dim),
        None if grad_last is None else torch.where(last.to(grad_last.device), grad_last, torch.nan),
    )
    found = results(lambda **given: parallel.chunked_forward(**given, context=context), mine, mine_grads)
    for name in WEIGHTS:
        if name in found:
            found[name] = ranks.start_all_gather(found[name])().sum(0)
    return found, context


def firsts_and_lasts(context: parallel.Context, case: GradientCase) -> tuple[Tensor, Tensor]:
    """Whether the rank has the first token of each sequence, and the last; rank 0 has sequences without tokens."""
    starts = list(accumulate(context.lengths, initial=0))
    tokens = [t for first, end in context.fragments[context.rank] for t in range(first, end)]
    has = [
        [a in tokens if a < b else context.rank == 0, b - 1 in tokens if a < b else context.rank == 0]
        for a, b in pairwise(starts)
    ]
    rows = has if case.packed else has * len(case.lengths)
    first, last = torch.tensor(rows)[..., None, None, None].unbind(1)
    return first, last


def expected(context: parallel.Context, case: GradientCase, wanted: dict[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """The rank's part of what one process has found, and all of it."""
    first, last = firsts_and_lasts(context, case)
    parts = {name: parallel.shard(wanted[name], context, 0 if case.packed else 1) for name in ("out", *ROWS)}
    parts |= {name: wanted[name] for name in WEIGHTS if name in wanted}
    parts["last"] = wanted["last"] * last.to(wanted["last"].device)
    if "state" in wanted:
        parts["state"] = wanted["state"] * first.to(wanted["state"].device)
    return {name: (part, wanted[name]) for name, part in parts.items()}


def compare(found: dict[str, Tensor], wanted: dict[str, tuple[Tensor, Tensor]], what: str, bound: float = BOUND) -> None:
    assert found.keys() == wanted.keys()
    for name, (part, whole) in wanted.items():
        assert found[name].shape == part.shape and found[name].dtype == part.dtype, (what, name)
        error = float((found[name] - part).norm() / whole.norm().clamp(min=1e-30))
        # Gradients of weights are sums over all tokens, which cancel.
        assert error <= bound * (10 if name in WEIGHTS else 1), f"{what}: {name}: {error}"


def check_broadcast(ranks: Ranks, split: Split) -> None:
    """All ranks have all final states, and their gradients of them are summed."""
    case = GradientCase(lengths=(70, 0, 30), gates=0.1, **SMALL)
    x, _ = drawn(case, 0, torch.float64)
    context = split.context(ranks, list(case.lengths))
    grads = torch.randn(ranks.size, *x["state"].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted = results(gdn_cuda.reference.chunked_forward, x, (torch.zeros_like(x["value"]), grads.sum(0)))
    mine = {name: y for name, y in x.items() if name != "cu_seqlens"}
    mine |= {name: parallel.shard(x[name], context, 0) for name in ROWS}
    options = {"context": context, "broadcast_final_state": True}
    found = results(lambda **given: parallel.chunked_forward(**given, **options), mine, (None, grads[ranks.rank]))
    what = f"rank {ranks.rank} of {ranks.size}, {split.name}, broadcast"
    compare(found, expected(context, case, wanted) | {"last": (wanted["last"], wanted["last"])}, what)
