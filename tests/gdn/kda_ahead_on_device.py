"""gdn/kda_ahead: chunks of Kimi Delta Attention prepared beside the owners of states, in one launch: the bits of
gdn/kda_prepare and gdn/kda_own, one after the other."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from devices import Device
from helpers import rel_rms
from kda_cases import KEYS
from kda_chunks_on_device import BF16, BOUND, FP16, inputs, launch_parts, there
from kda_prefill_on_device import bits, packed, states_of
from torch import Tensor

import gdn_cuda

FORCED = os.environ.get("GDN_KDA_AHEAD", "auto")


@pytest.fixture
def forced(device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A process on a GPU reads the variable once."""
    if not device.emulate and FORCED != "1":
        pytest.skip("another process has GDN_KDA_AHEAD=1")
    monkeypatch.setenv("GDN_KDA_AHEAD", "1")
    return device


def ahead(device: Device, x: dict[str, Tensor], multiprocessors: int = 132, **options: Any) -> dict[str, Tensor]:
    given = there(device, {**x, "out": torch.full_like(x["value"], torch.nan), **options})
    with device.only("gdn/kda_ahead", "gdn/kda_order", "gdn/move_states", multiprocessors=multiprocessors):
        out, state = gdn_cuda.chunked_forward(**given, use_qk_l2norm=True)[:2]
    return {"out": out.cpu(), "state": state.cpu()}


def check_bits(device: Device, x: dict[str, Tensor], multiprocessors: int = 132, **options: Any) -> dict[str, Tensor]:
    found = ahead(device, x, multiprocessors, **options)
    apart = launch_parts(device, x, norm=True, **options)
    for name, mine in found.items():
        assert torch.equal(bits(mine), bits(apart[name])), name
    return found


@pytest.mark.parametrize("multiprocessors", [1, 2, 3, 5, 132])
def test_the_bits_of_two_launches(forced: Device, multiprocessors: int) -> None:
    """On one multiprocessor a block prepares all chunks, then owns all rows; on few, blocks own several work tiles."""
    heads, tokens = forced.size(2, 16), forced.size(200, 4000)
    x = inputs(tokens, "init", beta=2.0, Hk=heads, Hv=heads, dv=128)
    first = check_bits(forced, x, multiprocessors)
    for _ in range(forced.size(0, 30)):
        again = ahead(forced, x)
        assert all(torch.equal(t, again[name]) for name, t in first.items())


@pytest.mark.parametrize("io, gate", [(BF16, torch.float32), (BF16, BF16), (FP16, torch.float32), (FP16, FP16)])
def test_dtypes(forced: Device, io: torch.dtype, gate: torch.dtype) -> None:
    x = inputs(forced.size(130, 3000), "bounded", Hv=forced.size(1, 12), io=io, dv=72)
    x["gate"] = x["gate"].to(gate)
    check_bits(forced, x)


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("gates", ["none", "edge", "init", "heavy", "strong", "token reset"])
def test_gates_and_keys(forced: Device, gates: str, keys: str) -> None:
    """Chunks with and without residuals, whose keys are loaded again."""
    check_bits(forced, inputs(forced.size(200, 2000), gates, keys, 2.0, Hv=forced.size(1, 8)), forced.size(1, 132))


def test_chunks_with_and_without_residuals_by_turns(forced: Device) -> None:
    x = inputs(forced.size(330, 3000), "init", beta=2.0, Hv=forced.size(1, 8))
    for at in range(64, x["key"].shape[1], 128):
        x["key"][:, at : at + 64] = x["key"][:, at : at + 1]
        x["gate"][:, at : at + 64] = -0.001
    check_bits(forced, x, forced.size(1, 132))


def test_resets_that_go_token_by_token(forced: Device) -> None:
    x = inputs(forced.size(200, 2000), "init", Hv=2)
    x["gate"][0, 90] = -torch.inf
    x["value"][0, 82, 0, 5] = torch.inf
    found = check_bits(forced, x)
    assert bool(found["out"][:, 64:90].isnan().any()) and bool(found["out"][:, 90:].isfinite().all())


@pytest.mark.parametrize("multiprocessors", [1, 3, 132])
def test_packed_sequences(forced: Device, multiprocessors: int) -> None:
    """Sequences of no tokens, and positions that no chunk has."""
    scale = forced.size(1, 20)
    x = packed([70 * scale, 0, 1, 130 * scale, 64, 0], more=5, gates="init", beta=2.0, Hv=forced.size(1, 4))
    found = check_bits(forced, x, multiprocessors)
    output, states = states_of(x)
    assert rel_rms(found["out"], output) < BOUND[BF16] and not found["out"][-5:].any()
    assert rel_rms(found["state"], torch.stack([each[-1] for each in states])) < BOUND[BF16]


@pytest.mark.parametrize("multiprocessors", [1, 132])
def test_invalid_offsets_end(forced: Device, multiprocessors: int) -> None:
    """Owners wait for no record that nobody prepares, and nothing else is written."""
    for offsets in ([0, 100, 50, 120], [3, 2, 1, 0], [-5, 60, 400, 90], [0, 120, 0, 120]):
        x = packed([40, 40, 40]) | {"cu_seqlens": torch.tensor(offsets)}
        ahead(forced, x, multiprocessors)
        forced.synchronize()


def test_sequences_in_a_batch(forced: Device) -> None:
    check_bits(forced, inputs(forced.size(150, 1000), "bounded", B=3, Hk=1, Hv=forced.size(2, 10), dv=128))


def test_a_pool(forced: Device) -> None:
    x = packed([70, 0, 3, 65], gates="init")
    pool = torch.randn(7, *x["state"].shape[1:], generator=torch.Generator().manual_seed(9))
    slots = torch.tensor([5, 2, -1, 0], dtype=torch.int32)
    found = ahead(forced, x | {"state": pool.clone(), "state_indices": slots})
    output, states = states_of(x, pool[slots.clamp(min=0).long()])
    output[70:73] = 0
    assert rel_rms(found["out"], output) < BOUND[BF16] and not found["out"][70:73].any()
    for n, slot in ((0, 5), (3, 0)):
        assert rel_rms(found["state"][slot], states[n][-1]) < BOUND[BF16]
    assert torch.equal(found["state"][[1, 2, 3, 4, 6]], pool[[1, 2, 3, 4, 6]])


def test_deterministic_calls_have_it_too(forced: Device) -> None:
    x = inputs(forced.size(150, 3000), "init", Hk=2, Hv=2)
    one = {name: t[:, -1:] if name == "state" else t[:, :, -1:] for name, t in x.items()}
    found, alone = (ahead(forced, each, deterministic=True) for each in (x, one))
    assert torch.equal(alone["out"], found["out"][:, :, -1:]) and torch.equal(alone["state"], found["state"][:, -1:])


def test_windows(forced: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a launch, which goes on from the states of the one before."""
    if forced.emulate:
        monkeypatch.setenv("GDN_KDA_WINDOW", "2")
    heads = forced.size(1, 32)  # on a GPU, of more chunks than records may be held of
    check_bits(forced, inputs(forced.size(330, 21000), "init", beta=2.0, Hk=heads, Hv=heads, dv=128))
