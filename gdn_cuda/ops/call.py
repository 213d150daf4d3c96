"""What functions with gradients, `stream=` and `out=` do around their operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

import torch
from torch import Tensor


def as_one(function: str, tensors: Mapping[str, Tensor], at_least: torch.dtype | None = None) -> tuple[Tensor, ...]:
    """All in the dtype that torch promotes them to, with `at_least`, on the one device that they share."""
    first, like = next(iter(tensors.items()))
    for argument, x in tensors.items():
        if not isinstance(x, Tensor) or not (x.is_floating_point() or x.is_complex()):
            got = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"{function}: {argument}: expected a real or complex floating-point tensor, got {got}")
        if x.device != like.device:
            raise ValueError(f"{function}: {argument}: expected {like.device}, the device of {first}, got {x.device}")
    dtypes = [x.dtype for x in tensors.values()]
    dtype = reduce(torch.promote_types, dtypes if at_least is None else [*dtypes, at_least])
    if dtype == torch.complex32:
        dtype = torch.complex64
    return tuple(x.to(dtype) for x in tensors.values())


def call(
    function: str,
    run: Callable[[Tensor | None], Tensor],
    stream: torch.cuda.Stream | None,
    out: Tensor | None,
    tensors: Mapping[str, Tensor],
) -> Tensor:
    """`run(out)`, on `stream` if there is one.

    A stream's work starts behind what the current stream holds now, so inputs are ready. What it reads and writes is not given
    to others before it is done with it, and its result not before the current stream is.
    """
    like = next(iter(tensors.values()))
    if out is not None and isinstance(like, Tensor) and out.device != like.device:
        raise ValueError(f"{function}: out: expected {like.device}, the device of the inputs, got {out.device}")
    if out is not None and torch.is_grad_enabled():
        for argument, x in {**tensors, "out": out}.items():
            if x.requires_grad:
                raise ValueError(f"{function}: out: expected no tensor that requires a gradient with it, got {argument}")
    if stream is None:
        return run(out)
    given = [x for x in (*tensors.values(), out) if isinstance(x, Tensor)]
    _check_stream(function, stream, given[0].device)
    current = torch.cuda.current_stream(given[0].device)
    if stream == current:
        return run(out)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        result = run(out)
    for x in given:
        x.record_stream(stream)
    result.record_stream(current)
    return result


def _check_stream(function: str, stream: object, device: torch.device) -> None:
    if torch.compiler.is_compiling():
        raise ValueError(f"{function}: stream: expected None inside torch.compile (enter the stream around it), got {stream}")
    if device.type != "cuda":
        raise ValueError(f"{function}: stream: expected None, as the tensors are on {device}, got {stream}")
    if not isinstance(stream, torch.cuda.Stream) or stream.device != device:
        raise ValueError(f"{function}: stream: expected a torch.cuda.Stream of {device}, got {stream}")
