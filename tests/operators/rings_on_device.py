"""Operators with rings: hostile calls, tokens that do not count, resets. A family's module has a fixture `ring`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from devices import Device
from guarded import bits
from ring_server import BF16, F32, I8, RingServer, serve
from torch import Tensor

Call = Callable[..., Tensor]


def device_calls(device: Device, kernel: str, decode: Call, commit: Call, written: tuple[str, ...]) -> tuple[Call, Call]:
    """`decode` and `commit` on the device. In the emulator, blocks have few rows or many: the same bits."""

    def decoded(**x: Any) -> Tensor:
        outputs = [y for name in (*written, "state_scales", "out") if (y := x.get(name)) is not None]
        before, results = [y.clone() for y in outputs], []
        for multiprocessors in device.size((132, 0), (132,)):
            for y, old in zip(outputs, before, strict=True):
                y.copy_(old)
            with device.kernels(multiprocessors) as launched:
                out = decode(**x)
            assert launched is None or all(each.startswith(f"{kernel}{{") for each in launched())
            results.append([bits(y) for y in (out, *outputs)])
        assert all(torch.equal(mine, first) for each in results for mine, first in zip(each, results[0], strict=True))
        return out

    def committed(*arguments: Any, **options: Any) -> Tensor:
        with device.kernels():
            return commit(*arguments, **options)

    return decoded, committed


@dataclass(frozen=True)
class Ring:
    """An operator with a ring."""

    server: Callable[..., RingServer]
    kernel: str
    decode: Call
    commit: Call
    written: tuple[str, ...]  # the pool, the ring and its counts
    reset: tuple[str, float]  # an argument, and its value where it resets a state

    def calls(self, device: Device) -> tuple[Call, Call]:
        return device_calls(device, self.kernel, self.decode, self.commit, self.written)


def test_more_tokens_than_the_ring_has_room_for(ring: Ring, device: Device, seed: int) -> None:
    decode, commit = ring.calls(device)
    server = ring.server(seed, window=2, device=device.name)
    for tokens in (1, 5, 16, 1, 2):
        server.decode(decode, [tokens] * 3)
    server.commit(commit)


def test_slots_in_the_order_of_the_pool(ring: Ring, device: Device, seed: int) -> None:
    decode, commit = ring.calls(device)
    server = ring.server(seed, sequences=4, device=device.name)
    server.slots.copy_(torch.arange(4))
    server.states = server.pool.cpu().double()[:4]
    arguments = server.arguments
    server.arguments = lambda tokens: arguments(tokens) | {"state_indices": None}  # type: ignore[method-assign]
    for _ in range(6):
        server.decode(decode, [1] * 4)
    server.commit(commit)


def test_rings_of_other_strides(ring: Ring, device: Device, seed: int) -> None:
    decode, commit = ring.calls(device)
    server = ring.server(seed, verifies=True, device=device.name)
    server.buffers = server.buffers._replace(
        **{name: getattr(server.buffers, name).transpose(1, 2).contiguous().transpose(1, 2) for name in ring.written[1:4]}
    )
    serve(server, decode, commit, 2)


def test_hostile_slots_and_counts(ring: Ring, device: Device, seed: int) -> None:
    """NaN for slots past the pool and counts past the ring, 0 for slots that are none; nothing of either is touched."""
    decode, _ = ring.calls(device)
    server = ring.server(seed, sequences=9, window=5, verifies=True, device=device.name)
    x: dict[str, Any] = server.arguments(server.tokens(9, 3))
    for name in ring.written[1:3]:
        x[name].copy_(torch.randn(x[name].shape, generator=server.rng))
    x[ring.written[3]].fill_(0.5), x["pending"].fill_(1)
    slots = torch.tensor([2**63 - 1, 1, 2, -(2**63), 2**32, 3, 4, 5, 6], device=device.name)
    x["state_indices"] = slots
    x["num_accepted_tokens"] = torch.tensor([1, 2**63 - 1, -(2**63), 2**62, 6, 5, 2**32, 4, 0], device=device.name)
    x["pending"][6] = 5
    before = {name: x[name].clone() for name in ring.written}
    out = decode(**x, null_slot=4, out=torch.full(x[server.rows].shape, 7.0, dtype=x[server.rows].dtype, device=device.name))
    assert out[[0, 1, 4, 5]].isnan().all() and not out[[3, 6]].any() and out[[2, 7, 8]].isfinite().all()
    for name, old in before.items():
        changed = [slot for slot in range(old.shape[0]) if not torch.equal(bits(x[name][slot]), bits(old[slot]))]
        assert changed == {"state_pool": [5, 6], "pending": [5, 6]}.get(name, [2, 5, 6]), name
    assert x["pending"][[2, 5, 6]].tolist() == [1, 0, 0]


@pytest.mark.parametrize("offsets", [[0, 9, 0, 9], [300, 200, 100, 0], [-(2**63), 2**63 - 1, 5, -(2**63)], [0, 6, 6, 2**32]])
def test_hostile_offsets(offsets: list[int], ring: Ring, device: Device, seed: int) -> None:
    """A sequence of more tokens than the ring has room for gives NaN, and its slot stays."""
    decode, _ = ring.calls(device)
    server = ring.server(seed, window=5, verifies=True, device=device.name)
    x = server.arguments(server.tokens(9)) | {"cu_seqlens": torch.tensor(offsets, device=device.name)}
    spans = [(min(max(a, 0), 9), min(max(b, 0), 9)) for a, b in pairwise(offsets)]
    before = x["pending"].fill_(2).clone()
    for name in ring.written[1:4]:
        x[name].fill_(1)
    pool = x["state_pool"].clone()
    out = decode(**x, out=torch.zeros(x[server.rows].shape, dtype=x[server.rows].dtype, device=device.name))
    device.synchronize()
    too_long = [n for n, (first, last) in enumerate(spans) if last - first > 5]
    for slot in server.slots[too_long].tolist():
        assert torch.equal(x["state_pool"][slot], pool[slot]) and x["pending"][slot] == before[slot]
    if too_long == [0] and spans[0] == (0, 6):
        assert out[:6].isnan().all()


def test_without_sequences_and_tokens(ring: Ring, device: Device, seed: int) -> None:
    decode, commit = ring.calls(device)
    server = ring.server(seed, verifies=True, device=device.name)
    server.decode(decode, [2] * 3)
    server.accept([1, 2, 0])
    server.decode(decode, [0] * 3)
    server.accept([0, 0, 0])
    server.decode(decode, [0, 1, 0], packed=True)
    server.accept([0, 1, 0])
    server.commit(commit)
    x = server.arguments(server.tokens(3)) | {
        "cu_seqlens": torch.tensor([0], device=device.name),
        "state_indices": torch.tensor([], dtype=torch.int32, device=device.name),
        "num_accepted_tokens": None,
    }
    with device.kernels():
        out = ring.decode(**x, out=torch.full(x[server.rows].shape, torch.nan, dtype=x[server.rows].dtype, device=device.name))
    assert not out.any()


@pytest.mark.parametrize("state", [F32, BF16])
def test_only_tokens_that_count_have_an_effect(state: torch.dtype, ring: Ring, device: Device, seed: int) -> None:
    """Rings begin full of NaN (ring_server.py); here only the accepted tokens are finite."""
    decode, commit = ring.calls(device)
    server = ring.server(seed, window=6, state=state, device=device.name, verifies=True)
    server.decode(decode, [4] * 3)
    server.accept([1, 2, 3])
    for n, slot in enumerate(server.slots.tolist()):
        for stored in server.buffers[:3]:
            stored[slot, n + 1 :] = torch.nan
    server.decode(decode, [4] * 3)
    server.accept_some()
    server.commit(commit)


def test_other_slots_may_be_full_of_nan(ring: Ring, device: Device, seed: int) -> None:
    decode, commit = ring.calls(device)
    server = ring.server(seed, state=BF16, device=device.name)
    free = [slot for slot in range(5) if slot not in server.slots.tolist()]
    server.pool[free] = torch.nan
    count = server.pool.isnan().sum()
    for _ in range(6):
        assert server.decode(decode, [1] * 3).isfinite().all()
    server.commit(commit)
    assert server.pool.isnan().sum() == count


@pytest.mark.parametrize("state", [F32, BF16])
@pytest.mark.parametrize("wrong", [torch.inf, torch.nan])
@pytest.mark.parametrize("split", [5, 4, 3, 2])
def test_a_reset_clears_values_that_are_not_finite(
    wrong: float, split: int, state: torch.dtype, ring: Ring, device: Device, seed: int
) -> None:
    """A token whose decay is 0 is stored in the ring, or new; in the state and before it in the sequence is an infinity."""
    decode, commit = ring.calls(device)
    server = ring.server(seed, sequences=2, window=5, state=state, device=device.name)
    slot = int(server.slots[0])
    server.pool[slot, :, 3] = wrong
    tokens = server.tokens(2, 6)
    tokens[ring.reset[0]][0, 2] = ring.reset[1]
    tokens[server.rows][0, 1, :, 4] = wrong
    found = []
    for part in (slice(0, split), slice(split, 6)):
        x = server.arguments({name: y[:, part] for name, y in tokens.items()})
        found.append(decode(**x, out=torch.empty(x[server.rows].shape, dtype=x[server.rows].dtype, device=device.name)))
    out = torch.cat(found, 1)
    assert out[1].isfinite().all() and out[0, 2:].isfinite().all()
    assert not out[0, :2, :, 3].isfinite().any() and not out[0, 1, :, 4].isfinite().any()
    kept = [row for row in range(out.shape[-1]) if row not in (3, 4)]
    assert out[0, :2][..., kept].isfinite().all()
    server.commit_only(commit)
    assert server.pool[server.slots.long()].isfinite().all()


def test_scales_of_codes_that_are_hostile(ring: Ring, device: Device, seed: int) -> None:
    """Scales that are 0 (whatever the codes), subnormal, large or NaN, the last of which stays in its row."""
    decode, commit = ring.calls(device)
    server = ring.server(seed, sequences=4, window=1, state=I8, device=device.name)
    assert server.scales is not None
    for slot, scale in zip(server.slots.tolist(), (0.0, 1e-40, 1e34, torch.nan), strict=True):
        server.scales[slot, :, 3 if scale != scale else slice(None)] = scale
    server.states = server.read()
    assert not server.states[0].any()
    outs = []
    for _ in range(3):
        x = server.arguments(server.tokens(4, 1))
        outs.append(decode(**x, out=torch.empty(x[server.rows].shape, dtype=x[server.rows].dtype, device=device.name)))
    server.commit_only(commit)
    lost = torch.cat(outs, 1).isnan()
    assert lost[3, :, :, 3].all() and not lost[:3].any() and lost.sum() == lost[3, :, :, 3].numel()
    wrong = server.scales[server.slots.long()].isfinite().logical_not()
    assert wrong[3, :, 3].all() and wrong.sum() == wrong[3, :, 3].numel()
