"""Mamba-2's scan: ssd_scan and ssd_summary, and their operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ..gdn.state_codes import read_states, store_states
from ..operators import Differentiable
from ..operators.autograd import keep_autograd_out, needs_gradients, with_autograd
from ..operators.calls import typical_call
from ..operators.capability import capability_of
from ..operators.composed import as_one_call
from ..operators.declare import output_like
from ..operators.dtypes import state_dtype as widest_of
from ..operators.examples import Arguments
from ..operators.first_order import first_order
from ..operators.gradients import needs_derivatives, under_transforms
from ..operators.registration import check, register
from ..operators.schema import Schema, refuse
from .call import Call
from .checkpoints import refuse_wrong_modes, reported, reports, row_count, write_rows
from .expanded import expanded_into, expanded_pool, expanded_scan, expanded_summary
from .gradients import derivative
from .mapped import with_more_heads
from .reference import Scan, Steps, scan_spans
from .spans import sequences_of, spans_of

_NAME = "ssd_scan"
_STATE_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


# ---- The operators, and what they do on CPU tensors


def _shapes(x: Any) -> tuple[Tensor, Tensor]:
    *_, heads, channels = x.x.shape
    sizes = (sequences_of(x), heads, channels, x.B.shape[-1])
    return x.x.new_empty(x.x.shape), x.x.new_empty(sizes, dtype=widest_of(x.x))


def _scanned(x: Any, initial: Tensor | None) -> tuple[Tensor, Tensor]:
    if initial is not None and x.has_initial_state is not None:
        initial = torch.where(x.has_initial_state[:, None, None, None], initial, 0)
    scan = Scan(x.x, x.dt, x.A, x.B, x.C, x.D, x.z, x.dt_bias, initial)
    steps, buffers = Steps(x.dt_softplus, (x.dt_lowest, x.dt_highest)), reported(x)
    tokens = [list(zip(places.sequence.tolist(), places.token.tolist(), strict=True)) for _, places in buffers]
    out, last, states = scan_spans(scan, steps, spans_of(x), sequences_of(x), {at for each in tokens for at in each})
    for (rows, places), each in zip(buffers, tokens, strict=True):
        zeros = last.new_zeros(last.shape[1:])
        kept = [states[at][0] if at in states else zeros for at in each]
        write_rows(rows, places, torch.stack(kept) if kept else last[:0])
    return out.to(x.x.dtype), last


def _forward(x: Any) -> tuple[Tensor, Tensor]:
    out, last = _scanned(x, x.initial_state)
    return out, last.to(widest_of(x.x))


def _unpacked(x: Any) -> bool:
    """Gives packed tensors (T, …) a batch dimension. Whether they had none."""
    if not (isinstance(x.x, Tensor) and x.x.dim() == 3 and x.cu_seqlens is not None):
        return False
    for name in ("x", "dt", "B", "C", "z", "out"):
        given = getattr(x, name, None)
        if isinstance(given, Tensor):
            setattr(x, name, given.unsqueeze(0))
    return True


def _into(x: Any) -> None:
    _unpacked(x)
    out, last = _scanned(x, x.initial_state)
    x.out.copy_(out)
    if x.write_indices is not None:
        to = x.write_indices.long()
        written = (to >= 0) & (to < x.last_state.shape[0])
        x.last_state[to[written]] = last[written].to(x.last_state.dtype)
    elif x.last_state is not None:
        x.last_state.copy_(last)


def _with_pool(x: Any) -> None:
    """A sequence with a negative slot is not computed, and its output is 0; with one past the pool, NaN."""
    _unpacked(x)
    slots, count = x.state_indices.long(), x.initial_state.shape[0]
    computed = (slots >= 0) & (slots < count)
    wide = torch.float64 if x.x.dtype == torch.float64 else torch.float32
    initial = read_states(x.initial_state, x.state_scales, torch.where(computed, slots, 0), computed, wide) if count else None
    out, last = _scanned(x, initial)
    for slot, span in zip(slots.tolist(), spans_of(x), strict=True):
        if not 0 <= slot < count:
            out[span.row, span.first : span.end] = 0 if slot < 0 else torch.nan
    x.out.copy_(out)
    if x.update_state:
        to = slots if x.write_indices is None else x.write_indices.long()
        written = computed & (to >= 0) & (to < count)
        store_states(x.initial_state, x.state_scales, (to[written],), last[written])


def _summary_shapes(x: Any) -> tuple[Tensor, Tensor]:
    *_, heads, channels = x.x.shape
    sizes = (sequences_of(x), heads)
    made = [x.x.new_empty(each, dtype=widest_of(x.x)) for each in ((*sizes, channels, x.B.shape[-1]), sizes)]
    return made[0], made[1]


def _summary(x: Any) -> tuple[Tensor, Tensor]:
    absent = {"C": x.B, "D": None, "z": None, "has_initial_state": None}
    _, last = _scanned(SimpleNamespace(**vars(x) | absent), x.initial_state)
    steps = Steps(x.dt_softplus, (x.dt_lowest, x.dt_highest))(x.dt.double(), x.dt_bias) * x.A.double()
    decays = [steps[span.row, span.first : span.end].sum(0).exp() for span in spans_of(x)]
    decay = torch.stack(decays) if decays else steps.new_empty(0, x.x.shape[2])
    return last.to(widest_of(x.x)), decay.to(widest_of(x.x))


ssd_scan_operator: Differentiable = first_order(
    _NAME,
    _NAME,
    shapes=_shapes,
    cpu=_forward,
    backward=derivative,
    batched=lambda x, dims: with_more_heads(ssd_scan_operator, (2, 1), x, dims),
)
_into_schema = register("ssd_scan_into", cpu=_into, function=_NAME, differentiable="gdn_cuda.ssd_scan without `out`")
_pool_schema = register("ssd_scan_pool", cpu=_with_pool, function=_NAME, differentiable="gdn_cuda.ssd_scan without slots")
keep_autograd_out(_into_schema)
keep_autograd_out(_pool_schema)
_summary_schema = register("ssd_summary", shapes=_summary_shapes, cpu=_summary, differentiable="gdn_cuda.ssd_scan")


# ---- The functions


def has_kernel(x: Tensor, B: Tensor) -> bool:
    """Whether Mamba-2's own kernels run, forward and backward. On a CPU the reference does."""
    capability = capability_of(x)
    if capability is None:
        return True
    states = B.size(-1)
    return (
        x.size(-1) % 8 == 0
        and states % 8 == 0
        and states <= 256
        and capability >= 80
        and x.dtype in (torch.bfloat16, torch.float16)
    )


def _transformed() -> bool:
    return not torch.compiler.is_compiling() and under_transforms()


def _refuse_contradictions(x: Any, with_gradients: bool) -> None:
    if x.state_indices is None:
        if x.write_indices is not None and x.last_state is None:
            refuse(_NAME, "write_indices", "None without state_indices or last_state", "a tensor")
        if not x.update_state:
            refuse(_NAME, "update_state", "True without state_indices", x.update_state)
        if x.state_scales is not None:
            refuse(_NAME, "state_scales", "None without state_indices", "a tensor")
    else:
        if x.initial_state is None:
            refuse(_NAME, "initial_state", "a pool (slots, H, P, N) with state_indices", "None")
        for name in ("seq_idx", "last_state"):
            if getattr(x, name) is not None:
                refuse(_NAME, name, "None with state_indices", "a tensor")
        if x.state_dtype not in (None, x.initial_state.dtype):
            refuse(_NAME, "state_dtype", f"None or the pool's {x.initial_state.dtype} with state_indices", x.state_dtype)
    refuse_wrong_modes(_NAME, x)
    for name in ("checkpoints", "states_before"):
        if getattr(x, name) is not None and not reports(x):
            refuse(_NAME, name, "None without checkpoint_every, checkpoint_offsets or boundaries", "a tensor")
    if with_gradients and reports(x):
        mode = "checkpoint_every" if x.checkpoint_every else "checkpoint_offsets" if x.boundaries is None else "boundaries"
        refuse(
            _NAME, mode, "0 or None where an input requires a gradient", getattr(x, mode) if x.checkpoint_every else "a tensor"
        )
    if x.last_state is not None and x.state_dtype is not None:
        refuse(_NAME, "state_dtype", "None with last_state, whose dtype counts", x.state_dtype)
    if x.state_dtype is not None and x.state_dtype not in _STATE_DTYPES:
        refuse(_NAME, "state_dtype", "torch.float32, bfloat16, float16 or None, or float64 with a float64 x", x.state_dtype)
    for name in ("out", "last_state", "state_indices"):
        if getattr(x, name) is None:
            continue
        if with_gradients:
            refuse(_NAME, name, "None where an input requires a gradient", "a tensor")
        if _transformed():
            refuse(_NAME, name, "None under torch.func, torch.vmap and forward mode", "a tensor")


def _check(schema: Schema, arguments: tuple[Any, ...]) -> None:
    """What the operator would check. Compiled code and transforms leave it to the scan of expanded tensors."""
    if not torch.compiler.is_compiling() and not under_transforms():
        schema.check_types(arguments)
        schema.check_devices(arguments)
        check(schema.name, arguments)


def _call(schema: Schema, expanded: Callable[[Any], Any], x: Any) -> Any:
    """Without gradients, by a kernel or on expanded tensors."""
    arguments = tuple(getattr(x, name) for name in schema.arguments)
    schema.check_tensors(arguments)
    if has_kernel(x.x, x.B):
        return with_autograd(schema, arguments)
    _check(schema, arguments)
    written = dict(schema.written(arguments))
    read = {name: y for name, y in schema.given(arguments) if name not in written}
    return as_one_call(schema.function, schema.differentiable, written, read, lambda: expanded(x))


def ssd_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    seq_idx: Tensor | None = None,
    return_last_state: bool = False,
    state_dtype: torch.dtype | None = None,
    state_indices: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    write_indices: Tensor | None = None,
    update_state: bool = True,
    state_scales: Tensor | None = None,
    last_state: Tensor | None = None,
    checkpoint_every: int = 0,
    checkpoint_offsets: Tensor | None = None,
    boundaries: Tensor | None = None,
    checkpoints: Tensor | None = None,
    states_before: Tensor | None = None,
    deterministic: bool = False,
    out: Tensor | None = None,
) -> Any:
    """Mamba-2's scan (SSD), with gradients: one decay for each head and token. Returns out, or (out, last state), or with
    checkpoints (out, last state, checkpoints).

    Formula:
        δ_t = clamp(softplus(dt_t + dt_bias), dt_limit)
        S ← exp(δ_t A) S + δ_t x_t B_tᵀ        y_t = S C_t + D ⊙ x_t        out_t = y_t · silu(z_t)

    Shapes:
        x, z, out: (B, T, H, P), or packed (T, H, P) or (1, T, H, P) with cu_seqlens; bf16, fp16 or fp32
        dt: (B, T, H), any float dtype
        A, dt_bias: (H,); fp32, bf16 or fp16. A is negative in a layer that forgets
        B, C: (B, T, G, N), the dtype of x; head h reads group h // (H/G)
        D: (H,) or (H, P); fp32, bf16 or fp16
        initial_state, last_state: (B, H, P, N), or (sequences, H, P, N) with cu_seqlens; fp32, bf16 or fp16, a head's
          contiguous. With `state_indices` a pool (slots, H, P, N), which is updated in place and returned as the last state;
          it may be int8, each slot contiguous
        state_scales: (slots, H, P, N / 32), fp32, if the pool is int8 (`convert_states`); written too
        cu_seqlens: (sequences + 1,), int32 or int64: packed sequences
        seq_idx: (B, T), int32: the number of each token's sequence
        state_indices: (sequences,), int32 or int64: the slots to read and write; negative: a sequence that is not computed
        write_indices: (sequences,), int32 or int64: the slots to write, if they differ from state_indices. Without these,
          `last_state` is a pool (slots, H, P, N), of which the other slots stay as they are
        has_initial_state: (sequences,), bool: sequences without one start from zeros
        checkpoints: (rows, H, P, N): states at other tokens than the last, with one of checkpoint_every, checkpoint_offsets and
          boundaries. As an argument, of any float dtype, it is written and returned; else it is of `state_dtype`
        checkpoint_offsets: (sequences,), int32 or int64: row i is the state after so many tokens of sequence i; 0: none, and
          the row is 0
        boundaries: (rows + 1,), int32 or int64: row m is the state after the first boundaries[m + 1] tokens of a packed call,
          in the sequence that they end. They never decrease, and have every sequence's end; rows that end no token are 0
        states_before: (rows, H, P, N): with checkpoint_every = n, the states before each block of n tokens, ceil(length / n)
          rows for each sequence, and 0 in the other rows

    Parameters:
        dt_softplus: whether δ is the softplus of dt + dt_bias, which is the identity above 20
        dt_limit: lower and upper bound of δ
        return_last_state: whether (out, last state) is returned, and not out alone
        state_dtype: of the last state, by default fp32
        update_state: False, with state_indices: the pool is only read
        checkpoint_every: a multiple of 64: checkpoints after every n tokens, in sequence order. T // n rows for each padded
          sequence; packed T // n in all, of which sequence i fills the next length_i // n, and the rest are 0
        deterministic: a sequence has the same bits alone and in any batch; slower where heads are few

    Every tensor may be a view whose last dimension is contiguous, such as slices of one projection. CPU tensors may also be
    fp64.

    States of an int8 pool pass through fp32 ones: a launch before the scan reads the slots, one after it rounds and stores.

    Kernels of its own take x in bf16 or fp16 with multiples of 8 channels and states, and up to 256 states, from sm_80 on, with
    gradients too. Other calls are computed by `selective_scan` on expanded tensors, in fp32, which is slower.

    Edge cases:
        The last state of a sequence without tokens is its initial state, or zeros. Tokens of no sequence have the output 0.
        δA below −104 is an exact reset: nothing of the state remains, neither infinities nor NaN.
        seq_idx zeroes the state where it changes. The initial state belongs to sequence 0: a row that begins with another
          number has none. The last state is that of the row's last sequence.
        Gradients pass through dt_limit at the bounds, and are 0 outside.
        A chunk of 64 tokens ends where a state is reported, and the next begins there: with fp32 states, a prompt in two calls
          that both report where the first one ends has the bits of one call, with deterministic=True.
        An offset beyond its sequence raises on CPU tensors; on a GPU its row is NaN.
        A slot past the pool: the sequence's output is NaN, and so are its checkpoints.
        `out`, `last_state`, pools and checkpoints are for calls without gradients.
        Gradients of gradients, forward mode and torch.vmap over cu_seqlens, seq_idx and has_initial_state raise RuntimeError.

    Example:
        >>> ones = torch.ones(1, 3, 1, 8)
        >>> gdn_cuda.ssd_scan(ones, ones[..., 0], -torch.ones(1), ones, ones)[..., 0].flatten()
        tensor([ 8.0000, 10.9430, 12.0257])
    """
    lowest, highest = float(dt_limit[0]), float(dt_limit[1])
    differentiable = (x, dt, A, B, C, D, z, dt_bias, initial_state)
    reports_none = type(checkpoint_every) is int and not checkpoint_every and checkpoint_offsets is boundaries is None
    if reports_none and checkpoints is states_before is None and not needs_derivatives(*differentiable):
        try:
            results = _by_operator(
                x, dt, A, B, C, D, z, dt_bias, initial_state, cu_seqlens, dt_softplus, lowest, highest, seq_idx, state_dtype,
                state_indices, has_initial_state, write_indices, update_state, state_scales, last_state, deterministic, out,
                return_last_state,
            )  # fmt: skip
            if results is not None:
                return results if return_last_state else results[0]
        except Exception:
            schema = _into_schema if state_indices is None else _pool_schema
            named = locals() | {"dt_lowest": lowest, "dt_highest": highest, "out": x if out is None else out}
            schema.check_types(schema.pick(named))  # our message replaces torch's, which is a page long
            raise
    given: Arguments = {
        "x": x,
        "dt": dt,
        "A": A,
        "B": B,
        "C": C,
        "D": D,
        "z": z,
        "dt_bias": dt_bias,
        "initial_state": initial_state,
        "cu_seqlens": cu_seqlens,
        "dt_softplus": dt_softplus,
        "dt_lowest": lowest,
        "dt_highest": highest,
        "seq_idx": seq_idx,
        "state_dtype": state_dtype,
        "state_indices": state_indices,
        "has_initial_state": has_initial_state,
        "write_indices": write_indices,
        "update_state": update_state,
        "state_scales": state_scales,
        "last_state": last_state,
        "checkpoint_every": checkpoint_every,
        "checkpoint_offsets": checkpoint_offsets,
        "boundaries": boundaries,
        "checkpoints": checkpoints,
        "states_before": states_before,
        "deterministic": deterministic,
        "out": out,
    }
    call, with_gradients = Call(**given), needs_gradients(*differentiable)
    _refuse_contradictions(call, with_gradients)
    squeezed = _unpacked(call)
    writes = any(y is not None for y in (state_indices, out, last_state)) or reports(call)
    if not writes and (with_gradients or state_dtype is None or _transformed()):
        found, last = _new_results(call)
        last = last if state_dtype is None else last.to(state_dtype)
    else:
        found, last = _written_results(call)
    found = out if out is not None else found.squeeze(0) if squeezed else found
    if reports(call):
        return found, last, call.checkpoints
    return (found, last) if return_last_state else found


def _into_in_grad_mode(*given: Any) -> None:
    with_autograd(_into_schema, given)


def _pool_in_grad_mode(*given: Any) -> None:
    with_autograd(_pool_schema, given)


def _by_operator(
    x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, z: Any, dt_bias: Any, initial: Any, cu_seqlens: Any, softplus: Any,
    lowest: float, highest: float, seq_idx: Any, state_dtype: Any, slots: Any, has_initial: Any, write_indices: Any,
    update_state: Any, state_scales: Any, last: Any, deterministic: Any, out: Any, with_last: bool,
) -> tuple[Tensor, Any] | None:  # fmt: skip
    """(out, last state) of a call without derivatives that reports no states but the last; without `with_last` the last state
    may be None. None where no kernel takes the call, or arguments do not go together. The operator checks what it is given, so
    a warm call runs no more Python than this. Arguments are in the order of the schemas, as picking them from a dictionary
    would take a microsecond or two."""
    if slots is not None:
        go_together = state_dtype is None and initial is not None and seq_idx is None and last is None
    elif last is not None:
        go_together = update_state and state_scales is None and state_dtype is None
    else:
        go_together = update_state and state_scales is write_indices is None
        go_together = go_together and (state_dtype is None or state_dtype in _STATE_DTYPES)
    if not (go_together and has_kernel(x, B)):
        return None
    in_grad_mode = torch.is_grad_enabled()  # else the caller has seen that no transform, trace or forward mode is active
    if slots is not None:
        if out is None:
            out = output_like(_NAME, "x", x)
        (_pool_in_grad_mode if in_grad_mode else _pool_schema.direct)(
            x, dt, A, B, C, initial, slots, lowest, highest, 0, out, softplus, D, dt_bias, cu_seqlens, has_initial, z,
            write_indices, state_scales, update_state, deterministic, None, None, None, None,
        )  # fmt: skip
        return out, initial
    makes_last = with_last and last is None
    if (makes_last or in_grad_mode) and out is last is state_dtype is None and x.dim() == 4:
        out, last = ssd_scan_operator.below_autograd(
            x, dt, A, B, C, lowest, highest, softplus, D, dt_bias, initial, cu_seqlens, z, has_initial, seq_idx, deterministic
        )
        return out, last
    if out is None:
        out = output_like(_NAME, "x", x)
    if makes_last:
        sequences = x.shape[0] if cu_seqlens is None else max(cu_seqlens.shape[0] - 1, 0)
        last = x.new_empty((sequences, *x.shape[-2:], B.shape[-1]), dtype=state_dtype or widest_of(x))
    (_into_in_grad_mode if in_grad_mode else _into_schema.direct)(
        x, dt, A, B, C, lowest, highest, 0, out, softplus, D, dt_bias, cu_seqlens, last, initial, write_indices, z, has_initial,
        seq_idx, deterministic, None, None, None, None,
    )  # fmt: skip
    return out, last


def _new_results(x: Any) -> tuple[Tensor, Tensor]:
    schema = ssd_scan_operator.schema
    arguments = tuple(getattr(x, name) for name in schema.arguments)
    schema.check_tensors(arguments)
    if has_kernel(x.x, x.B):
        out, last = ssd_scan_operator(*arguments)
        return out, last
    _check(schema, arguments)
    return expanded_scan(x)


def _written_results(x: Any) -> tuple[Tensor, Tensor]:
    if x.out is None:
        x.out = torch.empty_like(x.x, memory_format=torch.contiguous_format)
    if reports(x) and x.checkpoints is None:
        wide = x.state_indices is None or x.initial_state.dtype == torch.int8
        dtype = x.state_dtype or (widest_of(x.x) if wide else x.initial_state.dtype)
        x.checkpoints = x.x.new_empty((row_count(x), *x.x.shape[2:], x.B.shape[-1]), dtype=dtype)
    if x.state_indices is not None:
        _call(_pool_schema, expanded_pool, x)
        return x.out, x.initial_state
    if x.last_state is None:
        sizes = (sequences_of(x), *x.x.shape[2:], x.B.shape[-1])
        x.last_state = x.x.new_empty(sizes, dtype=x.state_dtype or widest_of(x.x))
    _call(_into_schema, expanded_into, x)
    return x.out, x.last_state


def ssd_summary(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    dt_bias: Tensor | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
) -> tuple[Tensor, Tensor]:
    """What a part of a sequence does to the state of `ssd_scan`: (state after it, decay over it). No gradients.

    Formula:
        state = the last state of `ssd_scan`        decay = exp(Σ_t δ_t A)
        From another state S before the part, the state after it is decay · S more.

    Shapes:
        x, dt, A, B, dt_bias, initial_state, cu_seqlens: as in `ssd_scan`
        state: (B or sequences, H, P, N), fp32
        decay: (B or sequences, H), fp32

    Parameters:
        dt_softplus, dt_limit: as in `ssd_scan`

    For a sequence in parts, on several GPUs or in several calls: each part's summary from zeros, then the states before them in
    order.

    Edge cases:
        Without tokens the state is the initial state, or zeros, and the decay 1.

    Example:
        >>> ones = torch.ones(1, 2, 1, 8)
        >>> state, decay = gdn_cuda.ssd_summary(ones, ones[..., 0], -torch.ones(1), ones)
        >>> state[0, 0, 0, 0], decay
        (tensor(1.3679), tensor([[0.1353]]))
    """
    call = Call(
        x=x,
        dt=dt,
        A=A,
        B=B,
        dt_bias=dt_bias,
        initial_state=initial_state,
        cu_seqlens=cu_seqlens,
        dt_softplus=dt_softplus,
        dt_lowest=float(dt_limit[0]),
        dt_highest=float(dt_limit[1]),
    )
    _unpacked(call)
    last, decay = _call(_summary_schema, expanded_summary, call)
    return last, decay


typical_call(
    ssd_scan,
    {"B": 1, "T": 8192, "H": 128, "P": 64, "G": 8, "N": 128},
    "x: B T H P; dt: B T H; A, dt_bias, D: H f32; B, C: B T G N; dt_softplus = true",
)
typical_call(
    ssd_summary,
    {"B": 1, "T": 8192, "H": 128, "P": 64, "G": 8, "N": 128},
    "x: B T H P; dt: B T H; A, dt_bias: H f32; B: B T G N; dt_softplus = true",
)
