"""hyena_medium: the operator, its gradients, examples, benchmark and sanitizer calls."""

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
    return reference.medium(x.x1, x.x2, x.v, x.weight, x.bias, x.padding_mask, x.initial_state)


_medium, _ = differentiable_hyena("hyena_medium", _computed, columns=lambda x: x.weight.shape[2] - 1)


@with_reference(_medium, _computed)
def hyena_medium(
    x1: Tensor,
    x2: Tensor,
    v: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    padding_mask: Tensor | None = None,
    initial_state: Tensor | None = None,
    return_state: bool = False,
) -> Any:
    """Hyena's gated convolution of medium length (Evo 2's HCM), up to 1024 taps, in one launch on tensor cores.

    Formula:
        u = x1 ⊙ v,  z_t = Σ_j weight_j u_{t−j} + bias u_t,  y = x2 ⊙ mask ⊙ z

    Shapes:
        x1, x2, v: (B, D, L), all fp32, bf16 or fp16, contiguous or the transposed view of (B, L, D)
        weight: (groups, 1, K), K from 1 to 1024, in the same dtype or fp32; each group filters D / groups contiguous channels
        bias: (D,), in the same dtype or fp32
        padding_mask: (B, L), bool, integer, the same dtype or fp32
        initial_state, state: (B, D, K − 1), the last values of u, oldest first; fp32, or for initial_state the same dtype
        y: like x1

    Parameters:
        return_state: whether to return (y, state) instead of y

    Nothing is copied; whole vectors are read if tokens or channels are contiguous and their rows are aligned to 16 bytes, and
    single elements otherwise. u and taps have 24 bits for fp32 tensors, 16 for others, and taps 8 for bf16 tensors: relative
    errors of some 2e-7 in fp32 and 2.5e-3 in bf16. CPU tensors may also be fp64. All inputs but padding_mask have gradients,
    and so has the state. Backward keeps only the inputs, and allocates K sums per channel and 2048 tokens or more; gradients of
    weight and bias are summed in fp32, over products of as many bits as u has.

    Edge cases:
        The first tap multiplies the current token; in `hyena_short` the last one does.
        Without an initial_state, u is 0 before the first token; with it, a sequence in parts gives the results of the whole.
        The state after fewer than K − 1 tokens begins with the end of the initial state, or with zeros.
        On a GPU an infinity or NaN in u makes outputs NaN from up to 15 tokens before it to up to K + 77 after it. In backward
          it makes the gradients of as many tokens NaN, and those of weight and bias.
        Gradients of gradients and forward mode raise RuntimeError; gdn_cuda.reference has them.

    Example:
        >>> ones, taps = torch.ones(1, 1, 4), torch.tensor([[[1.0, 2.0, 4.0]]])
        >>> gdn_cuda.hyena_medium(ones, ones, ones, taps, torch.zeros(1))
        tensor([[[1., 3., 7., 7.]]])
    """
    y, state = _medium(x1, x2, v, weight, bias, padding_mask, initial_state)
    return (y, state) if return_state else y


# ---- Examples


def _given(B: int, D: int, L: int, K: int, seed: int, groups: int) -> Arguments:
    names = ("x1", "x2", "v")
    x = {name: random(B, D, L, seed=seed + i, dtype=torch.bfloat16) for i, name in enumerate(names)}
    return x | {"weight": random(groups, 1, K, seed=seed + 3) / K**0.5, "bias": random(D, seed=seed + 4)}


@example(hyena_medium)
def _example(B: int, T: int, seed: int) -> Arguments:
    return _given(B, 6, T, 9, seed, groups=2) | {"padding_mask": random(B, T, seed=seed + 5) > 0, "return_state": True}


@example(hyena_medium, "hyena_medium, continued")
def _example_continued(B: int, T: int, seed: int) -> Arguments:
    x = _given(B, 4, T, 40, seed, groups=4)
    for name in ("x1", "x2", "v"):
        x[name] = channels_adjacent(x[name])
    return x | {"initial_state": random(B, 4, 39, seed=seed + 5), "return_state": True}


@example(call_operator("hyena_medium_backward"))
def _example_backward(B: int, T: int, seed: int) -> Arguments:
    x = _example_continued(B, T, seed)
    del x["return_state"]
    grads = {"grad": random(B, 4, T, seed=seed + 6, dtype=torch.bfloat16), "grad_state": random(B, 4, 39, seed=seed + 7)}
    return x | grads | {"padding_mask": None}


typical_call(
    hyena_medium,
    {"B": 1, "D": 4096, "L": 65536, "G": 256, "one": 1, "K": 128},
    "x1, x2, v: B D L; weight: G one K; bias: D",
)


# ---- Measurements

GPU_SHAPES = ((1, 4096, 8192), (1, 4096, 65536), (1, 4096, 131072))
CPU_SHAPES = ((1, 16, 64),)


def _work(device: str, shape: tuple[int, int, int], taps: int, dtype: torch.dtype, tokens_first: bool, backward: bool) -> Work:
    """As Evo 2 calls it: 256 groups."""
    rows = tokens_adjacent if tokens_first else channels_adjacent
    given = [rows(normal(*shape, device=device, dtype=dtype)) for _ in range(3)]
    weight, bias = normal(min(shape[1], 256), 1, taps, device=device), normal(shape[1], device=device)
    given += [weight.to(dtype) / taps**0.5, bias.to(dtype)]
    passed, flops = size(given[0]), 2 * taps * given[0].numel()
    if not backward:
        return Work(partial(hyena_medium, *given), 4 * passed, flops)
    leaves = [x.requires_grad_() for x in given]
    y, grad = hyena_medium(*leaves), rows(normal(*shape, device=device, dtype=dtype))
    return Work(partial(torch.autograd.grad, y, leaves, grad, retain_graph=True), 7 * passed, 3 * flops)


@bench(operator="hyena_medium")
def _measured(device: str) -> Iterator[Case]:
    for shape in GPU_SHAPES if device == "cuda" else CPU_SHAPES:
        for taps, dtype, tokens_first in (
            (128, torch.bfloat16, True),
            (128, torch.bfloat16, False),
            (128, torch.float32, True),
            (128, torch.float32, False),
            (1024, torch.bfloat16, True),
        ):
            kind = f"{'tokens' if tokens_first else 'channels'} contiguous"
            name = f"{'×'.join(map(str, shape))} {kind}, {taps} taps, {str(dtype).removeprefix('torch.')}"
            for backward in (False, True):
                work = partial(_work, device, shape, taps, dtype, tokens_first, backward)
                yield Case(name + ", backward" * backward, work, kind=kind)


@sanitizes("hyena_medium", "hyena_medium_backward")
def _sanitized() -> None:
    """Both layouts, whole tiles and partial ones, vectors of channels, few and many taps, masks and states."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for D, L, K in ((3, 1536, 128), (24, 1029, 128), (8, 600, 300), (2, 40, 1024)):
            for rows in (tokens_adjacent, channels_adjacent):
                leaves = [rows(draw(2, D, L, dtype=dtype)) for _ in range(3)]
                leaves += [draw(D, 1, K), draw(D), draw(2, D, K - 1)]
                leaves = [x.detach().requires_grad_() for x in leaves]
                given = {"padding_mask": draw(2, L) > 0, "initial_state": leaves[5], "return_state": True}
                y, state = hyena_medium(*leaves[:5], **given)
                torch.autograd.grad((y, state), leaves, (torch.ones_like(y), torch.ones_like(state)))
