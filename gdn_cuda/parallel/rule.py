"""`chunked_forward` over ranks as an operator of torch with a backward. Its collectives are inside, so that compiled code calls
it as a whole. The operator takes a context's number."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..operators.schema import refuse
from .contexts import Context, numbered
from .exchange import run_pass
from .passes import TENSORS, Backward, Call, Forward, Saved
from .ranks import RanksOfShapes

_OPTIONS = {
    "scale": "float?",
    "use_qk_l2norm": "bool",
    "deterministic": "bool",
    "beta_is_logit": "bool",
    "allow_negative_eigenvalues": "bool",
    "gate_is_linear": "bool",
    "lower_bound": "float?",
    "workspace": "int?",
}
_ARGUMENTS = ", ".join(
    [f"Tensor{'' if name in ('query', 'key', 'value') else '?'} {name}" for name in TENSORS]
    + ["int context", *(f"{kind} {name}" for name, kind in _OPTIONS.items())]
)
_COUNT = len(TENSORS)
_library = torch.library.Library("gdn_cuda_parallel", "DEF")
_library.define(f"rule({_ARGUMENTS}, bool training, bool output_final_state) -> (Tensor, Tensor, Tensor[])")
_library.define(
    "rule_backward(Tensor? grad_out, Tensor? grad_last, Tensor[] saved, bool[] needs, "
    f"{_ARGUMENTS}) -> ({', '.join(['Tensor'] * _COUNT)})"
)
_KEPT = 64
_recent: OrderedDict[int, Context] = OrderedDict()  # the backward of compiled code has a context's number alone


def rule(
    context: Context, tensors: dict[str, Tensor | None], options: dict[str, Any], training: bool, last: bool
) -> tuple[Tensor, Tensor]:
    """The output, and the last states, of which there are none without `last`."""
    given = (tensors[name] for name in TENSORS)
    flags = (options[name] for name in _OPTIONS)
    found, last_states, _ = torch.ops.gdn_cuda_parallel.rule(*given, context.number, *flags, training, last)
    return found, last_states


def _call_of(args: tuple[Any, ...]) -> Call:
    number, *options = args[_COUNT : _COUNT + 1 + len(_OPTIONS)]
    context = numbered(int(number))
    return Call(context, dict(zip(TENSORS, args, strict=False)), dict(zip(_OPTIONS, options, strict=True)))


def _with_shapes(call: Call) -> Call:
    """The call in a trace, which makes no collective and keeps no traced tensors in the context."""
    ranks = RanksOfShapes(call.context.rank, call.context.ranks.size)
    return replace(call, context=replace(call.context, ranks=ranks, _tensors={}))


@torch.no_grad()
def _forward_of(call: Call, training: bool, output_final_state: bool) -> tuple[Tensor, Tensor, list[Tensor]]:
    half = Forward(call, training, output_final_state)
    run_pass(half)
    return *half.results(), half.saved() if training else []


def _forward(*args: Any) -> tuple[Tensor, Tensor, list[Tensor]]:
    call = _call_of(args)
    _recent.pop(call.context.number, None)
    _recent[call.context.number] = call.context  # the newest last
    if len(_recent) > _KEPT:
        _recent.popitem(last=False)
    return _forward_of(call, *args[-2:])


@torch.no_grad()
def _backward_of(
    call: Call, grad_out: Tensor | None, grad_last: Tensor | None, saved: list[Tensor], needs: list[bool]
) -> tuple[Tensor, ...]:
    wanted = {name for name, need in zip(TENSORS, needs, strict=True) if need}
    kept = Saved.of(call.context, saved)
    half = Backward(call, kept, grad_out, grad_last, {"value", "state"}.issuperset(wanted))
    run_pass(half)
    found = half.results()
    return tuple(found[name].to(call[name].dtype) if name in wanted else call.states(0) for name in TENSORS)


def _backward(*args: Any) -> tuple[Tensor, ...]:
    return _backward_of(_call_of(args[4:]), *args[:4])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, list[Tensor]]) -> None:
    _, _, saved = output
    ctx.mark_non_differentiable(*saved)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:_COUNT], *saved)
    ctx.call, ctx.context = inputs[_COUNT:-2], numbered(int(inputs[_COUNT]))
    if not inputs[-2]:
        refuse("parallel.chunked_forward", "training", "True where an input requires a gradient", False)


def _run_backward(ctx: Any, grad_out: Tensor | None, grad_last: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    needs, saved = list(ctx.needs_input_grad[:_COUNT]), ctx.saved_tensors
    operator = torch.ops.gdn_cuda_parallel.rule_backward
    found = operator(grad_out, grad_last, list(saved[_COUNT:]), needs, *saved[:_COUNT], *ctx.call)
    wanted = (x if need else None for x, need in zip(found, needs, strict=True))
    return *wanted, *[None] * (len(ctx.call) + 2)


def _refuse_backward(ctx: Any, *_: Any) -> Any:
    raise RuntimeError("parallel.chunked_forward: gradients of gradients are not computed")


_name = "gdn_cuda_parallel::rule"
_library.impl("rule", _forward, "CompositeExplicitAutograd")
_library.impl("rule_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake(_name, lambda *args: _forward_of(_with_shapes(_call_of(args)), *args[-2:]), lib=_library)
torch.library.register_fake(
    f"{_name}_backward", lambda *args: _backward_of(_with_shapes(_call_of(args[4:])), *args[:4]), lib=_library
)
torch.library.register_autograd(_name, _run_backward, setup_context=_keep, lib=_library)
torch.library.register_autograd(f"{_name}_backward", _refuse_backward, lib=_library)
