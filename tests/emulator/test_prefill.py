"""gdn/prefill in the emulator, every configuration, against the recurrence in fp64: several sequences a block, segments of
sequences by their number of blocks, strong gates."""

from __future__ import annotations

from functools import partial
from typing import Any

import prefill_on_device
import pytest
import torch
from calls_by_engines import LAYOUTS, Call, check_empty_sequences, check_pool
from emulated import EMULATOR, counted_blocks, emulated
from guarded import bits
from helpers import rel_rms
from prefill_on_device import *  # noqa: F403
from prefill_on_device import BOUND, GROUPS, oracle, poisoned
from strong_gates import CASES, INF, NAN, ONE_GATE, SEVERAL, STATES, Case, check, check_other_heads_are_untouched, id_of
from strong_gates import chunked_forward as poisoned_forward

from gdn_cuda import chunked_forward

EACH_GROUPS = pytest.mark.parametrize("groups, multiprocessors", GROUPS, ids=["one group", "two groups"])
TYPES = pytest.mark.parametrize("io", [torch.bfloat16, torch.float16])


inputs, packed_inputs, run, check_call = (
    partial(function, EMULATOR)
    for function in (prefill_on_device.inputs, prefill_on_device.packed_inputs, prefill_on_device.run, prefill_on_device.check)
)


# ---- Chunks


@TYPES
@EACH_GROUPS
@pytest.mark.parametrize("dk", [64, 96, 128])
@pytest.mark.parametrize("T", [1, 63, 64, 65, 200])
def test_lengths(T: int, dk: int, groups: int, multiprocessors: int, io: torch.dtype, seed: int) -> None:
    check_call(inputs(seed, T, dk, 128, dtype=io), multiprocessors, groups)


@TYPES
@pytest.mark.parametrize("dk", [192, 256])
@pytest.mark.parametrize("T", [1, 63, 64, 65, 200])
def test_lengths_with_long_keys(T: int, dk: int, io: torch.dtype, seed: int) -> None:
    check_call(inputs(seed, T, dk, 128, dtype=io), 132, 1)


# On one multiprocessor, a block takes all of these sequences, heads and rows one after another.
@TYPES
@pytest.mark.parametrize("dk", [64, 96, 128])
@pytest.mark.parametrize("B, T, dv", [(6, 1, 128), (3, 65, 128), (2, 330, 128), (3, 130, 256), (3, 130, 72)])
def test_sequences_one_after_another(B: int, T: int, dv: int, dk: int, io: torch.dtype, seed: int) -> None:
    x = inputs(seed, T, dk, dv, B=B, Hk=1, Hv=2, dtype=io, beta_max=2.0)
    with emulated(1) as launched:
        out, state = chunked_forward(**x, out=poisoned(x["value"]))[:2]
    assert any(".persistent = true" in name for name in launched())
    assert state is not None
    expected, expected_state, _ = oracle(x)
    assert rel_rms(out, expected) < BOUND[io] and rel_rms(state, expected_state) < BOUND[io]
    for n in range(B):
        alone, last = run({name: each[n : n + 1] for name, each in x.items()}, 132)
        assert torch.equal(alone, out[n : n + 1]) and torch.equal(last, state[n : n + 1])


@pytest.mark.parametrize("skipped", [[], [0], [1, 2], [0, 1, 2, 3]])
def test_slots_of_a_pool_one_after_another(skipped: list[int], seed: int) -> None:
    x = inputs(seed, 70, 64, 128, B=4, Hk=1, Hv=2)
    x["gate"][1, 30] = -INF
    x["value"][1, 20] = INF  # computed token by token
    pool = torch.randn(9, 2, 128, 64, generator=torch.Generator().manual_seed(seed))
    slots = torch.tensor([4, 0, 3, 7])
    given = {name: each for name, each in x.items() if name != "state"}
    alone = [run({name: each[n : n + 1] for name, each in given.items()} | {"state": pool[slots[n : n + 1]]}) for n in range(4)]
    before = pool.clone()
    taken = slots.clone()
    taken[skipped] = -1
    with emulated(1) as launched:
        out, _ = chunked_forward(**given, state=pool, state_indices=taken, out=poisoned(x["value"]))[:2]
    assert any(".persistent = true" in name for name in launched())
    for n in range(4):
        if n in skipped:
            assert not out[n].any() and torch.equal(pool[slots[n]], before[slots[n]])
        else:
            assert torch.equal(bits(out[n]), bits(alone[n][0][0])) and torch.equal(bits(pool[slots[n]]), bits(alone[n][1][0]))


# ---- Pools and checkpoints


@pytest.mark.parametrize("layout", LAYOUTS)
def test_empty_sequences_of_a_pool(layout: str) -> None:
    call = Call((70, 0, 0, 5, 66), (1, 2), 64, 64, torch.bfloat16)
    with emulated() as launched:
        check_empty_sequences(call, layout, "cpu")
        check_pool(call, layout, "cpu")
    assert any(name.startswith("gdn/prefill{") for name in launched())


# ---- Segments: sequences of few heads that leave multiprocessors idle

SPLIT = 2600  # tokens, of five segments


@pytest.mark.parametrize("gates", [(-100.0, 0.0), (-2.0, 0.0)])
@pytest.mark.parametrize("lengths", [None, [5100, 100]])
@pytest.mark.parametrize("norm", [False, True])
def test_split_sequences_give_the_bits_of_unsplit_ones(
    norm: bool, lengths: list[int] | None, gates: tuple[float, float], seed: int
) -> None:
    options = {"gate_range": gates, "beta_max": 2.0, "Hv": 1}
    x = packed_inputs(seed, lengths, **options) if lengths else inputs(seed, SPLIT, **options)
    with counted_blocks() as blocks:
        out, state = run(x, use_qk_l2norm=norm)
    assert blocks() == 5 * (len(lengths) if lengths else 1)
    expected, expected_state, _ = oracle(x, use_qk_l2norm=norm)
    assert rel_rms(out, expected) < 5e-3 and rel_rms(state, expected_state) < 5e-3
    with counted_blocks() as blocks:
        unsplit, unsplit_state = run(x, 2, use_qk_l2norm=norm, deterministic=True)  # too few for gdn/prefill_ahead
    assert blocks() == (len(lengths) if lengths else 1)
    assert torch.equal(unsplit, out) and torch.equal(unsplit_state, state)


CHAINED = 5200  # tokens, of ten segments, or with `deterministic` of five
IN_GROUPS = 9000  # enough segments for multiplying their maps in groups


@pytest.mark.parametrize("tokens", [CHAINED, IN_GROUPS])
@pytest.mark.parametrize("case", ["slow", "then fast", "then slow", "none", "fp16", "pool", "40/72", "96/64", "128/128"])
def test_states_that_carry_over_from_segment_to_segment(case: str, tokens: int, seed: int) -> None:
    dk, dv = map(int, case.split("/")) if "/" in case else (64, 64)
    io = torch.float16 if case == "fp16" else torch.bfloat16
    x = inputs(seed, tokens, dk, dv, gate_range=(-1e-3, 0.0), beta_max=2.0, dtype=io)
    if case.startswith("then"):
        half = (slice(None), slice(tokens // 2, None) if case == "then fast" else slice(tokens // 2))
        x["gate"][half] *= 2000
    elif case == "none":
        del x["state"]
    expected, expected_state, _ = oracle(x)
    with counted_blocks() as blocks:
        if case == "pool":
            pool = torch.cat([x["state"], x["state"]])
            with emulated():
                out, _ = chunked_forward(**x | {"state": pool}, state_indices=torch.tensor([1]))
            state = pool[1:]
        else:
            out, state = run(x)
    assert blocks() > 3 * -(-dv // 64)
    assert rel_rms(out, expected) < BOUND[io] and rel_rms(state, expected_state) < BOUND[io]


@pytest.mark.parametrize("in_place", [False, True])
def test_heads_of_slow_decay_get_more_blocks(in_place: bool, seed: int) -> None:
    x = inputs(seed, CHAINED, 64, 64, Hk=1, Hv=3, gate_range=(-1e-3, 0.0))
    x["gate"][..., ::2] *= 2000
    expected, expected_state, _ = oracle(x)
    pool = torch.cat([x["state"], x["state"]])
    options = {"state_indices": torch.tensor([1])} if in_place else {}
    given = x | {"state": pool} if in_place else x
    out, state = run(given, multiprocessors=24, **options)
    state = pool[1:] if in_place else state
    assert rel_rms(out, expected) < BOUND[out.dtype] and rel_rms(state, expected_state) < BOUND[out.dtype]


@pytest.mark.parametrize("gates", [(-1e-3, 0.0), (-2.0, -1.0)])
@pytest.mark.parametrize("in_place", [False, True])
# 14400 tokens have 14 segments, the fewest whose maps are multiplied in groups.
@pytest.mark.parametrize("lengths", [[CHAINED, 70, 0, 5300], [5800, 14400, 5200, 64]], ids=["few", "groups"])
def test_deterministic_segments(lengths: list[int], in_place: bool, gates: tuple[float, float], seed: int) -> None:
    """Long sequences of a packed batch are split by their own length; another launch computes the short ones."""
    x = packed_inputs(seed, lengths, Hv=1, gate_range=gates)
    expected, expected_state, _ = oracle(x)
    options: dict[str, Any] = {"state_indices": torch.tensor([3, 2, 1, 0])} if in_place else {}
    start = x["state"].clone()
    if in_place:
        x["state"] = start.flip(0)
    with emulated() as launched:
        out, state = chunked_forward(**x, **options, deterministic=True, out=poisoned(x["value"]))[:2]
    assert {name.split("{")[0] for name in launched() if name.startswith("gdn/")} == {"gdn/prefill", "gdn/prefill_ahead"}
    assert state is not None
    state = state.flip(0) if in_place else state
    assert rel_rms(out, expected) < 5e-3 and rel_rms(state, expected_state) < 5e-3
    for i in (i for i, length in enumerate(lengths) if length > 5120):
        first = sum(lengths[:i])
        alone = {name: x[name][None, first : first + lengths[i]] for name in ("query", "key", "value", "beta", "gate")}
        fixed, fixed_state = run(alone | {"state": start[i : i + 1]}, deterministic=True)
        assert torch.equal(out[first : first + lengths[i]], fixed[0]) and torch.equal(state[i], fixed_state[0])


def test_deterministic_heads_of_slow_decay_get_more_blocks(seed: int) -> None:
    lengths = [70, CHAINED, 200]
    x = packed_inputs(seed, lengths, Hk=1, Hv=3, gate_range=(-1e-3, 0.0))
    x["gate"][..., ::2] *= 2000
    expected, expected_state, _ = oracle(x)
    with emulated(multiprocessors=12), counted_blocks() as blocks:
        out, state = chunked_forward(**x, deterministic=True, out=poisoned(x["value"]))[:2]
        assert blocks() == 2 * 4 * 3 + 3 * 3
    assert state is not None and rel_rms(out, expected) < 5e-3 and rel_rms(state, expected_state) < 5e-3
    mine = slice(70, 70 + CHAINED)
    alone = {name: x[name][None, mine] for name in ("query", "key", "value", "beta", "gate")}
    fixed, fixed_state = run(alone | {"state": x["state"][1:2]}, multiprocessors=12, deterministic=True)
    assert torch.equal(out[mine], fixed[0]) and torch.equal(state[1], fixed_state[0])


@pytest.mark.parametrize("slow", ["no head", "one head"])
def test_one_of_two_launches_computes_the_result(slow: str, seed: int) -> None:
    """Another configuration is faster on unsplit sequences, so both are launched."""
    x = inputs(seed, CHAINED, 64, 128, Hv=2, gate_range=(-2.0, -1.0))
    if slow == "one head":
        x["gate"][..., 1] *= 1e-4
    expected, expected_state, _ = oracle(x)
    with emulated(multiprocessors=8) as launched:
        out, state = chunked_forward(**x, out=poisoned(x["value"]))
    assert len(launched()) == 2
    assert rel_rms(out, expected) < 5e-3 and state is not None and rel_rms(state, expected_state) < 5e-3


# ---- Gates that reset the state


@pytest.mark.parametrize("case", CASES, ids=id_of)
def test_strong_gates(case: Case, seed: int) -> None:
    x = case.inputs(seed)
    with emulated():
        out, state = poisoned_forward(x)
    check(case, out, state, x, 5e-3, 5e-3)


@pytest.mark.parametrize("dk, dv", [(96, 192), (128, 128), (192, 64), (256, 64)])
@pytest.mark.parametrize("case", ONE_GATE[5::6] + SEVERAL[2:3] + STATES[3::7], ids=id_of)
def test_strong_gates_of_wide_heads(case: Case, dk: int, dv: int, seed: int) -> None:
    x = case.inputs(seed, dk=dk, dv=dv, B=1)
    with emulated(multiprocessors=1):
        out, state = poisoned_forward(x)
    check(case, out, state, x, 5e-3, 5e-3)


@pytest.mark.parametrize("place", [700, 1151, 1152, 2500])
@pytest.mark.parametrize("state", [0.0, NAN])
def test_strong_gates_between_segments(state: float, place: int, seed: int) -> None:
    case = Case("long", ((5, -1e6), (place, -INF)), state=state, token=("value", 650, NAN) if state != 0 else None)
    x = case.inputs(seed, B=1, T=SPLIT, gate_range=(-0.01, 0.0))
    with emulated():
        out, state_after = poisoned_forward(x)
    check(case, out, state_after, x, 5e-3, 5e-3)


def test_other_heads_are_untouched(seed: int) -> None:
    with emulated():
        check_other_heads_are_untouched(poisoned_forward, inputs(seed, 150, B=2, Hv=2, gate_range=(-0.2, 0.0)))
