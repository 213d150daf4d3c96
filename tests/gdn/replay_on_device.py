"""gdn/replay: servers that verify by replay against the recurrence in fp64, and hostile calls."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from devices import Device
from guarded import bits
from kda_cases import GATES, log_decays
from replay_cases import Server
from rings_on_device import Call, device_calls
from torch import Tensor

from gdn_cuda import commit_replay, replay_decode

STATES = (torch.float32, torch.bfloat16)
WRITTEN = ("state_pool", "keys", "updates", "decays", "banks")


def calls(device: Device) -> tuple[Call, Call]:
    return device_calls(device, "gdn/replay", replay_decode, commit_replay, WRITTEN)


def serve(device: Device, server: Server, tokens: int) -> None:
    """Padded and packed calls, some sequences without tokens."""
    decode, commit = calls(device)
    count = len(server.slots)
    for lengths in ([tokens] * count, [tokens - tokens // 2] * count, [1] * count):
        server.verify(decode, lengths)
        server.accept_some()
    server.verify(decode, ([tokens, 0, tokens - 1] * count)[:count], packed=True)
    server.accept([len(after) - 1 for after in server.after])
    server.commit(commit)


@pytest.mark.parametrize("channel_gates", [False, True])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    "dk, dv",
    [
        (64, 136), (96, 40), (96, 192), (128, 128), (128, 200), (192, 24), (192, 96), (256, 72), (256, 256), (8, 8), (40, 72),
        (120, 16), (200, 40),
    ],
)  # fmt: skip
def test_head_dimensions(dk: int, dv: int, state: torch.dtype, channel_gates: bool, device: Device, seed: int) -> None:
    sequences, heads = device.size((2, 1), (3, 2))
    for io in (torch.bfloat16, torch.float16):
        for steps in (3, 9):
            options = {"dk": dk, "dv": dv, "state": state, "io": io, "steps": steps, "channel_gates": channel_gates}
            serve(device, Server(seed, **options, sequences=sequences, Hv=heads, device=device.name), steps)


@pytest.mark.parametrize("steps", [1, 2, 8, 16])
@pytest.mark.parametrize("Hk, Hv", [(1, 1), (2, 6), (1, 8)])
def test_steps_and_heads(steps: int, Hk: int, Hv: int, device: Device, seed: int) -> None:
    server = Server(seed, Hk=Hk, Hv=Hv, dk=64, dv=24, steps=steps, index=torch.int64, device=device.name)
    serve(device, server, steps)


def test_long_service(device: Device, seed: int) -> None:
    """Errors do not add up, whatever is accepted. With weak gates, states decay slowly."""
    decode, commit = calls(device)
    dk, dv, pace, count = device.size((64, 16, 4.0, 12), (128, 64, 1.0, 30))
    server = Server(seed, dk=dk, dv=dv, pace=pace, steps=5, device=device.name)
    server.heads["A_log"] -= 5
    for _ in range(count):
        server.verify(decode, [5] * 3)
        server.accept_some()
    server.commit(commit)


@pytest.mark.parametrize("channel_gates", [False, True])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("dk", [64, 72, 136])
def test_rows_that_do_not_start_on_16_bytes(
    dk: int, state: torch.dtype, channel_gates: bool, device: Device, seed: int
) -> None:
    for io in (torch.bfloat16, torch.float16):
        server = Server(seed, dk=dk, dv=16, io=io, state=state, device=device.name, channel_gates=channel_gates)
        tokens = server.tokens

        def shifted(*lead: int, dk: int = dk, tokens: Any = tokens) -> dict[str, Tensor]:
            x = tokens(*lead)
            wide = torch.zeros(*x["key"].shape[:-1], dk + 1, dtype=x["key"].dtype, device=x["key"].device)
            return x | {"key": wide[..., 1:].copy_(x["key"])}

        server.tokens = shifted  # type: ignore[method-assign]
        serve(device, server, 4)


def test_hostile_slots_and_counts(device: Device, seed: int) -> None:
    """NaN for slots past the pool and counts past the steps, 0 for slots that are none; nothing of either is touched."""
    decode, _ = calls(device)
    server = Server(seed, sequences=8, steps=5, device=device.name)
    x: dict[str, Any] = server.arguments(server.tokens(8, 3))
    for name in ("keys", "updates"):
        x[name].copy_(torch.randn(x[name].shape, generator=server.rng))
    x["decays"].fill_(0.5)
    alone = {name: y.clone() if isinstance(y, Tensor) else y for name, y in x.items()}
    slots = torch.tensor([2**63 - 1, 1, 2, -(2**63), 2**32, 3, 4, 5], device=device.name)
    x["state_indices"] = slots
    x["num_accepted_tokens"] = torch.tensor([1, 2**63 - 1, -(2**63), 2**62, 6, 6, 2**32, 5], device=device.name)
    before = {name: x[name].clone() for name in WRITTEN}
    out = decode(**x, null_slot=4, out=torch.full(x["value"].shape, 7.0, dtype=x["value"].dtype, device=device.name))
    assert out[[0, 1, 4, 5]].isnan().all() and not out[[3, 6]].any() and out[[2, 7]].isfinite().all()
    for name, old in before.items():
        changed = [slot for slot in range(old.shape[0]) if not torch.equal(bits(x[name][slot]), bits(old[slot]))]
        assert changed == ([5] if name == "state_pool" else [2, 5])
    valid = torch.tensor([n in (2, 7) for n in range(8)], device=device.name)
    accepted = torch.tensor([0] * 7 + [5], device=device.name)
    alone |= {"state_indices": torch.where(valid, slots, -1), "num_accepted_tokens": accepted}
    expected = decode(**alone, null_slot=4, out=torch.empty_like(out))
    assert torch.equal(out[[2, 7]], expected[[2, 7]])
    assert all(torch.equal(bits(x[name]), bits(alone[name])) for name in WRITTEN)


@pytest.mark.parametrize("offsets", [[0, 9, 0, 9], [300, 200, 100, 0], [-(2**63), 2**63 - 1, 5, -(2**63)], [0, 6, 6, 2**32]])
def test_hostile_offsets(offsets: list[int], device: Device, seed: int) -> None:
    """A sequence of more tokens than there are steps gives NaN, and its state stays."""
    decode, _ = calls(device)
    server = Server(seed, steps=5, device=device.name)
    x = server.arguments(server.tokens(9)) | {"cu_seqlens": torch.tensor(offsets, device=device.name)}
    spans = [(min(max(a, 0), 9), min(max(b, 0), 9)) for a, b in pairwise(offsets)]
    before = x["state_pool"].clone()
    out = decode(**x, out=torch.zeros(x["value"].shape, dtype=x["value"].dtype, device=device.name))
    device.synchronize()
    too_long = [n for n, (first, last) in enumerate(spans) if last - first > 5]
    for slot in server.slots[too_long].tolist():
        assert torch.equal(x["state_pool"][slot], before[slot])
    if too_long == [0] and spans[0] == (0, 6):
        assert out[:6].isnan().all()


def test_nothing_is_read_of_steps_that_were_not_accepted(device: Device, seed: int) -> None:
    """Buffers begin full of NaN (replay_cases.py); here only the accepted steps are finite."""
    decode, commit = calls(device)
    server = Server(seed, device=device.name)
    server.verify(decode, [4] * 3)
    server.accept([1, 2, 3])
    for n, slot in enumerate(server.slots.tolist()):
        bank = int(server.buffers.banks[slot, 0, 0])
        server.buffers.keys[slot, bank, n + 1 :], server.buffers.decays[slot, bank, n + 1 :] = torch.nan, torch.nan
        server.buffers.updates[slot, n + 1 :] = torch.nan
    server.verify(decode, [4] * 3)
    server.accept_some()
    server.commit(commit)


# ---- A gate for every channel of the key


@pytest.mark.parametrize("steps", [1, 4, 16])
@pytest.mark.parametrize("lower_bound", [None, -5.0])
def test_raw_gates_of_channels(lower_bound: float | None, steps: int, device: Device, seed: int) -> None:
    server = Server(
        seed, Hk=1, Hv=3, dk=64, dv=24, steps=steps, device=device.name, channel_gates=True, lower_bound=lower_bound
    )
    serve(device, server, steps)


def with_log_decays(server: Server, gates: str) -> Server:
    """a is the logarithm of the decay, in fp32."""
    server.heads = {"A_log": None, "dt_bias": None}
    tokens = server.tokens

    def drawn(*lead: int) -> dict[str, Tensor]:
        a = log_decays(gates, (*lead, server.Hv, server.dk), server.rng)
        return tokens(*lead) | {"a": a.to(server.device)}

    server.tokens = drawn  # type: ignore[method-assign]
    return server


@pytest.mark.parametrize("gates", [gates for gates in GATES if gates != "NaN in a head"])
def test_hostile_gates_of_channels(gates: str, device: Device, seed: int) -> None:
    server = Server(seed, dk=64, dv=24, sequences=2, steps=5, device=device.name, channel_gates=True)
    serve(device, with_log_decays(server, gates), 5)


@pytest.mark.parametrize("wrong", [torch.inf, torch.nan])
@pytest.mark.parametrize("stored", [False, True])
def test_nothing_before_a_reset_shows_in_its_column(stored: bool, wrong: float, device: Device, seed: int) -> None:
    """Columns of the state that are not finite, reset by a stored token or by the first new one."""
    decode, _ = calls(device)
    found = []
    for poison in (False, True):
        server = with_log_decays(Server(seed, dk=64, dv=24, steps=3, device=device.name, channel_gates=True), "init")
        if stored:
            first = server.tokens(3, 3)
            first["a"][:, 1, 0, 7] = first["a"][:, 0, 1, 63] = -torch.inf
            x = server.arguments(first)
            decode(**x, out=torch.empty_like(x["value"].contiguous()))
            server.accepted.fill_(3)
        tokens = server.tokens(3, 3)
        if not stored:
            tokens["a"][:, 0, 0, 7] = tokens["a"][:, 0, 1, 63] = -torch.inf
        if poison:
            server.pool[:, 0, :, 7], server.pool[:, 1, :, 63] = wrong, wrong
        x = server.arguments(tokens)
        out = decode(**x, out=torch.full(x["value"].shape, torch.nan, dtype=server.io, device=device.name))
        found.append((out.cpu(), server.pool.cpu()[server.slots.cpu().long()] if stored else out.cpu()))
    assert all(torch.equal(clean, poisoned) for clean, poisoned in zip(*found, strict=True))
    assert all(x.isfinite().all() for x in found[1])


def test_a_token_that_resets_all_channels(device: Device, seed: int) -> None:
    """Infinities of values and states before it do not show."""
    decode, _ = calls(device)
    outs = []
    for poison in (False, True):
        server = with_log_decays(Server(seed, dk=64, dv=24, steps=5, device=device.name, channel_gates=True), "init")
        tokens = server.tokens(3, 5)
        tokens["a"][:, 3] = -torch.inf
        if poison:
            tokens["value"][:, 1] = torch.inf
            server.pool[1:].fill_(torch.nan)
        x = server.arguments(tokens)
        outs.append(decode(**x, out=torch.empty_like(x["value"].contiguous())).cpu())
    assert torch.equal(outs[0][:, 3:], outs[1][:, 3:]) and bool(outs[1][:, 3:].isfinite().all())
    assert not outs[1][:, 1:3].isfinite().any()  # a value that is not finite spoils its rows
