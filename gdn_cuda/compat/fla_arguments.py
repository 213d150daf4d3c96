"""What arguments of FLA's functions mean here: layouts of states, and betas."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor

from ..operators.schema import refuse


def states(state: Tensor | None, v_first: bool) -> Tensor | None:
    """Converts between FLA's layout and ours, (N, HV, V, K), in either direction."""
    return state if state is None or v_first else state.mT


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
