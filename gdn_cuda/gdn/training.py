"""`chunked_forward` where an input requires a gradient."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ..operators import Differentiable
from ..operators.dtypes import state_dtype as wide_enough
from ..operators.first_order import first_order
from ..operators.registration import library
from ..operators.schema import refuse
from . import reference as gdn
from . import reference_operators as reference
from .reference_gradients import gradients

_NAME = "chunked_forward"
WORKSPACE = 1 << 30  # bytes
_ARGUMENTS = ("query", "key", "value", "beta", "gate", "state", "A_log", "dt_bias")
_ROWS = ("query", "key", "value", "beta", "gate", "grad_out")


def _shapes(x: Any) -> tuple[Tensor, Tensor]:
    return x.value.new_empty(x.value.shape), x.value.new_empty(_state_shape(x), dtype=wide_enough(x.value))


def _state_shape(x: Any) -> tuple[Any, ...]:
    sequences = x.query.shape[0] if x.cu_seqlens is None else x.cu_seqlens.shape[0] - 1
    return sequences, *x.value.shape[-2:], x.query.shape[-1]


def _gradient_shapes(x: Any) -> tuple[Tensor, ...]:
    wide = wide_enough(x.value)

    def like(y: Tensor | None, dtype: torch.dtype | None = None) -> Tensor:
        return x.value.new_empty(0, dtype=wide) if y is None else y.new_empty(y.shape, dtype=dtype)

    of_tokens = [like(y) for y in (x.query, x.key, x.value, x.beta, x.gate)]
    return (*of_tokens, like(x.state, wide), like(x.A_log, wide), like(x.dt_bias, wide))


def _forward_on_cpu(x: Any) -> tuple[Tensor, Tensor]:
    absent = dict.fromkeys(("has_initial_state", "state_indices", "final_state", "checkpoints", "states_before"))
    call = SimpleNamespace(**vars(x), **absent, output_final_state=True, state_dtype=None, checkpoint_every=0)
    out, final_state, _ = reference.chunked_forward(call)
    return out.contiguous(), final_state.to(wide_enough(x.value)).clone()


# ---- The backward by `gdn_cuda.gdn.reference_gradients`: on CPUs, and for tensors that no kernel takes


def _backward_by_reference(x: Any) -> tuple[Tensor, ...]:
    shapes = [x.query.shape, x.key.shape, x.value.shape]
    wide = wide_enough(x.value)
    y = SimpleNamespace(**vars(x))
    if y.grad_out is None:
        y.grad_out = torch.zeros_like(y.value)
    if y.cu_seqlens is not None and y.value.dim() == 4:
        for name in _ROWS:
            given = getattr(y, name)
            setattr(y, name, None if given is None else given[0])
    beta, gate = reference.gates_of_call(y)
    found = [_of_heads(y, beta, gate, *heads) for heads in _groups(y)]
    dq, dk, dv, d_beta, d_gate = (
        torch.cat(parts, dim=-1 if i > 2 else -2) for i, parts in enumerate(zip(*found, strict=True)) if i < 5
    )
    d_state = torch.cat([each.state for each in found], dim=1)
    d_beta, d_gate, d_A_log, d_dt_bias = reference.gradients_of_gates(y, gate, d_beta, d_gate)
    none = x.value.new_empty(0, dtype=wide)

    def of(given: Tensor | None, gradient: Tensor | None, dtype: torch.dtype | None = None) -> Tensor:
        if given is None or gradient is None:
            return none
        return gradient.reshape(given.shape).to(dtype or given.dtype).contiguous()

    rows = [of(given, each) for given, each in zip((x.query, x.key, x.value), (dq, dk, dv), strict=True)]
    assert [each.shape for each in rows] == shapes
    per_head = (of(x.A_log, d_A_log, wide), of(x.dt_bias, d_dt_bias, wide))
    return (*rows, of(x.beta, d_beta), of(x.gate, d_gate), of(x.state, d_state, wide), *per_head)


def _groups(y: Any) -> list[tuple[int, int]]:
    """Key heads, first and past the last, whose states of every chunk and their gradients fit into the workspace."""
    key_heads, heads, dv, dk = y.key.shape[-2], y.value.shape[-2], y.value.shape[-1], y.key.shape[-1]
    chunks = sum(-(-length // gdn.CHUNK) for length in reference.lengths_of(y.value, y.cu_seqlens).tolist())
    of_key_head = (
        heads
        // max(key_heads, 1)
        * chunks
        * (4 * dv * dk + 8 * gdn.CHUNK * (gdn.CHUNK + dv + dk))
        * wide_enough(y.value).itemsize
    )
    if of_key_head > y.workspace:
        refuse(_NAME, "workspace", f"at least {of_key_head} bytes, what the backward of one key head needs", y.workspace)
    step = min(max(y.workspace // max(of_key_head, 1), 1), max(key_heads, 1))
    return [(first, min(first + step, key_heads)) for first in range(0, key_heads, step)]


def _of_heads(y: Any, beta: Tensor, gate: Tensor, first: int, end: int) -> Any:
    of_key = slice(first, end)
    r = y.value.shape[-2] // y.key.shape[-2]
    of_value = slice(first * r, end * r)
    last = y.grad_final_state
    return gradients(
        y.query[..., of_key, :],
        y.key[..., of_key, :],
        y.value[..., of_value, :],
        beta[..., of_value],
        gate[..., of_value],
        None if y.state is None else y.state[:, of_value],
        y.cu_seqlens,
        y.grad_out[..., of_value, :],
        None if last is None else last[:, of_value],
        scale=y.key.shape[-1] ** -0.5 if y.scale is None else y.scale,
        use_qk_l2norm=y.use_qk_l2norm,
    )


# ---- The operators


def _gradients(x: Any, needs: Any, grad_out: Tensor | None, grad_final_state: Tensor | None) -> dict[str, Any]:
    found = _backward(grad_out, grad_final_state, *(getattr(x, argument) for argument in _rule.schema.arguments))
    return {
        name: gradient.to(getattr(x, name).dtype)
        for name, gradient in zip(_ARGUMENTS, found, strict=True)
        if getattr(needs, name)
    }


def _refuse_vmap(x: Any, dims: Any) -> Any:
    raise RuntimeError(f"{_NAME}: torch.vmap is not supported; query has a batch dimension")


_backward: Differentiable = first_order(
    _NAME, "gated_delta_rule_backward", shapes=_gradient_shapes, cpu=_backward_by_reference, batched=_refuse_vmap
)
_rule: Differentiable = first_order(
    _NAME,
    "gated_delta_rule",
    shapes=_shapes,
    cpu=_forward_on_cpu,
    backward=_gradients,
    batched=_refuse_vmap,
    takes_none=True,
)


def _on_gpu(*args: Any) -> tuple[Tensor, ...]:
    return _backward_by_reference(_backward.schema.named(args))


library.impl("gated_delta_rule_backward_reference", _on_gpu, "CUDA")


def with_gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor | None,
    gate: Tensor | None,
    state: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float | None,
    use_qk_l2norm: bool,
    output_final_state: bool,
    state_dtype: torch.dtype | None,
    state_indices: Tensor | None,
    checkpoint_every: int,
    deterministic: bool,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    beta_is_logit: bool,
    allow_negative_eigenvalues: bool,
    gate_is_linear: bool,
    has_initial_state: Tensor | None,
    write_indices: Tensor | None,
    update_state: bool,
    final_state: Tensor | None,
    checkpoints: Tensor | None,
    states_before: Tensor | None,
    out: Tensor | None,
    workspace: int | None,
) -> tuple[Tensor, Tensor | None]:
    """chunked_forward, all results of which are new and have gradients."""
    written = {"state_indices": state_indices, "write_indices": write_indices, "final_state": final_state}
    written |= {"checkpoints": checkpoints, "states_before": states_before, "out": out}
    for argument, given in written.items():
        if given is not None:
            refuse(_NAME, argument, "None where an input requires a gradient (torch.no_grad() computes none)", "a tensor")
    if checkpoint_every:
        refuse(_NAME, "checkpoint_every", "0 where an input requires a gradient", checkpoint_every)
    if not update_state:
        refuse(_NAME, "update_state", "True without state_indices", update_state)
    heads = gdn.heads_of(query, value)
    if value.shape[-2] < heads:
        key, value = gdn.repeat_heads(key, heads), gdn.repeat_heads(value, heads)
    stored = state_dtype or (wide_enough(query) if state is None else state.dtype)
    if state is not None:
        if has_initial_state is not None:
            state = state.masked_fill(~has_initial_state.view(-1, 1, 1, 1), 0)
        state = state.to(wide_enough(query))
    gates = (A_log, dt_bias, beta_is_logit, allow_negative_eigenvalues, gate_is_linear)
    most = WORKSPACE if workspace is None else workspace
    result, last = _rule(query, key, value, beta, gate, state, cu_seqlens, scale, use_qk_l2norm, deterministic, *gates, most)
    return result, last.to(stored) if output_final_state else None
