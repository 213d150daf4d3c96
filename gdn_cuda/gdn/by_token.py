"""A call token by token, in the bits of decode, with and without gradients."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..operators.autograd import needs_gradients
from .operators import chunked_forward, recurrent_forward


def by_token(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    use_qk_l2norm: bool = False,
    output_final_state: bool = False,
    beta: Tensor | None = None,
    gate: Tensor | None = None,
    state: Tensor | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """`recurrent_forward`, and `chunked_forward(forward="recurrent")` where autograd records the call.

    With fp32 states, or none, the results have the same bits. Without gradients `recurrent_forward` is called, since it has
    less to do before the launch.
    """
    given: dict[str, Any] = {"beta": beta, "gate": gate, "state": state, "A_log": A_log, "dt_bias": dt_bias} | options
    if needs_gradients(query, key, value, beta, gate, state, A_log, dt_bias):
        more: dict[str, Any] = {"use_qk_l2norm": use_qk_l2norm, "output_final_state": output_final_state}
        return chunked_forward(query, key, value, **given, **more, forward="recurrent")
    output, after = recurrent_forward(query, key, value, is_qk_norm=use_qk_l2norm, **given)
    return output, after if output_final_state else None
