"""causal_conv1d_update on CPU tensors against the definition in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from step_conv_oracle import HOSTILE, IO, as_rows, check, draws, windows

from gdn_cuda import causal_conv1d_update


@pytest.mark.parametrize("W", [1, 2, 3, 4, 5, 32])
@pytest.mark.parametrize("rows", [False, True])
def test_windows(W: int, rows: bool, seed: int) -> None:
    for columns, tokens in ((W - 1, None), (W - 1, 1), (W - 1, 5), (W, 3), (W + 4, 2), (W + 4, 5)):
        for more in windows(seed, 3, columns, W):
            if "num_accepted_tokens" not in more or (tokens or 1) <= columns - W + 2:
                check(draws(seed, W=W, columns=columns, tokens=tokens, rows=rows) | more, causal_conv1d_update)


@pytest.mark.parametrize("io", IO)
@pytest.mark.parametrize("state", IO)
@pytest.mark.parametrize("weight", IO)
def test_dtypes(io: torch.dtype, state: torch.dtype, weight: torch.dtype, seed: int) -> None:
    check(draws(seed, tokens=3, io=io, state=state, weight=weight), causal_conv1d_update)


@pytest.mark.parametrize("state", [torch.float64, torch.float32])
def test_fp64_on_the_cpu(state: torch.dtype, seed: int) -> None:
    x = draws(seed, tokens=3, io=torch.float64, state=state)
    check(x | {"weight": x["weight"].float()}, causal_conv1d_update)


def test_without_bias_and_activation(seed: int) -> None:
    check(draws(seed, bare=True), causal_conv1d_update)
    check(draws(seed) | {"activation": "swish"}, causal_conv1d_update)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_slots(index: torch.dtype, seed: int) -> None:
    """A negative slot and the null slot, which may be past the pool, are skipped; other slots keep their states."""
    x = draws(seed, batch=5, slots=9, tokens=2)
    x["conv_state_indices"] = torch.tensor([[7, -1, 40, 0, torch.iinfo(index).min]] * 2, dtype=index).T[:, 0]
    out = check(x | {"null_slot": 40}, causal_conv1d_update)
    assert not out[[1, 2, 4]].any() and out[[0, 3]].all()


@pytest.mark.parametrize("W", [1, 4])
def test_packed(W: int, seed: int) -> None:
    """Sequences of different lengths, empty ones, and tokens after the last; both shapes of x."""
    offsets = torch.tensor([0, 2, 2, 7, 8], dtype=torch.int32)
    x = draws(seed, batch=11, W=W, columns=W + 4) | {"cu_seqlens": offsets}
    for more in windows(seed, 4, W + 3, W):
        for given in (x, x | {"x": x["x"].T[None]}, x | {"x": x["x"].T.contiguous()[None], "cu_seqlens": offsets.long()}):
            check(given | more | {"conv_state": x["conv_state"].clone()}, causal_conv1d_update)


def test_without_sequences(seed: int) -> None:
    x = draws(seed, batch=5) | {"cu_seqlens": torch.tensor([0])}
    before = x["conv_state"].clone()
    assert not causal_conv1d_update(**x | {"out": torch.full_like(x["x"], torch.nan)}).any()
    assert torch.equal(x["conv_state"], before)


def test_padding_of_a_graph(seed: int) -> None:
    """Repeated offsets and null slots: padding has no effect."""
    x = draws(seed, batch=6, slots=6)
    x |= {"cu_seqlens": torch.tensor([0, 3, 4, 4, 4]), "conv_state_indices": torch.tensor([2, 5, 0, 0]), "null_slot": 0}
    before = x["conv_state"].clone()
    out = check(x, causal_conv1d_update)
    assert not out[4:].any() and torch.equal(x["conv_state"][[0, 1, 3, 4]], before[[0, 1, 3, 4]])


def test_slots_past_the_pool_raise(seed: int) -> None:
    for bad in (3, 2**62):
        x = draws(seed) | {"conv_state_indices": torch.tensor([0, bad, 1])}
        before = x["conv_state"].clone()
        with pytest.raises(IndexError, match=rf"^causal_conv1d_update: conv_state_indices: expected < 3, got {bad}$"):
            causal_conv1d_update(**x)
        assert torch.equal(x["conv_state"], before)


def test_more_tokens_or_accepted_tokens_than_columns_raise(seed: int) -> None:
    x = draws(seed, columns=5, tokens=2) | {"num_accepted_tokens": torch.tensor([1, 4, 0])}
    with pytest.raises(IndexError, match=r"num_accepted_tokens: expected <= 3, got 4$"):
        causal_conv1d_update(**x)
    packed = draws(seed, columns=5, batch=6) | {
        "num_accepted_tokens": torch.tensor([1, 3]),
        "cu_seqlens": torch.tensor([0, 4, 6]),
    }
    before = packed["conv_state"].clone()
    with pytest.raises(IndexError, match=r"cu_seqlens: expected at most 3 tokens a sequence, got 4$"):
        causal_conv1d_update(**packed)
    assert torch.equal(packed["conv_state"], before)
    skipped = packed | {"conv_state_indices": torch.tensor([-1, 0])}
    assert not causal_conv1d_update(**skipped)[:4].any()


def test_cache_seqlens_may_have_any_value(seed: int) -> None:
    x = draws(seed, batch=5, columns=5, tokens=3)
    check(x | {"cache_seqlens": torch.tensor(HOSTILE)}, causal_conv1d_update)


@pytest.mark.parametrize("form", ["contiguous", "rows", "slices", "expanded slots"])
def test_the_output_is_like_x(form: str, seed: int) -> None:
    x = draws(seed, tokens=4)
    if form == "rows":
        x["x"] = as_rows(x["x"])
    elif form == "slices":
        x["x"] = torch.randn(3, 4, 50)[..., 3:23].mT
    out = causal_conv1d_update(**x)
    assert out.stride() == (x["x"].contiguous() if form != "slices" else as_rows(x["x"])).stride() or form == "rows"
    assert (out.stride(1) == 1) == (x["x"].stride(1) == 1)


def test_out_may_be_x(seed: int) -> None:
    x = draws(seed, tokens=4)
    separate = x | {"x": x["x"].clone(), "conv_state": x["conv_state"].clone()}
    expected = causal_conv1d_update(**separate)
    assert causal_conv1d_update(**x, out=x["x"]) is x["x"]
    assert torch.equal(x["x"], expected) and torch.equal(x["conv_state"], separate["conv_state"])


def test_no_gradient_is_computed(seed: int) -> None:
    x = draws(seed)
    x["weight"].requires_grad_()
    out = causal_conv1d_update(**x)
    with pytest.raises(RuntimeError, match="no gradient is computed"):
        out.sum().backward()


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"channels": 0}, {"tokens": 0}, {"batch": 1, "channels": 1}])
def test_sizes_of_0_and_1(sizes: dict[str, Any], seed: int) -> None:
    for more in ({}, {"W": 1}):
        check(draws(seed, **sizes, **more), causal_conv1d_update)
