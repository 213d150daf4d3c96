"""One or several tokens through a causal convolution: the operator, its reference, examples, benchmark and sanitizer calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..operators import verify
from ..operators.autograd import keep_autograd_out, with_autograd
from ..operators.calls import typical_call
from ..operators.examples import Arguments, example
from ..operators.examples import draw as drawn
from ..operators.hostile import hostile_indices
from ..operators.measure import (
    Absent,
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
    tunable,
)
from ..operators.registration import register
from ..operators.schema import refuse, require_tensor
from ..operators.state_slots import accepted_column, check_slots, is_slot
from ..operators.tunable import TORCH_DTYPES, Shape, Tunable

_NAME = "causal_conv1d_update"
_ACTIVATIONS = (None, "silu", "swish")


# ---- The reference: sequence by sequence, in fp64


def _sequences(x: Any) -> list[Tensor]:
    """Views (D, T) of the tokens of each sequence."""
    if x.cu_seqlens is None:
        return list(x.x.unsqueeze(2) if x.x.dim() == 2 else x.x)
    packed = x.x.T if x.x.dim() == 2 else x.x[0]
    offsets = x.cu_seqlens.tolist()
    return [packed[:, start:end] for start, end in pairwise(offsets)]


def _history_columns(x: Any, n: int, columns: int) -> Tensor:
    """Columns of the W − 1 inputs before the first token of sequence n."""
    history = x.weight.shape[1] - 1
    if x.cache_seqlens is not None:
        return (int(x.cache_seqlens[n]) % columns + torch.arange(-history, 0)) % columns
    first = columns - history
    if x.num_accepted_tokens is not None:
        first = max(int(x.num_accepted_tokens[n]), 1) - 1
    return torch.arange(first, first + history)


def _push(x: Any, n: int, state: Tensor, history: Tensor, tokens: Tensor) -> None:
    """Writes the state (D, S) of sequence n after its tokens; there is at least one."""
    columns, count = state.shape[1], tokens.shape[1]
    if x.cache_seqlens is not None:
        kept = tokens[:, max(count - columns, 0) :]
        first = int(x.cache_seqlens[n]) % columns
        state[:, (first + torch.arange(count - kept.shape[1], count)) % columns] = kept.to(state.dtype)
    elif x.num_accepted_tokens is not None:
        after = torch.cat([history, tokens.to(state.dtype)], 1)[:, 1:]
        state[:, : after.shape[1]] = after
    else:
        every = torch.cat([state, tokens.to(state.dtype)], 1)
        state.copy_(every[:, every.shape[1] - columns :])


def _check_indices(x: Any, slots: Tensor, sequences: list[Tensor]) -> None:
    """The checks that depend on values, which the C++ checks do not read."""
    check_slots(_NAME, "conv_state_indices", slots, x.conv_state.shape[0], x.null_slot)
    if x.num_accepted_tokens is None:
        return
    room = x.conv_state.shape[2] - x.weight.shape[1] + 2
    accepted_column(_NAME, x, len(sequences), max(room, 1), slots.device)
    for n in is_slot(slots, x.null_slot).nonzero()[:, 0].tolist():
        if sequences[n].shape[1] > room:
            raise IndexError(f"{_NAME}: cu_seqlens: expected at most {room} tokens a sequence, got {sequences[n].shape[1]}")


@torch.no_grad()
def _reference(x: Any) -> Tensor:
    """Rounds states when it stores them, not between the tokens of a call."""
    sequences = _sequences(x)
    slots = torch.arange(len(sequences)) if x.conv_state_indices is None else x.conv_state_indices.to(torch.int64)
    _check_indices(x, slots, sequences)
    out = torch.zeros_like(x.x, dtype=torch.float64)
    results = _sequences(_With(x, out))
    runs = is_slot(slots, x.null_slot) if x.conv_state_indices is not None else torch.ones(len(sequences), dtype=torch.bool)
    weight = x.weight.to(torch.float64)
    for n, (tokens, result) in enumerate(zip(sequences, results, strict=True)):
        if not runs[n] or tokens.shape[1] == 0:
            continue
        state = x.conv_state[int(slots[n])]
        history = state[:, _history_columns(x, n, state.shape[1])]
        inputs = torch.cat([history.to(torch.float64), tokens.to(torch.float64)], 1)
        y = (inputs.unfold(1, weight.shape[1], 1) * weight[:, None]).sum(2)
        y = y if x.bias is None else y + x.bias.to(torch.float64)[:, None]
        result.copy_(F.silu(y) if x.silu else y)
        _push(x, n, state, history, tokens)
    return out.to(x.x.dtype)


class _With:
    """Another tensor with the sequences of x."""

    def __init__(self, x: Any, other: Tensor):
        self.x, self.cu_seqlens = other, x.cu_seqlens


_update = register(
    _NAME, reference=_reference, defaults={"activation": None}, differentiable="causal_conv1d with initial_states"
)
keep_autograd_out(_update)


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
    *,
    num_accepted_tokens: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    null_slot: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """One token or several of every sequence through a causal convolution, with states updated in place: the serving step.

    Formula:
        inputs = the W − 1 previous inputs, then x
        z[d, t] = bias[d] + Σ_k weight[d, k] · inputs[d, t + k],  out = z, or z · sigmoid(z) for "silu" and "swish"

    Shapes:
        x, out: (B, D) or (B, D, T), fp32, bf16 or fp16, any strides; out is like x and may be x itself
        cu_seqlens: (sequences + 1,), int32 or int64: packed sequences; x is (tokens, D) or (1, D, tokens)
        conv_state: (B or slots, D, S), S at least W − 1; fp32, bf16 or fp16, any strides
        weight: (D, W), W from 1 to 32; bias: (D,); fp32, bf16 or fp16
        cache_seqlens, num_accepted_tokens: (B or sequences,), int32 or int64
        conv_state_indices: (B or sequences,), int32 or int64, any stride; None: sequence n has state n

    Parameters:
        activation: "silu" or its other name "swish", or None
        null_slot: a slot that marks padding, as negative slots do; None: only negative slots do

    The columns of the state hold the previous inputs, and receive the tokens, by one of three rules:
        default: the previous inputs are the last W − 1 columns, and the tokens push out the oldest columns: the state is the
          last S inputs
        cache_seqlens: the previous inputs are the W − 1 columns before column cache_seqlens mod S, circularly; token t goes to
          column (cache_seqlens + t) mod S
        num_accepted_tokens, for speculative verify: the previous inputs are the W − 1 columns from max(accepted, 1) − 1 on.
          Columns 0, 1, … get these inputs except the first, and then all T tokens, W − 2 + T columns in all. The next call's
          num_accepted_tokens says after how many of the T tokens it continues

    The call does not synchronize and allocates only out, so it can be captured in a CUDA graph. CPU tensors may also be fp64.

    Edge cases:
        A negative slot, or null_slot, skips its sequence: output 0, no slot touched. A sequence without tokens keeps its state.
        A slot past the pool touches nothing: CPU tensors raise IndexError; on a GPU the sequence's output is NaN. The same
          holds for more tokens than the state has columns for with num_accepted_tokens. Too high a num_accepted_tokens raises
          on CPU tensors, and is clamped on a GPU.
        Tokens after the last packed sequence have the output 0. Two sequences with the same slot race.

    Example:
        >>> state, weight = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[100.0, 10.0, 1.0]])
        >>> gdn_cuda.causal_conv1d_update(torch.tensor([[3.0]]), state, weight), state
        (tensor([[123.]]), tensor([[[2., 3.]]]))
        >>> gdn_cuda.causal_conv1d_update(torch.tensor([[[4.0, 5.0]]]), state, weight), state
        (tensor([[[234., 345.]]]), tensor([[[4., 5.]]]))
    """
    if activation not in _ACTIVATIONS:
        refuse(_NAME, "activation", "None, 'silu' or 'swish'", repr(activation))
    if out is None:
        require_tensor(_NAME, "x", x)
        out = torch.empty_like(x)  # with x's layout
    silu = activation is not None
    slots = (cache_seqlens, conv_state_indices, num_accepted_tokens, cu_seqlens, null_slot)
    with_autograd(_update, (x, conv_state, weight, out, bias, *slots, silu))
    return out


# ---- Examples

_CHANNELS = 24


def _inputs(
    B: int,
    T: int | None,
    seed: int,
    W: int = 4,
    columns: int | None = None,
    slots: int = 0,
    io: torch.dtype = torch.float32,
    state: torch.dtype | None = None,
) -> Arguments:
    """T = None: one token, without a token dimension."""
    columns = W - 1 if columns is None else columns
    return {
        "x": drawn(*((B, _CHANNELS) if T is None else (B, _CHANNELS, T)), seed=seed, dtype=io),
        "conv_state": drawn(max(slots, B), _CHANNELS, columns, seed=seed + 1, dtype=state or io),
        "weight": drawn(_CHANNELS, W, seed=seed + 2, dtype=io),
        "bias": drawn(_CHANNELS, seed=seed + 3, dtype=io),
    }


@example(causal_conv1d_update)
def _one_token(B: int, T: int, seed: int) -> Arguments:
    slots = torch.arange(B, dtype=torch.int32).flip(0) + 1
    slots[1:2] = -1  # a padding row
    x = _inputs(B, None, seed, slots=B + 2, io=torch.bfloat16)
    return x | {"conv_state_indices": slots, "null_slot": 0, "activation": "silu"}


@example(causal_conv1d_update, "causal_conv1d_update-tokens")
def _tokens(B: int, T: int, seed: int) -> Arguments:
    return _inputs(B, T, seed, W=7, columns=9, state=torch.float16)


@example(causal_conv1d_update, "causal_conv1d_update-circular")
def _circular(B: int, T: int, seed: int) -> Arguments:
    x = _inputs(B, T, seed, columns=5)
    return x | {"cache_seqlens": torch.arange(B, dtype=torch.int32) * 3, "activation": "swish"}


@example(causal_conv1d_update, "causal_conv1d_update-verify")
def _verify(B: int, T: int, seed: int) -> Arguments:
    """States (slots, S, D), the layout of engines."""
    x = _inputs(B, T, seed, columns=T + 3, io=torch.bfloat16)
    x["conv_state"] = x["conv_state"].mT.contiguous().mT
    return x | verify.counts(B, T, torch.int64) | {"activation": "silu"}


@example(causal_conv1d_update, "causal_conv1d_update-packed", packed=True)
def _packed(B: int, T: int, seed: int) -> Arguments:
    x = _inputs(7, None, seed, W=3, columns=6, slots=5)
    offsets = torch.tensor([0, 2, 2, 6], dtype=torch.int32)
    more = {"conv_state_indices": torch.tensor([4, 0, 2]), "num_accepted_tokens": torch.tensor([1, 2, 3])}
    return x | {"cu_seqlens": offsets} | more


# The defaults of `python -m gdn_cuda explain causal_conv1d_update`: Qwen3-Next's layers in a server; and a verify.
typical_call(
    causal_conv1d_update,
    {"B": 64, "D": 8192, "S": 3, "W": 4, "T": 1},
    "x: B D; conv_state: B D S mn; weight: D W",
    "x: B D T mn; conv_state: B D S mn; weight: D W; num_accepted_tokens: B i32",
)


# ---- Benchmarks


def _causal_conv1d(x: Inputs) -> Peer:
    """The CUDA kernel of the package causal-conv1d."""
    step = import_peer("causal_conv1d", "causal_conv1d_update")
    if "num_accepted_tokens" in x:
        raise Absent("it has no window for verify")
    state = x["conv_state"].clone(memory_format=torch.preserve_format)
    given = {name: y for name, y in x.items() if name not in ("conv_state", "out")}
    return Peer(lambda: step(conv_state=state, **given), lambda returned: (returned, state))


@bench({"causal-conv1d": _causal_conv1d}, operator=_NAME)
def _measured(device: str) -> Iterator[Case]:
    on_gpu = device == "cuda"
    channels = 8192 if on_gpu else 512
    for rows, batch in product((True, False), (1, 16, 64, 256, 1024) if on_gpu else (1, 4)):
        kind = f"state {'(slots, S, D)' if rows else '(slots, D, S)'}"
        yield Case(f"B={batch} D={channels} W=4 {kind}", partial(_work, device, batch, channels, rows), kind=kind)
    for batch, tokens in product((1, 64) if on_gpu else (1,), (2, 4, 8)):
        kind = "state (slots, S, D)"
        shape = f"B={batch} T={tokens} D={channels} W=4 {kind}, verify"
        yield Case(shape, partial(_work, device, batch, channels, True, tokens), kind=kind)


def _work(device: str, batch: int, channels: int, rows: bool, tokens: int | None = None, W: int = 4) -> Work:
    columns = W - 1 if tokens is None else W - 2 + tokens
    state = normal(batch, columns, channels, device=device).mT
    x: Inputs = {
        "x": normal(batch, channels, device=device) if tokens is None else normal(batch, tokens, channels, device=device).mT,
        "conv_state": state if rows else state.contiguous(),
        "weight": normal(channels, W, device=device),
        "bias": normal(channels, device=device),
        "activation": "silu",
        "conv_state_indices": torch.arange(batch, device=device, dtype=torch.int32),
    }
    if tokens is not None:
        x |= verify.measured_counts(device, batch)
    x["out"] = torch.empty_like(x["x"])

    def outcome(inputs: Inputs) -> Outcome:
        copy = inputs["conv_state"].clone(memory_format=torch.preserve_format)
        return causal_conv1d_update(**inputs | {"conv_state": copy, "out": None}), copy

    read = batch * (W - 1) * channels * state.element_size()
    moved = read + size(state, x["x"], x["out"], x["weight"], x["bias"])
    return Work(partial(causal_conv1d_update, **x), moved, 0, x, outcome, x)


# ---- Tuning: sequences of a block, with states (slots, S, D)


@dataclass(frozen=True)
class _Tokens(Shape):
    batch: int = 256
    channels: int = 8192
    width: int = 4


def _tuned_problem(shape: _Tokens, dtype: str, shared: bool) -> str:
    whole = "true" if shape.channels * TORCH_DTYPES[dtype].itemsize % 16 == 0 else "false"
    return (
        f"{{.sequences = {shape.batch}, .channels = {shape.channels}, .width = {shape.width}, .columns = {shape.width - 1}, "
        f".io = DType::{dtype}, .state = DType::{dtype}, .window = conv::StateWindow::last, .vectors = {whole}, "
        f".columns_vectors = {whole}, .channels_vectors = false}}"
    )


def _tuned_inputs(shape: _Tokens, dtype: torch.dtype, shared: bool, device: str) -> dict[str, Any]:
    return {
        "x": normal(shape.batch, shape.channels, device=device, dtype=dtype),
        "conv_state": normal(shape.batch, shape.width - 1, shape.channels, device=device, dtype=dtype).mT,
        "weight": normal(shape.channels, shape.width, device=device, dtype=dtype),
        "bias": normal(shape.channels, device=device, dtype=dtype),
        "activation": "silu",
    }


tunable(
    _NAME,
    Tunable(
        "conv/causal_step",
        _Tokens,
        dict.fromkeys(("bf16", "f16", "f32"), 1e-6),  # the same bits
        _tuned_problem,
        _tuned_inputs,
        in_place=("conv_state",),
    ),
)


# ---- compute-sanitizer


@sanitizes("causal_step", "causal_step_staged", "causal_step_any")
def _sanitized() -> None:
    """Both layouts of the state, rows with and without whole vectors, every window, and several sequences per block."""
    for io, rows, channels, W in product((torch.bfloat16, torch.float32), (True, False), (264, 37), (3, 4, 7)):
        for window in ("last", "circular", "verify"):
            _sanitized_call(5, channels, W, io, rows, window, tokens=3)
    for rows, io in product((True, False), (torch.bfloat16, torch.float16, torch.float32)):
        _sanitized_call(3000, 264, 4, io, rows, "last", tokens=None)


def _sanitized_call(batch: int, channels: int, W: int, io: torch.dtype, rows: bool, window: str, tokens: int | None) -> None:
    columns = W - 1 if window == "last" else W + 2
    state = draw(4, columns, channels, dtype=io).mT
    slots = hostile_indices(batch)
    window_arguments = {"last": {}, "circular": {"cache_seqlens": slots}, "verify": verify.hostile_counts(batch)}[window]
    causal_conv1d_update(
        draw(batch, channels, dtype=io) if tokens is None else draw(batch, tokens, channels, dtype=io).mT,
        state if rows else state.contiguous(),
        draw(channels, W, dtype=io),
        draw(channels),
        "silu",
        conv_state_indices=slots,
        **window_arguments,
    )
