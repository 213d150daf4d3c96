"""The step of a causal convolution by its definition in fp64, element by element in numpy, and inputs for it. Only the names
of arguments come from the package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

IO = (torch.float32, torch.bfloat16, torch.float16)
OUT_BOUND = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
HOSTILE = [2**63 - 1, -(2**63), 2**32, -1, 1]


def as_array(x: Tensor) -> Any:
    return x.detach().cpu().to(torch.float64).numpy().copy()


def spans(x: dict[str, Any]) -> list[tuple[int, int]]:
    """(first token, one past the last) of each sequence; invalid offsets are clamped."""
    many = x["x"].dim() == 3
    if x.get("cu_seqlens") is None:
        return [(0, x["x"].shape[2] if many else 1)] * x["x"].shape[0]
    tokens, found = x["x"].shape[2 if many else 0], []
    offsets = x["cu_seqlens"].tolist()
    for i in range(len(offsets) - 1):
        start = min(max(offsets[i], 0), tokens)
        found.append((start, min(max(offsets[i + 1], start), tokens)))
    return found


def update(x: dict[str, Any]) -> tuple[Any, Any]:
    """(out, states) after causal_conv1d_update(**x), which does not modify x here. States are rounded to their own dtype."""
    given, weight, state = as_array(x["x"]), as_array(x["weight"]), as_array(x["conv_state"])
    rounded = as_array(x["x"].to(x["conv_state"].dtype))
    bias = np.zeros(len(weight)) if x.get("bias") is None else as_array(x["bias"])
    packed, many = x.get("cu_seqlens") is not None, given.ndim == 3
    out = np.zeros(given.shape)

    def channels(n: int, t: int) -> tuple[Any, ...]:
        """The index of the channels of token t of sequence n."""
        if packed:
            return (0, slice(None), t) if many else (t,)
        return (n, slice(None), t) if many else (n,)

    for n, (start, end) in enumerate(spans(x)):
        indexed = x.get("conv_state_indices") is not None
        slot = int(x["conv_state_indices"][n]) if indexed else n
        skipped = indexed and (slot < 0 or slot == x.get("null_slot"))
        if skipped or slot >= len(state) or _too_many(x, end - start):
            for t in range(start, end):
                out[channels(n, t)] = 0 if skipped else np.nan
        elif start < end:
            column = list(state[slot].T)
            history = _history(x, n, column, weight.shape[1])
            inputs = [*history, *(given[channels(n, t)] for t in range(start, end))]
            for t in range(start, end):
                z = bias
                for k in range(weight.shape[1]):
                    z = z + weight[:, k] * inputs[t - start + k]
                out[channels(n, t)] = z / (1 + np.exp(-z)) if x.get("activation") else z
            after = _after(x, n, column, history, [rounded[channels(n, t)] for t in range(start, end)])
            for s, each in enumerate(after):
                state[slot, :, s] = each
    return out, state


def _too_many(x: dict[str, Any], tokens: int) -> bool:
    return x.get("num_accepted_tokens") is not None and x["weight"].shape[1] - 2 + tokens > x["conv_state"].shape[2]


def _history(x: dict[str, Any], n: int, column: list[Any], width: int) -> list[Any]:
    """The inputs before the first token, oldest first, each with all channels."""
    S = len(column)
    if x.get("cache_seqlens") is not None:
        return [column[(int(x["cache_seqlens"][n]) - (width - 1) + i) % S] for i in range(width - 1)]
    if x.get("num_accepted_tokens") is not None:
        accepted = min(max(int(x["num_accepted_tokens"][n]), 1), max(S - width + 2, 1))
        return [column[accepted - 1 + i] for i in range(width - 1)]
    return [column[S - (width - 1) + i] for i in range(width - 1)]


def _after(x: dict[str, Any], n: int, column: list[Any], history: list[Any], tokens: list[Any]) -> list[Any]:
    """The columns of the state after the tokens."""
    S, after = len(column), list(column)
    if x.get("cache_seqlens") is not None:
        for t, number in enumerate(tokens):
            after[(int(x["cache_seqlens"][n]) + t) % S] = number
    elif x.get("num_accepted_tokens") is not None:
        for i, number in enumerate([*history, *tokens][1:]):
            after[i] = number
    else:
        every = [*column, *tokens]
        for i in range(S):
            after[i] = every[len(every) - S + i]
    return after


# ---- Inputs


def draws(
    seed: int,
    *,
    batch: int = 3,
    tokens: int | None = None,
    channels: int = 20,
    W: int = 4,
    columns: int | None = None,
    slots: int = 0,
    io: torch.dtype = torch.float32,
    state: torch.dtype | None = None,
    weight: torch.dtype | None = None,
    rows: bool = False,
    bare: bool = False,
    device: str = "cpu",
) -> dict[str, Any]:
    """Arguments: x (batch, channels[, tokens]), states (slots, channels, columns). With `rows` states, and x with tokens, have
    contiguous channels. Unless `bare`, bias and activation."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)

    columns = W - 1 if columns is None else columns
    x: dict[str, Any] = {
        "x": normal(batch, channels, *([] if tokens is None else [tokens]), dtype=io),
        "conv_state": normal(max(slots, batch), channels, columns, dtype=state or io),
        "weight": normal(channels, W, dtype=weight or io),
    }
    if rows:
        x["conv_state"] = as_rows(x["conv_state"])
        x["x"] = x["x"] if tokens is None else as_rows(x["x"])
    return x if bare else x | {"bias": normal(channels, dtype=weight or io), "activation": "silu"}


def as_rows(x: Tensor) -> Tensor:
    """A copy whose second dimension is contiguous."""
    return x.mT.contiguous().mT


def windows(seed: int, batch: int, columns: int, W: int, device: str = "cpu") -> Iterator[dict[str, Any]]:
    """The arguments of each window."""
    generator = torch.Generator().manual_seed(seed)
    yield {}
    if columns > 0:
        yield {"cache_seqlens": torch.randint(-3 * columns, 3 * columns, (batch,), generator=generator).to(device)}
    room = columns - W + 2
    yield {
        "num_accepted_tokens": torch.randint(0, max(room, 1) + 1, (batch,), generator=generator, dtype=torch.int32).to(device)
    }


def close(got: Tensor, expected: Any, bound: float) -> None:
    """Checks the relative RMS, and that NaN is where NaN is expected."""
    found = as_array(got)
    assert found.shape == expected.shape
    missing = np.isnan(expected)
    assert np.array_equal(np.isnan(found), missing)
    error, size = np.linalg.norm((found - expected)[~missing]), np.linalg.norm(expected[~missing])
    assert error <= bound * max(size, 1e-30), f"relative RMS {error / max(size, 1e-30):.2e}"


def check(x: dict[str, Any], function: Callable[..., Tensor]) -> Tensor:
    """Calls the function with an output full of NaN, and compares the output, and states bit for bit, with the definition."""
    out, state = update(x)
    given = torch.full_like(x["x"], torch.nan)
    assert function(**x, out=given) is given
    close(given, out, OUT_BOUND[x["x"].dtype])
    assert np.array_equal(as_array(x["conv_state"]), state, equal_nan=True)
    return given
