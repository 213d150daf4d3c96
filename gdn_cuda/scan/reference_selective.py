"""The selective scan in plain torch, forward and backward: what CPU tensors run.

Everything is computed in fp64, token by token, all channels and states at once. Intermediate tensors (token, batch, channel, n)
have the tokens of one chunk; forward stores the states before each chunk for backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..operators.dtypes import from_pairs, wide, wide_dtype
from ..operators.layout import channels_are_last, empty_rows
from .discretizations import GRADIENTS, SOFTPLUS_THRESHOLD, TRANSITIONS

STATE_CHUNK = 64
_conj = torch.conj_physical  # operators below autograd may ignore the conjugate bit that torch.conj sets


def results_are_channels_last(x: Any) -> bool:
    """Whether most tensors of u's shape are transposed views of (B, L, D); u decides a tie. A kernel takes one layout."""
    rows = (x.u, x.delta, x.z, x.delta_a, getattr(x, "grad_out", None))
    given = [channels_are_last(each) for each in rows if each is not None]
    return given[0] if 2 * sum(given) == len(given) else 2 * sum(given) > len(given)


def sequence_count(x: Any) -> Any:
    return x.u.shape[0] if x.cu_seqlens is None else x.cu_seqlens.shape[0] - 1


def chunk_count(x: Any) -> Any:
    """The index of chunks; for packed sequences, the most that there can be."""
    batch, _, length = x.u.shape
    if x.cu_seqlens is None:
        return batch * ((length + STATE_CHUNK - 1) // STATE_CHUNK)
    return length // STATE_CHUNK + sequence_count(x)


# ---- Sequences and their chunks


@dataclass(frozen=True)
class _Sequence:
    """A packed sequence, or padded ones that are computed together."""

    batch: slice  # rows of u
    rows: slice  # rows of initial and last states
    start: int
    end: int
    first_chunk: int | None  # None: padded

    def chunks(self) -> list[tuple[int, slice]]:
        starts = range(self.start, self.end, STATE_CHUNK)
        return [(c, slice(start, min(start + STATE_CHUNK, self.end))) for c, start in enumerate(starts)]

    def kept(self, states: Tensor, chunk: int) -> Tensor:
        """The view of the states before a chunk."""
        if self.first_chunk is not None:
            return states[self.first_chunk + chunk :][:1]
        each = -(-self.end // STATE_CHUNK)
        return states.view(states.shape[0] // each, each, *states.shape[1:])[self.rows, chunk]

    def part(self, x: Any) -> Any:
        """The arguments, or the gradients, restricted to these rows of the batch."""

        def select(argument: str, value: Any) -> Any:
            has_batch = argument in _WITH_BATCH or (argument in ("B", "C") and value.dim() > 2)
            return value[self.batch] if has_batch and value is not None else value

        return SimpleNamespace(**{argument: select(argument, value) for argument, value in vars(x).items()})


_WITH_BATCH = ("u", "delta", "z", "delta_a", "grad_out")
_BLOCK = 1 << 18  # states of an intermediate tensor, which then stays in a CPU's caches


def _sequences(x: Any) -> Iterator[_Sequence]:
    batch, dim, length = x.u.shape
    if x.cu_seqlens is None:
        at_once = max(1, _BLOCK // max(1, dim * x.A.shape[1] * min(length, STATE_CHUNK)))
        for first in range(0, batch, at_once):
            rows = slice(first, min(first + at_once, batch))
            yield _Sequence(rows, rows, 0, length, None)
        return
    first_chunk = 0
    for row, (start, end) in enumerate(pairwise(x.cu_seqlens.tolist())):
        yield _Sequence(slice(0, 1), slice(row, row + 1), start, end, first_chunk)
        first_chunk += -(-(end - start) // STATE_CHUNK)


# ---- One chunk


def _tokens_first(rows: Tensor, tokens: slice) -> Tensor:
    return rows[:, :, tokens].permute(2, 0, 1).to(torch.float64, memory_format=torch.contiguous_format)


def _sum_of_real(x: Tensor, like: Tensor) -> Tensor:
    return (x if like.is_complex() or not x.is_complex() else x.real).sum_to_size(like.shape)


class _Coefficients:
    """B or C: (D, N), or (batch, [group,] N, L)."""

    def __init__(self, given: Tensor, is_complex: bool):
        self.given, self.varies = given, given.dim() > 2
        self.in_pairs = self.varies and is_complex and not given.is_complex()
        if not self.varies:
            self.constant = wide(given)

    def at(self, tokens: slice) -> Tensor:
        """(D, N), or (token, batch, group, N)."""
        if not self.varies:
            return self.constant
        grouped = self.given if self.given.dim() == 4 else self.given[:, None]
        if not self.in_pairs:
            return wide(grouped[..., tokens].permute(3, 0, 1, 2)).contiguous()
        pairs = grouped[..., 2 * tokens.start : 2 * tokens.stop].unflatten(-1, (-1, 2))
        return from_pairs(pairs.permute(3, 0, 1, 2, 4).to(torch.float64))

    def add_gradient(self, into: Tensor, tokens: slice, grad: Tensor) -> None:
        if not self.varies:
            into += grad
            return
        grouped = into if into.dim() == 4 else into[:, None]
        grad = grad.permute(1, 2, 3, 0)
        if self.in_pairs:
            grouped[..., 2 * tokens.start : 2 * tokens.stop] = torch.view_as_real(grad).flatten(-2)
        else:
            grouped[..., tokens] = grad


def _times(rows: Tensor, by: Tensor) -> Tensor:
    """(token, batch, channel, n or 1) times B or C."""
    if by.dim() == 2:
        return rows * by
    return (rows.unflatten(2, (by.shape[2], -1)) * by.unsqueeze(3)).flatten(2, 3)


def _dot(states: Tensor, by: Tensor) -> Tensor:
    """Σ over n, (token, batch, channel)."""
    if by.dim() == 2:
        return (states * by).sum(-1)
    return (states.unflatten(2, (by.shape[2], -1)) @ by.unsqueeze(-1)).squeeze(-1).flatten(2, 3)


def _over_channels(rows: Tensor, states: Tensor, like: Tensor) -> Tensor:
    """Σ rows · states over the dimensions that `like` (B or C) does not have; rows: (token, batch, channel, n or 1)."""
    if like.dim() == 2:
        return (rows * states).sum((0, 1))
    groups = like.shape[2]
    if rows.shape[-1] == 1:
        grouped = rows.squeeze(-1).unflatten(2, (groups, -1)).unsqueeze(3).to(states.dtype)
        return (grouped @ states.unflatten(2, (groups, -1))).squeeze(3)
    return (rows * states).unflatten(2, (groups, -1)).sum(3)


class _Scan:
    """A call; tensors that do not depend on the token are converted to fp64."""

    def __init__(self, x: Any):
        self.x, self.A = x, wide(x.A)
        self.B, self.C = _Coefficients(x.B, x.A.is_complex()), _Coefficients(x.C, x.A.is_complex())
        self.D = None if x.D is None else wide(x.D)
        self.bias = None if x.delta_bias is None else wide(x.delta_bias)
        self.is_rglru = x.discretization == "rglru"
        self.doubled = 2 if x.A.is_complex() else 1  # y = 2 Re Σ

    def initial_state(self, rows: slice) -> Tensor:
        if self.x.initial_state is not None:
            return wide(self.x.initial_state[rows])
        return self.zeros(rows)

    def zeros(self, rows: slice) -> Tensor:
        return self.A.new_zeros(rows.stop - rows.start, *self.A.shape)


class _Chunk:
    """The forward pass over one chunk."""

    def __init__(self, scan: _Scan, tokens: slice, state: Tensor):
        x = scan.x
        self.scan, self.tokens, self.state = scan, tokens, state
        self.u = _tokens_first(x.u, tokens).unsqueeze(-1)
        raw = _tokens_first(x.delta, tokens)
        self.raw = raw if scan.bias is None else raw + scan.bias
        delta = F.softplus(self.raw, threshold=SOFTPLUS_THRESHOLD) if x.delta_softplus else self.raw
        self.delta = delta.unsqueeze(-1)
        self.delta_a = self.delta if x.delta_a is None else _tokens_first(x.delta_a, tokens).unsqueeze(-1)
        self.decay, self.factor = TRANSITIONS[x.discretization](self.delta, self.delta_a, scan.A)
        self.B, self.C = scan.B.at(tokens), scan.C.at(tokens)
        self.driven = self.factor * self.u
        driven = self.driven.clone() if scan.is_rglru else _times(self.driven, self.B)
        self.states = _recurrence(self.decay, driven, state)

    def seen(self) -> Tensor:
        """The states that C multiplies."""
        return self.states * self.B if self._output_has_B else self.states

    @property
    def _output_has_B(self) -> bool:
        return self.scan.is_rglru and not self.scan.B.varies

    def before_gate(self, seen: Tensor) -> Tensor:
        y = _dot(seen, self.C)
        y = 2 * y.real if y.is_complex() else y
        return y if self.scan.D is None else y + self.scan.D * self.u.squeeze(-1)

    def gate(self) -> Tensor | None:
        return None if self.scan.x.z is None else _tokens_first(self.scan.x.z, self.tokens)

    def out(self) -> Tensor:
        y, z = self.before_gate(self.seen()), self.gate()
        return y if z is None else y * F.silu(z)

    def backward(self, grad_out: Tensor, grad_state: Tensor, to: Any) -> Tensor:
        """Writes, or adds to, the gradients of the chunk's inputs; returns the gradient of the state before it."""
        x, scan, tokens = self.scan.x, self.scan, self.tokens
        seen, z, grad = self.seen(), self.gate(), _tokens_first(grad_out, tokens)
        if z is not None:
            gate = torch.sigmoid(z)
            to.z[:, :, tokens] = (grad * self.before_gate(seen) * gate * (1 + z * (1 - gate))).permute(1, 2, 0)
            grad = grad * z * gate
        grad_u = 0 if scan.D is None else (scan.D * grad)
        if scan.D is not None:
            to.D += (grad * self.u.squeeze(-1)).sum((0, 1))
        grad = (scan.doubled * grad).unsqueeze(-1)
        scan.C.add_gradient(to.C, tokens, _over_channels(grad, _conj(seen), self.C))
        grad_states = _times(grad, _conj(self.C))
        if self._output_has_B:
            scan.B.add_gradient(to.B, tokens, _over_channels(grad_states, self.states, self.B))
            grad_states = grad_states * self.B
        grad_states, grad_first = _recurrence_backward(self.decay, grad_states, grad_state)
        grad_decay = torch.empty_like(grad_states)
        torch.mul(grad_states[0], _conj(self.state), out=grad_decay[0])
        torch.mul(grad_states[1:], _conj(self.states[:-1]), out=grad_decay[1:])
        if scan.is_rglru:
            grad_driven = grad_states
        else:
            if self.driven.is_complex() or self.driven.shape[-1] > 1:
                grad_driven = _times(grad_states, _conj(self.B))
            else:
                grad_driven = _dot(grad_states, _conj(self.B)).real.unsqueeze(-1)
            scan.B.add_gradient(to.B, tokens, _over_channels(_conj(self.driven), grad_states, self.B))
        grad_u = grad_u + _sum_of_real(grad_driven * _conj(self.factor), self.u).squeeze(-1)
        to.u[:, :, tokens] = grad_u.permute(1, 2, 0)
        grad_delta, grad_delta_a, grad_A = GRADIENTS[x.discretization](
            self.delta, self.delta_a, scan.A, self.decay, grad_decay, grad_driven * self.u
        )
        to.A += grad_A
        if x.delta_a is None:
            grad_delta = grad_delta + grad_delta_a
        else:
            to.delta_a[:, :, tokens] = grad_delta_a.squeeze(-1).permute(1, 2, 0)
        grad_delta = grad_delta.squeeze(-1)
        if x.delta_softplus:
            grad_delta = torch.where(self.raw > SOFTPLUS_THRESHOLD, grad_delta, grad_delta * torch.sigmoid(self.raw))
        to.delta[:, :, tokens] = grad_delta.permute(1, 2, 0)
        if scan.bias is not None:
            to.delta_bias += grad_delta.sum((0, 1))
        return grad_first


def _recurrence(decay: Tensor, driven: Tensor, state: Tensor) -> Tensor:
    """The states x_t = Ā_t x_{t−1} + (B̄u)_t, in the memory of `driven`."""
    for a, x in zip(decay.unbind(), driven.unbind(), strict=True):
        state = x.addcmul_(a, state)
    return driven


def _recurrence_backward(decay: Tensor, grad: Tensor, grad_last: Tensor) -> tuple[Tensor, Tensor]:
    """Adds to `grad`, the states' gradients through their outputs, those through later states (`grad_last`: through the states
    after the chunk); also returns the gradient of the state before the chunk."""
    decays, states = _conj(decay).unbind(), grad.unbind()
    later = states[-1].add_(grad_last)
    for a, g in zip(reversed(decays[1:]), reversed(states[:-1]), strict=True):
        later = g.addcmul_(a, later)
    return grad, decays[0] * later


# ---- The operators


def forward(x: Any) -> tuple[Tensor, Tensor, Tensor]:
    """(out, last state, the states before each chunk), as torch.ops.gdn_cuda.selective_scan returns them."""
    out = empty_rows(x.u, results_are_channels_last(x)).zero_()
    last = x.A.new_empty(sequence_count(x), *x.A.shape)
    kept = x.A.new_zeros(chunk_count(x) if x.keep_states else 0, *x.A.shape)
    for sequence in _sequences(x):
        scan, part = _Scan(sequence.part(x)), out[sequence.batch]
        state = scan.initial_state(sequence.rows)
        for index, tokens in sequence.chunks():
            if x.keep_states:
                sequence.kept(kept, index).copy_(state)
            chunk = _Chunk(scan, tokens, state)
            part[:, :, tokens] = chunk.out().permute(1, 2, 0)
            state = chunk.states[-1]
        last[sequence.rows] = state
    return out, last, kept


def backward(x: Any) -> tuple[Tensor, ...]:
    """The gradients of u, delta, A, B, C, D, z, delta_bias, delta_a and initial_state; empty for absent arguments."""
    channels_last = results_are_channels_last(x)

    def rows(given: Tensor | None) -> Tensor:
        return x.u.new_empty(0) if given is None else empty_rows(given, channels_last).zero_()

    def sums(given: Tensor | None) -> Tensor:
        return x.u.new_empty(0) if given is None else torch.zeros(given.shape, dtype=wide_dtype(given))

    def coefficients(given: Tensor) -> Tensor:
        return sums(given) if given.dim() == 2 else given.new_zeros(given.shape)

    found = {
        "u": rows(x.u),
        "delta": rows(x.delta),
        "A": sums(x.A),
        "B": coefficients(x.B),
        "C": coefficients(x.C),
        "D": sums(x.D),
        "z": rows(x.z),
        "delta_bias": sums(x.delta_bias),
        "delta_a": rows(x.delta_a),
        "initial_state": sums(x.initial_state),
    }
    for sequence in _sequences(x):
        part = sequence.part(x)
        scan, to = _Scan(part), sequence.part(SimpleNamespace(**found))
        grad = scan.zeros(sequence.rows) if x.grad_last_state is None else wide(x.grad_last_state[sequence.rows])
        for index, tokens in reversed(sequence.chunks()):
            chunk = _Chunk(scan, tokens, wide(sequence.kept(x.states, index)))
            grad = chunk.backward(part.grad_out, grad, to)
        if x.initial_state is not None:
            found["initial_state"][sequence.rows] = grad
    return tuple(g if getattr(x, k) is None else g.to(getattr(x, k).dtype) for k, g in found.items())
