"""The Gated Delta Net operators on CPU tensors, by `gdn.recurrent` and `gdn.chunked`.

Functions with one argument x read the public function's arguments from it by name. The C++ operators have checked shapes and
dtypes; what depends on values (slots, accepted counts) is checked here, before anything is written. Results have the documented
dtypes, except that fp64 inputs give fp64 results (gradcheck, oracles).
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..operators.state_slots import (
    accepted_column,
    check_slots,
    check_width,
    is_slot,
    starting_slots,
    tokens_of,
    tree_tokens,
)
from . import reference as gdn
from .state_codes import decode, read_states, store_states

SPEC_VERIFY = 2
SOFTPLUS_THRESHOLD = 20.0


def _log_decay(A_log: Tensor, dt_bias: Tensor, a: Tensor) -> Tensor:
    """−exp(A_log) · softplus(a + dt_bias), softplus(x) = x above 20.

    A gate of −∞ has gradients of 0: its decay is 0, and the limits of the decay's derivatives by A_log, a and dt_bias are 0.
    """
    dtype = gdn.promoted_dtype(A_log, dt_bias, a)
    rate_log, x = torch.broadcast_tensors(A_log.to(dtype), a.to(dtype) + dt_bias.to(dtype))
    with torch.no_grad():
        is_reset = _gate_product(rate_log, x).isneginf()
    # Where the gate is a reset, the product is computed from zeros: otherwise its derivatives would be infinite, and infinity
    # times a gradient of 0 is NaN.
    product = _gate_product(rate_log.masked_fill(is_reset, 0), x.masked_fill(is_reset, 0))
    return product.masked_fill(is_reset, -torch.inf)


def _gate_product(rate_log: Tensor, x: Tensor) -> Tensor:
    """−exp(rate_log) · softplus(x).

    If exp(rate_log) overflows or softplus(x) underflows, it is computed as −exp(rate_log + ln softplus(x)), where ln
    softplus(x)
    is x for very negative x: infinity times 0 would be NaN.
    """
    limits = torch.finfo(x.dtype)
    largest, lowest = math.log(limits.max) - 1, math.log(limits.tiny) + 8
    by_logarithm, tiny = (rate_log > largest) | (x < lowest), x < lowest
    # Both formulas are evaluated for all elements; those that a formula is not for are replaced by zero, so that its gradients
    # stay finite.
    soft = F.softplus(x.masked_fill(tiny, 0), threshold=SOFTPLUS_THRESHOLD)
    logarithm = (rate_log + torch.where(tiny, x, soft.log())).masked_fill(~by_logarithm, 0)
    return -torch.where(by_logarithm, logarithm.exp(), rate_log.masked_fill(by_logarithm, 0).exp() * soft)


def channel_log_decay(A_log: Tensor | None, dt_bias: Tensor | None, a: Tensor, lower_bound: float | None) -> Tensor:
    """The logarithm of the decay of every channel of the key, from raw gates a (…,Hv,dk).

    −exp(A_log) · softplus(a + dt_bias), or with a bound lower_bound · sigmoid(exp(A_log) · (a + dt_bias)); A_log (Hv) or
    None, then exp(A_log) is 1; dt_bias (Hv,dk), flat, or None, then 0. Beside a bound, an exp(A_log) that overflows is the
    largest number of its dtype, so that its product with 0 is 0.
    """
    dtype = gdn.promoted_dtype(A_log, dt_bias, a)
    rate_log = a.new_zeros(a.shape[-2], 1, dtype=dtype) if A_log is None else A_log.to(dtype)[:, None]
    bias = a.new_zeros(a.shape[-2:], dtype=dtype) if dt_bias is None else dt_bias.to(dtype).view(a.shape[-2:])
    if lower_bound is None:
        return _log_decay(rate_log, bias, a)
    rate = rate_log.exp().clamp(max=torch.finfo(dtype).max)
    return lower_bound * torch.sigmoid(rate * (a.to(dtype) + bias))


def _log_of_linear(gate: Tensor) -> Tensor:
    """ln gate, with gradients of 0 where it is −∞, as in `_log_decay`."""
    is_reset = gate == 0
    return gate.masked_fill(is_reset, 1).log().masked_fill(is_reset, -torch.inf)


def _sigmoid(b: Tensor) -> Tensor:
    return torch.sigmoid(b.to(gdn.promoted_dtype(b)))


def beta_factor(x: Any) -> int:
    """What the sigmoid of a call's logits of beta is multiplied by."""
    return 2 if x.allow_negative_eigenvalues else 1


def fused_gdn_gating(x: Any) -> tuple[Tensor, Tensor]:
    """beta = sigmoid(b) in b's dtype and gate = −exp(A_log) · softplus(a + dt_bias) in fp32; a, b (…,Hv)."""
    return _sigmoid(x.b).to(x.b.dtype), _log_decay(x.A_log, x.dt_bias, x.a)


def fused_kda_gating(x: Any) -> Tensor:
    """The logarithms of the decays of channels from raw gates a (…,Hv,dk), in fp32."""
    return channel_log_decay(x.A_log, x.dt_bias, x.a, x.lower_bound)


_GATES = ("a", "b", "beta", "gate", "A_log", "dt_bias")


def _with_wide_gates(x: Any) -> Any:
    """The call with gates in fp64 if value is fp64, so that intermediate results are not rounded to fp32."""
    if x.value.dtype != torch.float64:
        return x
    gates = {name: y.double() for name, y in vars(x).items() if name in _GATES and y is not None}
    return SimpleNamespace(**(vars(x) | gates))


def _packed(x: Any, *names: str) -> Any:
    """The call with packed (1, N, …) tensors as (N, …), and with gates in fp64 if value is."""
    x = _with_wide_gates(x)
    if x.cu_seqlens is None:
        return x
    has_batch = x.value.dim() == 4
    flat = {name: y[0] for name in names if has_batch and (y := getattr(x, name)) is not None}
    return SimpleNamespace(**(vars(x) | flat))


def _output_shape(x: Any) -> tuple[int, ...]:
    """The shape of value, but with query's head count if query has more heads."""
    *tokens, _, dv = x.value.shape
    return *tokens, gdn.heads_of(x.query, x.value), dv


def is_raw(x: Any) -> bool:
    """Whether a call's gate is raw; only some operators take a bound."""
    return x.A_log is not None or getattr(x, "lower_bound", None) is not None


def gates_of_call(x: Any) -> tuple[Tensor, Tensor]:
    """(beta, logarithm of the decay) of a call with gates in any form, for heads or for channels."""
    shape = _output_shape(x)[:-1]
    gate = x.value.new_zeros(shape, dtype=torch.float32) if x.gate is None else x.gate
    if gate.dim() == len(shape) + 1 and is_raw(x):
        gate = channel_log_decay(x.A_log, x.dt_bias, gate, x.lower_bound)
    elif x.A_log is not None:
        bias = torch.zeros_like(x.A_log) if x.dt_bias is None else x.dt_bias
        gate = _log_decay(x.A_log, bias, gate)
    elif x.gate_is_linear:
        gate = _log_of_linear(gate.to(gdn.promoted_dtype(gate)))
    beta = x.value.new_ones(shape, dtype=torch.float32) if x.beta is None else x.beta
    if x.beta_is_logit:
        beta = _sigmoid(beta) * beta_factor(x)
    return beta, gate


def raw_gates_of_call(x: Any) -> tuple[Tensor, Tensor]:
    """(beta, logarithm of the decay) of a call with the projections a and b, a for heads or for channels."""
    beta = _sigmoid(x.b) * beta_factor(x)
    if x.a.dim() == x.b.dim():
        return beta, _log_decay(x.A_log, torch.zeros_like(x.A_log) if x.dt_bias is None else x.dt_bias, x.a)
    return beta, channel_log_decay(x.A_log, x.dt_bias, x.a, x.lower_bound) if is_raw(x) else x.a


def gradients_of_gates(
    x: Any, gate: Tensor, d_beta: Tensor, d_gate: Tensor
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of a call's beta, gate, A_log and dt_bias, from those of betas and of logarithms of decays, which are `gate`.

    Where a gradient is 0, so are those that it is multiplied into, even by infinity. At a reset e^gate and all its derivatives
    are 0, so it passes nothing on but NaN: 0 · NaN is NaN.
    """
    over_tokens = tuple(range(d_gate.dim() - 1))
    if x.beta_is_logit:
        b = x.beta.to(d_beta.dtype)
        slope = (2 if x.allow_negative_eigenvalues else 1) * torch.sigmoid(b) * torch.sigmoid(-b)
        d_beta = (d_beta * slope).masked_fill(d_beta == 0, 0)
    is_zero = d_gate == 0
    if d_gate.dim() > d_beta.dim() and is_raw(x):
        return d_beta, *_gradients_of_channels(x, gate, d_gate)
    if x.A_log is not None:
        rate_log = x.A_log.to(d_gate.dtype)
        z = x.gate.to(d_gate.dtype) + (0 if x.dt_bias is None else x.dt_bias.to(d_gate.dtype))
        is_reset = gate.isneginf()
        by_raw = -(rate_log + F.logsigmoid(z)).exp().masked_fill(is_reset, 0)  # exp(A_log) alone may be infinite
        d_raw = (d_gate * by_raw).masked_fill(is_zero, 0)
        by_rate = (d_gate * gate.to(d_gate.dtype).masked_fill(is_reset, 0)).masked_fill(is_zero, 0)
        return d_beta, d_raw, by_rate.sum(over_tokens), None if x.dt_bias is None else d_raw.sum(over_tokens)
    if x.gate_is_linear:
        d_gate = (d_gate / x.gate.to(d_gate.dtype)).masked_fill(is_zero, 0)
    return d_beta, d_gate, None, None


def _gradients_of_channels(x: Any, gate: Tensor, d_gate: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of raw gates of channels, A_log and dt_bias."""
    dtype, over_tokens = d_gate.dtype, tuple(range(d_gate.dim() - 2))
    heads = d_gate.shape[-2:]
    z = x.gate.to(dtype) + (0 if x.dt_bias is None else x.dt_bias.to(dtype).view(heads))
    rate_log = torch.zeros_like(z[..., :1]) if x.A_log is None else x.A_log.to(dtype)[:, None]
    if x.lower_bound is None:
        is_reset = gate.isneginf()
        by_raw = -(rate_log + F.logsigmoid(z)).exp().masked_fill(is_reset, 0)
        by_rate = gate.to(dtype).masked_fill(is_reset, 0)
    else:
        rate = rate_log.exp().clamp(max=torch.finfo(dtype).max)
        scaled = rate * z
        slope = x.lower_bound * torch.sigmoid(scaled) * torch.sigmoid(-scaled)
        by_raw = (slope * rate).masked_fill(slope == 0, 0)
        by_rate = (slope * scaled).masked_fill(slope == 0, 0)
    is_zero = d_gate == 0
    d_raw, d_rate = ((d_gate * y).masked_fill(is_zero, 0) for y in (by_raw, by_rate))
    return (
        d_raw,
        None if x.A_log is None else d_rate.sum((*over_tokens, -1)),
        None if x.dt_bias is None else d_raw.sum(over_tokens),
    )


def _initial(state: Tensor | None, has_initial_state: Tensor | None) -> Tensor | None:
    if state is None or has_initial_state is None:
        return state
    return state.masked_fill(~has_initial_state.view(-1, *[1] * (state.dim() - 1)), 0)


def _leaves_a_state(x: Any, lengths: Tensor) -> Tensor:
    """Which sequences write their last state to a pool: those with tokens, and those whose slot does not hold it already."""
    if x.write_indices is not None:
        return torch.ones_like(lengths, dtype=torch.bool)
    return lengths > 0 if x.has_initial_state is None else (lengths > 0) | ~x.has_initial_state


def _written(buffer: Tensor | None, states: Tensor) -> None:
    """Writes states to the caller's buffer, as many as it has rows."""
    if buffer is not None:
        rows = min(buffer.shape[0], states.shape[0])
        buffer[:rows] = states[:rows].to(buffer.dtype)


def recurrent_forward(x: Any) -> tuple[Tensor, Tensor]:
    """(output, new_state): the final state, or under SPEC_VERIFY the state after every token ((B,T,…), packed (N,…)).

    Under SPEC_VERIFY a rank-5 state (B,S,Hv,dv,dk) holds the states of a previous verify, and sequence b starts from
    state[b, max(accepted[b], 1) − 1]; without counts from state[b, 0].
    """
    output_shape = _output_shape(x)
    x = _packed(x, "query", "key", "value", "beta", "gate")
    start = x.state
    if start is not None and x.state_scales is not None:
        start = decode(start, x.state_scales, gdn.promoted_dtype(x.value))
    if start is not None and start.dim() == 5:
        chosen = accepted_column("recurrent_forward", x, start.shape[0], start.shape[1], start.device)
        start = start[torch.arange(start.shape[0], device=start.device), chosen]
    inputs = (x.query, x.key, x.value, *gates_of_call(x), _initial(start, x.has_initial_state), x.cu_seqlens)
    verify = x.inference_mode == SPEC_VERIFY
    output, final_state, steps = gdn.recurrent(*inputs, scale=x.scale, use_qk_l2norm=x.is_qk_norm, keep_steps=verify)
    new_state = final_state if steps is None else steps
    if x.final_scales is not None:
        store_states(x.final_state, x.final_scales, (slice(None),), new_state)
    else:
        _written(x.final_state, new_state)
    output = output.view(output_shape).to(x.value.dtype)
    if x.final_state is not None:
        return output, x.final_state
    return output, new_state if x.state is None or x.state_scales is not None else new_state.to(x.state.dtype)


def lengths_of(value: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    if cu_seqlens is None:
        return torch.full((value.shape[0],), value.shape[1], device=value.device)
    return cu_seqlens.diff().to(value.device)


def _zero_inactive(output: Tensor, active: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """The output with zeros for inactive sequences, even where it was NaN."""
    if cu_seqlens is None:
        return torch.where(active[:, None, None, None], output, 0)
    is_active = active.repeat_interleave(cu_seqlens.diff().to(active.device))
    is_active = F.pad(is_active, (0, output.shape[0] - is_active.shape[0]))
    return torch.where(is_active[:, None, None], output, 0)


def chunked_forward(x: Any) -> tuple[Tensor, Tensor, Tensor]:
    """(output, final_state, checkpoints); the last as in `gdn.chunked`, empty without checkpoint_every.

    The states have dtype `state_dtype`, or without that the dtype of state, or without a state fp32. With state_indices (N,),
    state is a pool (slots,Hv,dv,dk), updated in place and returned as final_state; a negative index skips its sequence: output
    and checkpoints are zero, and no slot is read or written.
    """

    output_shape = _output_shape(x)
    x = _packed(x, "query", "key", "value", "beta", "gate")
    beta, gate = gates_of_call(x)
    lengths = lengths_of(x.value, x.cu_seqlens)

    def run(start: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        inputs = (x.query, x.key, x.value, beta, gate, start, x.cu_seqlens)
        options = {"scale": x.scale, "use_qk_l2norm": x.use_qk_l2norm}
        if x.forward == "recurrent":
            output, final_state, _ = gdn.recurrent(*inputs, **options)
            return output, final_state, final_state[:0]
        if x.checkpoint_offsets is not None:
            return _in_parts(x.checkpoint_offsets, *inputs, **options)
        options["checkpoint_every"] = x.checkpoint_every
        return gdn.chunked(*inputs, **options, output_final_state=x.output_final_state or x.state_indices is not None)

    if x.state is None or x.state_indices is None:
        start = _initial(x.state, x.has_initial_state)
        output, final_state, checkpoints = run(start)
        _write_rows(x, start, checkpoints, lengths)
        _written(x.final_state, final_state)
        stored = x.state_dtype or (final_state.dtype if x.state is None else x.state.dtype)
        final_state = final_state.to(stored) if x.final_state is None else x.final_state
        return output.view(output_shape).to(x.value.dtype), final_state, _rows_or(x.checkpoints, checkpoints.to(stored))

    pool, scales, indices = x.state, x.state_scales, x.state_indices.to(torch.int64)
    check_slots("chunked_forward", "state_indices", indices, pool.shape[0])
    targets = indices if x.write_indices is None else x.write_indices.to(torch.int64)
    check_slots("chunked_forward", "write_indices", targets, pool.shape[0])
    active = indices >= 0
    start = _initial(read_states(pool, scales, indices, active, gdn.promoted_dtype(x.value)), x.has_initial_state)
    output, final_state, checkpoints = run(start)
    counts = lengths // x.checkpoint_every if x.checkpoint_every else torch.full_like(lengths, x.checkpoint_offsets is not None)
    checkpoints = torch.where(active.repeat_interleave(counts)[:, None, None, None], checkpoints, 0)
    _write_rows(x, start, checkpoints, lengths)
    written = active & _leaves_a_state(x, lengths) & (targets >= 0) & x.update_state
    store_states(pool, scales, (targets[written],), final_state[written])
    output = _zero_inactive(output.to(x.value.dtype), active, x.cu_seqlens).view(output_shape)
    dtype = pool.dtype if scales is None else gdn.promoted_dtype(x.value)
    return output, pool, _rows_or(x.checkpoints, checkpoints.to(dtype))


def _part(rows: list[Tensor], first: int, end: int | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    query, key, value, beta, gate = (y[:, first:end] for y in rows)
    return query, key, value, beta, gate


def _in_parts(
    offsets: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    gate: Tensor,
    state: Tensor | None,
    cu_seqlens: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """`gdn.chunked` with the states after so many tokens of each sequence, where a chunk ends; 0 for none."""
    rows = (query, key, value, beta, gate)
    if cu_seqlens is None:
        spans = [(n, n + 1) for n in range(value.shape[0])]
        alone = [[y[first:end] for y in rows] for first, end in spans]
    else:
        spans = gdn.sequence_spans(cu_seqlens, value.shape[0])
        alone = [[y[None, first:end] for y in rows] for first, end in spans]
    heads, (dv, dk) = gdn.heads_of(query, value), (value.shape[-1], key.shape[-1])
    none = value.new_zeros(0, heads, dv, dk, dtype=gdn.promoted_dtype(*rows, state))
    outputs, states, found = [], [none], [none]
    for n, (sequence, offset) in enumerate(zip(alone, offsets.clamp(min=0).tolist(), strict=True)):
        start = None if state is None else state[n : n + 1]
        before, middle, _ = gdn.chunked(*_part(sequence, 0, offset), start, **options)
        after, last, _ = gdn.chunked(*_part(sequence, offset, None), middle, **options)
        outputs.append(torch.cat([before, after], 1))
        states.append(last)
        found.append(middle if offset > 0 else torch.zeros_like(middle))
    if cu_seqlens is None:
        output = torch.cat([none.new_zeros(0, value.shape[1], heads, dv), *outputs])
    else:
        output = gdn.pack(outputs, value.shape[0], none.new_zeros(0, heads, dv))
    return output, torch.cat(states), torch.cat(found)


def _rows_or(buffer: Tensor | None, found: Tensor) -> Tensor:
    return found if buffer is None else buffer


def _write_rows(x: Any, start: Tensor | None, found: Tensor, lengths: Tensor) -> None:
    """Writes checkpoints, and the states before blocks of tokens, to the caller's buffers."""
    if x.checkpoint_offsets is not None:
        _written(x.checkpoints, found)
    if not x.checkpoint_every:
        return
    dense = x.value.shape[0] if x.cu_seqlens is not None else x.value.shape[1]
    most = dense // x.checkpoint_every * (1 if x.cu_seqlens is not None else x.value.shape[0])
    _written(x.checkpoints, torch.cat([found, found.new_zeros(most - found.shape[0], *found.shape[1:])]))
    if x.states_before is None:
        return
    rows, first = [found[:0]], 0
    for n, length in enumerate(lengths.tolist()):
        count, blocks = length // x.checkpoint_every, -(-length // x.checkpoint_every)
        initial = (
            torch.zeros_like(x.states_before[:1], dtype=found.dtype) if start is None else start[n : n + 1].to(found.dtype)
        )
        rows.append(torch.cat([initial, found[first : first + count]])[:blocks])
        first += count
    _written(x.states_before, torch.cat(rows))
    x.states_before[sum(len(each) for each in rows) :] = 0


def decode_slots(x: Any) -> tuple[Tensor, Tensor, Tensor]:
    """state_indices, and the slots that sequences of fused_decode read and write. Raises IndexError if one is out of range."""
    lengths, slot_count = lengths_of(x.value, x.cu_seqlens), x.state_pool.shape[0]
    sequences, device = lengths.shape[0], x.value.device
    indices = torch.arange(sequences, device=device) if x.state_indices is None else x.state_indices.to(torch.int64)
    check_slots("fused_decode", "state_indices", indices, slot_count, x.null_slot)
    slots = starting_slots("fused_decode", x, indices)
    if x.step_states is not None and x.step_slots is not None:
        check_slots("fused_decode", "step_slots", x.step_slots, x.step_states.shape[0])
        check_width("fused_decode", "step_states", lengths, x.step_states.shape[1])
    elif indices.dim() == 2:
        check_width("fused_decode", "state_indices", lengths, indices.shape[1])
    targets = slots if x.write_indices is None else x.write_indices.to(torch.int64)
    check_slots("fused_decode", "write_indices", targets, slot_count, x.null_slot)
    return indices, slots, targets


def fused_decode(x: Any) -> Tensor:
    """The serving step: gating, then the recurrence from and to slots of state_pool (slots,Hv,dv,dk), in place.

    Sequence n reads slot indices[n] (n itself without indices) and writes its last state there. With indices (N,T) it reads
    indices[n, max(accepted[n], 1) − 1] (column 0 without counts) and writes the state after token t to
    indices[n, t]. With step_states (rows,S,Hv,dv,dk) the state after token t goes to step_states[step_slots[n], t] instead, and
    the pool is written only with write_indices, the last state. A slot to read that is negative or null_slot skips its
    sequence, with zero output; a slot to write that is negative or null_slot is not written. States are rounded when stored,
    never between the tokens of one call.
    """
    output_shape = _output_shape(x)
    x = _packed(x, "query", "key", "value", "a", "b")
    lengths, pool, to_steps = (
        lengths_of(x.value, x.cu_seqlens),
        x.state_pool,
        x.step_states is not None and x.step_slots is not None,
    )
    indices, slots, targets = decode_slots(x)
    per_token = indices.dim() == 2
    active = is_slot(slots, x.null_slot)
    beta, gate = raw_gates_of_call(x)
    wide = gdn.promoted_dtype(x.value)
    start = _initial(read_states(pool, x.state_scales, slots, active, wide), x.has_initial_state)
    inputs = (x.query, x.key, x.value, beta, gate, start, x.cu_seqlens)
    if x.parents is not None:
        output = _tree(x, beta, gate, start, lengths, active)
        return _zero_inactive(output.to(x.value.dtype), active, x.cu_seqlens).view(output_shape)
    options = {"scale": x.scale, "use_qk_l2norm": x.use_qk_l2norm, "keep_steps": per_token or x.step_states is not None}
    output, final_state, steps = gdn.recurrent(*inputs, **options)
    if steps is None or (to_steps and x.write_indices is not None):
        written = active & _leaves_a_state(x, lengths) & is_slot(targets, x.null_slot) & x.update_state
        store_states(pool, x.state_scales, (targets[written],), final_state[written])
    if steps is not None:
        sequence, token, row = tokens_of(lengths, active)
        after = steps.flatten(0, 1)[row] if x.cu_seqlens is None else steps[row]
        if to_steps:
            rows = x.step_slots[sequence]
            kept = rows >= 0
            store_states(x.step_states, x.step_scales, (rows[kept], token[kept]), after[kept])
        else:
            token_slots = indices[sequence, token]
            kept = is_slot(token_slots, x.null_slot)
            store_states(pool, x.state_scales, (token_slots[kept],), after[kept])
    return _zero_inactive(output.to(x.value.dtype), active, x.cu_seqlens).view(output_shape)


def _tree(x: Any, beta: Tensor, gate: Tensor, start: Tensor, lengths: Tensor, active: Tensor) -> Tensor:
    """The output of a tree of tokens, each from the state after its parent. Stores the state after each token."""
    output = torch.full(_output_shape(x), torch.nan, dtype=gdn.promoted_dtype(x.value, start))
    ends = lengths.cumsum(0)
    if x.cu_seqlens is not None:
        output[int(ends[-1]) if len(ends) else 0 :] = 0
    for n in torch.where(active)[0].tolist():
        row, state = int(x.step_slots[n]), start[n : n + 1]
        for t, parent, is_latest in tree_tokens(x.parents[n], int(lengths[n]), row >= 0):
            if not is_latest:  # a stored state was rounded
                state = start[n : n + 1] if parent < 0 else _step(x, row, parent, start.dtype)[None]
            first = t if x.cu_seqlens is None else int(ends[n] - lengths[n]) + t
            token = [y[None] if x.cu_seqlens is not None else y[n : n + 1] for y in (x.query, x.key, x.value, beta, gate)]
            q, k, v, b, g = (y[:, first : first + 1] for y in token)
            found, state, _ = gdn.recurrent(q, k, v, b, g, state, scale=x.scale, use_qk_l2norm=x.use_qk_l2norm)
            (output if x.cu_seqlens is not None else output[n])[first] = found[0, 0]
            if row >= 0:
                store_states(x.step_states, x.step_scales, (row, t), state[0])
    return output


def _step(x: Any, row: int, token: int, dtype: torch.dtype) -> Tensor:
    state = x.step_states[row, token]
    return state.to(dtype) if x.step_scales is None else decode(state, x.step_scales[row, token], dtype)


def chunk_local_cumsum(input: Tensor, head_first: bool = False, cu_seqlens: Tensor | None = None) -> Tensor:
    """Inclusive cumsum in fp32 over the tokens of each chunk of 64; every sequence starts a chunk. Elements below
    `gdn.LOWEST_GATE` are clamped to it.

    input: (B,T,H), with head_first (B,H,T); packed, with cu_seqlens: (N,H), with head_first (H,N).
    """
    x = input.to(gdn.promoted_dtype(input))
    x = x.clamp(min=gdn.LOWEST_GATE[x.dtype])
    x = x if not head_first else x.transpose(-1, -2)
    x = x if x.dim() == 3 else x[None]
    spans = [(0, x.shape[1])] if cu_seqlens is None else gdn.sequence_spans(cu_seqlens, x.shape[1])
    summed = torch.cat([_cumsum_in_chunks(x[:, first:last]) for first, last in spans] + [x[:, :0]], dim=1)
    summed = F.pad(summed, (0, 0, 0, x.shape[1] - summed.shape[1])).view(*x.shape[1 if input.dim() == 2 else 0 :])
    return summed.transpose(-1, -2).contiguous() if head_first else summed


def _cumsum_in_chunks(x: Tensor) -> Tensor:
    return gdn.from_chunks(gdn.to_chunks(x, gdn.CHUNK).cumsum(-1), x.shape[1])


def transpose_to_mn_major(x: Any) -> Tensor:
    """The same values (…,M,K) with M contiguous; a column of M is padded with zeros to a multiple of `alignment` bytes."""
    *batch, m, k = x.input.shape
    unit = x.alignment // x.input.element_size()
    columns = x.input.new_zeros(*batch, k, -(-m // unit) * unit)
    return columns[..., :m].copy_(x.input.mT).mT


def _chunks(x: Tensor, cu_seqlens: Tensor | None, repeat_last: bool = False) -> Tensor:
    """(B,T,H,…) or packed (N,H,…) → (B,chunks,H,64,…); the chunks of all packed sequences are one row, B = 1."""
    if cu_seqlens is None:
        return gdn.to_chunks(x, gdn.CHUNK, repeat_last)
    spans = gdn.sequence_spans(cu_seqlens, x.shape[0])
    return torch.cat([gdn.to_chunks(x[None, i:j], gdn.CHUNK, repeat_last) for i, j in [*spans, (0, 0)]], dim=1)


def _tokens(x: Tensor, cu_seqlens: Tensor | None, like: Tensor) -> Tensor:
    """The inverse of `_chunks`, with as many tokens as `like`."""
    if cu_seqlens is None:
        return gdn.from_chunks(x, like.shape[1])
    sequences, chunk = [], 0
    for first, last in gdn.sequence_spans(cu_seqlens, like.shape[0]):
        count = -(-(last - first) // gdn.CHUNK)
        sequences.append(gdn.from_chunks(x[:, chunk : chunk + count], last - first))
        chunk += count
    return gdn.pack(sequences, like.shape[0], gdn.from_chunks(x, 0)[0])


def _promote(*tensors: Tensor) -> list[Tensor]:
    dtype = gdn.promoted_dtype(*tensors)
    return [x.to(dtype) for x in tensors]


def _cumulated(gate: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like[..., 0]) if gate is None else gate


# The three steps of the chunked form, on tensors with tokens. Results have the dtype of the arithmetic; callers round them. The
# gate is the result of chunk_local_cumsum; None means no decay.


def compute_u_w(
    k: Tensor, v: Tensor, beta: Tensor, gate_cumsum: Tensor | None = None, cu_seqlens: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """u (…,Hv,dv) and w (…,Hv,dk) of `gdn.chunk_u_w`."""
    k, v, beta, gate = _promote(k, v, beta, _cumulated(gate_cumsum, v))
    k = gdn.repeat_heads(k, v.shape[-2])
    kc, vc, bc = (_chunks(x, cu_seqlens) for x in (k, v, beta))
    u, w = gdn.chunk_u_w(kc, vc, bc, _chunks(gate, cu_seqlens, repeat_last=True))
    return _tokens(u, cu_seqlens, v), _tokens(w, cu_seqlens, v)


def seq_state_update(
    k: Tensor,
    u: Tensor,
    w: Tensor,
    gate: Tensor | None = None,
    initial: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The results of `gdn.chunk_states`, from the state `initial` (B,Hv,dv,dk) or zero: the states before each chunk
    (B,chunks,Hv,dv,dk) or packed (chunks,Hv,dv,dk), the final state (B,Hv,dv,dk), and v' (like u)."""
    k, u, w, gate = _promote(k, u, w, _cumulated(gate, u))
    k = gdn.repeat_heads(k, u.shape[-2])
    sequences = u.shape[0] if cu_seqlens is None else cu_seqlens.numel() - 1
    state = u.new_zeros(sequences, *u.shape[-2:], k.shape[-1]) if initial is None else initial.to(u.dtype)

    def update(k: Tensor, u: Tensor, w: Tensor, gate: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        kc, uc, wc = (gdn.to_chunks(x, gdn.CHUNK) for x in (k, u, w))
        before, final_state, v_new = gdn.chunk_states(kc, uc, wc, gdn.to_chunks(gate, gdn.CHUNK, repeat_last=True), state)
        return before, final_state, gdn.from_chunks(v_new, u.shape[1])

    if cu_seqlens is None:
        return update(k, u, w, gate, state)
    spans = gdn.sequence_spans(cu_seqlens, u.shape[0])
    runs = [
        update(k[None, i:j], u[None, i:j], w[None, i:j], gate[None, i:j], state[n : n + 1]) for n, (i, j) in enumerate(spans)
    ]
    before = torch.cat([state[:0], *(run[0][0] for run in runs)])
    final_state = torch.cat([state[:0], *(run[1] for run in runs)])
    return before, final_state, gdn.pack([run[2] for run in runs], u.shape[0], u)


def compute_o(
    q: Tensor,
    states: Tensor,
    k: Tensor,
    v_new: Tensor,
    gate: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """o (…,Hv,dv) of `gdn.chunk_outputs`, from the states before each chunk and v'."""
    q, states, k, v_new, gate = _promote(q, states, k, v_new, _cumulated(gate, v_new))
    q, k = gdn.repeat_heads(q, v_new.shape[-2]), gdn.repeat_heads(k, v_new.shape[-2])
    qc, kc, vc = (_chunks(x, cu_seqlens) for x in (q, k, v_new))
    gc = _chunks(gate, cu_seqlens, repeat_last=True)
    states = states if cu_seqlens is None else states[None]
    o = gdn.chunk_outputs(qc, states, kc, vc, gc, q.shape[-1] ** -0.5 if scale is None else scale)
    return _tokens(o, cu_seqlens, v_new)
