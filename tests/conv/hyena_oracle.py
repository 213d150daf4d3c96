"""Hyena's operators in fp64 as the specification defines them: sums over taps, tokens and poles, without the package.

All of it is numpy. Time is the last dimension; rows of a group are repeated over contiguous channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

Array = npt.NDArray[np.float64]


def wide(x: Tensor | Array | None) -> Any:
    return x if x is None or isinstance(x, np.ndarray) else x.detach().cpu().double().numpy()


def per_channel(x: Tensor | Array, channels: int) -> Array:
    """Parameters (groups, …) as (channels, …)."""
    values: Array = wide(x)
    return np.repeat(values, channels // values.shape[0], axis=0)


def taps_of(weight: Tensor | Array, channels: int) -> Array:
    """(groups, 1, K) as (channels, K)."""
    return per_channel(weight, channels)[:, 0]


def causal_sum(taps: Array, u: Array) -> Array:
    """Σ_j taps[j] u_{t−j} for taps (channels, K) and u (…, channels, L)."""
    y, L = np.zeros_like(u), u.shape[-1]
    for j in range(min(taps.shape[-1], L)):
        y[..., j:] += taps[:, j, None] * u[..., : L - j]
    return y


def _fir(u: Array, taps: Array, state: Array | None) -> tuple[Array, Array]:
    """The convolution of u after `state`, and the last K − 1 inputs."""
    B, D, L = u.shape
    width = taps.shape[-1] - 1
    before = np.zeros((B, D, width)) if state is None else state
    whole = np.concatenate([before, u], -1)
    return causal_sum(taps, whole)[..., width:], whole[..., L:].copy()


def _times_mask(z: Array, mask: Tensor | None) -> Array:
    return z if mask is None else z * wide(mask)[:, None]


def short(
    x1: Tensor,
    x2: Tensor,
    v: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    gated_bias: bool = False,
    padding_mask: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Array, Array]:
    """(y, state): a correlation: the last tap multiplies the current token."""
    u = wide(x1) * wide(v)
    z, state = _fir(u, taps_of(weight, u.shape[1])[:, ::-1], wide(initial_state))
    if bias is not None:
        z = z + wide(bias)[:, None] * (u if gated_bias else 1)
    return wide(x2) * _times_mask(z, padding_mask), state


def medium(
    x1: Tensor,
    x2: Tensor,
    v: Tensor,
    weight: Tensor,
    bias: Tensor,
    padding_mask: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Array, Array]:
    """(y, state): a convolution: the first tap multiplies the current token."""
    u = wide(x1) * wide(v)
    z, state = _fir(u, taps_of(weight, u.shape[1]), wide(initial_state))
    return wide(x2) * _times_mask(z + wide(bias)[:, None] * u, padding_mask), state


def filter_of(residues: Tensor, log_poles: Tensor, L: int) -> Array:
    """h_t = Σ_s R_s e^{log p_s t}, (rows, L)."""
    R, logs = wide(residues), wide(log_poles).reshape(residues.shape)
    h = np.zeros((R.shape[0], L))
    for t in range(L):
        h[:, t] = (R * np.exp(logs * t)).sum(-1)
    return h


def long(
    x1: Tensor,
    x2: Tensor,
    v: Tensor,
    residues: Tensor,
    log_poles: Tensor,
    bias: Tensor,
    initial_state: Tensor | None = None,
) -> tuple[Array, Array]:
    """(y, state) by the recurrence of the states, token by token."""
    given = [wide(x) for x in (x2, x1, v)]
    parameters = [wide(x) for x in (bias, residues, log_poles)]
    y, state = np.zeros_like(given[0]), wide(initial_state)
    B, D, L = y.shape
    state = np.zeros((B, D, residues.shape[1])) if state is None else state
    for t in range(L):
        y[:, :, t], state = modal_step(*(x[:, :, t] for x in given), *parameters, state)
    return y, state


def long_by_filter(x1: Tensor, x2: Tensor, v: Tensor, residues: Tensor, log_poles: Tensor, bias: Tensor) -> Array:
    """y by sums over the filter's taps."""
    u = wide(x1) * wide(v)
    h = per_channel(filter_of(residues, log_poles, u.shape[-1]), u.shape[1])
    y: Array = wide(x2) * (causal_sum(h, u) + wide(bias)[:, None] * u)
    return y


def long_gradients(
    grad: Tensor,
    grad_state: Tensor,
    x1: Tensor,
    x2: Tensor,
    v: Tensor,
    residues: Tensor,
    log_poles: Tensor,
    bias: Tensor,
    initial_state: Tensor | None = None,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Gradients of `long` by the adjoint of its recurrence, token by token; and for each parameter's gradient the root of the
    sum of squares of its terms, which are products of an input and a gradient of an output."""
    X1, X2, V, dy = (wide(x) for x in (x1, x2, v, grad))
    B, D, L = X1.shape
    R = per_channel(residues, D)
    p = np.exp(per_channel(log_poles, D).reshape(R.shape))
    u, dz = X1 * V, dy * X2
    state = np.zeros((B, D, R.shape[1])) if initial_state is None else wide(initial_state)
    states = [state]
    # Sums of the squares of a state's terms p^n u, of these times n, and times n squared.
    squares = [state**2, 0 * state, 0 * state]
    residue_squares, pole_squares = 0 * state, 0 * state
    for t in range(L):
        state = p * state + u[:, :, t, None]
        states.append(state)
        once, n, nn = squares
        squares = [p**2 * once + u[:, :, t, None] ** 2, p**2 * (n + once), p**2 * (nn + 2 * n + once)]
        residue_squares = residue_squares + dz[:, :, t, None] ** 2 * squares[0]
        pole_squares = pole_squares + (R * dz[:, :, t, None]) ** 2 * squares[2]
    pole_squares = pole_squares + wide(grad_state) ** 2 * squares[2]

    z, du = np.zeros_like(X1), np.zeros_like(X1)
    R_sum, p_sum = 0 * state, 0 * state
    back = wide(grad_state)
    for t in reversed(range(L)):
        z[:, :, t] = (R * states[t + 1]).sum(-1) + wide(bias) * u[:, :, t]
        back = R * dz[:, :, t, None] + back
        du[:, :, t] = back.sum(-1) + wide(bias) * dz[:, :, t]
        R_sum += dz[:, :, t, None] * states[t + 1]
        back = p * back
        p_sum += back * states[t]
    groups = residues.shape[0]
    by_groups = (B, groups, D // max(1, groups), R.shape[1])

    def group_sums(x: Array) -> Array:
        total: Array = x.reshape(by_groups).sum((0, 2))
        return total

    found = {"x1": du * V, "x2": dy * z, "v": du * X1, "initial_state": back}
    found |= {"residues": group_sums(R_sum), "log_poles": group_sums(p_sum), "bias": (dz * u).sum((0, 2))}
    scales = {
        "residues": group_sums(residue_squares),
        "log_poles": group_sums(pole_squares),
        "bias": ((dz * u) ** 2).sum((0, 2)),
    }
    return found, {name: np.sqrt(x) for name, x in scales.items()}


def modal_step(
    x2: Tensor | Array,
    x1: Tensor | Array,
    v: Tensor | Array,
    D: Tensor | Array,
    residues: Tensor | Array,
    log_poles: Tensor | Array,
    state: Tensor | Array,
) -> tuple[Array, Array]:
    """A token of `long`, (B, D) each: (y, state)."""
    u = wide(x1) * wide(v)
    R = per_channel(residues, u.shape[1])
    poles = np.exp(per_channel(log_poles, u.shape[1]).reshape(R.shape))
    after = poles * wide(state) + u[..., None]
    return wide(x2) * ((R * after).sum(-1) + wide(D) * u), after


def fir_step(
    u: Tensor,
    fir_state: Tensor | Array,
    weight: Tensor,
    bias: Tensor | None = None,
    gated_bias: bool = False,
    flip_filter: bool = False,
) -> tuple[Array, Array]:
    """A token u (B, D) after the K − 1 inputs in fir_state: (y, state)."""
    now, before = wide(u), wide(fir_state)
    taps = taps_of(weight, now.shape[1])
    taps = taps[:, ::-1] if flip_filter else taps
    window = np.concatenate([before, now[..., None]], -1)
    y = (taps * window).sum(-1)
    if bias is not None:
        y = y + wide(bias) * (now if gated_bias else 1)
    return y, window[..., 1:]


def causal_conv(u: Tensor, k: Tensor, D: Tensor | None = None) -> Array:
    """k * u + D ⊙ u for a filter (rows, K)."""
    values = wide(u)
    y = causal_sum(per_channel(k, values.shape[1]), values)
    return y if D is None else y + wide(D)[:, None] * values


def split(z: Tensor, heads: int, layout: str) -> tuple[Array, Array, Array]:
    """Channels (B, 3D, …) as (x2, x1, v), which alternate by channel, by head, or not at all."""
    values = wide(z)
    D = values.shape[1] // 3
    parts: list[list[Array]] = [[], [], []]
    for channel in range(3 * D):
        if layout == "interleaved":
            part = channel % 3
        elif layout == "heads":
            part = channel % (3 * D // heads) // (D // heads)
        else:
            part = channel // D
        parts[part].append(values[:, channel])
    x2, x1, v = (np.stack(part, 1) for part in parts)
    return x2, x1, v
