"""Operators with a backward and no other derivatives; they refuse the others by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import Differentiable


def _refuse(message: str) -> Callable[..., Any]:
    def refuse(*given: Any) -> Any:
        raise RuntimeError(message)

    return refuse


def first_order(
    function: str,
    name: str,
    backward: Callable[..., dict[str, Any]] | None = None,
    **how: Any,
) -> Differentiable:
    """torch.ops.gdn_cuda.<name>, which `function` calls. Without `backward` it is an operator that computes gradients."""
    return Differentiable(
        name,
        function=name if backward is None else function,
        backward=backward or _refuse(f"{function}: gradients of gradients are not computed"),
        tangent=_refuse(f"{function}: forward-mode derivatives are not computed"),
        **how,
    )
