"""Registers fake implementations, which give shapes for tracing, and CPU implementations: the checks of the C++ library
(`validate_<op>`), then the reference.

Shape functions and references take one object with the operator's arguments as attributes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import increment_version
from torch.utils._python_dispatch import _disable_current_modes

from .. import _C
from ..runtime import DEFAULT_ARCH
from .schema import Schema

if TYPE_CHECKING:
    from .._C import DeviceTraits

_ops = torch.ops.gdn_cuda
library = torch.library.Library("gdn_cuda", "FRAGMENT")  # global, because its registrations end with it
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
SCHEMAS: dict[str, Schema] = {}  # by name in torch.ops.gdn_cuda


def register(
    name: str,
    *,
    shapes: Callable[[Any], Any] | None = None,
    reference: Callable[[Any], Any] | None = None,
    cpu: Callable[[Any], Any] | None = None,
    function: str | None = None,
    defaults: Mapping[str, Any] | None = None,
    differentiable: str = "gdn_cuda.reference",
) -> Schema:
    """Registers the implementations of an operator that are not kernels.

    `shapes(x)` returns new tensors like the operator's results; an operator without results needs none. `reference(x)` returns
    the result for `out`, if the operator has that argument, and the operator's results. `cpu(x)` replaces `reference` for an
    operator that writes more than `out`, or returns other than contiguous tensors: it writes and returns the same as the
    operator. Neither is needed if C++ runs on CPU tensors. `function` and `defaults` are the public function's name, and the
    defaults of its parameters that the operator lacks. `differentiable`: the alternative that errors about gradients name.
    """
    schema = SCHEMAS[name] = Schema.of(name, function, defaults or {}, differentiable)
    _register_shapes(schema, shapes or (lambda x: None))
    run = cpu or (reference and _storing(schema, reference))
    if run:
        _register_cpu(schema, run)
    if schema.writes:
        for key in ("Conjugate", "Negative"):
            library.impl(name, _for_marked_views(schema), key)
    return schema


def _hint(x: Any) -> Any:
    """The value of a traced size in this trace, or None."""
    return x.node.hint if isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool)) else x


def _on_meta(x: Any) -> Any:
    """A meta tensor with the sizes, strides and dtype of x in this trace, or None where they are unknown."""
    if not isinstance(x, Tensor):
        return _hint(x)
    sizes, strides = [_hint(n) for n in x.shape], [_hint(n) for n in x.stride()]
    if None in sizes or None in strides:
        return None
    return torch.empty_strided(sizes, strides, dtype=x.dtype, device="meta")


@functools.cache
def _any_gpu() -> DeviceTraits:
    """A device for checks; they do not depend on which one it is."""
    return _C.device_traits_for_arch(DEFAULT_ARCH) | {"ordinal": -1}


def check(name: str, args: tuple[Any, ...]) -> None:
    """Runs the checks of the C++ library, on any device. Traced tensors are checked if their shapes and strides are known: CUDA
    tensors as in an explained call, so that arguments that only CPU tensors may have are refused."""
    validate = getattr(_ops, name if name.startswith("validate_") else f"validate_{name}").default
    traced = [x for x in args if isinstance(x, FakeTensor)]
    as_on_gpu = any(x.device.type == "cuda" for x in traced)
    with _disable_current_modes(), _C.Explaining(_any_gpu()) if as_on_gpu else nullcontext():
        known = [_on_meta(x) for x in args] if traced else args
        if not any(x is None and given is not None for x, given in zip(known, args, strict=True)):
            validate.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *known)


def check_call(name: str, **given: Any) -> None:
    """Runs the operator's checks on these arguments; arguments that are not passed are None."""
    schema = SCHEMAS[name]
    args = tuple(given.get(argument) for argument in schema.arguments)
    schema.check_types(args)
    schema.check_devices(args)
    schema.check_unmarked(args)
    check(name, args)


def _register_shapes(schema: Schema, shapes: Callable[[Any], Any]) -> None:
    """Registers shapes for tracing and for meta tensors, also if CPU tensors are among the arguments."""

    def checked(*given: Any) -> Any:
        args = schema.completed(given)
        schema.check_types(args)
        schema.check_devices(args)
        check(schema.name, args)
        return shapes(schema.named(args))

    torch.library.register_fake(f"gdn_cuda::{schema.name}", checked, lib=library)


def _register_cpu(schema: Schema, run: Callable[[Any], Any]) -> None:
    """Registers an implementation that runs after the operator's checks and below autograd and autocast, like kernels: autograd
    records nothing and refuses no write, and no product is rounded to autocast's dtype."""
    validate = getattr(_ops, f"validate_{schema.name}").default

    def checked(*given: Any) -> Any:
        args = schema.completed(given)
        validate(*args)
        with torch._C._AutoDispatchBelowADInplaceOrView(), torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            results = run(schema.named(args))
        for _, x in schema.written(args):
            if not x.is_inference():
                increment_version(x)
        return results

    library.impl(schema.name, checked, "CPU")


def _storing(schema: Schema, reference: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wraps a reference: writes its first result into `out`, if there is one, and returns the others contiguous and new."""
    has_out = "out" in schema.arguments

    def run(x: Any) -> Any:
        results = reference(x)
        found = list(results) if isinstance(results, tuple) else [results]
        if has_out:
            x.out.copy_(found.pop(0))
        given = [y for y in vars(x).values() if isinstance(y, Tensor)]
        returned = tuple(_contiguous_and_new(y, given) for y in found)
        return None if not returned else returned if schema.returns > 1 else returned[0]

    return run


def _contiguous_and_new(result: Tensor, given: list[Tensor]) -> Tensor:
    """A contiguous copy if needed: a reference may return an input, for instance the state if there are no tokens."""
    if any(torch._C._is_alias_of(result, x) for x in given):
        return result.clone(memory_format=torch.contiguous_format)
    return result.contiguous()


def _for_marked_views(schema: Schema) -> Callable[..., Any]:
    def call(*given: Any) -> Any:
        args = schema.completed(given)
        schema.check_unmarked(args)
        return schema.overload(*(x.resolve_conj().resolve_neg() if isinstance(x, Tensor) else x for x in args))

    return call
