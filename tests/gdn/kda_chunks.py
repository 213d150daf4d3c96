"""Kimi Delta Attention by chunks of 64 tokens: what a chunk does to any state, in fp64 from the formulas, and the records of
gdn/kda_prepare in memory (include/gdn_cuda/kernels/gdn/kda/record.cuh and training_record.cuh)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

CHUNK, CHANNELS = 64, 128
TILE = CHUNK * 64 * 2  # bytes
FACTORS, RECORD = 10 * TILE, 82 * 1024  # where the factors are; bytes
CANCELS, RESETS, SCALED = 1, 2, 4


@dataclass
class Chunk:
    """K_in, Q_in, Z (64, 128), P' (64, 64), the decay of the whole chunk (128), and r, scale r_q (64)."""

    key_in: Tensor
    query_in: Tensor
    update: Tensor
    scores: Tensor
    decay: Tensor
    key_norm: Tensor
    query_norm: Tensor

    def apply(self, state: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """(outputs (64, dv), the state after) from the state (dv, 128) before, and values (64, dv)."""
        x = value - self.key_norm[:, None] * (self.key_in @ state.T)
        output = self.query_norm[:, None] * (self.query_in @ state.T + self.scores @ x)
        return output, torch.where(self.decay == 0, 0, state * self.decay) + x.T @ self.update


@dataclass
class TrainingChunk:
    """g k, d k, g q (64, 128), r T and P (64, 64), the decay of the whole chunk (128), r, r_q and beta (64)."""

    key_in: Tensor
    key_out: Tensor
    query_in: Tensor
    inverse: Tensor
    scores: Tensor
    decay: Tensor
    key_norm: Tensor
    query_norm: Tensor
    beta: Tensor


def training_chunk(
    query: Tensor, key: Tensor, beta: Tensor, decay: Tensor, norm: bool, least_beta: float = 0.0
) -> TrainingChunk:
    """In fp64, of up to 64 tokens of one head: query, key, decay (tokens, dk), beta (tokens)."""
    count, dk = key.shape
    q, k, a = (torch.zeros(CHUNK, CHANNELS).double() for _ in range(3))
    a += 1
    q[:count, :dk], k[:count, :dk], a[:count, :dk] = query.double(), key.double(), decay.double()
    b = torch.full((CHUNK,), least_beta).double()
    b[:count] = beta.double().masked_fill(beta == 0, least_beta)
    key_norm, query_norm = (torch.ones(CHUNK).double() for _ in range(2))
    if norm:
        key_norm[:count], query_norm[:count] = (torch.rsqrt(x[:count].pow(2).sum(-1) + 1e-6) for x in (k, q))
    # between[i, j]: the product of the decays of tokens j + 1 to i; without a division, for decays of 0
    between = torch.zeros(CHUNK, CHUNK, CHANNELS).double()
    for i in range(CHUNK):
        between[i, i] = 1
        if i > 0:
            between[i, :i] = between[i - 1, :i] * a[i]
    keys, scores = ((x[:, None] * k[None] * between).sum(-1) for x in (k, q))
    A = torch.tril(keys * (b * key_norm)[:, None] * key_norm, -1)
    T = torch.linalg.solve_triangular(torch.eye(CHUNK).double() + A, torch.eye(CHUNK).double(), upper=False) * b
    T = key_norm[:, None] * T
    first = torch.cumprod(a, 0)
    return TrainingChunk(
        first * k, between[-1] * k, first * q, T, torch.tril(scores), first[-1], key_norm, query_norm, b
    )  # fmt: skip


def chunk(query: Tensor, key: Tensor, beta: Tensor, decay: Tensor, scale: float, norm: bool) -> Chunk:
    """The same."""
    x = training_chunk(query, key, beta, decay, norm)
    return Chunk(
        x.key_in, x.query_in, x.inverse.T @ x.key_out, x.scores @ x.inverse, x.decay, x.key_norm, scale * x.query_norm
    )  # fmt: skip


def spans(T: int, offsets: list[int] | None, sequence: int) -> tuple[int, int, int]:
    """(first token, tokens, first record) of a sequence."""
    if offsets is None:
        return 0, T, sequence * -(-T // CHUNK)
    return offsets[sequence], offsets[sequence + 1] - offsets[sequence], offsets[sequence] // CHUNK + sequence


Rows = tuple[Tensor, Tensor, Tensor, Tensor]


def rows_of(x: dict[str, Any], decay: Tensor) -> Iterator[tuple[int, int, int, Rows]]:
    """(sequence, head, record, (query, key, beta, decay) of its tokens) of every chunk of a call, padded (B, T, …) or packed
    (N, …) with cu_seqlens."""
    packed = x.get("cu_seqlens") is not None
    offsets = x["cu_seqlens"].tolist() if packed else None
    rows = {
        name: (t[None] if packed else t)
        for name, t in {**x, "decay": decay}.items()
        if name in ("query", "key", "beta", "decay")
    }
    heads = decay.shape[-2]
    per_key = heads // x["key"].shape[-2]
    for sequence in range(len(offsets) - 1 if offsets else decay.shape[0]):
        first, tokens, record = spans(rows["decay"].shape[1], offsets, sequence)
        for head in range(heads):
            for number, start in enumerate(range(0, tokens, CHUNK)):
                at = slice(first + start, first + min(start + CHUNK, tokens))
                b = 0 if packed else sequence
                query, key = (rows[name][b, at, head // per_key] for name in ("query", "key"))
                betas, decays = (rows[name][b, at, head] for name in ("beta", "decay"))
                yield sequence, head, record + number, (query, key, betas, decays)


def chunks_of(x: dict[str, Any], decay: Tensor, *, scale: float | None, norm: bool) -> Iterator[tuple[int, int, int, Chunk]]:
    """(sequence, head, record, chunk) of every chunk of a call."""
    factor = decay.shape[-1] ** -0.5 if scale is None else scale
    for sequence, head, record, rows in rows_of(x, decay):
        yield sequence, head, record, chunk(*rows, factor, norm)


def by_chunks(
    x: dict[str, Any], decay: Tensor, state: Tensor | None = None, *, scale: float | None = None, norm: bool = False
) -> tuple[Tensor, Tensor]:
    """(outputs, last states) of a call, chunk by chunk in fp64."""
    packed = x.get("cu_seqlens") is not None
    value = x["value"][None] if packed else x["value"]
    offsets = x["cu_seqlens"].tolist() if packed else None
    (heads, dk), dv = decay.shape[-2:], value.shape[-1]
    count = len(offsets) - 1 if offsets else value.shape[0]
    last = torch.zeros(count, heads, dv, CHANNELS).double()
    if state is not None:
        last[..., :dk] = state.double()
    output = torch.zeros(value.shape).double()
    for sequence, head, record, each in chunks_of(x, decay, scale=scale, norm=norm):
        first, tokens, first_record = spans(value.shape[1], offsets, sequence)
        start = (record - first_record) * CHUNK
        at = slice(first + start, first + min(start + CHUNK, tokens))
        b = 0 if packed else sequence
        values = torch.zeros(CHUNK, dv).double()
        values[: at.stop - at.start] = value[b, at, head].double()
        found, last[sequence, head] = each.apply(last[sequence, head], values)
        output[b, at, head] = found[: at.stop - at.start]
    return (output[0] if packed else output), last[..., :dk]


# ---- Records in memory


def _swizzled(rows: Tensor) -> Tensor:
    """A tile (64, 64) from its order in memory, or in it: 16-byte vector p of row r is at p ^ (r % 8)."""
    r, p = torch.arange(CHUNK)[:, None], torch.arange(8)[None]
    return rows.reshape(CHUNK, 8, 8)[r, p ^ (r % 8)].reshape(CHUNK, 64)


def _tiles(data: Tensor, at: int, count: int, dtype: torch.dtype) -> Tensor:
    tiles = data[at : at + count * TILE].view(dtype).reshape(count, CHUNK, 64)
    return torch.cat([_swizzled(tile) for tile in tiles], 1)


def read(data: Tensor, flags: int, dtype: torch.dtype) -> Chunk:
    """A record's bytes; with residuals added, where it has them."""
    key_in, query_in, update = (_tiles(data, i * 2 * TILE, 2, dtype).double() for i in range(3))
    scores = _tiles(data, 6 * TILE, 1, dtype).double()
    if flags & CANCELS:
        update = update + _tiles(data, 7 * TILE, 2, dtype).double()
        scores = scores + _tiles(data, 9 * TILE, 1, dtype).double()
    factors = data[FACTORS : FACTORS + 1536].view(torch.float32).double()
    decay, middle, *norms = factors.split([CHANNELS, CHANNELS, CHUNK, CHUNK])
    if flags & SCALED:
        key_in, query_in = key_in * middle, query_in * middle
    return Chunk(key_in, query_in, update, scores, decay, *norms)


def read_training(data: Tensor, dtype: torch.dtype) -> tuple[TrainingChunk, tuple[Tensor, Tensor], int]:
    """The bytes of a KdaTrainingRecord: with residuals added; the residuals of r T and P; and the flag that entries cancel."""
    rows = (_tiles(data, i * 2 * TILE, 2, dtype).double() for i in range(3))
    inverse, inverse_rest, scores, scores_rest = (_tiles(data, (6 + i) * TILE, 1, dtype).double() for i in range(4))
    factors = data[FACTORS : FACTORS + 1280].view(torch.float32).double()
    matrices = (inverse + inverse_rest, scores + scores_rest)
    made = TrainingChunk(*rows, *matrices, *factors.split([CHANNELS, CHUNK, CHUNK, CHUNK]))
    return made, (inverse_rest, scores_rest), int(data[FACTORS + 1280 : FACTORS + 1284].view(torch.int32))


def write(made: Chunk, careful: bool, dtype: torch.dtype) -> Tensor:
    """The bytes of a record."""
    data = torch.full((RECORD,), 0xFF, dtype=torch.uint8)

    def put(at: int, rows: Tensor) -> None:
        for i, tile in enumerate(rows.to(dtype).split(64, 1)):
            data[at + i * TILE : at + (i + 1) * TILE] = _swizzled(tile).contiguous().view(torch.uint8).flatten()

    for i, rows in enumerate((made.key_in, made.query_in, made.update, made.scores)):
        put(i * 2 * TILE, rows)
    if careful:
        put(7 * TILE, made.update - made.update.to(dtype))
        put(9 * TILE, made.scores - made.scores.to(dtype))
    factors = torch.cat([made.decay, torch.ones(CHANNELS), made.key_norm, made.query_norm]).float()
    data[FACTORS : FACTORS + 1536] = factors.view(torch.uint8)
    return data


NAMES = tuple(field.name for field in fields(Chunk))


def records_of(x: dict[str, Any]) -> int:
    """How many each head has."""
    T = x["value"].shape[-3]
    return T // CHUNK + len(x["cu_seqlens"]) - 1 if x.get("cu_seqlens") is not None else x["value"].shape[0] * -(-T // CHUNK)


def run(
    x: dict[str, Any],
    *,
    scale: float | None = None,
    lower_bound: float | None = None,
    norm: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    prepares: bool = True,
    owns: bool = True,
    trains: bool = False,
    records: Tensor | None = None,
    flags: Tensor | None = None,
    gate_is_linear: bool = False,
) -> dict[str, Tensor]:
    """The internal operator on a call's tensors: gate (…, heads, dk), and optionally state and cu_seqlens."""
    value, heads = x["value"], x["gate"].shape[-2]
    device = value.device
    count = len(x["cu_seqlens"]) - 1 if x.get("cu_seqlens") is not None else value.shape[0]
    if records is None or flags is None:
        records = torch.full((heads, records_of(x), RECORD), 0xFF, dtype=torch.uint8, device=device)
        flags = torch.full((heads, records_of(x)), -1, dtype=torch.int32, device=device)
    state = torch.full((count, heads, value.shape[-1], x["key"].shape[-1]), torch.nan, device=device)
    out = torch.full_like(value, torch.nan)
    torch.ops.gdn_cuda.kda_chunks(
        *(x[name] for name in ("query", "key", "value", "gate", "beta")),
        x.get("state"),
        x.get("cu_seqlens"),
        scale,
        lower_bound,
        norm,
        A_log,
        dt_bias,
        False,
        False,
        gate_is_linear,
        prepares,
        owns,
        trains,
        records,
        flags,
        state,
        out,
    )  # fmt: skip
    return {"records": records, "flags": flags, "state": state, "out": out}
