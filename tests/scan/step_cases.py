"""Steps of scans by their definitions, in fp64, sequence by sequence and token by token in numpy, and inputs for them. Nothing
but the names of arguments comes from the package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

REAL = ("mamba", "zoh", "bilinear", "dirac", "s7", "rglru")
COMPLEX = ("mamba", "zoh", "bilinear", "dirac")
STATE_BOUND = {torch.float32: 1e-6, torch.complex64: 2e-6, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
OUT_BOUND = {torch.float32: 3e-6, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def to_numpy(x: Tensor) -> Any:
    x = x.detach().cpu()
    return x.to(torch.complex128 if x.is_complex() else torch.float64).numpy().copy()


def transition(name: str, delta: Any, delta_a: Any, A: Any) -> tuple[Any, Any]:
    """Ā and the factor of B u."""
    if name == "s7":
        return 1 - 1 / (delta**2 + 0.5), 1
    if name == "rglru":
        return A**delta, np.sqrt(-np.expm1(2 * np.where(delta == 0, 0, delta * np.log(A))))
    if name == "bilinear":
        return (1 + delta_a * A / 2) / (1 - delta_a * A / 2), delta / (1 - delta * A / 2)
    if name == "zoh":
        z = delta * A
        mean = np.where(np.abs(z) < 1e-9, 1 + z / 2, np.expm1(z) / np.where(z == 0, 1, z))
        return np.exp(delta_a * A), delta * mean
    return np.exp(delta_a * A), delta if name == "mamba" else 1


def selective(x: dict[str, Any]) -> tuple[Any, Any, Any]:
    """(out, state, step states) after selective_state_update(**x); x is not written."""
    with np.errstate(all="ignore"):
        return _selective(x)


def _selective(x: dict[str, Any]) -> tuple[Any, Any, Any]:
    name = x.get("discretization", "mamba")
    before, u, dt, A, B, C = (to_numpy(x[each]) for each in ("state", "x", "dt", "A", "B", "C"))
    D, z, bias, delta_a, steps = (
        None if x.get(each) is None else to_numpy(x[each]) for each in ("D", "z", "dt_bias", "delta_a", "step_states")
    )
    state, rows, many = before.copy(), before.shape[1:-1], u.ndim == before.ndim
    one_value = x["A"].dim() == 1 or x["A"].shape[-1] == 1 or x["A"].stride(-1) == 0
    erases = one_value and name in ("mamba", "dirac") and not np.iscomplexobj(before)
    if len(rows) == 2:  # one value per head
        dt, delta_a = (y if y is None or y.ndim == u.ndim else y[..., None] for y in (dt, delta_a))
        D, bias = (y if y is None or y.ndim == 2 else y[:, None] for y in (D, bias))
        A = A if A.ndim == 3 else A[:, None, None]
    packed = x.get("cu_seqlens") is not None
    if not many:  # one token, or packed
        u, dt, B, C = (each[None] if packed else each[:, None] for each in (u, dt, B, C))
        z, delta_a = (None if each is None else each[None] if packed else each[:, None] for each in (z, delta_a))
    offsets = x["cu_seqlens"].tolist() if packed else [0] * len(u) + [0]
    batch = len(offsets) - 1
    indices = x.get("state_batch_indices")
    slots = np.arange(batch) if indices is None else indices.cpu().numpy()
    targets = slots if x.get("write_indices") is None else x["write_indices"].cpu().numpy()
    null = x.get("null_slot")
    out = np.zeros(u.shape)
    for n in range(batch):
        row, origin, tokens = (0, offsets[n], offsets[n + 1] - offsets[n]) if packed else (n, 0, u.shape[1])
        first = 0
        if x.get("num_accepted_tokens") is not None:
            first = min(max(int(x["num_accepted_tokens"][n]), 1), slots.shape[1]) - 1
        slot = int(slots[n] if slots.ndim == 1 else slots[n, first])
        if slot == null or not 0 <= slot < len(before):
            out[row, origin : origin + tokens] = 0 if slot < 0 or slot == null else np.nan
            continue
        by_token = slots.ndim == 2 and steps is None
        last = slot if targets.ndim == 2 else int(targets[n])
        step_row = None if steps is None else int(x["step_slots"][n])
        has_row = steps is not None and 0 <= step_row < len(steps)
        after: dict[int, Any] = {-1: before[slot]}
        latest = -1
        for t in range(tokens):
            parent, at = latest, origin + t
            if x.get("parents") is not None:
                parent = int(x["parents"][n, t]) if t < x["parents"].shape[1] else t
                if parent not in after or not (has_row or parent in (latest, -1)):
                    out[row, at] = np.nan
                    continue
            delta = dt[row, at] + (0 if bias is None else bias)
            if x.get("dt_softplus"):
                delta = np.where(delta > 20, delta, np.log1p(np.exp(np.minimum(delta, 20))))
            delta_a_t = delta if delta_a is None else delta_a[row, at]
            wide = [np.broadcast_to(each, rows)[..., None] for each in (delta, delta_a_t)]
            decay, gain = transition(name, *wide, A)
            b, c = (spread_over_rows(each[row, at], rows) for each in (B, C))
            kept = decay * after[parent]
            if erases:
                kept = np.where(wide[1] * A < -104, 0, kept)
            h = kept + gain * (1 if name == "rglru" else b) * u[row, at][..., None]
            after[t], latest = h, t
            y = (c * h).sum(-1)
            y = 2 * y.real if np.iscomplexobj(y) else y
            y = y if D is None else y + D * u[row, at]
            out[row, at] = y if z is None else y * z[row, at] / (1 + np.exp(-z[row, at]))
            to = int(targets[n, t]) if by_token and t < targets.shape[1] else -1
            if has_row and t < steps.shape[1]:
                steps[step_row, t] = h
            elif to != null and 0 <= to < len(state):
                state[to] = h
        keeps_last = not by_token and (steps is None or x.get("write_indices") is not None)
        if keeps_last and x.get("update_state", True) and last != null and 0 <= last < len(state):
            state[last] = after[latest]
    return out if many else out[0] if packed else out[:, 0], state, steps


def spread_over_rows(columns: Any, rows: tuple[int, ...]) -> Any:
    """(N) or (groups, N), repeated over (heads, dim) or (dim,)."""
    if columns.ndim == 1:
        return columns
    spread = np.repeat(columns, rows[0] // len(columns), axis=0)
    return spread[:, None] if len(rows) == 2 else spread


def simplified(x: dict[str, Any]) -> tuple[Any, Any]:
    """(out, state) after simplified_state_update(**x)."""
    state, u, dt, A, B, C = (to_numpy(x[each]) for each in ("state", "x", "dt", "A", "B", "C"))
    delta_a = dt if x.get("delta_a") is None else to_numpy(x["delta_a"])
    decay, gain = transition(x.get("discretization", "bilinear"), dt, delta_a, A.reshape(-1))
    state = decay * state + gain * np.einsum("bh,ph->bp", u, B)
    out = (2 if x.get("conj_sym", True) else 1) * np.einsum("bp,hp->bh", state, C).real
    if x.get("D") is not None:
        D = to_numpy(x["D"])
        out = out + (D * u.real if D.ndim == 1 else np.einsum("bh,gh->bg", u.real, D))
    return out, state


# ---- Inputs


def draws(
    seed: int,
    name: str = "mamba",
    *,
    batch: int = 3,
    tokens: int | None = None,
    heads: int | None = None,
    dim: int = 5,
    N: int = 16,
    groups: int | None = None,
    state: torch.dtype = torch.float32,
    io: torch.dtype = torch.float32,
    slots: int = 0,
    bare: bool = False,
    device: str = "cpu",
) -> dict[str, Any]:
    """Arguments of selective_state_update, of stable systems: with all optional arguments except slots, or `bare`."""
    generator = torch.Generator().manual_seed(seed)
    rows = (dim,) if heads is None else (heads, dim)
    lead = (batch,) if tokens is None else (batch, tokens)
    columns = (*lead, N) if groups is None else (*lead, groups, N)
    wide = torch.complex64 if state.is_complex else torch.float32

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        drawn = torch.complex128 if dtype.is_complex else torch.float64
        return torch.randn(*shape, generator=generator, dtype=drawn).to(device, dtype)

    A = -normal(*rows, N).abs() - 0.05
    if state.is_complex:
        A = torch.complex(A, 3 * normal(*rows, N))
    if name == "rglru":
        A = torch.exp(A)
    x: dict[str, Any] = {
        "state": normal(max(slots, batch), *rows, N, dtype=state),
        "x": normal(*lead, *rows, dtype=io),
        "dt": normal(*lead, *rows).abs().to(io) if bare else normal(*lead, *rows, dtype=io),
        "A": A,
        "B": normal(*columns, dtype=wide if state.is_complex else io),
        "C": normal(*columns, dtype=wide if state.is_complex else io),
        "discretization": name,
    }
    if not bare:
        x |= {"D": normal(*rows), "z": normal(*lead, *rows, dtype=io), "dt_bias": normal(*rows), "dt_softplus": True}
        if name not in ("s7", "rglru"):
            x["delta_a"] = normal(*lead, *rows).abs().to(io)
    return x


def packed_draws(seed: int, lengths: list[int], *, after: int = 0, **form: Any) -> dict[str, Any]:
    """The same for packed sequences, with `after` more tokens than they have."""
    total = sum(lengths)
    x = draws(seed, batch=total + after, **form)
    slots = max(form.get("slots", 0), len(lengths))
    device = x["x"].device
    x["state"] = draws(seed, **form | {"batch": slots})["state"]
    x["cu_seqlens"] = torch.tensor([0, *lengths], device=device).cumsum(0)
    return x


def random_parents(seed: int, sequences: int, tokens: int) -> Tensor:
    """A chain, random trees with several roots, and a star."""
    rng = torch.Generator().manual_seed(seed)
    parents = torch.randint(0, 2**20, (sequences, tokens), generator=rng) % (torch.arange(tokens) + 1) - 1
    parents[0] = torch.arange(tokens) - 1
    parents[-1, 1:] = 0
    return parents


INVALID_PARENTS = torch.tensor(
    [[-1, 0, 2, 1, 3, 1], [-2, 0, 1, -1, 3, 4], [-1, 2**40, 0, -(2**63), 3, 2], [0, -1, 1, 7, 1, 2**63 - 1]]
)


def layer_inputs(seed: int, state: torch.dtype, N: int, device: str = "cpu") -> Iterator[dict[str, Any]]:
    """Inputs of layers in bf16: Mamba, Mamba-2 (heads, groups, one A per row), and a server with arbitrary slots."""
    slots = torch.tensor([6, -1, 2**31 - 1, 0, -(2**31), 3], device=device)
    forms: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
        ({"dim": 37}, {}),
        ({"dim": 6, "heads": 4, "groups": 2}, {}),
        ({"dim": 37, "batch": 6, "slots": 8}, {"state_batch_indices": slots.int()}),
        ({"dim": 3, "heads": 2, "batch": 6, "slots": 8}, {"state_batch_indices": slots}),
    )
    for shape, more in forms:
        x = draws(seed, N=N, state=state, io=torch.bfloat16, device=device, **shape) | more
        del x["delta_a"]
        if "groups" in shape:
            x["A"] = x["A"][..., :1].expand_as(x["A"])
        yield x


def close(got: Tensor, expected: Any, bound: float) -> None:
    """Relative RMS within the bound, and NaN where NaN is expected."""
    found = to_numpy(got)
    assert found.shape == expected.shape
    missing = np.isnan(expected)
    assert np.array_equal(np.isnan(found), missing)
    error, size = np.linalg.norm((found - expected)[~missing]), np.linalg.norm(expected[~missing])
    assert error <= bound * max(size, 1e-30), f"relative RMS {error / max(size, 1e-30):.2e}"


def check(x: dict[str, Any], function: Any) -> Tensor:
    """Calls the function with an output full of NaN, and compares output, states and step states with the definition."""
    out, state, steps = selective(x)
    x = x | {"out": torch.full(x["x"].shape, torch.nan, dtype=x["x"].dtype, device=x["x"].device)}
    assert function(**x) is x["out"]
    bound = STATE_BOUND[x["state"].dtype]
    # The output sums over states in registers, before they are rounded.
    close(x["out"], out, OUT_BOUND[x["x"].dtype])
    close(x["state"], state, bound)
    if steps is not None:
        close(x["step_states"], steps, bound)
    return x["out"]


def check_resets(seed: int, function: Any, **form: Any) -> None:
    """δA below −104, where A has one value for a row: nothing is left of infinities and NaN in the state. Other heads keep
    theirs."""
    x = draws(seed, heads=2, dim=40, io=torch.bfloat16, bare=True, **form)
    x["A"], x["dt"] = -torch.ones_like(x["A"][:, 0, 0]), torch.ones_like(x["dt"][..., 0])
    x["dt"][1, ..., 1] = 200.0
    x["state"][1, 1, 3, :4], x["state"][1, 1, 5], x["state"][2, 0, 3] = torch.inf, torch.nan, torch.nan
    out = check(x, function)
    assert out[1].isfinite().all() and x["state"][1].isfinite().all()
    assert out[2][..., 0, 3].isnan().all()
