"""The summary (M, L) of a part of a sequence, S ← S M + L: the operator, its reference, examples and benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..operators import operator
from ..operators.calls import typical_call
from ..operators.dtypes import state_dtype
from ..operators.examples import Arguments, example, random
from ..operators.measure import Case, Work, bench
from ..operators.schema import require_tensors
from . import reference as gdn
from .inputs import make_gdn_inputs, make_packed_gdn_inputs, with_raw_gates
from .reference import CHUNK
from .reference_operators import _packed, gates_of_call


def _reference(x: Any) -> Tensor:
    """The final state of dv + dk rows. The last dk start from the identity and have values of zero: they become M."""
    x = _packed(SimpleNamespace(**vars(x), query=x.key), "query", "key", "value", "beta", "gate")
    dk, dv = x.key.shape[-1], x.value.shape[-1]
    sequences = x.key.shape[0] if x.cu_seqlens is None else x.cu_seqlens.shape[0] - 1
    wide, heads = gdn.promoted_dtype(x.key), x.value.shape[-2]
    start = x.key.new_zeros((sequences, heads, dv, dk), dtype=wide) if x.state is None else x.state.to(wide)
    values = x.value
    if x.transition:
        identity = torch.eye(dk, dtype=wide, device=x.key.device).expand(sequences, heads, dk, dk)
        start, values = torch.cat([start, identity], -2), F.pad(values, (0, dk))
    return gdn.chunked(x.key, x.key, values, *gates_of_call(x), start, x.cu_seqlens, use_qk_l2norm=x.use_qk_l2norm)[1]


def _new_summary(function: str, key: Tensor, value: Tensor, cu_seqlens: Tensor | None, transition: bool) -> Tensor:
    """Checks only what the size needs; the operator refuses other wrong arguments."""
    require_tensors(function, key=key, value=value)
    offsets = cu_seqlens if isinstance(cu_seqlens, Tensor) and cu_seqlens.dim() == 1 else None
    if min(key.dim(), value.dim()) < 2:
        return key.new_empty(0, dtype=state_dtype(key))
    sequences, dk = key.shape[0] if offsets is None else max(offsets.shape[0] - 1, 0), key.shape[-1]
    rows = value.shape[-1] + (dk if transition else 0)
    return key.new_empty((sequences, value.shape[-2], rows, dk), dtype=state_dtype(key))


@operator(reference=_reference, out=_new_summary)
def chunked_summary(
    key: Tensor,
    value: Tensor,
    beta: Tensor | None,
    gate: Tensor | None,
    cu_seqlens: Tensor | None = None,
    *,
    state: Tensor | None = None,
    transition: bool = True,
    use_qk_l2norm: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    beta_is_logit: bool = False,
    allow_negative_eigenvalues: bool = False,
    gate_is_linear: bool = False,
    lower_bound: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The summary (M, L) of a part of a sequence, for prefill of parts in parallel: S before the part becomes S M + L.

    Formula:
        L: the final state from `state`, or from zeros
        M = ∏ exp(gate)·(I − beta k kᵀ), the first token's factor first
        with a gate for every channel of the key (Kimi Delta Attention): diag(exp(gate)) (I − beta k kᵀ)

    Shapes:
        key, value, beta, gate, cu_seqlens: as in `chunked_forward`; Hv is a multiple of Hk
        state: (B, Hv, dv, dk), contiguous, of the summary's dtype; None for zeros
        summary: (B, Hv, dv + dk, dk), fp32 (fp64 for fp64 CPU tensors): L in rows 0 to dv − 1 and M below,
          which is absent without `transition`

    Parameters:
        transition: whether M is computed. Who knows the state before the part needs none: L from it is the state after the part
        use_qk_l2norm: whether each row of k is divided by √(Σ x² + 1e-6)
        A_log, dt_bias, lower_bound, gate_is_linear, beta_is_logit, allow_negative_eigenvalues: as in `chunked_forward`
        out: where the summary is written, contiguous; None allocates it

    Two consecutive parts together have L = L₁ M₂ + L₂ and M = M₁ M₂. So several GPUs can each have a part of a sequence: they
    gather the summaries, and each runs `chunked_forward` from the state before its part (docs/kernels/gdn_prefill.md has an
    example). The bits of a sequence do not depend on what it is batched or packed with.

    Edge cases:
        After a reset, a gate of −∞, M is 0. A part of no tokens has L = 0, or `state`, and M = I.
        Of gates of channels, only a reset of all channels of a token makes M 0.
        On Hopper a head with a gate of its own is read from the end, as far back as its gates let anything through: where what
        came before is multiplied by less than 2^-80, M is 0, and infinities and NaN of that time are not seen. With a gate for
        every channel all of a part is read.

    Example:
        >>> key, value = torch.nn.functional.normalize(torch.randn(2, 1, 100, 4, 16), dim=-1).bfloat16()
        >>> beta, gate = torch.rand(1, 100, 4), -torch.rand(1, 100, 4) / 100
        >>> state = torch.randn(1, 4, 16, 16)
        >>> addition, transition = gdn_cuda.chunked_summary(key, value, beta, gate).split([16, 16], dim=-2)
        >>> _, expected = gdn_cuda.chunked_forward(key, key, value, beta, gate, state)
        >>> bool((state @ transition + addition - expected).abs().max() < 1e-2)
        True
    """


# ---- Examples


def _without(inputs: Arguments) -> Arguments:
    return {name: x for name, x in inputs.items() if name not in ("query", "state")}


def _given(B: int, T: int, seed: int) -> Arguments:
    return _without(make_gdn_inputs(B, T, 2, 4, 16, 8, torch.bfloat16, seed=seed, gate_range=(-0.5, 0.0)))


@example(chunked_summary)
def _example(B: int, T: int, seed: int) -> Arguments:
    return _given(B, T, seed)


@example(chunked_summary, "chunked_summary, gates of a layer")
def _example_raw(B: int, T: int, seed: int) -> Arguments:
    return with_raw_gates(_given(B, T, seed), seed) | {"use_qk_l2norm": True}


@example(chunked_summary, "chunked_summary, gates of channels")
def _example_channels(B: int, T: int, seed: int) -> Arguments:
    gate = random(B, T, 4, 16, seed=seed + 1, dtype=torch.bfloat16)
    return _given(B, T, seed) | {"gate": gate, "dt_bias": random(4, 16, seed=seed + 2), "lower_bound": -5.0}


@example(chunked_summary, "chunked_summary, from a state")
def _example_from_state(B: int, T: int, seed: int) -> Arguments:
    given = make_gdn_inputs(B, T, 2, 4, 16, 8, torch.bfloat16, seed=seed, gate_range=(-0.5, 0.0))
    return _without(given) | {"state": given["state"].float(), "transition": False}


@example(chunked_summary, "chunked_summary, packed", packed=True)
def _example_packed(B: int, T: int, seed: int) -> Arguments:
    return _without(
        make_packed_gdn_inputs([70, 0, 3], Hk=2, Hv=4, dk=16, dv=8, dtype=torch.bfloat16, seed=seed, gate_range=(-0.5, 0.0))
    )


typical_call(
    chunked_summary,
    {"B": 1, "T": 8192, "Hk": 16, "Hv": 32, "dk": 128, "dv": 128},
    "key: B T Hk dk; value: B T Hv dv; beta, gate: B T Hv f32",
)


# ---- Benchmark


@bench(operator="chunked_summary")
def _bench(device: str) -> Iterator[Case]:
    from .measure_prefill import CPU_SHAPES, PLAIN, Shape, prefill_work

    def work(shape: Shape, channels: bool) -> Work:
        x = _without(prefill_work(shape, device).inputs)
        gates = shape.key_dim if channels else 1
        if channels:
            x["gate"] = x["gate"][..., None] * (0.5 + torch.rand(gates, device=device))
        rows = shape.value_dim + shape.key_dim
        flops = 2 * (CHUNK * (shape.key_dim + rows) + 2 * shape.key_dim * rows) * shape.tokens * shape.value_heads
        moved = (
            2 * (shape.key_heads * shape.key_dim + shape.value_heads * shape.value_dim) + 4 * shape.value_heads * (1 + gates)
        ) * shape.tokens
        return Work(partial(chunked_summary, **x), moved, flops)

    names = ("1×4096 16/32", "1×8192 16/32", "1×32768 16/32", "1×32768 4/8", "8×4096 16/32")
    shapes = tuple(replace(PLAIN[name], gates="init") for name in names)
    by_head, by_channel = (shapes, shapes) if device == "cuda" else (CPU_SHAPES[:2], CPU_SHAPES[2:])
    for shape in by_head:
        yield Case(shape.name, partial(work, shape, False), called=True)
    for shape in by_channel:
        yield Case(f"{shape.name}, gates of channels", partial(work, shape, True), called=True)
