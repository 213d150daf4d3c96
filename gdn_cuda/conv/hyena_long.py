"""hyena_long: the operator, its examples, benchmark and sanitizer calls."""

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
    return reference.long(x.x1, x.x2, x.v, x.residues, x.log_poles, x.bias, x.initial_state)


_NAME = "hyena_long"
_long, long_gradients = differentiable_hyena(_NAME, _computed, columns=lambda x: x.residues.shape[1])


@with_reference(_long, _computed)
def hyena_long(
    x1: Tensor,
    x2: Tensor,
    v: Tensor,
    residues: Tensor,
    log_poles: Tensor,
    bias: Tensor,
    *,
    initial_state: Tensor | None = None,
    return_state: bool = False,
) -> Any:
    """Hyena's long gated convolution (Evo 2's HCL) with an implicit filter as long as the sequence, in one launch or two.

    Formula:
        u = x1 ⊙ v,  h_t = Σ_s residues_s e^{log_poles_s t},  z_t = Σ_j h_j u_{t−j} + bias u_t,  y = x2 ⊙ z
        as a recurrence: state_s ← e^{log_poles_s} state_s + u_t,  z_t = Σ_s residues_s state_s + bias u_t

    Shapes:
        x1, x2, v: (B, D, L), all fp32, bf16 or fp16, contiguous or the transposed view of (B, L, D)
        residues: (groups, S), S from 1 to 64; log_poles: (groups, S) or (groups, S, 1), at most 0; each group
          filters D / groups contiguous channels; bias: (D,); in the same dtype or fp32
        initial_state, state: (B, D, S), fp32, or for initial_state the same dtype
        y: like x1

    Parameters:
        return_state: whether to return (y, state) instead of y

    All inputs have gradients. No input is copied, and no filter is formed: the forward allocates only its outputs, and with few
    channels S values for every 2048 tokens or more. Backward allocates S values for every 512 tokens, and, if channels are
    contiguous and S is above 16, transposed copies of its seven tensors. Whole vectors are read in either layout if rows are
    aligned to 16 bytes, and single elements otherwise. Factors have 24 bits for fp32 tensors, 16 for others: relative errors of
    some 2e-7 in fp32. Only the inputs are saved for backward; gradients of parameters are summed in fp32, always in the same
    order. CPU tensors may also be fp64.

    Edge cases:
        Poles may be at any distance from 1: e^{−1e−6} over a million tokens, or e^{−50}, which decays to nothing in two.
        Without an initial_state, the state begins as zeros; with it, a sequence in parts gives the results of the whole.
        A sequence without tokens returns its initial state, or zeros.
        On a GPU an infinity or NaN in u makes outputs NaN from up to 31 tokens before it on. One in y's gradient or in x2 makes
          gradients NaN up to 31 tokens after it, and those of all parameters of its channel's group.
        Gradients of gradients, forward mode and torch.vmap raise RuntimeError; gdn_cuda.reference has them.

    Example:
        >>> ones, halves = torch.ones(1, 1, 4), torch.tensor([[0.5]]).log()
        >>> gdn_cuda.hyena_long(ones, ones, ones, torch.ones(1, 1), halves, torch.zeros(1))
        tensor([[[1.0000, 1.5000, 1.7500, 1.8750]]])
    """
    y, state = _long(x1, x2, v, residues, log_poles, bias, initial_state)
    return (y, state) if return_state else y


# ---- Examples


def _given(B: int, D: int, L: int, S: int, seed: int, groups: int) -> Arguments:
    names = ("x1", "x2", "v")
    x = {name: random(B, D, L, seed=seed + i, dtype=torch.bfloat16) for i, name in enumerate(names)}
    poles = -(4 * random(groups, S, seed=seed + 3) - 4).exp()
    return x | {"residues": random(groups, S, seed=seed + 4), "log_poles": poles, "bias": random(D, seed=seed + 5)}


@example(hyena_long)
def _example(B: int, T: int, seed: int) -> Arguments:
    return _given(B, 6, T, 16, seed, groups=2) | {"return_state": True}


@example(hyena_long, "hyena_long, continued")
def _example_continued(B: int, T: int, seed: int) -> Arguments:
    x = _given(B, 4, T, 3, seed, groups=4)
    for name in ("x1", "x2", "v"):
        x[name] = channels_adjacent(x[name])
    return x | {"initial_state": random(B, 4, 3, seed=seed + 6), "return_state": True}


@example(call_operator("hyena_long_backward"))
def _example_backward(B: int, T: int, seed: int) -> Arguments:
    x = _given(B, 6, T, 16, seed, groups=2) | {"initial_state": random(B, 6, 16, seed=seed + 6)}
    return x | {"grad": random(B, 6, T, seed=seed + 7, dtype=torch.bfloat16), "grad_state": random(B, 6, 16, seed=seed + 8)}


typical_call(
    hyena_long,
    {"B": 1, "D": 4096, "L": 65536, "S": 16},
    "x1, x2, v: B D L; residues, log_poles: D S f32; bias: D",
)


# ---- Measurements

GPU_SHAPES = ((1, 4096, 8192), (1, 4096, 65536), (1, 4096, 131072), (1, 64, 131072))
CPU_SHAPES = ((1, 16, 64),)


def _work(
    device: str, shape: tuple[int, int, int], states: int, dtype: torch.dtype, tokens_first: bool, backward: bool
) -> Work:
    rows = tokens_adjacent if tokens_first else channels_adjacent
    x1, x2, v = (rows(normal(*shape, device=device, dtype=dtype)) for _ in range(3))
    parameters = partial(normal, shape[1], states, device=device, dtype=torch.float32)
    poles, bias = -(3 * parameters() - 4).exp(), normal(shape[1], device=device, dtype=torch.float32)
    given = (x1, x2, v, parameters(), poles, bias)
    flops = 4 * states * x1.numel()
    if not backward:
        return Work(partial(hyena_long, *given), 4 * size(x1), flops)
    leaves = [x.detach().requires_grad_() for x in given]
    y = hyena_long(*leaves)
    grad = rows(torch.empty_like(y).normal_())
    return Work(partial(torch.autograd.grad, y, leaves, grad, retain_graph=True), 7 * size(x1), 3 * flops)


@bench(operator="hyena_long")
def _measured(device: str) -> Iterator[Case]:
    for shape in GPU_SHAPES if device == "cuda" else CPU_SHAPES:
        for states, dtype, tokens_first in (
            (16, torch.bfloat16, True),
            (16, torch.bfloat16, False),
            (16, torch.float32, True),
            (64, torch.bfloat16, True),
            (64, torch.bfloat16, False),
        ):
            kind = f"{'tokens' if tokens_first else 'channels'} contiguous"
            name = f"{'×'.join(map(str, shape))} {kind}, {states} poles, {str(dtype).removeprefix('torch.')}"
            for backward in (False, True):
                work = partial(_work, device, shape, states, dtype, tokens_first, backward)
                yield Case(name + ", backward" * backward, work, kind=kind)


@sanitizes("hyena_long", "hyena_long_states", "hyena_long_backward")
def _sanitized() -> None:
    """Both layouts, transposed copies, rows with and without whole vectors, one and several groups of states, one and several
    warps per channel."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for D, L, S in ((3, 4608, 16), (5, 1029, 40), (2, 40, 64), (24, 600, 16), (8, 600, 40)):
            for rows in (tokens_adjacent, channels_adjacent):
                given = [*(rows(draw(2, D, L, dtype=dtype)) for _ in range(3)), draw(D, S), -draw(D, S).exp(), draw(D)]
                leaves = [x.detach().requires_grad_() for x in (*given, draw(2, D, S))]
                results = hyena_long(*leaves[:6], initial_state=leaves[6], return_state=True)
                torch.autograd.grad(results, leaves, [torch.ones_like(x) for x in results])
