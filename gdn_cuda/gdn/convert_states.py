"""States between dtypes: the operator, its reference, and examples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..operators import operator
from ..operators.calls import typical_call
from ..operators.examples import Arguments, example, random
from ..operators.state_slots import check_slots, is_slot
from .state_codes import GROUP, decode, encode

_NAME = "convert_states"
Converted = tuple[Tensor, Tensor | None]


def _rows(x: Any) -> Any:
    given = x.state_indices if x.write_indices is None else x.write_indices
    return x.states.shape[0] if given is None else given.shape[0]


def _slots(x: Any) -> tuple[Tensor, Tensor]:
    """The slots to read and to write, −1 for padding. Raises IndexError if one is out of range."""
    found = []
    for name, pool in (("state_indices", x.states), ("write_indices", x.out)):
        slots = getattr(x, name)
        if slots is None:
            found.append(torch.arange(_rows(x), device=x.states.device))
            continue
        check_slots(_NAME, name, slots, pool.shape[0], x.null_slot)
        found.append(slots.to(torch.int64).masked_fill(~is_slot(slots, x.null_slot), -1))
    return found[0], found[1]


def _converted(x: Any, slots: Tensor) -> Converted:
    states = x.states[slots]
    if x.scales is not None:
        if x.dtype == torch.int8:
            return states, x.scales[slots]
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        states = decode(states, x.scales[slots], wide)
    return encode(states) if x.dtype == torch.int8 else (states.to(x.dtype), None)


def _reference(x: Any) -> Converted:
    """New states, and their scales if they are int8; 0 where the slot is skipped."""
    read, _ = _slots(x)
    active = read >= 0
    states, scales = _converted(x, read.clamp(min=0))
    return tuple(  # type: ignore[return-value]
        None if y is None else torch.where(active.view(-1, *[1] * (y.dim() - 1)), y, 0) for y in (states, scales)
    )


def _shapes(x: Any, rows: Any = None) -> tuple[Tensor, Tensor]:
    rows = 0 if x.out is not None else _rows(x)
    columns = -(-x.states.shape[-1] // GROUP)
    scales = (rows if x.dtype == torch.int8 else 0, *x.states.shape[1:-1], columns)
    return x.states.new_empty((rows, *x.states.shape[1:]), dtype=x.dtype), x.states.new_empty(scales, dtype=torch.float32)


def _on_cpu(x: Any) -> tuple[Tensor, Tensor]:
    made, made_scales = _shapes(x)
    if x.out is None:
        states, scales = _reference(x)
        return made.copy_(states), made_scales if scales is None else made_scales.copy_(scales)
    read, written = _slots(x)
    moved = (read >= 0) & (written >= 0)
    states, scales = _converted(x, read[moved])
    x.out[written[moved]] = states
    if scales is not None:
        x.out_scales[written[moved]] = scales.to(x.out_scales.dtype)
    return made, made_scales


def _results(found: Any, dtype: torch.dtype, out: Tensor | None, out_scales: Tensor | None) -> Converted:
    states, scales = found
    if out is not None:
        return out, out_scales
    return states, scales if dtype == torch.int8 else None


@operator(reference=_reference, shapes=_shapes, cpu=_on_cpu, results=_results)
def convert_states(
    states: Tensor,
    dtype: torch.dtype,
    scales: Tensor | None = None,
    *,
    state_indices: Tensor | None = None,
    write_indices: Tensor | None = None,
    null_slot: int | None = None,
    out: Tensor | None = None,
    out_scales: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """States in another dtype, all or those of some slots. Returns `(states, scales)`, the scales None unless `dtype` is int8.

    Formula:
        of int8: x = scale · code, a scale for every 32 contiguous columns of a row
        to int8: scale = max |x| / 127 of the 32 columns, code = x / scale, rounded to nearest even

    Shapes:
        states: (slots, Hv, dv, dk), fp32, bf16, fp16 or int8, of any strides; each state of int8 is contiguous, and its dk is
          a multiple of 32
        scales: (slots, Hv, dv, dk / 32), fp32, if states are int8
        state_indices: (N,), int32 or int64: the slots to read; None: all, in order
        write_indices: (N,), int32 or int64: the slots of `out` to write; None: all, in order
        out: (N, Hv, dv, dk), or with write_indices (slots, Hv, dv, dk), of `dtype`; out_scales: its scales, with int8

    Parameters:
        dtype: fp32, bf16, fp16 or int8
        null_slot: a slot that means padding, as negative ones do; None: only negative ones do
        out, out_scales: where results are written; None allocates them

    Mamba-2's states (slots, H, P, N) are converted as they are: a scale for every 32 states of a channel.

    One launch. A pool of int8 takes dk · (1 + 4 / 32) bytes a row, 0.56 of one of bf16 (docs/integrations.md). Between int8 and
    int8, codes and scales are copied. Safe under CUDA-graph capture once its kernel is loaded, with `out`.

    Edge cases:
        A new state is 0 if its slot is negative or equal to `null_slot`. With `out`, nothing is written for such a slot to read
          or to write.
        A slot past the pool raises IndexError on CPU tensors. On a GPU nothing is read or written for it, and a new state of it
          is NaN.
        To int8: a group of zeros, or of magnitudes below 1.5e-36, has the scale 0 and is 0. An infinity becomes the largest
          finite number, ±3.4e38, and the rest of its group is rounded beside that. A NaN makes the scale NaN, and so the group.
          Codes of finite states never give infinities or NaN.
        A scale of 0 reads as 0, whatever the codes are.

    Example:
        >>> states = torch.randn(3, 2, 16, 64)
        >>> codes, scales = gdn_cuda.convert_states(states, torch.int8)
        >>> codes.dtype, scales.shape
        (torch.int8, torch.Size([3, 2, 16, 2]))
        >>> back, _ = gdn_cuda.convert_states(codes, torch.float32, scales)
        >>> bool(((back - states).abs() <= 0.51 * scales.repeat_interleave(32, -1)).all())
        True
    """


# ---- Examples


def _given(B: int, seed: int, dtype: torch.dtype) -> Arguments:
    states = random(B + 2, 2, 4, 64, seed=seed)
    if dtype != torch.int8:
        return {"states": states.to(dtype)}
    codes, scales = encode(states)
    return {"states": codes, "scales": scales}


@example(convert_states)
def _example(B: int, T: int, seed: int) -> Arguments:
    return _given(B, seed, torch.bfloat16) | {"dtype": torch.int8}


@example(convert_states, "convert_states, from int8")
def _example_from_codes(B: int, T: int, seed: int) -> Arguments:
    slots = torch.arange(B).flip(0)
    slots[:1] = -1
    return _given(B, seed, torch.int8) | {"dtype": torch.float32, "state_indices": slots}


@example(convert_states, "convert_states, out given")
def _example_with_out(B: int, T: int, seed: int) -> Arguments:
    codes, scales = encode(random(B, 2, 4, 64, seed=seed + 1))
    slots = torch.arange(B, dtype=torch.int32).flip(0)
    states = _given(B, seed, torch.float32) | {"state_indices": slots, "dtype": torch.int8}
    return states | {"out": codes, "out_scales": scales}


typical_call(
    convert_states,
    {"B": 64, "slots": 256, "Hv": 32, "dk": 128, "dv": 128},
    "states: slots Hv dv dk f32; state_indices: B i32; dtype = i8",
)
