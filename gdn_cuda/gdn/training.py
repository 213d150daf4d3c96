"""`chunked_forward` where an input requires a gradient."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ..operators import Differentiable
from ..operators.dtypes import state_dtype as wide_enough
from ..operators.examples import call_operator, example
from ..operators.first_order import first_order
from ..operators.registration import library
from ..operators.schema import refuse
from . import reference as gdn
from . import reference_operators as reference
from .channel_gradients import CHUNK as CHANNEL_CHUNK
from .inputs import make_gdn_inputs, make_packed_gdn_inputs
from .reference_gradients import gradients

_NAME = "chunked_forward"
_WORKSPACE = 1 << 30  # bytes
_ARGUMENTS = ("query", "key", "value", "beta", "gate", "state", "A_log", "dt_bias")
_IN_FP32 = ("state", "A_log", "dt_bias")  # as the operator returns their gradients
_ROWS = ("query", "key", "value", "beta", "gate", "grad_out")


def _shapes(x: Any) -> tuple[Tensor, ...]:
    *tokens, _, dv = x.value.shape
    heads = gdn.heads_of(x.query, x.value)
    sequences = x.query.shape[0] if x.cu_seqlens is None else x.cu_seqlens.shape[0] - 1
    state = (heads, dv, x.query.shape[-1])
    last = x.value.new_empty((sequences, *state), dtype=wide_enough(x.value))
    checkpoints = x.value.new_empty((_checkpoints(x), *state), dtype=torch.float32)
    return x.value.new_empty((*tokens, heads, dv)), last, checkpoints


def _checkpoints(x: Any) -> int:
    """How many states forward leaves for the backward, as `checkpoint_interval` in csrc/families/gdn/gated_delta_rule.cpp."""
    if x.value.device.type != "cuda" or x.recurrent or x.deterministic or x.cu_seqlens is not None or _has_channel_gates(x):
        return 0
    blocks = x.value.shape[0] * gdn.heads_of(x.query, x.value) * -(-x.value.shape[-1] // 64)
    tokens, interval = x.value.shape[1], 1024 if blocks < 64 else 8192
    return 0 if blocks >= 256 or tokens <= interval else x.value.shape[0] * (tokens // interval)


def _has_channel_gates(x: Any) -> bool:
    return x.gate is not None and x.gate.dim() == x.value.dim()


def _gradient_shapes(x: Any) -> tuple[Tensor, ...]:
    wide = wide_enough(x.value)
    computed = ("state",) if x.only_state else ("value", "state") if x.only_value_and_state else _ARGUMENTS

    def like(name: str, dtype: torch.dtype | None = None) -> Tensor:
        y = getattr(x, name)
        if y is None or name not in computed:
            return x.value.new_empty(0, dtype=wide)
        return y.new_empty(y.shape, dtype=dtype)

    return tuple(like(name, wide if name in _IN_FP32 else None) for name in _ARGUMENTS)


def _forward_on_cpu(x: Any) -> tuple[Tensor, Tensor, Tensor]:
    absent = dict.fromkeys(("state_indices", "final_state", "checkpoint_offsets", "checkpoints", "states_before"))
    options = {"output_final_state": True, "checkpoint_every": 0, "state_dtype": wide_enough(x.value)}
    call = SimpleNamespace(**vars(x), **absent, **options, forward="recurrent" if x.recurrent else "chunked")
    out, final_state, _ = reference.chunked_forward(call)
    return out.contiguous(), final_state.clone(), final_state.new_empty((0, *final_state.shape[1:]), dtype=torch.float32)


# ---- The backward by `gdn_cuda.gdn.reference_gradients`: on CPUs, and for tensors that no kernel takes


def _backward_by_reference(x: Any) -> tuple[Tensor, ...]:
    wide = wide_enough(x.value)
    y = reference._packed(SimpleNamespace(**vars(x)), *_ROWS)
    heads, value_heads = gdn.heads_of(y.query, y.value), y.value.shape[-2]
    y = SimpleNamespace(**vars(y))
    if value_heads < heads:
        y.key, y.value = gdn.repeat_heads(y.key, heads), gdn.repeat_heads(y.value, heads)
    if y.grad_out is None:
        y.grad_out = torch.zeros_like(y.value)
    y.state = reference._initial(y.state, y.has_initial_state)
    beta, gate = reference.gates_of_call(y)
    found = [_of_heads(y, beta, gate, *each) for each in _groups(y)]

    def joined(name: str, dim: int) -> Tensor | None:
        parts = [getattr(each, name) for each in found]
        return None if parts[0] is None else torch.cat(parts, dim)

    by = {name: joined(name, dim) for name, dim in (("query", -2), ("key", -2), ("value", -2), ("state", 1))}
    if value_heads < heads:
        for name in ("key", "value"):
            if (repeated := by[name]) is not None:
                by[name] = repeated.unflatten(-2, (value_heads, -1)).sum(-2)
    by["state"] = reference._initial(by["state"], y.has_initial_state)
    if x.only_state:
        by["value"] = None
    elif not x.only_value_and_state:
        by_gates = reference.gradients_of_gates(
            y, gate, joined("beta", -1), joined("gate", -2 if _has_channel_gates(y) else -1)
        )
        by |= dict(zip(("beta", "gate", "A_log", "dt_bias"), by_gates, strict=True))

    def result(name: str) -> Tensor:
        given, gradient = getattr(x, name), by.get(name)
        if given is None or gradient is None:
            return x.value.new_empty(0, dtype=wide)
        return gradient.reshape(given.shape).to(wide if name in _IN_FP32 else given.dtype).contiguous()

    return tuple(result(name) for name in _ARGUMENTS)


def _groups(y: Any) -> list[tuple[int, int]]:
    """Key heads, first and past the last, whose states of every chunk and their gradients fit into the workspace."""
    key_heads, heads, dv, dk = y.key.shape[-2], y.value.shape[-2], y.value.shape[-1], y.key.shape[-1]
    chunk = CHANNEL_CHUNK if _has_channel_gates(y) else gdn.CHUNK
    chunks = sum(-(-length // chunk) for length in reference.lengths_of(y.value, y.cu_seqlens).tolist())
    key_head_bytes = (
        heads // max(key_heads, 1) * chunks * (4 * dv * dk + 8 * chunk * (chunk + dv + dk)) * wide_enough(y.value).itemsize
    )
    workspace = max(_WORKSPACE, key_head_bytes) if y.workspace is None else y.workspace
    if key_head_bytes > workspace:
        refuse(_NAME, "workspace", f"at least {key_head_bytes} bytes, what the backward of one key head needs", workspace)
    step = min(max(workspace // max(key_head_bytes, 1), 1), max(key_heads, 1))
    return [(first, min(first + step, key_heads)) for first in range(0, key_heads, step)]


def _of_heads(y: Any, beta: Tensor, gate: Tensor, first: int, end: int) -> Any:
    keys = slice(first, end)
    r = y.value.shape[-2] // y.key.shape[-2]
    values = slice(first * r, end * r)
    last = y.grad_final_state
    return gradients(
        y.query[..., keys, :],
        y.key[..., keys, :],
        y.value[..., values, :],
        beta[..., values],
        gate[..., values] if gate.dim() == beta.dim() else gate[..., values, :],
        None if y.state is None else y.state[:, values],
        y.cu_seqlens,
        y.grad_out[..., values, :],
        None if last is None else last[:, values],
        scale=y.key.shape[-1] ** -0.5 if y.scale is None else y.scale,
        use_qk_l2norm=y.use_qk_l2norm,
        only_value_and_state=y.only_value_and_state or y.only_state,
    )


# ---- The operators


def _gradients(x: Any, needs: Any, grad_out: Tensor | None, grad_final_state: Tensor | None, _: Any) -> dict[str, Any]:
    wanted = [name for name in _ARGUMENTS if getattr(needs, name)]
    only_value_and_state = {"value", "state"}.issuperset(wanted)
    given = (getattr(x, argument) for argument in _rule.schema.arguments)
    gradients = _backward(grad_out, grad_final_state, only_value_and_state, False, *x.results, *given)
    found = dict(zip(_ARGUMENTS, gradients, strict=True))
    return {name: found[name].to(getattr(x, name).dtype) for name in wanted}


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
    backward_only=1,
)


def _on_gpu(*args: Any) -> tuple[Tensor, ...]:
    with torch.autocast("cuda", enabled=False):  # products are in fp32
        return _backward_by_reference(_backward.schema.named(_backward.schema.completed(args)))


library.impl("gated_delta_rule_backward_reference", _on_gpu, "CUDA")


# ---- Examples of the operators


def _given(x: dict[str, Any]) -> dict[str, Any]:
    flags = {_rule.schema.arguments[i]: False for i, kind in _rule.schema.others if kind == "bool"}
    return dict.fromkeys(_rule.schema.arguments) | flags | x


@example(call_operator("gated_delta_rule"))
def _example(B: int, T: int, seed: int) -> dict[str, Any]:
    return _given(make_gdn_inputs(B, T, 2, 4, 16, 8, dtype=torch.bfloat16, seed=seed))


@example(call_operator("gated_delta_rule"), "gated_delta_rule, packed", packed=True)
def _example_packed(B: int, T: int, seed: int) -> dict[str, Any]:
    return _given(make_packed_gdn_inputs([3, 0, 70], Hk=2, Hv=4, dk=16, dv=8, dtype=torch.float32, seed=seed))


@example(call_operator("gated_delta_rule"), "gated_delta_rule, gates of channels")
def _example_channels(B: int, T: int, seed: int) -> dict[str, Any]:
    x = _example(B, T, seed)
    bias = torch.zeros(x["value"].shape[-2], x["key"].shape[-1])
    gate = x["gate"].to(torch.bfloat16)[..., None].expand(*x["gate"].shape, x["key"].shape[-1]).contiguous()
    return x | {"gate": gate, "dt_bias": bias, "lower_bound": -5.0}


@example(call_operator("gated_delta_rule_backward"))
def _example_backward(B: int, T: int, seed: int) -> dict[str, Any]:
    x = _example(B, T, seed)
    own = {"grad_out": torch.ones_like(x["value"]), "grad_final_state": None}
    return own | {"only_value_and_state": False, "only_state": False, "checkpoints": None} | x


# ---- What chunked_forward calls


def with_gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor | None,
    gate: Tensor | None,
    state: Tensor | None,
    cu_seqlens: Tensor | None,
    chunk_indices: Tensor | None,
    cu_chunks: Tensor | None,
    scale: float | None,
    use_qk_l2norm: bool,
    output_final_state: bool,
    state_dtype: torch.dtype | None,
    state_indices: Tensor | None,
    checkpoint_every: int,
    checkpoint_offsets: Tensor | None,
    deterministic: bool,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    beta_is_logit: bool,
    allow_negative_eigenvalues: bool,
    gate_is_linear: bool,
    lower_bound: float | None,
    has_initial_state: Tensor | None,
    write_indices: Tensor | None,
    update_state: bool,
    final_state: Tensor | None,
    checkpoints: Tensor | None,
    states_before: Tensor | None,
    state_scales: Tensor | None,
    out: Tensor | None,
    workspace: int | None,
    forward: str,
) -> tuple[Tensor, Tensor | None]:
    """chunked_forward, all results of which are new and have gradients, or whose forward is by token."""
    if forward not in ("chunked", "recurrent"):
        refuse(_NAME, "forward", "'chunked' or 'recurrent'", repr(forward))
    why = "where forward is 'recurrent'" if forward == "recurrent" else "where an input requires a gradient"
    written = {"state_indices": state_indices, "write_indices": write_indices, "final_state": final_state}
    written |= {
        "checkpoint_offsets": checkpoint_offsets,
        "checkpoints": checkpoints,
        "states_before": states_before,
        "state_scales": state_scales,
        "out": out,
    }
    for argument, given in written.items():
        if given is not None:
            refuse(_NAME, argument, f"None {why}", "a tensor" if isinstance(given, Tensor) else type(given).__name__)
    if checkpoint_every:
        refuse(_NAME, "checkpoint_every", f"0 {why}", checkpoint_every)
    if not update_state:
        refuse(_NAME, "update_state", "True without state_indices", update_state)
    if state_dtype is not None:
        _check_state_dtype(state_dtype, query)
    gates = (A_log, dt_bias, beta_is_logit, allow_negative_eigenvalues, gate_is_linear, lower_bound, has_initial_state)
    options = (cu_seqlens, scale, use_qk_l2norm, deterministic, *gates, forward == "recurrent")
    result, last, _ = _rule(query, key, value, beta, gate, state, *options, workspace)
    if not output_final_state:
        return result, None
    return result, last.to(state_dtype or (last if state is None else state).dtype)


def _check_state_dtype(given: Any, query: Any) -> None:
    allowed = [torch.float32, torch.bfloat16, torch.float16]
    if isinstance(query, Tensor) and query.dtype == torch.float64:
        allowed.append(torch.float64)
    if given not in allowed:
        expected = "float32, bfloat16, float16 or None, or float64 with a float64 query"
        refuse(_NAME, "state_dtype", expected, str(given).removeprefix("torch."))
