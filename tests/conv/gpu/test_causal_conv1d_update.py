"""causal_conv1d_update on the GPU against its definition in fp64, and in the use that engines make of it."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import step_conv_api
import torch
from step_conv_oracle import HOSTILE, IO, as_rows, check, draws, windows
from torch import Tensor

from gdn_cuda import causal_conv1d_update

# States in vectors of channels, states staged in shared memory, and others.
STATE_LAYOUTS: tuple[dict[str, Any], ...] = ({"rows": True}, {"rows": False}, {"W": 5}, {"rows": True, "channels": 37})


def on_gpu(seed: int, **more: Any) -> dict[str, Any]:
    return draws(seed, **{"channels": 264, "device": "cuda"} | more)


def clone(x: dict[str, Any]) -> dict[str, Any]:
    """A copy with the same strides."""
    return {name: y.clone(memory_format=torch.preserve_format) if isinstance(y, Tensor) else y for name, y in x.items()}


@pytest.mark.parametrize("W", [1, 2, 3, 4, 5, 8, 31, 32])
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("io", IO)
def test_windows(W: int, rows: bool, io: torch.dtype, seed: int) -> None:
    for columns, tokens in ((W - 1, None), (W - 1, 1), (W - 1, 5), (W, None), (W, 3), (W + 4, 2), (W + 4, 5), (W + 40, 30)):
        for more in windows(seed, 3, columns, W, "cuda"):
            if "num_accepted_tokens" in more and (tokens or 1) > columns - W + 2:
                continue
            for channels in (264, 37):
                x = on_gpu(seed, W=W, columns=columns, tokens=tokens, rows=rows, io=io, channels=channels)
                check(x | more, causal_conv1d_update)


@pytest.mark.parametrize("io", IO)
@pytest.mark.parametrize("state", IO)
@pytest.mark.parametrize("weight", IO)
def test_dtypes(io: torch.dtype, state: torch.dtype, weight: torch.dtype, seed: int) -> None:
    for layout in STATE_LAYOUTS:
        for tokens in (None, 3):
            check(on_gpu(seed, tokens=tokens, io=io, state=state, weight=weight, **layout), causal_conv1d_update)


def test_without_bias_and_activation(seed: int) -> None:
    for layout in STATE_LAYOUTS:
        check(on_gpu(seed, bare=True, **layout), causal_conv1d_update)


@pytest.mark.parametrize("channels", [1, 7, 8, 264, 1024, 1032, 2056])
@pytest.mark.parametrize("columns", [3, 4])
@pytest.mark.parametrize("rows", [False, True])
def test_channels(channels: int, columns: int, rows: bool, seed: int) -> None:
    """Partial vectors, warps and blocks."""
    for io in IO:
        check(on_gpu(seed, channels=channels, columns=columns, rows=rows, io=io, batch=5), causal_conv1d_update)


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("batch", [1, 7, 600, 2500])
def test_batches(batch: int, rows: bool, seed: int) -> None:
    """One to many sequences per block, a partial last block, and sequences without state."""
    x = on_gpu(seed, batch=batch, channels=1032, rows=rows, io=torch.bfloat16)
    slots = torch.randperm(batch, generator=torch.Generator().manual_seed(seed))
    if batch > 60:
        slots[[0, 9, 31, 59, batch - 1]] = torch.tensor([-1, batch, -(2**63), 2**40, -7])
    check(x | {"conv_state_indices": slots.cuda()}, causal_conv1d_update)


@pytest.mark.parametrize("tokens", [None, 3])
def test_hostile_slots(tokens: int | None, seed: int) -> None:
    """Past the pool the output is NaN, for negative and null slots 0, and no state is touched."""
    for layout in STATE_LAYOUTS:
        x = on_gpu(seed, batch=10, slots=12, tokens=tokens, **layout)
        x["conv_state_indices"] = torch.tensor([*HOSTILE, *HOSTILE[:4], 5], device="cuda")
        before = x["conv_state"].clone()
        out = check(x | {"null_slot": 5}, causal_conv1d_update)
        assert out[0].isnan().all() and out[2].isnan().all() and not out[1].any() and not out[9].any()
        others = [slot for slot in range(12) if slot != 1]
        assert torch.equal(x["conv_state"][others], before[others])


def test_invalid_counts(seed: int) -> None:
    counts = torch.tensor([-(2**63), 2**63 - 1, 2**32, 0, 1], device="cuda")
    for layout in STATE_LAYOUTS:
        x = on_gpu(seed, batch=5, tokens=2, columns=9, **layout)
        check(clone(x) | {"num_accepted_tokens": counts}, causal_conv1d_update)
        check(clone(x) | {"cache_seqlens": counts}, causal_conv1d_update)


@pytest.mark.parametrize("layout", STATE_LAYOUTS)
def test_packed(layout: dict[str, Any], seed: int) -> None:
    """Sequences of different lengths, empty ones, and tokens after the last; invalid offsets; both shapes of x."""
    offsets = torch.tensor([0, 2, 2, 7, 8], dtype=torch.int32, device="cuda")
    invalid = torch.tensor([-5, 3, 2**31 - 1, 4, 9], device="cuda")
    for columns in (None, 12):
        x = on_gpu(seed, batch=11, columns=columns, slots=11, **layout) | {
            "conv_state_indices": torch.tensor([9, 3, 2, 10], device="cuda")
        }
        for more in windows(seed, 4, x["conv_state"].shape[2], x["weight"].shape[1], "cuda"):
            for given in (x, x | {"x": x["x"].T[None]}):
                check(clone(given) | more | {"cu_seqlens": offsets}, causal_conv1d_update)
    causal_conv1d_update(**x, cu_seqlens=invalid)  # touches nothing outside: compute-sanitizer sees the same call


def test_a_verify_with_more_tokens_than_its_state_holds_touches_nothing(seed: int) -> None:
    for layout in STATE_LAYOUTS:
        x = on_gpu(seed, batch=6, columns=6, **layout) | {"cu_seqlens": torch.tensor([0, 5, 6], device="cuda")}
        x["num_accepted_tokens"] = torch.tensor([1, 1], device="cuda")
        before = x["conv_state"].clone()
        out = check(x, causal_conv1d_update)
        assert out[:5].isnan().all() and torch.equal(x["conv_state"][0], before[0])


def test_strides(seed: int) -> None:
    """Gaps between slots, columns, tokens and taps, which stay untouched."""
    for rows in (True, False):
        for gap in (0, 1, 16):
            plain = on_gpu(seed, tokens=2, slots=5, channels=24, rows=rows, io=torch.bfloat16)
            pool = torch.full((5, 4, 24 + gap) if rows else (5, 24 + gap, 4), 7.0, dtype=torch.bfloat16, device="cuda")
            wide, taps = (
                torch.zeros_like(pool[:3, :2, :1]).expand(3, 2, 24 + gap).clone(),
                torch.zeros(24, 4 + gap, device="cuda"),
            )
            x = plain | {
                "x": wide[..., gap:].mT.copy_(plain["x"]),
                "conv_state": (pool[:, 1:, :24].mT if rows else pool[:, :24, 1:]).copy_(plain["conv_state"]),
                "weight": taps[:, :4].copy_(plain["weight"]),
                "conv_state_indices": torch.tensor([[4, 0], [0, 0], [3, 0]], device="cuda")[:, 0],
            }
            check(x, causal_conv1d_update)
            outside = (pool[:, :1], pool[:, :, 24:]) if rows else (pool[..., :1], pool[:, 24:])
            assert all(bool((part == 7).all()) for part in outside)


@pytest.mark.parametrize("layout", STATE_LAYOUTS)
def test_out_may_be_x(layout: dict[str, Any], seed: int) -> None:
    for tokens in (None, 5):
        x = on_gpu(seed, tokens=tokens, batch=600, **layout)
        separate = clone(x)
        expected = causal_conv1d_update(**separate)
        assert causal_conv1d_update(**x, out=x["x"]) is x["x"]
        assert torch.equal(x["x"], expected) and torch.equal(x["conv_state"], separate["conv_state"])


@pytest.mark.parametrize("layout", STATE_LAYOUTS)
def test_several_tokens_equal_single_ones_and_any_batch(layout: dict[str, Any], seed: int) -> None:
    """Outputs and states have the same bits."""
    together = on_gpu(seed, tokens=4, io=torch.bfloat16, batch=700, **layout)
    alone = clone(together)
    one = alone | {name: alone[name][:1].clone(memory_format=torch.preserve_format) for name in ("x", "conv_state")}
    out = causal_conv1d_update(**together)
    assert torch.equal(causal_conv1d_update(**one), out[:1]) and torch.equal(one["conv_state"], together["conv_state"][:1])
    for t in range(4):
        assert torch.equal(causal_conv1d_update(**alone | {"x": alone["x"][..., t]}), out[..., t])
    assert torch.equal(together["conv_state"], alone["conv_state"])


def test_non_finite_values_stay_in_their_channels(seed: int) -> None:
    for layout in STATE_LAYOUTS:
        clean, spoilt = (on_gpu(seed, batch=4, **layout) for _ in range(2))
        spoilt["x"][1, 2], spoilt["conv_state"][2, 3, 1], spoilt["conv_state"][3, 4] = torch.nan, torch.inf, -torch.inf
        mine, theirs = causal_conv1d_update(**spoilt), causal_conv1d_update(**clean)
        same = torch.ones(mine.shape, dtype=torch.bool, device="cuda")
        same[1, 2] = same[2, 3] = same[3, 4] = False
        assert torch.equal(mine[same], theirs[same]) and torch.equal(spoilt["conv_state"][same], clean["conv_state"][same])


def test_empty_batches(seed: int) -> None:
    for more in ({"batch": 0}, {"tokens": 0}, {"channels": 0}):
        x = on_gpu(seed, **more)
        before = x["conv_state"].clone()
        assert causal_conv1d_update(**x).shape == x["x"].shape
        assert torch.equal(x["conv_state"], before)


@pytest.mark.parametrize("rows", [False, True])
def test_slot_offsets_are_64_bit(rows: bool, seed: int) -> None:
    gc.collect()
    torch.cuda.empty_cache()
    x = on_gpu(seed, batch=1, channels=8192, io=torch.bfloat16)
    memory = torch.empty(90000, 3, 8192, dtype=torch.bfloat16, device="cuda")  # the last slot is past 2^31 elements
    pool = memory.mT if rows else memory.view(90000, 8192, 3)
    pool[89999] = x["conv_state"][0]
    far = x | {"conv_state": pool, "conv_state_indices": torch.tensor([89999], device="cuda")}
    assert torch.equal(causal_conv1d_update(**far), causal_conv1d_update(**x))
    assert torch.equal(pool[89999], x["conv_state"][0])


@pytest.mark.parametrize("layout", STATE_LAYOUTS)
def test_a_replayed_graph_reads_current_values(layout: dict[str, Any], seed: int) -> None:
    """Slots, offsets and accepted tokens of each replay: a padded batch of verify, as engines capture it."""
    x = on_gpu(seed, batch=12, columns=9, slots=12, **layout) | {"null_slot": 0}
    x["out"] = torch.empty_like(x["x"])
    for name, dtype in (("conv_state_indices", torch.int32), ("num_accepted_tokens", torch.int32), ("cu_seqlens", torch.int32)):
        x[name] = torch.zeros(5 if name == "cu_seqlens" else 4, dtype=dtype, device="cuda")
    causal_conv1d_update(**x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        causal_conv1d_update(**x)
    for slots, accepted, offsets in (
        ([1, 2, 3, 4], [1, 1, 1, 1], [0, 1, 2, 3, 4]),
        ([11, 0, 5, 4], [1, 2, 3, 1], [0, 3, 3, 6, 12]),
        ([7, 8, 0, 0], [2, 1, 1, 1], [0, 2, 5, 5, 5]),
    ):
        for name, values in (("conv_state_indices", slots), ("num_accepted_tokens", accepted), ("cu_seqlens", offsets)):
            x[name].copy_(torch.tensor(values))
        eager = clone(x)
        expected = causal_conv1d_update(**eager)
        x["out"].fill_(float("nan"))
        graph.replay()
        assert torch.equal(x["out"], expected) and torch.equal(x["conv_state"], eager["conv_state"])


def test_a_call_allocates_nothing_but_the_output(seed: int) -> None:
    for layout in STATE_LAYOUTS:
        x = on_gpu(seed, tokens=2, **layout)
        x["out"] = torch.empty_like(x["x"])
        causal_conv1d_update(**x)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        causal_conv1d_update(**x)
        assert torch.cuda.max_memory_allocated() == before


def test_a_step_compiled_by_torch_equals_the_eager_one(seed: int) -> None:
    x = on_gpu(seed, tokens=2)
    x["x"] = as_rows(x["x"])
    eager = clone(x)
    expected = causal_conv1d_update(**eager)

    @torch.compile(fullgraph=True)
    def step(**tensors: Any) -> Tensor:
        return causal_conv1d_update(**tensors) * 2

    assert torch.equal(step(**x), expected * 2) and torch.equal(x["conv_state"], eager["conv_state"])


@pytest.mark.parametrize("argument", ["conv_state", "weight", "bias"])
def test_an_argument_on_another_device_is_refused(argument: str, seed: int) -> None:
    x = on_gpu(seed)
    x[argument] = x[argument].cpu()
    with pytest.raises(ValueError, match=r"causal_conv1d_update: \w+: expected "):
        causal_conv1d_update(**x)


def test_the_cpp_api(seed: int, tmp_path: Any) -> None:
    step_conv_api.check(step_conv_api.load(tmp_path), "cuda", seed)
