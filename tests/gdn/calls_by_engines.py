"""Calls of the Gated Delta Net with arguments in the forms that serving engines have, against a literal recurrence in fp64.

A `Call` draws the values; the functions below put them into the forms, and `literal` computes the expected results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from helpers import rel_rms
from torch import Tensor

import gdn_cuda

BLOCK = 64


@dataclass(frozen=True)
class Call:
    """Packed sequences of `lengths` tokens; `heads` are the head counts of query and value."""

    lengths: tuple[int, ...]
    heads: tuple[int, int] = (2, 4)
    dk: int = 16
    dv: int = 8
    io: torch.dtype = torch.float32
    state: torch.dtype = torch.float32
    seed: int = 0

    def draws(self, salt: int, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(1000 * self.seed + salt))

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    def rows(self) -> dict[str, Tensor]:
        """Packed query, key and value, (N, H, d); keys of length about 1."""
        (Hq, Hv), N = self.heads, self.tokens
        query, key = self.draws(1, N, Hq, self.dk), self.draws(2, N, min(Hq, Hv), self.dk) / math.sqrt(self.dk)
        value = self.draws(3, N, Hv, self.dv)
        return {"query": query.to(self.io), "key": key.to(self.io), "value": value.to(self.io)}

    def states(self, count: int | None = None) -> Tensor:
        return self.draws(4, count or len(self.lengths), max(self.heads), self.dv, self.dk).to(self.state)

    def cu_seqlens(self) -> Tensor:
        return torch.tensor([0, *np.cumsum(self.lengths)], dtype=torch.int64)

    def batch(self, tokens: dict[str, Any], device: str) -> dict[str, Any]:
        """The tensors on a device: packed with cu_seqlens, or padded, (B, T, …), if all sequences have the same length."""
        on_device = on(device, tokens)
        if len(set(self.lengths)) > 1:
            return on_device | {"cu_seqlens": self.cu_seqlens().to(device)}
        rows = [name for name, x in tokens.items() if isinstance(x, Tensor) and x.dim() > 1]
        return on_device | {name: on_device[name].unflatten(0, (len(self.lengths), -1)) for name in rows}


def literal(
    rows: dict[str, Tensor],
    lengths: tuple[int, ...],
    decay: Tensor,
    beta: Tensor,
    states: Tensor,
    norm: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """The output (N, H, dv), and for each sequence the states before its first token and after each token, (L + 1, H, dv, dk).
    H is the larger head count of query and value."""
    query, key, value = (rows[name].double().cpu().numpy() for name in ("query", "key", "value"))
    decays, betas, starts = decay.double().cpu().numpy(), beta.double().cpu().numpy(), states.double().cpu().numpy()
    heads = starts.shape[1]
    output, after, first = np.zeros((len(value), heads, value.shape[2])), [], 0
    for n, length in enumerate(lengths):
        kept = np.zeros((length + 1, *starts.shape[1:]))
        kept[0] = starts[n]
        for t in range(length):
            for h in range(heads):
                q, k, v = (x[first + t, h * x.shape[1] // heads] for x in (query, key, value))
                if norm:
                    q, k = q / np.sqrt(q @ q + 1e-6), k / np.sqrt(k @ k + 1e-6)
                alpha = decays[first + t, h]
                s = alpha * kept[t, h] if alpha > 0 else np.zeros_like(kept[t, h])
                s = s + np.outer(betas[first + t, h] * (v - s @ k), k)
                kept[t + 1, h], output[first + t, h] = s, s @ q / math.sqrt(len(q))
        after.append(torch.from_numpy(kept))
        first += length
    return torch.from_numpy(output), after


# ---- Gates in every form: (arguments, the decay they stand for, the beta they stand for), the last two in fp64


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x.double()))


def gates_of(call: Call, form: str, dtype: torch.dtype) -> tuple[dict[str, Any], Tensor, Tensor]:
    heads = max(call.heads)
    shape = (call.tokens, heads)
    raw, b = call.draws(5, *shape).to(dtype), call.draws(6, *shape).to(dtype)
    log_decay, beta = -raw.abs(), b.float().sigmoid().to(dtype)
    if form == "none":
        return {"gate": None, "beta": None}, torch.ones(shape).double(), torch.ones(shape).double()
    if form == "log":
        return {"gate": log_decay, "beta": beta}, log_decay.double().exp(), beta.double()
    if form == "linear":
        alpha = log_decay.float().exp().to(dtype)
        alpha.view(-1)[::7] = 0
        return {"gate": alpha, "beta": beta, "gate_is_linear": True}, alpha.double(), beta.double()
    rate, bias = call.draws(7, heads), call.draws(8, heads)
    softplus = torch.log1p(torch.exp(raw.double() + (bias.double() if form != "raw-without-bias" else 0)))
    decay = torch.exp(-torch.exp(rate.double()) * softplus)
    if form == "raw":
        return {"gate": raw, "beta": beta, "A_log": rate, "dt_bias": bias}, decay, beta.double()
    if form == "raw-without-bias":
        return {"gate": raw, "beta": beta, "A_log": rate}, decay, beta.double()
    assert form in ("raw-logit", "raw-negative"), form
    more = {"beta_is_logit": True, "allow_negative_eigenvalues": form == "raw-negative"}
    return (
        {"gate": raw, "beta": b, "A_log": rate, "dt_bias": bias, **more},
        decay,
        sigmoid(b) * (2 if form == "raw-negative" else 1),
    )


FORMS = ("none", "log", "linear", "raw", "raw-without-bias", "raw-logit", "raw-negative")


# ---- Tensors in every layout


def with_gaps(x: Tensor) -> Tensor:
    """The same values with tokens contiguous in memory, which is the layout of convolutions' results."""
    return x.movedim(0, -1).contiguous().movedim(-1, 0) if x.dim() == 3 else x.transpose(1, -1).contiguous().transpose(1, -1)


def as_kv(states: Tensor) -> Tensor:
    """States stored as [K, V], as the transposed view that functions expect."""
    return states.mT.contiguous().mT


def spread(states: Tensor) -> Tensor:
    """A view with gaps of NaN between heads, rows and slots."""
    slots, heads, dv, dk = states.shape
    memory = torch.full((slots, 2, heads, dv + 1, dk + 3), float("nan"), dtype=states.dtype, device=states.device)
    view = memory[:, 1, :, :dv, :dk]
    view.copy_(states)
    return view


LAYOUTS = {"contiguous": lambda x: x.clone(), "kv": as_kv, "spread": spread}


# ---- Checks on any device, and in the emulator


def near(found: Tensor, expected: Tensor, io: torch.dtype, stored: torch.dtype = torch.float32) -> None:
    """Compares by relative RMS. The bound is what 16-bit inputs allow, plus one rounding if the result is stored in 16 bits."""
    bound = 1e-5 if io == torch.float32 else 6e-3
    bound += {torch.float32: 0.0, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-8}[stored]
    assert found.dtype == stored
    assert rel_rms(found.double().cpu(), expected) < bound


def on(device: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: x.to(device) if isinstance(x, Tensor) else x for name, x in arguments.items()}


def _function(name: str) -> Any:
    return {"recurrent": gdn_cuda.recurrent_forward, "chunked": gdn_cuda.chunked_forward}[name]


def check_gates(name: str, call: Call, form: str, dtype: torch.dtype, device: str) -> None:
    gates, decay, beta = gates_of(call, form, dtype)
    expected, after = literal(call.rows(), call.lengths, decay, beta, call.states())
    given = call.batch(call.rows() | gates, device)
    output, final_state = _function(name)(**given, state=call.states().to(device))
    near(output.view(expected.shape), expected, call.io, call.io)
    near(final_state, torch.stack([each[-1] for each in after]), call.io, call.state)


def check_rank_4(name: str, call: Call, device: str, gaps: bool) -> None:
    """Packed tensors as (1, N, H, d) give the results of (N, H, d); two tokens after the last sequence are NaN."""
    gates, decay, beta = gates_of(call, "log", torch.float32)
    expected, after = literal(call.rows(), call.lengths, decay, beta, call.states())
    given = on(device, {**call.rows(), **gates})
    given = {key: torch.cat([x, torch.full_like(x[:2], float("nan"))])[None] for key, x in given.items()}
    if gaps:
        given |= {key: with_gaps(given[key]) for key in ("query", "key", "value")}
        assert given["query"].stride(-1) != 1
    more = on(device, {"state": call.states(), "cu_seqlens": call.cu_seqlens()})
    output, final_state = _function(name)(**given, **more)
    assert output.shape == (1, len(expected) + 2, *expected.shape[1:])
    near(output[0, :-2], expected, call.io, call.io)
    assert not output[0, -2:].any()
    near(final_state, torch.stack([each[-1] for each in after]), call.io, call.state)


def check_buffers(name: str, call: Call, layout: str, stored: torch.dtype, device: str) -> None:
    """Initial states in a layout, some of them not read; final states into a buffer of another dtype."""
    gates, decay, beta = gates_of(call, "log", torch.float32)
    fresh = torch.arange(len(call.lengths)) % 3 == 1
    starts = call.states().masked_fill(fresh[:, None, None, None], 0)
    expected, after = literal(call.rows(), call.lengths, decay, beta, starts)
    states = call.states().masked_fill(fresh[:, None, None, None], float("nan"))
    given = call.batch(call.rows() | gates, device) | {"has_initial_state": ~fresh.to(device)}
    buffer = LAYOUTS[layout](torch.full(states.shape, 7.0, dtype=stored, device=device))
    output, final_state = _function(name)(**given, state=LAYOUTS[layout](states.to(device)), final_state=buffer)
    assert final_state is buffer
    near(output.view(expected.shape), expected, call.io, call.io)
    near(final_state, torch.stack([each[-1] for each in after]), call.io, stored)


def check_pool(call: Call, layout: str, device: str, gate: str = "log", update: bool = True) -> None:
    """A pool whose slots are read according to has_initial_state and written according to write_indices; a sequence without
    tokens writes the state that it starts from. Other slots, and the gaps between slots, are not written."""
    count = len(call.lengths)
    gates, decay, beta = gates_of(call, gate, torch.float32)
    indices = torch.arange(count).flip(0) + 1
    indices[count // 2] = -1  # skipped: output 0
    fresh = torch.arange(count) % 3 == 1
    targets = torch.where(torch.arange(count) % 4 == 2, -1, indices + count)
    pool = call.states(2 * count + 2)
    pool[indices[fresh & (indices >= 0)]] = float("nan")
    starts = pool[indices.clamp(min=0)].masked_fill((fresh | (indices < 0))[:, None, None, None], 0)
    expected, after = literal(call.rows(), call.lengths, decay, beta, starts)
    wanted, written = pool.double(), torch.zeros(pool.shape[0], dtype=torch.bool)
    for n in range(count):
        if indices[n] < 0:
            expected[sum(call.lengths[:n]) : sum(call.lengths[: n + 1])] = 0
        elif targets[n] >= 0 and update:
            wanted[targets[n]], written[targets[n]] = after[n][-1], True
    given = call.batch(call.rows() | gates, device) | {"has_initial_state": ~fresh.to(device)}
    table = torch.stack([indices, torch.full_like(indices, 10**6)], dim=1).to(device)
    given |= {"state_indices": table[:, 0], **({"write_indices": targets.to(device)} if update else {"update_state": False})}
    mine = LAYOUTS[layout](pool.to(device))
    output, state = gdn_cuda.chunked_forward(**given, state=mine)
    assert state is mine
    near(output.view(expected.shape), expected, call.io, call.io)
    if written.any():
        near(mine.cpu()[written], wanted[written], call.io, call.state)
    assert torch.equal(mine.cpu()[~written].nan_to_num(7), pool[~written].nan_to_num(7))


def check_empty_sequences(call: Call, layout: str, device: str) -> None:
    """Sequences without tokens on a pool that is updated in place: those that start from zeros clear their slots, the others do
    not change a bit of theirs. Other slots are not written."""
    count = len(call.lengths)
    indices = torch.arange(count).flip(0) + 1
    indices[-1] = -1
    fresh = torch.arange(count) % 2 == 0
    pool, empty = call.states(count + 2), torch.tensor(call.lengths) == 0
    pool[indices[fresh & ~empty & (indices >= 0)]] = float("nan")
    cleared, kept = indices[empty & fresh & (indices >= 0)], indices[empty & ~fresh & (indices >= 0)]
    assert len(cleared) and len(kept)
    others = [slot for slot in range(len(pool)) if slot not in indices.tolist()]
    gates, _, _ = gates_of(call, "raw-logit", torch.float32)
    starts = on(device, {"has_initial_state": ~fresh, "state_indices": indices})
    for name in ("chunked", "decode"):
        mine = LAYOUTS[layout](pool.to(device))
        given = call.batch(call.rows() | gates, device) | starts
        if name == "chunked":
            gdn_cuda.chunked_forward(**given, state=mine)
        else:
            decode_names = {"gate": "a", "beta": "b"}
            given = {decode_names.get(argument, argument): x for argument, x in given.items() if argument != "beta_is_logit"}
            gdn_cuda.fused_decode(**given, state_pool=mine)
        after = mine.cpu()
        assert not after[cleared].any(), name
        assert torch.equal(after[kept], pool[kept]) and torch.equal(after[others], pool[others]), name


def check_rows(call: Call, layout: str, stored: torch.dtype, device: str) -> None:
    """Checkpoints and states before blocks, into buffers that have more rows than needed, or fewer."""
    gates, decay, beta = gates_of(call, "log", torch.float32)
    starts = call.states()
    _, after = literal(call.rows(), call.lengths, decay, beta, starts)
    checkpoints = torch.cat([each[BLOCK::BLOCK] for each in after])
    before = torch.cat([each[:-1:BLOCK] for each in after])
    shape = call.states().shape[1:]
    given = call.batch(call.rows() | gates, device) | {"state": starts.to(device)}
    for more in (2, -1):
        buffers = {
            name: LAYOUTS[layout](torch.full((len(rows) + more, *shape), 7.0, dtype=stored, device=device))
            for name, rows in (("checkpoints", checkpoints), ("states_before", before))
        }
        _, _, found = gdn_cuda.chunked_forward(**given, **buffers, checkpoint_every=BLOCK)
        assert found is buffers["checkpoints"]
        near(found[: len(checkpoints)], checkpoints[: len(found)], call.io, stored)
        near(buffers["states_before"][: len(before)], before[: len(before) + more], call.io, stored)
        assert not buffers["states_before"][len(before) :].any()


def check_decode(call: Call, layout: str, device: str, negative: bool, null_slot: int | None = 0) -> None:
    """fused_decode from slots of a pool, in a layout, to other slots."""
    count = len(call.lengths)
    gates, decay, beta = gates_of(call, "raw-negative" if negative else "raw-logit", torch.float32)
    indices = torch.arange(count).flip(0) + 1
    indices[count // 2] = -1 if null_slot is None else null_slot
    fresh, targets = torch.arange(count) % 3 == 1, indices + count
    targets[0] = -5
    skipped = (indices < 0) | (indices == null_slot)
    pool = call.states(2 * count + 2)
    pool[indices[fresh & ~skipped]] = float("nan")
    starts = pool[indices.clamp(min=0)].masked_fill((fresh | skipped)[:, None, None, None], 0)
    expected, after = literal(call.rows(), call.lengths, decay, beta, starts, norm=True)
    wanted, written = pool.double(), torch.zeros(pool.shape[0], dtype=torch.bool)
    for n in range(count):
        if skipped[n]:
            expected[sum(call.lengths[:n]) : sum(call.lengths[: n + 1])] = 0
        elif targets[n] >= 0:
            wanted[targets[n]], written[targets[n]] = after[n][-1], True
    arguments = {"a": gates["gate"], "b": gates["beta"], "A_log": gates["A_log"], "dt_bias": gates["dt_bias"]}
    given = call.batch(call.rows() | arguments, device) | {"has_initial_state": ~fresh.to(device)}
    given |= on(device, {"state_indices": indices, "write_indices": targets})
    mine = LAYOUTS[layout](pool.to(device))
    output = gdn_cuda.fused_decode(**given, state_pool=mine, null_slot=null_slot, allow_negative_eigenvalues=negative)
    near(output.view(expected.shape), expected, call.io, call.io)
    near(mine.cpu()[written], wanted[written], call.io, call.state)
    assert torch.equal(mine.cpu()[~written].nan_to_num(7), pool[~written].nan_to_num(7))


def check_more_queries(io: torch.dtype, device: str) -> None:
    """Query has more heads than key and value: in every operator, gates, states and outputs have as many as query."""
    call, long = Call((3, 0, 1, 5, 2), (6, 2), 20, 7, io), Call((70, 0, 65), (4, 2), 8, 8, io)
    for name in ("recurrent", "chunked"):
        check_gates(name, call, "none", torch.float32, device)
        check_gates(name, call, "raw-logit", torch.bfloat16, device)
        check_rank_4(name, call, device, gaps=True)
        check_buffers(name, call, "kv", torch.float16, device)
    check_pool(call, "spread", device)
    check_rows(long, "contiguous", torch.float32, device)
    check_decode(call, "kv", device, negative=True)
