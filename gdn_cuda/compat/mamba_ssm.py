"""Replaces the scans of mamba_ssm: `ops.selective_scan_interface` and `ops.triton.selective_state_update`. `install` puts them
where transformers looks for mamba_ssm's, so that its Mamba, FalconMamba, Jamba and Mamba-2 models use them.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..scan import selective_scan
from ..scan import selective_state_update as _update

__all__ = [
    "install",
    "selective_scan_fn",
    "selective_scan_ref",
    "selective_state_update",
    "selective_state_update_ref",
    "uninstall",
]
_HALF = (torch.bfloat16, torch.float16)


def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`selective_scan` with "mamba"; u, delta, z and varying B and C have one dtype, D and delta_bias are fp32.

    The last state has a gradient, and contains a constant B: there it has none, and lacks B. Gradients do not cancel where Ā is
    small, and are the same in every run. A transposed (B, L, D) is not copied, and CPU tensors work.
    """
    return selective_scan(u, delta, A, B, C, D, z, delta_bias, None, delta_softplus, return_last_state)


def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
) -> Tensor:
    """`gdn_cuda.selective_state_update` with "mamba"; A, D and dt_bias may be bf16 or fp16 too. CPU tensors work."""
    A, D, dt_bias = (None if p is None else p.float() if p.dtype in _HALF else p for p in (A, D, dt_bias))
    return _update(state, x, dt, A, B, C, D, z, dt_bias, dt_softplus, None, state_batch_indices)


# What runs without CUDA has these names there.
selective_scan_ref = selective_scan_fn
selective_state_update_ref = selective_state_update


# ---- transformers

_PACKAGE = "mamba_ssm"
# The name that transformers looks up, and how its own functions that call it end.
_LOOKED_UP = {"selective_scan_fn": "selective_scan", "selective_state_update": "selective_state_update"}
_replaced: dict[str, Any] | None = None  # by name; None where uninstalled


def install() -> contextlib.AbstractContextManager[Any]:
    """transformers 5 finds `selective_scan_fn` and `selective_state_update` here, until `uninstall`, or to the end of a `with`.

    It imports mamba_ssm and takes each function by itself: the two of an installed mamba_ssm are replaced there; without one, a
    module of that name is there that has these two only. Models that are imported already look them up again.
    """
    global _replaced
    if _replaced is None:
        package = _mamba_ssm()
        _replaced = {name: vars(package).get(name) for name in _LOOKED_UP}
        for name in _LOOKED_UP:
            setattr(package, name, globals()[name])
        _look_up_again()
    undo = contextlib.ExitStack()
    undo.callback(uninstall)
    return undo


def uninstall() -> None:
    """Undoes `install`; models that transformers has imported look again for mamba_ssm's functions."""
    global _replaced
    if _replaced is None:
        return
    package = sys.modules[_PACKAGE]
    for name, before in _replaced.items():
        delattr(package, name) if before is None else setattr(package, name, before)
    if package.__spec__ is _SPEC:
        del sys.modules[_PACKAGE]
    _replaced = None
    _look_up_again()


_SPEC = ModuleSpec(_PACKAGE, loader=None)


def _mamba_ssm() -> ModuleType:
    try:
        return importlib.import_module(_PACKAGE)
    except Exception:  # not installed, or built for another torch
        package = ModuleType(_PACKAGE, "Stands in for mamba_ssm: gdn_cuda.compat.mamba_ssm.install")
        package.__spec__ = _SPEC
        sys.modules[_PACKAGE] = package
        return package


def _look_up_again() -> None:
    """transformers looks functions up once, by a decorator in the modules of its models."""
    kernels = sys.modules.get("transformers.integrations.hub_kernels")
    for name, module in list(sys.modules.items()):
        if kernels is None or not (name.startswith("transformers.models.") and ".modeling_" in name):
            continue
        for attribute, function in list(vars(module).items()):
            for looked_up, end in _LOOKED_UP.items():
                if attribute.endswith(end) and getattr(function, "__module__", None) == name:
                    if not hasattr(function, "__wrapped__"):
                        expected = "expected a call before its import where the package kernels is installed, got one after"
                        raise RuntimeError(f"install: {name}: {expected}")
                    decorate = kernels.use_kernel_func_from_hub_with_fallback(looked_up, _PACKAGE)
                    setattr(module, attribute, decorate(function.__wrapped__))
