"""What ranks that share a sequence tell each other of its parts (gdn_cuda/parallel): the state after a part, backward the
gradient of the state before it, and the decay over it. From the tail that matters alone, where decays are exponentials."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ..operators.examples import Arguments, call_operator, draw, example, random
from ..operators.registration import register
from . import reference_selective as reference
from .selective import _complex_example, _mamba_example, _packed


def _shapes(x: Any) -> tuple[Tensor, Tensor]:
    state = x.A.new_empty(reference.sequence_count(x), *x.A.shape)
    return state, torch.empty_like(state)


def _with(x: Any, **other: Any) -> Any:
    return SimpleNamespace(**vars(x) | other)


def _decay(x: Any) -> Tensor:
    ones = x.A.new_ones(reference.sequence_count(x), *x.A.shape)
    return reference.forward(_with(x, u=torch.zeros_like(x.u), initial_state=ones, keep_states=False))[1]


def _forward(x: Any) -> tuple[Tensor, Tensor]:
    return reference.forward(_with(x, keep_states=False))[1], _decay(x)


def _backward(x: Any) -> tuple[Tensor, Tensor]:
    zeros = x.A.new_zeros(reference.sequence_count(x), *x.A.shape)
    states = reference.forward(_with(x, initial_state=zeros, keep_states=True))[2]
    return reference.backward(_with(x, initial_state=zeros, states=states))[-1], torch.conj_physical(_decay(x))


_forward_schema = register("selective_scan_summary", shapes=_shapes, cpu=_forward)
_backward_schema = register("selective_scan_summary_backward", shapes=_shapes, cpu=_backward)


def summary(**given: Any) -> tuple[Tensor, Tensor]:
    """(state after the tokens, decay over them), each (sequences, D, N), of `selective_scan`'s arguments."""
    state, decay = _forward_schema.overload(*(given[name] for name in _forward_schema.arguments))
    return state, decay


def summary_backward(**given: Any) -> tuple[Tensor, Tensor]:
    """(gradient of the state before the tokens, conjugate of the decay over them)."""
    state, decay = _backward_schema.overload(*(given[name] for name in _backward_schema.arguments))
    return state, decay


# ---- Examples

_ABSENT: Arguments = dict.fromkeys(("D", "z", "delta_bias", "delta_a", "initial_state", "cu_seqlens"))
_FLAGS: Arguments = {"delta_softplus": False, "discretization": "mamba"}


def _with_cotangents(given: Arguments, sequences: int, seed: int) -> Arguments:
    x = _ABSENT | _FLAGS | given
    grad_out = random(*x["u"].shape, seed=seed + 6, dtype=x["u"].dtype)
    return {"grad_out": grad_out, "grad_last_state": draw(sequences, 4, 3, seed=seed + 7, dtype=x["A"].dtype)} | x


@example(call_operator("selective_scan_summary"))
def _of_mamba(B: int, T: int, seed: int) -> Arguments:
    return _ABSENT | _FLAGS | _mamba_example(B, T, seed)


@example(call_operator("selective_scan_summary"), "selective_scan_summary_complex")
def _of_complex_numbers(B: int, T: int, seed: int) -> Arguments:
    return _ABSENT | _FLAGS | _complex_example(B, T, seed)


@example(call_operator("selective_scan_summary"), "selective_scan_summary_packed", packed=True)
def _of_packed_sequences(B: int, T: int, seed: int) -> Arguments:
    return _ABSENT | _FLAGS | _packed(seed)


@example(call_operator("selective_scan_summary_backward"))
def _backward_of_mamba(B: int, T: int, seed: int) -> Arguments:
    return _with_cotangents(_mamba_example(B, T, seed), B, seed)


@example(call_operator("selective_scan_summary_backward"), "selective_scan_summary_backward_packed", packed=True)
def _backward_of_packed_sequences(B: int, T: int, seed: int) -> Arguments:
    return _with_cotangents(_packed(seed), 3, seed)
