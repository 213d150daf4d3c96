"""What ranks that share a sequence tell each other of its parts (gdn_cuda/parallel): the state of hyena_long after a part,
backward the gradient of the state before it. From the tail that matters alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..operators.dtypes import state_dtype
from ..operators.examples import Arguments, call_operator, example
from ..operators.measure import draw, sanitizes
from ..operators.registration import register
from . import reference_hyena as reference
from .hyena_long import _example, _example_backward, _example_continued
from .hyena_operator import channels_adjacent, tokens_adjacent


def _shapes(x: Any) -> Tensor:
    B, D, _ = x.x1.shape
    return x.x1.new_empty((B, D, x.residues.shape[1]), dtype=state_dtype(x.x1))


def _forward(x: Any) -> Tensor:
    state = reference.long(x.x1, x.x2, x.v, x.residues, x.log_poles, x.bias, x.initial_state)[1]
    return state.to(state_dtype(x.x1), memory_format=torch.contiguous_format, copy=True)


def _backward(x: Any) -> Tensor:
    """Backward in time the gradient is a state too, which adds residue e^pole x2 grad."""
    x2, grad = x.x2.flip(-1), x.grad.flip(-1)
    tokens, channels = grad.shape[-1], grad.shape[1]
    added = reference.long(x2, x2, grad, x.residues, x.log_poles, x.bias, None)[1].double()
    residues, poles = (reference.per_channel(y.double(), channels) for y in (x.residues, x.log_poles.reshape(x.residues.shape)))
    last = (poles * tokens).exp() * x.grad_state.double()
    return (residues * poles.exp() * added + last).to(state_dtype(x.x1))


_forward_schema = register("hyena_long_summary", shapes=_shapes, cpu=_forward)
_backward_schema = register("hyena_long_summary_backward", shapes=_shapes, cpu=_backward)


def summary(**given: Any) -> Tensor:
    """The state after the tokens, (B, D, S), of `hyena_long`'s arguments."""
    found: Tensor = _forward_schema.overload(*(given[name] for name in _forward_schema.arguments))
    return found


def summary_backward(**given: Any) -> Tensor:
    """The gradient of the state before the tokens."""
    found: Tensor = _backward_schema.overload(*(given[name] for name in _backward_schema.arguments))
    return found


# ---- Examples


def _without_flags(given: Arguments) -> Arguments:
    return {"initial_state": None} | {name: x for name, x in given.items() if name != "return_state"}


@example(call_operator("hyena_long_summary"))
def _summary_example(B: int, T: int, seed: int) -> Arguments:
    return _without_flags(_example(B, T, seed))


@example(call_operator("hyena_long_summary"), "hyena_long_summary, continued")
def _continued_summary_example(B: int, T: int, seed: int) -> Arguments:
    return _without_flags(_example_continued(B, T, seed))


@example(call_operator("hyena_long_summary_backward"))
def _summary_backward_example(B: int, T: int, seed: int) -> Arguments:
    return _example_backward(B, T, seed)


@sanitizes("hyena_long_summary")
def _sanitized() -> None:
    """Both layouts, one and several groups of states, whole tiles and a rest, segments that are skipped."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for D, L, S in ((3, 4608, 16), (8, 4700, 40), (5, 100, 3)):
            for rows in (tokens_adjacent, channels_adjacent):
                x1, x2, v, grad = (rows(draw(2, D, L, dtype=dtype)) for _ in range(4))
                given = {"x1": x1, "x2": x2, "v": v, "residues": draw(D, S), "log_poles": -draw(D, S).exp(), "bias": draw(D)}
                given["initial_state"] = draw(2, D, S)
                summary(**given)
                summary_backward(**given, grad=grad, grad_state=draw(2, D, S))
