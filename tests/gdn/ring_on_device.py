"""gdn/ring_decode: rings_on_device.py, and servers that decode by rings against the recurrence in fp64."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from devices import Device
from guarded import bits
from ring_cases import BF16, F16, F32, I8, Server, serve
from rings_on_device import *  # noqa: F403
from rings_on_device import Ring
from torch import Tensor

from gdn_cuda import commit_replay, ring_decode

STATES = (F32, BF16, F16, I8)
RING = Ring(
    partial(Server, dk=64, dv=24),
    "gdn/ring_decode",
    ring_decode,
    commit_replay,
    ("state_pool", "keys", "updates", "decays", "pending"),
    ("a", 1e30),
)


@pytest.fixture
def ring() -> Ring:
    return RING


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("dk, dv", [(128, 128), (64, 136), (96, 40), (8, 8), (32, 8), (256, 72), (200, 24)])
def test_head_dimensions(dk: int, dv: int, state: torch.dtype, device: Device, seed: int) -> None:
    """Blocks of all rows and of few, columns that are not whole."""
    if state == I8 and dk % 32:
        pytest.skip("no whole groups of 32 columns")
    decode, commit = RING.calls(device)
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
    decode, commit = RING.calls(device)
    for verifies in (False, True):
        server = Server(
            seed, window=window, dk=64, dv=24, io=io, state=state, index=torch.int64, sequences=device.size(1, 4),
            verifies=verifies, device=device.name,
        )  # fmt: skip
        serve(server, decode, commit, tokens)


@pytest.mark.parametrize("Hk, Hv", [(1, 1), (2, 6), (1, 8)])
def test_heads(Hk: int, Hv: int, device: Device, seed: int) -> None:
    decode, commit = RING.calls(device)
    for verifies in (False, True):
        server = Server(
            seed, Hk=Hk, Hv=Hv, dk=64, dv=24, window=3, sequences=2, state=BF16, verifies=verifies, device=device.name
        )
        serve(server, decode, commit, 2)


def test_options(device: Device, seed: int) -> None:
    decode, commit = RING.calls(device)
    server = Server(seed, dk=64, scale=0.3, use_qk_l2norm=False, state=BF16, device=device.name)
    tokens = server.tokens
    server.tokens = lambda *lead: (x := tokens(*lead)) | {"key": x["key"] / 8}  # type: ignore[method-assign]
    serve(server, decode, commit, 1)
    serve(Server(seed, dk=64, allow_negative_eigenvalues=True, device=device.name), decode, commit, 2)


@pytest.mark.parametrize("state", [F32, BF16, I8])
def test_long_service(state: torch.dtype, device: Device, seed: int) -> None:
    """Errors of fp32 states do not add up, whatever is accepted. With weak gates states decay slowly, and those of some 65
    roundings add up as the root of that: the literal recurrence has 8e-3 in bf16 and 2.2e-2 in int8."""
    decode, commit = RING.calls(device)
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
    decode, commit = RING.calls(device)
    for io in (BF16, F16):
        server = Server(seed, dk=72, dv=16, io=io, state=state, device=device.name, verifies=io == F16)
        tokens = server.tokens

        def shifted(*lead: int, dk: int = 72, tokens: Any = tokens) -> dict[str, Tensor]:
            x = tokens(*lead)
            wide = torch.zeros(*x["key"].shape[:-1], dk + 1, dtype=x["key"].dtype, device=x["key"].device)
            return x | {"key": wide[..., 1:].copy_(x["key"])}

        server.tokens = shifted  # type: ignore[method-assign]
        serve(server, decode, commit, 2)


def test_keys_of_any_size_beside_states_of_another_dtype(device: Device, seed: int) -> None:
    """Keys and queries are scaled before they become fp16."""
    decode, _ = RING.calls(device)
    for io, state, size in ((BF16, F16, 1e30), (BF16, F16, 1e-8), (F16, BF16, 1e-4)):
        server = Server(seed, dk=64, dv=24, io=io, state=state, device=device.name)
        tokens = server.tokens

        def sized(*lead: int, tokens: Any = tokens, size: float = size) -> dict[str, Tensor]:
            x = tokens(*lead)
            return x | {"query": x["query"] * min(size, 1e4)}

        server.tokens = sized  # type: ignore[method-assign]
        server.decode(decode, [1] * 3)
        server.decode(decode, [2] * 3)


def test_a_request_alone_has_the_same_bits(device: Device, seed: int) -> None:
    """The same rows of a block, as a heuristic may choose others for a batch: two sequences, each alone and together."""
    decode, _ = RING.calls(device)
    server = Server(seed, sequences=2, window=2, dk=64, dv=24, state=BF16, device=device.name)
    alone, buffers = server.pool.clone(), server.buffers
    single = buffers._replace(**{name: getattr(buffers, name).clone() for name in RING.written[1:]})
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
