"""gdn/replay in the emulator: servers that verify by replay against the recurrence in fp64, and calls that lie."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import pytest
import torch
from emulated import emulated
from guarded import bits
from helpers import rel_rms
from replay_cases import OUTPUT_BOUND, Server
from torch import Tensor

from gdn_cuda import commit_replay, fused_decode, replay_decode
from gdn_cuda.gdn import replay_examples

STATES = (torch.float32, torch.bfloat16)
HOSTILE = [2**63 - 1, -(2**63), 2**32, -1, 1]


def decode(**x: Any) -> Tensor:
    """Blocks of one row step, and of as many as there are: the same bits."""
    written = [x[name] for name in ("state_pool", "keys", "updates", "decays", "banks", "out")]
    before, results = [y.clone() for y in written], []
    for multiprocessors in (132, 0):
        for y, old in zip(written, before, strict=True):
            y.copy_(old)
        with emulated(multiprocessors) as launched:
            out = replay_decode(**x)
        assert all(each.startswith("gdn/replay{") for each in launched())
        results.append([bits(y) for y in (out, *written)])
    assert all(torch.equal(*both) for both in zip(*results, strict=True))
    return out


def commit(*given: Any) -> Tensor:
    with emulated():
        return commit_replay(*given)


def serve(server: Server, tokens: int) -> None:
    """Padded and packed calls, sequences of no tokens among them."""
    count = len(server.slots)
    for lengths in ([tokens] * count, [tokens - tokens // 2] * count, [1] * count):
        server.verify(decode, lengths)
        server.accept_some()
    server.verify(decode, [tokens, 0, tokens - 1][:count], packed=True)
    server.accept([len(after) - 1 for after in server.after])
    server.commit(commit)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    "dk, dv", [(64, 136), (96, 40), (128, 200), (192, 24), (256, 72), (8, 8), (40, 72), (120, 16), (200, 40)]
)
def test_head_dimensions(dk: int, dv: int, state: torch.dtype, seed: int) -> None:
    for io, steps in product((torch.bfloat16, torch.float16), (3, 9)):
        serve(Server(seed, dk=dk, dv=dv, state=state, io=io, steps=steps, sequences=2, Hv=1), steps)


@pytest.mark.parametrize("steps", [1, 2, 8, 16])
@pytest.mark.parametrize("Hk, Hv", [(1, 1), (2, 6), (1, 8)])
def test_steps_and_heads(steps: int, Hk: int, Hv: int, seed: int) -> None:
    serve(Server(seed, Hk=Hk, Hv=Hv, dk=64, dv=24, steps=steps, index=torch.int64), steps)


@pytest.mark.parametrize("state", STATES)
def test_long_service(state: torch.dtype, seed: int) -> None:
    """Errors do not pile up, whatever is accepted. Weak gates: states remember all of it."""
    server = Server(seed, dk=64, dv=16, state=torch.float32, pace=4.0, steps=5)
    server.heads["A_log"] -= 5
    for _ in range(12):
        server.verify(decode, [5] * 3)
        server.accept_some()
    server.commit(commit)


def test_options(seed: int) -> None:
    server = Server(seed, dk=64, scale=0.3, use_qk_l2norm=False)
    tokens = server.tokens
    server.tokens = lambda *lead: (x := tokens(*lead)) | {"key": x["key"] / 8}  # type: ignore[method-assign]
    serve(server, 4)
    serve(Server(seed, dk=64, allow_negative_eigenvalues=True), 4)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("dk", [64, 72, 136])
def test_rows_that_do_not_start_on_16_bytes(dk: int, state: torch.dtype, seed: int) -> None:
    for io in (torch.bfloat16, torch.float16):
        server = Server(seed, dk=dk, dv=16, io=io, state=state)
        tokens = server.tokens

        def shifted(*lead: int, dk: int = dk, tokens: Any = tokens) -> dict[str, Tensor]:
            x = tokens(*lead)
            wide = torch.zeros(*x["key"].shape[:-1], dk + 1, dtype=x["key"].dtype)
            return x | {"key": wide[..., 1:].copy_(x["key"])}

        server.tokens = shifted  # type: ignore[method-assign]
        serve(server, 4)


def check_example(x: dict[str, Any], **changes: Any) -> Tensor:
    """Against the reference on tensors of the same dtypes; returns the output."""
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


@pytest.mark.parametrize("make", [replay_examples.of_any_call, replay_examples.of_first_call, replay_examples.packed])
def test_examples(make: Any, seed: int) -> None:
    for B, T in ((4, 5), (1, 1), (7, 3), (3, 0), (0, 3), (1, 4)):
        check_example(make(B, T, seed))


def test_nothing_is_read_of_steps_that_were_not_accepted(seed: int) -> None:
    x = replay_examples.of_any_call(6, 4, seed)
    for n, slot in enumerate(x["state_indices"].tolist()):
        bank = int(x["banks"][slot, 0, 0])
        for stored in (x["keys"][slot, bank], x["updates"][slot], x["decays"][slot, bank]):
            stored[int(x["num_accepted_tokens"][n]) :] = torch.nan
        x["keys"][slot, 1 - bank], x["decays"][slot, 1 - bank] = torch.nan, torch.nan
    assert check_example(x).isfinite().all()


def test_hostile_slots_and_counts(seed: int) -> None:
    """NaN for slots past the pool and counts past the steps, 0 for slots that are none; nothing of either is touched."""
    x = replay_examples.of_any_call(8, 3, seed)
    slots = torch.tensor([2**63 - 1, 1, 2, -(2**63), 2**32, 3, 4, 5])
    accepted = torch.tensor([1, 2**63 - 1, -(2**63), 2**62, 6, 6, 2**32, 5])
    written = {name: x[name] for name in ("state_pool", "keys", "updates", "decays", "banks")}
    before = {name: y.clone() for name, y in written.items()}
    alone = {name: y.clone() if isinstance(y, Tensor) else y for name, y in x.items()}
    given = {"state_indices": slots, "num_accepted_tokens": accepted, "null_slot": 4}
    out = decode(**x | given, out=torch.full(x["value"].shape, 7.0, dtype=x["value"].dtype))
    assert out[[0, 1, 4, 5]].isnan().all() and not out[[3, 6]].any()
    good = {"state_indices": torch.where(torch.arange(8) == 2, slots, torch.where(torch.arange(8) == 7, slots, -1))}
    good["num_accepted_tokens"] = torch.tensor([0, 0, 0, 0, 0, 0, 0, 5])
    expected = decode(**alone | good, out=torch.empty_like(out))
    assert torch.equal(out[[2, 7]], expected[[2, 7]])
    for name, y in written.items():
        assert torch.equal(bits(y), bits(alone[name]))
        others = [slot for slot in range(y.shape[0]) if slot not in (2, 5)]
        assert torch.equal(bits(y[others]), bits(before[name][others]))


@pytest.mark.parametrize("offsets", [[0, 9, 0, 9], [300, 200, 100, 0], [-(2**63), 2**63 - 1, 5, -(2**63)], [0, 6, 6, 2**32]])
def test_hostile_offsets(offsets: list[int], seed: int) -> None:
    """A sequence of more tokens than there are steps gives NaN."""
    x = replay_examples.packed(0, 0, seed) | {"state_indices": torch.tensor([1, 2, 3])}
    spans = [(min(max(a, 0), 9), min(max(b, 0), 9)) for a, b in pairwise(offsets)]
    before = x["state_pool"].clone()
    out = decode(**x | {"cu_seqlens": torch.tensor(offsets)}, out=torch.zeros_like(x["value"].contiguous()))
    too_long = [n for n, (first, last) in enumerate(spans) if last - first > 5]
    for n in too_long:
        assert torch.equal(x["state_pool"][1 + n], before[1 + n])
    if too_long == [0] and spans[0] == (0, 6):
        assert out[:6].isnan().all()


def test_banks_may_hold_anything(seed: int) -> None:
    x = replay_examples.of_any_call(6, 4, seed)
    x["banks"].copy_(torch.tensor([torch.nan, -3.0, torch.inf, 1e-40, 0.5, 2.0, 0.0, 1.0])[:, None, None])
    check_example(x)


@pytest.mark.parametrize("wrong", [torch.inf, -torch.inf, torch.nan])
def test_a_reset_clears_states_that_are_not_finite(wrong: float, seed: int) -> None:
    """Among stored steps and among new tokens; numbers that are not finite stay in their rows until then."""
    for stored in (True, False):
        x = replay_examples.of_any_call(4, 5, seed)
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


def test_numbers_that_are_not_finite_stay_in_their_rows(seed: int) -> None:
    clean, spoilt = (replay_examples.of_any_call(3, 4, seed) for _ in range(2))
    spoilt["value"][1, 1, 2, 3] = torch.nan
    spoilt["state_pool"][int(spoilt["state_indices"][0]), 0, 5] = torch.inf
    outs = [decode(**x, out=torch.empty_like(x["value"].contiguous())) for x in (clean, spoilt)]
    same = torch.ones(outs[0].shape, dtype=torch.bool)
    same[1, 1:, 2, 3] = same[0, :, 0, 5] = False
    assert torch.equal(outs[0][same], outs[1][same]) and not outs[1][~same].isfinite().any()


def test_equals_verify_that_keeps_states(seed: int) -> None:
    """To the roundings of fp32 sums: outputs in bf16 differ by one rounding at most, rarely."""
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
