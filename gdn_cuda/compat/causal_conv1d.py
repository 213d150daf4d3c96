"""Replaces the package causal_conv1d, 1.7: its functions, and those of `causal_conv1d_varlen`. `install` puts them where
transformers looks for causal_conv1d's, so that its Mamba, Qwen3-Next, LFM2 and other models with a short convolution use them.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from ..conv.causal_conv1d import causal_conv1d
from ..conv.causal_conv1d_update import causal_conv1d_update as _update
from ..hosts import verified
from ..operators.caller import in_words_of_caller
from ..operators.result_size import check_result_size
from ..operators.schema import refuse
from .stand_in import StandIn

__all__ = [
    "causal_conv1d_fn",
    "causal_conv1d_ref",
    "causal_conv1d_update",
    "causal_conv1d_update_ref",
    "causal_conv1d_varlen_states",
    "causal_conv1d_varlen_states_ref",
    "install",
    "uninstall",
]


@in_words_of_caller()
def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """`gdn_cuda.causal_conv1d`: W up to 32, any dtypes of x and weights, CPU tensors too.

    Final states are in x's dtype, or written to `final_states_out`, which is then returned. They are available for every
    layout of x, also with seq_idx.
    """
    if not return_final_states:
        return causal_conv1d(x, weight, bias, seq_idx, initial_states, False, activation)
    out, states = causal_conv1d(x, weight, bias, seq_idx, initial_states, True, activation)
    return out, states.to(x.dtype) if final_states_out is None else final_states_out.copy_(states)


@in_words_of_caller()
def causal_conv1d_ref(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
    seq_idx: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """`causal_conv1d_fn` with its arguments in another order, as in the package."""
    return causal_conv1d_fn(x, weight, bias, seq_idx, initial_states, return_final_states, final_states_out, activation)


@in_words_of_caller()
def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
) -> Tensor:
    """`gdn_cuda.causal_conv1d_update`: W up to 32, any dtypes of x, state and weights, CPU tensors too."""
    return _update(x, conv_state, weight, bias, activation, cache_seqlens, conv_state_indices)


@in_words_of_caller()
def causal_conv1d_update_ref(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
) -> Tensor:
    """`causal_conv1d_update` without slots."""
    return _update(x, conv_state, weight, bias, activation, cache_seqlens)


@in_words_of_caller()
def causal_conv1d_varlen_states(x: Tensor, cu_seqlens: Tensor, state_len: int) -> Tensor:
    """The last `state_len` tokens of each sequence of x (tokens, dim) as (sequences, dim, state_len), zeros in front where
    there are fewer. In torch, without a synchronization; it is differentiable."""
    if not isinstance(state_len, int) or state_len < 0:
        refuse("causal_conv1d_varlen_states", "state_len", "a number of tokens", repr(state_len))
    shape = (cu_seqlens.shape[0] - 1, *x.shape[1:], state_len)
    check_result_size("causal_conv1d_varlen_states", "state_len", shape, x.dtype, x.device)
    ends, starts = cu_seqlens[1:, None].long(), cu_seqlens[:-1, None].long()
    tokens = ends + torch.arange(-state_len, 0, device=x.device)
    if x.shape[0] == 0:
        return x.new_zeros(*tokens.shape, x.shape[1]).mT
    states = x[tokens.clamp(0, x.shape[0] - 1)]
    return states.masked_fill((tokens < starts)[..., None], 0).mT


# The package has this name for functions that run without CUDA.
causal_conv1d_varlen_states_ref = causal_conv1d_varlen_states

VERSIONS: verified.Versions = {"1.7.0": "run"}
_TARGETS = {
    "causal_conv1d:causal_conv1d_fn": "x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False, "
    "final_states_out=None, activation=None",
    "causal_conv1d:causal_conv1d_update": "x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, "
    "conv_state_indices=None",
}
HOST = verified.Host("causal-conv1d", "causal_conv1d", VERSIONS, {"": _TARGETS}, optional=frozenset(_TARGETS))
_stand_in = StandIn(
    HOST, {name: name for name in ("causal_conv1d_fn", "causal_conv1d_update")}, globals()
)  # transformers' own functions have the same names


@_stand_in.replaced.whole()
def install() -> contextlib.AbstractContextManager[Any]:
    """Makes transformers 5 use our `causal_conv1d_fn` and `causal_conv1d_update` until `uninstall`, or to the end of a `with`.

    transformers imports causal_conv1d and looks each function up by name. If causal_conv1d is installed, these two functions
    are replaced in it; otherwise a module of that name with only these two is put in its place. Models that are already
    imported look them up again. Raises `gdn_cuda.integrations.Refused`, with nothing replaced, if the functions of the
    installed package have other parameters than those that were verified.
    """
    return _stand_in.install()


def uninstall() -> None:
    """Undoes `install`; models that transformers has imported look up causal_conv1d's functions again."""
    _stand_in.uninstall()
