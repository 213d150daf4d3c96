"""Errors of operators that a function is composed of, in the words of whoever called the function.

    with errors_of("gdn_prefill_layer", query="qkvz", state="state_pool"):
        chunked_forward(query, …)

What reads "chunked_forward: state: expected …, got …" in there is raised as "gdn_prefill_layer: state_pool: expected …, got …".
`@in_words_of_caller(…)` does so for a whole function, and names an argument that is no tensor whatever torch says of it.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import torch

from .schema import require_tensor

Function = TypeVar("Function", bound=Callable[..., Any])
_MESSAGE = re.compile(r"\w+: ([\w.]+(?:, [\w.]+)*): (expected .+)", re.DOTALL)


class errors_of:
    """`arguments`: the caller's argument, by that of an operator; others keep their names."""

    __slots__ = ("_arguments", "_function")

    def __init__(self, function: str, /, **arguments: str):
        self._function, self._arguments = function, arguments

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and (renamed := _renamed(error, self._function, self._arguments)):
            raise renamed from error


def in_words_of_caller(**arguments: str) -> Callable[[Function], Function]:
    """Decorates a function that calls others; `arguments` as in `errors_of`. In compiled code errors are those of the trace."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return function(*args, **kwargs)
            try:
                return function(*args, **kwargs)
            except Exception as error:
                _require_tensors(function, args, kwargs)
                if renamed := _renamed(error, function.__name__, arguments):
                    raise renamed from error
                raise

        return cast(Function, call)

    return decorate


def _require_tensors(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises for an argument that is annotated as a tensor and is none."""
    signature = inspect.signature(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return
    for argument, x in given.items():
        optional = signature.parameters[argument].annotation == "Tensor | None"
        if (optional and x is not None) or signature.parameters[argument].annotation == "Tensor":
            require_tensor(function.__name__, argument, x, optional)


def _renamed(error: BaseException, function: str, arguments: Mapping[str, str]) -> Exception | None:
    """The error in the caller's words; None where it is not one of ours, or has these words."""
    found = _MESSAGE.fullmatch(str(error)) if isinstance(error, (ValueError, IndexError)) else None
    if not found:
        return None
    named = ", ".join(dict.fromkeys(arguments.get(each, each) for each in found[1].split(", ")))
    text = f"{function}: {named}: {_with_arguments(found[2], arguments)}"
    return None if text == str(error) else type(error)(text)


def _with_arguments(text: str, arguments: Mapping[str, str]) -> str:
    """Other arguments are named where an error compares with them."""
    if not arguments:
        return text
    names = "|".join(sorted(map(re.escape, arguments), key=len, reverse=True))
    places = r"(device of|shape of|that of|heads of|to match|without|with|as) "
    return re.sub(rf"\b{places}({names})\b", lambda found: f"{found[1]} {arguments[found[2]]}", text)
