"""Operators with derivatives of every kind: backward, forward mode, torch.func and torch.vmap.

What torch.library.register_autograd registers serves `backward()` and traced code alone: under forward mode it would drop
tangents without a word, torch.func refuses it, and it costs every call 5 µs, with or without gradients. So a call takes the way
that it needs: the operator itself where no derivative is asked for, its registered backward where one is, and under forward
mode and torch.func a torch.autograd.Function with the same backward and a `jvp`.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .registration import library

_below_autograd = torch._C._AutoDispatchBelowAutograd
_transforms_are_active = torch._C._are_functorch_transforms_active


def under_transforms() -> bool:
    """Whether torch.func, torch.vmap or forward mode may ask for more than a backward."""
    return _transforms_are_active() or forward_ad._current_level >= 0


def needs_derivatives(*tensors: Any) -> bool:
    """Whether anything but the numbers may be asked for; True in compiled code, where that is not known yet."""
    if torch.compiler.is_compiling() or under_transforms():
        return True
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in tensors)


def require_no_transforms(function: str) -> None:
    """For calls with `out`: what is written there has no derivatives, which forward mode and torch.func would not notice."""
    if not torch.compiler.is_compiling() and under_transforms():
        raise ValueError(f"{function}: out: expected None under torch.func, torch.vmap and forward mode, got a tensor")


class Operator:
    """torch.ops.gdn_cuda.<name> with derivatives.

    `keep(ctx, inputs, output)` sets what is not a tensor on ctx and returns the tensors to save. `backward(ctx, *grads)` and
    `tangent(ctx, *tangents)`, with None for an input that has none, are as in torch.autograd.Function. `batched(in_dims,
    *args)` returns (outputs, out_dims) for torch.vmap. All call operators of this class, and so have derivatives in turn.
    """

    def __init__(
        self,
        name: str,
        keep: Callable[..., tuple[Tensor, ...]],
        backward: Callable[..., Any],
        tangent: Callable[..., Any],
        batched: Callable[..., Any],
    ):
        self.operator = operator = getattr(torch.ops.gdn_cuda, name).default

        def keep_for_backward(ctx, inputs, output):
            ctx.save_for_backward(*keep(ctx, inputs, output))

        def keep_for_both(ctx, inputs, output):
            saved = keep(ctx, inputs, output)
            ctx.save_for_backward(*saved)
            ctx.save_for_forward(*saved)

        members = {
            "forward": staticmethod(lambda *args: operator(*args)),
            "setup_context": staticmethod(keep_for_both),
            "backward": staticmethod(backward),
            "jvp": staticmethod(tangent),
            "vmap": staticmethod(lambda info, in_dims, *args: batched(in_dims, *args)),
        }
        self.function = type(name, (torch.autograd.Function,), members)
        torch.library.register_autograd(f"gdn_cuda::{name}", backward, setup_context=keep_for_backward, lib=library)

    def __call__(self, *args: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.operator(*args)
        if under_transforms():
            return self.function.apply(*args)  # type: ignore[attr-defined]
        if torch.is_grad_enabled():
            for x in args:
                if isinstance(x, Tensor) and x.requires_grad:
                    return self.operator(*args)
        with _below_autograd():
            return self.operator(*args)


def leading_first(in_dims: tuple[int | None, ...], tensors: tuple[Tensor, ...], last: tuple[int, ...]) -> list[Tensor]:
    """Every tensor with the dimension that is mapped over in front, or one of size 1 in its place, and as many leading
    dimensions behind it as the tensor with the most has; `last` are the numbers of dimensions that are not leading."""
    moved = [x[None] if d is None else x.movedim(d, 0) for x, d in zip(tensors, in_dims, strict=False)]
    most = max(x.dim() - own for x, own in zip(moved, last, strict=True))
    return [x.reshape((x.shape[0],) + (1,) * (most - x.dim() + own) + x.shape[1:]) for x, own in zip(moved, last, strict=True)]
