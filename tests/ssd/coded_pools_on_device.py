"""ssd_scan from and to slots of an int8 pool, against fp64 from the states that the codes are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from devices import Device
from helpers import rel_rms
from ssd_on_device import BF16, KERNELS, OUT, STATE, drawn, expected
from state_codes_on_device import coded, read
from torch import Tensor

from gdn_cuda import ssd_scan

SLOTS, COUNT = [3, 1, 0, -1], 6
Call = dict[str, Any]


def with_pool(x: Call, seed: int, **more: Any) -> Call:
    """Codes in a larger tensor; the pool has gaps between its slots."""
    device, (heads, channels), states = x["x"].device, x["x"].shape[-2:], x["B"].shape[-1]
    rng = torch.Generator().manual_seed(seed)
    codes, scales = coded(torch.randn(COUNT, heads + 1, channels, states, generator=rng))
    pool = {"initial_state": codes.to(device)[:, 1:], "state_scales": scales.to(device)[:, 1:]}
    return x | pool | {"state_indices": torch.tensor(SLOTS, device=device)} | more


def check(device: Device, x: Call, begin: list[bool] | None, write: list[int] | None, **more: Any) -> tuple[Tensor, ...]:
    """Sequences begin with the states in their slots; their last states go there, or where `write` says."""
    before = {name: x[name].cpu().clone() for name in ("initial_state", "state_scales")}
    first = read(*before.values())[x["state_indices"].cpu().clamp(0, COUNT - 1)]
    own = x | more
    if begin is not None:
        own["has_initial_state"] = torch.tensor(begin, device=device.name)
        first = torch.where(own["has_initial_state"].cpu()[:, None, None, None], first, 0)
    if write is not None:
        own["write_indices"] = torch.tensor(write, device=device.name).int()
    plain = {name: y for name, y in x.items() if name not in ("state_scales", "state_indices")}
    wanted, last = expected(plain | {"initial_state": first.to(x["x"].device)})
    with device.only(*KERNELS, "gdn/move_states", "ssd/checkpoints"), torch.no_grad():
        out, pool, *rows = ssd_scan(**own, return_last_state=True)
    assert pool is x["initial_state"]
    found, states = read(pool.cpu(), x["state_scales"].cpu()), read(*before.values())
    written = []
    for n, (slot, to) in enumerate(zip(x["state_indices"].tolist(), write or x["state_indices"].tolist(), strict=True)):
        a, b = (0, x["x"].shape[1]) if x["cu_seqlens"] is None else x["cu_seqlens"][n : n + 2].tolist()
        mine = (slice(n, n + 1), slice(None)) if x["cu_seqlens"] is None else (slice(None), slice(a, b))
        if not 0 <= slot < COUNT:
            assert out[mine].isnan().all() if slot >= 0 else not out[mine].any()
            continue
        assert a == b or rel_rms(out[mine].double(), wanted[mine]) < OUT[BF16]
        if 0 <= to < COUNT and own.get("update_state", True):
            written.append(to)
            groups = last[n].cpu().double().unflatten(-1, (-1, 32))
            steps = groups.abs().amax(-1, keepdim=True) / 127
            error = (found[to].unflatten(-1, (-1, 32)) - groups).abs()
            assert rel_rms(found[to], last[n].cpu()) < STATE[BF16] + 0.01 and bool((error <= 4 * steps).all())
    others = [slot for slot in range(COUNT) if slot not in written]
    assert torch.equal(found[others], states[others])
    assert all(torch.equal(x[name].cpu()[others], y[others]) for name, y in before.items())
    return (out, *rows)


@pytest.mark.parametrize("write", [None, [0, 4, 7, -1]])
@pytest.mark.parametrize("begin", [None, [True, False, True, True]])
def test_slots(begin: list[bool] | None, write: list[int] | None, device: Device, seed: int) -> None:
    packed = drawn(device, seed, T=170, N=64, lengths=(70, 0, 65, 30), z=True)
    check(device, with_pool(packed, seed), begin, write)
    x = with_pool(drawn(device, seed, T=70, B=4, N=64), seed)
    x["state_indices"][2] = 2**40
    check(device, x, begin, write)


def test_a_pool_that_is_only_read(device: Device, seed: int) -> None:
    check(device, with_pool(drawn(device, seed, T=70, B=4, N=64), seed), None, None, update_state=False)


def test_checkpoints_are_float32(device: Device, seed: int) -> None:
    x = with_pool(drawn(device, seed, T=130, B=4, H=2, G=1, N=64), seed)
    first = read(x["initial_state"].cpu(), x["state_scales"].cpu())
    _, rows = check(device, x, None, None, checkpoint_every=64)
    assert rows.dtype == torch.float32 and rows.shape[0] == 8
    plain = {name: y for name, y in x.items() if name not in ("state_scales", "state_indices")}
    part = {name: y[:1, :64] if name in ("x", "dt", "B", "C") else y for name, y in plain.items()}
    part["initial_state"] = first[SLOTS[:1]].to(x["x"].device)
    assert rel_rms(rows[0], expected(part)[1][0]) < STATE[BF16]


def test_a_prompt_then_tokens(device: Device, seed: int) -> None:
    """A scan fills slots that were full of NaN, and steps go on from the codes."""
    from gdn_cuda import selective_state_update

    x = with_pool(drawn(device, seed, T=66, B=4, N=64), seed)
    x["state_scales"].fill_(torch.nan)
    begin = torch.zeros(4, dtype=torch.bool, device=device.name)
    prompt = {name: y[:, :65] if name in ("x", "dt", "B", "C") else y for name, y in x.items()}
    with device.only(*KERNELS, "gdn/move_states"), torch.no_grad():
        ssd_scan(**prompt, has_initial_state=begin)
    token = {name: x[name][:, 65] for name in ("x", "dt", "B", "C")}
    token |= {name: x[name] for name in ("A", "D", "dt_bias", "dt_softplus", "state_scales")}
    with device.kernels():
        out = selective_state_update(x["initial_state"], **token, state_batch_indices=x["state_indices"])
    plain = {name: y for name, y in x.items() if name not in ("state_scales", "state_indices")}
    wanted, _ = expected(plain | {"initial_state": None})
    assert rel_rms(out[:3].double(), wanted[:3, 65]) < 0.02 and not out[3].any()
