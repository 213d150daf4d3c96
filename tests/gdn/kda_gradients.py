"""What gdn/kda_gradients is given, in fp64 by autograd of the literal recurrence (include/gdn_cuda/kernels/gdn/kda/
training_record.cuh), and its launch alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from channel_gradient_cases import ChannelCase
from kda_cases import decays
from torch import Tensor

CHUNK, CHANNELS = 64, 128
FACTORS, RECORD = 80 * 1024, 82 * 1024  # where a record's factors are; bytes
LEAST_BETA = {torch.bfloat16: 2.0**-60, torch.float16: 2.0**-13}
GATES = ("A_log", "dt_bias", "lower_bound", "gate_is_linear")


@dataclass
class Handover:
    """By head and chunk index, NaN where an index is unused; and the values' gradients."""

    records: Tensor
    states: Tensor
    state_gradients: Tensor
    errors: Tensor
    value_gradient: Tensor


def with_batch(x: Tensor, packed: bool) -> Tensor:
    return x[None] if packed else x


def indices(lengths: tuple[int, ...], packed: bool, sequence: int) -> tuple[int, int]:
    """(the sequence's first token, its first chunk index)"""
    first = sum(lengths[:sequence]) if packed else 0
    return first, first // CHUNK + sequence if packed else sequence * -(-lengths[0] // CHUNK)


def count_of(lengths: tuple[int, ...], packed: bool) -> int:
    return sum(lengths) // CHUNK + len(lengths) if packed else len(lengths) * -(-lengths[0] // CHUNK)


def made(
    case: ChannelCase, x: dict[str, Any], output_gradient: Tensor, last_gradient: Tensor | None, *, careful: bool
) -> tuple[Handover, dict[str, Tensor]]:
    """What is handed over, rounded, and the gradients that are wanted. careful: entries of T cancel."""
    lengths, packed, io = case.shape.lengths, case.shape.packed, x["value"].dtype
    heads, dk, dv = case.shape.heads[1], case.shape.dk, case.shape.dv
    norm, scale = x.get("use_qk_l2norm", False), x.get("scale", dk**-0.5)
    names = ("query", "key", "value", "beta", "gate", "A_log", "dt_bias")
    leaves = {name: x[name].double().requires_grad_() for name in names if x.get(name) is not None}
    gates = {name: leaves.get(name, x.get(name)) for name in GATES if x.get(name) is not None}
    decay = with_batch(decays(leaves["gate"], **gates), packed)
    beta = leaves["beta"]
    if x.get("beta_is_logit"):
        beta = (2 if x.get("allow_negative_eigenvalues") else 1) * beta.sigmoid()
    effective = torch.where(beta == 0, LEAST_BETA[io], 0) + beta
    rows = {name: with_batch(leaves[name], packed) for name in ("query", "key", "value")}
    norms = {
        name: torch.rsqrt(rows[name].pow(2).sum(-1) + 1e-6) if norm else torch.ones(rows[name].shape[:-1]).double()
        for name in ("query", "key")
    }
    query, key = (rows[name] * norms[name][..., None] for name in ("query", "key"))
    betas, outer = with_batch(effective, packed), with_batch(output_gradient.double(), packed)

    count = count_of(lengths, packed)
    factors = torch.full((heads, count, (RECORD - FACTORS) // 4), torch.nan)
    errors = torch.full((heads, count, 2, CHUNK, dv), torch.nan, dtype=io)
    places: list[tuple[int, int]] = []  # (sequence, chunk index)
    before, after, loss = [], [], torch.zeros(()).double()
    for sequence, tokens in enumerate(lengths):
        first, index = indices(lengths, packed, sequence)
        b = 0 if packed else sequence
        state = torch.zeros(heads, dv, dk).double()
        if x.get("state") is not None:
            state = x["state"][sequence].double()
        state.requires_grad_()
        for start in range(0, tokens, CHUNK):
            at = range(first + start, first + min(start + CHUNK, tokens))
            places.append((sequence, index + start // CHUNK))
            state = state * 1.0
            before.append(state)
            found = []
            for t in at:
                state = torch.where(decay[b, t, :, None] == 0, 0, state * decay[b, t, :, None])
                error = rows["value"][b, t] - (state * key[b, t, :, None]).sum(-1)
                found.append(error.detach())
                state = state + (betas[b, t, :, None] * error)[..., None] * key[b, t, :, None]
                loss = loss + (outer[b, t] * scale * (state * query[b, t, :, None]).sum(-1)).sum()
            state = state * 1.0
            after.append(state)
            ends, size = places[-1][1], len(at)
            exact = torch.zeros(heads, CHUNK, dv).double()
            exact[:, :size] = torch.stack(found, 1)
            errors[:, ends, 0] = exact.to(io)
            if careful:
                errors[:, ends, 1] = (exact - exact.to(io)).to(io)
            here = slice(at.start, at.stop)
            whole = torch.ones(heads, CHANNELS)
            whole[:, :dk] = decay[b, here].detach().float().prod(0)
            parts = [whole]
            for values, past in (
                (norms["key"], 1e3 if norm else 1.0),
                (norms["query"], 1e3 if norm else 1.0),
                (betas, LEAST_BETA[io]),
            ):
                padded = torch.full((heads, CHUNK), past)
                padded[:, :size] = values[b, here].detach().T
                parts.append(padded)
            factors[:, ends, :320] = torch.cat(parts, 1)
            factors[:, ends, 320] = torch.tensor(int(careful), dtype=torch.int32).view(torch.float32)
        if last_gradient is not None:
            loss = loss + (state * last_gradient[sequence].double()).sum()
    gradients = torch.autograd.grad(loss, [*leaves.values(), *after], allow_unused=True)
    wanted = {name: g for name, g in zip(leaves, gradients, strict=False) if g is not None}
    states, state_gradients = (torch.full((heads, count, dv, dk), torch.nan, dtype=io) for _ in range(2))
    for (_, index), s, e in zip(places, before, gradients[len(leaves) :], strict=True):
        states[:, index] = s.detach().to(io)
        state_gradients[:, index] = 0 if e is None else e.to(io)
    records = torch.full((heads, count, RECORD), 0xFF, dtype=torch.uint8)
    records[..., FACTORS:] = factors.view(torch.uint8)
    return Handover(records, states, state_gradients, errors, wanted.pop("value").to(io)), wanted


def run(x: dict[str, Any], output_gradient: Tensor, given: Handover, **results: None) -> dict[str, Tensor | None]:
    """Gradients by name, NaN where the kernel stores none; `sums` (2, chunks, heads, dk). results: those without a tensor."""
    heads, dk, count = *x["gate"].shape[-2:], given.records.shape[1]
    found: dict[str, Tensor | None] = {
        "value": given.value_gradient.clone(),
        "query": torch.full_like(x["query"], torch.nan),
        "key": torch.full_like(x["key"], torch.nan),
        "gate": torch.full_like(x["gate"], torch.nan),
        "beta": torch.full_like(x["beta"], torch.nan),
        "sums": torch.zeros(2, count, heads, dk, device=x["gate"].device),
    } | results
    torch.ops.gdn_cuda.kda_gradients(
        x["query"],
        x["key"],
        x["gate"],
        x["beta"],
        x.get("cu_seqlens"),
        x.get("scale"),
        x.get("lower_bound"),
        x.get("use_qk_l2norm", False),
        x.get("A_log"),
        x.get("dt_bias"),
        x.get("beta_is_logit", False),
        x.get("allow_negative_eigenvalues", False),
        x.get("gate_is_linear", False),
        given.records,
        given.states,
        given.state_gradients,
        given.errors,
        output_gradient,
        *found.values(),
    )
    return found
