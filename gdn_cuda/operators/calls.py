"""Calls written as text, for `python -m gdn_cuda explain`: `B=1 T=8192 state=:bf16 deterministic=true`.

A family's module `calls` has typical calls of its operators, CALLS; an operator's own module may have one under `typical_call`.
A typical call has default sizes of axes, and forms. A form lists arguments: "query, key: B T Hk dk; gate: B T Hv f32;
batch_size = B". A size is an axis, an axis plus a number (B+1), or an axis over a number, rounded up (T/64). A tensor without a
dtype has the call's; `mn` makes its second-to-last dimension the contiguous one.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from ..names import shortened
from .measure import families
from .tunable import TORCH_DTYPES

DTYPES = TORCH_DTYPES | {"i8": torch.int8, "i32": torch.int32, "i64": torch.int64}


@dataclass(frozen=True)
class Layout:
    sizes: tuple[str, ...]
    dtype: str | None
    mn: bool

    def tensor(self, axes: Mapping[str, int], dtype: str) -> Tensor:
        return _on_meta([_size(text, axes) for text in self.sizes], DTYPES[self.dtype or dtype], self.mn)


@dataclass(frozen=True)
class Form:
    tensors: dict[str, Layout]
    others: dict[str, str]  # a literal, a dtype, an axis, or several axes in parentheses

    @property
    def axes(self) -> set[str]:
        sizes = [text for layout in self.tensors.values() for text in layout.sizes]
        others = [word for text in self.others.values() for word in text.strip("()").split()]
        return {_axis(text) for text in [*sizes, *others] if text not in _LITERALS and text not in DTYPES}


@dataclass(frozen=True)
class Typical:
    axes: dict[str, int]
    dtype: str
    forms: tuple[Form, ...]


def typical(axes: dict[str, int], *forms: str, dtype: str = "bf16") -> Typical:
    """A call has the first form with all axes that it names."""
    return Typical(axes, dtype, tuple(_form(text) for text in forms))


_DECLARED: dict[str, Typical] = {}


def typical_call(function: Callable[..., Any], axes: dict[str, int], *forms: str, dtype: str = "bf16") -> None:
    """Declares the typical call of a function beside it."""
    _DECLARED[function.__name__] = typical(axes, *forms, dtype=dtype)


@functools.cache
def load() -> dict[str, Typical]:
    """The typical calls of all families, by function."""
    found: dict[str, Typical] = {}
    for family in families("calls"):
        found |= importlib.import_module(family).CALLS
    return found | _DECLARED


# ---- Forms

_LITERALS = {"true": True, "false": False, "none": None}


def _form(text: str) -> Form:
    tensors: dict[str, Layout] = {}
    others: dict[str, str] = {}
    for part in text.split(";"):
        if "=" in part:
            name, value = part.split("=")
            others[name.strip()] = value.strip()
            continue
        names, layout = part.split(":")
        words = layout.split()
        mn = words[-1] == "mn"
        words = words[: len(words) - mn]
        dtype = words.pop() if words[-1] in DTYPES else None
        tensors |= dict.fromkeys((name.strip() for name in names.split(",")), Layout(tuple(words), dtype, mn))
    return Form(tensors, others)


def _axis(size: str) -> str:
    return re.split(r"[+/]", size)[0]


def _size(text: str, axes: Mapping[str, int]) -> int:
    size = axes[_axis(text)]
    return size + int(text.partition("+")[2]) if "+" in text else -(-size // int(text.partition("/")[2] or 1))


def _other(text: str, axes: Mapping[str, int]) -> Any:
    if text.startswith("("):
        return tuple(_size(word, axes) for word in text.strip("()").split())
    words = _LITERALS | DTYPES
    return words[text] if text in words else _size(text, axes)


def _on_meta(shape: list[int], dtype: torch.dtype, mn: bool = False) -> Tensor:
    if math.prod(shape) >= 2**59:  # torch counts bytes in 63 bits
        raise _bad("sizes", "fewer than 2^59 elements", "x".join(map(str, shape)))
    if mn and len(shape) >= 2:
        return torch.empty([*shape[:-2], shape[-1], shape[-2]], dtype=dtype, device="meta").mT
    return torch.empty(shape, dtype=dtype, device="meta")


# ---- What a user writes

_LONGEST_WORD = 1000  # characters


def arguments(function: Callable[..., Any], words: list[str]) -> dict[str, Any]:
    """The arguments by name. A word is AXIS=SIZE, dtype=DTYPE, TENSOR=SIZExSIZE:DTYPE, TENSOR=:DTYPE or ARGUMENT=VALUE. A
    tensor that is `mn` in the form stays that at another size."""
    name = function.__name__
    call = load().get(name, Typical({}, "bf16", (Form({}, {}),)))
    axes_known = sorted(set().union(*(form.axes for form in call.forms)))
    parameters = _parameters(function)
    given: dict[str, str] = {}
    for word in words:
        if len(word) > _LONGEST_WORD:
            raise _bad(word, f"at most {_LONGEST_WORD} characters", f"{len(word)}")
        key, equals, value = word.partition("=")
        if not equals or key in given:
            raise _bad(word, "NAME=VALUE, each name once", word)
        if key not in axes_known and key not in parameters and key != "dtype":
            takes = f"an axis ({', '.join(axes_known)}), dtype" if axes_known else "dtype"
            raise _bad(key, f"{takes}, or an argument of {name} ({', '.join(parameters)})", key)
        given[key] = value
    dtype = _dtype("dtype", given.pop("dtype")) if "dtype" in given else call.dtype
    named = {key: _integer(key, given.pop(key)) for key in axes_known if key in given}
    form = next((form for form in call.forms if form.axes >= named.keys()), None)
    if form is None:
        forms = " or ".join(f"({', '.join(sorted(form.axes))})" for form in call.forms)
        raise _bad("axes", f"those of one form, {forms}", f"({', '.join(named)})")
    axes = call.axes | named
    result: dict[str, Any] = {key: layout.tensor(axes, dtype) for key, layout in form.tensors.items()}
    result |= {key: _other(text, axes) for key, text in form.others.items()}
    for key, text in given.items():
        mn = key in form.tensors and form.tensors[key].mn
        result[key] = _value(key, text, parameters[key], result.get(key), dtype, mn)
    if missing := [key for key, p in parameters.items() if p.default is p.empty and key not in result]:
        raise _bad(missing[0], "a shape and a dtype such as 2x64:f32, or a value", "none")
    return result


def _bad(what: str, expected: str, got: str) -> ValueError:
    return ValueError(f"explain: {shortened(what) or 'a name'}: expected {expected}, got {shortened(got) or 'nothing'}")


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    found = inspect.signature(function).parameters
    if all(p.kind is not p.VAR_KEYWORD for p in found.values()):
        return {name: p for name, p in found.items() if name != "stream"}
    schema = getattr(torch.ops.gdn_cuda, function.__name__).default._schema  # of an operator without a function for itself
    return {a.name: inspect.Parameter(a.name, inspect.Parameter.KEYWORD_ONLY, annotation=str(a.type)) for a in schema.arguments}


def _integer(what: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,12}", text):
        raise _bad(what, "a size", text)
    return int(text)


def _dtype(what: str, text: str) -> str:
    if text not in DTYPES:
        raise _bad(what, f"one of {', '.join(DTYPES)}", text)
    return text


def _value(what: str, text: str, parameter: inspect.Parameter, default: Any, dtype: str, mn: bool) -> Any:
    kind = str(parameter.annotation)
    if text in _LITERALS:
        return _LITERALS[text]
    if "Tensor" in kind:
        shape, colon, named = text.partition(":")
        of = DTYPES[_dtype(what, named)] if colon else default.dtype if isinstance(default, Tensor) else DTYPES[dtype]
        if not shape and isinstance(default, Tensor):
            return torch.empty_strided(default.shape, default.stride(), dtype=of, device="meta")
        if not re.fullmatch(r"\d{1,12}(x\d{1,12})*", shape):
            raise _bad(what, "a shape and a dtype such as 2x64:f32, or none", text)
        return _on_meta([int(size) for size in shape.split("x")], of, mn)
    if "dtype" in kind:
        return DTYPES[_dtype(what, text)]
    enumerators = type(parameter.default).__members__ if isinstance(parameter.default, Enum) else {}
    return enumerators[text] if text in enumerators else _literal(what, text, kind)


def _literal(what: str, text: str, kind: str) -> Any:
    """Parses a literal of this type; torch's own message about a wrong type has several lines, with the schema."""
    if "str" in kind:
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = None
    if "bool" in kind and not isinstance(value, bool):
        raise _bad(what, "true or false", text)
    if "float" in kind and not isinstance(value, (int, float)):
        raise _bad(what, "a number", text)
    if "int" in kind and not (isinstance(value, int) and abs(value) < 2**63):
        raise _bad(what, "an integer", text)
    return value
