"""What the C++ library leaves to Python is registered by these: shapes for tracing (fake implementations), and what runs on
CPU tensors: the checks `validate_<op>` of the C++ library, and nothing else of it, then the reference.

Arguments are those of the operators' schemas (csrc/apis), in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import increment_version
from torch.utils._python_dispatch import _disable_current_modes

from .signature import Signature

_ops = torch.ops.gdn_cuda
library = torch.library.Library("gdn_cuda", "FRAGMENT")  # its life is the registrations'


def _hint(x: Any) -> Any:
    """What a traced size is in this trace; None where nobody knows."""
    return x.node.hint if isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool)) else x


def _on_meta(x: Any) -> Any:
    """A meta tensor of the size, strides and dtype that x has in this trace; None where nobody knows them."""
    if not isinstance(x, Tensor):
        return _hint(x)
    sizes, strides = [_hint(n) for n in x.shape], [_hint(n) for n in x.stride()]
    if None in sizes or None in strides:
        return None
    return torch.empty_strided(sizes, strides, dtype=x.dtype, device="meta")


def check(name: str, args: tuple[Any, ...]) -> None:
    """The checks of the C++ library, on any device; of traced tensors, as far as this trace knows their shapes and strides."""
    validate = getattr(_ops, name if name.startswith("validate_") else f"validate_{name}").default
    with _disable_current_modes():
        known = [_on_meta(x) for x in args] if any(isinstance(x, FakeTensor) for x in args) else args
        if not any(x is None and given is not None for x, given in zip(known, args, strict=True)):
            validate.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *known)


def fake(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers `shapes` for tracing and for meta tensors: where a call with one of those among CPU tensors goes, too."""
    signature = Signature.of(name)

    def register(shapes: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*args: Any) -> Any:
            signature.check_tensors(args)
            signature.check_devices(args)
            check(name, args)
            return shapes(*args)

        torch.library.register_fake(f"gdn_cuda::{name}", checked, lib=library)
        return shapes

    return register


def cpu(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers `run` for CPU tensors, behind the operator's own checks.

    It runs below autograd, as kernels do: nothing that it computes is recorded, and nothing that it writes is refused halfway.
    """
    signature = Signature.of(name)

    def register(run: Callable[..., Any]) -> Callable[..., Any]:
        validate = getattr(_ops, f"validate_{name}").default

        def checked(*args: Any) -> Any:
            validate(*args)
            with torch._C._AutoDispatchBelowADInplaceOrView():
                results = run(*args)
            for _, x in signature.written(args):
                if not x.is_inference():
                    increment_version(x)
            return results

        library.impl(name, checked, "CPU")
        if signature.writes:
            for key in ("Conjugate", "Negative"):
                library.impl(name, _for_marked_views(signature), key)
        return run

    return register


def _for_marked_views(signature: Signature) -> Callable[..., Any]:
    """Torch only marks a tensor as conjugate or negative, which no kernel would see."""

    def call(*args: Any) -> Any:
        for argument, x in signature.written(args):
            if x.is_conj() or x.is_neg():
                view = "conjugate" if x.is_conj() else "negative"
                expected = "memory that holds the numbers themselves, as it is written"
                raise ValueError(f"{signature.function}: {argument}: expected {expected}, got a {view} view")
        return signature.overload(*(x.resolve_conj().resolve_neg() if isinstance(x, Tensor) else x for x in args))

    return call
