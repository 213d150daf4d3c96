"""The gates of a layer from its projections: the operator, its examples, benchmark and sanitizer call."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..gdn.reference_operators import fused_gdn_gating as _reference
from ..operators import operator
from ..operators.calls import typical_call
from ..operators.dtypes import state_dtype
from ..operators.examples import Arguments, example, random
from ..operators.measure import Case, Work, bench, draw, normal, sanitizes, size
from . import kda_gating

_NAME = "fused_gdn_gating"


def _shapes(x: Any) -> tuple[Tensor, Tensor]:
    return x.b.new_empty(x.b.shape), x.a.new_empty(x.a.shape, dtype=state_dtype(x.a))


@operator(reference=_reference, shapes=_shapes)
def fused_gdn_gating(A_log: Tensor, dt_bias: Tensor, a: Tensor, b: Tensor, is_var_len: bool = False) -> tuple[Tensor, Tensor]:
    """The gates of a layer: returns `(beta, gate)`.

    Formula:
        beta = sigmoid(b)
        gate = −exp(A_log) · softplus(a + dt_bias),  with softplus(x) = x above 20

    Shapes:
        A_log, dt_bias: (Hv,), fp32, bf16 or fp16
        a, b: (B, T, Hv) or packed (N, Hv); bf16, fp16 or fp32
        beta: as b, in b's dtype
        gate: as a, fp32

    Parameters:
        is_var_len: accepted and ignored: a packed `a` has two dimensions

    Edge cases:
        Where one factor of the gate leaves fp32's range, the gate is the limit of the product; infinity times 0, of a = −∞ and
        A_log = ∞ or a = ∞ and A_log = −∞, is NaN. In gdn_cuda.reference a gate of −∞ has zero gradient.

    Example:
        >>> a, b = torch.zeros(2, 1, 3, 4)  # one sequence, 3 tokens, 4 heads
        >>> beta, gate = gdn_cuda.fused_gdn_gating(torch.zeros(4), torch.zeros(4), a, b)
        >>> beta[0, 0, 0], gate[0, 0, 0]
        (tensor(0.5000), tensor(-0.6931))
    """


_HEADS = 4


def _arguments(
    B: int, T: int, seed: int, dtype: torch.dtype = torch.bfloat16, packed: bool = False, permuted: bool = False
) -> Arguments:
    shape = (B * T,) if packed else (T, B) if permuted else (B, T)
    both = random(*shape, 2 * _HEADS, seed=seed, dtype=dtype)  # one projection for a and b, as in layers
    both = both.transpose(0, 1) if permuted else both
    heads = {"A_log": random(_HEADS, seed=seed + 1), "dt_bias": random(_HEADS, seed=seed + 2, dtype=dtype)}
    return heads | {"a": both[..., :_HEADS], "b": both[..., _HEADS:], "is_var_len": packed}


def _dense(B: int, T: int, seed: int) -> Arguments:
    """Dense, tokens before sequences: a wrong implementation would return the same strides."""
    inputs = _arguments(T, B, seed, torch.float32)
    return inputs | {name: inputs[name].contiguous().transpose(0, 1) for name in ("a", "b")}


example(fused_gdn_gating, "gating")(_arguments)
example(fused_gdn_gating, "gating-fp32-dense")(_dense)
example(fused_gdn_gating, "gating-fp32-permuted")(partial(_arguments, dtype=torch.float32, permuted=True))
example(fused_gdn_gating, "gating-packed-fp16")(partial(_arguments, dtype=torch.float16, packed=True))


@bench(operator=_NAME)
def _measured(device: str) -> Iterator[Case]:
    shapes = ((1, 1), (256, 1), (1, 8192), (1, 131072), (8, 131072)) if device == "cuda" else ((1, 1), (1, 8192))
    for batch, tokens in shapes:
        yield Case(f"{batch}×{tokens}×32", partial(_work, device, batch, tokens))


def _work(device: str, batch: int, tokens: int) -> Work:
    x = {
        "A_log": normal(32, device=device, dtype=torch.float32),
        "dt_bias": normal(32, device=device, dtype=torch.float32),
        "a": normal(batch, tokens, 32, device=device),
        "b": normal(batch, tokens, 32, device=device),
    }
    gate_bytes = 4 * x["a"].numel()
    moved = size(x["a"], x["b"], x["b"]) + gate_bytes
    return Work(partial(fused_gdn_gating, **x), moved, 0, x, lambda inputs: fused_gdn_gating(**inputs), x)


typical_call(
    fused_gdn_gating,
    {"B": 1, "T": 8192, "N": 8192, "Hv": 32},
    "A_log, dt_bias: Hv f32; a, b: B T Hv",
    "A_log, dt_bias: Hv f32; a, b: N Hv; is_var_len = true",
)


@sanitizes("gating")
def _sanitized() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        fused_gdn_gating(draw(7), draw(7), draw(300, 7, dtype=dtype), draw(300, 7, dtype=dtype), is_var_len=True)
    kda_gating.run_small()
