"""Modules of `gdn_cuda.nn` with a context beside one process, in fp64. Every rank checks what it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from layer_cases_on_ranks import drawn, gradients, seeded
from oracles import once
from parallel_cases import SPLITS, Split, compare
from torch import Tensor, nn

from gdn_cuda import parallel
from gdn_cuda.nn import LRU, RGLRU, S5, S6, HyenaCascade, KimiDeltaAttention, Mamba, Mamba2, ShortConv
from gdn_cuda.parallel.ranks import Ranks

WIDE = torch.float64
# By name, with the number of channels of an input. Taps up to 150 reach over several ranks.
MODULES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "S6": (lambda: S6(4, 3, discretization="zoh", dtype=WIDE), 4),
    "Mamba": (lambda: Mamba(4, 3, dtype=WIDE), 4),
    "Mamba2": (lambda: Mamba2(8, 3, headdim=4, ngroups=2, dtype=WIDE), 8),
    "Mamba2, gated scan": (
        lambda: Mamba2(8, 5, d_ssm=8, headdim=2, rmsnorm=False, D_has_hdim=True, dt_limit=(0.002, 0.05), dtype=WIDE),
        8,
    ),
    "Kimi Delta Attention": (lambda: KimiDeltaAttention(6, (1, 2), 8, 4, dtype=WIDE), 6),
    "Kimi Delta Attention, bounded": (
        lambda: KimiDeltaAttention(6, (2, 2), 8, 4, lower_bound=-5.0, conv_size=7, conv_bias=True, gate_bias=True, dtype=WIDE),
        6,
    ),
    "S5": (lambda: S5(4, 6, dtype=WIDE), 4),
    "S5, bilinear": (lambda: S5(4, 6, discretization="bilinear", conj_sym=False, dtype=WIDE), 4),
    "LRU": (lambda: LRU(4, 3, dtype=WIDE), 4),
    "RG-LRU": (lambda: RGLRU(4, 2, dtype=WIDE), 4),
    "RG-LRU, resets": (lambda: RGLRU(4, 2, max_sqrt_gradient=None, dtype=WIDE), 4),
    "Hyena, short": (lambda: HyenaCascade(4, 32, hyena_filter_groups=2, dtype=WIDE), 12),
    "Hyena, medium": (lambda: HyenaCascade(4, 150, short_filter_bias=True, dtype=WIDE), 12),
    "Hyena, medium, correlation": (lambda: HyenaCascade(4, 40, hyena_filter_groups=1, dtype=WIDE), 12),
    "Hyena, long": (lambda: HyenaCascade(4, hyena_filter_groups=2, state_size=3, dtype=WIDE), 12),
    "ShortConv": (lambda: ShortConv(4, 7, bias=True, dtype=WIDE), 4),
}
BY_SCANS = ("S5", "LRU", "RG-LRU", "Hyena, long")  # by chained.ChainedScan


def modules() -> Iterator[tuple[Split, str, tuple[int, ...], int]]:
    """Splits, names, lengths and batches."""
    for i, name in enumerate(MODULES):
        yield SPLITS[i % 3], name, (70, 0, 2, 130, 1), 1
        yield SPLITS[(i + 1) % 3], name, (90,), 2
    for split in SPLITS[3:]:
        for name in ("S5", "RG-LRU", "Hyena, long"):
            yield split, name, (5, 60), 1


def _made(name: str) -> nn.Module:
    made = seeded(MODULES[name][0])
    with torch.no_grad():
        for i, parameter in enumerate(made.parameters()):
            parameter.add_(0.1 * drawn(*parameter.shape, seed=50 + i).abs() * parameter.sign())
    return made


def _options(name: str, x: Tensor) -> dict[str, Tensor]:
    """Tensors with all tokens, beside the input."""
    mask = drawn(*x.shape[:2], seed=3) > 1
    return {"reset": mask} if "resets" in name else {"padding_mask": ~mask} if "Hyena, medium" in name else {}


def _leaves(made: nn.Module, x: Tensor) -> dict[str, Tensor]:
    return {"x": x.clone().requires_grad_(), **dict(made.named_parameters())}


@once
def module_in_one_process(name: str, lengths: tuple[int, ...], batch: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Sequence by sequence."""
    made, channels = _made(name), MODULES[name][1]
    x = drawn(batch, sum(lengths), channels, seed=1)
    leaves, options = _leaves(made, x), _options(name, x)
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    spans = [slice(start, start + n) for start, n in zip(starts, lengths, strict=True) if n]
    out = torch.cat([made(leaves["x"][:, at], **{key: y[:, at] for key, y in options.items()}) for at in spans], 1)
    grad = drawn(*out.shape, seed=2)
    return x, grad, gradients(out, grad, leaves)


def check_module(ranks: Ranks, split: Split, name: str, lengths: tuple[int, ...], batch: int) -> None:
    context, (x, grad, wanted) = split.context(ranks, lengths), module_in_one_process(name, lengths, batch)
    made = _made(name)
    leaves: dict[str, Any] = _leaves(made, parallel.shard(x, context))
    options = {key: parallel.shard(y, context) for key, y in _options(name, x).items()}
    found = gradients(made(leaves["x"], context=context, **options), parallel.shard(grad, context), leaves)
    for parameter in leaves.keys() - {"x"}:
        found[parameter] = ranks.start_all_gather(found[parameter])().sum(0)
    pairs = {key: (parallel.shard(y, context) if key in ("out", "x") else y, y) for key, y in wanted.items()}
    compare(found, pairs, f"rank {ranks.rank} of {ranks.size}, {split.name}, {name}, {lengths}, batch {batch}")
