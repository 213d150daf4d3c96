"""The kernels of causal_conv1d_update in the emulator against their definition in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from emulated import emulated
from step_conv_oracle import HOSTILE, IO, as_rows, check, draws, windows
from torch import Tensor

from gdn_cuda import causal_conv1d_update

ROWS, STAGED, ANY = (f"conv/causal_step{end}{{" for end in ("", "_staged", "_any"))


class Step:
    """The operator, by one of its kernels."""

    def __init__(self, kernel: str, multiprocessors: int = 132):
        self.kernel, self.multiprocessors = kernel, multiprocessors

    def __call__(self, **x: Any) -> Tensor:
        with emulated(self.multiprocessors) as launched:
            out = causal_conv1d_update(**x)
        assert all(each.startswith(self.kernel) for each in launched()) and launched(), launched()
        return out


@pytest.mark.parametrize("state", [None, torch.float32])
@pytest.mark.parametrize("io", IO)
@pytest.mark.parametrize("W", [3, 4])
def test_channels_last_states(W: int, io: torch.dtype, state: torch.dtype | None, seed: int) -> None:
    """State columns are vectors of channels: every window, W − 1 columns and more, one and several tokens."""
    for columns, tokens in ((W - 1, None), (W - 1, 1), (W, 2), (W + 4, 5)):
        for more in windows(seed, 3, columns, W):
            room = tokens is None or "num_accepted_tokens" not in more or W - 2 + tokens <= columns
            if room:
                x = draws(seed, W=W, columns=columns, tokens=tokens, io=io, state=state, channels=40, rows=True)
                check(x | more, Step(ROWS))


@pytest.mark.parametrize("io", IO)
@pytest.mark.parametrize("W, columns", [(4, 3), (4, 4), (3, 2), (3, 3)])
@pytest.mark.parametrize("channels", [8, 264, 1032])
def test_contiguous_states(channels: int, W: int, columns: int, io: torch.dtype, seed: int) -> None:
    """A partial warp, a warp and a lane, a block and a lane."""
    for tokens in (None, 3, 6):
        x = draws(seed, W=W, columns=columns, tokens=tokens, io=io, channels=channels, batch=2)
        x["x"] = x["x"] if tokens is None else as_rows(x["x"])
        check(x, Step(STAGED))


@pytest.mark.parametrize("W", [1, 2, 5, 32])
@pytest.mark.parametrize("rows", [False, True])
def test_widths(W: int, rows: bool, seed: int) -> None:
    for columns, tokens in ((W - 1, None), (W + 2, 3), (W + 2, 40)):
        for more in windows(seed, 3, columns, W):
            if "num_accepted_tokens" in more and (tokens or 1) > columns - W + 2:
                continue
            check(draws(seed, W=W, columns=columns, tokens=tokens, rows=rows) | more, Step(ANY))


@pytest.mark.parametrize("io", IO)
@pytest.mark.parametrize("state", IO)
@pytest.mark.parametrize("weight", IO)
def test_dtypes(io: torch.dtype, state: torch.dtype, weight: torch.dtype, seed: int) -> None:
    for tokens in (None, 3):
        x = draws(seed, tokens=tokens, io=io, state=state, weight=weight, channels=19)
        check(x, Step(ANY))
    in_kernel = state in (io, torch.float32)
    check(draws(seed, io=io, state=state, weight=weight, channels=24, rows=True), Step(ROWS if in_kernel else ANY))


def test_without_bias_and_activation(seed: int) -> None:
    for kernel, more in ((ROWS, {"rows": True}), (STAGED, {}), (ANY, {"W": 6})):
        check(draws(seed, bare=True, channels=8, **more), Step(kernel))


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("batch", [1, 7, 12])
def test_several_sequences_per_block(batch: int, rows: bool, seed: int) -> None:
    """Slots in any order, some invalid: past the pool the output is NaN, for negative and null ones 0; nothing is touched."""
    slots = torch.tensor([4, *HOSTILE, 2, 0, 15, 3, 6, 5])[:batch]
    for io, tokens in ((torch.bfloat16, None), (torch.float32, 3)):
        x = draws(seed, batch=batch, slots=12, tokens=tokens, rows=rows, io=io, channels=24)
        x["x"] = x["x"] if tokens is None else as_rows(x["x"])
        for index in (torch.int64, torch.int32):
            these = slots.clamp(torch.iinfo(index).min, torch.iinfo(index).max).to(index)
            given = x | {"conv_state": x["conv_state"].clone(), "conv_state_indices": these, "null_slot": 15}
            check(given, Step(ROWS if rows else STAGED, multiprocessors=1))


@pytest.mark.parametrize("rows", [True, False])
def test_packed(rows: bool, seed: int) -> None:
    """Sequences of different lengths, also 0, and tokens after the last; both shapes of x."""
    offsets = torch.tensor([0, 2, 2, 7, 8], dtype=torch.int32)
    for W, kernel in ((4, ROWS if rows else STAGED), (5, ANY)):
        x = draws(seed, batch=11, W=W, rows=rows, slots=11, channels=24) | {"cu_seqlens": offsets}
        x["conv_state_indices"] = torch.tensor([9, 3, 2, 10])
        for given in (x, x | {"x": x["x"].T[None], "conv_state": x["conv_state"].clone()}):
            check(given, Step(kernel, multiprocessors=1))
    x = draws(seed, batch=11, columns=7, rows=rows, slots=11, channels=24) | {"cu_seqlens": offsets.long()}
    x |= {"num_accepted_tokens": torch.tensor([1, 5, 4, 0]), "conv_state_indices": torch.tensor([-1, 3, 2, 10])}
    check(x, Step(ROWS if rows else ANY))
    more = {"cache_seqlens": torch.tensor([-1, 5, 2**31 - 1, -(2**31)], dtype=torch.int32)}
    check(draws(seed, batch=11, rows=rows, channels=24) | {"cu_seqlens": offsets} | more, Step(ROWS if rows else ANY))


def test_no_sequences(seed: int) -> None:
    x = draws(seed, batch=5) | {"cu_seqlens": torch.tensor([0])}
    with emulated():
        out = causal_conv1d_update(**x | {"out": torch.full_like(x["x"], torch.nan)})
    assert not out.any()


@pytest.mark.parametrize("kernel", [ROWS, ANY])
def test_invalid_counts_and_positions(kernel: str, seed: int) -> None:
    """Counts of accepted tokens are clamped; positions in a circular state wrap at its columns."""
    x = draws(seed, batch=5, tokens=2, columns=5, channels=24, rows=kernel == ROWS)
    counts = torch.tensor([-(2**63), 2**63 - 1, 2**32, 0, 1])
    check(x | {"num_accepted_tokens": counts}, Step(kernel))
    check(x | {"cache_seqlens": counts}, Step(kernel))


@pytest.mark.parametrize("rows", [True, False])
def test_strides(rows: bool, seed: int) -> None:
    """Gaps between slots, columns, tokens, taps, indices, and before all; they stay unwritten."""
    for gap in (0, 1, 16):
        plain = draws(seed, batch=3, tokens=2, slots=5, channels=24, rows=rows, io=torch.bfloat16)
        pool = torch.full((5, 4, 24 + gap) if rows else (5, 24 + gap, 4), 7.0, dtype=torch.bfloat16)
        state = pool[:, 1:, :24].mT if rows else pool[:, :24, 1:]
        wide, taps = torch.zeros(3, 2, 24 + gap, dtype=torch.bfloat16), torch.zeros(24, 4 + gap, dtype=torch.bfloat16)
        x = plain | {
            "x": wide[..., gap:].mT.copy_(plain["x"]),
            "conv_state": state.copy_(plain["conv_state"]),
            "weight": taps[:, :4].copy_(plain["weight"]),
            "bias": torch.zeros(48, dtype=torch.bfloat16)[::2].copy_(plain["bias"]),
            "conv_state_indices": torch.tensor([[4, 0], [0, 0], [3, 0]])[:, 0],
        }
        check(x, Step(ROWS if rows and gap != 1 else ANY))
        outside = pool[:, :1] if rows else pool[..., :1]
        assert bool((outside == 7).all()) and bool((pool[:, :, 24:] == 7).all() if rows else (pool[:, 24:] == 7).all())


@pytest.mark.parametrize("rows", [True, False])
def test_out_may_be_x(rows: bool, seed: int) -> None:
    for W, tokens in ((4, None), (4, 5), (6, 5)):
        x = draws(seed, W=W, tokens=tokens, rows=rows, batch=5, slots=6, channels=24)
        x["conv_state_indices"] = torch.tensor([0, -1, 5, 3, 1])
        separate = x | {"x": x["x"].clone(), "conv_state": x["conv_state"].clone()}
        with emulated(1):
            expected = causal_conv1d_update(**separate)
            assert causal_conv1d_update(**x, out=x["x"]) is x["x"]
        assert torch.equal(x["x"], expected) and torch.equal(x["conv_state"], separate["conv_state"])


@pytest.mark.parametrize("more", [{"rows": True}, {}, {"W": 5}])
def test_several_tokens_equal_single_ones(more: dict[str, Any], seed: int) -> None:
    """Outputs and states have the same bits."""
    together, alone = (draws(seed, tokens=4, channels=24, io=torch.bfloat16, **more) for _ in range(2))
    with emulated():
        out = causal_conv1d_update(**together)
        for t in range(4):
            assert torch.equal(causal_conv1d_update(**alone | {"x": alone["x"][..., t]}), out[..., t])
    assert torch.equal(together["conv_state"], alone["conv_state"])


def test_values_that_are_not_finite_stay_in_their_channels(seed: int) -> None:
    for more in ({"rows": True}, {}, {"W": 5}):
        clean, spoilt = (draws(seed, batch=4, channels=24, **more) for _ in range(2))
        spoilt["x"][1, 2], spoilt["conv_state"][2, 3, 1], spoilt["conv_state"][3, 4] = torch.nan, torch.inf, -torch.inf
        with emulated():
            mine, theirs = causal_conv1d_update(**spoilt), causal_conv1d_update(**clean)
        same = torch.ones(4, 24, dtype=torch.bool)
        same[1, 2] = same[2, 3] = same[3, 4] = False
        assert torch.equal(mine[same], theirs[same]) and not torch.isfinite(mine[~same]).any()
        assert torch.equal(spoilt["conv_state"][same], clean["conv_state"][same])


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"channels": 0}, {"tokens": 0}, {"batch": 1, "channels": 1}])
def test_sizes_of_0_and_1(sizes: dict[str, int], seed: int) -> None:
    x = draws(seed, **sizes)
    before = x["conv_state"].clone()
    with emulated():
        out = causal_conv1d_update(**x)
    assert out.shape == x["x"].shape and (x["x"].numel() or torch.equal(x["conv_state"], before))
