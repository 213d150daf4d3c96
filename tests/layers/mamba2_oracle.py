"""A Mamba-2 layer's step by its definition, in fp64, sequence by sequence in numpy, and inputs for it. Nothing but the names of
arguments comes from the package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

OUT_BOUND = {torch.float32: 3e-6, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
# x, B and C are rounded to their dtype after the convolution, some to the other neighbour in fp64.
STATE_BOUND = {torch.float32: 2e-6, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-8}


def to_numpy(x: Tensor) -> Any:
    return x.detach().cpu().double().numpy().copy()


def silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


def rounded(x: Any, dtype: torch.dtype) -> Any:
    return torch.from_numpy(np.asarray(x)).to(dtype).double().numpy()


def layer(x: dict[str, Any]) -> tuple[Any, Any, Any]:
    """(out, conv_pool, state_pool) after the call; x is not written."""
    with np.errstate(all="ignore"):
        return _layer(x)


def _layer(x: dict[str, Any]) -> tuple[Any, Any, Any]:
    xBC, dt, weight, A, conv, pool = (
        to_numpy(x[name]) for name in ("xBC", "dt", "conv_weight", "A", "conv_pool", "state_pool")
    )
    conv_bias, D, dt_bias, z = (
        None if x.get(name) is None else to_numpy(x[name]) for name in ("conv_bias", "D", "dt_bias", "z")
    )
    _, H, P, N = pool.shape
    G, null = x.get("groups", 1), x.get("null_slot")
    slots = np.arange(len(xBC)) if x.get("state_indices") is None else x["state_indices"].cpu().numpy()
    lowest, highest = x.get("dt_limit", (0.0, np.inf))
    out = np.zeros((len(xBC), H * P))
    for n, slot in enumerate(int(slot) for slot in slots):
        if slot < 0 or slot == null or slot >= len(pool):
            out[n] = np.nan if slot >= len(pool) and slot != null else 0
            continue
        y = (np.concatenate([conv[slot, :, -3:], xBC[n][:, None]], 1) * weight).sum(1)
        y = y if conv_bias is None else y + conv_bias
        y = rounded(silu(y) if x.get("activation", "silu") else y, x["xBC"].dtype)
        conv[slot] = np.concatenate([conv[slot, :, 1:], xBC[n][:, None]], 1)
        for h in range(H):
            g = h // (H // G)
            u, B, C = y[h * P : (h + 1) * P], y[H * P + g * N :][:N], y[H * P + (G + g) * N :][:N]
            delta = dt[n, h] + (0 if dt_bias is None else dt_bias[h])
            if x.get("dt_softplus", False):
                delta = delta if delta > 20 else np.log1p(np.exp(delta))
            delta = np.clip(delta, lowest, highest)
            kept = np.zeros((P, N)) if delta * A[h] < -104 else np.exp(delta * A[h]) * pool[slot, h]
            pool[slot, h] = kept + delta * u[:, None] * B
            row = pool[slot, h] @ C
            row = row if D is None else row + D[h] * u
            out[n, h * P : (h + 1) * P] = row if z is None else row * silu(z[n, h * P : (h + 1) * P])
    return out, conv, pool


def close(got: Tensor, expected: Any, bound: float) -> None:
    """Relative RMS within the bound, and NaN where NaN is expected."""
    found, missing = to_numpy(got), np.isnan(expected)
    assert np.array_equal(np.isnan(found), missing)
    error, size = np.linalg.norm((found - expected)[~missing]), np.linalg.norm(expected[~missing])
    assert error <= bound * max(size, 1e-30), f"relative RMS {error / max(size, 1e-30):.2e}"


def check(x: dict[str, Any], function: Callable[..., Tensor]) -> Tensor:
    """Calls the function with an output full of NaN, and compares it and both pools with the definition."""
    out, conv, pool = layer(x)
    poisoned = torch.full(out.shape, torch.nan, dtype=x["xBC"].dtype, device=x["xBC"].device)
    assert function(**x, out=poisoned) is poisoned
    close(poisoned, out, OUT_BOUND[poisoned.dtype])
    close(x["state_pool"], pool, STATE_BOUND[x["state_pool"].dtype])
    assert np.array_equal(to_numpy(x["conv_pool"]), rounded(conv, x["conv_pool"].dtype), equal_nan=True)
    return poisoned


def draws(
    seed: int,
    *,
    batch: int = 3,
    heads: int = 4,
    dim: int = 8,
    groups: int = 2,
    N: int = 64,
    columns: int = 3,
    slots: int = 6,
    io: torch.dtype = torch.bfloat16,
    state: torch.dtype = torch.float32,
    conv: torch.dtype | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """Arguments with every option; xBC, z and dt are views of one projection."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)

    rows = heads * dim
    channels = rows + 2 * groups * N
    z, xBC, dt = normal(batch, rows + channels + heads, dtype=io).split([rows, channels, heads], -1)
    return {
        "xBC": xBC,
        "dt": dt,
        "conv_weight": normal(channels, 4, dtype=io),
        "conv_bias": normal(channels, dtype=io),
        "A": -normal(heads).abs() - 0.05,
        "D": normal(heads),
        "dt_bias": normal(heads),
        "z": z,
        "conv_pool": normal(slots, columns, channels, dtype=conv or io).mT,
        "state_pool": normal(slots, heads, dim, N, dtype=state),
        "state_indices": torch.randperm(slots, generator=generator)[:batch].to(device),
        "groups": groups,
        "dt_softplus": True,
    }
