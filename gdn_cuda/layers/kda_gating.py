"""The gates of a Kimi Delta Attention layer from its projection: the operator, its examples, benchmark and sanitizer call."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..gdn.reference_operators import fused_kda_gating as _reference
from ..operators import operator
from ..operators.calls import typical_call
from ..operators.dtypes import state_dtype
from ..operators.examples import Arguments, example, random
from ..operators.measure import Case, Work, bench, draw, normal, size


def _shapes(x: Any) -> Tensor:
    return x.a.new_empty(x.a.shape, dtype=state_dtype(x.a))


@operator(reference=_reference, shapes=_shapes)
def fused_kda_gating(A_log: Tensor | None, dt_bias: Tensor | None, a: Tensor, lower_bound: float | None = None) -> Tensor:
    """The gates of a layer with one for every channel of the key: returns the logarithms of the decays.

    Formula:
        gate = −exp(A_log) · softplus(a + dt_bias),  with softplus(x) = x above 20
        with a bound: gate = lower_bound · sigmoid(exp(A_log) · (a + dt_bias))

    Shapes:
        A_log: (Hv,), fp32, bf16 or fp16; with a bound it may be None, and its exponential is 1
        dt_bias: (Hv, dk), or flat (Hv · dk,), fp32, bf16 or fp16; None for 0
        a: (B, T, Hv, dk) or packed (N, Hv, dk); bf16, fp16 or fp32
        gate: as a, fp32

    Parameters:
        lower_bound: below 0, the lowest gate; None: no bound

    `recurrent_forward` takes `a` itself, with A_log, dt_bias and lower_bound.

    Edge cases:
        Without a bound as in `fused_gdn_gating`. With one, an exp(A_log) beyond fp32's range is its largest number.

    Example:
        >>> a = torch.zeros(1, 3, 2, 16)  # one sequence, 3 tokens, 2 heads, 16 channels
        >>> gdn_cuda.fused_kda_gating(torch.zeros(2), None, a)[0, 0, 0, :3]
        tensor([-0.6931, -0.6931, -0.6931])
        >>> gdn_cuda.fused_kda_gating(None, None, a, lower_bound=-5.0)[0, 0, 0, :3]
        tensor([-2.5000, -2.5000, -2.5000])
    """


_HEADS, _CHANNELS = 4, 16


def _arguments(B: int, T: int, seed: int, dtype: torch.dtype = torch.bfloat16, packed: bool = False, **more: Any) -> Arguments:
    """Heads with gaps between them, as a slice of a wider projection has them."""
    shape = (B * T,) if packed else (B, T)
    a = random(*shape, _HEADS, 2 * _CHANNELS, seed=seed, dtype=dtype)[..., :_CHANNELS]
    bias = random(_HEADS, _CHANNELS, seed=seed + 2, dtype=dtype)
    return {"A_log": random(_HEADS, seed=seed + 1), "dt_bias": bias, "a": a} | more


def _flat(B: int, T: int, seed: int) -> Arguments:
    x = _arguments(B, T, seed, torch.float16, lower_bound=-5.0)
    return x | {"dt_bias": x["dt_bias"].flatten().float(), "a": x["a"].contiguous()}


example(fused_kda_gating, "kda-gating")(_arguments)
example(fused_kda_gating, "kda-gating-bounded")(_flat)
example(fused_kda_gating, "kda-gating-packed-fp32")(partial(_arguments, dtype=torch.float32, packed=True))
example(fused_kda_gating, "kda-gating-bound-alone")(partial(_arguments, lower_bound=-2.0, A_log=None, dt_bias=None))


@bench(operator="fused_kda_gating")
def _measured(device: str) -> Iterator[Case]:
    shapes = ((1, 1), (256, 1), (1, 8192), (1, 65536)) if device == "cuda" else ((1, 1), (1, 256))
    for batch, tokens in shapes:
        for bound in (None, -5.0):
            kind = "no bound" if bound is None else f"bound {bound:g}"
            yield Case(f"{batch}×{tokens}×32×128 {kind}", partial(_work, device, batch, tokens, bound), kind=kind)


def _work(device: str, batch: int, tokens: int, bound: float | None) -> Work:
    x = {
        "A_log": normal(32, device=device, dtype=torch.float32),
        "dt_bias": normal(32, 128, device=device, dtype=torch.float32),
        "a": normal(batch, tokens, 32, 128, device=device),
        "lower_bound": bound,
    }
    moved = size(x["a"]) + 4 * x["a"].numel()
    return Work(partial(fused_kda_gating, **x), moved, 0, x, lambda inputs: fused_kda_gating(**inputs), x)


typical_call(
    fused_kda_gating,
    {"B": 1, "T": 8192, "N": 8192, "Hv": 32, "dk": 128},
    "A_log: Hv f32; dt_bias: Hv dk f32; a: B T Hv dk",
    "A_log: Hv f32; dt_bias: Hv dk f32; a: N Hv dk",
)


def run_small() -> None:
    """Calls that compute-sanitizer can bear, on the GPU."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for channels in (24, 7):
            a = draw(300, 3, channels + 8, dtype=dtype)[..., :channels]
            for bound in (None, -5.0):
                fused_kda_gating(draw(3), draw(3, channels), a, bound)
            fused_kda_gating(None, None, a, -1.0)
