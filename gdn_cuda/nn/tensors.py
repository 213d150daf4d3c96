"""Tensors of modules: parameters if the caller passes parameters, otherwise buffers; and states in place."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def keep(module: nn.Module, name: str, x: Tensor) -> None:
    if isinstance(x, nn.Parameter):
        module.register_parameter(name, x)
    else:
        module.register_buffer(name, x)


def keep_tensors(module: nn.Module, *dimensions: str, **tensors: Tensor) -> None:
    """Keeps real or complex tensors (…, *dimensions)."""
    for name, x in tensors.items():
        if not isinstance(x, Tensor) or x.dim() < len(dimensions) or not (x.is_floating_point() or x.is_complex()):
            expected = f"a real or complex floating-point tensor (…, {', '.join(dimensions)})"
            got = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"{type(module).__name__}: {name}: expected {expected}, got {got}")
        keep(module, name, x)


def after_token(result: Any, state: Any) -> Tensor:
    """The y of `step`, from the (y, last state) of `forward` for one token; `state` is updated in place.

    For fp64 CPU tensors, which forward supports and the step operators do not.
    """
    y, last = result
    for mine, new in zip(*((x,) if isinstance(x, Tensor) else x for x in (state, last)), strict=True):
        mine.copy_(new)
    return y[:, 0]
