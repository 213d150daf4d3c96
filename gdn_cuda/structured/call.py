"""Dtypes, broadcasting, `stream=` and `out=` of functions around their operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from ..operators.caller import renamed
from ..operators.schema import require_tensor, require_tensors
from .reference_common import broadcast_shapes

_COMPUTED = {torch.float32, torch.float64, torch.complex64, torch.complex128}


def as_one(function: str, tensors: Mapping[str, Tensor], at_least: torch.dtype | None = None) -> tuple[Tensor, ...]:
    """The tensors in the dtype that torch promotes them and `at_least` to; raises if they are on different devices."""
    given = tuple(tensors.values())
    is_converted = not as_they_are(*given) or (at_least is not None and not given[0].is_complex())
    if is_converted:
        _check_numbers(function, tensors)
    device = given[0].device
    for x in given[1:]:
        if x.device != device:
            _refuse_devices(function, tensors)
    if not is_converted:  # torch takes 0.9 us to find that out
        return given
    dtypes = [x.dtype for x in tensors.values()]
    dtype = reduce(torch.promote_types, dtypes if at_least is None else [*dtypes, at_least])
    if dtype == torch.complex32:
        dtype = torch.complex64
    return tuple(x.to(dtype) for x in tensors.values())


def _refuse_devices(function: str, tensors: Mapping[str, Tensor]) -> None:
    (first, like), *others = tensors.items()
    for argument, x in others:
        if x.device != like.device:
            raise ValueError(f"{function}: {argument}: expected {like.device}, the device of {first}, got {x.device}")


def _check_numbers(function: str, tensors: Mapping[str, Tensor]) -> None:
    for argument, x in tensors.items():
        if not isinstance(x, Tensor) or not (x.is_floating_point() or x.is_complex()):
            got = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"{function}: {argument}: expected a real or complex floating-point tensor, got {got}")


def direct(function: str, arguments: tuple[str, ...], operator: Callable[..., Any], *given: Any) -> Any:
    """Calls `operator(*given)`; `arguments` are the names of the first ones in the public function, for errors."""
    try:
        return operator(*given)
    except Exception as error:
        raise_in_words_of(function, dict(zip(arguments, given, strict=False)), error)
        raise


def raise_in_words_of(function: str, tensors: Mapping[str, Any], error: Exception) -> None:
    """Returns without raising if the error is the function's own, or torch's about something else."""
    if isinstance(error, ValueError) and str(error).startswith(f"{function}: "):
        return
    require_tensors(function, **tensors)
    if found := renamed(error, function):
        raise found from error


def as_they_are(*tensors: object) -> bool:
    """Whether these are tensors of the same dtype, one that kernels support."""
    dtype = getattr(tensors[0], "dtype", None)
    if dtype not in _COMPUTED:
        return False
    for x in tensors:  # noqa: SIM110  (a generator is slower)
        if not isinstance(x, Tensor) or x.dtype != dtype:
            return False
    return True


def computed(function: str, tensors: Mapping[str, Tensor]) -> tuple[torch.dtype, tuple[Tensor, ...]]:
    """The dtype of the result, and the tensors in the dtype of the computation."""
    if as_they_are(*tensors.values()):
        return next(iter(tensors.values())).dtype, tuple(tensors.values())
    same = as_one(function, {argument: _floating(x, tensors) for argument, x in tensors.items()})
    dtype = same[0].dtype
    return dtype, tuple(x.float() for x in same) if dtype in (torch.bfloat16, torch.float16) else same


def _floating(x: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    """Converts integers and booleans to the dtype of the floating-point tensors, or the default, as torch's division does."""
    if not isinstance(x, Tensor) or x.is_floating_point() or x.is_complex():
        return x
    given = [y.dtype for y in tensors.values() if isinstance(y, Tensor) and (y.is_floating_point() or y.is_complex())]
    dtype = torch.get_default_dtype()
    for number, other in enumerate(given):
        dtype = torch.promote_types(dtype, other) if number else other
    return x.to(dtype)


def broadcast_leading(function: str, tensors: Mapping[str, tuple[Tensor, int]]) -> torch.Size:
    """The broadcast leading dimensions of tensors, each paired with its number of other dimensions."""
    leading, before = torch.Size(), ""
    for argument, (x, last) in tensors.items():
        shape = x.shape[: x.dim() - last]
        if shape and shape != leading:
            if any(a != b and a != 1 and b != 1 for a, b in zip(leading[::-1], shape[::-1], strict=False)):
                expected = f"leading dimensions that broadcast with those of {before}"
                raise ValueError(f"{function}: {argument}: expected {expected}, got {tuple(x.shape)}")
            leading = torch.Size(broadcast_shapes(leading, shape)) if leading else shape
        before = f"{before} and {argument}" if before else argument
    return leading


def check_out(function: str, out: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Called before anything is computed."""
    if out is None or (out.shape == shape and out.dtype == dtype and out.is_contiguous()):
        return
    got = f"{tuple(out.shape)} {out.dtype}" + ("" if out.is_contiguous() else f" with strides {out.stride()}")
    raise ValueError(f"{function}: out: expected the shape of the result, {tuple(shape)}, {dtype}, contiguous, got {got}")


def finished(result: Tensor, dtype: torch.dtype, out: Tensor | None) -> Tensor:
    return result.to(dtype) if out is None else out.copy_(result)


def call(
    function: str,
    run: Callable[[Tensor | None], Tensor],
    stream: torch.cuda.Stream | None,
    out: Tensor | None,
    tensors: Mapping[str, Tensor],
) -> Tensor:
    """Calls `run(out)`, on `stream` if there is one.

    The stream first waits for the current stream, so that inputs are ready. The allocator does not reuse tensors before the
    stream has finished with them, nor the result before the current stream has.
    """
    if out is not None or stream is not None:
        _check_numbers(function, tensors)
    if out is not None:
        _check_destination(function, out, tensors)
    if stream is None:
        try:
            return run(out)
        except Exception as error:
            raise_in_words_of(function, tensors, error)
            raise
    given = [x for x in (*tensors.values(), out) if x is not None]
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


def _check_destination(function: str, out: object, tensors: Mapping[str, Tensor]) -> None:
    device = next(iter(tensors.values())).device
    require_tensor(function, "out", out)
    assert isinstance(out, Tensor)
    if out.device != device:
        raise ValueError(f"{function}: out: expected {device}, the device of the inputs, got {out.device}")
    if not torch.compiler.is_compiling() and (out.is_conj() or out.is_neg()):  # not known in compiled code
        view = "conjugate" if out.is_conj() else "negative"
        raise ValueError(f"{function}: out: expected memory that holds the numbers themselves, got a {view} view")
    if torch.is_grad_enabled():
        for argument, x in {**tensors, "out": out}.items():
            if x.requires_grad:
                raise ValueError(f"{function}: out: expected no tensor that requires a gradient with it, got {argument}")


def _check_stream(function: str, stream: object, device: torch.device) -> None:
    if torch.compiler.is_compiling():
        raise ValueError(f"{function}: stream: expected None inside torch.compile (enter the stream around it), got {stream}")
    if device.type != "cuda":
        raise ValueError(f"{function}: stream: expected None, as the tensors are on {device}, got {stream}")
    if not isinstance(stream, torch.cuda.Stream) or stream.device != device:
        raise ValueError(f"{function}: stream: expected a torch.cuda.Stream of {device}, got {stream}")
