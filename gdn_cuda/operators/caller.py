"""Rewrites errors of the operators that a function is composed of with the names that the caller of the function knows.

    @in_words_of_caller(query="qkvz", gate="a|ba", **{"rms_norm_gated.weight": "norm_weight"})
    def gdn_prefill_layer(qkvz: Tensor, …) -> Tensor: …

The operator's error "chunked_forward: query: expected …, got …" is raised as "gdn_prefill_layer: qkvz: expected …, got …". The
decorator maps an argument of any operator, or of one operator ("operator.argument"), to the caller's argument; of several
("a|ba") the first one that was passed. Unmapped names stay. An argument that is annotated as a tensor and is not a tensor is
named in our own error, in place of torch's.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import nn

from .schema import require_tensor

Function = TypeVar("Function", bound=Callable[..., Any])
_AS_THEY_ARE: Mapping[str, str] = {}
_PACKAGE = __name__.split(".")[0]
_TENSORS = ("Tensor", "Tensor | None")  # annotations of tensor arguments
_MESSAGE = re.compile(r"((?:parallel\.)?\w+): ([\w.]+(?:, [\w.]+)*): (expected .+)", re.DOTALL)


def in_words_of_caller(function: str | None = None, /, **arguments: str) -> Callable[[Function], Function]:
    """`function`: the name in errors, if not the function's own. In compiled code errors are those of the trace."""
    return lambda decorated: _in_words_of(decorated, function or decorated.__name__, arguments)


def name_errors_of(module: type[nn.Module]) -> None:
    """Makes all public methods of a module name the module and their own arguments in errors. For an operator whose inputs the
    layer computed, the method's first tensor is named."""
    for name, method in inspect.getmembers(module, inspect.isfunction):
        if name.startswith("_") or not method.__module__.startswith(_PACKAGE):
            continue
        parameters = inspect.signature(method).parameters
        if "self" not in parameters:  # a static method
            continue
        tensors = [p for p, each in parameters.items() if each.annotation in _TENSORS]
        if tensors:
            setattr(module, name, _in_words_of(method, module.__name__, _FirstTensor(frozenset(parameters), tensors[0])))


class _FirstTensor(dict[str, str]):
    """Names a method's first tensor in place of arguments that it lacks."""

    def __init__(self, known: frozenset[str], first: str):
        super().__init__()
        self._known, self._first = known, first

    def get(self, argument: str, default: Any = None) -> Any:
        return default if argument in self._known or "." in argument else self._first


def _in_words_of(function: Function, name: str, arguments: Mapping[str, str]) -> Function:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        except Exception as error:
            given = _given(function, args, kwargs)
            _require_tensors(name, function, given)
            if found := renamed(error, name, arguments, given):
                raise found from error
            raise

    return cast(Function, call)


def _given(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return inspect.signature(function).bind(*args, **kwargs).arguments
    except TypeError:  # the call itself raises it, with the reason
        return {}


def _require_tensors(name: str, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raises for an argument that is annotated as a tensor and is not one."""
    parameters = inspect.signature(function).parameters
    for argument, x in given.items():
        annotation = parameters[argument].annotation
        optional = annotation == "Tensor | None"
        if annotation in _TENSORS and not (optional and x is None):
            require_tensor(name, argument, x, optional)


def renamed(
    error: BaseException,
    function: str,
    arguments: Mapping[str, str] = _AS_THEY_ARE,
    given: Mapping[str, Any] = _AS_THEY_ARE,
) -> Exception | None:
    """The error with the caller's names; None if it is not one of ours, or has these names already."""
    if not isinstance(error, (ValueError, IndexError)) or not (found := _MESSAGE.fullmatch(str(error))):
        return None
    operator, named, text = found[1], found[2].split(", "), found[3]
    if operator == function and not any(each in arguments for each in named):
        return None

    def callers_name(argument: str) -> str:
        names = arguments.get(f"{operator}.{argument}", arguments.get(argument, argument)).split("|")
        return next((name for name in names if given.get(name) is not None), names[0])

    def replaced(match: re.Match[str]) -> str:
        return f"{match[1]} {callers_name(match[2])}"

    # An error may also name other arguments, with which it compares.
    text = (
        re.sub(r"\b(device of|shape of|that of|heads of|to match|without|with|as) (\w+)\b", replaced, text)
        if arguments
        else text
    )
    return type(error)(f"{function}: {', '.join(dict.fromkeys(map(callers_name, named)))}: {text}")
