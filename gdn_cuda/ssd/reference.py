"""Mamba-2's scan in plain torch: the literal recurrence, its chunked form, and the gradients of that. Any float dtype;
arithmetic is in fp32, or in fp64 if an input is.

    δ_t = clamp(softplus(dt_t + dt_bias), dt_limit)
    S ← exp(δ_t A) S + δ_t x_t B_tᵀ        y_t = S C_t + D ⊙ x_t        out = y · silu(z)

Within a chunk, G the sum of δA from its first token on, L_ij = exp(G_i − G_j) for i ≥ j, γ = exp(G), κ = exp(G_C − G) and
Γ = exp(G_C):

    M_ij = (C_i·B_j) L_ij δ_j        Y = M X + γ ⊙ (C Sᵀ)        S ← Γ S + (κ δ ⊙ X)ᵀ B

A decay that is 0 in the dtype of the arithmetic is an exact reset: nothing is left of the state, neither infinities nor NaN.

Shapes: x, z (B, T, H, P), dt (B, T, H), A, dt_bias (H), B, C (B, T, G, N), D (H) or (H, P), states (B, H, P, N). Head h reads
group h // (H / G). `spans_of_packed` and `spans_of_rows` say where packed tokens, and rows with seq_idx, begin anew.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..gdn.reference import CHUNK, decayed, promoted_dtype

# Sums of logarithms are clamped to this, whose exponential is 0 anyway, so that they keep their precision for later tokens.
_LOWEST = {torch.float32: -160 * math.log(2), torch.float64: -1100 * math.log(2)}


class Scan(NamedTuple):
    """The tensors of a call, a batch of sequences that begin together."""

    x: Tensor
    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None = None
    z: Tensor | None = None
    dt_bias: Tensor | None = None
    initial_state: Tensor | None = None


@dataclass(frozen=True)
class Steps:
    """How dt becomes δ."""

    softplus: bool = False
    limit: tuple[float, float] = (0.0, math.inf)

    def __call__(self, dt: Tensor, bias: Tensor | None) -> Tensor:
        return self._unlimited(dt, bias).clamp(*self.limit)

    def _unlimited(self, dt: Tensor, bias: Tensor | None) -> Tensor:
        """Softplus is the identity above 20."""
        delta = dt if bias is None else dt + bias
        return F.softplus(delta, threshold=20) if self.softplus else delta

    def gradient(self, dt: Tensor, bias: Tensor | None, by_delta: Tensor) -> Tensor:
        """dt's gradient from that of δ: 0 outside the limits, and passes at them."""
        raw, delta = dt if bias is None else dt + bias, self._unlimited(dt, bias)
        slope = torch.where(raw > 20, 1, raw.sigmoid()) if self.softplus else torch.ones_like(raw)
        return torch.where((delta < self.limit[0]) | (delta > self.limit[1]), 0, by_delta * slope)


def _wide(scan: Scan) -> Scan:
    dtype = promoted_dtype(*scan)
    return Scan(*(None if x is None else x.to(dtype) for x in scan))


def _by_head(groups: Tensor, heads: int) -> Tensor:
    """(…, G, N) to (…, H, N)."""
    return groups.repeat_interleave(heads // groups.shape[-2], -2)


def _first_state(scan: Scan) -> Tensor:
    batch, _, heads, channels = scan.x.shape
    zeros = scan.x.new_zeros((batch, heads, channels, scan.B.shape[-1]))
    return zeros if scan.initial_state is None else scan.initial_state


def finished(scan: Scan, y: Tensor) -> Tensor:
    """With D and z."""
    if scan.D is not None:
        y = y + (scan.D if scan.D.dim() == 2 else scan.D[:, None]) * scan.x
    return y if scan.z is None else y * F.silu(scan.z)


def recurrent(scan: Scan, steps: Steps = Steps()) -> tuple[Tensor, Tensor]:
    """Token by token: (out, last state)."""
    scan = _wide(scan)
    delta, state, outs = steps(scan.dt, scan.dt_bias), _first_state(scan), []
    B, C = (_by_head(x, scan.x.shape[-2]) for x in (scan.B, scan.C))
    for t in range(scan.x.shape[1]):
        decay = (delta[:, t] * scan.A).exp()[..., None, None]
        added = (delta[:, t, :, None] * scan.x[:, t])[..., None] * B[:, t, :, None, :]
        state = decayed(state, decay) + added
        outs.append((state @ C[:, t, :, :, None])[..., 0])
    y = torch.stack(outs, 1) if outs else scan.x.clone()
    return finished(scan, y), state


# ---- The chunked form


class _Chunks(NamedTuple):
    """(batch, head, chunk, token, …), and what follows from a chunk's gates."""

    x: Tensor
    B: Tensor
    C: Tensor
    delta: Tensor  # (…, token, 1), as before and after
    between: Tensor  # L
    before: Tensor  # γ
    after: Tensor  # κ
    kept: Tensor  # Γ, (…, 1, 1)


def _to_chunks(x: Tensor) -> Tensor:
    """(B, T, H, …) to (B, H, chunks, 64, …), with zeros after the last token."""
    missing = -x.shape[1] % CHUNK
    padded = F.pad(x, (0, 0) * (x.dim() - 2) + (0, missing))
    return padded.unflatten(1, (-1, CHUNK)).permute(0, 3, 1, 2, *range(4, x.dim() + 1))


def _from_chunks(x: Tensor, tokens: int) -> Tensor:
    return x.permute(0, 2, 3, 1, *range(4, x.dim())).flatten(1, 2)[:, :tokens]


def _chunks_of(scan: Scan, delta: Tensor) -> _Chunks:
    """Tokens past the end have δ = 0: nothing decays, and nothing is added."""
    heads, dtype = scan.x.shape[-2], scan.x.dtype
    x, B, C = (_to_chunks(y) for y in (scan.x, _by_head(scan.B, heads), _by_head(scan.C, heads)))
    delta = _to_chunks(delta)
    total = (delta.double() * scan.A.double()[:, None, None]).clamp(min=_LOWEST[dtype]).cumsum(-1)
    difference = (total[..., :, None] - total[..., None, :]).masked_fill(
        ~torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=x.device).tril(), -math.inf
    )
    last = total[..., -1:]
    before, after, kept = (y.exp().to(dtype)[..., None] for y in (total, last - total, last))
    return _Chunks(x, B, C, delta[..., None], difference.exp().to(dtype), before, after, kept)


def chunked(scan: Scan, steps: Steps = Steps()) -> tuple[Tensor, Tensor]:
    """(out, last state), chunk by chunk. Values that are not finite are for `recurrent`: 0 times infinity is NaN here."""
    scan = _wide(scan)
    parts, state, outs = _chunks_of(scan, steps(scan.dt, scan.dt_bias)), _first_state(scan), []
    scores = (parts.C @ parts.B.mT) * parts.between * parts.delta.mT
    for c in range(parts.x.shape[2]):
        outs.append(scores[:, :, c] @ parts.x[:, :, c] + parts.before[:, :, c] * (parts.C[:, :, c] @ state.mT))
        weighted = parts.after[:, :, c] * parts.delta[:, :, c] * parts.x[:, :, c]
        state = decayed(state, parts.kept[:, :, c]) + weighted.mT @ parts.B[:, :, c]
    y = _from_chunks(torch.stack(outs, 2), scan.x.shape[1]) if outs else scan.x.clone()
    return finished(scan, y), state


# ---- Gradients of the chunked form


def gradients(scan: Scan, steps: Steps, grad_out: Tensor, grad_last: Tensor | None) -> Scan:
    """Of every tensor that the call has, E the gradient of the state after a chunk:

        dY = dout · silu(z)        dz = dout · y · silu'(z)        dD = Σ dY x        W = δ ⊙ X        M' = C Bᵀ ⊙ L
        dW = M'ᵀ dY + κ ⊙ (B Eᵀ)        dX = δ ⊙ dW + D dY        E ← Γ E + (γ ⊙ dY)ᵀ C
        N = tril(dY Wᵀ) ⊙ L        dC = N B + γ ⊙ (dY S)        dB = Nᵀ C + κ ⊙ (W E), both summed over the heads of a group
        dg_t = Σ_{i≥t} C_i·(γ dY S)_i + Σ_{j<t} B_j·(κ W E)_j + Γ ⟨E, S⟩ + Σ_{i≥t>j} (tril(dY Wᵀ) ⊙ M')_ij
        dδ = rowsum(dW ⊙ X) + A dg        dA = Σ δ dg

    Every term of dg carries the decay across token t, and nothing cancels."""
    scan = _wide(scan)
    grad_out = grad_out.to(scan.x.dtype)
    delta = steps(scan.dt, scan.dt_bias)
    parts = _chunks_of(scan, delta)
    chunks, tokens, heads = parts.x.shape[2], scan.x.shape[1], scan.x.shape[-2]

    slope = grad_out if scan.z is None else grad_out * F.silu(scan.z)
    dy = _to_chunks(slope)
    states, state = [], _first_state(scan)
    for c in range(chunks):
        states.append(state)
        weighted = parts.after[:, :, c] * parts.delta[:, :, c] * parts.x[:, :, c]
        state = decayed(state, parts.kept[:, :, c]) + weighted.mT @ parts.B[:, :, c]
    later, later_gradients = torch.zeros_like(state) if grad_last is None else grad_last.to(state.dtype), []
    for c in reversed(range(chunks)):
        later_gradients.append(later)
        own = (parts.before[:, :, c] * dy[:, :, c]).mT @ parts.C[:, :, c]
        later = decayed(later, parts.kept[:, :, c]) + own
    if not chunks:
        return _without_tokens(scan, later)
    S, E = torch.stack(states, 2), torch.stack(later_gradients[::-1], 2)

    W = parts.delta * parts.x
    products = parts.C @ parts.B.mT * parts.between  # M'
    crossing = (dy @ W.mT).tril()
    dW = products.mT @ dy + parts.after * (parts.B @ E.mT)
    N = crossing * parts.between
    from_state, to_state = parts.before * (dy @ S), parts.after * (W @ E)
    dC, dB = N @ parts.B + from_state, N.mT @ parts.C + to_state

    reads, writes = ((x * y).sum(-1) for x, y in ((parts.C, from_state), (parts.B, to_state)))
    through = decayed((E * S).sum((-2, -1)), parts.kept[..., 0, 0])[..., None]
    later_reads = reads.flip(-1).cumsum(-1).flip(-1)
    earlier_writes = F.pad(writes.cumsum(-1)[..., :-1], (1, 0))
    between = (crossing * products).double()  # pairs (i, j) with i ≥ t > j
    until = F.pad(between.cumsum(-1)[..., :-1], (1, 0))  # of row i, the columns before t
    within = until.flip(-2).cumsum(-2).flip(-2).diagonal(dim1=-2, dim2=-1).to(dy.dtype)
    dg = later_reads + earlier_writes + through + within

    by_delta = _from_chunks((dW * parts.x).sum(-1), tokens) + scan.A * _from_chunks(dg, tokens)
    by_dt = steps.gradient(scan.dt, scan.dt_bias, by_delta)
    by_bias = None if scan.dt_bias is None else by_dt.sum((0, 1))
    dx = _from_chunks(parts.delta * dW, tokens)
    by_D = None
    if scan.D is not None:
        wide = scan.D if scan.D.dim() == 2 else scan.D[:, None]
        dx = dx + wide * slope
        by_D = (slope * scan.x).sum((0, 1))
        by_D = by_D if scan.D.dim() == 2 else by_D.sum(-1)
    by_z = None
    if scan.z is not None:
        y, _ = chunked(scan._replace(z=None), steps)
        sigmoid = scan.z.sigmoid()
        by_z = grad_out * y * sigmoid * (1 + scan.z * (1 - sigmoid))
    groups = scan.B.shape[-2]
    by_B, by_C = (_from_chunks(y, tokens).unflatten(-2, (groups, heads // groups)).sum(-2) for y in (dB, dC))
    by_A = (_from_chunks(dg, tokens) * delta).sum((0, 1))
    by_state = None if scan.initial_state is None else later
    return Scan(dx, by_dt, by_A, by_B, by_C, by_D, by_z, by_bias, by_state)


def _without_tokens(scan: Scan, grad_state: Tensor) -> Scan:
    """A call without tokens."""
    zeros = Scan(*(None if x is None else torch.zeros_like(x) for x in scan))
    return zeros._replace(initial_state=None if scan.initial_state is None else grad_state)


# ---- Sequences


class Span(NamedTuple):
    """Tokens of a row that are of one sequence."""

    row: int
    first: int
    end: int
    state: int | None  # the initial state that it begins with; None: zeros
    last: int | None  # the last state that it leaves


def spans_of_packed(cu_seqlens: Tensor) -> list[Span]:
    return [Span(0, a, b, n, n) for n, (a, b) in enumerate(pairwise(cu_seqlens.tolist()))]


def spans_of_rows(seq_idx: Tensor) -> list[Span]:
    """Of each row the state is zeroed where seq_idx changes. A row's initial state belongs to its first tokens if their number
    is 0, and its last state to its last sequence."""
    found = []
    for row, numbers in enumerate(seq_idx.tolist()):
        borders = [0, *(t for t in range(1, len(numbers)) if numbers[t] != numbers[t - 1]), len(numbers)]
        for first, end in pairwise(borders):
            begins, ends = first == 0 and numbers[:1] == [0], end == len(numbers)
            found.append(Span(row, first, end, row if begins else None, row if ends else None))
    return found


States = dict[tuple[int, int], Tensor]  # by span and token of its row
_ROWS = ("x", "dt", "B", "C", "z")


def _scan_pieces(scan: Scan, steps: Steps, ends: list[int]) -> tuple[Tensor, list[Tensor]]:
    """out, and the states after so many tokens, each piece chunked by itself. The last end is that of the tokens."""
    outs, states, first = [], [], 0
    run = chunked if all(bool(x.isfinite().all()) for x in (scan.x, scan.dt, scan.B, scan.C)) else recurrent
    for end in ends:
        rows = {name: None if (x := getattr(scan, name)) is None else x[:, first:end] for name in _ROWS}
        y, state = run(scan._replace(**rows), steps)
        scan, first = scan._replace(initial_state=state), end
        outs.append(y)
        states.append(state)
    return torch.cat(outs, 1), states


def scan_spans(
    scan: Scan, steps: Steps, spans: list[Span], states: int, kept: Collection[tuple[int, int]] = ()
) -> tuple[Tensor, Tensor, States]:
    """(out, last states, the states before the tokens in `kept`), each span by itself. Tokens of none have an output of 0."""
    wide = _wide(scan)
    *_, heads, channels = wide.x.shape
    out, last = torch.zeros_like(wide.x), wide.x.new_zeros((states, heads, channels, wide.B.shape[-1]))
    found: States = {}
    for n, span in enumerate(spans):
        at = slice(span.row, span.row + 1), slice(span.first, span.end)
        initial = wide.initial_state
        initial = None if initial is None or span.state is None else initial[span.state : span.state + 1]
        part = wide._replace(**{name: None if (x := getattr(wide, name)) is None else x[at] for name in _ROWS})
        part = part._replace(initial_state=initial)
        inside = {token for sequence, token in kept if sequence == n and span.first < token <= span.end}
        ends = sorted(inside | {span.end})
        y, after = _scan_pieces(part, steps, [end - span.first for end in ends])
        found |= {(n, end): state for end, state in zip(ends, after, strict=True)}
        found[n, span.first] = _first_state(part)
        out = out.index_put((torch.tensor(span.row), torch.arange(span.first, span.end)), y[0])
        if span.last is not None:
            last = last.index_put((torch.tensor([span.last]),), after[-1])
    return out, last, found
