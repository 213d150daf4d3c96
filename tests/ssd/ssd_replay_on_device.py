"""ssd/replay_step: rings_on_device.py, and servers that decode by rings against the recurrence in fp64."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from devices import Device
from rings_on_device import *  # noqa: F403
from rings_on_device import Ring
from ssd_replay_cases import BF16, F16, F32, I8, Server, serve
from torch import Tensor

from gdn_cuda import ssd_commit_replay, ssd_replay_decode

STATES = (F32, BF16, F16, I8)
RING = Ring(
    Server,
    "ssd/replay_step",
    ssd_replay_decode,
    ssd_commit_replay,
    ("state_pool", "x_ring", "B_ring", "delta_ring", "pending"),
    ("dt", 1e5),
)


@pytest.fixture
def ring() -> Ring:
    return RING


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("P, N", [(64, 128), (80, 64), (8, 8), (24, 200), (64, 256), (136, 40), (24, 96)])
def test_sizes(P: int, N: int, state: torch.dtype, device: Device, seed: int) -> None:
    """Blocks of one head's rows and of several heads', rows that end within a block, columns that are not whole."""
    if state == I8 and N % 32:
        pytest.skip("no whole groups of 32 columns")
    decode, commit = RING.calls(device)
    sequences, G, H = device.size((2, 1, 3), (5, 2, 12))
    for io, verifies in device.size(((BF16, N % 16 == 8),), tuple(product((BF16, F16, F32), (False, True)))):
        for tokens, window in device.size(((2, 2),), ((1, 4), (5, 7))) if io != F32 or state != I8 else ():
            server = Server(
                seed, P=P, N=N, H=H, G=G, io=io, state=state, window=window, sequences=sequences, verifies=verifies,
                device=device.name,
            )  # fmt: skip
            serve(server, decode, commit, tokens)


@pytest.mark.parametrize("io, state", [(BF16, F32), (F16, F32), (F32, F32), (BF16, I8), (F16, I8)])
@pytest.mark.parametrize("tokens, window", [(1, 32), (16, 16), (16, 32), (7, 8), (1, 1)])
def test_tokens_and_rings(tokens: int, window: int, io: torch.dtype, state: torch.dtype, device: Device, seed: int) -> None:
    decode, commit = RING.calls(device)
    for verifies in (False, True):
        server = Server(
            seed, window=window, H=2, G=1, P=16, N=32, io=io, state=state, index=torch.int64, sequences=device.size(1, 4),
            verifies=verifies, device=device.name,
        )  # fmt: skip
        serve(server, decode, commit, tokens)


@pytest.mark.parametrize("H, G", [(1, 1), (4, 4), (6, 2), (9, 1)])
def test_heads_and_groups(H: int, G: int, device: Device, seed: int) -> None:
    decode, commit = RING.calls(device)
    for D, z in ((0, True), (1, False), (2, True)):
        server = Server(
            seed, H=H, G=G, P=24, N=16, window=3, D=D, z=z, sequences=2, verifies=z, limit=(0.05, 0.9), device=device.name
        )
        serve(server, decode, commit, 2)


def test_long_service(device: Device, seed: int) -> None:
    """Errors do not add up, whatever is accepted. States decay slowly."""
    decode, commit = RING.calls(device)
    P, N, count = device.size((16, 16, 20), (64, 128, 100))
    for verifies in (False, True):
        server = Server(seed, P=P, N=N, rate=0.02, window=5, device=device.name, verifies=verifies)
        for _ in range(count):
            server.decode(decode, [2] * 3)
            if verifies:
                server.accept_some()
        server.commit(commit)


def test_rows_that_do_not_start_on_16_bytes(device: Device, seed: int) -> None:
    decode, commit = RING.calls(device)
    for io in (BF16, F32):
        server = Server(seed, io=io, device=device.name, verifies=io == F32)
        tokens = server.tokens

        def shifted(*lead: int, tokens: Any = tokens) -> dict[str, Tensor]:
            x = tokens(*lead)
            wide = torch.zeros(*x["B"].shape[:-1], x["B"].shape[-1] + 1, dtype=x["B"].dtype, device=x["B"].device)
            return x | {"B": wide[..., 1:].copy_(x["B"])}

        server.tokens = shifted  # type: ignore[method-assign]
        serve(server, decode, commit, 2)


def test_values_that_are_not_finite_stay_in_their_rows(device: Device, seed: int) -> None:
    decode, _ = RING.calls(device)
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


def test_infinities_saturate(device: Device, seed: int) -> None:
    """In codes, where a token with an infinity is folded: the largest value, and what was in its group is lost beside it."""
    decode, commit = RING.calls(device)
    server = Server(seed, sequences=2, window=1, state=I8, device=device.name)
    tokens = server.tokens(2, 1)
    tokens["x"][0, 0, 1, 5] = torch.inf
    x = server.arguments(tokens)
    decode(**x, out=torch.empty(x["x"].shape, dtype=BF16, device=device.name))
    server.commit_only(commit)
    states = server.read()
    assert states.isfinite().all() and (states[0, 1, 5].abs() > 3.4e38).all()
    others = states.clone()
    others[0, 1, 5] = 0
    assert (others.abs() < 1e3).all()
