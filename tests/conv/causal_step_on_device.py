"""causal_conv1d_update's kernels against its definition in fp64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from devices import Device
from step_conv_oracle import HOSTILE, IO, as_rows, check, draws, windows
from torch import Tensor

from gdn_cuda import causal_conv1d_update

ROWS, STAGED, ANY = (f"conv/causal_step{end}" for end in ("", "_staged", "_any"))
# States in vectors of channels, states staged in shared memory, and others, with the kernel that runs.
STATE_LAYOUTS: tuple[tuple[str, dict[str, Any]], ...] = (
    (ROWS, {"rows": True}),
    (STAGED, {"rows": False}),
    (ANY, {"W": 5}),
    (ANY, {"rows": True, "channels": 37}),
)
EVERY_LAYOUT = pytest.mark.parametrize(
    "layout", [layout for _, layout in STATE_LAYOUTS], ids=["rows", "staged", "W5", "rows37"]
)
BOTH = pytest.mark.parametrize("rows", [False, True])
EVERY_IO = pytest.mark.parametrize("io", IO)


def drawn(device: Device, seed: int, **more: Any) -> dict[str, Any]:
    return draws(seed, **{"channels": device.size(24, 264), "device": device.name} | more)


def on(device: Device, values: list[int], dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device.name)


def step(device: Device, *kernels: str, multiprocessors: int = 132) -> Callable[..., Tensor]:
    """The operator, by these kernels alone, or by any."""

    def call(**x: Any) -> Tensor:
        with device.only(*kernels or (ROWS, STAGED, ANY), multiprocessors=multiprocessors):
            return causal_conv1d_update(**x)

    return call


def clone(x: dict[str, Any]) -> dict[str, Any]:
    """A copy with the same strides."""
    return {name: y.clone(memory_format=torch.preserve_format) if isinstance(y, Tensor) else y for name, y in x.items()}


def has_room(more: dict[str, Any], W: int, columns: int, tokens: int | None) -> bool:
    return "num_accepted_tokens" not in more or (tokens or 1) <= columns - W + 2


@pytest.mark.parametrize("W", [1, 2, 3, 4, 5, 8, 31, 32])
@BOTH
@EVERY_IO
def test_windows(io: torch.dtype, rows: bool, W: int, device: Device, seed: int) -> None:
    for columns, tokens in ((W - 1, None), (W - 1, 1), (W - 1, 5), (W, None), (W, 3), (W + 4, 2), (W + 4, 5), (W + 40, 30)):
        for more in windows(seed, 3, columns, W, device.name):
            for channels in device.size((20,), (264, 37)):
                if has_room(more, W, columns, tokens):
                    x = drawn(device, seed, W=W, columns=columns, tokens=tokens, rows=rows, io=io, channels=channels)
                    check(x | more, step(device))


@pytest.mark.parametrize("state", [None, torch.float32])
@EVERY_IO
@pytest.mark.parametrize("W", [3, 4])
def test_channels_last_states(W: int, io: torch.dtype, state: torch.dtype | None, device: Device, seed: int) -> None:
    """State columns are vectors of channels: every window, W − 1 columns and more, one and several tokens."""
    for columns, tokens in ((W - 1, None), (W - 1, 1), (W, 2), (W + 4, 5)):
        for more in windows(seed, 3, columns, W, device.name):
            if has_room(more, W, columns, tokens):
                x = drawn(device, seed, W=W, columns=columns, tokens=tokens, io=io, state=state, channels=40, rows=True)
                check(x | more, step(device, ROWS))


@EVERY_IO
@pytest.mark.parametrize("W, columns", [(4, 3), (4, 4), (3, 2), (3, 3)])
@pytest.mark.parametrize("channels", [8, 264, 1032])
def test_contiguous_states(channels: int, W: int, columns: int, io: torch.dtype, device: Device, seed: int) -> None:
    """A partial warp, a warp and a lane, a block and a lane."""
    for tokens in (None, 3, 6):
        x = drawn(device, seed, W=W, columns=columns, tokens=tokens, io=io, channels=channels, batch=2)
        x["x"] = x["x"] if tokens is None else as_rows(x["x"])
        check(x, step(device, STAGED))


@pytest.mark.parametrize("channels", [1, 7, 8, 264, 1024, 1032, 2056])
@pytest.mark.parametrize("columns", [3, 4])
@BOTH
def test_channels(rows: bool, columns: int, channels: int, device: Device, seed: int) -> None:
    """Partial vectors, warps and blocks."""
    for io in IO:
        x = drawn(device, seed, channels=channels, columns=columns, rows=rows, io=io, batch=device.size(1, 5))
        check(x, step(device))


@EVERY_IO
@pytest.mark.parametrize("state", IO)
@pytest.mark.parametrize("weight", IO)
def test_dtypes(weight: torch.dtype, state: torch.dtype, io: torch.dtype, device: Device, seed: int) -> None:
    for kernel, layout in STATE_LAYOUTS:
        in_kernel = kernel == ROWS and state in (io, torch.float32)
        expected = (kernel if in_kernel else ANY,) if kernel != STAGED else ()
        for tokens in (None, 3):
            x = drawn(device, seed, tokens=tokens, io=io, state=state, weight=weight, **layout)
            check(x, step(device, *expected))


def test_without_bias_and_activation(device: Device, seed: int) -> None:
    for kernel, layout in STATE_LAYOUTS:
        check(drawn(device, seed, bare=True, **layout), step(device, kernel))


@BOTH
@pytest.mark.parametrize("batch", [1, 7, 12])
def test_several_sequences_per_block(batch: int, rows: bool, device: Device, seed: int) -> None:
    """Slots in any order, some invalid: past the pool the output is NaN, for negative and null ones 0; nothing is touched."""
    slots = torch.tensor([4, *HOSTILE, 2, 0, 15, 3, 6, 5])[:batch]
    for io, tokens in ((torch.bfloat16, None), (torch.float32, 3)):
        x = drawn(device, seed, batch=batch, slots=12, tokens=tokens, rows=rows, io=io)
        x["x"] = x["x"] if tokens is None else as_rows(x["x"])
        for index in (torch.int64, torch.int32):
            these = slots.clamp(torch.iinfo(index).min, torch.iinfo(index).max).to(device.name, index)
            given = clone(x) | {"conv_state_indices": these, "null_slot": 15}
            check(given, step(device, ROWS if rows else STAGED, multiprocessors=1))


@pytest.mark.parametrize("tokens", [None, 3])
@EVERY_LAYOUT
def test_hostile_slots(layout: dict[str, Any], tokens: int | None, device: Device, seed: int) -> None:
    """Past the pool the output is NaN, for negative and null slots 0, and no state is touched."""
    x = drawn(device, seed, batch=10, slots=12, tokens=tokens, **layout)
    x["conv_state_indices"] = on(device, [*HOSTILE, *HOSTILE[:4], 5])
    before = x["conv_state"].clone()
    out = check(x | {"null_slot": 5}, step(device))
    assert out[0].isnan().all() and out[2].isnan().all() and not out[1].any() and not out[9].any()
    others = [slot for slot in range(12) if slot != 1]
    assert torch.equal(x["conv_state"][others], before[others])


@EVERY_LAYOUT
def test_packed(layout: dict[str, Any], device: Device, seed: int) -> None:
    """Sequences of different lengths, empty ones, and tokens after the last; invalid offsets; both shapes of x."""
    offsets = on(device, [0, 2, 2, 7, 8], torch.int32)
    for columns in (None, 12):
        x = drawn(device, seed, batch=11, columns=columns, slots=11, **layout)
        x["conv_state_indices"] = on(device, [9, 3, 2, 10])
        for more in windows(seed, 4, x["conv_state"].shape[2], x["weight"].shape[1], device.name):
            for given in (x, x | {"x": x["x"].T[None]}):
                check(clone(given) | more | {"cu_seqlens": offsets}, step(device, multiprocessors=1))
    step(device)(**x, cu_seqlens=on(device, [-5, 3, 2**31 - 1, 4, 9]))  # touches nothing outside
    device.synchronize()


@BOTH
def test_packed_with_counts_and_positions(rows: bool, device: Device, seed: int) -> None:
    offsets = on(device, [0, 2, 2, 7, 8])
    x = drawn(device, seed, batch=11, columns=7, rows=rows, slots=11) | {"cu_seqlens": offsets}
    x |= {"num_accepted_tokens": on(device, [1, 5, 4, 0]), "conv_state_indices": on(device, [-1, 3, 2, 10])}
    check(x, step(device, ROWS if rows else ANY))
    x = drawn(device, seed, batch=11, rows=rows) | {"cu_seqlens": offsets.int()}
    x["cache_seqlens"] = on(device, [-1, 5, 2**31 - 1, -(2**31)], torch.int32)
    check(x, step(device, ROWS if rows else ANY))


def test_no_sequences(device: Device, seed: int) -> None:
    x = drawn(device, seed, batch=5) | {"cu_seqlens": on(device, [0])}
    with device.kernels():
        out = causal_conv1d_update(**x | {"out": torch.full_like(x["x"], torch.nan)})
    assert not out.any()


@EVERY_LAYOUT
def test_invalid_counts_and_positions(layout: dict[str, Any], device: Device, seed: int) -> None:
    """Counts of accepted tokens are clamped; positions in a circular state wrap at its columns."""
    counts = on(device, [-(2**63), 2**63 - 1, 2**32, 0, 1])
    for columns in (5, 9):
        x = drawn(device, seed, batch=5, tokens=2, columns=columns, **layout)
        check(clone(x) | {"num_accepted_tokens": counts}, step(device))
        check(clone(x) | {"cache_seqlens": counts}, step(device))


@EVERY_LAYOUT
def test_a_verify_with_more_tokens_than_its_state_holds_touches_nothing(
    layout: dict[str, Any], device: Device, seed: int
) -> None:
    x = drawn(device, seed, batch=6, columns=6, **layout) | {"cu_seqlens": on(device, [0, 5, 6])}
    x["num_accepted_tokens"] = on(device, [1, 1])
    before = x["conv_state"].clone()
    out = check(x, step(device))
    assert out[:5].isnan().all() and torch.equal(x["conv_state"][0], before[0])


@BOTH
def test_strides(rows: bool, device: Device, seed: int) -> None:
    """Gaps between slots, columns, tokens, taps, indices, and before all; they stay unwritten."""
    bf16 = {"dtype": torch.bfloat16, "device": device.name}
    for gap in (0, 1, 16):
        plain = drawn(device, seed, batch=3, tokens=2, slots=5, channels=24, rows=rows, io=torch.bfloat16)
        pool = torch.full((5, 4, 24 + gap) if rows else (5, 24 + gap, 4), 7.0, **bf16)
        state = pool[:, 1:, :24].mT if rows else pool[:, :24, 1:]
        wide, taps = torch.zeros(3, 2, 24 + gap, **bf16), torch.zeros(24, 4 + gap, **bf16)
        x = plain | {
            "x": wide[..., gap:].mT.copy_(plain["x"]),
            "conv_state": state.copy_(plain["conv_state"]),
            "weight": taps[:, :4].copy_(plain["weight"]),
            "bias": torch.zeros(48, **bf16)[::2].copy_(plain["bias"]),
            "conv_state_indices": torch.tensor([[4, 0], [0, 0], [3, 0]], device=device.name)[:, 0],
        }
        check(x, step(device, ROWS if rows and gap != 1 else ANY))
        outside = pool[:, :1] if rows else pool[..., :1]
        assert bool((outside == 7).all()) and bool((pool[:, :, 24:] == 7).all() if rows else (pool[:, 24:] == 7).all())


@EVERY_LAYOUT
def test_out_may_be_x(layout: dict[str, Any], device: Device, seed: int) -> None:
    for tokens in (None, 5):
        x = drawn(device, seed, tokens=tokens, batch=device.size(5, 600), **layout)
        x["conv_state_indices"] = torch.arange(len(x["x"]), device=device.name).flip(0)
        x["conv_state_indices"][1] = -1
        separate = clone(x)
        expected = step(device, multiprocessors=1)(**separate)
        assert step(device, multiprocessors=1)(**x, out=x["x"]) is x["x"]
        assert torch.equal(x["x"], expected) and torch.equal(x["conv_state"], separate["conv_state"])


@EVERY_LAYOUT
def test_several_tokens_equal_single_ones_and_any_batch(layout: dict[str, Any], device: Device, seed: int) -> None:
    """Outputs and states have the same bits."""
    together = drawn(device, seed, tokens=4, io=torch.bfloat16, batch=device.size(7, 700), **layout)
    alone = clone(together)
    one = alone | {name: alone[name][:1].clone(memory_format=torch.preserve_format) for name in ("x", "conv_state")}
    out = step(device)(**together)
    assert torch.equal(step(device)(**one), out[:1]) and torch.equal(one["conv_state"], together["conv_state"][:1])
    for t in range(4):
        assert torch.equal(step(device)(**alone | {"x": alone["x"][..., t]}), out[..., t])
    assert torch.equal(together["conv_state"], alone["conv_state"])


@EVERY_LAYOUT
def test_values_that_are_not_finite_stay_in_their_channels(layout: dict[str, Any], device: Device, seed: int) -> None:
    clean, spoilt = (drawn(device, seed, batch=4, **layout) for _ in range(2))
    spoilt["x"][1, 2], spoilt["conv_state"][2, 3, 1], spoilt["conv_state"][3, 4] = torch.nan, torch.inf, -torch.inf
    mine, theirs = step(device)(**spoilt), step(device)(**clean)
    same = torch.ones(mine.shape, dtype=torch.bool, device=device.name)
    same[1, 2] = same[2, 3] = same[3, 4] = False
    assert torch.equal(mine[same], theirs[same]) and torch.equal(spoilt["conv_state"][same], clean["conv_state"][same])
    assert not mine[1, 2].isfinite().any() and (device.emulate is None or not mine[~same].isfinite().any())


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"channels": 0}, {"tokens": 0}, {"batch": 1, "channels": 1}])
def test_sizes_of_0_and_1(sizes: dict[str, int], device: Device, seed: int) -> None:
    x = drawn(device, seed, **sizes)
    before = x["conv_state"].clone()
    with device.kernels():
        out = causal_conv1d_update(**x)
    assert out.shape == x["x"].shape and (x["x"].numel() or torch.equal(x["conv_state"], before))
