"""Errors of `gdn_cuda.parallel` on GPUs against fp64, beside those of the same call on one GPU. Ranks are processes, or threads
on one GPU, where kernels, folds and contexts are those of several."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from channel_gradient_cases import ChannelCase
from channel_gradient_cases import drawn as drawn_channels
from gradient_cases import GradientCase, drawn, error
from layer_cases import HIDDEN
from layer_cases_on_ranks import same_layer, seeded
from module_cases_on_ranks import MODULES
from parallel_cases import RAW, ROWS, WEIGHTS, Split, on_rank, results
from torch import Tensor

import gdn_cuda
from gdn_cuda import parallel
from gdn_cuda.parallel import chained
from gdn_cuda.parallel.ranks import Ranks

DEVICE = "cuda"
SIZES: dict[str, Any] = {"heads": (2, 4), "dk": 128, "dv": 128}
CASES = (
    GradientCase(lengths=(1500,), gates=1.0, **SIZES),
    GradientCase(lengths=(1500,), gates=(0.0, 1e-3, 1.0, 30.0), beta=2.0, **SIZES),
    GradientCase(lengths=(1500,), gates=1e-3, resets=True, **SIZES),
    GradientCase(lengths=(700, 0, 3, 64, 900), gates=1e-2, **SIZES),
    GradientCase(lengths=(320, 320), gates=1e-2, heads=(1, 2), dk=64, dv=32),
    GradientCase(lengths=(700, 300), options=RAW, **SIZES),
)
CHANNEL_CASES = (
    ChannelCase(GradientCase(lengths=(1500,), beta=2.0, **SIZES), "init"),
    ChannelCase(GradientCase(lengths=(700, 0, 3, 64, 900), **SIZES), "token reset"),
    ChannelCase(GradientCase(lengths=(320, 320), heads=(1, 2), dk=64, dv=32, options={"use_qk_l2norm": True}), "bounded raw"),
)
Named = dict[str, Tensor]


class Call(NamedTuple):
    case: GradientCase
    x: dict[str, Any]
    grads: Any
    alone: Named  # the results on one GPU
    exact: Named


def _changed(x: Any, change: Any) -> Any:
    if isinstance(x, dict):
        return {name: _changed(y, change) for name, y in x.items()}
    if isinstance(x, tuple):
        return tuple(_changed(y, change) for y in x)
    return change(x) if isinstance(x, Tensor) else x


def call_of(case: GradientCase | ChannelCase, seed: int, dtype: torch.dtype = torch.bfloat16) -> Call:
    shape, given = (
        (case.shape, drawn_channels(case, seed, dtype)) if isinstance(case, ChannelCase) else (case, drawn(case, seed, dtype))
    )
    x, grads = _changed(given, lambda y: y.to(DEVICE))
    wide = _changed((x, grads), lambda y: y.double() if y.is_floating_point() else y)
    alone, exact = results(gdn_cuda.chunked_forward, x, grads), results(gdn_cuda.reference.chunked_forward, *wide)
    return Call(shape, x, grads, alone, exact)


def in_parts(ranks: Ranks, split: Split, call: Call, mode: str | None = None) -> Named:
    """The results of all ranks as those of one call."""
    found, context = on_rank(ranks, split, call.case, call.x, call.grads, mode)
    for name in ("out", *ROWS):
        found[name] = parallel.unshard(found[name], context, 0 if call.case.packed else 1)
    for name in ("last", "state"):  # 0 where a rank has none
        found[name] = ranks.start_all_gather(found[name])().sum(0)
    return found


def check_errors(ranks: Ranks, split: Split, call: Call, mode: str | None = None) -> None:
    for name, y in in_parts(ranks, split, call, mode).items():
        mine, other = error(y, call.exact[name]), error(call.alone[name], call.exact[name])
        most = 5 if name in WEIGHTS else 1.5  # of four numbers the error is chance
        # Half of what one GPU's tests allow; gates of parts of few tokens, whose sums are short, were seen at 0.6 of it.
        chance = 6e-3 if name == "gate" else 4e-3 if name in ("beta", *WEIGHTS) else 2.5e-3
        assert mine <= max(most * other, chance), (split.name, str(call.case), mode, name, mine, other)


def check_bits(ranks: Ranks, split: Split, call: Call) -> None:
    one, other = (in_parts(ranks, split, call) for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in call.alone), split.name


def check_layer(ranks: Ranks, split: Split, seed: int) -> None:
    """Convolutions, gates and norm included, in fp32 against one call."""
    made, lengths = same_layer(seed, (2, 4), 16, 8, device=DEVICE), [170, 130]
    rng = torch.Generator().manual_seed(seed)
    tokens, grad = torch.randn(2, 1, 300, HIDDEN, generator=rng).to(DEVICE)
    leaf = tokens.clone().requires_grad_()
    expected = made(leaf, cu_seqlens=torch.tensor([0, *lengths], device=DEVICE).cumsum(0))
    (wanted,) = torch.autograd.grad(expected, leaf, grad)
    context = split.context(ranks, lengths)
    mine = parallel.shard(tokens, context).requires_grad_()
    y = made(mine, context=context)
    (found,) = torch.autograd.grad(y, mine, parallel.shard(grad, context))
    for part, whole in ((y.detach(), expected.detach()), (found, wanted)):
        assert error(parallel.unshard(part, context), whole.double()) < 2e-4, split.name


def split_channels_of_small_calls(patch: pytest.MonkeyPatch) -> None:
    """Groups of a channel or two, as of long slices."""
    patch.setattr(chained, "LEAST_CHANNELS", 1)
    patch.setattr(chained, "LEAST_ELEMENTS", 0)


def check_module(ranks: Ranks, split: Split, name: str) -> None:
    """One of MODULES in fp32 against one call."""
    make, channels = MODULES[name]
    made, rng = seeded(make).to(DEVICE, torch.float32), torch.Generator().manual_seed(0)
    tokens, grad = (torch.randn(2, 300, channels, generator=rng).to(DEVICE) for _ in range(2))
    leaf = tokens.clone().requires_grad_()
    expected = made(leaf)
    grad = grad[..., : expected.shape[-1]]
    (wanted,) = torch.autograd.grad(expected, leaf, grad)
    context = split.context(ranks, [300])
    mine = parallel.shard(tokens, context).requires_grad_()
    y = made(mine, context=context)
    (found,) = torch.autograd.grad(y, mine, parallel.shard(grad, context))
    for part, whole in ((y.detach(), expected.detach()), (found, wanted)):
        assert error(parallel.unshard(part, context), whole.double()) < 2e-4, (split.name, name)
