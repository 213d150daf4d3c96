"""chunked_forward with a gate for every channel of the key, by gdn/kda_prepare and gdn/kda_own in windows of chunks and by
kernels that go token by token, against the recurrence in fp64: what it reads, writes and leaves alone."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any

import pytest
import torch
from devices import Device
from helpers import rel_rms
from kda_cases import decays, literal
from kda_chunks_on_device import BF16, BOUND, KERNELS, OTHERS, inputs, launch, there
from torch import Tensor

import gdn_cuda

ROWS = ("query", "key", "value", "beta")


def packed(lengths: list[int], more: int = 0, **options: Any) -> dict[str, Tensor]:
    """Sequences of these lengths, and tokens after the last."""
    x = {name: t[0] for name, t in inputs(sum(lengths) + more, **options).items()}
    rng = torch.Generator().manual_seed(7)
    x["state"] = torch.randn(len(lengths), *x["state"].shape, generator=rng)
    return x | {"cu_seqlens": torch.tensor([0, *lengths]).cumsum(0)}


def sequences_of(x: dict[str, Tensor]) -> list[slice]:
    return [slice(first, end) for first, end in pairwise(x["cu_seqlens"].tolist())]


def states_of(x: dict[str, Tensor], start: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
    """(output, states after every token of each sequence, the one before first) of a packed call, with l2 norm."""
    decay = decays(x["gate"])
    start = x["state"] if start is None else start
    output, states = torch.zeros(*decay.shape[:-1], x["value"].shape[-1]).double(), []
    for n, at in enumerate(sequences_of(x)):
        first = start[n : n + 1].double()
        if at.start == at.stop:
            states.append(first)
            continue
        found, after = literal(*(x[name][None, at] for name in ROWS), decay[None, at], first, norm=True)
        output[at] = found[0]
        states.append(torch.cat([first, after[0]]))
    return output, states


CHOSEN_WINDOW = os.environ.get("GDN_KDA_WINDOW", "auto")


@pytest.fixture(params=["auto", "1", "3"])
def window(request: pytest.FixtureRequest, device: Device, monkeypatch: pytest.MonkeyPatch) -> str:
    """Chunks of a head that are prepared at a time. A process on a GPU reads the variable once."""
    if not device.emulate and request.param != CHOSEN_WINDOW:
        pytest.skip("another process has this window")
    monkeypatch.setenv("GDN_KDA_WINDOW", request.param)
    return str(request.param)


# ---- Windows


@pytest.mark.parametrize("state", ["float32", "bfloat16", "none"])
def test_windows_of_padded_sequences(device: Device, window: str, state: str) -> None:
    x = inputs(150, "bounded", beta=2.0, B=2)
    options: dict[str, Any] = {"output_final_state": state != "none"}
    if state == "bfloat16":
        x["state"] = x["state"].to(BF16)
    found = launch(device, x, norm=True, **options)
    output, states = literal(*(x[name] for name in ROWS), decays(x["gate"]), x["state"], norm=True)
    assert rel_rms(found["out"], output) < BOUND[BF16]
    if state != "none":
        assert found["state"].dtype == x["state"].dtype
        assert rel_rms(found["state"], states[:, -1]) < BOUND[BF16]


def test_windows_of_packed_sequences(device: Device, window: str) -> None:
    x = packed([70, 0, 1, 130, 64, 0], more=5, gates="bounded", beta=2.0)
    found = launch(device, x, norm=True)
    output, states = states_of(x)
    assert rel_rms(found["out"], output) < BOUND[BF16] and not found["out"][265:].any()
    assert rel_rms(found["state"], torch.stack([each[-1] for each in states])) < BOUND[BF16]
    for empty in (1, 5):
        assert torch.equal(found["state"][empty], x["state"][empty])
    alone = launch(device, {name: t[71:201] for name, t in x.items() if name != "state"} | {
        "state": x["state"][3:4], "cu_seqlens": torch.tensor([0, 130])
    }, norm=True)  # fmt: skip
    assert torch.equal(alone["out"], found["out"][71:201]) and torch.equal(alone["state"][0], found["state"][3])


def test_a_head_has_the_same_bits_beside_many(device: Device) -> None:
    """With GDN_KDA_WINDOW, many heads have as many windows as one."""
    heads = device.size(2, 64)
    x = inputs(device.size(70, 1000), "init", Hk=heads, Hv=heads)
    found = launch(device, x, norm=True, deterministic=True)
    one = {name: t[:, -1:] if name == "state" else t[:, :, -1:] for name, t in x.items()}
    alone = launch(device, one, norm=True, deterministic=True)
    assert torch.equal(alone["out"], found["out"][:, :, -1:]) and torch.equal(alone["state"], found["state"][:, -1:])
    again = launch(device, x, norm=True, deterministic=True)
    assert torch.equal(again["out"], found["out"]) and torch.equal(again["state"], found["state"])


@pytest.mark.parametrize("multiprocessors", [132, 1])
def test_invalid_offsets_write_nothing_else(device: Device, multiprocessors: int) -> None:
    for offsets in ([0, 100, 50, 120], [3, 2, 1, 0], [-5, 60, 400, 90], [0, 120, 0, 120]):
        x = packed([40, 40, 40]) | {"cu_seqlens": torch.tensor(offsets)}
        launch(device, x, norm=True, multiprocessors=multiprocessors)
        device.synchronize()


# ---- Blocks that take one work tile after another: many on a GPU, and in the emulator, which has few multiprocessors


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.int8)


def test_sequences_have_the_bits_of_each_alone(device: Device, window: str) -> None:
    """Sequences of no tokens, of one chunk and of several, with and without a tail; with residuals; with chunks that go token
    by token, first or last; with values that are NaN, which must not reach the sequence that a block takes next."""
    lengths, heads = [1, 128, 0, 130, 64, 70, 65, 100, 0, 3], device.size(1, 48)
    x = packed(lengths, more=5, gates="init", beta=2.0, Hk=heads, Hv=heads)
    at = sequences_of(x)
    for sequence, reset, infinite in ((1, 90, 70), (5, 10, 5)):
        x["gate"][at[sequence].start + reset] = -torch.inf
        x["value"][at[sequence].start + infinite] = torch.inf
    x["value"][at[6]] = torch.nan
    x["gate"][at[7]], x["key"][at[7]] = -0.001, x["key"][at[7].start].clone()
    found = launch(device, x, norm=True, multiprocessors=1, checkpoint_every=64, deterministic=True)
    again = launch(device, x, norm=True, multiprocessors=3, checkpoint_every=64, deterministic=True)
    assert all(torch.equal(bits(again[name]), bits(t)) for name, t in found.items())
    rows = 0
    for n, where in enumerate(at):
        if where.start == where.stop:
            assert torch.equal(found["state"][n], x["state"][n])
            continue
        one = {name: t[where] for name, t in x.items() if name not in ("state", "cu_seqlens")}
        one |= {"state": x["state"][n : n + 1], "cu_seqlens": torch.tensor([0, lengths[n]])}
        alone = launch(device, one, norm=True, checkpoint_every=64, deterministic=True)
        count = lengths[n] // 64
        assert torch.equal(bits(alone["out"]), bits(found["out"][where])), n
        assert torch.equal(bits(alone["state"][0]), bits(found["state"][n])), n
        assert torch.equal(bits(alone["checkpoints"][:count]), bits(found["checkpoints"][rows : rows + count])), n
        assert bool(alone["out"].isnan().any()) == (n in (1, 5, 6))
        rows += count
    assert not found["out"][at[-1].stop :].any()


def test_a_padded_batch_has_the_bits_of_each_alone(device: Device) -> None:
    x = inputs(device.size(100, 300), "bounded", B=device.size(2, 8), Hk=1, Hv=device.size(1, 40), dv=128)
    found = launch(device, x, norm=True, multiprocessors=3, deterministic=True)
    for n in range(x["value"].shape[0]):
        alone = launch(device, {name: t[n : n + 1] for name, t in x.items()}, norm=True, deterministic=True)
        assert torch.equal(alone["out"][0], found["out"][n]) and torch.equal(alone["state"][0], found["state"][n])


# ---- Pools


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_a_pool(device: Device, window: str, dtype: torch.dtype) -> None:
    x = packed([70, 0, 3, 65], gates="init", dv=72)
    rng = torch.Generator().manual_seed(9)
    pool = torch.randn(7, 2, *x["state"].shape[1:], generator=rng).to(dtype).to(device.name)[:, 0]  # slots with gaps between
    kept, slots = pool.cpu().clone(), torch.tensor([5, 2, -1, 0], dtype=torch.int32)
    out = torch.full_like(x["value"], torch.nan).to(device.name)
    given = there(device, x | {"state_indices": slots}) | {"state": pool}
    with device.only(*KERNELS, "gdn/kda_order", *OTHERS):
        gdn_cuda.chunked_forward(**given, use_qk_l2norm=True, out=out)
    after, out = pool.cpu(), out.cpu()
    start = kept[slots.clamp(min=0).long()].float()
    output, states = states_of(x, start)
    output[70:73] = 0
    bound = BOUND[BF16] + (4e-3 if dtype == BF16 else 0)
    assert rel_rms(out, output) < BOUND[BF16] and not out[70:73].any()
    for n, slot in ((0, 5), (3, 0)):
        assert rel_rms(after[slot], states[n][-1]) < bound
    assert torch.equal(after[[1, 2, 3, 4, 6]], kept[[1, 2, 3, 4, 6]])


def test_slots_past_the_pool_write_nothing(device: Device) -> None:
    x = inputs(70, B=2)
    pool = torch.randn(3, *x["state"].shape[1:], generator=torch.Generator().manual_seed(3))
    given = there(device, x | {"state": pool.clone(), "state_indices": torch.tensor([7, 1])})
    with device.only(*KERNELS, *OTHERS):
        out, after = gdn_cuda.chunked_forward(**given, use_qk_l2norm=True)
    assert bool(out[0].isnan().all()) and bool(out[1].isfinite().all())
    assert torch.equal(after.cpu()[[0, 2]], pool[[0, 2]]) and not torch.equal(after.cpu()[1], pool[1])


def test_write_indices_and_first_states(device: Device, window: str) -> None:
    x = packed([70, 0, 3, 65, 1], gates="init")
    pool = torch.randn(8, *x["state"].shape[1:], generator=torch.Generator().manual_seed(3))
    read, write = torch.tensor([1, 2, 3, -1, 4]), torch.tensor([0, 5, -1, 6, 7])
    has_state = torch.tensor([True, False, True, True, False])
    given = there(device, x | {"state": pool.clone(), "state_indices": read, "write_indices": write})
    given["has_initial_state"] = has_state.to(device.name)
    with device.only(*KERNELS, "gdn/kda_order", *OTHERS):
        out, after = gdn_cuda.chunked_forward(**given, use_qk_l2norm=True)
    start = torch.where(has_state[:, None, None, None], pool[read.clamp(min=0)], 0)
    output, states = states_of(x, start)
    output[73:138] = 0
    assert rel_rms(out.cpu(), output) < BOUND[BF16]
    for n, slot in ((0, 0), (1, 5), (4, 7)):
        assert (after[slot].cpu() - states[n][-1]).norm() <= BOUND[BF16] * states[n][-1].norm()
    assert torch.equal(after.cpu()[[1, 2, 3, 4, 6]], pool[[1, 2, 3, 4, 6]])


# ---- Checkpoints


@pytest.mark.parametrize("every", [64, 128])
def test_checkpoints_and_states_before(device: Device, window: str, every: int) -> None:
    x = packed([150, 0, 64, 63], gates="init", beta=2.0)
    _, states = states_of(x)
    before = torch.full((8, *x["state"].shape[1:]), torch.nan).to(device.name)
    found = launch(device, x, norm=True, checkpoint_every=every, states_before=before)
    wanted = torch.cat([each[every::every] for each in states])
    rows = found["checkpoints"]
    assert rows.shape[0] == 277 // every and not rows[wanted.shape[0] :].any()
    assert rel_rms(rows[: wanted.shape[0]], wanted) < BOUND[BF16]
    blocks = torch.cat([each[: max(each.shape[0] - 1, 0) : every] for each in states])
    before = before.cpu()
    assert rel_rms(before[: blocks.shape[0]], blocks) < BOUND[BF16] and not before[blocks.shape[0] :].any()


# ---- What goes another way


@pytest.mark.parametrize("change", ["float32", "odd rows", "no tokens"])
def test_other_calls_go_token_by_token(device: Device, change: str) -> None:
    x = inputs(0 if change == "no tokens" else 5, "bounded", beta=2.0, dk=64)
    if change == "float32":
        x |= {name: x[name].float() for name in ("query", "key", "value")}
    if change == "odd rows":
        x["query"] = torch.cat([x["query"], x["query"]], -1)[..., 1:65]
        x["key"] = torch.cat([x["key"], x["key"]], -1)[..., 1:65]
    with device.only("gdn/recurrent", "gdn/recurrent_any", "gdn/verify"):
        out, state = gdn_cuda.chunked_forward(**there(device, x), use_qk_l2norm=True)
    if change == "no tokens":
        assert torch.equal(state.cpu(), x["state"])
        return
    output, states = literal(*(x[name] for name in ROWS), decays(x["gate"]), x["state"], norm=True)
    assert rel_rms(out.cpu(), output) < BOUND[BF16] and rel_rms(state.cpu(), states[:, -1]) < BOUND[BF16]


@pytest.mark.parametrize("gate", ["every second channel", "another dtype", "one token's for all"])
def test_gates_that_are_copied(device: Device, gate: str) -> None:
    x = inputs(70, "bounded", dk=64)
    if gate == "every second channel":
        x["gate"] = torch.stack([x["gate"], x["gate"]], -1)[..., 0]
    elif gate == "another dtype":
        x["gate"] = x["gate"].half()
    else:
        x["gate"] = x["gate"][:, :1].expand(x["gate"].shape)
    found = launch(device, x, norm=True)
    output, states = literal(*(x[name] for name in ROWS), decays(x["gate"]), x["state"], norm=True)
    assert rel_rms(found["out"], output) < BOUND[BF16] and rel_rms(found["state"], states[:, -1]) < BOUND[BF16]


def test_rows_with_gaps_and_wide_values(device: Device) -> None:
    x = inputs(70, "bounded", dk=64, dv=200)
    x["query"] = torch.stack([x["query"], x["query"]], -1)[..., 0]
    found = launch(device, x, norm=True)
    output, states = literal(*(x[name] for name in ROWS), decays(x["gate"]), x["state"], norm=True)
    assert rel_rms(found["out"], output) < BOUND[BF16] and rel_rms(found["state"], states[:, -1]) < BOUND[BF16]


# ---- States after any token


@pytest.mark.parametrize("channels", [True, False])
@pytest.mark.parametrize("padded", [False, True])
def test_states_after_any_token(device: Device, channels: bool, padded: bool) -> None:
    """By GDN's kernels with a gate for each head: a chunk ends at the offset."""
    x = packed([70, 70, 70], more=0 if padded else 3, gates="init", beta=2.0)
    if not channels:
        x["gate"] = x["gate"][..., 0].contiguous()
    decay = x | {"gate": x["gate"] if channels else x["gate"][..., None].expand(*x["gate"].shape, 128)}
    at = [17, 0, 70]
    given: dict[str, Any] = {**x}
    if padded:
        given = {n: t if n == "state" else t.unflatten(0, (3, 70)) for n, t in x.items() if n != "cu_seqlens"}
        given["query"] = torch.cat([given["query"], given["query"]], 1)[:, :70]  # sequences with gaps between
    out = torch.full((3, 80, *x["value"].shape[1:]), torch.nan, dtype=BF16)[:, :70]
    given |= {"checkpoint_offsets": torch.tensor(at), "out": out if padded else torch.full_like(x["value"], torch.nan)}
    with device.kernels():
        found, last, rows = gdn_cuda.chunked_forward(**there(device, given), use_qk_l2norm=True)
    output, states = states_of(decay)
    assert rel_rms(found.cpu().reshape(output.shape), output) < BOUND[BF16] and not found.reshape(output.shape)[210:].any()
    assert rel_rms(last.cpu(), torch.stack([each[-1] for each in states])) < BOUND[BF16]
    wanted = torch.stack([each[count] if count else torch.zeros_like(each[0]) for each, count in zip(states, at, strict=True)])
    assert rel_rms(rows.cpu(), wanted) < BOUND[BF16] and not rows[1].any()


def test_states_after_tokens_that_do_not_exist(device: Device) -> None:
    x = packed([70, 0, 20, 5], gates="init")
    pool = torch.randn(4, *x["state"].shape[1:], generator=torch.Generator().manual_seed(3)).to(BF16)
    given = there(device, x | {"state": pool.clone(), "state_indices": torch.tensor([2, 0, -1, 9])})
    given["checkpoint_offsets"] = torch.tensor([71, 0, 5, 5], dtype=torch.int32).to(device.name)
    rows = torch.full((4, *x["state"].shape[1:]), 7.0).to(device.name)
    with device.kernels():
        found, after, same = gdn_cuda.chunked_forward(**given, use_qk_l2norm=True, checkpoints=rows)
    output, states = states_of(x, pool[[2, 0, 0, 0]].float())
    assert same is rows and bool(rows[[0, 3]].isnan().all()) and not rows[[1, 2]].any()
    assert rel_rms(found[:70].cpu(), output[:70]) < BOUND[BF16] and not found[70:90].any() and bool(found[90:].isnan().all())
    assert rel_rms(after[2].cpu(), states[0][-1]) < 2 * BOUND[BF16] and torch.equal(after[[0, 1, 3]].cpu(), pool[[0, 1, 3]])
