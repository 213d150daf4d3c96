"""The steps of Hyena's filters by definition, sequence by sequence and token by token, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hyena_oracle as oracle
import numpy as np
import torch
from hyena_cases import modal_parameters
from torch import Tensor

Inputs = dict[str, Any]
STATE_BOUND = {torch.float32: 1e-6, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
OUT_BOUND = {torch.float32: 3e-6, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def _draws(seed: int, device: str) -> Callable[..., Tensor]:
    random = torch.Generator().manual_seed(seed)
    return lambda shape, dtype: torch.randn(shape, generator=random).to(dtype).to(device)


def fir_inputs(
    seed: int,
    B: int = 3,
    D: int = 6,
    K: int = 7,
    T: int | None = None,
    groups: int | None = None,
    io: torch.dtype = torch.float32,
    state: torch.dtype = torch.float32,
    weight: torch.dtype = torch.float32,
    slots: int = 0,
    device: str = "cpu",
    **options: Any,
) -> Inputs:
    draw = _draws(seed, device)
    return {
        "u": draw((B, D) if T is None else (B, D, T), io),
        "fir_state": draw((max(B, slots), D, K - 1), state),
        "weight": draw((D if groups is None else groups, 1, K), weight),
        "bias": draw((D,), weight),
    } | options


def modal_inputs(
    seed: int,
    B: int = 3,
    D: int = 6,
    S: int = 16,
    T: int | None = None,
    groups: int | None = None,
    io: torch.dtype = torch.float32,
    state: torch.dtype = torch.float32,
    slots: int = 0,
    device: str = "cpu",
    **options: Any,
) -> Inputs:
    draw = _draws(seed, device)
    residues, log_poles, bias = modal_parameters(D if groups is None else groups, D, S, seed, torch.float32)
    x = {name: draw((B, D) if T is None else (B, D, T), io) for name in ("x2", "x1", "v")}
    x |= {"D": bias.to(device), "residues": residues.to(device), "log_poles": log_poles.to(device)}
    return x | {"state": draw((max(B, slots), D, S), state)} | options


def _by_token(x: Inputs, inputs: tuple[str, ...], pool: str, step: Any) -> tuple[Any, Any]:
    """(y (B, D, T), the pool) by step(inputs of a token, state) of one sequence. Without a slot y is 0, past the pool NaN."""
    given = [oracle.wide(x[name]) for name in inputs]
    given = [each if each.ndim == 3 else each[..., None] for each in given]
    states, y = oracle.wide(x[pool]).copy(), np.zeros_like(given[0])
    slots = range(len(y)) if x.get("state_indices") is None else x["state_indices"].tolist()
    for n, slot in enumerate(slots):
        if slot < 0 or slot == x.get("null_slot"):
            continue
        if slot >= len(states):
            y[n] = np.nan
            continue
        state = states[slot : slot + 1]
        for t in range(y.shape[2]):
            y[n : n + 1, :, t], state = step([each[n : n + 1, :, t] for each in given], state)
        states[slot] = state[0]
    return y, states


def fir_expected(x: Inputs) -> tuple[Any, Any]:
    more = (x["weight"], x.get("bias"), x.get("gated_bias", False), x.get("flip_filter", False))
    return _by_token(x, ("u",), "fir_state", lambda u, state: oracle.fir_step(u[0], state, *more))


def modal_expected(x: Inputs) -> tuple[Any, Any]:
    more = (x["D"], x["residues"], x["log_poles"])
    return _by_token(x, ("x2", "x1", "v"), "state", lambda given, state: oracle.modal_step(*given, *more, state))


def close(found: Tensor, expected: Any, bound: float) -> None:
    """Checks the relative RMS, and that exactly the expected values are NaN; expected zeros throughout have to be exact."""
    wanted = torch.from_numpy(np.ascontiguousarray(expected)).reshape(found.shape)
    found = found.detach().cpu().double()
    lost = wanted.isnan()
    assert torch.equal(found.isnan(), lost)
    error, scale = ((y[~lost]).norm().item() for y in (found - wanted, wanted))
    assert error <= bound * scale, f"{error / scale if scale else error:.2e} > {bound:.1e}"


def check(x: Inputs, function: Any) -> None:
    """Calls function(**x), which updates x's states, and compares outputs and states."""
    pool, first = ("fir_state", "u") if "u" in x else ("state", "x2")
    expected, states = (fir_expected if "u" in x else modal_expected)(x)
    out, after = function(**x)
    assert after is x[pool] and out.dtype == x[first].dtype and out.shape == x[first].shape
    close(out, expected, OUT_BOUND[out.dtype])
    close(after, states, STATE_BOUND[after.dtype])
