"""Declares a public function once: from its signature and docstring follow the call of its operator, the CPU implementation,
shapes for tracing, and the function of the same name in `gdn_cuda.reference`.

    @operator(reference=reference.scale_rows, shapes=lambda x: x.input.new_empty(x.input.shape))
    def scale_rows(input: Tensor, factor: Tensor, *, power: int = 1) -> Tensor:
        \"\"\"What it computes.\"\"\"

Parameters are the arguments of torch.ops.gdn_cuda.scale_rows, by name: their order is the function's own, and a parameter that
the operator lacks is not passed on (`before` may check it). The function has no body; one is generated from the schema and
compiled once, with positional arguments, because this is all the Python that a warm call runs.
"""

from __future__ import annotations

import functools
import inspect
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from torch import Tensor, contiguous_format, empty_like, is_grad_enabled
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from .autograd import keep_autograd_out, requires_gradient, with_autograd
from .registration import register
from .schema import Schema, refuse, require_tensor

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Declaration:
    function: Callable[..., Any]  # the public function
    schemas: tuple[Schema, ...]  # the operators that it may call, one per call
    reference: Callable[[Any], Any] | None


DECLARATIONS: dict[str, Declaration] = {}


def operator(
    *,
    reference: Callable[[Any], Any] | None = None,
    shapes: Callable[[Any], Any] | None = None,
    cpu: Callable[[Any], Any] | None = None,
    out: str | Callable[..., Tensor] | None = None,
    variant: tuple[str, str] | None = None,
    before: Callable[..., None] | None = None,
    results: Callable[..., Any] | None = None,
    instead: tuple[str, Callable[..., Any], Callable[..., Any]] | None = None,
    with_gradients: Callable[..., Any] | None = None,
) -> Callable[[Function], Function]:
    """Declares a function whose operator computes no gradients; `reference`, `shapes` and `cpu` are those of `register`.

    `out`: how to allocate the result if the caller passes no `out`: the name of the argument that it is like, or a function of
    the declared function's name and of the parameters that it names. A function with `out` returns it, followed by the
    operator's results. `variant`: (parameter, operator), the operator that is called if that parameter is passed.
    `before(…)` and `results(operator's results, …)` are called before and after the operator; they name the other parameters
    that they read, and `results` returns the function's result. `instead`: (parameter, function, operator's function): if that
    parameter is not its default, the function alone is called, with it and the parameters that the operator has too; others are
    refused.
    `with_gradients`: the function that alone is called if an input requires a gradient; it names the parameters that it takes.
    """

    def declare(function: Function) -> Function:
        name = function.__name__
        parameters = inspect.signature(function).parameters
        defaults = {p.name: p.default for p in parameters.values() if p.default is not p.empty}
        schemas = []
        for each in [name] if variant is None else [name, variant[1]]:
            if lacking := set(Schema.of(each).arguments) - set(parameters):
                raise TypeError(f"{name}: expected parameters {', '.join(sorted(lacking))}, which its operator {each} has")
            schemas.append(register(each, shapes=shapes, reference=reference, cpu=cpu, function=name, defaults=defaults))
            keep_autograd_out(schemas[-1])
        public = _compiled(function, schemas, out, variant and variant[0], before, results, instead, with_gradients)
        DECLARATIONS[name] = Declaration(public, tuple(schemas), reference)
        return cast(Function, public)

    return declare


def reference_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The reference of a declared function, with its signature. Differentiable: its results are new."""
    reference, signature = DECLARATIONS[function.__name__].reference, inspect.signature(function)
    assert reference is not None, function.__name__

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if bound.arguments.get("out") is not None:
            raise ValueError(f"{function.__name__}: out: expected None, as the reference returns new tensors, got a tensor")
        return reference(SimpleNamespace(**bound.arguments))

    return call


# ---- The body of a public function


def _compiled(
    function: Callable[..., Any],
    schemas: list[Schema],
    out: str | Callable[..., Tensor] | None,
    chosen_by: str | None,
    before: Callable[..., None] | None,
    results: Callable[..., Any] | None,
    instead: tuple[str, Callable[..., Any], Callable[..., Any]] | None,
    with_gradients: Callable[..., Any] | None,
) -> Callable[..., Any]:
    closure: dict[str, Any] = {
        "is_dynamo_compiling": is_dynamo_compiling,
        "is_grad_enabled": is_grad_enabled,
        "forward_ad": forward_ad,
        "with_autograd": with_autograd,
        "output_like": output_like,
    }
    body = []
    if instead:
        closure["instead"], closure["refuse"] = instead[1], refuse
        body += [
            f"if {_differs(inspect.signature(function).parameters[instead[0]])}:",
            *_indented(_called_instead(function, instead[0], instead[2])),
        ]
    if with_gradients:
        closure["requires_gradient"], closure["with_gradients"] = requires_gradient, with_gradients
        tensors = ", ".join(schemas[0].arguments[i] for i, _ in schemas[0].tensors if i not in schemas[0].writes)
        taken = ", ".join(inspect.signature(with_gradients).parameters)
        body += [f"if is_grad_enabled() and requires_gradient(({tensors},)):", f"    return with_gradients({taken})"]
    if callable(out):
        closure["new_output"] = out
        _, *named = inspect.signature(out).parameters
        body += ["if out is None:", f"    out = new_output({function.__name__!r}, {', '.join(named)})"]
    elif out:
        body += ["if out is None:", f"    out = output_like({function.__name__!r}, {out!r}, {out})"]
    if before:
        closure["before"] = before
        body.append(f"before({', '.join(inspect.signature(before).parameters)})")
    first, *others = (_call(schema, number, closure) for number, schema in enumerate(schemas))
    if chosen_by:
        body += [f"if {chosen_by} is None:", *_indented(first), "else:", *_indented(others[0])]
    else:
        body += first
    if results:
        closure["results"] = results
        _, *named = inspect.signature(results).parameters
        body.append(f"return results(found, {', '.join(named)})")
    elif out:
        body.append("return out, found" if schemas[0].returns else "return out")
    elif schemas[0].returns:
        body.append("return found")
    lines = [
        f"def make({', '.join(closure)}):",
        f"    def {function.__name__}({_parameters(function)}):",
        *_indented(_indented(body)),
        f"    return {function.__name__}",
    ]
    made = _executed("\n".join(lines) + "\n", function)(**closure)
    made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return functools.update_wrapper(made, function)


def _call(schema: Schema, number: int, closure: dict[str, Any]) -> list[str]:
    """Lines that call the operator directly where autograd is not involved. Types are only checked after it raised: our message
    replaces torch's, which is a page long."""
    closure |= {f"overload_{number}": schema.overload, f"direct_{number}": schema.direct, f"schema_{number}": schema}
    args = ", ".join(schema.arguments)
    return [
        "if is_grad_enabled() or forward_ad._current_level >= 0:",
        f"    found = with_autograd(schema_{number}, ({args},))",
        "else:",
        "    try:",
        f"        found = (overload_{number} if is_dynamo_compiling() else direct_{number})({args})",
        "    except Exception:",
        f"        schema_{number}.check_types(({args},))",
        "        raise",
    ]


def _called_instead(function: Callable[..., Any], chosen_by: str, operator: Callable[..., Any]) -> list[str]:
    known, taken, lines = {chosen_by, *inspect.signature(operator).parameters}, [], []
    for p in inspect.signature(function).parameters.values():
        if p.name in known:
            taken.append(p.name)
        else:
            expected = repr(f"{p.default} with {chosen_by}")
            lines += [
                f"if {_differs(p)}:",
                f"    refuse({function.__name__!r}, {p.name!r}, {expected}, type({p.name}).__name__)",
            ]
    return [*lines, f"return instead({', '.join(f'{name}={name}' for name in taken)})"]


def _differs(p: inspect.Parameter) -> str:
    """A condition: whether the caller passed something else than the default."""
    return f"{p.name} {'is not' if p.default is None or isinstance(p.default, bool) else '!='} {p.default!r}"


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _parameters(function: Callable[..., Any]) -> str:
    """The function's parameter list; the values of defaults are set afterwards."""
    names, keywords_began = [], False
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.KEYWORD_ONLY and not keywords_began:
            names.append("*")
            keywords_began = True
        names.append(p.name if p.default is p.empty else f"{p.name}=None")
    return ", ".join(names)


def _executed(source: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Executes the source in the function's module, so that tracebacks and debuggers show it."""
    file = f"<gdn_cuda.{function.__name__}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {}
    exec(compile(source, file, "exec"), function.__globals__, names)
    return cast(Callable[..., Any], names["make"])


def output_like(function: str, argument: str, given: Tensor) -> Tensor:
    try:
        return empty_like(given, memory_format=contiguous_format)
    except (TypeError, RuntimeError):
        require_tensor(function, argument, given)
        raise
