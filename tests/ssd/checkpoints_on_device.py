"""States that ssd_scan reports at other tokens than the last, by its kernels, against the literal recurrence in fp64."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from devices import Device
from helpers import rel_rms
from ssd_on_device import BF16, F16, KERNELS, OUT, STATE, TOKENS, drawn, expected
from torch import Tensor

from gdn_cuda import ssd_scan

EVERY = (*KERNELS, "ssd/checkpoints")
BF16_ROWS = 5e-3  # the state's bound and a rounding to bf16


def reported(device: Device, x: dict[str, Any], **more: Any) -> tuple[Tensor, Tensor, Tensor]:
    with device.only(*EVERY), torch.no_grad():
        out, last, rows = ssd_scan(**x, **more)
    return out, last, rows


def offsets_of(x: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Of each sequence its row of the batch, its first token and its end."""
    if x["cu_seqlens"] is None:
        return [(n, 0, x["x"].shape[1]) for n in range(x["x"].shape[0])]
    return [(0, first, end) for first, end in pairwise(x["cu_seqlens"].tolist())]


def state_after(x: dict[str, Any], sequence: int, tokens: int) -> Tensor:
    row, first, _ = offsets_of(x)[sequence]
    part = {name: y if y is None else y[row : row + 1, first : first + tokens] for name, y in x.items() if name in TOKENS}
    initial = None if x["initial_state"] is None else x["initial_state"][sequence : sequence + 1]
    return expected(x | part | {"initial_state": initial, "cu_seqlens": None})[1][0]


def check_rows(x: dict[str, Any], rows: Tensor, places: list[tuple[int, int] | None], bound: float) -> None:
    assert len(places) == rows.shape[0]
    for row, place in zip(rows, places, strict=True):
        if place is None:
            assert not row.any()
        else:
            assert rel_rms(row.double(), state_after(x, *place)) < bound, place


def check_results(x: dict[str, Any], out: Tensor, last: Tensor) -> None:
    wanted, state = expected(x)
    dtype = x["x"].dtype
    assert rel_rms(out, wanted) < OUT[dtype] and rel_rms(last, state) < STATE[dtype]


@pytest.mark.parametrize("lengths", [None, (300, 0, 63, 64, 130)])
@pytest.mark.parametrize("z", [False, True])
def test_after_every_so_many_tokens(z: bool, lengths: tuple[int, ...] | None, device: Device, seed: int) -> None:
    B, T = (2, 300) if lengths is None else (1, sum(lengths) + 70)
    x = drawn(device, seed, T=T, B=B, H=2, G=1, N=64, z=z, lengths=lengths)
    before = torch.full((14, 2, 64, 64), torch.nan, device=device.name, dtype=F16)
    out, last, rows = reported(device, x, checkpoint_every=64, states_before=before)
    check_results(x, out, last)
    ends = [end - first for _, first, end in offsets_of(x)]
    places: list[Any] = [(n, 64 * (i + 1)) for n, length in enumerate(ends) for i in range(length // 64)]
    check_rows(x, rows, places + [None] * (rows.shape[0] - len(places)), STATE[BF16])
    places = [(n, 64 * i) for n, length in enumerate(ends) for i in range(-(-length // 64))]
    check_rows(x, before, places + [None] * (14 - len(places)), BF16_ROWS)


def test_a_longer_interval_and_fewer_rows_than_there_are(device: Device, seed: int) -> None:
    x = drawn(device, seed, T=400, B=2, H=1, G=1, N=64)
    given = torch.full((2, 2, 64, 64), torch.nan, device=device.name, dtype=BF16)[:, :1]
    _, _, rows = reported(device, x, checkpoint_every=192, checkpoints=given)
    assert rows is given
    check_rows(x, rows, [(0, 192), (0, 384)], BF16_ROWS)


@pytest.mark.parametrize("packed", [False, True])
def test_after_any_number_of_tokens(packed: bool, device: Device, seed: int) -> None:
    lengths = (130, 17, 0, 200) if packed else None
    x = drawn(device, seed, T=350 if packed else 200, B=1 if packed else 4, H=2, G=1, N=128, lengths=lengths, z=True)
    ends = [end - first for _, first, end in offsets_of(x)]
    wanted = [100, ends[1], 0, 1]
    for type in (torch.int32, torch.int64):
        out, last, rows = reported(device, x, checkpoint_offsets=torch.tensor(wanted, device=device.name, dtype=type))
        check_results(x, out, last)
        check_rows(x, rows, [(n, tokens) if tokens else None for n, tokens in enumerate(wanted)], STATE[BF16])


@pytest.mark.parametrize("P, N", [(64, 128), (80, 128), (128, 256)])
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_boundaries(dtype: torch.dtype, P: int, N: int, device: Device, seed: int) -> None:
    """At any token, twice at one, and at the ends of sequences, one of which is empty."""
    lengths, boundaries = (130, 0, 1, 64, 90), [0, 16, 16, 90, 130, 131, 195, 210, 285]
    x = drawn(device, seed, T=285, H=2, G=1, P=P, N=N, dtype=dtype, lengths=lengths, z=bool(seed % 2))
    out, last, rows = reported(device, x, boundaries=torch.tensor(boundaries, device=device.name))
    check_results(x, out, last)
    places = [(0, 16), (0, 16), (0, 90), (0, 130), (2, 1), (3, 64), (4, 15), (4, 90)]
    check_rows(x, rows, list(places), STATE[dtype])
    assert torch.equal(rows[0], rows[1])


def test_boundaries_before_the_first_token_are_rows_of_zeros(device: Device, seed: int) -> None:
    x = drawn(device, seed, T=70, H=1, G=1, N=64, lengths=(0, 70))
    _, _, rows = reported(device, x, boundaries=torch.tensor([0, 0, 0, 70], device=device.name))
    check_rows(x, rows, [None, None, (1, 70)], STATE[BF16])


def test_what_follows_is_not_in_a_state(device: Device, seed: int) -> None:
    """Infinities and NaN after a reported token, in the same 64 tokens."""
    x = drawn(device, seed, T=160, lengths=(160,))
    hurt = {name: y.clone() if isinstance(y, Tensor) else y for name, y in x.items()}
    for name, value in (("x", torch.inf), ("dt", torch.nan), ("B", torch.nan), ("C", torch.inf)):
        hurt[name][:, 75:] = value
    boundaries = torch.tensor([0, 10, 75, 160], device=device.name)
    out, _, rows = reported(device, x, boundaries=boundaries)
    found, _, states = reported(device, hurt, boundaries=boundaries)
    assert torch.equal(found[:, :75], out[:, :75]) and torch.equal(states[:2], rows[:2])


def test_a_pool_whose_sequences_are_not_all_computed(device: Device, seed: int) -> None:
    x = drawn(device, seed, T=230, H=3, G=1, N=64, lengths=(70, 30, 65, 65))
    pool = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(seed)).to(device.name, BF16)
    slots = torch.tensor([2, -1, 3, 0], device=device.name)
    first = pool.float()[slots.clamp(0, 2)]
    own = x | {"initial_state": pool, "state_indices": slots}
    boundaries = torch.tensor([0, 33, 70, 90, 100, 164, 165, 230], device=device.name)
    _, _, rows = reported(device, own, boundaries=boundaries)
    assert rows.dtype == BF16
    x["initial_state"] = first
    check_rows(x, rows[:2], [(0, 33), (0, 70)], BF16_ROWS)
    assert not rows[2:4].any() and rows[4:6].isnan().all()
    check_rows(x, rows[6:], [(3, 65)], BF16_ROWS)


@pytest.mark.parametrize("z", [False, True])
def test_a_prompt_in_two_calls_has_the_bits_of_one(z: bool, device: Device, seed: int) -> None:
    """If both end a chunk where the first call ends."""
    x = drawn(device, seed, T=230, H=2, G=1, N=64, z=z, lengths=(230,))
    cut = 90
    out, last, rows = reported(device, x, boundaries=torch.tensor([0, cut, 230], device=device.name), deterministic=True)
    state, outs = x["initial_state"], []
    for first, end in ((0, cut), (cut, 230)):
        part = {name: y if y is None else y[:, first:end] for name, y in x.items() if name in TOKENS}
        part |= {"initial_state": state, "cu_seqlens": torch.tensor([0, end - first], device=device.name)}
        found, state, _ = reported(device, x | part, boundaries=part["cu_seqlens"], deterministic=True)
        outs.append(found)
        assert first > 0 or torch.equal(state, rows[:1])
    assert torch.equal(torch.cat(outs, 1), out) and torch.equal(state, last)


@pytest.mark.parametrize("decay", [1e-4, 1.0])
def test_segments_report_states(decay: float, device: Device, seed: int) -> None:
    length = device.size(1700, 9000)
    x = drawn(device, seed, T=length, H=2, G=1, N=64, decay=decay, lengths=(length,))
    tokens = [100, length // 2, length - 1, length]
    out, last, rows = reported(device, x, boundaries=torch.tensor([0, *tokens], device=device.name))
    check_results(x, out, last)
    check_rows(x, rows, [(0, each) for each in tokens], STATE[BF16])


def test_no_sequences(device: Device) -> None:
    x = drawn(device, 1, T=70, H=2, G=1, N=64, lengths=())
    before = torch.ones(2, 2, 64, 64, device=device.name)
    _, _, rows = reported(device, x, checkpoint_every=64, states_before=before)
    assert rows.shape[0] == 1 and not rows.any() and not before.any()


def test_many_short_pieces(device: Device, seed: int) -> None:
    """More pieces than lanes."""
    lengths = (40, 45)
    x = drawn(device, seed, T=85, H=1, G=1, N=64, lengths=lengths)
    _, _, rows = reported(device, x, boundaries=torch.arange(86, device=device.name))
    places = [(n, t + 1) for n, length in enumerate(lengths) for t in range(length)]
    check_rows(x, rows[::7], list(places[::7]), STATE[BF16])
