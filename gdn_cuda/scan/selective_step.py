"""One or several tokens of a selective scan: the operator, its reference, examples, benchmark and sanitizer calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..gdn.convert_states import convert_states
from ..gdn.state_codes import encode, read_states, store_states
from ..operators import operator, verify
from ..operators.calls import typical_call
from ..operators.examples import Arguments, example
from ..operators.examples import draw as drawn
from ..operators.hostile import hostile_indices
from ..operators.measure import Absent, Case, Inputs, Outcome, Peer, Work, bench, draw, import_peer, normal, sanitizes, size
from ..operators.schema import refuse
from ..operators.state_slots import (
    check_slots,
    check_width,
    is_slot,
    starting_slots,
    tokens_of,
    tree_tokens,
)
from .discretizations import SOFTPLUS_THRESHOLD, TRANSITIONS

_NAME = "selective_state_update"
_RESETS_BELOW = -104.0  # δA below which the decay is 0 in fp32


# ---- The reference: the literal recurrence, in fp64 whatever the inputs


def _transition(x: Any, complex_state: bool) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    names = [name for name in TRANSITIONS if not (complex_state and name in ("s7", "rglru"))]
    if x.discretization not in names:
        refuse(_NAME, "discretization", f"one of {', '.join(map(repr, names))}", repr(x.discretization))
    return TRANSITIONS[x.discretization]


class _Values(NamedTuple):
    """A call's tensors in fp64: those of tokens are (B, T, heads, dim), B and C (B, T, heads, dim, N), with B = 1 if they are
    packed; A is (heads, dim, N), D (heads, dim)."""

    u: Tensor
    delta: Tensor
    delta_a: Tensor
    B: Tensor
    C: Tensor
    z: Tensor | None
    A: Tensor
    D: Tensor | None

    def part(self, sequences: slice, tokens: slice) -> _Values:
        by_token = ("u", "delta", "delta_a", "B", "C") if self.z is None else ("u", "delta", "delta_a", "B", "C", "z")
        return self._replace(**{name: getattr(self, name)[sequences, tokens] for name in by_token})


def _values(x: Any) -> _Values:
    has_heads, many = x.state.dim() == 4, x.x.dim() == x.state.dim()
    heads, dim, N = x.state.shape[1:] if has_heads else (1, *x.state.shape[1:])
    wide = torch.complex128 if x.state.is_complex() else torch.float64

    def with_tokens(y: Tensor) -> Tensor:
        return y if many else y.unsqueeze(0 if x.cu_seqlens is not None else 1)

    def by_row(y: Tensor) -> Tensor:
        y = with_tokens(y).to(torch.float64)
        return y.unsqueeze(2) if not has_heads else y if y.dim() == 4 else y.unsqueeze(-1).expand(*y.shape, dim)

    def by_column(y: Tensor) -> Tensor:
        y = with_tokens(y).to(wide)
        y = y if y.dim() == 4 else y.unsqueeze(2)
        return y.repeat_interleave(heads * dim // y.shape[2], 2).unflatten(2, (heads, dim))

    def per_row(y: Tensor) -> Tensor:
        y = y.to(torch.float64)
        return y.unsqueeze(-1).expand(heads, dim) if has_heads and y.dim() == 1 else y.reshape(heads, dim)

    A = x.A.to(wide)
    delta = by_row(x.dt) if x.dt_bias is None else by_row(x.dt) + per_row(x.dt_bias)
    if x.dt_softplus:
        delta = F.softplus(delta, threshold=SOFTPLUS_THRESHOLD)
    return _Values(
        u=by_row(x.x),
        delta=delta,
        delta_a=delta if x.delta_a is None else by_row(x.delta_a),
        B=by_column(x.B),
        C=by_column(x.C),
        z=None if x.z is None else by_row(x.z),
        A=A[:, None, None].expand(heads, dim, N) if A.dim() == 1 else A.reshape(heads, dim, N),
        D=None if x.D is None else per_row(x.D),
    )


def _recurrence(x: Any, values: _Values, start: Tensor) -> tuple[Tensor, Tensor]:
    """From states (B, heads, dim, N) the outputs (B, T, heads, dim) and the states after each token (B, T, heads, dim, N)."""
    transition = _transition(x, start.is_complex())
    u, delta, delta_a, B, C, z, A, D = values
    one_value = x.A.dim() == 1 or x.A.shape[-1] == 1 or x.A.stride(-1) == 0
    erases = one_value and x.discretization in ("mamba", "dirac") and not start.is_complex()
    state, outputs, states = start, [torch.zeros_like(u[:, :0])], [start.unsqueeze(1)[:, :0]]
    for t in range(u.shape[1]):
        decay, gain = transition(delta[:, t, ..., None], delta_a[:, t, ..., None], A)
        drive = u[:, t, ..., None] if x.discretization == "rglru" else B[:, t] * u[:, t, ..., None]
        state = decay * state
        if erases:
            state = torch.where(delta_a[:, t, ..., None] * A < _RESETS_BELOW, 0, state)
        state = state + gain * drive
        y = (C[:, t] * state).sum(-1)
        y = 2 * y.real if y.is_complex() else y
        outputs.append((y if D is None else y + D * u[:, t]).unsqueeze(1))
        states.append(state.unsqueeze(1))
    out = torch.cat(outputs, 1)
    return out if z is None else out * F.silu(z), torch.cat(states, 1)


def _packed(x: Any, values: _Values, start: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The same for packed sequences: (1, tokens, heads, dim), zero after the last sequence, and states of all their tokens."""
    outputs, states, first = [values.u[:, :0]], [start[:, None][:1, :0]], 0
    for n, length in enumerate(lengths.tolist()):
        tokens = slice(first, first + length)
        out, after = _recurrence(x, values.part(slice(None), tokens), start[n : n + 1])
        outputs.append(out)
        states.append(after)
        first += length
    outputs.append(torch.zeros_like(values.u[:, first:]))
    return torch.cat(outputs, 1), torch.cat(states, 1)


def _tree(x: Any, values: _Values, start: Tensor, lengths: Tensor, active: Tensor) -> Tensor:
    """The output of a tree of tokens, each from the state after its parent. Stores the state after each token."""
    out, firsts = torch.full_like(values.u, torch.nan), lengths.cumsum(0) - lengths
    if x.cu_seqlens is not None:
        out[:, int(lengths.sum()) :] = 0
    for n in torch.where(active)[0].tolist():
        row, state = int(x.step_slots[n]), start[n : n + 1]
        for t, parent, is_latest in tree_tokens(x.parents[n], int(lengths[n]), row >= 0):
            if not is_latest:  # a stored state was rounded
                state = start[n : n + 1]
                if parent >= 0:
                    state = x.step_states[row, parent].to(start.dtype).reshape(state.shape)
            place = (n, t) if x.cu_seqlens is None else (0, int(firsts[n]) + t)
            found, after = _recurrence(x, values.part(*(slice(i, i + 1) for i in place)), state)
            out[place], state = found[0, 0], after[:, 0]
            if row >= 0:
                x.step_states[row, t] = state.to(x.step_states.dtype).reshape(x.step_states.shape[2:])
    return out


def _reference(x: Any) -> Tensor:
    """States are rounded when stored, not between the tokens of a call."""
    pool = x.state if x.state.dim() == 4 else x.state.unsqueeze(1)
    values, is_packed = _values(x), x.cu_seqlens is not None
    padded = torch.full(values.u.shape[:1], values.u.shape[1])
    lengths = x.cu_seqlens.to(torch.int64).diff() if is_packed else padded
    indices = torch.arange(len(lengths)) if x.state_batch_indices is None else x.state_batch_indices.to(torch.int64)
    check_slots(_NAME, "state_batch_indices", indices, pool.shape[0], x.null_slot)
    slots = starting_slots(_NAME, x, indices)
    written = indices if x.step_slots is None and indices.dim() == 2 else slots
    if x.write_indices is not None:
        written = x.write_indices.to(torch.int64)
        check_slots(_NAME, "write_indices", written, pool.shape[0], x.null_slot)
    if x.step_slots is not None:
        check_slots(_NAME, "step_slots", x.step_slots, x.step_states.shape[0])
        check_width(_NAME, "step_states", lengths, x.step_states.shape[1])
    elif written.dim() == 2:
        check_width(_NAME, "state_batch_indices" if x.write_indices is None else "write_indices", lengths, written.shape[1])
    active = is_slot(slots, x.null_slot)
    start = read_states(pool, x.state_scales, slots, active, values.A.dtype).to(values.A.dtype)
    if x.parents is not None:
        out = _tree(x, values, start, lengths, active)
    else:
        out, states = _packed(x, values, start, lengths) if is_packed else _recurrence(x, values, start)
        _store(x, pool, start, states.flatten(0, 1), lengths, active, written)
    running = active.repeat_interleave(lengths)
    running = torch.cat([running, running.new_ones(out.shape[:2].numel() - len(running))])  # after the last sequence
    out = torch.where(running.view(*out.shape[:2], 1, 1), out, 0)
    return out.reshape(x.x.shape).to(x.x.dtype)


def _store(x: Any, pool: Tensor, start: Tensor, states: Tensor, lengths: Tensor, active: Tensor, written: Tensor) -> None:
    """Stores what a call keeps of the states after all tokens of its sequences."""
    sequence, token, row = tokens_of(lengths, active)
    if x.step_slots is not None:
        rows = x.step_slots[sequence].to(torch.int64)
        kept = is_slot(rows)
        after = states[row[kept]].reshape(-1, *x.state.shape[1:])
        x.step_states[rows[kept], token[kept]] = after.to(x.step_states.dtype)
    elif written.dim() == 2:
        targets = written[sequence, token]
        kept = is_slot(targets, x.null_slot)
        pool[targets[kept]] = states[row[kept]].to(pool.dtype)
    if written.dim() == 2 or not x.update_state or (x.step_slots is not None and x.write_indices is None):
        return
    has_tokens = lengths > 0
    last = torch.zeros_like(start)
    last[has_tokens] = states[(lengths.cumsum(0) - 1)[has_tokens]]
    last = torch.where(has_tokens[:, None, None, None], last, start)
    kept = active & is_slot(written, x.null_slot)
    store_states(pool, x.state_scales, (written[kept],), last[kept])


@operator(reference=_reference, out="x")
def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    delta_a: Tensor | None = None,
    state_batch_indices: Tensor | None = None,
    discretization: str = "mamba",
    *,
    cu_seqlens: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    null_slot: int | None = None,
    step_states: Tensor | None = None,
    step_slots: Tensor | None = None,
    parents: Tensor | None = None,
    write_indices: Tensor | None = None,
    update_state: bool = True,
    state_scales: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """One or several tokens of a selective scan, with states updated in place: the serving step. Returns the output.

    Formula:
        δ = dt + dt_bias, then softplus(δ) if dt_softplus;  δ_A = delta_a, or δ
        state ← Ā state + B̄ B x        out = (Σ_n C state + D x) · silu(z),  with 2·Re Σ for complex states
        Ā and B̄ of δ_A, δ and A by `discretization`, as in a selective scan (docs/scan.md)

    Shapes:
        state: (B, dim, N), or with heads (B, heads, dim, N); fp32, bf16, fp16 or complex64, N from 1 to 256: each state
          contiguous, any stride between them. With state_batch_indices B is the number of slots. int8 (B, heads, dim, N), with
          state_scales: one token of each sequence, N 64, 128 or 256, one value of A for all of them
        state_scales: (B, heads, dim, N / 32), fp32, each state contiguous, if states are int8 (`convert_states`); written too
        x, dt, z, delta_a, out: (B, dim) or (B, T, dim), with heads (B, heads, dim) or (B, T, heads, dim); fp32, bf16 or fp16,
          any strides; out as x. With heads dt and delta_a may be (B, heads) or (B, T, heads), one step per head. Packed, with
          cu_seqlens, the tokens of all sequences take the place of B
        A: (dim, N), with heads (heads, dim, N) or (heads,); fp32, complex64 for a complex state
        D, dt_bias: (dim,), with heads (heads, dim) or (heads,); fp32, bf16 or fp16
        B, C: (B, N) or (B, G, N), with tokens (B, T, N) or (B, T, G, N); fp32, bf16 or fp16, complex64 for a complex state.
          A group is shared by heads / G heads, without heads by dim / G channels
        state_batch_indices: (B,), or (B, T) for speculative verify; int32 or int64; None: sequence n has state n
        num_accepted_tokens, step_slots: (B,), int32 or int64
        step_states: (rows, S, [heads,] dim, N), the state's dtype
        write_indices: (B,), where state_batch_indices is (B, T) and no step_states are given (B, T); int32 or int64
        parents: (B, T), int32 or int64, T up to 64
        cu_seqlens: (B + 1,), int32 or int64: offsets of packed sequences, as in `recurrent_forward`

    Parameters:
        dt_softplus: whether δ is the softplus of dt + dt_bias
        discretization: as in `selective_scan`
        null_slot: a slot that means padding, as negative ones do; None: only negative ones do
        update_state: False: the state is only read

    Ranks determine the layout: the state has 3 dimensions, or 4 with heads; x has one dimension less than the state, or as many
    with tokens; B and C, each by itself, have groups if they have a dimension more than (B, [T,] N).

    Slots, several tokens and the states stored after them are as in `fused_decode`: sequence n reads slot
    `state_batch_indices[n]` and writes it back, or slot `write_indices[n]` instead. With indices (B, T) it reads slot
    state_batch_indices[n, max(accepted, 1) − 1] and writes the state after token t to slot state_batch_indices[n, t], or
    write_indices[n, t] instead. With `step_states` and `step_slots` the state after token t goes to
    step_states[step_slots[n], t], and a slot is written only with `write_indices`, the last state. With `parents` too, the
    tokens are a tree: token t continues from the state after token parents[n, t], an earlier token, or from the slot if that is
    −1.

    A, dt, dt_bias and D have one value per head in Mamba-2, as tensors without the other dimensions or expanded over them. If A
    is the same for all of N, Ā is computed once per row; for 64, 128 or 256 states by a kernel of its own.

    An int8 state is scale · code, with a scale for every 32 contiguous columns of a row (`convert_states`). The call computes
    in fp32, and rounds the state after the token to nearest with new scales: Mamba-2's step ("mamba" or "dirac") from and to
    slots, with `write_indices` and `update_state`, without the states of several tokens.

    Edge cases:
        A slot to read that is negative or equal to `null_slot` skips its sequence: zero output, no slot touched. A slot to
        write that is negative or equal to `null_slot` is not written.
        A slot past the pool touches nothing: on CPU tensors it raises IndexError; on a GPU the output of the sequence is NaN.
        Two sequences on one slot race, also if one only reads it and the other writes it.
        A sequence of no tokens writes the state it starts from to its slot in write_indices. Packed tokens after the last
        sequence have the output 0.
        In a tree a token without a state, because its parent has none or is no earlier token, has an output of NaN, as in
        `fused_decode`; branches start from stored states, which were rounded.
        An int8 state saturates where it is infinite, is 0 where its scale is 0, and a NaN of it spreads to its 32 columns.
        "rglru" ignores B, "s7" ignores A; both are real, and refuse delta_a.
        Ā = 0 does not erase an infinity or NaN in the state: 0·∞ is NaN. But with "mamba" and "dirac" it does where A has one
        value for all of N, as a tensor (heads,) or expanded: δ_A A below −104 is an exact reset, as in `ssd_scan`.

    Example:
        >>> state, x, dt = torch.zeros(2, 4, 16), torch.ones(2, 4), torch.full((2, 4), 0.5)
        >>> A, B, C = -torch.ones(4, 16), torch.ones(2, 16), torch.ones(2, 16)
        >>> gdn_cuda.selective_state_update(state, x, dt, A, B, C)[0]  # 16 · δ
        tensor([8., 8., 8., 8.])
        >>> gdn_cuda.selective_state_update(state, x, dt, A, B, C)[0]  # 16 · (e^−δ δ + δ)
        tensor([12.8522, 12.8522, 12.8522, 12.8522])
    """


# ---- Examples

_HEADS, _DIM, _STATES, _GROUPS = 4, 6, 16, 2


def _inputs(
    B: int,
    T: int | None,
    seed: int,
    heads: bool = False,
    groups: bool = False,
    state: torch.dtype = torch.float32,
    io: torch.dtype = torch.float32,
    slots: int = 0,
    N: int = _STATES,
) -> Arguments:
    """Stable systems, with step sizes of both signs before the softplus; T = None: one token, without a dimension for it."""
    rows = (_HEADS, _DIM) if heads else (_DIM,)
    lead = (B,) if T is None else (B, T)
    column_shape = (*lead, _GROUPS, N) if groups else (*lead, N)
    wide = state if state.is_complex else io
    A = drawn(*rows, N, seed=seed + 1, dtype=torch.complex64 if state.is_complex else torch.float32)
    return {
        "state": drawn(max(slots, B), *rows, N, seed=seed, dtype=state),
        "x": drawn(*lead, *rows, seed=seed + 2, dtype=io),
        "dt": drawn(*lead, *rows, seed=seed + 3, dtype=io),
        "A": torch.complex(-A.real.abs(), 5 * A.imag) if A.is_complex() else -A.abs(),
        "B": drawn(*column_shape, seed=seed + 4, dtype=wide),
        "C": drawn(*column_shape, seed=seed + 5, dtype=wide),
        "D": drawn(*rows, seed=seed + 6, dtype=torch.float32),
        "z": drawn(*lead, *rows, seed=seed + 7, dtype=io),
        "dt_bias": drawn(*rows, seed=seed + 8, dtype=torch.float32),
        "dt_softplus": True,
    }


@example(selective_state_update)
def _mamba(B: int, T: int, seed: int) -> Arguments:
    return _inputs(B, None, seed, io=torch.bfloat16)


@example(selective_state_update, "selective_state_update-tied")
def _mamba_2(B: int, T: int, seed: int) -> Arguments:
    """As in Mamba-2: one value per head of A, dt, dt_bias and D."""
    x = _inputs(B, None, seed, heads=True, groups=True, state=torch.bfloat16, slots=B + 1)
    for name in ("dt", "dt_bias", "D"):
        x[name] = x[name][..., :1].expand_as(x[name])
    x["A"] = x["A"][:, :1, :1].expand_as(x["A"])
    slots = torch.arange(B).flip(0) + 1
    slots[1:2] = -1  # a padding row
    return x | {"state_batch_indices": slots}


@example(selective_state_update, "selective_state_update-per-head")
def _per_head(B: int, T: int, seed: int) -> Arguments:
    """As engines call it: one value per head, from a slot to another one, with a slot that means padding."""
    x = _inputs(B, None, seed, heads=True, groups=True, state=torch.float16, slots=2 * B + 1)
    x |= {name: x[name][..., 0].contiguous() for name in ("dt", "dt_bias", "D")} | {"A": x["A"][:, 0, 0].contiguous()}
    slots = torch.arange(B)
    return x | {"state_batch_indices": 2 * slots, "write_indices": 2 * slots + 1, "null_slot": 2}


@example(selective_state_update, "selective_state_update-int8")
def _coded(B: int, T: int, seed: int) -> Arguments:
    """Mamba-2 on states in 8 bits, from a slot to another one."""
    x = _inputs(B, None, seed, heads=True, groups=True, slots=2 * B + 1, N=64)
    x |= {name: x[name][..., 0].contiguous() for name in ("dt", "dt_bias", "D")} | {"A": x["A"][:, 0, 0].contiguous()}
    x["state"], x["state_scales"] = encode(x["state"])
    slots = torch.arange(B)
    return x | {"state_batch_indices": 2 * slots, "write_indices": 2 * slots + 1, "null_slot": 2}


@example(selective_state_update, "selective_state_update-read-only")
def _read_only(B: int, T: int, seed: int) -> Arguments:
    return _inputs(B, None, seed, heads=True) | {"update_state": False}


@example(selective_state_update, "selective_state_update-verify")
def _verify(B: int, T: int, seed: int) -> Arguments:
    width = max(T, 1)
    x = _inputs(B, T, seed, heads=True, slots=B * width + 1, N=7)
    return x | verify.slots_and_counts(B, width, "state_batch_indices")


@example(selective_state_update, "selective_state_update-step-states")
def _step_states(B: int, T: int, seed: int) -> Arguments:
    x = _inputs(B, T, seed, groups=True, state=torch.float16, slots=B + 2)
    steps = drawn(B + 1, T + 1, _DIM, _STATES, seed=seed + 9, dtype=torch.float16)
    return x | {"step_states": steps, "step_slots": torch.arange(B).flip(0), "delta_a": 0.5 * x["dt"].abs()}


@example(selective_state_update, "selective_state_update-steps-and-last")
def _steps_and_last(B: int, T: int, seed: int) -> Arguments:
    x = _step_states(B, T, seed)
    return x | {"state_batch_indices": torch.arange(B), "write_indices": torch.arange(B).flip(0) + 2}


@example(selective_state_update, "selective_state_update-tree")
def _tree_of_tokens(B: int, T: int, seed: int) -> Arguments:
    tokens = min(T, 64)
    picked = torch.randint(0, 2**20, (B, tokens), generator=torch.Generator().manual_seed(seed))
    return _step_states(B, tokens, seed) | {"parents": (picked % (torch.arange(tokens) + 1) - 1).int()}


@example(selective_state_update, "selective_state_update-packed")
def _packed_verify(B: int, T: int, seed: int) -> Arguments:
    """Sequences of different numbers of tokens, some of none."""
    lengths, width = torch.arange(B) % (T + 1), max(T, 1)
    x = _inputs(max(int(lengths.sum()), 1), None, seed, heads=True, groups=True, slots=B * width + 1)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int()
    return x | verify.slots_and_counts(B, width, "state_batch_indices") | {"cu_seqlens": offsets}


@example(selective_state_update, "selective_state_update-complex")
def _complex(B: int, T: int, seed: int) -> Arguments:
    return _inputs(B, T, seed, state=torch.complex64) | {"discretization": "zoh", "z": None}


# Where `python -m gdn_cuda explain selective_state_update B=64` starts: Mamba-1, and with heads Mamba-2.
typical_call(
    selective_state_update,
    {"B": 64, "dim": 5120, "N": 16, "heads": 128, "P": 64, "S": 128, "G": 1},
    "state: B dim N f32; x, dt, z: B dim; A: dim N f32; B, C: B N; D, dt_bias: dim f32; dt_softplus = true",
    "state: B heads P S f32; x, dt: B heads P; A: heads P S f32; B, C: B G S; D, dt_bias: heads P f32; dt_softplus = true",
)


# ---- Benchmarks


def _mamba_ssm(x: Inputs) -> Peer:
    """Its Triton kernel."""
    step = import_peer("mamba_ssm.ops.triton.selective_state_update", "selective_state_update")
    if x["x"].dim() == x["state"].dim():
        raise Absent("it takes one token a call")
    if "state_scales" in x:
        raise Absent("it has no int8 states")
    given = {name: y for name, y in x.items() if name not in ("out", "state")}
    state = x["state"].clone()
    return Peer(lambda: step(state, **given), lambda returned: (returned, state))


_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int8: "int8"}


@bench({"mamba-ssm": _mamba_ssm}, operator="selective_state_update")
def _measured(device: str) -> Iterator[Case]:
    on_gpu = device == "cuda"
    for dim, state in product((5120, 8192) if on_gpu else (512,), (torch.float32, torch.bfloat16)):
        for batch in (1, 16, 64, 256, 1024) if on_gpu else (1, 4):
            kind = f"{_NAMES[state]} state"
            yield Case(f"B={batch} dim={dim} N=16 {kind}", partial(step_work, device, batch, (dim,), 16, state), kind=kind)
    for heads, state in product((64, 128) if on_gpu else (8,), _NAMES):
        for batch in (1, 16, 64, 256) if on_gpu else (1, 4):
            kind = f"{_NAMES[state]} state"
            work = partial(step_work, device, batch, (heads, 64), 128, state)
            yield Case(f"B={batch} {heads}×64 N=128 {kind}", work, kind=kind)
    for batch, tokens in product((1, 64) if on_gpu else (1,), (2, 4, 8)):
        shape = f"B={batch} T={tokens} 128×64 N=128 fp32 state, every state kept"
        yield Case(shape, partial(step_work, device, batch, (128, 64), 128, torch.float32, tokens), kind="fp32 state")


def step_work(device: str, batch: int, rows: tuple[int, ...], N: int, state: torch.dtype, tokens: int | None = None) -> Work:
    lead = (batch,) if tokens is None else (batch, tokens)
    states, scales = normal(batch, *rows, N, device=device, dtype=torch.float32 if state == torch.int8 else state), None
    if state == torch.int8:
        states, scales = convert_states(states, state)
    x: Inputs = {
        "state": states,
        "x": normal(*lead, *rows, device=device),
        "z": normal(*lead, *rows, device=device),
        "B": normal(*lead, N, device=device),
        "C": normal(*lead, N, device=device),
        "dt_softplus": True,
        "out": torch.empty(*lead, *rows, device=device, dtype=torch.bfloat16),
    }
    fp32 = partial(normal, device=device, dtype=torch.float32)
    if len(rows) == 1:
        x |= {"dt": normal(*lead, *rows, device=device), "A": -fp32(*rows, N).abs(), "D": fp32(*rows), "dt_bias": fp32(*rows)}
    else:  # Mamba-2: one value per head
        heads = rows[:1]
        x |= {
            "dt": normal(*lead, *heads, 1, device=device).expand(*lead, *rows),
            "A": (-fp32(*heads, 1, 1).abs()).expand(*rows, N),
            "D": fp32(*heads, 1).expand(*rows),
            "dt_bias": fp32(*heads, 1).expand(*rows),
            "B": normal(*lead, 1, N, device=device),
            "C": normal(*lead, 1, N, device=device),
        }
    if scales is not None:
        x["state_scales"] = scales
    written = x["state"]
    if tokens is not None:
        written = x["step_states"] = torch.empty(batch, tokens, *rows, N, device=device, dtype=state)
        x["step_slots"] = torch.arange(batch, device=device)

    def outcome(inputs: Inputs) -> Outcome:
        pools = {name: inputs[name].clone() for name in ("state", "state_scales") if name in inputs}
        return selective_state_update(**inputs | pools | {"out": None}), pools["state"]

    moved = 0 if scales is None else 2 * size(scales)
    moved += (
        size(x["state"], written, x["x"], x["z"], x["out"], x["B"], x["C"]) + 2 * batch * (tokens or 1) * x["dt"][0].numel()
    )
    return Work(partial(selective_state_update, **x), moved, 0, x, outcome, x)


# ---- compute-sanitizer


@sanitizes("selective_step", "selective_step_direct")
def _sanitized() -> None:
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.complex64)
    for state, N, (name, tokens) in product(dtypes, (7, 16, 200), (("mamba", None), ("zoh", 6), ("bilinear", None))):
        _sanitized_call(state, N, name, tokens, batch=5)
    _sanitized_call(torch.float32, 16, "rglru", None, batch=3000)  # several sequences a block
    _sanitized_call(torch.bfloat16, 128, "s7", None, batch=3000)
    for batch, tokens, N in ((5, None, 16), (5, 6, 7), (3000, None, 128)):
        _sanitized_call(torch.float16, N, "mamba", tokens, batch, write_indices=hostile_indices(batch).flip(0), null_slot=3)
        _sanitized_call(torch.bfloat16, N, "mamba", tokens, batch, update_state=False)
    written = hostile_indices(30).flip(0).view(5, 6)
    _sanitized_call(torch.float32, 16, "zoh", 6, 5, **verify.hostile(5, 6, "state_batch_indices"), write_indices=written)


@sanitizes("selective_step_tokens")
def _sanitized_tokens() -> None:
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.complex64)
    hostile, far = hostile_indices(), torch.tensor([[-1, 0, 2**40, -(2**63), 1, 9]], device="cuda").expand(5, 6)
    for state, N in product(dtypes, (7, 16, 200)):
        steps = {"step_states": draw(4, 6, 3, 37, N, dtype=state), "step_slots": hostile}
        _sanitized_call(state, N, "mamba", 6, 5, **steps, write_indices=hostile.flip(0))
        _sanitized_call(state, N, "zoh", 6, 5, **steps, parents=far)
        for offsets in ([0, 3, 3, 4, 20, 29], [-(2**63), 2**40, 3, 2**63 - 1, -5, 17]):
            packed = {"cu_seqlens": torch.tensor(offsets, device="cuda")}
            _sanitized_call(state, N, "mamba", None, 30, **packed, **steps, state_batch_indices=hostile)
            _sanitized_call(state, N, "bilinear", None, 30, **packed, **verify.hostile(5, 4, "state_batch_indices"))


@sanitizes("selective_step_tied")
def _sanitized_tied() -> None:
    for state, N, (batch, heads) in product(
        (torch.float32, torch.bfloat16, torch.float16, torch.int8), (64, 128, 256), ((30, 32), (5, 96))
    ):
        pool, scales = convert_states(draw(8, heads, 37, N), state)
        slots, written = hostile_indices(batch), hostile_indices(batch).flip(0)
        for more in ({"write_indices": written, "null_slot": 3}, {"update_state": False}, {}):
            selective_state_update(
                pool,
                draw(batch, heads, 37, dtype=torch.bfloat16),
                draw(batch, heads).abs(),
                -draw(heads).abs(),
                draw(batch, 2, N, dtype=torch.bfloat16),
                draw(batch, 2, N + 1)[..., :N],
                draw(heads),
                draw(batch, heads, 37),
                state_batch_indices=slots,
                state_scales=scales,
                **more,
            )


@sanitizes("selective_step_codes", variables={"GDN_DECODE_CODES": "1"})
def _sanitized_codes() -> None:
    for (batch, heads, dim), dtype in product(((30, 32, 64), (5, 96, 16), (3, 2, 256)), (torch.bfloat16, torch.float16)):
        pool, scales = convert_states(draw(8, heads, dim, 128), torch.int8)
        B, C = (draw(batch, 2, 128, dtype=dtype) for _ in range(2))
        y, z = (draw(batch, heads, dim, dtype=dtype) for _ in range(2))
        dt, A, D = draw(batch, heads).abs(), -draw(heads).abs(), draw(heads)
        for slots in (hostile_indices(batch), None)[: 2 if batch <= 8 else 1]:
            more = {"state_batch_indices": slots, "null_slot": 3} if slots is not None else {}
            selective_state_update(pool, y, dt, A, B, C, D, z, state_scales=scales, **more)


def _sanitized_call(state: torch.dtype, N: int, discretization: str, tokens: int | None, batch: int, **given: Any) -> None:
    lead, wide = (batch,) if tokens is None else (batch, tokens), torch.complex64 if state.is_complex else torch.float32
    A = draw(3, 37, N, dtype=wide)
    slots = hostile_indices(batch)
    steps = {} if given or tokens is None else {"step_states": draw(4, tokens, 3, 37, N, dtype=state), "step_slots": slots}
    selective_state_update(
        draw(8, 3, 37, N, dtype=state),
        draw(*lead, 3, 37, dtype=torch.bfloat16),
        draw(*lead, 3, 37).abs(),
        -A if state.is_complex else A.abs() if discretization == "rglru" else -A.abs(),
        draw(*lead, 3, N, dtype=wide),
        draw(*lead, N, dtype=wide),
        draw(3, 37),
        draw(*lead, 3, 37),
        discretization=discretization,
        **{"state_batch_indices": slots} | steps | given,
    )
