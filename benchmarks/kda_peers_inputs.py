"""Shapes, gates and inputs of benchmarks/kda_peers.py, and the recurrence in fp64 that peers are checked against.

Raw gates are normally distributed. *init*: as FLA initialises Kimi Delta Attention, with a lower bound of −5, A = 1 and dt
log-uniform in 0.001 … 0.1, a channel each; *short*: the bound alone, bias 0; *softplus*: no bound, A 1 … 16 over the heads, dt
as before; *heavy*: no bound, A 1 … 201, one raw value in a thousand near 13: gates to −2600; *deep*: a bound of −50, bias 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

Inputs = dict[str, Any]
D = 128
SCALE = D**-0.5
LOWER_BOUND = {"init": -5.0, "short": -5.0, "deep": -50.0}
KINDS = ("init", "short", "softplus", "heavy")


@dataclass(frozen=True)
class Shape:
    heads: int
    lengths: tuple[int, ...]
    packed: str = ""  # how the lengths were chosen; without it, all are the same and make a batch

    @property
    def name(self) -> str:
        tokens = f"packed {sum(self.lengths)}: {self.packed}" if self.packed else f"{len(self.lengths)}×{self.lengths[0]}"
        return f"{self.heads}, {tokens}"


CHECKED = Shape(2, (384,))
_SKEWED = (4096, 1024, 512, 512, *(128,) * 16)
_RANDOM = (1310, 204, 1873, 377, 611, 942, 58, 1437, 533, 847)
SHAPES = (
    *(Shape(64, (tokens,)) for tokens in (1024, 4096, 8192)),
    *(Shape(64, (tokens,) * 2) for tokens in (8192, 16384)),
    Shape(64, (410,) * 18 + (406,) * 2, "20 even"),
    Shape(64, _RANDOM, "10 random"),
    Shape(64, _SKEWED, "20 skewed"),
    *(Shape(heads, (tokens,)) for heads in (32, 4, 8) for tokens in (8192, 32768)),
    *(Shape(heads, (8192,)) for heads in (16, 24, 96)),
    Shape(16, (2048,) * 8),
)
# cuDNN's ten
TEN = (
    *(Shape(4, (1024,)), Shape(12, (2048,)), Shape(16, (2048,)), Shape(10, (3072,)), Shape(8, (4096,)), Shape(12, (4096,))),
    *(Shape(12, (2048,) * 4), Shape(16, (8192,)), Shape(24, (8192,)), Shape(16, (2048,) * 8)),
)


def inputs(shape: Shape, gates: str, device: str = "cuda") -> Inputs:
    """Tokens are (tokens, heads, 128), states (sequences, heads, 128 of the value, 128 of the key) in fp32."""
    torch.manual_seed(0)
    tokens, heads, count = sum(shape.lengths), shape.heads, len(shape.lengths)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, device=device, dtype=torch.bfloat16)

    raw = normal(tokens, heads, D)
    amplitude = torch.ones(heads, device=device)
    dt = torch.exp(torch.rand(heads, D, device=device) * math.log(100) + math.log(0.001))
    bias = dt + torch.log(-torch.expm1(-dt))
    if gates in ("short", "deep"):
        bias = torch.zeros_like(bias)
    elif gates == "softplus":
        amplitude = torch.linspace(1, 16, heads, device=device)
    elif gates == "heavy":
        amplitude = torch.logspace(0, math.log10(201), heads, device=device)
        raw = torch.where(torch.rand(raw.shape, device=device) < 1e-3, raw.float() + 13, raw.float()).bfloat16()
    offsets = torch.tensor([0, *shape.lengths], device=device).cumsum(0)
    return {
        "query": normal(tokens, heads, D),
        "key": normal(tokens, heads, D),
        "value": normal(tokens, heads, D),
        "a": raw,
        "b": normal(tokens, heads),
        "A_log": amplitude.log(),
        "dt_bias": bias,
        "lower_bound": LOWER_BOUND.get(gates),
        "state": torch.randn(count, heads, D, D, device=device) * 0.1,
        "offsets": offsets,
        "batch": 1 if shape.packed else count,
        "packed": bool(shape.packed),
    }


def prepared(x: Inputs, dtype: torch.dtype = torch.float32) -> Inputs:
    """For a peer without norms and gates: normalised q and k in their dtype (or fp64), log decays and beta in `dtype`."""
    q, k = (x[name].double() for name in ("query", "key"))
    q, k = (t * torch.rsqrt(t.square().sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    u, amplitude = x["a"].double() + x["dt_bias"].double(), x["A_log"].double().exp()[:, None]
    bound = x["lower_bound"]
    log_decay = -amplitude * torch.nn.functional.softplus(u) if bound is None else bound * torch.sigmoid(amplitude * u)
    kept = torch.float64 if dtype == torch.float64 else x["query"].dtype
    made = {"query": q.to(kept), "key": k.to(kept), "g": log_decay.to(dtype), "beta": x["b"].double().sigmoid().to(dtype)}
    return x | made


def recurrence(x: Inputs) -> tuple[Tensor, Tensor]:
    """The definition, token by token, in fp64, of inputs that `prepared` made: output and final states."""
    q, k, v, g, beta = (x[name].double() for name in ("query", "key", "value", "g", "beta"))
    outputs, states = [], []
    borders = x["offsets"].tolist()
    for sequence, (start, end) in enumerate(pairwise(borders)):
        S = x["state"][sequence].double()
        for t in range(start, end):
            S = S * g[t].exp()[:, None]
            rest = beta[t][:, None] * (v[t] - torch.einsum("hvk,hk->hv", S, k[t]))
            S = S + rest[:, :, None] * k[t][:, None]
            outputs.append(SCALE * torch.einsum("hvk,hk->hv", S, q[t]))
        states.append(S)
    return torch.stack(outputs), torch.stack(states)


def error(found: Tensor, expected: Tensor) -> float:
    """Relative RMS; NaN if a value is."""
    return ((found.double() - expected).norm() / expected.norm()).item()


# ---- One token of a layer: convolution, gates, step, gated RMSNorm


def layer_inputs(heads: int, batch: int, states: torch.dtype, device: str = "cuda") -> Inputs:
    """As engines have them. Slot 0 is the one that fused kernels keep for padding rows."""
    x = inputs(Shape(heads, (batch,)), "init", device)
    width, slots = 3 * heads * D, batch + 1
    return x | {
        "x": torch.randn(batch, width, device=device, dtype=torch.bfloat16),
        "weight": torch.randn(3, 4, heads * D, device=device) * 0.5,
        # channels are contiguous in memory
        "conv_pool": torch.randn(slots, 3, width, device=device, dtype=torch.bfloat16).transpose(1, 2),
        "output_gate": torch.randn(batch, heads, D, device=device, dtype=torch.bfloat16),
        "norm_weight": torch.rand(D, device=device) + 0.5,
        "pool": (torch.randn(slots, heads, D, D, device=device) * 0.1).to(states),
        "slots": torch.randperm(batch, device=device).int() + 1,
    }


def step_expected(x: Inputs) -> tuple[Tensor, Tensor]:
    """Output (batch, heads, 128) and states of the rows, of the step alone, on query, key and value."""
    rows = torch.arange(x["slots"].numel() + 1, device=x["slots"].device)
    return recurrence(prepared(x | {"state": x["pool"][x["slots"].long()], "offsets": rows}, torch.float64))


def layer_expected(x: Inputs) -> tuple[Tensor, Tensor]:
    heads, slots = x["A_log"].numel(), x["slots"].long()
    taps = torch.cat([x["conv_pool"][slots].double(), x["x"].double()[:, :, None]], -1)  # (batch, channels, 4)
    weight = x["weight"].double().transpose(1, 2).reshape(-1, 4)
    mixed = torch.nn.functional.silu((taps * weight).sum(-1)).bfloat16()
    q, k, v = mixed.unflatten(1, (3, heads, D)).unbind(1)
    out, states = step_expected(x | {"query": q, "key": k, "value": v})
    out = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + 1e-5) * x["norm_weight"].double()
    return out * x["output_gate"].double().sigmoid(), states
