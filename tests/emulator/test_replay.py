"""gdn/replay in the emulator: replay_on_device.py, values that are not finite, fused_decode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from emulated import EMULATOR, emulated
from guarded import bits
from helpers import rel_rms
from replay_cases import OUTPUT_BOUND, Server
from replay_on_device import *  # noqa: F403
from replay_on_device import calls, serve
from torch import Tensor

from gdn_cuda import fused_decode, replay_decode
from gdn_cuda.gdn import replay_examples

decode, commit = calls(EMULATOR)


def test_options(seed: int) -> None:
    server = Server(seed, dk=64, scale=0.3, use_qk_l2norm=False)
    tokens = server.tokens
    server.tokens = lambda *lead: (x := tokens(*lead)) | {"key": x["key"] / 8}  # type: ignore[method-assign]
    serve(EMULATOR, server, 4)
    serve(EMULATOR, Server(seed, dk=64, allow_negative_eigenvalues=True), 4)


def check_example(x: dict[str, Any], **changes: Any) -> Tensor:
    """Compares with the reference on tensors of the same dtypes; returns the output."""
    x = x | changes
    wanted = {name: y.clone() if isinstance(y, Tensor) else y for name, y in x.items()}
    out = decode(**x, out=torch.full(x["value"].shape, torch.nan, dtype=x["value"].dtype))
    expected = replay_decode(**wanted)
    assert rel_rms(out.nan_to_num(), expected.nan_to_num()) <= OUTPUT_BOUND[out.dtype]
    assert torch.equal(out.isnan(), expected.isnan())
    for name in ("state_pool", "updates", "decays"):
        assert torch.equal(x[name].isfinite(), wanted[name].isfinite()), name
        bound = 8e-3 if x[name].dtype == torch.bfloat16 else 1e-5
        assert rel_rms(x[name].nan_to_num(0, 0, 0), wanted[name].nan_to_num(0, 0, 0)) <= bound, name
    assert torch.equal(bits(x["keys"]), bits(wanted["keys"])) and torch.equal(bits(x["banks"]), bits(wanted["banks"]))
    return out


@pytest.mark.parametrize("make", [replay_examples.later_call, replay_examples.first_call, replay_examples.packed])
def test_examples(make: Any, seed: int) -> None:
    for B, T in ((4, 5), (1, 1), (7, 3), (3, 0), (0, 3), (1, 4)):
        check_example(make(B, T, seed))


def test_any_value_in_banks(seed: int) -> None:
    x = replay_examples.later_call(6, 4, seed)
    x["banks"].copy_(torch.tensor([torch.nan, -3.0, torch.inf, 1e-40, 0.5, 2.0, 0.0, 1.0])[:, None, None])
    check_example(x)


@pytest.mark.parametrize("wrong", [torch.inf, -torch.inf, torch.nan])
def test_a_reset_clears_states_that_are_not_finite(wrong: float, seed: int) -> None:
    """Among stored steps and among new tokens; values that are not finite stay in their rows until then."""
    for stored in (True, False):
        x = replay_examples.later_call(4, 5, seed)
        slots, accepted = x["state_indices"][[1, 3]].long(), x["num_accepted_tokens"]
        accepted.fill_(4)
        x["state_pool"][slots, :, 3] = wrong
        x["updates"][slots, 0, 1] = wrong
        if stored:
            x["decays"][slots, :, 2] = 0
        else:
            x["a"][[1, 3], 2] = 1e30
        out = check_example(x)
        sequences = out[[1, 3]]
        assert sequences[:, 2:].isfinite().all() and (stored == bool(sequences[:, :2].isfinite().all()))
        assert out[0].isfinite().all()


def test_values_that_are_not_finite_stay_in_their_rows(seed: int) -> None:
    clean, spoilt = (replay_examples.later_call(3, 4, seed) for _ in range(2))
    spoilt["value"][1, 1, 2, 3] = torch.nan
    spoilt["state_pool"][int(spoilt["state_indices"][0]), 0, 5] = torch.inf
    outs = [decode(**x, out=torch.empty_like(x["value"].contiguous())) for x in (clean, spoilt)]
    same = torch.ones(outs[0].shape, dtype=torch.bool)
    same[1, 1:, 2, 3] = same[0, :, 0, 5] = False
    assert torch.equal(outs[0][same], outs[1][same]) and not outs[1][~same].isfinite().any()


def test_equals_verify_that_keeps_states(seed: int) -> None:
    """Up to fp32 roundings of sums: a few outputs in bf16 differ by one rounding."""
    server = Server(seed, dk=128, dv=128, Hv=4, Hk=2)
    kept = server.pool.clone()
    worst = 0.0
    for _ in range(4):
        tokens = server.tokens(3, 4)
        x = server.arguments(tokens)
        out = decode(**x, out=torch.empty_like(x["value"].contiguous()))
        steps = torch.empty(3, 4, *kept.shape[1:])
        own = {**tokens, **server.heads, "state_pool": kept, "state_indices": server.slots}
        with emulated():
            expected = fused_decode(**own, step_states=steps, step_slots=torch.arange(3))
        worst = max(worst, rel_rms(out, expected))
        server.accepted.copy_(torch.tensor([1, 4, 2]))
        kept[server.slots.long()] = steps[torch.arange(3), server.accepted.long() - 1]
    commit(server.pool, server.buffers, server.slots, server.accepted)
    assert worst <= 3e-4
    assert rel_rms(server.pool[server.slots.long()], kept[server.slots.long()]) <= 1e-6
