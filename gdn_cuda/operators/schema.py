"""An operator's arguments by name, from its C++ schema, and the checks that need only names and types."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._ops import OpOverload

from .nvtx import ranged

_NOTHING: Mapping[str, Any] = {}
_WORDS = {
    "float": "a number",
    "int": "an integer",
    "SymInt": "an integer",
    "bool": "a bool",
    "str": "a string",
    "ScalarType": "a torch.dtype",
}


def _is_of(kind: str, x: Any) -> bool:
    """Whether torch accepts x for an argument of this type; tensors and numpy's scalars count as numbers."""
    if kind == "ScalarType":
        return isinstance(x, (torch.dtype, int))
    if kind == "str":
        return isinstance(x, str)
    if kind == "bool":
        return isinstance(x, (int, torch.SymBool)) or type(x).__name__ in ("bool", "bool_")
    if kind == "float":
        return hasattr(type(x), "__float__") or hasattr(type(x), "__index__")
    return hasattr(type(x), "__index__") or isinstance(x, torch.SymInt)


@dataclass(frozen=True)
class Schema:
    name: str
    function: str  # the name that users call
    overload: Any
    arguments: tuple[str, ...]
    tensors: tuple[tuple[int, bool], ...]  # positions of tensors, and whether they may be None
    others: tuple[tuple[int, str], ...]  # positions of the other arguments, and their types
    writes: tuple[int, ...]
    returns: int  # number of results
    defaults: Mapping[str, Any]  # of parameters of the public function that the schema lacks
    last_defaults: tuple[Any, ...]  # the last arguments' defaults, each None, True or False
    differentiable: str = "gdn_cuda.reference"  # the function that computes the same with gradients

    @cached_property
    def direct(self) -> Any:
        """The operator, called with all arguments by position, without the frame of Python's own that `overload` has, a quarter
        of a microsecond, and without the last arguments that have their defaults, each a tenth: torch searches every argument
        that is no tensor for overrides of functions. For calls that are not traced: torch.compile knows `overload` alone."""
        operator = self.overload._op if isinstance(self.overload, OpOverload) else self.overload
        lines = ["def make(operator):", f"    def {self.name}({', '.join(self.arguments)}):"]
        for count in range(len(self.arguments), len(self.arguments) - len(self.last_defaults), -1):
            lines += [
                f"        if {self.arguments[count - 1]} is not {self.last_defaults[count - len(self.arguments) - 1]}:",
                f"            return operator({', '.join(self.arguments[:count])})",
            ]
        required = self.arguments[: len(self.arguments) - len(self.last_defaults)]
        lines += [f"        return operator({', '.join(required)})", f"    return {self.name}"]
        names: dict[str, Any] = {}
        exec("\n".join(lines), names)
        return names["make"](operator)

    @cached_property
    def pick(self) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
        """Gives the arguments in order, from a mapping that may have more."""
        return itemgetter(*self.arguments)

    @cached_property
    def pick_tensors(self) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
        """Gives the tensors of the arguments in order, those that are None too."""
        places = [i for i, _ in self.tensors]
        return itemgetter(*places) if len(places) > 1 else lambda args: tuple(args[i] for i in places)

    @staticmethod
    def of(
        name: str,
        function: str | None = None,
        defaults: Mapping[str, Any] = _NOTHING,
        differentiable: str = "gdn_cuda.reference",
    ) -> Schema:
        overload = getattr(torch.ops.gdn_cuda, name).default
        arguments = overload._schema.arguments
        names = tuple(x.name for x in arguments)
        kinds = [str(x.real_type) for x in arguments]
        return Schema(
            name,
            function or name,
            ranged(name, overload),
            names,
            tuple((i, kind != "Tensor") for i, kind in enumerate(kinds) if kind in ("Tensor", "Optional[Tensor]")),
            tuple((i, kind) for i, kind in enumerate(kinds) if "Tensor" not in kind),
            tuple(i for i, x in enumerate(arguments) if x.alias_info is not None and x.alias_info.is_write),
            len(overload._schema.returns),
            {argument: value for argument, value in defaults.items() if argument not in names},
            tuple(x.default_value for x in arguments if x.has_default_value()),
            differentiable,
        )

    def completed(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """All arguments: torch leaves out the last ones that have their defaults where it calls Python."""
        lacking = len(self.arguments) - len(args)
        return args + self.last_defaults[len(self.last_defaults) - lacking :] if lacking else args

    def named(self, args: tuple[Any, ...]) -> Any:
        """The arguments as attributes, with the defaults of parameters that only the public function has."""
        return SimpleNamespace(**self.defaults, **dict(zip(self.arguments, args, strict=True)))

    def given(self, args: tuple[Any, ...]) -> Iterator[tuple[str, Tensor]]:
        return ((self.arguments[i], args[i]) for i, _ in self.tensors if isinstance(args[i], Tensor))

    def written(self, args: tuple[Any, ...]) -> Iterator[tuple[str, Tensor]]:
        return ((self.arguments[i], args[i]) for i in self.writes if isinstance(args[i], Tensor))

    def check_unmarked(self, args: tuple[Any, ...]) -> None:
        for argument, x in self.written(args):
            check_unmarked(self.function, argument, x)

    def check_tensors(self, args: tuple[Any, ...]) -> None:
        for i, optional in self.tensors:
            if not (optional and args[i] is None):
                require_tensor(self.function, self.arguments[i], args[i], optional)

    def check_types(self, args: tuple[Any, ...]) -> None:
        self.check_tensors(args)
        for i, kind in self.others:
            optional, x = kind.startswith("Optional["), args[i]
            kind = kind.removeprefix("Optional[").removesuffix("]")
            if kind in _WORDS and not (_is_of(kind, x) or (optional and x is None)):
                refuse(self.function, self.arguments[i], f"{_WORDS[kind]}{' or None' if optional else ''}", repr(x))

    def check_devices(self, args: tuple[Any, ...]) -> None:
        (first, like), *others = self.given(args)
        for argument, x in others:
            if x.device != like.device:
                raise ValueError(f"{self.function}: {argument}: expected {like.device}, the device of {first}, got {x.device}")


def refuse(function: str, argument: str, expected: object, got: object) -> NoReturn:
    raise ValueError(f"{function}: {argument}: expected {expected}, got {got}")


def check_unmarked(function: str, argument: str, written: Tensor) -> None:
    """Refuses tensors that torch marks as conjugate or negative without changing memory: kernels do not see the mark."""
    if written.is_conj() or written.is_neg():
        view = "conjugate" if written.is_conj() else "negative"
        refuse(function, argument, "memory that holds the numbers themselves, as it is written", f"a {view} view")


def require_tensor(function: str, argument: str, given: object, optional: bool = False) -> None:
    """Raises unless `given` is a tensor whose elements are in memory by strides, as operators read them."""
    if not isinstance(given, Tensor):
        raise ValueError(not_a_tensor(function, argument, given, optional))
    if other := _layout_of(given):
        refuse(function, argument, "a tensor with strides", other)


def require_tensors(function: str, **given: object) -> None:
    """`require_tensor` for each argument; the caller leaves out optional arguments that are None."""
    for argument, x in given.items():
        require_tensor(function, argument, x)


def _layout_of(x: Tensor) -> str:
    """The layout of x if it is not strided, otherwise an empty string."""
    if x.is_nested:
        return "a nested tensor"
    if x.layout is not torch.strided:
        return f"a tensor of layout {x.layout}"
    return "a quantized tensor" if x.is_quantized else ""


def not_a_tensor(function: str, argument: str, given: object, optional: bool = False) -> str:
    got = "None" if given is None else type(given).__name__
    return f"{function}: {argument}: expected a tensor{' or None' if optional else ''}, got {got}"
