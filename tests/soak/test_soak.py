"""The soak on CPU tensors for some seconds (GDN_SOAK_SECONDS, from the seed GDN_SOAK_SEED on), and that it finds faults."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import soak_runner
import torch
from soak import LOADS, Soak
from soak_calls import DRAFTS, Seat
from soak_counts import Counts, table
from soak_delta import GatedDeltaNet
from soak_engine import Engine
from soak_layer import Layer
from soak_mamba import Mamba2
from soak_pools import Pool, States
from soak_runner import Runner

import gdn_cuda

Patch = pytest.MonkeyPatch


def test_as_an_engine_serves() -> None:
    soak = Soak("cpu")
    soak.run(float(os.environ.get("GDN_SOAK_SECONDS", 5)), int(os.environ.get("GDN_SOAK_SEED", 0)), least=2)
    print(f"\n{table(soak.counts())}")
    for engine in soak.engines:
        counts = engine.counts
        assert counts.literal and counts.prefixes and counts.preemptions and counts.moves and counts.rejected
        assert set(counts.calls) == set(engine.layer.ops)


def test_a_seed_gives_the_same_requests() -> None:
    """A failure prints a seed, whose epoch alone repeats it, whatever has run before."""
    soak = Soak("cpu", "gdn", replace(LOADS["cpu"], steps=10))
    seen = []
    for seed in (1, 2, 1):
        engine = soak.engines[0]
        engine.counts = Counts()
        soak.epoch(seed)
        seen.append(vars(engine.counts))
    assert seen[0] == seen[2] != seen[1]


# ---- Faults, of the engine and of what it calls


def _before(patch: Patch, owner: Any, name: str, change: Callable[..., Any]) -> None:
    """`change` gets the original and its arguments."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **kwargs: change(original, *args, **kwargs))


def not_restored(patch: Patch) -> None:
    patch.setattr(Pool, "load", lambda self, slots, saved: None)


def restored_elsewhere(patch: Patch) -> None:
    """A request with several slots gets them in another order."""
    _before(patch, Pool, "load", lambda load, self, slots, saved: load(self, slots[::-1], saved))


def stale_states_count(patch: Patch) -> None:
    _before(patch, Layer, "prompt", lambda prompt, *given, **more: prompt(*given[:-1], torch.zeros_like(given[-1]), **more))


def slot_given_twice(patch: Patch) -> None:
    def take(original: Any, pool: Pool, count: int = 1) -> list[int]:
        slots = original(pool, count)
        return [0] * count if pool.slots > 10 else slots

    _before(patch, Pool, "take", take)


def padding_writes(patch: Patch) -> None:
    def step(original: Any, self: Layer, op: str, pool: Pool, x: dict[str, torch.Tensor]) -> Any:
        pad = -1 if self.null_slot is None else self.null_slot
        return original(self, op, pool, x | {"homes": torch.where(x["homes"] == pad, 1, x["homes"])})

    _before(patch, Layer, "step", step)


def free_slot_is_written(patch: Patch) -> None:
    def step(original: Any, self: Layer, op: str, pool: Pool, x: dict[str, torch.Tensor]) -> Any:
        pool.tensors["state"][pool.free[-1:]] = 0
        return original(self, op, pool, x)

    _before(patch, Layer, "step", step)


def token_dropped(patch: Patch) -> None:
    def accept(original: Any, self: Engine, request: Any, call: Any, result: Any) -> None:
        original(self, request, call, result)
        request.done += request.done < request.prompt - 1

    _before(patch, Engine, "accept", accept)


def token_of_a_part_replaced(patch: Patch) -> None:
    """The engine's prompt has another token than the request, in calls of several sequences."""

    def prompt(original: Any, self: Layer, pool: Pool, ids: torch.Tensor, slots: torch.Tensor, *given: Any, **more: Any) -> Any:
        return original(self, pool, ids.flip(0) if len(slots) > 1 else ids, slots, *given, **more)

    _before(patch, Layer, "prompt", prompt)


def one_token_too_many_accepted(patch: Patch) -> None:
    def accept(original: Any, op: str, seat: Seat, call: Any) -> None:
        original(op, seat, call)
        seat.accepted = min(seat.accepted + 1, DRAFTS) if seat.accepted else 0

    _before(patch, soak_runner, "_accept", accept)


def convolution_continues_from_the_last_draft(patch: Patch) -> None:
    patch.setattr(soak_runner, "_accept", lambda op, seat, call: setattr(seat, "accepted", len(call.kept)))


def tree_without_its_branches(patch: Patch) -> None:
    """Tokens see the inputs of those before them, not of their path."""
    patch.setattr(soak_runner, "_window", lambda path: [path[-1] + i + 1 for i in range(3)] if path else [0, 1, 2])


def accepted_tokens_lost(patch: Patch) -> None:
    for layer in (GatedDeltaNet, Mamba2):
        patch.setattr(layer, "commit", lambda *given: None)


def another_checkpoint(patch: Patch) -> None:
    def keep(original: Any, self: Engine, request: Any, call: Any, result: Any) -> None:
        original(self, request, call, result)
        if self.cache:
            states = self.cache[-1].states
            name = "scales" if "scales" in states else "state"
            self.cache[-1] = replace(self.cache[-1], states=states | {name: 1.02 * states[name]})

    _before(patch, Engine, "keep", keep)


def counts_are_ignored(patch: Patch) -> None:
    """In the engine's calls and alone: fp64 differs."""
    for name in ("fused_decode", "selective_state_update"):
        _before(patch, gdn_cuda, name, lambda f, *given, num_accepted_tokens=None, **more: f(*given, **more))


def packing_changes_the_last_state(patch: Patch) -> None:
    def chunked(original: Any, *given: Any, **more: Any) -> Any:
        found = original(*given, **more)
        if len(more["state_indices"]) > 1:
            given[5][more["state_indices"][-1].clamp(min=0)] *= 1.001
        return found

    _before(patch, gdn_cuda, "chunked_forward", chunked)


def one_launch_lacks_the_bias(patch: Patch) -> None:
    for name in ("kda_decode_layer", "mamba2_decode_layer"):
        _before(patch, gdn_cuda, name, lambda f, *given, conv_bias, **more: f(*given, **more))


# ---- Faults of scales and of rings


def _states_without_scales(states: States) -> States:
    return {name: tensor for name, tensor in states.items() if name != "scales"}


def codes_move_without_scales(patch: Patch) -> None:
    _before(patch, Pool, "put", lambda put, self, slots, states: put(self, slots, _states_without_scales(states)))


def scales_move_by_a_row(patch: Patch) -> None:
    def load(original: Any, self: Pool, slots: list[int], saved: dict[str, torch.Tensor]) -> None:
        original(self, slots, saved | {"scales": saved["scales"].roll(1, -2)})

    _before(patch, Pool, "load", load)


def codes_stored_after_a_verify_without_scales(patch: Patch) -> None:
    _before(patch, Runner, "launch", lambda f, *given: (*f(*given)[:3], _states_without_scales(f(*given)[3])))


def a_step_keeps_the_old_scales(patch: Patch) -> None:
    """In the engine's calls and alone: fp64 differs."""

    def decode(original: Any, *given: Any, state_scales: torch.Tensor | None = None, **more: Any) -> Any:
        before = None if state_scales is None else state_scales.clone()
        out = original(*given, state_scales=state_scales, **more)
        if state_scales is not None:
            state_scales.copy_(before)
        return out

    _before(patch, gdn_cuda, "fused_decode", decode)


def codes_become_values(patch: Patch) -> None:
    """In the engine alone, whose pools are larger: the scales count only where both pools are of int8."""

    def convert(original: Any, states: Any, dtype: Any, scales: Any = None, **more: Any) -> Any:
        large = scales is not None and len(more["out"]) > 10
        return original(states, dtype, torch.ones_like(scales) if large else scales, **more)

    _before(patch, gdn_cuda, "convert_states", convert)


def ring_stays_where_it_was(patch: Patch) -> None:
    """A state moves or is preempted without being folded first, and without the tokens that it lacks."""

    def load(original: Any, self: Pool, slots: list[int], saved: dict[str, torch.Tensor]) -> None:
        original(self, slots, {name: tensor for name, tensor in saved.items() if name in ("state", "scales", "conv")})

    _before(patch, Pool, "load", load)


def pending_is_not_reset(patch: Patch) -> None:
    """A token of the sequence that had the slot before is still pending."""

    def take(original: Any, self: Pool, count: int = 1) -> list[int]:
        slots = original(self, count)
        self.tensors["pending"][slots] = 1
        return slots

    _before(patch, Pool, "take", take)


def tokens_applied_twice(patch: Patch) -> None:
    """A fold that leaves `pending` as it was."""

    def commit(original: Any, pool: torch.Tensor, buffers: Any, *given: Any, **more: Any) -> Any:
        before = getattr(buffers, "pending", torch.empty(0)).clone()
        found = original(pool, buffers, *given, **more)
        getattr(buffers, "pending", torch.empty(0)).copy_(before)
        return found

    for name in ("commit_replay", "ssd_commit_replay"):
        _before(patch, gdn_cuda, name, commit)


FAULTS = {
    "gdn": (
        not_restored,
        restored_elsewhere,
        stale_states_count,
        slot_given_twice,
        padding_writes,
        token_dropped,
        token_of_a_part_replaced,
        one_token_too_many_accepted,
        convolution_continues_from_the_last_draft,
        tree_without_its_branches,
        accepted_tokens_lost,
        another_checkpoint,
        counts_are_ignored,
        packing_changes_the_last_state,
        ring_stays_where_it_was,
        pending_is_not_reset,
        tokens_applied_twice,
    ),
    "gdn, int8 states": (
        codes_move_without_scales,
        scales_move_by_a_row,
        codes_stored_after_a_verify_without_scales,
        a_step_keeps_the_old_scales,
        ring_stays_where_it_was,
        pending_is_not_reset,
        free_slot_is_written,
        padding_writes,
        another_checkpoint,
    ),
    "gdn, int8 and bf16 states": (codes_become_values, tokens_applied_twice, accepted_tokens_lost),
    "kda, int8 and fp32 states": (codes_stored_after_a_verify_without_scales, codes_become_values, counts_are_ignored),
    "kda": (accepted_tokens_lost, another_checkpoint, one_launch_lacks_the_bias),
    "mamba": (free_slot_is_written, not_restored, stale_states_count, padding_writes, counts_are_ignored),
    "mamba-2": (
        not_restored,
        padding_writes,
        accepted_tokens_lost,
        another_checkpoint,
        one_token_too_many_accepted,
        one_launch_lacks_the_bias,
        ring_stays_where_it_was,
        pending_is_not_reset,
        tokens_applied_twice,
    ),
}


@pytest.mark.parametrize("layer, fault", [(layer, fault) for layer, faults in FAULTS.items() for fault in faults])
def test_a_fault_is_found(layer: str, fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    fault(monkeypatch)
    soak = Soak("cpu", layer, replace(LOADS["cpu"], steps=20))
    again = rf"{layer}, seed \d, step \d+: python tests/soak/soak.py"
    with pytest.raises(AssertionError, match=rf"{again} .*\n((request|pool) \d+|\w+_decode: \w+: expected)"):
        for seed in range(3):
            soak.epoch(seed)
