"""Calls of serving engines as data, and their expected results: the recurrence token by token in fp64.

`<engine>_calls.json` has calls of one release, transcribed from the engine's source: shapes, strides and dtypes of tensors,
values of indices. Everything else is drawn. Pools have NaN in every slot that no call may read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

OUTPUT = 5e-3  # the error of outputs in bf16
STATE = {torch.float32: 1e-5, torch.bfloat16: 4e-3}
_PARAMETERS = ("A_log", "dt_bias", "g", "beta", "A")


@dataclass(frozen=True)
class Call:
    name: str
    call: str
    tensors: dict[str, Any]
    options: dict[str, Any]

    def arguments(self, rng: torch.Generator, device: str = "cpu") -> dict[str, Any]:
        """All arguments of the call, with tensors on a device."""
        return self.options | {name: _tensor(name, spec, rng, device) for name, spec in self.tensors.items()}


def calls(engine: str) -> list[Call]:
    recorded = json.loads((Path(__file__).parent / f"{engine}_calls.json").read_text())
    return [Call(**each) for each in recorded]


def identity(call: Call) -> str:
    return f"{call.call}: {call.name}"


def _tensor(name: str, spec: dict[str, Any], rng: torch.Generator, device: str) -> Tensor:
    dtype = getattr(torch, spec["dtype"])
    if "values" in spec:
        values = torch.tensor(spec["values"], dtype=dtype, device=device)
        return values if "strides" not in spec else _strided(values, spec["strides"])
    values = torch.randn(spec["shape"], generator=rng)
    if name in _PARAMETERS:
        drawn = {"A_log": values / 4, "dt_bias": values, "g": -values.abs() / 8, "beta": values.sigmoid(), "A": -values.abs()}
        values = drawn[name]
    return _strided(values.to(device, dtype), spec.get("strides", values.stride()))


def _strided(values: Tensor, strides: list[int] | tuple[int, ...]) -> Tensor:
    """The tensor with these strides; where they are 0 it is expanded. Between its elements are NaN, or an index past the end of
    every pool."""
    between = float("nan") if values.dtype.is_floating_point else 10**6
    drawn = values[tuple(slice(None if s else 1) for s in strides)]
    room = 1 + sum((n - 1) * s for n, s in zip(values.shape, strides, strict=True))
    memory = torch.full((room,), between, dtype=values.dtype, device=values.device)
    return memory.as_strided(drawn.shape, strides).copy_(drawn).expand(values.shape)


def poison(pool: Tensor, used: list[int]) -> None:
    """Fills the slots that are not in use with NaN, before a call."""
    for slot in set(range(pool.shape[0])) - set(used):
        pool[slot] = float("nan")


def untouched(before: Tensor, after: Tensor, written: list[int]) -> bool:
    """Whether slots that are not written kept their bits, NaN included."""
    kept = [slot for slot in range(before.shape[0]) if slot not in written]
    return torch.equal(before[kept].nan_to_num(12345.0), after[kept].nan_to_num(12345.0))


def prefill_state(dtype: torch.dtype, device: str) -> float:
    """The error of a prefill's states: a GPU's tensor cores multiply 16-bit factors."""
    return 5e-3 if device == "cuda" else STATE[dtype]


# ---- The recurrence


def gates(x: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """(g, beta) from raw gates, in fp64."""
    g = -x["A_log"].double().exp() * F.softplus(x["a"].double() + x["dt_bias"].double())
    return g, x["b"].double().sigmoid()


def channel_gates(raw: Tensor, A_log: Tensor | None, dt_bias: Tensor | None, lower_bound: float | None) -> Tensor:
    """g (…, HV, K) from raw gates, in fp64."""
    z = raw.double() + (0 if dt_bias is None else dt_bias.double().view(raw.shape[-2:]))
    rate = 1 if A_log is None else A_log.double().exp().view(-1, 1)
    return -rate * F.softplus(z) if lower_bound is None else lower_bound * (rate * z).sigmoid()


def l2norm(x: Tensor) -> Tensor:
    x = x.double()
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


def recurrence(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """The outputs of one sequence, (T, heads, columns), and the states (T, HV, V, K) after every token. HV is the larger number
    of heads of q and v. Gates g are (T, HV), or (T, HV, K)."""
    q, k, v, g, beta, S = (x.double() for x in (q, k, v, g, beta, state))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    heads = max(q.shape[1], v.shape[1])
    q, k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (q, k, v))
    outputs, states = [v[:0]], [S[None][:0]]
    for t in range(q.shape[0]):
        S = S * g[t].exp().view(heads, 1, -1)
        error = beta[t, :, None] * (v[t] - torch.einsum("hvk,hk->hv", S, k[t]))
        S = S + torch.einsum("hv,hk->hvk", error, k[t])
        outputs.append(scale * torch.einsum("hvk,hk->hv", S, q[t])[None])
        states.append(S[None])
    return torch.cat(outputs), torch.cat(states)
