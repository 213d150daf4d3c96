"""gdn/ring_decode: servers that decode by rings against the recurrence in fp64, and hostile calls."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from devices import Device
from guarded import bits
from ring_cases import BF16, F16, F32, I8, Server, serve
from torch import Tensor

from gdn_cuda import commit_replay, ring_decode

WRITTEN = ("state_pool", "keys", "updates", "decays", "pending")
STATES = (F32, BF16, F16, I8)
Call = Callable[..., Tensor]


def calls(device: Device) -> tuple[Call, Call]:
    """ring_decode and commit_replay. In the emulator, blocks have few rows or many: the same bits."""

    def decode(**x: Any) -> Tensor:
        scales = x.get("state_scales")
        written = [*(x[name] for name in (*WRITTEN, "out")), *([] if scales is None else [scales])]
        before, results = [y.clone() for y in written], []
        for multiprocessors in device.size((132, 0), (132,)):
            for y, old in zip(written, before, strict=True):
                y.copy_(old)
            with device.kernels(multiprocessors) as launched:
                out = ring_decode(**x)
            assert launched is None or all(each.startswith("gdn/ring_decode{") for each in launched())
            results.append([bits(y) for y in (out, *written)])
        assert all(torch.equal(mine, first) for each in results for mine, first in zip(each, results[0], strict=True))
        return out

    def commit(*arguments: Any, **options: Any) -> Tensor:
        with device.kernels():
            return commit_replay(*arguments, **options)

    return decode, commit


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("dk, dv", [(128, 128), (64, 136), (96, 40), (8, 8), (32, 8), (256, 72), (200, 24)])
def test_head_dimensions(dk: int, dv: int, state: torch.dtype, device: Device, seed: int) -> None:
    """Blocks of all rows and of few, columns that are not whole."""
    if state == I8 and dk % 32:
        pytest.skip("no whole groups of 32 columns")
    decode, commit = calls(device)
    sequences, heads = device.size((2, 1), (5, 2))
    kinds = device.size(((BF16, dk % 16 == 8),), tuple(product((BF16, F16), (False, True))))
    for io, verifies in kinds:
        for tokens, window in device.size(((1, 2), (2, 2)), ((1, 4), (5, 7))):
            server = Server(
                seed, dk=dk, dv=dv, Hv=heads, io=io, state=state, window=window, sequences=sequences, verifies=verifies,
                device=device.name,
            )  # fmt: skip
            serve(server, decode, commit, tokens)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("io", [BF16, F16])
@pytest.mark.parametrize("tokens, window", [(1, 32), (16, 16), (16, 32), (7, 8), (1, 1)])
def test_tokens_and_rings(tokens: int, window: int, io: torch.dtype, state: torch.dtype, device: Device, seed: int) -> None:
    decode, commit = calls(device)
    for verifies in (False, True):
        server = Server(
            seed, window=window, dk=64, dv=24, io=io, state=state, index=torch.int64, sequences=device.size(1, 4),
            verifies=verifies, device=device.name,
        )  # fmt: skip
        serve(server, decode, commit, tokens)


@pytest.mark.parametrize("Hk, Hv", [(1, 1), (2, 6), (1, 8)])
def test_heads(Hk: int, Hv: int, device: Device, seed: int) -> None:
    decode, commit = calls(device)
    for verifies in (False, True):
        server = Server(
            seed, Hk=Hk, Hv=Hv, dk=64, dv=24, window=3, sequences=2, state=BF16, verifies=verifies, device=device.name
        )
        serve(server, decode, commit, 2)


def test_options(device: Device, seed: int) -> None:
    decode, commit = calls(device)
    server = Server(seed, dk=64, scale=0.3, use_qk_l2norm=False, state=BF16, device=device.name)
    tokens = server.tokens
    server.tokens = lambda *lead: (x := tokens(*lead)) | {"key": x["key"] / 8}  # type: ignore[method-assign]
    serve(server, decode, commit, 1)
    serve(Server(seed, dk=64, allow_negative_eigenvalues=True, device=device.name), decode, commit, 2)


def test_more_tokens_than_the_ring_has_room_for(device: Device, seed: int) -> None:
    decode, commit = calls(device)
    server = Server(seed, window=2, dk=64, dv=24, device=device.name)
    for tokens in (1, 5, 16, 1, 2):
        server.decode(decode, [tokens] * 3)
    server.commit(commit)


def test_slots_in_the_order_of_the_pool(device: Device, seed: int) -> None:
    decode, commit = calls(device)
    server = Server(seed, sequences=4, dk=64, dv=24, device=device.name)
    server.slots.copy_(torch.arange(4))
    server.states = server.pool.cpu().double()[:4]
    arguments = server.arguments
    server.arguments = lambda tokens: arguments(tokens) | {"state_indices": None}  # type: ignore[method-assign]
    for _ in range(6):
        server.decode(decode, [1] * 4)
    server.commit(commit)


@pytest.mark.parametrize("state", [F32, BF16, I8])
def test_long_service(state: torch.dtype, device: Device, seed: int) -> None:
    """Errors of fp32 states do not add up, whatever is accepted. With weak gates states decay slowly, and those of some 65
    roundings add up as the root of that: the literal recurrence has 8e-3 in bf16 and 2.2e-2 in int8."""
    decode, commit = calls(device)
    dk, dv, pace, count = device.size((64, 16, 4.0, 20), (128, 64, 1.0, 100))
    for verifies in (False, True):
        server = Server(seed, dk=dk, dv=dv, pace=pace, window=5, state=state, verifies=verifies, device=device.name)
        server.state_bound *= 1 if state == F32 else 2
        server.heads["A_log"] -= 5
        for _ in range(count):
            server.decode(decode, [2] * 3)
            if verifies:
                server.accept_some()
        server.commit(commit)


@pytest.mark.parametrize("state", [F32, BF16])
def test_rows_that_do_not_start_on_16_bytes(state: torch.dtype, device: Device, seed: int) -> None:
    decode, commit = calls(device)
    for io in (BF16, F16):
        server = Server(seed, dk=72, dv=16, io=io, state=state, device=device.name, verifies=io == F16)
        tokens = server.tokens

        def shifted(*lead: int, dk: int = 72, tokens: Any = tokens) -> dict[str, Tensor]:
            x = tokens(*lead)
            wide = torch.zeros(*x["key"].shape[:-1], dk + 1, dtype=x["key"].dtype, device=x["key"].device)
            return x | {"key": wide[..., 1:].copy_(x["key"])}

        server.tokens = shifted  # type: ignore[method-assign]
        serve(server, decode, commit, 2)


def test_rings_of_other_strides(device: Device, seed: int) -> None:
    decode, commit = calls(device)
    server = Server(seed, dk=64, dv=24, verifies=True, device=device.name)
    server.buffers = server.buffers._replace(
        **{name: getattr(server.buffers, name).transpose(1, 2).contiguous().transpose(1, 2) for name in WRITTEN[1:4]}
    )
    serve(server, decode, commit, 2)


def test_keys_of_any_size_beside_states_of_another_dtype(device: Device, seed: int) -> None:
    """Keys and queries are scaled before they become fp16."""
    decode, _ = calls(device)
    for io, state, size in ((BF16, F16, 1e30), (BF16, F16, 1e-8), (F16, BF16, 1e-4)):
        server = Server(seed, dk=64, dv=24, io=io, state=state, device=device.name)
        tokens = server.tokens

        def sized(*lead: int, tokens: Any = tokens, size: float = size) -> dict[str, Tensor]:
            x = tokens(*lead)
            return x | {"query": x["query"] * min(size, 1e4)}

        server.tokens = sized  # type: ignore[method-assign]
        server.decode(decode, [1] * 3)
        server.decode(decode, [2] * 3)


def test_hostile_slots_and_counts(device: Device, seed: int) -> None:
    """NaN for slots past the pool and counts past the ring, 0 for slots that are none; nothing of either is touched."""
    decode, _ = calls(device)
    server = Server(seed, sequences=9, window=5, dk=64, dv=24, verifies=True, device=device.name)
    x: dict[str, Any] = server.arguments(server.tokens(9, 3))
    for name in ("keys", "updates"):
        x[name].copy_(torch.randn(x[name].shape, generator=server.rng))
    x["decays"].fill_(0.5), x["pending"].fill_(1)
    slots = torch.tensor([2**63 - 1, 1, 2, -(2**63), 2**32, 3, 4, 5, 6], device=device.name)
    x["state_indices"] = slots
    x["num_accepted_tokens"] = torch.tensor([1, 2**63 - 1, -(2**63), 2**62, 6, 5, 2**32, 4, 0], device=device.name)
    x["pending"][6] = 5
    before = {name: x[name].clone() for name in WRITTEN}
    out = decode(**x, null_slot=4, out=torch.full(x["value"].shape, 7.0, dtype=x["value"].dtype, device=device.name))
    assert out[[0, 1, 4, 5]].isnan().all() and not out[[3, 6]].any() and out[[2, 7, 8]].isfinite().all()
    for name, old in before.items():
        changed = [slot for slot in range(old.shape[0]) if not torch.equal(bits(x[name][slot]), bits(old[slot]))]
        assert changed == {"state_pool": [5, 6], "pending": [5, 6]}.get(name, [2, 5, 6]), name
    assert x["pending"][[2, 5, 6]].tolist() == [1, 0, 0]


@pytest.mark.parametrize("offsets", [[0, 9, 0, 9], [300, 200, 100, 0], [-(2**63), 2**63 - 1, 5, -(2**63)], [0, 6, 6, 2**32]])
def test_hostile_offsets(offsets: list[int], device: Device, seed: int) -> None:
    """A sequence of more tokens than the ring has room for gives NaN, and its slot stays."""
    decode, _ = calls(device)
    server = Server(seed, window=5, dk=64, dv=24, verifies=True, device=device.name)
    x = server.arguments(server.tokens(9)) | {"cu_seqlens": torch.tensor(offsets, device=device.name)}
    spans = [(min(max(a, 0), 9), min(max(b, 0), 9)) for a, b in pairwise(offsets)]
    before = x["pending"].fill_(2).clone()
    x["keys"].fill_(1), x["updates"].fill_(1), x["decays"].fill_(1)
    pool = x["state_pool"].clone()
    out = decode(**x, out=torch.zeros(x["value"].shape, dtype=x["value"].dtype, device=device.name))
    device.synchronize()
    too_long = [n for n, (first, last) in enumerate(spans) if last - first > 5]
    for slot in server.slots[too_long].tolist():
        assert torch.equal(x["state_pool"][slot], pool[slot]) and x["pending"][slot] == before[slot]
    if too_long == [0] and spans[0] == (0, 6):
        assert out[:6].isnan().all()


def test_without_sequences_and_tokens(device: Device, seed: int) -> None:
    decode, commit = calls(device)
    server = Server(seed, dk=64, dv=24, verifies=True, device=device.name)
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
        out = ring_decode(**x, out=torch.full(x["value"].shape, torch.nan, dtype=x["value"].dtype, device=device.name))
    assert not out.any()


@pytest.mark.parametrize("state", [F32, BF16])
def test_only_tokens_that_count_have_an_effect(state: torch.dtype, device: Device, seed: int) -> None:
    """Rings begin full of NaN (ring_cases.py); here only the accepted tokens are finite."""
    decode, commit = calls(device)
    server = Server(seed, window=6, dk=64, dv=24, state=state, device=device.name, verifies=True)
    server.decode(decode, [4] * 3)
    server.accept([1, 2, 3])
    for n, slot in enumerate(server.slots.tolist()):
        for ring in server.buffers[:3]:
            ring[slot, n + 1 :] = torch.nan
    server.decode(decode, [4] * 3)
    server.accept_some()
    server.commit(commit)


def test_other_slots_may_be_full_of_nan(device: Device, seed: int) -> None:
    decode, commit = calls(device)
    server = Server(seed, dk=64, dv=24, state=BF16, device=device.name)
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
    wrong: float, split: int, state: torch.dtype, device: Device, seed: int
) -> None:
    """A token whose decay is 0 is stored in the ring, or new; in the state and before it in the sequence is an infinity."""
    decode, commit = calls(device)
    server = Server(seed, sequences=2, window=5, dk=64, dv=24, state=state, device=device.name)
    slot = int(server.slots[0])
    server.pool[slot, :, 3] = wrong
    tokens = server.tokens(2, 6)
    tokens["a"][0, 2] = 1e30
    tokens["value"][0, 1, :, 4] = wrong
    found = []
    for part in (slice(0, split), slice(split, 6)):
        x = server.arguments({name: y[:, part] for name, y in tokens.items()})
        found.append(decode(**x, out=torch.empty(x["value"].shape, dtype=x["value"].dtype, device=device.name)))
    out = torch.cat(found, 1)
    assert out[1].isfinite().all() and out[0, 2:].isfinite().all()
    assert not out[0, :2, :, 3].isfinite().any() and not out[0, 1, :, 4].isfinite().any()
    kept = [row for row in range(server.dv) if row not in (3, 4)]
    assert out[0, :2][..., kept].isfinite().all()
    commit(server.pool, server.buffers, server.slots)
    assert server.pool[server.slots.long()].isfinite().all()


def test_a_request_alone_has_the_same_bits(device: Device, seed: int) -> None:
    """The same rows of a block, as a heuristic may choose others for a batch: two sequences, each alone and together."""
    decode, _ = calls(device)
    server = Server(seed, sequences=2, window=2, dk=64, dv=24, state=BF16, device=device.name)
    alone, buffers = server.pool.clone(), server.buffers
    single = buffers._replace(**{name: getattr(buffers, name).clone() for name in WRITTEN[1:]})
    for _ in range(4):
        tokens = server.tokens(2, 1)
        x = server.arguments(tokens)
        out = decode(**x, out=torch.empty(x["value"].shape, dtype=x["value"].dtype, device=device.name))
        for n in range(2):
            own = x | {name: y[n : n + 1] for name, y in tokens.items()} | single._asdict()
            own |= {"state_pool": alone, "state_indices": server.slots[n : n + 1]}
            mine = decode(**own, out=torch.empty_like(own["value"].contiguous()))
            assert torch.equal(mine[0], out[n])
    assert torch.equal(bits(alone), bits(server.pool))
    assert all(torch.equal(bits(a), bits(b)) for a, b in zip(single, server.buffers, strict=True))
