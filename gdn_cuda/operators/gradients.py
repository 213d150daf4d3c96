"""Operators with all derivatives: backward, forward mode, torch.func and torch.vmap.

torch.library.register_autograd serves `backward()` and traced code only: forward mode would silently drop tangents, torch.func
refuses it, and it costs every call 5 µs, with or without gradients. So a call runs the operator below autograd if no
derivative is needed, the operator with its registered backward if a gradient is needed, and under forward mode and torch.func
a torch.autograd.Function with the same backward and a `jvp`.
"""

# mypy: allow-untyped-defs

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .registration import library, register

_below_autograd = torch._C._AutoDispatchBelowAutograd
_transforms_are_active = torch._C._are_functorch_transforms_active


def under_transforms() -> bool:
    """Whether torch.func, torch.vmap or forward mode is active, so that a backward is not enough."""
    return _transforms_are_active() or forward_ad._current_level >= 0


def needs_derivatives(*tensors: Any) -> bool:
    """Whether more than the result may be needed; True in compiled code, where this is unknown."""
    if torch.compiler.is_compiling() or under_transforms():
        return True
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in tensors)


def require_no_transforms(function: str) -> None:
    """For calls with `out`, which has no derivatives: forward mode and torch.func would not notice that."""
    if not torch.compiler.is_compiling() and under_transforms():
        raise ValueError(f"{function}: out: expected None under torch.func, torch.vmap and forward mode, got a tensor")


DIFFERENTIABLE: dict[str, Differentiable] = {}  # by name in torch.ops.gdn_cuda


class Differentiable:
    """torch.ops.gdn_cuda.<name> with derivatives, called with positional arguments. The functions below call operators of this
    class too, and so have derivatives in turn.

    `shapes`, `reference` and `cpu` are as in `register`. The other functions take x, the operator's arguments as attributes:
    `backward(x, needs, *grads)` returns gradients by argument, at least those for which `needs` is true;
    `tangent(x, of)` returns the tangents of the results, where `of` has those of the arguments, None for arguments without one.
    x.results are the operator's results, if `uses_results`. `batched(x, dims)` returns (outputs, out_dims) for torch.vmap.
    `backward_only`: the number of trailing results that only `backward` uses. They have no gradients and are x.results, and
    `backward` gets None for results without a gradient. `saves_arguments`: False for a linear operator, whose derivatives need
    no tensors: x has None in their place, and no graph keeps them. `function`: the name in errors, if not `name`.
    """

    def __init__(
        self,
        name: str,
        *,
        shapes: Callable[[Any], Any],
        backward: Callable[..., dict[str, Any]],
        tangent: Callable[[Any, Any], Any],
        batched: Callable[[Any, Any], Any],
        reference: Callable[[Any], Any] | None = None,
        cpu: Callable[[Any], Any] | None = None,
        uses_results: bool = False,
        backward_only: int = 0,
        saves_arguments: bool = True,
        function: str | None = None,
    ):
        self.schema = schema = register(name, shapes=shapes, reference=reference, cpu=cpu, function=function)
        self.operator = operator = schema.overload
        self._direct = schema.direct
        places = [i for i, _ in schema.tensors]
        saved_places = places if saves_arguments else []

        def keep(ctx, inputs, output):
            """Returns the tensors to save: arguments, and results where formulas use them. Other arguments are kept in ctx."""
            outputs = output if isinstance(output, tuple) else (output,)
            own = outputs[len(outputs) - backward_only :]
            ctx.mark_non_differentiable(*own, *(y for y in outputs if not (y.is_floating_point() or y.is_complex())))
            if backward_only:
                ctx.set_materialize_grads(False)
            ctx.rest = tuple(None if i in places else given for i, given in enumerate(inputs))
            return (*(inputs[i] for i in saved_places), *(outputs if uses_results else own))

        def kept(ctx):
            saved, inputs = ctx.saved_tensors, list(ctx.rest)  # activation checkpointing allows one read only
            for i, x in zip(saved_places, saved, strict=False):
                inputs[i] = x
            return SimpleNamespace(**vars(schema.named(tuple(inputs))), results=saved[len(saved_places) :])

        def keep_for_backward(ctx, inputs, output):
            ctx.save_for_backward(*keep(ctx, inputs, output))

        def keep_for_both(ctx, inputs, output):
            saved = keep(ctx, inputs, output)
            ctx.save_for_backward(*saved)
            ctx.save_for_forward(*saved)

        def run_backward(ctx, *grads):
            needs = ctx.needs_input_grad  # without those of arguments that torch left out, as they have their defaults
            left_out = (False,) * (len(schema.arguments) - len(needs))
            found = backward(kept(ctx), schema.named((*needs, *left_out)), *grads)
            return tuple(found.get(argument) for argument in schema.arguments[: len(needs)])

        members = {
            "forward": staticmethod(lambda *args: operator(*args)),
            "setup_context": staticmethod(keep_for_both),
            "backward": staticmethod(run_backward),
            "jvp": staticmethod(lambda ctx, *tangents: tangent(kept(ctx), schema.named(tangents))),
            "vmap": staticmethod(lambda info, in_dims, *args: batched(schema.named(args), schema.named(in_dims))),
        }
        self.function = type(name, (torch.autograd.Function,), members)
        DIFFERENTIABLE[name] = self
        torch.library.register_autograd(f"gdn_cuda::{name}", run_backward, setup_context=keep_for_backward, lib=library)

    def __call__(self, *args: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.operator(*args)
        try:
            if under_transforms():
                return self.function.apply(*args)  # type: ignore[attr-defined]
            if torch.is_grad_enabled():
                for x in args:
                    if isinstance(x, Tensor) and x.requires_grad:
                        return self.operator(*args)
            with _below_autograd():
                return self._direct(*args)
        except Exception:
            self.schema.check_types(args)  # our message replaces torch's, which is a page long
            raise

    def below_autograd(self, *args: Any) -> Any:
        """The call without derivatives, for callers that know that none are needed."""
        with _below_autograd():
            return self._direct(*args)


def leading_first(x: Any, dims: Any, last: dict[str, int]) -> list[Tensor]:
    """Every tensor that `last` names, with the mapped dimension first, or one of size 1 in its place, followed by equally many
    leading dimensions in all tensors. `last` has the number of trailing dimensions of each tensor, which stay."""
    given = [(getattr(x, name), getattr(dims, name)) for name in last]
    moved = [y[None] if d is None else y.movedim(d, 0) for y, d in given]
    most = max(y.dim() - own for y, own in zip(moved, last.values(), strict=True))
    return [
        y.reshape((y.shape[0],) + (1,) * (most - y.dim() + own) + y.shape[1:])
        for y, own in zip(moved, last.values(), strict=True)
    ]
