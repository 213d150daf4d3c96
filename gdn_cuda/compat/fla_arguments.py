"""What arguments of FLA's functions, and of engines' functions that derive from them, mean here: layouts of states, betas, and
gates of channels."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor

from ..operators.dtypes import state_dtype
from ..operators.schema import refuse


def states(state: Tensor | None, v_first: bool) -> Tensor | None:
    """Converts between FLA's layout and ours, (N, HV, V, K), in either direction."""
    return state if state is None or v_first else state.mT


def widened(function: str, state: Tensor | None, v: Tensor, name: str = "initial_state") -> Tensor | None:
    """A state in fp32 at least. Codes of int8, whose scales no function of FLA takes, are not values."""
    if state is None:
        return None
    if not state.is_floating_point():
        refuse(function, name, "a state of a floating-point dtype", str(state.dtype).removeprefix("torch."))
    return state.to(state_dtype(v))


def layout(function: str, v_first: bool, others: dict[str, Any]) -> bool:
    """Whether V is first in states, of a call that may have keywords that FLA has removed."""
    if "head_first" in others:
        refuse(function, "head_first", "no value, as tensors are (B, T, H, ...)", others["head_first"])
    if "transpose_state_layout" not in others:
        return v_first
    if v_first:
        refuse(function, "transpose_state_layout", "no value beside state_v_first", others["transpose_state_layout"])
    warnings.warn("transpose_state_layout is deprecated; its name is state_v_first", DeprecationWarning, stacklevel=4)
    return bool(others["transpose_state_layout"])


def betas(function: str, v: Tensor, beta: Tensor | None, is_logit: bool, twice: bool) -> dict[str, Any]:
    if twice and not is_logit:
        refuse(function, "allow_neg_eigval", "False without use_beta_sigmoid_in_kernel", twice)
    if beta is None and is_logit:
        beta = v.new_ones(v.shape[:-1])  # FLA's default, whose sigmoid it takes
    return {"beta": beta, "beta_is_logit": is_logit, "allow_negative_eigenvalues": twice}


def channel_gates(A_log: Tensor | None, dt_bias: Tensor | None, lower_bound: float | None) -> dict[str, Any]:
    """The parameters of raw gates of channels. A_log, HV values, and dt_bias, HV · K values, may have any shape: models keep
    them as (1, 1, HV, 1) or (HV,), and as (HV, K) or flat."""
    flat = {name: None if x is None else x.reshape(-1) for name, x in (("A_log", A_log), ("dt_bias", dt_bias))}
    return flat | {"lower_bound": lower_bound}
