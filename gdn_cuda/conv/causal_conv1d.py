"""The causal depthwise convolution: the operator, its gradients, examples, benchmark and sanitizer calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ..operators import Differentiable
from ..operators.autograd import with_autograd
from ..operators.calls import typical_call
from ..operators.dtypes import state_dtype
from ..operators.examples import Arguments, call_operator, example, random
from ..operators.first_order import first_order
from ..operators.layout import empty_in_layout
from ..operators.measure import (
    Absent,
    Call,
    Case,
    Inputs,
    Outcome,
    Peer,
    Work,
    bench,
    draw,
    import_peer,
    normal,
    sanitizes,
    size,
)
from ..operators.registration import register
from ..operators.schema import refuse
from . import reference_causal as reference

_NAME = "causal_conv1d"
_ACTIVATIONS = (None, "silu", "swish")


def _states_shape(x: Any) -> tuple[Any, ...]:
    sequences = x.x.shape[0] if x.cu_seqlens is None else x.cu_seqlens.shape[0] - 1
    return (sequences, x.x.shape[1], x.weight.shape[1] - 1)


def _shapes(x: Any) -> tuple[Tensor, Tensor]:
    states = _states_shape(x) if x.return_final_states else (0,)
    return empty_in_layout(x.x), x.x.new_empty(states, dtype=state_dtype(x.x))


def _backward_shapes(x: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dbias = x.weight.new_empty((0,)) if x.bias is None else x.bias.new_empty(x.bias.shape)
    dstates = (0,) if x.initial_states is None else _states_shape(x)
    return (
        empty_in_layout(x.x),
        x.weight.new_empty(x.weight.shape),
        dbias,
        x.x.new_empty(dstates, dtype=state_dtype(x.x)),
    )


def _gradients(x: Any, needs: Any, grad: Tensor, grad_states: Tensor) -> dict[str, Any]:
    given = (x.x, x.weight, x.bias, x.seq_idx, x.initial_states, x.cu_seqlens, x.silu)
    dx, dweight, dbias, dstates = _backward(grad, grad_states if x.return_final_states else None, *given)
    return {
        "x": dx,
        "weight": dweight,
        "bias": dbias if needs.bias else None,
        "initial_states": dstates.to(x.initial_states.dtype) if needs.initial_states else None,
    }


def _refuse_vmap(x: Any, dims: Any) -> Any:
    raise RuntimeError(f"{_NAME}: torch.vmap is not supported; x has a batch dimension")


_conv: Differentiable = first_order(
    _NAME, _NAME, shapes=_shapes, cpu=reference.causal_conv1d, backward=_gradients, batched=_refuse_vmap
)
_backward: Differentiable = first_order(
    _NAME,
    "causal_conv1d_backward",
    shapes=_backward_shapes,
    cpu=reference.causal_conv1d_backward,
    batched=_refuse_vmap,
)
_prefill = register(
    "causal_conv1d_prefill",
    shapes=lambda x: empty_in_layout(x.x),
    cpu=reference.causal_conv1d_prefill,
    function=_NAME,
    differentiable="initial_states in place of conv_state",
)


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    activation: str | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    conv_state: Tensor | None = None,
    state_indices: Tensor | None = None,
    has_initial_state: Tensor | None = None,
) -> Any:
    """A causal depthwise convolution: the short convolution of GDN, Mamba, KDA and LFM2 layers.

    Formula:
        z[b, d, t] = bias[d] + Σ_k weight[d, k] · x[b, d, t − (W − 1) + k],  out = z, or z · sigmoid(z) for "silu" and "swish"

    Shapes:
        x: (B, D, L), fp32, bf16 or fp16; fast if contiguous or the transposed view of (B, L, D), correct for any strides;
          out is like x
        weight: (D, W), W from 1 to 32; bias: (D,); fp32, bf16 or fp16
        seq_idx: (B, L), int32 or int64: a token sees only tokens with its own index
        cu_seqlens: (sequences + 1,), int32 or int64: packed sequences; B is 1
        initial_states, final states: (B or sequences, D, W − 1), the last W − 1 inputs, oldest first; initial states in
          fp32 or x's dtype, final states in fp32
        conv_state: (slots, D, W − 1 or more), any strides, fp32, bf16 or fp16: a pool of states, updated in place
        state_indices, has_initial_state: (B or sequences,), int32 or int64, the latter also bool

    Parameters:
        return_final_states: whether to return (out, final states) instead of out
        activation: "silu" or its other name "swish", or None

    With conv_state, sequence n reads its initial state from slot state_indices[n] (by default n), or begins with zeros where
    has_initial_state is false, and writes its final state to the same slot; such a call has no gradients. Without conv_state,
    all inputs have gradients, and so do initial and final states; gradients of weight and bias are summed in fp32. CPU tensors
    may also be fp64.

    Edge cases:
        A token with a negative seq_idx belongs to no sequence: its output is 0, no token sees it, and it gets no gradient.
        With seq_idx, initial_states belong to the first token's sequence, and final states to the last token's.
        Tokens after the last packed sequence have the output 0.
        The final state of a sequence with fewer than W − 1 tokens begins with the end of its initial state, or with zeros.
        A conv_state of more than W − 1 columns stores as many inputs as it has columns; the convolution reads the last W − 1.
        A negative state index gives output 0 and touches no slot. An index past the pool touches nothing: CPU tensors raise
          IndexError; on a GPU the sequence's output is NaN. Two sequences with the same slot race.

    Example:
        >>> x, weight = torch.tensor([[[1.0, 2.0, 3.0]]]), torch.tensor([[10.0, 1.0]])
        >>> gdn_cuda.causal_conv1d(x, weight)
        tensor([[[ 1., 12., 23.]]])
        >>> gdn_cuda.causal_conv1d(x, weight, initial_states=torch.tensor([[[5.0]]]), return_final_states=True)
        (tensor([[[51., 12., 23.]]]), tensor([[[3.]]]))
    """
    if activation not in _ACTIVATIONS:
        refuse(_NAME, "activation", "None, 'silu' or 'swish'", repr(activation))
    silu = activation is not None
    if conv_state is None:
        for argument, given in (("state_indices", state_indices), ("has_initial_state", has_initial_state)):
            if given is not None:
                refuse(_NAME, argument, "None without conv_state", "a tensor")
        out, states = _conv(x, weight, bias, seq_idx, initial_states, cu_seqlens, silu, return_final_states)
        return (out, states) if return_final_states else out
    if initial_states is not None:
        refuse(_NAME, "initial_states", "None with conv_state", "a tensor")
    if return_final_states:
        refuse(_NAME, "return_final_states", "False with conv_state, which holds them", "True")
    if isinstance(has_initial_state, Tensor) and has_initial_state.dtype == torch.bool:
        has_initial_state = has_initial_state.to(torch.int32)
    given = (x, weight, bias, conv_state, state_indices, has_initial_state, seq_idx, cu_seqlens, silu)
    return with_autograd(_prefill, given)


# ---- Examples


def _given(B: int, D: int, L: int, W: int, seed: int, dtype: torch.dtype = torch.float32) -> Arguments:
    x = random(B, D, L, seed=seed, dtype=dtype)
    return {"x": x, "weight": random(D, W, seed=seed + 1), "bias": random(D, seed=seed + 2), "activation": "silu"}


@example(causal_conv1d)
def _example(B: int, T: int, seed: int) -> Arguments:
    states = random(B, 3, 3, seed=seed + 3)
    return _given(B, 3, T, 4, seed) | {"initial_states": states, "return_final_states": True}


@example(causal_conv1d, "causal_conv1d, channels last, seq_idx")
def _example_seq_idx(B: int, T: int, seed: int) -> Arguments:
    given = _given(B, 5, T, 6, seed, torch.bfloat16)
    given["x"] = given["x"].mT.contiguous().mT
    return given | {"seq_idx": (random(B, T, seed=seed + 4) > 0).int().cumsum(1) - 1}


@example(causal_conv1d, "causal_conv1d, packed", packed=True)
def _example_packed(B: int, T: int, seed: int) -> Arguments:
    cu_seqlens = torch.tensor([0, 5, 5, 7], dtype=torch.int32)
    return _given(1, 3, 7, 4, seed) | {"cu_seqlens": cu_seqlens, "initial_states": random(3, 3, 3, seed=seed + 3)}


@example(causal_conv1d, "causal_conv1d, pool", packed=True)
def _example_pool(B: int, T: int, seed: int) -> Arguments:
    given = _given(1, 3, 7, 4, seed)
    given["x"] = given["x"].mT.contiguous().mT
    return given | {
        "cu_seqlens": torch.tensor([0, 5, 5, 7]),
        "conv_state": random(5, 3, 3, seed=seed + 3).mT.contiguous().mT,
        "state_indices": torch.tensor([3, -1, 0]),
        "has_initial_state": torch.tensor([True, True, False]),
    }


@example(call_operator("causal_conv1d_backward"))
def _example_backward(B: int, T: int, seed: int) -> Arguments:
    given = _given(B, 3, T, 4, seed)
    del given["activation"]
    given |= {"silu": True, "seq_idx": None, "cu_seqlens": None, "initial_states": random(B, 3, 3, seed=seed + 3)}
    return given | {"grad": random(B, 3, T, seed=seed + 4), "grad_states": random(B, 3, 3, seed=seed + 5)}


# ---- Measurements


@dataclass(frozen=True)
class Shape:
    batch: int
    channels: int
    tokens: int
    width: int = 4
    channels_last: bool = False
    packed: tuple[int, ...] = ()  # lengths of sequences
    by_index: bool = False  # seq_idx gives them

    @property
    def layout(self) -> str:
        return "channels last" if self.channels_last else "tokens last"

    @property
    def name(self) -> str:
        options = f" W={self.width}" * (self.width != 4) + " packed" * bool(self.packed) + " by seq_idx" * self.by_index
        return f"{self.batch}×{self.channels}×{self.tokens}{options} {self.layout}"


_LENGTHS = tuple(range(64, 4064, 160))  # 25 sequences of 64 to 3904 tokens
GPU_SHAPES = (
    Shape(1, 8192, 32768),
    Shape(8, 5120, 2048),
    Shape(8, 5120, 2048, width=8),
    Shape(1, 8192, sum(_LENGTHS), packed=_LENGTHS),
    Shape(1, 8192, sum(_LENGTHS), packed=_LENGTHS, by_index=True),
)
CPU_SHAPES = (Shape(2, 8, 40), Shape(1, 8, 40, packed=(2, 38)), Shape(1, 8, 40, packed=(2, 38), by_index=True))
_DIFFERENTIATED = ("x", "weight", "bias")


def _inputs(device: str, shape: Shape) -> Inputs:
    B, D, L = shape.batch, shape.channels, shape.tokens
    x: Inputs = {
        "x": normal(B, L, D, device=device).mT if shape.channels_last else normal(B, D, L, device=device),
        "weight": normal(D, shape.width, device=device) / shape.width**0.5,
        "bias": normal(D, device=device),
        "activation": "silu",
    }
    if shape.by_index:
        ids = [i for i, length in enumerate(shape.packed) for _ in range(length)]
        x["seq_idx"] = torch.tensor([ids], device=device, dtype=torch.int32)
    elif shape.packed:
        x["cu_seqlens"] = torch.tensor([0, *accumulate(shape.packed)], device=device, dtype=torch.int32)
    return x


def _measured_call(convolve: Callable[..., Any], x: Inputs) -> tuple[Call, Callable[[], Outcome]]:
    """The call to time, and a function that returns output and gradients for either pass."""
    leaves = {name: x[name].detach().requires_grad_() for name in _DIFFERENTIATED}
    given = {name: value for name, value in x.items() if name != "backward"}
    grad = torch.empty_like(x["x"]).normal_() if x["backward"] else None

    def outcome() -> Outcome:
        out = convolve(**given | leaves)
        weights = torch.cos(torch.arange(out.shape[-1], device=out.device)).to(out.dtype).expand(out.shape).clone()
        found = torch.autograd.grad(out, list(leaves.values()), weights)
        return out.detach(), torch.cat([(g / g.abs().mean()).flatten().float() for g in found])

    if grad is None:
        return partial(convolve, **given), outcome
    out = convolve(**given | leaves)
    return partial(torch.autograd.grad, out, list(leaves.values()), grad, retain_graph=True), outcome


def _work(device: str, shape: Shape, backward: bool) -> Work:
    x = _inputs(device, shape) | {"backward": backward}
    small = replace(shape, channels=min(shape.channels, 64), tokens=sum(shape.packed) or min(shape.tokens, 512))
    call, _ = _measured_call(causal_conv1d, x)
    checked = _inputs(device, small) | {"backward": backward}
    moved = (3 if backward else 2) * size(x["x"])
    return Work(call, moved, 0, x, lambda given: _measured_call(causal_conv1d, given)[1](), checked)


def _causal_conv1d(x: Inputs) -> Peer:
    """The CUDA kernels of the package causal-conv1d."""
    if "cu_seqlens" in x:
        raise Absent("it has no packed sequences")
    if "seq_idx" in x and x["x"].stride(1) != 1:
        raise Absent("it takes seq_idx only where channels are contiguous")
    if x["weight"].shape[1] > 4:
        raise Absent("it takes 2 to 4 taps")
    call, outcome = _measured_call(import_peer("causal_conv1d", "causal_conv1d_fn"), x)
    return Peer(call, lambda _: outcome())


@bench({"causal-conv1d": _causal_conv1d}, "gradients", operator="causal_conv1d")
def _measured(device: str) -> Iterator[Case]:
    for shape in GPU_SHAPES if device == "cuda" else CPU_SHAPES:
        for channels_last in (False, True):
            for backward in (False, True):
                each = replace(shape, channels_last=channels_last)
                name = f"{each.name}, {'backward' if backward else 'forward'}"
                yield Case(name, partial(_work, device, each, backward), kind=each.layout)


# The defaults of `python -m gdn_cuda explain causal_conv1d`: a Mamba layer, in either layout.
typical_call(
    causal_conv1d,
    {"B": 8, "D": 5120, "L": 2048, "W": 4},
    "x: B D L mn; weight: D W; bias: D",
    "x: B D L; weight: D W; bias: D",
)


@sanitizes(
    *("causal_conv", "causal_conv_channels_last", "causal_conv_tile", "causal_conv_backward"),
    *("causal_conv_backward_rows", "causal_conv_backward_columns"),
    *("causal_states", "causal_states_backward"),
)
def _sanitized() -> None:
    """Both layouts, rows with and without whole vectors, few and many taps, short packed sequences, seq_idx, pools."""
    for channels_last in (False, True):
        for D, L, W in ((136, 272, 4), (40, 272, 7), (5, 131, 4), (9, 100, 12)):
            for dtype in (torch.bfloat16, torch.float32):
                x = draw(1, L, D, dtype=dtype).mT if channels_last else draw(1, D, L, dtype=dtype)
                given = (x, draw(D, W), draw(D))
                offsets = torch.tensor([0, 2, 2, 70, L - 3], device="cuda")
                ids = torch.arange(L, device="cuda")[None] // 40 - 1
                cases: tuple[Inputs, ...] = ({}, {"cu_seqlens": offsets}, {"seq_idx": ids})
                for options in cases:
                    initial = draw(4 if "cu_seqlens" in options else 1, D, W - 1)
                    leaves = [y.detach().requires_grad_() for y in (*given, initial)]
                    options |= {"activation": "silu"}
                    alone = causal_conv1d(*leaves[:3], **options)
                    torch.autograd.grad(alone, leaves[:3], torch.ones_like(alone))
                    options |= {"initial_states": leaves[3], "return_final_states": True}
                    out, states = causal_conv1d(*leaves[:3], **options)
                    torch.autograd.grad((out, states), leaves, (torch.ones_like(out), torch.ones_like(states)))
                slots, fresh = torch.tensor([2, -1, 0, 4], device="cuda"), torch.tensor([1, 1, 0, 1], device="cuda")
                pool = {"conv_state": draw(5, D, W), "state_indices": slots, "has_initial_state": fresh}
                causal_conv1d(*given, cu_seqlens=offsets, **pool)
