"""chunked_forward with a gate for every channel of the key, where gdn/kda_own takes a sequence in segments and gdn/kda_fold
makes the states between them, against the recurrence in fp64."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from devices import Device
from helpers import rel_rms
from kda_cases import agrees, decays, literal
from kda_chunks_on_device import BF16, BOUND, FP16, KERNELS, OTHERS, inputs, launch, there
from kda_prefill_on_device import ROWS, packed, states_of
from torch import Tensor

import gdn_cuda

CHOSEN = os.environ.get("GDN_KDA_SEGMENTS", "auto")
FOLDED = (*KERNELS, *OTHERS)


def split(device: Device, monkeypatch: pytest.MonkeyPatch, segments: str, window: str = "auto") -> None:
    """A process on a GPU reads the variables once."""
    if not device.emulate and (segments, window) != (CHOSEN, os.environ.get("GDN_KDA_WINDOW", "auto")):
        pytest.skip("another process has these segments")
    monkeypatch.setenv("GDN_KDA_SEGMENTS", segments)
    monkeypatch.setenv("GDN_KDA_WINDOW", window)


@pytest.fixture(params=["3", "5"])
def segments(request: pytest.FixtureRequest, device: Device, monkeypatch: pytest.MonkeyPatch) -> int:
    split(device, monkeypatch, request.param, os.environ.get("GDN_KDA_WINDOW", "auto"))
    return int(request.param)


def expected(x: dict[str, Tensor], **options: Any) -> tuple[Tensor, Tensor]:
    rows = {name: x[name] for name in ROWS}
    output, states = literal(**rows, decay=decays(x["gate"]), state=x["state"], **options)
    return output, states[:, -1]


def check(device: Device, x: dict[str, Tensor], bound: float = BOUND[BF16], **options: Any) -> None:
    found = launch(device, x, norm=True, **options)
    output, state = expected(x, norm=True)
    assert rel_rms(found["out"], output) < bound and rel_rms(found["state"], state) < bound


@pytest.mark.parametrize("gates, keys", [("init", "random"), ("none", "random"), ("none", "repeated"), ("heavy", "random")])
def test_states_that_reach_across_segments(device: Device, segments: int, gates: str, keys: str) -> None:
    check(device, inputs(300, gates, keys, 2.0))


@pytest.mark.parametrize("io", [BF16, FP16])
def test_sizes(device: Device, segments: int, io: torch.dtype) -> None:
    x = inputs(device.size(257, 2000), "init", beta=2.0, B=2, Hk=1, Hv=2, dk=72, dv=136, io=io)
    check(device, x, BOUND[io])


@pytest.mark.parametrize("window", ["auto", "7"])
def test_packed_sequences(device: Device, window: str, monkeypatch: pytest.MonkeyPatch) -> None:
    split(device, monkeypatch, "3", window)
    x = packed([200, 0, 1, 330, 64, 0], more=5, gates="init", beta=2.0)
    found = launch(device, x, norm=True)
    output, states = states_of(x)
    assert rel_rms(found["out"], output) < BOUND[BF16] and not found["out"][595:].any()
    for n, each in enumerate(states):
        assert rel_rms(found["state"][n], each[-1]) < BOUND[BF16]


def test_blocks_that_take_many_work_tiles(device: Device, segments: int) -> None:
    """Who takes a segment changes nothing."""
    x = packed([200, 0, 1, 330, 64, 0], more=5, gates="init", beta=2.0, dv=128)
    found = [launch(device, x, norm=True, multiprocessors=n) for n in (132, 1)]
    assert all(torch.equal(t, found[1][name]) for name, t in found[0].items())


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_a_pool_in_place(device: Device, segments: int, dtype: torch.dtype) -> None:
    x = packed([260, 3, 130], gates="init")
    pool = torch.randn(4, *x["state"].shape[1:], generator=torch.Generator().manual_seed(9)).to(dtype)
    given = there(device, x | {"state": pool.clone(), "state_indices": torch.tensor([2, -1, 0])})
    after: Any
    with device.only(*FOLDED, "gdn/kda_order"):
        out, after, rows = gdn_cuda.chunked_forward(**given, use_qk_l2norm=True, checkpoint_every=64)
    output, states = states_of(x, pool[[2, 0, 0]].float())
    output[260:263] = 0
    assert rel_rms(out.cpu(), output) < BOUND[BF16] and not out[260:263].any()
    bound = BOUND[BF16] + (4e-3 if dtype == BF16 else 0)
    assert rel_rms(after[2].cpu(), states[0][-1]) < bound and rel_rms(after[0].cpu(), states[2][-1]) < bound
    assert torch.equal(after[[1, 3]].cpu(), pool[[1, 3]])
    wanted = torch.cat([states[0][64::64], states[2][64::64]])
    assert rel_rms(rows[: wanted.shape[0]].cpu(), wanted) < bound


def test_states_before_blocks(device: Device, segments: int) -> None:
    x = packed([260, 64], gates="init", beta=2.0)
    before = torch.full((6, *x["state"].shape[1:]), torch.nan).to(device.name)
    found = launch(device, x, norm=True, checkpoint_every=64, states_before=before)
    _, states = states_of(x)
    wanted = torch.cat([each[64::64] for each in states])
    assert rel_rms(found["checkpoints"], wanted) < BOUND[BF16]
    assert rel_rms(before.cpu(), torch.cat([each[:-1:64] for each in states])) < BOUND[BF16]


def test_without_states(device: Device, segments: int) -> None:
    x = inputs(260, "init", beta=2.0)
    start = x.pop("state")
    found = launch(device, x, norm=True, output_final_state=False)
    output, _ = expected(x | {"state": torch.zeros_like(start)}, norm=True)
    assert rel_rms(found["out"], output) < BOUND[BF16]


def test_deterministic_calls_are_not_split(device: Device, segments: int) -> None:
    x = inputs(device.size(200, 1000), "init", Hk=2, Hv=2)
    options: dict[str, Any] = {"use_qk_l2norm": True, "deterministic": True}
    one = {name: t[:, -1:] if name == "state" else t[:, :, -1:] for name, t in x.items()}
    with device.only(*KERNELS, "gdn/kda_ahead"):
        out, state = gdn_cuda.chunked_forward(**there(device, x), **options)
        alone, alone_state = gdn_cuda.chunked_forward(**there(device, one), **options)
    assert torch.equal(alone, out[:, :, -1:]) and torch.equal(alone_state, state[:, -1:])


# ---- What is not finite. With three segments of 320 tokens, the second has tokens 64 to 191; with five, each has a chunk.


def value(x: dict[str, Tensor]) -> None:
    x["value"][0, 10, 0, 5] = torch.inf


def nan_value(x: dict[str, Tensor]) -> None:
    x["value"][0, 10, 0, 5] = torch.nan


def key(x: dict[str, Tensor]) -> None:
    x["key"][0, 11, 0, 7] = torch.nan


def gate(x: dict[str, Tensor]) -> None:
    x["gate"][0, 12, 0, 9] = torch.nan


def state(x: dict[str, Tensor]) -> None:
    x["state"][0, 0, 3, 3] = -torch.inf


@pytest.mark.parametrize("poison", [value, key, gate, state])
@pytest.mark.parametrize("token", [128, 165, 310])
def test_nothing_before_a_reset_in_a_later_segment_shows(device: Device, segments: int, token: int, poison: Any) -> None:
    x = inputs(320, "init")
    x["gate"][0, token] = -torch.inf
    poison(x)
    found = launch(device, x, norm=True)
    output, last = expected(x, norm=True)
    assert rel_rms(found["out"][:, token:], output[:, token:]) < BOUND[BF16] and rel_rms(found["state"], last) < BOUND[BF16]
    assert torch.equal(found["out"].isfinite()[:, 64:], output.isfinite()[:, 64:])


@pytest.mark.parametrize("poison", [value, nan_value, state])
@pytest.mark.parametrize("resets", ["nothing", "a channel"])
def test_decays_that_are_not_zero_hide_nothing(device: Device, segments: int, resets: str, poison: Any) -> None:
    """Their product over a segment is."""
    x = inputs(320, "edge")
    if resets == "a channel":
        x["gate"][0, [130, 200], 0, 3] = -torch.inf
    poison(x)
    found = launch(device, x, norm=True)
    output, last = expected(x, norm=True)
    assert agrees(found["state"], last, BOUND[BF16])
    assert agrees(found["out"][:, 64:], output[:, 64:], BOUND[BF16])


@pytest.mark.parametrize("token", [64, 128])
def test_a_channel_that_a_segments_first_token_resets(device: Device, monkeypatch: pytest.MonkeyPatch, token: int) -> None:
    """One row of this channel alone overflows in the token before."""
    split(device, monkeypatch, "5")
    x = inputs(320, "init")
    x["key"] = torch.nn.functional.normalize(x["key"].float(), dim=-1).to(BF16)
    x["key"][0, token - 1] = torch.eye(128)[7] * 20
    x["value"][0, token - 1, 0, 5], x["beta"][0, token - 1] = 3e38, 1.0
    x["gate"][0, token, 0, 7] = -torch.inf
    found = launch(device, x, norm=False)
    output, last = expected(x, norm=False)
    assert rel_rms(found["state"], last) < BOUND[BF16]
    assert rel_rms(found["out"][:, token:], output[:, token:]) < BOUND[BF16]


def test_a_nan_stays_in_its_head_and_sequence(device: Device, segments: int) -> None:
    x = packed([200, 200], gates="init", Hv=2)
    x["gate"][30, 1, 0] = torch.nan
    found = launch(device, x, norm=True)
    output, states = states_of(x)
    others = (found["out"][:, 0], output[:, 0]), (found["out"][200:], output[200:])
    assert all(rel_rms(*each) < BOUND[BF16] for each in others)
    assert rel_rms(found["state"][1], states[1][-1]) < BOUND[BF16]
    assert rel_rms(found["state"][0, 0], states[0][-1][0]) < BOUND[BF16]
    assert bool(found["out"][30:200, 1].isnan().all()) and bool(found["state"][0, 1].isnan().any())


def test_invalid_offsets_write_nothing_else(device: Device, segments: int) -> None:
    for offsets in ([0, 200, 50, 240], [3, 2, 1, 0], [-5, 60, 400, 90], [0, 240, 0, 240]):
        x = packed([80, 80, 80]) | {"cu_seqlens": torch.tensor(offsets)}
        launch(device, x, norm=True)
        device.synchronize()
