"""hyena_short: the operator, its examples, benchmark and sanitizer calls."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..operators.calls import typical_call
from ..operators.examples import Arguments, call_operator, example, random
from ..operators.measure import Case, Work, bench, draw, normal, sanitizes, size
from . import reference_hyena as reference
from .hyena_operator import channels_adjacent, differentiable_hyena, tokens_adjacent, with_reference


def _computed(x: Any) -> tuple[Tensor, Tensor]:
    return reference.short(x.x1, x.x2, x.v, x.weight, x.bias, x.gated_bias, x.padding_mask, x.initial_state)


_short, _ = differentiable_hyena("hyena_short", _computed, columns=lambda x: x.weight.shape[2] - 1)


@with_reference(_short, _computed)
def hyena_short(
    x1: Tensor,
    x2: Tensor,
    v: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    gated_bias: bool = False,
    padding_mask: Tensor | None = None,
    initial_state: Tensor | None = None,
    return_state: bool = False,
) -> Any:
    """Hyena's short gated convolution (Evo 2's HCS), a correlation of up to 32 taps, in one launch.

    Formula:
        u = x1 ⊙ v,  z_t = Σ_k weight_k u_{t−K+1+k} + bias (times u_t with gated_bias),  y = x2 ⊙ mask ⊙ z

    Shapes:
        x1, x2, v: (B, D, L), all fp32, bf16 or fp16, contiguous or the transposed view of (B, L, D)
        weight: (groups, 1, K), K from 1 to 32, in the same dtype or fp32; each group filters D / groups contiguous channels
        bias: (D,), in the same dtype or fp32
        padding_mask: (B, L), bool, integer, the same dtype or fp32
        initial_state, state: (B, D, K − 1), the last values of u, oldest first; fp32, or for initial_state the same dtype
        y: like x1

    Parameters:
        gated_bias: whether the bias is multiplied by u_t
        return_state: whether to return (y, state) instead of y

    Neither layout is copied; other strides are read in place, more slowly. CPU tensors may also be fp64. All inputs but
    padding_mask have gradients, and so has the state. Backward keeps only the inputs, and allocates K + 1 sums per channel and
    warp; gradients of weight and bias are summed in fp32.

    Edge cases:
        Without an initial_state, u is 0 before the first token; with it, a sequence in parts gives the results of the whole.
        The state after fewer than K − 1 tokens begins with the end of the initial state, or with zeros.
        An output depends only on the tokens its taps multiply: an infinity or NaN has no effect after K − 1 tokens.
        An infinity or NaN in any token makes the gradients of its group's taps and of its bias infinite or NaN.
        Gradients of gradients and forward mode raise RuntimeError; gdn_cuda.reference has them.

    Example:
        >>> ones = torch.ones(1, 1, 4)
        >>> gdn_cuda.hyena_short(ones, ones, ones, torch.tensor([[[1.0, 2.0, 4.0]]]))
        tensor([[[4., 6., 7., 7.]]])
    """
    y, state = _short(x1, x2, v, weight, bias, padding_mask, initial_state, gated_bias)
    return (y, state) if return_state else y


# ---- Examples


def _given(B: int, D: int, L: int, K: int, seed: int, groups: int | None = None) -> Arguments:
    names = ("x1", "x2", "v")
    x = {name: random(B, D, L, seed=seed + i, dtype=torch.bfloat16) for i, name in enumerate(names)}
    return x | {"weight": random(groups or D, 1, K, seed=seed + 3, dtype=torch.bfloat16)}


@example(hyena_short)
def _example(B: int, T: int, seed: int) -> Arguments:
    return _given(B, 6, T, 7, seed, groups=2) | {"bias": random(6, seed=seed + 4), "return_state": True}


@example(hyena_short, "hyena_short, channels contiguous")
def _example_channels(B: int, T: int, seed: int) -> Arguments:
    x = _given(B, 6, T, 3, seed)
    for name in ("x1", "x2", "v"):
        x[name] = channels_adjacent(x[name])
    return x | {"padding_mask": random(B, T, seed=seed + 4) > 0}


@example(hyena_short, "hyena_short, continued")
def _example_continued(B: int, T: int, seed: int) -> Arguments:
    x = _given(B, 4, T, 12, seed) | {"gated_bias": True, "bias": random(4, seed=seed + 4, dtype=torch.bfloat16)}
    return x | {"initial_state": random(B, 4, 11, seed=seed + 5), "return_state": True}


@example(call_operator("hyena_short_backward"))
def _example_backward(B: int, T: int, seed: int) -> Arguments:
    x = _example_continued(B, T, seed)
    del x["return_state"]
    grads = {"grad": random(B, 4, T, seed=seed + 6, dtype=torch.bfloat16), "grad_state": random(B, 4, 11, seed=seed + 7)}
    return x | grads | {"padding_mask": None}


typical_call(
    hyena_short,
    {"B": 1, "D": 4096, "L": 65536, "G": 256, "one": 1, "K": 7},
    "x1, x2, v: B D L; weight: G one K; bias: D",
)


# ---- Measurements

GPU_SHAPES = ((1, 4096, 8192), (1, 4096, 65536), (1, 4096, 131072))
CPU_SHAPES = ((1, 16, 64),)


def _work(device: str, shape: tuple[int, int, int], taps: int, tokens_first: bool, backward: bool) -> Work:
    """As Evo 2 calls it: 256 groups, no bias."""
    rows = tokens_adjacent if tokens_first else channels_adjacent
    given = [rows(normal(*shape, device=device)) for _ in range(3)]
    given.append(normal(min(shape[1], 256), 1, taps, device=device))
    passed, flops = size(given[0]), 2 * taps * given[0].numel()
    if not backward:
        return Work(partial(hyena_short, *given), 4 * passed, flops)
    leaves = [x.requires_grad_() for x in given]
    y, grad = hyena_short(*leaves), rows(normal(*shape, device=device))
    return Work(partial(torch.autograd.grad, y, leaves, grad, retain_graph=True), 7 * passed, 3 * flops)


@bench(operator="hyena_short")
def _measured(device: str) -> Iterator[Case]:
    for shape in GPU_SHAPES if device == "cuda" else CPU_SHAPES:
        for taps in (7, 32):
            for tokens_first in (True, False):
                kind = f"{'tokens' if tokens_first else 'channels'} contiguous"
                name = f"{'×'.join(map(str, shape))} {kind}, {taps} taps"
                for backward in (False, True):
                    work = partial(_work, device, shape, taps, tokens_first, backward)
                    yield Case(name + ", backward" * backward, work, kind=kind)


@sanitizes("hyena_short", "hyena_short_columns", "hyena_short_backward", "hyena_short_columns_backward")
def _sanitized() -> None:
    """Both layouts, rows with and without whole vectors, few and many taps, masks and states."""
    for dtype in (torch.bfloat16, torch.float32):
        for D, L, K in ((3, 1029, 7), (136, 520, 8), (66, 300, 32), (5, 3, 12)):
            for rows in (tokens_adjacent, channels_adjacent):
                x1, x2, v = (rows(draw(2, D, L, dtype=dtype)) for _ in range(3))
                leaves = [x.requires_grad_() for x in (x1, x2, v, draw(D, 1, K), draw(D), draw(2, D, K - 1))]
                given = {"padding_mask": draw(2, L) > 0, "initial_state": leaves[5], "return_state": True}
                y, state = hyena_short(*leaves[:5], gated_bias=K == 7, **given)
                torch.autograd.grad((y, state), leaves, (torch.ones_like(y), torch.ones_like(state)))
