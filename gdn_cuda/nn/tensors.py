"""Tensors of modules: parameters where they are given as such, otherwise buffers."""

from __future__ import annotations

from torch import Tensor, nn


def keep(module: nn.Module, name: str, x: Tensor) -> None:
    if isinstance(x, nn.Parameter):
        module.register_parameter(name, x)
    else:
        module.register_buffer(name, x)


def keep_numbers(module: nn.Module, *dimensions: str, **tensors: Tensor) -> None:
    """Keeps real or complex tensors (…, *dimensions)."""
    for name, x in tensors.items():
        if not isinstance(x, Tensor) or x.dim() < len(dimensions) or not (x.is_floating_point() or x.is_complex()):
            expected = f"a real or complex floating-point tensor (…, {', '.join(dimensions)})"
            got = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"{type(module).__name__}: {name}: expected {expected}, got {got}")
        keep(module, name, x)
