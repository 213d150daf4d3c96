"""ssd/replay_step: servers that decode by rings against the recurrence in fp64, and hostile calls."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from devices import Device
from guarded import bits
from ssd_replay_cases import BF16, F16, F32, Server, serve
from torch import Tensor

from gdn_cuda import ssd_commit_replay, ssd_replay_decode

WRITTEN = ("state_pool", "x_ring", "B_ring", "delta_ring", "pending")
Call = Callable[..., Tensor]


def calls(device: Device) -> tuple[Call, Call]:
    """ssd_replay_decode and ssd_commit_replay. In the emulator, blocks have few rows or many: the same bits."""

    def decode(**x: Any) -> Tensor:
        written = [x[name] for name in (*WRITTEN, "out")]
        before, results = [y.clone() for y in written], []
        for multiprocessors in device.size((132, 0), (132,)):
            for y, old in zip(written, before, strict=True):
                y.copy_(old)
            with device.kernels(multiprocessors) as launched:
                out = ssd_replay_decode(**x)
            assert launched is None or all(each.startswith("ssd/replay_step{") for each in launched())
            results.append([bits(y) for y in (out, *written)])
        assert all(torch.equal(mine, first) for each in results for mine, first in zip(each, results[0], strict=True))
        return out

    def commit(*arguments: Any) -> Tensor:
        with device.kernels():
            return ssd_commit_replay(*arguments)

    return decode, commit


@pytest.mark.parametrize("state", [F32, BF16, F16])
@pytest.mark.parametrize("P, N", [(64, 128), (80, 64), (8, 8), (24, 200), (64, 256), (136, 40)])
def test_sizes(P: int, N: int, state: torch.dtype, device: Device, seed: int) -> None:
    """Blocks of one head's rows and of several heads', rows that end within a block, columns that are not whole."""
    decode, commit = calls(device)
    sequences, G, H = device.size((2, 1, 3), (5, 2, 12))
    for io, verify in device.size(((BF16, N % 16 == 8),), tuple(product((BF16, F16, F32), (False, True)))):
        for tokens, window in device.size(((2, 2),), ((1, 4), (5, 7))):
            server = Server(
                seed, P=P, N=N, H=H, G=G, io=io, state=state, window=window, sequences=sequences, verify=verify,
                device=device.name,
            )  # fmt: skip
            serve(server, decode, commit, tokens)


@pytest.mark.parametrize("io", [BF16, F16, F32])
@pytest.mark.parametrize("tokens, window", [(1, 32), (16, 16), (16, 32), (7, 8), (1, 1)])
def test_tokens_and_rings(tokens: int, window: int, io: torch.dtype, device: Device, seed: int) -> None:
    decode, commit = calls(device)
    for verify in (False, True):
        server = Server(
            seed, window=window, H=2, G=1, P=16, N=32, io=io, index=torch.int64, sequences=device.size(1, 4), verify=verify,
            device=device.name,
        )  # fmt: skip
        serve(server, decode, commit, tokens)


@pytest.mark.parametrize("H, G", [(1, 1), (4, 4), (6, 2), (9, 1)])
def test_heads_and_groups(H: int, G: int, device: Device, seed: int) -> None:
    decode, commit = calls(device)
    for D, z in ((0, True), (1, False), (2, True)):
        server = Server(
            seed, H=H, G=G, P=24, N=16, window=3, D=D, z=z, sequences=2, verify=z, limit=(0.05, 0.9), device=device.name
        )
        serve(server, decode, commit, 2)


def test_more_tokens_than_the_ring_has_room_for(device: Device, seed: int) -> None:
    decode, commit = calls(device)
    server = Server(seed, window=2, device=device.name)
    for tokens in (1, 5, 16, 1, 2):
        server.decode(decode, [tokens] * 3)
    server.commit(commit)


def test_slots_in_the_order_of_the_pool(device: Device, seed: int) -> None:
    decode, commit = calls(device)
    server = Server(seed, sequences=4, device=device.name)
    server.slots.copy_(torch.arange(4))
    server.states = list(server.pool.cpu().double()[:4])
    arguments = server.arguments
    server.arguments = lambda tokens: arguments(tokens) | {"state_indices": None}  # type: ignore[method-assign]
    for _ in range(6):
        server.decode(decode, [1] * 4)
    server.commit(commit)


def test_long_service(device: Device, seed: int) -> None:
    """Errors do not add up, whatever is accepted. States decay slowly."""
    decode, commit = calls(device)
    P, N, count = device.size((16, 16, 20), (64, 128, 100))
    for verify in (False, True):
        server = Server(seed, P=P, N=N, rate=0.02, window=5, device=device.name, verify=verify)
        for _ in range(count):
            server.decode(decode, [2] * 3)
            if verify:
                server.accept_some()
        server.commit(commit)


def test_rows_that_do_not_start_on_16_bytes(device: Device, seed: int) -> None:
    decode, commit = calls(device)
    for io in (BF16, F32):
        server = Server(seed, io=io, device=device.name, verify=io == F32)
        tokens = server.tokens

        def shifted(*lead: int, tokens: Any = tokens) -> dict[str, Tensor]:
            x = tokens(*lead)
            wide = torch.zeros(*x["B"].shape[:-1], x["B"].shape[-1] + 1, dtype=x["B"].dtype, device=x["B"].device)
            return x | {"B": wide[..., 1:].copy_(x["B"])}

        server.tokens = shifted  # type: ignore[method-assign]
        serve(server, decode, commit, 2)


def test_rings_of_other_strides(device: Device, seed: int) -> None:
    """As FlashInfer and vLLM allocate them: heads before tokens."""
    decode, commit = calls(device)
    server = Server(seed, verify=True, device=device.name)
    server.buffers = server.buffers._replace(
        **{name: getattr(server.buffers, name).transpose(1, 2).contiguous().transpose(1, 2) for name in WRITTEN[1:4]}
    )
    serve(server, decode, commit, 2)


def test_hostile_slots_and_counts(device: Device, seed: int) -> None:
    """NaN for slots past the pool and counts past the ring, 0 for slots that are none; nothing of either is touched."""
    decode, _ = calls(device)
    server = Server(seed, sequences=9, window=5, verify=True, device=device.name)
    x: dict[str, Any] = server.arguments(server.tokens(9, 3))
    for name in ("x_ring", "B_ring"):
        x[name].copy_(torch.randn(x[name].shape, generator=server.rng))
    x["delta_ring"].fill_(0.5), x["pending"].fill_(1)
    slots = torch.tensor([2**63 - 1, 1, 2, -(2**63), 2**32, 3, 4, 5, 6], device=device.name)
    x["state_indices"] = slots
    x["num_accepted_tokens"] = torch.tensor([1, 2**63 - 1, -(2**63), 2**62, 6, 5, 2**32, 4, 0], device=device.name)
    x["pending"][6] = 5
    before = {name: x[name].clone() for name in WRITTEN}
    out = decode(**x, null_slot=4, out=torch.full(x["x"].shape, 7.0, dtype=x["x"].dtype, device=device.name))
    assert out[[0, 1, 4, 5]].isnan().all() and not out[[3, 6]].any() and out[[2, 7, 8]].isfinite().all()
    for name, old in before.items():
        changed = [slot for slot in range(old.shape[0]) if not torch.equal(bits(x[name][slot]), bits(old[slot]))]
        assert changed == {"state_pool": [5, 6], "pending": [5, 6]}.get(name, [2, 5, 6]), name
    assert x["pending"][[2, 5, 6]].tolist() == [1, 0, 0]


@pytest.mark.parametrize("offsets", [[0, 9, 0, 9], [300, 200, 100, 0], [-(2**63), 2**63 - 1, 5, -(2**63)], [0, 6, 6, 2**32]])
def test_hostile_offsets(offsets: list[int], device: Device, seed: int) -> None:
    """A sequence of more tokens than the ring has room for gives NaN, and its slot stays."""
    decode, _ = calls(device)
    server = Server(seed, window=5, verify=True, device=device.name)
    x = server.arguments(server.tokens(9)) | {"cu_seqlens": torch.tensor(offsets, device=device.name)}
    spans = [(min(max(a, 0), 9), min(max(b, 0), 9)) for a, b in pairwise(offsets)]
    before = x["pending"].fill_(2).clone()
    x["x_ring"].fill_(1), x["B_ring"].fill_(1), x["delta_ring"].fill_(1)
    pool = x["state_pool"].clone()
    out = decode(**x, out=torch.zeros(x["x"].shape, dtype=x["x"].dtype, device=device.name))
    device.synchronize()
    too_long = [n for n, (first, last) in enumerate(spans) if last - first > 5]
    for slot in server.slots[too_long].tolist():
        assert torch.equal(x["state_pool"][slot], pool[slot]) and x["pending"][slot] == before[slot]
    if too_long == [0] and spans[0] == (0, 6):
        assert out[:6].isnan().all()


def test_without_sequences_and_tokens(device: Device, seed: int) -> None:
    decode, commit = calls(device)
    server = Server(seed, verify=True, device=device.name)
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
        out = ssd_replay_decode(**x, out=torch.full(x["x"].shape, torch.nan, dtype=x["x"].dtype, device=device.name))
    assert not out.any()


def test_only_tokens_that_count_are_read(device: Device, seed: int) -> None:
    """Rings begin full of NaN (ssd_replay_cases.py); here only the accepted tokens are finite."""
    decode, commit = calls(device)
    server = Server(seed, window=6, device=device.name, verify=True)
    server.decode(decode, [4] * 3)
    server.accept([1, 2, 3])
    for n, slot in enumerate(server.slots.tolist()):
        for ring in server.buffers[:3]:
            ring[slot, n + 1 :] = torch.nan
    server.decode(decode, [4] * 3)
    server.accept_some()
    server.commit(commit)


@pytest.mark.parametrize("wrong", [torch.inf, torch.nan])
@pytest.mark.parametrize("split", [5, 4, 3, 2])
def test_a_reset_clears_values_that_are_not_finite(wrong: float, split: int, device: Device, seed: int) -> None:
    """A token with a large step is stored in the ring, or new; in the state and before it in the sequence is an infinity."""
    decode, commit = calls(device)
    server = Server(seed, sequences=2, window=5, rate=1.0, N=64, device=device.name)
    slot = int(server.slots[0])
    server.pool[slot, :, 3] = wrong
    tokens = server.tokens(2, 6)
    tokens["dt"][0, 2] = 1e5
    tokens["x"][0, 1, :, 4] = wrong
    found = []
    for part in (slice(0, split), slice(split, 6)):
        x = server.arguments({name: y[:, part] for name, y in tokens.items()})
        found.append(decode(**x, out=torch.empty(x["x"].shape, dtype=x["x"].dtype, device=device.name)))
    out = torch.cat(found, 1)
    assert out[1].isfinite().all() and out[0, 2:].isfinite().all()
    assert not out[0, :2, :, 3].isfinite().any() and not out[0, 1, :, 4].isfinite().any()
    kept = [p for p in range(server.P) if p not in (3, 4)]
    assert out[0, :2][..., kept].isfinite().all()
    commit(server.pool, server.buffers, server.heads["A"], server.slots)
    assert server.pool[server.slots.long()].isfinite().all()


def test_values_that_are_not_finite_stay_in_their_rows(device: Device, seed: int) -> None:
    decode, _ = calls(device)
    outs = []
    for spoilt in (False, True):
        server = Server(seed, sequences=2, window=6, device=device.name)
        found = []
        for call in range(3):
            tokens = server.tokens(2, 2)
            if spoilt and call == 0:
                tokens["x"][1, 1, 2, 3] = torch.nan
                server.pool[int(server.slots[0]), 0, 5] = torch.inf
            x = server.arguments(tokens)
            found.append(decode(**x, out=torch.empty(x["x"].shape, dtype=x["x"].dtype, device=device.name)))
        outs.append(torch.cat(found, 1))
    same = torch.ones(outs[0].shape, dtype=torch.bool, device=device.name)
    same[1, 1:, 2, 3] = same[0, :, 0, 5] = False
    assert torch.equal(outs[0][same], outs[1][same]) and not outs[1][~same].isfinite().any()
