"""One or several tokens of a causal FIR filter: the operator, its reference, examples, benchmark and sanitizer call."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ..operators import operator
from ..operators.calls import typical_call
from ..operators.examples import Arguments, example
from ..operators.examples import draw as drawn
from ..operators.hostile import hostile_indices
from ..operators.measure import Case, Work, bench, draw, normal, sanitizes, size
from .reference_hyena import per_channel
from .step_slots import Slots, with_tokens

_NAME = "hyena_fir_step"


def _reference(x: Any) -> tuple[Tensor, Tensor]:
    """(y, final states) in fp64. States are rounded when they are stored, not between the tokens of a call."""
    u = with_tokens(x.u)
    slots = Slots(_NAME, x, x.fir_state, u.shape[0])
    taps = per_channel(x.weight, u.shape[1])[:, 0].double()
    taps = taps.flip(-1) if x.flip_filter else taps
    whole = torch.cat([slots.states, u], -1)
    y = (whole.unfold(-1, taps.shape[-1], 1) * taps[:, None]).sum(-1) if u.numel() else u
    if x.bias is not None:
        y = y + x.bias.double()[:, None] * (u if x.gated_bias else 1)
    return slots.outputs(y, x.u), slots.after(x.fir_state, whole[..., u.shape[-1] :])


def _cpu(x: Any) -> None:
    with torch.no_grad():
        y, states = _reference(x)
        x.out.copy_(y)
        x.fir_state.copy_(states)


def _results(_: None, out: Tensor, fir_state: Tensor) -> tuple[Tensor, Tensor]:
    return out, fir_state


@operator(reference=_reference, cpu=_cpu, out="u", results=_results)
def hyena_fir_step(
    u: Tensor,
    fir_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    gated_bias: bool = False,
    flip_filter: bool = False,
    *,
    state_indices: Tensor | None = None,
    null_slot: int | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One or several tokens of a causal FIR filter, with the state updated in place: the serving step of hyena_short and
    hyena_medium, and of the filter before them. Returns (y, fir_state).

    Formula:
        window = (fir_state, u)         y_t = Σ_k w_k window_{t+k} + bias, or bias u_t with gated_bias
        w is weight, or weight from its end with flip_filter; fir_state ← the last K − 1 of window

    Shapes:
        u, out: (B, D), or (B, D, T) for several tokens; fp32, bf16 or fp16, any strides; out as u
        fir_state: (B, D, K−1), with state_indices (slots, D, K−1); fp32, bf16 or fp16, any strides; oldest first
        weight: (groups, 1, K), K from 1 to 1024; each group filters D / groups contiguous channels; fp32, bf16 or fp16
        bias: (D,); fp32, bf16 or fp16
        state_indices: (B,), int32 or int64; None: sequence n has state n

    Parameters:
        gated_bias: whether the bias is multiplied by u_t
        flip_filter: whether the first tap multiplies the current token, as in a convolution, instead of the last one
        null_slot: a slot that marks padding, as negative slots do; None: only negative slots do

    hyena_short is a correlation: flip_filter=False. hyena_medium is a convolution: flip_filter=True and gated_bias=True. Both
    have u = x1 v and multiply y by x2. With an fp32 state, several tokens give the bits of single ones.

    Edge cases:
        A negative slot, or null_slot, skips its sequence: output 0, no slot touched.
        A slot past the pool touches nothing: CPU tensors raise IndexError; on a GPU the sequence's output is NaN.
        Two sequences with the same slot race.
        The state before the first token is zeros.

    Example:
        >>> state, weight = torch.zeros(1, 1, 2), torch.tensor([[[100.0, 10.0, 1.0]]])
        >>> [gdn_cuda.hyena_fir_step(torch.tensor([[x]]), state, weight)[0].item() for x in (1.0, 2.0, 3.0)]
        [1.0, 12.0, 123.0]
        >>> state
        tensor([[[2., 3.]]])
    """


# ---- Examples


def _given(B: int, T: int | None, D: int, K: int, groups: int, seed: int, slots: int = 0) -> Arguments:
    fp32 = torch.float32
    return {
        "u": drawn(*((B, D) if T is None else (B, D, T)), seed=seed, dtype=fp32),
        "fir_state": drawn(max(B, slots), D, K - 1, seed=seed + 1, dtype=fp32),
        "weight": drawn(groups, 1, K, seed=seed + 2, dtype=fp32),
        "bias": drawn(D, seed=seed + 3, dtype=fp32),
    }


@example(hyena_fir_step)
def _example(B: int, T: int, seed: int) -> Arguments:
    return _given(B, None, 6, 7, 6, seed)


@example(hyena_fir_step, "hyena_fir_step, several tokens")
def _example_tokens(B: int, T: int, seed: int) -> Arguments:
    """The step of hyena_medium: groups, a flipped filter and a gated bias; the first sequence is padding."""
    given = _given(B, T, 6, 40, 3, seed, slots=B + 2) | {"flip_filter": True, "gated_bias": True}
    indices = torch.arange(B, dtype=torch.int32).flip(0) + 1
    return given | {"state_indices": indices, "null_slot": B}


typical_call(
    hyena_fir_step,
    {"B": 64, "D": 4096, "K": 127, "one": 1},
    "u: B D; fir_state: B D K f32; weight: D one K+1 f32; bias: D f32; flip_filter = true; gated_bias = true",
)


# ---- Benchmark, compute-sanitizer


def _work(device: str, batch: int, channels: int, taps: int) -> Work:
    u = normal(batch, channels, device=device)
    state = normal(batch, channels, taps - 1, device=device, dtype=torch.float32)
    weight = normal(channels if taps < 7 else channels // 16, 1, taps, device=device, dtype=torch.float32)
    out = torch.empty_like(u)
    call = partial(hyena_fir_step, u, state, weight, flip_filter=taps >= 128, out=out)
    return Work(call, 2 * size(state, u) + size(weight), 2 * batch * channels * taps)


@bench(operator=_NAME)
def _measured(device: str) -> Iterator[Case]:
    """The three filters of Evo 2 7B: that of the projections, HCS and HCM."""
    on_gpu = device == "cuda"
    for (channels, taps), batch in product(((12288, 3), (4096, 7), (4096, 128)), (1, 16, 256) if on_gpu else (1,)):
        yield Case(f"B={batch} D={channels} K={taps}", partial(_work, device, batch, channels, taps))


@sanitizes("hyena_fir_step", "hyena_fir_step_staged")
def _sanitized() -> None:
    """Every configuration; invalid slots, groups, channels-last states."""
    slots = hostile_indices()
    for taps, io in product((4, 7, 30, 60, 90, 128), (torch.bfloat16, torch.float16, torch.float32)):
        weight, state = draw(3, 1, taps), draw(6, 300, taps - 1)
        hyena_fir_step(draw(5, 300, dtype=io), state, weight, draw(300), state_indices=slots)
        hyena_fir_step(draw(5, 300, 6, dtype=io), state, weight, draw(300), True, True)
    for taps in (1, 4, 7, 30, 128, 200, 1000):
        weight = draw(3, 1, taps)
        hyena_fir_step(draw(5, 21), draw(5, 21, taps - 1), weight, draw(21))
        state = draw(6, taps - 1, 21, dtype=torch.bfloat16).mT
        hyena_fir_step(draw(5, 21, 3, dtype=torch.bfloat16), state, weight, None, False, True, state_indices=slots)
