"""chunked_forward on the GPU against the recurrence in fp64: segments of sequences, equal bits with `deterministic`, long
sequences, and all of it by the other kernels."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import rel_rms
from other_kernels import CHOSEN, check_with
from prefill_on_device import *  # noqa: F403
from prefill_on_device import oracle, poisoned
from torch import Tensor

import gdn_cuda
from gdn_cuda.gdn.inputs import KEY_MODES, make_gdn_inputs, make_packed_gdn_inputs

BOUND = 5e-3


def inputs(**options: object) -> dict[str, Tensor]:
    return make_gdn_inputs(**{"dk": 128, "dv": 128, "dtype": torch.bfloat16, "device": "cuda", **options})  # type: ignore[arg-type]


def packed_inputs(lengths: list[int], **options: object) -> dict[str, Tensor]:
    return make_packed_gdn_inputs(lengths, **{"dk": 128, "dv": 128, "dtype": torch.bfloat16, "device": "cuda", **options})  # type: ignore[arg-type]


# With few heads a sequence is split into segments that begin where the previous state has decayed, or at its start.
@pytest.mark.parametrize("gates", [(-100.0, 0.0), (-2.0, 0.0), (-0.1, 0.0), (-0.001, 0.0)])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("lengths", [None, [4000, 0, 70, 6000]])
def test_split_sequences_give_the_bits_of_unsplit_ones(
    gates: tuple[float, float], norm: bool, lengths: list[int] | None, seed: int
) -> None:
    options = {"Hk": 1, "Hv": 2, "seed": seed, "gate_range": gates, "beta_max": 2.0}
    x = packed_inputs(lengths, **options) if lengths else inputs(B=1, T=3200, **options)
    out, state = gdn_cuda.chunked_forward(**x, use_qk_l2norm=norm, out=poisoned(x["value"]))
    expected, expected_state, _ = oracle(x, use_qk_l2norm=norm)
    assert rel_rms(out, expected) < BOUND and rel_rms(state, expected_state) < BOUND
    whole = {name: t.repeat_interleave(48, dim=t.ndim - 2 if name in ("query", "key", "value") else -1)
             for name, t in x.items() if name not in ("state", "cu_seqlens")}  # fmt: skip
    whole["state"] = x["state"].repeat_interleave(48, dim=1)
    if lengths:
        whole["cu_seqlens"] = x["cu_seqlens"]
    many, many_states = gdn_cuda.chunked_forward(**whole, use_qk_l2norm=norm)
    unsplit, unsplit_state = many[..., ::48, :], many_states[:, ::48]
    assert rel_rms(unsplit, expected) < BOUND and rel_rms(unsplit_state, expected_state) < BOUND
    if gates[0] < -1:  # else states are handed from segment to segment
        assert torch.equal(unsplit, out) and torch.equal(unsplit_state, state)


# Long enough that segments continue from one another's states: in all heads, in some, or in part of the sequence. The number of
# heads decides the rows of a block: one group or two, with rows for both or for one, and with rows of M or none.
REACHING = ("slow", "some heads", "then fast", "then slow", "packed", "pool", "bf16 pool", "none", "fp16")
HEADS_OF_DIMS = {"96/192": 2, "40/72": 2, "128/64": 2, "64/128": 16, "64/192": 8, "128/256": 8}


@pytest.mark.parametrize("case", [*REACHING, "repeated", "parallel", *HEADS_OF_DIMS])
def test_states_that_carry_over_from_segment_to_segment(case: str, seed: int) -> None:
    T = 17500 if case == "64/192" else 5700  # chained with two groups a block only then
    dk, dv = map(int, case.split("/")) if case in HEADS_OF_DIMS else (128, 128)
    heads = HEADS_OF_DIMS.get(case, 2)
    options = {"Hk": heads // 2, "Hv": heads, "dk": dk, "dv": dv, "seed": seed, "gate_range": (-1e-3, 0.0), "beta_max": 2.0}
    options["key_mode"] = case if case in KEY_MODES else "random"
    options["dtype"] = torch.float16 if case == "fp16" else torch.bfloat16
    bound = 1e-3 if case == "fp16" else BOUND
    lengths = [T, 0, 70, 2 * T, 3 * T, 4 * T] if case == "packed" else None
    x = packed_inputs(lengths, **options) if lengths else inputs(B=1, T=T, **options)
    if case == "some heads":
        x["gate"][..., 0] *= 2000
    elif case.startswith("then"):
        half = (slice(None), slice(T // 2, None) if case == "then fast" else slice(T // 2))
        x["gate"][half] *= 2000
    elif case == "none":
        del x["state"]
    norm = case == "slow"
    fixed, fixed_state = gdn_cuda.chunked_forward(**x, use_qk_l2norm=norm, deterministic=True)
    start = x.pop("state", None)
    expected, expected_state = gdn_cuda.recurrent_forward(**x, state=start, is_qk_norm=norm)
    if "pool" in case:
        pool = torch.randn(3, *start.shape[1:], device="cuda").to(torch.bfloat16 if "bf16" in case else torch.float32)
        pool[1] = start[0]
        slots = torch.tensor([1], device="cuda")
        out, _, checkpoints = gdn_cuda.chunked_forward(**x, state=pool, state_indices=slots, checkpoint_every=128)
        state = pool[1:2]
        for n in range(7, len(checkpoints), 8):
            before = {name: t[:, : 128 * (n + 1)] for name, t in x.items()}
            assert rel_rms(checkpoints[n], gdn_cuda.recurrent_forward(**before, state=start)[1][0]) < BOUND
    else:
        out, state = gdn_cuda.chunked_forward(**x, state=start, use_qk_l2norm=norm, out=poisoned(x["value"]))
        again, again_state = gdn_cuda.chunked_forward(**x, state=start, use_qk_l2norm=norm)
        assert torch.equal(out, again) and torch.equal(state, again_state)
    assert rel_rms(out, expected) < bound and rel_rms(state, expected_state) < bound
    assert rel_rms(fixed, expected) < bound and rel_rms(fixed_state, expected_state) < bound


# The configuration that is fastest without a split differs from the one that splits: both are launched, and one computes.
@pytest.mark.parametrize("slow", ["no head", "one head", "all heads"])
@pytest.mark.parametrize("in_place", [False, True])
def test_one_of_two_launches_computes_the_result(slow: str, in_place: bool, seed: int) -> None:
    x = inputs(B=1, T=5300, Hk=16, Hv=32, seed=seed, gate_range=(-2.0, -1.0))
    heads = {"no head": slice(0), "one head": slice(7, 8), "all heads": slice(None)}[slow]
    x["gate"][..., heads] *= 1e-4
    fixed, fixed_state = gdn_cuda.chunked_forward(**x, deterministic=True)
    expected, expected_state = gdn_cuda.recurrent_forward(**x)
    options = {"state_indices": torch.tensor([0], device="cuda")} if in_place else {}
    given = {**x, "state": x["state"].clone()}
    out, state = gdn_cuda.chunked_forward(**given, **options, out=poisoned(x["value"]))
    assert rel_rms(out, expected) < BOUND and rel_rms(state, expected_state) < BOUND
    if slow != "no head":
        assert torch.equal(out, fixed) and torch.equal(state, fixed_state)


# 32 heads are as many as the masks of heads have bits.
@pytest.mark.parametrize(
    "heads,size,slow",
    [
        (8, 128, [2]),
        (8, 128, [0, 3, 7]),
        (8, 128, [0, 1, 2, 4, 5, 6, 7]),
        (32, 64, [31]),
        (32, 64, list(range(0, 32, 2))),
        (32, 64, list(range(31))),
        (32, 64, list(range(32))),
    ],
)
@pytest.mark.parametrize("in_place", [False, True])
def test_heads_of_slow_decay_get_more_blocks(heads: int, size: int, slow: list[int], in_place: bool, seed: int) -> None:
    x = inputs(B=1, T=17000, Hk=4, Hv=heads, dk=size, dv=size, seed=seed, gate_range=(-2.0, -1.0))
    x["gate"][..., slow] *= 1e-4
    expected, expected_state = gdn_cuda.recurrent_forward(**x)
    options = {"state_indices": torch.tensor([0], device="cuda")} if in_place else {}
    results = [
        gdn_cuda.chunked_forward(**x | {"state": x["state"].clone()}, **options, out=poisoned(x["value"])) for _ in range(2)
    ]
    for out, state in results:
        assert torch.equal(out, results[0][0]) and torch.equal(state, results[0][1])
        for head in range(heads):  # each has its own bits and errors
            assert rel_rms(out[..., head, :], expected[..., head, :]) < BOUND
            assert rel_rms(state[:, head], expected_state[:, head]) < BOUND


@pytest.mark.parametrize("heads,dv", [(1, 64), (2, 128), (4, 128), (8, 128)])
def test_many_segments(heads: int, dv: int, seed: int) -> None:
    """As many as there can be, in groups of several, and of the lengths that are left over."""
    for T in (20000, 33333):
        x = inputs(B=1, T=T, Hk=1, Hv=heads, dv=dv, seed=seed, gate_range=(-1e-4, 0.0))
        out, state = gdn_cuda.chunked_forward(**x, out=poisoned(x["value"]))
        expected, expected_state = gdn_cuda.recurrent_forward(**x)
        assert rel_rms(out, expected) < BOUND and rel_rms(state, expected_state) < BOUND


def test_states_in_a_pool_that_carry_over_from_segment_to_segment(seed: int) -> None:
    lengths = [6000, 9000, 70, 0, 12000]
    x = packed_inputs(lengths, Hk=1, Hv=2, seed=seed, gate_range=(-1e-3, 0.0))
    pool = torch.randn(7, *x["state"].shape[1:], device="cuda")
    slots = torch.tensor([3, -1, 2, 5, 6], dtype=torch.int32, device="cuda")
    given = {**x, "state": pool.clone()}
    out, state = gdn_cuda.chunked_forward(**given, state_indices=slots, out=poisoned(x["value"]))
    kept = [0, 1, 4, 5]
    assert torch.equal(state[kept], pool[kept]) and not out[6000:15000].any()
    for i, slot in ((0, 3), (2, 2), (4, 6)):
        mine = slice(sum(lengths[:i]), sum(lengths[: i + 1]))
        alone = {name: x[name][None, mine] for name in ("query", "key", "value", "beta", "gate")}
        expected, expected_state = gdn_cuda.recurrent_forward(**alone, state=pool[slot : slot + 1])
        assert rel_rms(out[mine], expected[0]) < BOUND and rel_rms(state[slot], expected_state[0]) < BOUND


def test_fp16_states_between_segments_keep_values_below_the_fp16_range(seed: int) -> None:
    """A state that decays to 2^-30, and to which nothing is added, keeps full fp32 precision."""
    T = 6400
    x = inputs(B=1, T=T, Hk=1, Hv=2, seed=seed, dtype=torch.float16, gate_range=(-1e-9, 0.0))
    x["value"].zero_()
    x["beta"].zero_()
    x["gate"].fill_(-30 * math.log(2) / T)
    _, state = gdn_cuda.chunked_forward(**x)
    assert rel_rms(state, x["state"] * 2.0**-30) < 1e-3


def split_alone(lengths: list[int], seed: int, heads: int = 8, **options: object) -> dict[str, Tensor]:
    """Packed sequences whose heads have slow decay, fast decay, or first the one and then the other."""
    x = packed_inputs(lengths, Hk=heads // 2, Hv=heads, seed=seed, gate_range=(-2.0, -1.0), **options)
    x["gate"][..., ::2] *= 1e-4
    x["gate"][: sum(lengths) // 2, ..., 1] *= 1e-4
    return x


# Long sequences are split, by their own length alone; of the shorter ones, and those that end with their chunk, none is.
@pytest.mark.parametrize("case", ["128/128", "96/64", "fp16", "pool"])
def test_deterministic_bits_depend_on_the_sequence_alone(case: str, seed: int) -> None:
    lengths = [6000, 300, 0, 12000, 5121, 5120, 33333, 1]
    dk, dv = map(int, case.split("/")) if "/" in case else (128, 128)
    x = split_alone(lengths, seed, dk=dk, dv=dv, dtype=torch.float16 if case == "fp16" else torch.bfloat16)
    bound = 1e-3 if case == "fp16" else BOUND
    options = {}
    start = x["state"].clone()
    if case == "pool":
        options["state_indices"] = torch.arange(len(lengths), device="cuda").flip(0)
        x["state"] = start.flip(0)
    out, state = gdn_cuda.chunked_forward(**x, **options, deterministic=True, out=poisoned(x["value"]))
    state = state.flip(0) if case == "pool" else state
    for i, length in enumerate(lengths):
        mine = slice(sum(lengths[:i]), sum(lengths[: i + 1]))
        alone = {name: x[name][None, mine] for name in ("query", "key", "value", "beta", "gate")}
        alone["state"] = start[i : i + 1]
        if length == 0:
            assert torch.equal(state[i], start[i])
            continue
        expected, expected_state = gdn_cuda.recurrent_forward(**alone)
        assert rel_rms(out[mine], expected[0]) < bound and rel_rms(state[i], expected_state[0]) < bound
        for B in (1, 3):  # three of them: with no room for records, if they are long
            batch = {name: each.expand(B, *each.shape[1:]).contiguous() for name, each in alone.items()}
            again, again_state = gdn_cuda.chunked_forward(**batch, deterministic=True)
            assert torch.equal(again[-1], out[mine]) and torch.equal(again_state[-1], state[i])


def test_deterministic_sequences_at_every_offset(seed: int) -> None:
    """Long sequences are found by their place among all tokens."""
    x = split_alone([6000], seed, heads=2)
    fixed = gdn_cuda.chunked_forward(**x, deterministic=True)
    other = split_alone([20000], seed + 1, heads=2)
    for before in ([5119], [5120], [5121], [1, 5119], [0, 0, 4999], [10240, 0], [300] * 40, [5121, 5121], [8000, 3000]):
        lengths = [*before, 6000, 700]
        rows = {
            name: torch.cat([other[name][: sum(before)], x[name], other[name][:700]])
            for name in ("query", "key", "value", "beta", "gate")
        }
        ends = torch.tensor([0, *lengths], device="cuda").cumsum(0)
        states = torch.zeros(len(lengths), *x["state"].shape[1:], device="cuda")
        states[-2] = x["state"][0]
        out, state = gdn_cuda.chunked_forward(**rows, cu_seqlens=ends, state=states, deterministic=True)
        assert torch.equal(out[sum(before) : sum(before) + 6000], fixed[0]) and torch.equal(state[-2], fixed[1][0])


def test_a_short_sequence_beside_a_long_one_is_not_split(seed: int) -> None:
    x = packed_inputs([40000, 300, 1500], Hk=1, Hv=2, seed=seed, gate_range=(-2.0, -1.0))
    out, state = gdn_cuda.chunked_forward(**x)
    fixed, fixed_state = gdn_cuda.chunked_forward(**x, deterministic=True)
    assert torch.equal(out, fixed) and torch.equal(state, fixed_state)


def test_unaligned_slices_take_the_slower_kernel(seed: int) -> None:
    x = inputs(T=70, seed=seed, gate_range=(-1, 0))
    shifted = torch.empty(x["key"].numel() + 1, dtype=torch.bfloat16, device="cuda")[1:].view(x["key"].shape)
    shifted.copy_(x["key"])
    expected, expected_state, _ = oracle(x)
    out, state = gdn_cuda.chunked_forward(**{**x, "key": shifted})
    assert rel_rms(out, expected) < BOUND and rel_rms(state, expected_state) < BOUND


@pytest.mark.parametrize("T", [8192, 131072])
def test_long_sequences_against_the_recurrent_kernel(T: int, seed: int) -> None:
    generator = torch.Generator("cuda").manual_seed(seed)
    query, key, value = (torch.randn(1, T, 2, 128, device="cuda", generator=generator).bfloat16() for _ in range(3))
    beta, gate = (
        torch.rand(1, T, 2, device="cuda", generator=generator),
        -torch.rand(1, T, 2, device="cuda", generator=generator) / 50,
    )
    expected, expected_state = gdn_cuda.recurrent_forward(query, key, value, None, beta, gate, is_qk_norm=True)
    out, state = gdn_cuda.chunked_forward(query, key, value, beta, gate, use_qk_l2norm=True)
    assert rel_rms(out, expected) < BOUND and rel_rms(state, expected_state) < BOUND


@pytest.mark.skipif(CHOSEN != "auto", reason="this is the child")
@pytest.mark.parametrize("kernels", ["mma", "recurrent"])
def test_all_tests_of_this_file_pass_with_the_other_kernels(kernels: str) -> None:
    """Hopper's own would be chosen for most of it here."""
    check_with(kernels, __file__)
