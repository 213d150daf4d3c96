"""gdn/prefill in the emulator, every configuration, against the recurrence in fp64: a few chunks, and segments of sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from calls_by_engines import LAYOUTS, Call, check_empty_sequences, check_pool
from emulated import counted_blocks, emulated
from gdn_inputs import take_sequence, to_double
from guarded import bits
from helpers import rel_rms
from strong_gates import CASES, INF, NAN, ONE_GATE, SEVERAL, STATES, Case, check, check_other_heads_are_untouched, id_of
from strong_gates import chunked_forward as poisoned_forward
from torch import Tensor

from gdn_cuda import chunked_forward, chunked_summary, reference
from gdn_cuda.gdn.inputs import KEY_MODES, make_gdn_inputs, make_packed_gdn_inputs

BOUND = {torch.bfloat16: 5e-3, torch.float16: 1e-3}
# Value warpgroups of a block, and multiprocessors for which few heads without segments get them: a busy device has few blocks.
GROUPS = pytest.mark.parametrize("groups, multiprocessors", [(1, 132), (2, 1)], ids=["one group", "two groups"])
TYPES = pytest.mark.parametrize("io", [torch.bfloat16, torch.float16])


def inputs(seed: int, T: int, dk: int = 64, dv: int = 64, **options: Any) -> dict[str, Tensor]:
    given = {"B": 1, "Hk": 1, "Hv": 1, "dtype": torch.bfloat16, "gate_range": (-1.0, 0.0), **options}
    return make_gdn_inputs(T=T, dk=dk, dv=dv, seed=seed, **given)


def packed_inputs(seed: int, lengths: list[int], dk: int = 64, dv: int = 64, **options: Any) -> dict[str, Tensor]:
    given = {"Hk": 1, "Hv": 2, "dtype": torch.bfloat16, "gate_range": (-1.0, 0.0), **options}
    return make_packed_gdn_inputs(lengths, dk=dk, dv=dv, seed=seed, **given)  # type: ignore[arg-type]


def oracle(x: dict[str, Tensor], **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Output, final state and states after every token, in fp64."""
    out, last, steps = reference.recurrent(**to_double(x), keep_steps=True, **options)
    assert steps is not None
    return out, last, steps


def poisoned(value: Tensor) -> Tensor:
    return torch.full_like(value, NAN)


def run(x: dict[str, Tensor], multiprocessors: int = 132, groups: int | None = None, **options: Any) -> tuple[Tensor, Tensor]:
    with emulated(multiprocessors) as launched:
        out, state = chunked_forward(**x, out=poisoned(x["value"]), **options)[:2]
    names = [name for name in launched() if name.startswith("gdn/")]
    assert names and all(name.startswith("gdn/prefill{") for name in names)
    assert groups is None or all(f".value_groups = {groups}," in name for name in names)
    assert state is not None
    return out, state


def check_call(x: dict[str, Tensor], multiprocessors: int = 132, groups: int | None = None, **options: Any) -> None:
    expected, expected_state, _ = oracle(x, **options)
    out, state = run(x, multiprocessors, groups, **options)
    bound = BOUND[x["value"].dtype]
    assert rel_rms(out, expected) < bound and rel_rms(state, expected_state) < bound


# ---- Chunks


@TYPES
@GROUPS
@pytest.mark.parametrize("dk", [64, 96, 128])
@pytest.mark.parametrize("T", [1, 63, 64, 65, 200])
def test_lengths(T: int, dk: int, groups: int, multiprocessors: int, io: torch.dtype, seed: int) -> None:
    check_call(inputs(seed, T, dk, 128, dtype=io), multiprocessors, groups)


@pytest.mark.parametrize("dk, dv", [(40, 72), (8, 8), (128, 40), (96, 192), (64, 256), (112, 136)])
@pytest.mark.parametrize("multiprocessors", [132, 1])
def test_head_dimensions(dk: int, dv: int, multiprocessors: int, seed: int) -> None:
    check_call(inputs(seed, 150, dk, dv, Hk=2, Hv=4, gate_range=(-2.0, 0.0)), multiprocessors)


@GROUPS
@pytest.mark.parametrize("key_mode", KEY_MODES)
@pytest.mark.parametrize("gates", [(-100.0, 0.0), (-0.2, 0.0), (0.0, 0.0)])
def test_hostile_inputs(gates: tuple[float, float], key_mode: str, groups: int, multiprocessors: int, seed: int) -> None:
    """Beta up to 2: similar keys make the inverse cancel, and it is used in two parts."""
    x = inputs(seed, 200, 128, 128, gate_range=gates, beta_max=2.0, key_mode=key_mode)
    check_call(x, multiprocessors, groups, use_qk_l2norm=key_mode == "unnormalized")


@GROUPS
@pytest.mark.parametrize("lengths", [[70, 1, 0, 128, 65], [3, 70, 3, 70], [0, 0, 3], [200]])
def test_packed_sequences(lengths: list[int], groups: int, multiprocessors: int, seed: int) -> None:
    x = packed_inputs(seed, lengths, 96, 128, gate_range=(-2.0, 0.0))
    check_call(x, multiprocessors, groups)
    out, state = run(x, multiprocessors)
    for n, length in enumerate(lengths):
        if length == 0:
            continue
        mine = slice(int(x["cu_seqlens"][n]), int(x["cu_seqlens"][n + 1]))
        beside = {name: poisoned(x[name]) for name in ("query", "key", "value")}
        for name, rows in beside.items():
            rows[mine] = x[name][mine]
        among, states = run(x | beside, multiprocessors)
        assert torch.equal(among[mine], out[mine]) and torch.equal(states[n], state[n])
        alone, last = run(take_sequence(x, n), multiprocessors)
        assert torch.equal(alone[0], out[mine]) and torch.equal(last[0], state[n])


@GROUPS
def test_a_batch_gives_the_bits_of_each_sequence_alone(groups: int, multiprocessors: int, seed: int) -> None:
    x = inputs(seed, 130, 64, 128, B=3, Hk=2, Hv=4)
    check_call(x, multiprocessors, groups)
    out, state = run(x, multiprocessors)
    alone, last = run({name: each[-1:] for name, each in x.items()}, multiprocessors)
    assert torch.equal(alone, out[-1:]) and torch.equal(last, state[-1:])


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
    x["value"][1, 20] = INF  # taken token by token
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


def test_slices_of_one_projection(seed: int) -> None:
    x = inputs(seed, 130, 64, 64, B=2, Hk=2, Hv=4)
    both = torch.cat([x[name].flatten(2) for name in ("query", "key", "value")], -1)
    query, key, value = (part.unflatten(-1, (-1, 64)) for part in both.split([128, 128, 256], -1))
    wide = torch.full((2, 130, 4, 192), NAN, dtype=torch.bfloat16)
    expected, expected_state = run(x)
    with emulated():
        out, state = chunked_forward(**x | {"query": query, "key": key, "value": value}, out=wide[..., 128:])
    assert torch.equal(out, expected) and state is not None and torch.equal(state, expected_state)
    assert bool(wide[..., :128].isnan().all())


@pytest.mark.parametrize("scale", [0.5, 0.0, -2.0])
def test_scale(scale: float, seed: int) -> None:
    x = inputs(seed, 100)
    expected, expected_state, _ = oracle(x, scale=scale)
    out, state = run(x, scale=scale)
    assert rel_rms(out, expected) < 5e-3 and rel_rms(state, expected_state) < 5e-3


def test_gates_and_betas_of_other_dtypes(seed: int) -> None:
    x = inputs(seed, 150, dtype=torch.float16)
    x["gate"], x["beta"] = x["gate"].bfloat16(), x["beta"].half()
    check_call(x)


@pytest.mark.parametrize("given, wanted", [(None, None), (torch.bfloat16, None), (torch.bfloat16, torch.float32)])
def test_state_dtypes(given: torch.dtype | None, wanted: torch.dtype | None, seed: int) -> None:
    x: dict[str, Any] = inputs(seed, 70)
    x["state"] = None if given is None else x["state"].to(given)
    _, expected, _ = oracle({name: each for name, each in x.items() if each is not None})
    _, state = run(x, state_dtype=wanted)
    assert state.dtype == (wanted or given or torch.float32) and rel_rms(state, expected) < 5e-3


# ---- Pools and checkpoints


@pytest.mark.parametrize("layout", LAYOUTS)
def test_empty_sequences_of_a_pool(layout: str) -> None:
    call = Call((70, 0, 0, 5, 66), (1, 2), 64, 64, torch.bfloat16)
    with emulated() as launched:
        check_empty_sequences(call, layout, "cpu")
        check_pool(call, layout, "cpu")
    assert any(name.startswith("gdn/prefill{") for name in launched())


@GROUPS
def test_a_pool_in_place_with_checkpoints(groups: int, multiprocessors: int, seed: int) -> None:
    x = packed_inputs(seed, [130, 0, 64, 20], 64, 128)
    pool = torch.randn(9, 2, 128, 64, generator=torch.Generator().manual_seed(seed))
    slots = torch.tensor([4, 0, -1, 7], dtype=torch.int32)
    pool[[4, 0, 7]] = x["state"][[0, 1, 3]]
    before = pool.clone()
    with emulated(multiprocessors):
        alone = chunked_forward(**x, checkpoint_every=64)
        out, state, checkpoints = chunked_forward(
            **x | {"state": pool}, state_indices=slots, checkpoint_every=64, out=poisoned(x["value"])
        )
    assert state is pool
    assert torch.equal(out[:130], alone[0][:130]) and torch.equal(out[194:], alone[0][194:]) and not out[130:194].any()
    assert torch.equal(pool[[4, 7]], alone[1][[0, 3]]) and torch.equal(pool[0], before[0])
    others = [1, 2, 3, 5, 6, 8]
    assert torch.equal(pool[others], before[others])
    assert checkpoints.shape[0] == 214 // 64
    assert torch.equal(checkpoints[:2], alone[2][:2]) and not checkpoints[2].any()


def test_checkpoints(seed: int) -> None:
    x = inputs(seed, 400, B=2)
    _, expected, steps = oracle(x)
    with emulated():
        _, state, checkpoints = chunked_forward(**x, checkpoint_every=128)
    assert rel_rms(state, expected) < 5e-3 and rel_rms(checkpoints, steps[:, 127::128].flatten(0, 1)) < 5e-3


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


@pytest.mark.parametrize("gates", [(-2.0, 0.0), (-1e-3, 0.0)])
def test_segments_of_a_pool_in_place_with_checkpoints(gates: tuple[float, float], seed: int) -> None:
    x = inputs(seed, SPLIT, gate_range=gates)
    expected, expected_state, steps = oracle(x)
    pool = torch.randn(3, *x["state"].shape[1:], generator=torch.Generator().manual_seed(seed))
    pool[1] = x["state"][0]
    kept = pool.clone()
    with emulated(), counted_blocks() as blocks:
        slots = torch.tensor([1])
        out, _, checkpoints = chunked_forward(**x | {"state": pool}, state_indices=slots, checkpoint_every=128)
        assert blocks() == 5
    assert rel_rms(out, expected) < 5e-3 and rel_rms(pool[1], expected_state[0]) < 5e-3
    assert torch.equal(pool[::2], kept[::2]) and rel_rms(checkpoints, steps[0, 127::128]) < 5e-3


LINKED = 5200  # tokens, of ten segments, or with `deterministic` of five
IN_GROUPS = 9000  # enough segments for multiplying their maps in groups


@pytest.mark.parametrize("tokens", [LINKED, IN_GROUPS])
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
    x = inputs(seed, LINKED, 64, 64, Hk=1, Hv=3, gate_range=(-1e-3, 0.0))
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
@pytest.mark.parametrize("lengths", [[LINKED, 70, 0, 5300], [5800, 14400, 5200, 64]], ids=["few", "groups"])
def test_deterministic_segments(lengths: list[int], in_place: bool, gates: tuple[float, float], seed: int) -> None:
    """Long sequences of a packed batch are split by their own length; another launch takes the short ones."""
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
    lengths = [70, LINKED, 200]
    x = packed_inputs(seed, lengths, Hk=1, Hv=3, gate_range=(-1e-3, 0.0))
    x["gate"][..., ::2] *= 2000
    expected, expected_state, _ = oracle(x)
    with emulated(multiprocessors=12), counted_blocks() as blocks:
        out, state = chunked_forward(**x, deterministic=True, out=poisoned(x["value"]))[:2]
        assert blocks() == 2 * 4 * 3 + 3 * 3
    assert state is not None and rel_rms(out, expected) < 5e-3 and rel_rms(state, expected_state) < 5e-3
    mine = slice(70, 70 + LINKED)
    alone = {name: x[name][None, mine] for name in ("query", "key", "value", "beta", "gate")}
    fixed, fixed_state = run(alone | {"state": x["state"][1:2]}, multiprocessors=12, deterministic=True)
    assert torch.equal(out[mine], fixed[0]) and torch.equal(state[1], fixed_state[0])


@pytest.mark.parametrize("gates", [(-1e-3, 0.0), (-2.0, -1.0)])
def test_segments_of_a_summary(gates: tuple[float, float], seed: int) -> None:
    """Segments between the first and the last one export their summaries."""
    x = inputs(seed, LINKED, gate_range=gates)
    part = {name: x[name] for name in ("key", "value", "beta", "gate")}
    with emulated() as launched, counted_blocks() as blocks:
        summary = chunked_summary(**part)
        assert blocks() > 3 * 2
    assert any(".chained = true" in name for name in launched())
    _, state, _ = oracle(x)
    addition, transition = summary.split(64, dim=-2)
    assert rel_rms(x["state"] @ transition + addition, state) < 5e-3
    with emulated(multiprocessors=2):  # too few for segments
        whole = chunked_summary(**part)
    assert rel_rms(summary, whole) < 5e-3


@pytest.mark.parametrize("slow", ["no head", "one head"])
def test_one_of_two_launches_computes_the_result(slow: str, seed: int) -> None:
    """Another configuration is faster on unsplit sequences, so both are launched."""
    x = inputs(seed, LINKED, 64, 128, Hv=2, gate_range=(-2.0, -1.0))
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


@pytest.mark.parametrize("dk, dv", [(96, 192), (128, 128)])
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
