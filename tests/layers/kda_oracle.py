"""The definition of a Kimi Delta Attention layer's step, in fp64 numpy loops over sequences, heads and channels. Only names of
arguments come from the package.

Query, key and value are rounded to the dtype of the projections after the convolution, and states when they are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from layer_oracle import OUT_BOUND, STATE_BOUND, close, float64, is_slot, rounded, sigmoid
from torch import Tensor

POOLS = ("conv_pool", "key_conv_pool", "value_conv_pool", "state_pool")


def log_decays(x: dict[str, Any], n: int, h: int) -> Any:
    """(dk,): the gates of one head."""
    g = float64(x["a"])[n, h]
    bound = x.get("lower_bound")
    if x.get("A_log") is None and bound is None:
        return g
    if x.get("dt_bias") is not None:
        g = g + float64(x["dt_bias"]).reshape(-1, len(g))[h]
    with np.errstate(over="ignore"):
        rate = 1.0 if x.get("A_log") is None else np.exp(float64(x["A_log"])[h])
        if bound is not None:
            return bound * sigmoid(rate * g)
        return np.array([-rate * (w if w > 20 else np.log1p(np.exp(w))) for w in g])


def step(x: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """(out, the new values of each pool); does not change x."""
    mixed = float64(x["qkv"])
    Hv, dv, dk = x["state_pool"].shape[1:]
    B, C = mixed.shape
    keys = (C - Hv * dv) // 2
    Hk, taps, io = keys // dk, x["conv_weight"].shape[1], x["qkv"].dtype
    after = {name: float64(x[name]) for name in POOLS if x.get(name) is not None}
    weight, b = float64(x["conv_weight"]), float64(x["b"])
    if weight.ndim == 3:
        weight = np.concatenate([part.T for part in weight])
    bias = np.zeros(C) if x.get("conv_bias") is None else float64(x["conv_bias"])
    out = np.zeros((B, Hv * dv))
    for n in range(B):
        slot = n if x.get("state_indices") is None else int(x["state_indices"][n])
        if x.get("state_indices") is not None and not is_slot(x, slot):
            continue
        if slot >= len(after["state_pool"]):
            out[n] = np.nan
            continue
        names = [name for name in POOLS[:3] if name in after]
        history = np.concatenate([float64(x[name])[slot] for name in names])  # (C, columns)
        window = np.concatenate([history, mixed[n][:, None]], 1)
        first = 0
        for name in names:
            width = after[name].shape[1]
            after[name][slot] = rounded(window[first : first + width, 1:], x[name].dtype)
            first += width
        y = bias + (weight * window[:, -taps:]).sum(1)
        y = rounded(y if x.get("activation", "silu") is None else y * sigmoid(y), io)
        S = float64(x["state_pool"])[slot]
        for h in range(Hv):
            key_head = h // (Hv // Hk)
            q, k = y[key_head * dk : (key_head + 1) * dk], y[keys + key_head * dk : keys + (key_head + 1) * dk]
            v = y[2 * keys + h * dv : 2 * keys + (h + 1) * dv]
            q, k = q / np.sqrt((q * q).sum() + 1e-6), k / np.sqrt((k * k).sum() + 1e-6)
            g = log_decays(x, n, h)
            decays = np.where(np.exp(g) < 2.0**-126, 0.0, np.exp(g))
            with np.errstate(invalid="ignore"):
                decayed = np.where(decays == 0, 0.0, S[h] * decays)
            beta = sigmoid(b[n, h]) * (2 if x.get("allow_negative_eigenvalues") else 1)
            S[h] = decayed + np.outer(beta * (v - decayed @ k), k)
            o = (dk**-0.5 if x.get("scale") is None else x["scale"]) * (S[h] @ q)
            if x.get("z") is not None:
                z = float64(x["z"])[n, h * dv : (h + 1) * dv]
                gain = sigmoid(z) if x.get("gate_activation", "sigmoid") == "sigmoid" else z * sigmoid(z)
                o = o / np.sqrt((o * o).mean() + x.get("norm_eps", 1e-5)) * float64(x["norm_weight"]) * gain
            out[n, h * dv : (h + 1) * dv] = o
        after["state_pool"][slot] = rounded(S, x["state_pool"].dtype)
    return out, after


def check(x: dict[str, Any], function: Callable[..., Tensor], out_argument: bool = True) -> Tensor:
    """Calls the function with an output full of NaN and compares output and states with the definition, the convolution's
    states bitwise."""
    expected, after = step(x)
    given = torch.full(expected.shape, torch.nan, dtype=x["qkv"].dtype, device=x["qkv"].device)
    found = function(**x, out=given) if out_argument else function(**x)
    assert found is given or not out_argument
    close(found, expected, (OUT_BOUND | {torch.float32: 2.0**-18})[found.dtype] * (1 if out_argument else 2), "out")
    for name, states in after.items():
        if name == "state_pool":
            close(x[name], states, STATE_BOUND[x[name].dtype], name)
        else:
            assert np.array_equal(float64(x[name]), states, equal_nan=True), name
    return found
