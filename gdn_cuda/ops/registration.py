"""What the C++ library leaves to Python is registered by these: shapes for tracing (fake implementations), and what runs on
CPU tensors: the checks `validate_<op>` of the C++ library, and nothing else of it, then the reference.

Arguments are those of the operators' schemas (csrc/apis), in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_ops = torch.ops.gdn_cuda
library = torch.library.Library("gdn_cuda", "FRAGMENT")  # its life is the registrations'


def fake(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers `shapes` for tracing and for meta tensors: where a call with one of those among CPU tensors goes, too."""
    arguments = [argument.name for argument in getattr(_ops, name).default._schema.arguments]

    def register(shapes: Callable[..., Any]) -> Callable[..., Any]:
        def on_one_device(*args: Any) -> Any:
            tensors = [(argument, x) for argument, x in zip(arguments, args, strict=True) if isinstance(x, Tensor)]
            first, like = tensors[0]
            for argument, x in tensors:
                if x.device != like.device:
                    function = name.removesuffix("_pool")
                    raise ValueError(f"{function}: {argument}: expected {like.device}, the device of {first}, got {x.device}")
            return shapes(*args)

        torch.library.register_fake(f"gdn_cuda::{name}", on_one_device, lib=library)
        return shapes

    return register


def cpu(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers `run` for CPU tensors, behind the operator's own checks."""

    def register(run: Callable[..., Any]) -> Callable[..., Any]:
        validate = getattr(_ops, f"validate_{name}").default

        def checked(*args: Any) -> Any:
            validate(*args)
            return run(*args)

        library.impl(name, checked, "CPU")
        return run

    return register
