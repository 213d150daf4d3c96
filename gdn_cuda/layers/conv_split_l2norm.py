"""A GDN layer's short convolution, split into q, k and v and normalised, and its gates: the operator, its gradients, reference,
examples, benchmark and sanitizer call."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ..conv import reference_causal
from ..conv.causal_conv1d import _backward as _conv_backward
from ..conv.causal_conv1d import _conv as _causal_conv
from ..gdn.reference_operators import fused_gdn_gating as gates_on_cpu
from ..gdn.reference_operators import gradients_of_gates
from ..operators import Differentiable
from ..operators.autograd import with_autograd
from ..operators.calls import typical_call
from ..operators.dtypes import state_dtype
from ..operators.examples import Arguments, call_operator, example, random
from ..operators.first_order import first_order
from ..operators.measure import Case, Work, bench, draw, normal, sanitizes, size
from ..operators.registration import register
from ..operators.schema import refuse
from ..operators.state_slots import check_slots
from .gating import fused_gdn_gating

_NAME = "conv_split_l2norm"
Split = tuple[Tensor, Tensor, Tensor]
WithGates = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]

# ---- CPU tensors: the definition in fp64


def _split(x: Any, y: Tensor) -> Split:
    """Views q, k and v of (B, D, L)."""
    keys = x.key_heads * x.dk
    q, k, v = y.mT.split((keys, keys, x.value_heads * x.dv), dim=-1)
    shape = (x.key_heads, x.dk)
    return q.unflatten(-1, shape), k.unflatten(-1, shape), v.unflatten(-1, (x.value_heads, x.dv))


def _normalised(x: Any, y: Tensor) -> Split:
    q, k, v = _split(x, y)
    if x.l2norm:
        q, k = (z * (z.square().sum(-1, keepdim=True) + x.eps).rsqrt() for z in (q, k))
    q, k, v = (z.to(x.x.dtype).contiguous() for z in (q, k, v))
    return q, k, v


def _with_gates(x: Any, split: Split) -> WithGates:
    return *split, *(_no_gates(x) if x.a is None else gates_on_cpu(x))


def _no_gates(x: Any) -> tuple[Tensor, Tensor]:
    return x.x.new_empty((0,)), x.x.new_empty((0,), dtype=torch.float32)


def _unrounded(x: Any, **more: Any) -> Any:
    """Arguments of the convolution in fp64, so that its output is not rounded."""
    given = {"x": x.x.double(), "weight": x.weight, "bias": x.bias, "cu_seqlens": x.cu_seqlens, "seq_idx": None, "silu": True}
    return SimpleNamespace(**given | more)


def _forward(x: Any) -> WithGates:
    y, _ = reference_causal.causal_conv1d(_unrounded(x, initial_states=x.initial_states, return_final_states=False))
    return _with_gates(x, _normalised(x, y))


@torch.no_grad()
def _prefill_on_cpu(x: Any) -> WithGates:
    if x.state_indices is not None:
        check_slots(_NAME, "state_indices", x.state_indices.to(torch.int64), x.conv_state.shape[0])
    pool = {name: getattr(x, name) for name in ("conv_state", "state_indices", "has_initial_state")}
    return _with_gates(x, _normalised(x, reference_causal.causal_conv1d_prefill(_unrounded(x, **pool))))


def _backward_on_cpu(x: Any) -> Tensor:
    """The gradient of y, the tensor that was split, in tokens layout: a transposed view of (B, L, D)."""
    grads = [y.double() for y in (x.grad_query, x.grad_key, x.grad_value)]
    if x.l2norm:
        for i, y in enumerate(_split(x, x.y.double())[:2]):
            inverse = (y.square().sum(-1, keepdim=True) + x.eps).rsqrt()
            along = (y * grads[i]).sum(-1, keepdim=True) * inverse**2
            # With one channel rounding would cancel the difference, so it is computed directly.
            change = grads[i] * (x.eps * inverse**2) + 0 * along if x.dk == 1 else grads[i] - along * y
            grads[i] = inverse * change
    return torch.cat([y.flatten(2) for y in grads], 2).to(x.y.dtype).mT


# ---- The operator and its gradients


def _shapes(x: Any) -> WithGates:
    B, _, L = x.x.shape
    keys = (B, L, x.key_heads, x.dk)
    split = x.x.new_empty(keys), x.x.new_empty(keys), x.x.new_empty((B, L, x.value_heads, x.dv))
    gates = _no_gates(x) if x.a is None else (x.b.new_empty(x.b.shape), x.a.new_empty(x.a.shape, dtype=state_dtype(x.a)))
    return *split, *gates


def _gradients(x: Any, needs: Any, *grads: Tensor) -> dict[str, Any]:
    """The convolution is recomputed rather than saved: saving its output would more than double the memory."""
    grads, gate_grads = grads[:3], {} if x.a is None else _gate_gradients(x, *grads[3:])
    given = (x.x, x.weight, x.bias, None, x.initial_states, x.cu_seqlens, True)
    y, _ = _causal_conv(*given, False)
    heads = (x.key_heads, x.value_heads, x.dk, x.dv, x.l2norm, x.eps)
    dy = _backward(y, *(grad.contiguous() for grad in grads), *heads)
    dx, dweight, dbias, dstates = _conv_backward(dy, None, *given)
    return gate_grads | {
        "x": dx,
        "weight": dweight,
        "bias": dbias if needs.bias else None,
        "initial_states": dstates.to(x.initial_states.dtype) if needs.initial_states else None,
    }


def _gate_gradients(x: Any, grad_beta: Tensor, grad_gate: Tensor) -> dict[str, Tensor]:
    raw = x.a.contiguous()
    _, gate = fused_gdn_gating(x.A_log, x.dt_bias, raw, raw)
    options = {"beta_is_logit": True, "allow_negative_eigenvalues": False, "gate_is_linear": False}
    call = SimpleNamespace(beta=x.b, gate=x.a, A_log=x.A_log, dt_bias=x.dt_bias, **options)
    found = gradients_of_gates(call, gate, grad_beta.to(gate.dtype), grad_gate)
    return {name: y.to(getattr(x, name).dtype) for name, y in zip(("b", "a", "A_log", "dt_bias"), found, strict=True)}


def _refuse_vmap(x: Any, dims: Any) -> Any:
    raise RuntimeError(f"{_NAME}: torch.vmap is not supported; x has a batch dimension")


_fused: Differentiable = first_order(_NAME, _NAME, shapes=_shapes, cpu=_forward, backward=_gradients, batched=_refuse_vmap)
_backward: Differentiable = first_order(
    _NAME,
    "conv_split_l2norm_backward",
    shapes=lambda x: x.y.new_empty((x.y.shape[0], x.y.shape[2], x.y.shape[1])).mT,
    cpu=_backward_on_cpu,
    batched=_refuse_vmap,
)
_prefill = register(
    "conv_split_l2norm_prefill",
    shapes=_shapes,
    cpu=_prefill_on_cpu,
    function=_NAME,
    differentiable="initial_states in place of conv_state",
)


def conv_split_l2norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    key_heads: int,
    value_heads: int,
    dk: int,
    dv: int,
    l2norm: bool = True,
    eps: float = 1e-6,
    initial_states: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    conv_state: Tensor | None = None,
    state_indices: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    a: Tensor | None = None,
    b: Tensor | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
) -> Split | WithGates:
    """The short convolution of a GDN layer with silu, split into q, k and v, q and k normalised, and the layer's gates: all
    inputs of chunked_forward, from one kernel. Returns `(q, k, v)`, with a `(q, k, v, beta, gate)`.

    Formula:
        y = causal_conv1d(x, weight, bias, activation="silu"); q, k, v = the heads of y; q = q / √(Σ q² + eps), and the same for
        k beta, gate = fused_gdn_gating(A_log, dt_bias, a, b)

    Shapes:
        x: (B, D, L) with D = 2·key_heads·dk + value_heads·dv channels, those of q, of k and of v; fp32, bf16 or fp16; the
          transposed view of (B, L, D) is fast, other strides work
        weight: (D, W), W from 1 to 32; bias: (D,); fp32, bf16 or fp16
        q, k: (B, L, key_heads, dk), v: (B, L, value_heads, dv), contiguous, of x's dtype
        initial_states: (B or sequences, D, W − 1), the last W − 1 inputs, oldest first; fp32, bf16 or fp16, any strides
        cu_seqlens: (sequences + 1,), int32 or int64: packed sequences, for which B is 1
        conv_state, state_indices, has_initial_state: as of causal_conv1d, a pool of states in place
        a, b: (B, L, value_heads), of one dtype, any strides; A_log, dt_bias: (value_heads,); fp32, bf16 or fp16; all or none
        beta: as b, in b's dtype; gate: as a, fp32; both contiguous

    Parameters:
        key_heads, dk: number and size of the heads of q and of k
        value_heads, dv: number and size of the heads of v
        l2norm: False: q and k are not normalised
        eps: added to the sum of squares of a row of q and of k

    Nothing is rounded between convolution and norm. Calls without conv_state have gradients, also of initial_states, for which
    the convolution is recomputed; calls with it have none. The states to continue from are the last W − 1 columns of x, after
    the initial ones. CPU tensors may also be fp64.

    Edge cases:
        Tokens after the last packed sequence, and sequences with a negative state index, have zeros in q, k and v.
        A state index past the pool touches nothing: on CPU tensors it raises IndexError; on a GPU the sequence is NaN.
        Every token has its gates, even a token of no sequence. A gate of −∞ has zero gradients for a, A_log and dt_bias.
        A head of zeros stays zeros; with eps = 0 it is NaN. Squares whose sum exceeds fp32 give zeros.

    Example:
        >>> x, weight = torch.tensor([[[20.0], [30.0], [40.0], [50.0]]]), torch.ones(4, 1)
        >>> gdn_cuda.conv_split_l2norm(x, weight, key_heads=1, value_heads=2, dk=1, dv=1, l2norm=False)[2]
        tensor([[[[40.],
                  [50.]]]])
    """
    rest = (cu_seqlens, a, b, A_log, dt_bias, key_heads, value_heads, dk, dv, l2norm, eps)
    if conv_state is None:
        for argument, given in (("state_indices", state_indices), ("has_initial_state", has_initial_state)):
            if given is not None:
                refuse(_NAME, argument, "None without conv_state", "a tensor")
        found = _fused(x, weight, bias, initial_states, *rest)
        return found[:3] if a is None else found
    if initial_states is not None:
        refuse(_NAME, "initial_states", "None with conv_state", "a tensor")
    if isinstance(has_initial_state, Tensor) and has_initial_state.dtype == torch.bool:
        has_initial_state = has_initial_state.to(torch.int32)
    found = with_autograd(_prefill, (x, weight, bias, conv_state, state_indices, has_initial_state, *rest))
    return found[:3] if a is None else found


# ---- Examples

_HEADS = {"key_heads": 2, "value_heads": 3, "dk": 4, "dv": 5}
_CHANNELS = 31


def _given(B: int, L: int, seed: int) -> Arguments:
    x = random(B, L, _CHANNELS, seed=seed, dtype=torch.bfloat16).mT
    return {"x": x, "weight": random(_CHANNELS, 4, seed=seed + 1), "bias": random(_CHANNELS, seed=seed + 2)} | _HEADS


@example(conv_split_l2norm)
def _example(B: int, T: int, seed: int) -> Arguments:
    return _given(B, T, seed)


def _given_gates(B: int, L: int, seed: int) -> Arguments:
    a, b = random(2, B, L, 3, seed=seed + 4, dtype=torch.bfloat16)
    return {"a": a, "b": b, "A_log": random(3, seed=seed + 5), "dt_bias": random(3, seed=seed + 6)}


@example(conv_split_l2norm, "conv_split_l2norm, gates")
def _example_gates(B: int, T: int, seed: int) -> Arguments:
    return _given(B, T, seed) | _given_gates(B, T, seed)


@example(conv_split_l2norm, "conv_split_l2norm, packed", packed=True)
def _example_packed(B: int, T: int, seed: int) -> Arguments:
    states = random(3, 3, _CHANNELS, seed=seed + 3).mT
    offsets = torch.tensor([0, 5, 5, 7], dtype=torch.int32)
    return _given(1, 7, seed) | {"cu_seqlens": offsets, "initial_states": states, "l2norm": False}


@example(conv_split_l2norm, "conv_split_l2norm, pool", packed=True)
def _example_pool(B: int, T: int, seed: int) -> Arguments:
    return _given(1, 7, seed) | {
        "cu_seqlens": torch.tensor([0, 5, 5, 7]),
        "conv_state": random(5, 3, _CHANNELS, seed=seed + 3).mT,
        "state_indices": torch.tensor([3, -1, 0]),
        "has_initial_state": torch.tensor([True, True, False]),
        **_given_gates(1, 7, seed),
    }


@example(call_operator("conv_split_l2norm_backward"))
def _example_backward(B: int, T: int, seed: int) -> Arguments:
    bf16 = torch.bfloat16
    return {
        "y": random(B, T, _CHANNELS, seed=seed, dtype=bf16).mT,
        "grad_query": random(B, T, 2, 4, seed=seed + 1, dtype=bf16),
        "grad_key": random(B, T, 2, 4, seed=seed + 2, dtype=bf16),
        "grad_value": random(B, T, 3, 5, seed=seed + 3, dtype=bf16),
        "l2norm": True,
        "eps": 1e-6,
    } | _HEADS


# ---- Measurements

GPU_LENGTHS, CPU_LENGTHS = ((1, 8192), (1, 32768), (8, 4096), (1, 512)), ((1, 8),)
_MEASURED_HEADS: Arguments = {"key_heads": 16, "value_heads": 32, "dk": 128, "dv": 128}  # Qwen3-Next's


def _work(device: str, B: int, L: int, dtype: torch.dtype, pool: bool, gates: bool, backward: bool) -> Work:
    D = 2 * 16 * 128 + 32 * 128
    x, weight = normal(B, L, D, device=device, dtype=dtype).mT, normal(D, 4, device=device, dtype=dtype)
    states = {"conv_state": normal(B, 3, D, device=device, dtype=dtype).mT} if pool else {}
    raw = normal(4, B, L, 32, device=device, dtype=dtype)
    given = {"a": raw[0], "b": raw[1], "A_log": raw[2, 0, 0], "dt_bias": raw[3, 0, 0]} if gates else {}
    scalars = size(raw[0]) * 3 + B * L * 32 * 4 if gates else 0
    if not backward:
        return Work(partial(conv_split_l2norm, x, weight, **_MEASURED_HEADS, **states, **given), 2 * size(x) + scalars, 0)
    leaves = [y.detach().requires_grad_() for y in (x, weight, *given.values())]
    with_gradients: Arguments = dict(zip(given, leaves[2:], strict=True))
    found = conv_split_l2norm(leaves[0], leaves[1], **_MEASURED_HEADS, **with_gradients)
    grads = [torch.empty_like(y).normal_() for y in found]
    return Work(partial(torch.autograd.grad, found, leaves, grads, retain_graph=True), 3 * size(x) + 2 * scalars, 0)


@bench(operator="conv_split_l2norm")
def _measured(device: str) -> Iterator[Case]:
    for B, L in GPU_LENGTHS if device == "cuda" else CPU_LENGTHS:
        for more in ((), ("gates",), ("pool",), ("pool", "gates"), ("backward",), ("gates", "backward")):
            name = ", ".join((f"{B}×{L} 16/32 heads of 128", *more))
            options = ("pool" in more, "gates" in more, "backward" in more)
            yield Case(name, partial(_work, device, B, L, torch.bfloat16, *options))


typical_call(
    conv_split_l2norm,
    {"B": 1, "D": 8192, "T": 8192, "W": 4, "Hk": 16, "Hv": 32, "dk": 128, "dv": 128},
    "x: B D T mn; weight: D W; key_heads = Hk; value_heads = Hv; dk = dk; dv = dv",
)


@sanitizes("split_conv", "split_columns", "split_backward")
def _sanitized() -> None:
    """Heads that fit lanes of a warp and others; one sequence, and several with states."""
    for dtype in (torch.bfloat16, torch.float32):
        for dk, dv, W in ((64, 24, 4), (256, 40, 3), (5, 7, 4)):
            heads: Arguments = {"key_heads": 2, "value_heads": 3, "dk": dk, "dv": dv}
            D = 4 * dk + 3 * dv
            x, weight = draw(1, 150, D, dtype=dtype).mT.requires_grad_(), draw(D, W).requires_grad_()
            starts, states = torch.tensor([0, 7, 7, 100, 150], device="cuda"), draw(4, D, W - 1).requires_grad_()
            found = conv_split_l2norm(x, weight, **heads, cu_seqlens=starts, initial_states=states)
            torch.autograd.grad(found, (x, weight, states), [torch.ones_like(y) for y in found])
            a, b = draw(2, 1, 150, 3, dtype=dtype)
            gates: Arguments = {"a": a, "b": b, "A_log": draw(3), "dt_bias": draw(3)}
            with torch.no_grad():
                conv_split_l2norm(x, weight, **heads, **gates, cu_seqlens=starts, conv_state=draw(4, W - 1, D).mT)
