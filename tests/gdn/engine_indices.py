"""Indices as serving engines have them (calls_by_engines.py): slots, steps, counts of drafted tokens; invalid indices."""

from __future__ import annotations

from typing import Any

import torch
from calls_by_engines import BLOCK, LAYOUTS, Call, as_kv, gates_of, literal, near, on, with_gaps
from torch import Tensor

import gdn_cuda

DESTINATIONS = ("slots", "steps", "steps and a slot", "nowhere")


def check_drafts(call: Call, layout: str, to: str, device: str, gaps: bool = True) -> None:
    """fused_decode of drafted tokens. The state after each token goes to a slot or to step_states, the last one also to a slot.
    What no sequence may read is NaN: unused slots, slots of sequences that start from zeros, step_states. Sequences of the same
    length are a padded batch, others (1, N, H, d)."""
    count, width = len(call.lengths), max(call.lengths) + 1
    gates, decay, beta = gates_of(call, "raw-logit", torch.float16)
    by_token, null_slot = to in ("slots", "steps"), 3
    indices = torch.arange(count * width).view(count, width).flip(1) + 4
    indices[0, width // 2], indices[1, 0], indices[3, 0], indices[-1, 1] = -1, null_slot, null_slot, -(2**40)
    accepted = torch.arange(count) % (width + 2) - 1
    accepted[-1] = width
    column = accepted.clamp(min=1) - 1 if by_token else torch.zeros(count, dtype=torch.int64)
    slots = indices[torch.arange(count), column]
    skipped, fresh = (slots < 0) | (slots == null_slot), torch.arange(count) % 3 == 2
    targets, rows = torch.arange(count) - 1, torch.arange(count).flip(0) + 1
    rows[count // 2] = -3

    pool = torch.full_like(call.states(count * width + 4), float("nan"))
    read = slots[~skipped & ~fresh]
    pool[read] = call.states(len(pool))[read]
    starts = pool[slots.clamp(min=0)].masked_fill((fresh | skipped)[:, None, None, None], 0)
    expected, after = literal(call.rows(), call.lengths, decay, beta, starts, norm=True)
    steps = torch.full((count + 1, width, *pool.shape[1:]), float("nan"), dtype=call.state)
    wanted = {"state_pool": pool.double(), "step_states": steps.double()}
    written = {name: torch.zeros(x.shape[:-3], dtype=torch.bool) for name, x in wanted.items()}
    for n, length in enumerate(call.lengths):
        if skipped[n]:
            expected[sum(call.lengths[:n]) : sum(call.lengths[: n + 1])] = 0
            continue
        places: list[tuple[str, Any, int]] = [("step_states", (rows[n], t), t) for t in range(length)] if "steps" in to else []
        places += [("state_pool", indices[n, t], t) for t in range(length)] if to == "slots" else []
        places += [("state_pool", targets[n], length - 1)] if to == "steps and a slot" else []
        for name, at, t in places:
            if (at[0] if isinstance(at, tuple) else at) >= 0 and not (name == "state_pool" and at == null_slot):
                wanted[name][at], written[name][at] = after[n][t + 1], True

    def laid_out(states: Tensor) -> Tensor:
        return LAYOUTS[layout](states.flatten(0, -4).to(device)).unflatten(0, states.shape[:-3])

    found = {"state_pool": laid_out(pool), "step_states": laid_out(steps)}
    padded = len(set(call.lengths)) == 1
    tokens = call.rows() | {"a": gates["gate"], "b": gates["beta"]}
    given = on(device, {name: x.unflatten(0, (count if padded else 1, -1)) for name, x in tokens.items()})
    if gaps:
        given |= {name: with_gaps(given[name]) for name in ("query", "key", "value")}
    given |= on(device, {"A_log": gates["A_log"], "dt_bias": gates["dt_bias"]})
    given |= {} if padded else {"cu_seqlens": call.cu_seqlens().to(device)}
    given |= on(device, {"has_initial_state": ~fresh, "state_indices": indices if by_token else slots})
    if by_token:
        given["num_accepted_tokens"] = accepted.to(device)
    if "steps" in to:
        given |= {"step_states": found["step_states"], "step_slots": rows.to(device)}
    if to == "steps and a slot":
        given["write_indices"] = targets.to(device)
    output = gdn_cuda.fused_decode(**given, state_pool=found["state_pool"], null_slot=null_slot, update_state=to != "nowhere")
    near(output.flatten(0, 1), expected, call.io, call.io)
    for name, before in (("state_pool", pool), ("step_states", steps)):
        mine, changed = found[name].cpu(), written[name]
        assert torch.equal(mine[~changed].nan_to_num(7), before[~changed].nan_to_num(7)), name
        if changed.any():
            near(mine[changed], wanted[name][changed], call.io, call.state)


# ---- Invalid indices, which only kernels get: on CPU tensors they are refused, on a device the host cannot check them

FAR = (2**63 - 1, -(2**63), 2**32, 2**32 + 1, -(2**31) - 1)


def _half_invalid(valid: Tensor, room: int) -> Tensor:
    """The indices with every second one replaced by one outside of 0 to room − 1."""
    indices = valid.clone().flatten()
    indices[::2] = torch.tensor([*FAR, room] * valid.numel())[: indices[::2].numel()]
    return indices.view(valid.shape)


def _absent(indices: Tensor, room: int) -> Tensor:
    """The indices with −1 in place of invalid ones."""
    return torch.where((indices < 0) | (indices >= room), -1, indices)


def _same(found: Tensor, expected: Tensor) -> None:
    assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))


def check_invalid_indices(call: Call, layout: str, device: str) -> None:
    """An invalid slot, slot to write or row of step_states has the effect of −1, and an invalid count that of the nearest valid
    one; but with a slot to read past the pool, the output is NaN."""
    count, width = len(call.lengths), max(call.lengths)
    gates, _, _ = gates_of(call, "raw-logit", torch.float32)
    rows = on(device, call.rows())
    per_head = on(device, {"A_log": gates["A_log"], "dt_bias": gates["dt_bias"]})
    gate, beta = gates["gate"].to(device), gates["beta"].to(device)
    offsets = {"cu_seqlens": call.cu_seqlens().to(device), "has_initial_state": (torch.arange(count) % 3 != 1).to(device)}
    states = call.states(count * width + 3)
    room, sequence = len(states), torch.arange(count).repeat_interleave(torch.tensor(call.lengths))

    def compare(run: Any, slots: Tensor, others: dict[str, tuple[Tensor, Tensor]]) -> None:
        """`others` has for each argument its invalid indices and valid ones with the same effect."""
        (found, mine), (expected, wanted) = (
            run(**on(device, {"state_indices": each, **{name: x[i] for name, x in others.items()}}))
            for i, each in enumerate((slots, _absent(slots, room)))
        )
        if slots.dim() == 2:
            slots = slots.gather(1, others["num_accepted_tokens"][1][:, None] - 1)[:, 0]
        past = (slots >= room)[sequence]
        assert past.any() and not past.all()
        expected[past.to(device)] = torch.nan
        for each, other in zip((found, *mine), (expected, *wanted), strict=True):
            _same(each, other)

    def decode(**more: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        pool, steps = (LAYOUTS[layout](states.to(device)) for _ in range(2))
        if "step_slots" in more:
            more["step_states"] = steps[: room // width * width].unflatten(0, (-1, width))
        return gdn_cuda.fused_decode(**rows, a=gate, b=beta, **per_head, **offsets, state_pool=pool, **more), (pool, steps)

    def prefill(**more: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        pool = LAYOUTS[layout](states.to(device))
        given = {**rows, "gate": gate, "beta": beta, **per_head, **offsets, "beta_is_logit": True, "deterministic": True}
        return gdn_cuda.chunked_forward(**given, state=pool, **more)[0], (pool,)

    slots, targets = _half_invalid(torch.arange(count), room), _half_invalid(torch.arange(count) + count, room).flip(0)
    written = {"write_indices": (targets, _absent(targets, room))}
    compare(decode, slots, {})
    compare(decode, slots, written)
    compare(prefill, slots, written)
    step_rows = _half_invalid(torch.arange(count).flip(0), room // width).roll(1)
    compare(decode, slots, written | {"step_slots": (step_rows, _absent(step_rows, room // width))})
    accepted = torch.tensor([*FAR, 0, 1] * count)[:count]
    counts = {"num_accepted_tokens": (accepted, accepted.clamp(1, width))}
    compare(decode, _half_invalid(torch.arange(count * width).view(count, width), room), counts)


def check_invalid_offsets(call: Call, device: str) -> None:
    """cu_seqlens that decrease, overlap or are out of range: only the caller's tensors are read or written. The emulator, guard
    bands or memcheck notice other accesses."""
    gates, _, _ = gates_of(call, "log", torch.float32)
    count, N = len(call.lengths), call.tokens
    offsets = [
        [0, N] * count,
        [*range(3 * count + 3, 0, -3)],
        [2**63 - 1, -(2**63), 2**32] * count,
        [-1, 5, 4, N + 1, N] * count,
    ]
    shape, given = call.states().shape[1:], on(device, {**call.rows(), **gates})
    for each in offsets:
        more = on(device, {"cu_seqlens": torch.tensor(each[: count + 1]), "state": as_kv(call.states())})
        gdn_cuda.recurrent_forward(**given, **more, inference_mode=gdn_cuda.InferenceMode.SPEC_VERIFY)
        buffers = {"checkpoints": torch.zeros(2, *shape, device=device), "states_before": torch.zeros(3, *shape, device=device)}
        gdn_cuda.chunked_forward(**given, **more, **buffers, checkpoint_every=BLOCK)
        gdn_cuda.chunked_forward(
            **given, **more, **buffers, checkpoint_every=BLOCK, state_indices=torch.arange(count).to(device)
        )
