"""The definition of a Gated Delta Net layer's step, in fp64 numpy loops over sequences, tokens and heads. Only names of
arguments and random inputs come from the package.

Query, key and value are rounded to the dtype of the projections after the convolution, and states when they are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

OUT_BOUND = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float64: 1e-13}
# A query, key or value close to the middle of two 16-bit values may be rounded differently, about one in a thousand.
STATE_BOUND = {torch.float32: 2.0**-10, torch.bfloat16: 2.0**-8, torch.float64: 1e-13}
HOSTILE = [2**63 - 1, -(2**63), 2**32, -1, 1]


def float64(x: Tensor) -> Any:
    return x.detach().cpu().to(torch.float64).numpy().copy()


def rounded(x: Any, dtype: torch.dtype) -> Any:
    return torch.from_numpy(np.array(x)).to(dtype).to(torch.float64).numpy()


def sigmoid(x: Any) -> Any:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def parts(x: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    """(channels of the convolution, z, b, a), the last three by value head."""
    (Hk, Hv), dk, dv = x["heads"], x["dk"], x["dv"]
    G, layout = Hv // Hk, x.get("layout", "qwen3_next")
    qkvz, ba = float64(x["qkvz"]), float64(x["ba"])
    B, T = qkvz.shape[:2]
    channels = 2 * Hk * dk + Hv * dv
    if layout == "split":
        return qkvz, float64(x["z"]).reshape(B, T, Hv, dv), ba, float64(x["a"])
    if layout == "qwen3_5":
        return qkvz[..., :channels], qkvz[..., channels:].reshape(B, T, Hv, dv), ba[..., :Hv], ba[..., Hv:]
    q, k, v, z, b, a = [], [], [], [], [], []
    width = 2 * dk + 2 * G * dv
    for h in range(Hk):
        mine = qkvz[..., h * width : (h + 1) * width]
        q.append(mine[..., :dk])
        k.append(mine[..., dk : 2 * dk])
        v.append(mine[..., 2 * dk : 2 * dk + G * dv])
        z.append(mine[..., 2 * dk + G * dv :])
        b.append(ba[..., 2 * G * h : 2 * G * h + G])
        a.append(ba[..., 2 * G * h + G : 2 * G * (h + 1)])
    mixed = np.concatenate([*q, *k, *v], -1)
    return mixed, np.concatenate(z, -1).reshape(B, T, Hv, dv), np.concatenate(b, -1), np.concatenate(a, -1)


def is_slot(x: dict[str, Any], slot: int) -> bool:
    return slot >= 0 and slot != x.get("null_slot")


def step(x: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """(out, the new values of each tensor that the call writes); does not change x."""
    (Hk, Hv), dk, dv = x["heads"], x["dk"], x["dv"]
    mixed, z, b, a = parts(x)
    B, T, C = mixed.shape
    io = x["qkvz"].dtype
    after = {
        name: float64(x[name]) for name in ("conv_pool", "state_pool", "step_conv", "step_states") if x.get(name) is not None
    }
    kept = {name: float64(x[name]) for name in ("conv_pool", "state_pool")}
    out = np.zeros((B, T, Hv * dv))
    for n in range(B):
        given = x.get("state_indices")
        row = [n] if given is None else given[n].reshape(-1).tolist()
        by_token = given is not None and given.dim() == 2
        accepted = 1 if x.get("num_accepted_tokens") is None else int(x["num_accepted_tokens"][n])
        columns = kept["conv_pool"].shape[2]
        accepted = max(accepted, 1)
        slot, conv_slot = row[min(accepted, len(row)) - 1], row[0]
        if given is not None and not (is_slot(x, slot) and is_slot(x, conv_slot)):
            continue
        if max(slot, conv_slot) >= len(kept["state_pool"]):
            out[n] = np.nan
            continue
        first = min(accepted, columns - 2) - 1 if by_token else columns - 3
        inputs = [*kept["conv_pool"][conv_slot, :, first : first + 3].T, *mixed[n]]
        steps = None if x.get("step_slots") is None else int(x["step_slots"][n])
        S = kept["state_pool"][slot]
        for t in range(T):
            y = np.zeros(C) if x.get("conv_bias") is None else float64(x["conv_bias"])
            for tap in range(4):
                y = y + float64(x["conv_weight"])[:, tap] * inputs[t + tap]
            y = rounded(y if x.get("activation", "silu") is None else y * sigmoid(y), io)
            S = np.array(S)
            for h in range(Hv):
                key_head = h // (Hv // Hk)
                q = y[key_head * dk : (key_head + 1) * dk]
                k = y[Hk * dk + key_head * dk : Hk * dk + (key_head + 1) * dk]
                v = y[2 * Hk * dk + h * dv : 2 * Hk * dk + (h + 1) * dv]
                q, k = q / np.sqrt((q * q).sum() + 1e-6), k / np.sqrt((k * k).sum() + 1e-6)
                w = a[n, t, h] + float64(x["dt_bias"])[h]
                gate = -np.exp(float64(x["A_log"])[h]) * (w if w > 20 else np.log1p(np.exp(w)))
                beta = sigmoid(b[n, t, h]) * (2 if x.get("allow_negative_eigenvalues") else 1)
                decayed = np.exp(gate) * S[h] if np.exp(np.float32(gate)) > 0 else np.zeros_like(S[h])
                S[h] = decayed + np.outer(beta * (v - decayed @ k), k)
                scale = dk**-0.5 if x.get("scale") is None else x["scale"]
                o = scale * (S[h] @ q)
                g = z[n, t, h]
                gain = sigmoid(g) if x.get("gate_activation", "silu") == "sigmoid" else g * sigmoid(g)
                norm = o / np.sqrt((o * o).mean() + x.get("norm_eps", 1e-6)) * float64(x["norm_weight"])
                out[n, t, h * dv : (h + 1) * dv] = norm * gain
            if x.get("step_slots") is not None:
                assert steps is not None
                if 0 <= steps < len(after["step_states"]):
                    after["step_states"][steps, t] = rounded(S, x["step_states"].dtype)
                    window = np.stack(inputs[t + 1 : t + 4], -1)
                    after["step_conv"][steps, t] = rounded(window, x["step_conv"].dtype)
            elif by_token:
                if is_slot(x, row[t]) and row[t] < len(kept["state_pool"]):
                    after["state_pool"][row[t]] = rounded(S, x["state_pool"].dtype)
            elif t + 1 == T:
                after["state_pool"][slot] = rounded(S, x["state_pool"].dtype)
        if x.get("step_slots") is None and T > 0:
            every = inputs[1:] if by_token else [*kept["conv_pool"][conv_slot].T, *mixed[n]][T:]
            after["conv_pool"][conv_slot, :, : len(every)] = rounded(np.stack(every, -1), x["conv_pool"].dtype)
    return out, after


def close(got: Tensor, expected: Any, bound: float, what: str) -> None:
    """Relative RMS within the bound, and NaN where NaN is expected."""
    found = float64(got)
    assert found.shape == expected.shape
    missing = np.isnan(expected)
    assert np.array_equal(np.isnan(found), missing), what
    error, size = np.linalg.norm((found - expected)[~missing]), np.linalg.norm(expected[~missing])
    assert error <= bound * max(size, 1e-30), f"{what}: relative RMS {error / max(size, 1e-30):.2e}"


def check(x: dict[str, Any], function: Callable[..., Tensor]) -> Tensor:
    """Calls the function with an output full of NaN and compares output and states with the definition, the convolution's
    states bitwise."""
    out, after = step(x)
    Hv, dv = x["heads"][1], x["dv"]
    given = torch.full((*x["qkvz"].shape[:2], Hv * dv), torch.nan, dtype=x["qkvz"].dtype, device=x["qkvz"].device)
    assert function(**x, out=given) is given
    close(given, out, OUT_BOUND[given.dtype], "out")
    for name, expected in after.items():
        if name in ("conv_pool", "step_conv"):
            assert np.array_equal(float64(x[name]), expected, equal_nan=True), name
        else:
            close(x[name], expected, STATE_BOUND[x[name].dtype], name)
    return given
