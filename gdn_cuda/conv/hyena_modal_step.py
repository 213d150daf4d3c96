"""One or several tokens of a filter in modal form: the operator, its reference, examples, benchmark and sanitizer call."""

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

_NAME = "hyena_modal_step"


def _reference(x: Any) -> tuple[Tensor, Tensor]:
    """(y, final states) in fp64. States are rounded when they are stored, not between the tokens of a call."""
    x2, u = with_tokens(x.x2), with_tokens(x.x1) * with_tokens(x.v)
    slots = Slots(_NAME, x, x.state, u.shape[0])
    residues = per_channel(x.residues, u.shape[1]).double()
    poles = per_channel(x.log_poles.reshape(x.residues.shape), u.shape[1]).double().exp()
    state, sums = slots.states, []
    for t in range(u.shape[-1]):
        state = poles * state + u[..., t, None]
        sums.append((residues * state).sum(-1))
    z = torch.stack(sums, -1) if sums else u
    return slots.outputs(x2 * (z + x.D.double()[:, None] * u), x.x2), slots.after(x.state, state)


def _cpu(x: Any) -> None:
    with torch.no_grad():
        y, states = _reference(x)
        x.out.copy_(y)
        x.state.copy_(states)


def _results(_: None, out: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    return out, state


@operator(reference=_reference, cpu=_cpu, out="x2", results=_results)
def hyena_modal_step(
    x2: Tensor,
    x1: Tensor,
    v: Tensor,
    D: Tensor,
    residues: Tensor,
    log_poles: Tensor,
    state: Tensor,
    *,
    state_indices: Tensor | None = None,
    null_slot: int | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One or several tokens of a filter in modal form, with the state updated in place: the serving step of hyena_long.
    Returns (y, state).

    Formula:
        s ← e^{log_poles} s + x1 v        y = x2 (Σ_s residues s + D x1 v)

    Shapes:
        x2, x1, v, out: (B, D), or (B, D, T) for several tokens; fp32, bf16 or fp16, any strides; out as x2
        D: (D,); fp32, bf16 or fp16
        residues: (groups, S), S from 1 to 64; each group is shared by D / groups contiguous channels; fp32, bf16 or fp16
        log_poles: as residues, or (groups, S, 1); at most 0
        state: (B, D, S), with state_indices (slots, D, S); fp32, bf16 or fp16, any strides
        state_indices: (B,), int32 or int64; None: sequence n has state n

    Parameters:
        null_slot: a slot that marks padding, as negative slots do; None: only negative slots do

    With an fp32 state, several tokens give the bits of single ones. A log pole of −1e−6 keeps its rate: the state decays by
    1e−6 per token.

    Edge cases:
        A negative slot, or null_slot, skips its sequence: output 0, no slot touched.
        A slot past the pool touches nothing: CPU tensors raise IndexError; on a GPU the sequence's output is NaN.
        Two sequences with the same slot race.
        A log pole of −∞ forgets all previous tokens.

    Example:
        >>> one, half, state = torch.ones(1, 1), torch.full((1, 1), 0.5), torch.zeros(1, 1, 1)
        >>> step = lambda: gdn_cuda.hyena_modal_step(one, one, one, torch.zeros(1), one, half.log(), state)[0].item()
        >>> print([step() for _ in range(3)])
        [1.0, 1.5, 1.75]
    """


# ---- Examples


def _given(B: int, T: int | None, D: int, S: int, groups: int, seed: int, slots: int = 0) -> Arguments:
    shape, fp32 = (B, D) if T is None else (B, D, T), torch.float32
    return {name: drawn(*shape, seed=seed + i, dtype=fp32) for i, name in enumerate(("x2", "x1", "v"))} | {
        "D": drawn(D, seed=seed + 3, dtype=fp32),
        "residues": drawn(groups, S, seed=seed + 4, dtype=fp32),
        "log_poles": -drawn(groups, S, seed=seed + 5, dtype=fp32).exp(),
        "state": drawn(max(B, slots), D, S, seed=seed + 6, dtype=fp32),
    }


@example(hyena_modal_step)
def _example(B: int, T: int, seed: int) -> Arguments:
    return _given(B, None, 6, 16, 6, seed)


@example(hyena_modal_step, "hyena_modal_step, several tokens")
def _example_tokens(B: int, T: int, seed: int) -> Arguments:
    given = _given(B, T, 6, 5, 3, seed, slots=B + 2)
    given["log_poles"] = given["log_poles"][..., None]
    indices = torch.arange(B, dtype=torch.int32).flip(0) + 1
    return given | {"state_indices": indices, "null_slot": B}


typical_call(
    hyena_modal_step,
    {"B": 64, "D": 4096, "S": 16},
    "x2, x1, v: B D; D: D f32; residues, log_poles: D S f32; state: B D S f32",
)


# ---- Benchmark, compute-sanitizer


def _work(device: str, batch: int, channels: int, states: int) -> Work:
    x2, x1, v = (normal(batch, channels, device=device) for _ in range(3))
    fp32 = partial(normal, device=device, dtype=torch.float32)
    residues, log_poles, D, state = (
        fp32(channels, states),
        -fp32(channels, states).abs(),
        fp32(channels),
        fp32(batch, channels, states),
    )
    call = partial(hyena_modal_step, x2, x1, v, D, residues, log_poles, state, out=torch.empty_like(x2))
    return Work(call, 2 * size(state) + 4 * size(x2) + size(residues, log_poles, D), 5 * batch * channels * states)


@bench(operator=_NAME)
def _measured(device: str) -> Iterator[Case]:
    on_gpu = device == "cuda"
    for channels, batch in product((4096, 8192) if on_gpu else (256,), (1, 16, 64, 256) if on_gpu else (1,)):
        yield Case(f"B={batch} D={channels} S=16", partial(_work, device, batch, channels, 16))


@sanitizes("hyena_modal_step")
def _sanitized() -> None:
    """Every configuration; invalid slots, groups, channels-last states."""
    slots = hostile_indices()
    for states, io in product((16, 40), (torch.bfloat16, torch.float16, torch.float32)):
        x2, x1, v = (draw(5, 21, 3, dtype=io) for _ in range(3))
        poles = -draw(3, states).abs()
        hyena_modal_step(x2, x1, v, draw(21), draw(3, states), poles, draw(6, 21, states), state_indices=slots)
    for states in (1, 7, 16, 40, 64):
        poles, D = -draw(3, states).abs(), draw(21)
        hyena_modal_step(draw(5, 21), draw(5, 21), draw(5, 21), D, draw(3, states), poles, draw(5, 21, states))
        x2, x1, v = (draw(5, 21, 3, dtype=torch.bfloat16) for _ in range(3))
        state = draw(6, states, 21, dtype=torch.bfloat16).mT
        hyena_modal_step(x2, x1, v, D, draw(3, states), poles[..., None], state, state_indices=slots)
