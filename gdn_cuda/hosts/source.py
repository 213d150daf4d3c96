"""Reads the parameters of a library's functions from its source. Nothing of the library is imported, so neither a GPU nor its
dependencies are needed. Names are followed through assignments and imports inside the package."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path


class Missing(LookupError):
    """The source has no such module, class or function."""


class Unreadable(ValueError):
    """The source alone does not determine the parameters; an import of the module does."""


@dataclass(frozen=True)
class _Import:
    module: str
    level: int  # dots before it
    name: str


@dataclass(frozen=True)
class _Class:
    name: str
    methods: dict[str, list[Bound]]
    bases: tuple[ast.expr, ...]


Bound = ast.arguments | ast.expr | _Class | _Import


@dataclass
class Module:
    """The bindings of a module's names, in each branch. A function is stored as its parameters, without its body."""

    is_package: bool
    names: dict[str, list[Bound]] = field(default_factory=dict)
    stars: list[_Import] = field(default_factory=list)


def read(text: str | bytes, is_package: bool) -> Module:
    """Raises Unreadable if the text is not valid Python of this version."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise Unreadable(f"it cannot be parsed: {error}") from None
    module = Module(is_package)
    for statement in _executed(tree.body):
        for name, bound in _bindings(statement):
            if name == "*" and isinstance(bound, _Import):
                module.stars.append(bound)
            else:
                module.names.setdefault(name, []).append(bound)
    return module


def _executed(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """These statements and those in their branches, but not those in functions and classes."""
    for statement in statements:
        yield statement
        if isinstance(statement, (ast.If, ast.Try, ast.With)):
            for block in ("body", "orelse", "finalbody"):
                yield from _executed(getattr(statement, block, []))
            for handler in getattr(statement, "handlers", []):
                yield from _executed(handler.body)


def _bindings(statement: ast.stmt) -> Iterator[tuple[str, Bound]]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield statement.name, statement.args
    elif isinstance(statement, ast.ClassDef):
        methods: dict[str, list[Bound]] = {}
        for each in _executed(statement.body):
            for name, bound in _bindings(each):
                methods.setdefault(name, []).append(bound)
        yield statement.name, _Class(statement.name, methods, tuple(statement.bases))
    elif isinstance(statement, ast.ImportFrom):
        for alias in statement.names:
            yield alias.asname or alias.name, _Import(statement.module or "", statement.level, alias.name)
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Name):
                yield target.id, statement.value
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value is not None:
        yield statement.target.id, statement.value


Find = Callable[[str], "Module | None"]  # by its path below the folder that the package is in: "fla/ops/utils.py"


class Source:
    """A package; `find` returns its modules."""

    def __init__(self, package: str, find: Find):
        self._package, self._find = package, find

    def parameters(self, target: str) -> tuple[frozenset[str], str]:
        """The parameters of "module:function" or "module:Class.method", as `verified.parameters` writes them: one string for
        each branch that defines it; and why there may be others, or "". Raises Missing, or Unreadable."""
        name, _, path = target.partition(":")
        first, _, method = path.partition(".")
        found, unreadable = set(), ""
        for module_name, bound in self._resolved(name, first):
            for origin, each in self._methods(module_name, bound, method) if method else [(module_name, bound)]:
                try:
                    if isinstance(each, ast.arguments):
                        found.add(self._written(origin, each))
                    elif isinstance(each, _Import):
                        unreadable = f"{path} is imported from {each.module}"
                    elif not (isinstance(each, ast.Constant) and each.value is None):  # None: the library has no such function
                        unreadable = f"{path} is made when {origin} is imported"
                except Unreadable as error:
                    unreadable = str(error)
        if not found and not unreadable:
            raise Missing(f"{name} has no {path}")
        return frozenset(found), unreadable

    def _module(self, name: str) -> Module:
        path = name.replace(".", "/")
        module = self._find(f"{path}.py") or self._find(f"{path}/__init__.py")
        if module is None:
            raise Missing(f"there is no module {name}")
        return module

    def _resolved(
        self, module_name: str, name: str, seen: frozenset[tuple[str, str]] = frozenset()
    ) -> Iterator[tuple[str, Bound]]:
        """The object that a module's name is bound to, through assignments and the package's own imports, and its module."""
        if (module_name, name) in seen:
            return
        seen |= {(module_name, name)}
        module = self._module(module_name)
        bindings = module.names.get(name) or [star for star in module.stars if not name.startswith("_")]
        for bound in bindings:
            if isinstance(bound, ast.Name):
                yield from self._resolved(module_name, bound.id, seen)
                continue
            origin = _absolute(module_name, module, bound) if isinstance(bound, _Import) else ""
            if not isinstance(bound, _Import) or (origin.partition(".")[0] != self._package and bound.name != "*"):
                yield module_name, bound
            elif origin.partition(".")[0] == self._package:
                try:
                    yield from self._resolved(origin, name if bound.name == "*" else bound.name, seen)
                except Missing:
                    if len(bindings) == 1:  # else it is in a branch that is not run
                        raise

    def _methods(
        self, module_name: str, bound: Bound, method: str, seen: frozenset[tuple[str, str, str]] = frozenset()
    ) -> Iterator[tuple[str, Bound]]:
        """The binding of the method's name in a class, or in its first base that has one."""
        if not isinstance(bound, _Class):
            yield module_name, bound
            return
        if (module_name, bound.name, method) in seen:
            return
        seen |= {(module_name, bound.name, method)}
        for each in bound.methods.get(method, []):
            if isinstance(each, ast.Name) and each.id in bound.methods:
                yield from self._methods(module_name, bound, each.id, seen)
            elif isinstance(each, ast.Name):
                yield from self._resolved(module_name, each.id)
            else:
                yield module_name, each
        for base in bound.bases if method not in bound.methods else ():
            classes = self._resolved(module_name, base.id) if isinstance(base, ast.Name) else [(module_name, base)]
            inherited = [found for origin, each in classes for found in self._methods(origin, each, method, seen)]
            if inherited:
                yield from inherited
                return

    def _written(self, module_name: str, arguments: ast.arguments) -> str:
        positional = [*arguments.posonlyargs, *arguments.args]
        required = len(positional) - len(arguments.defaults)
        parameters = []
        for n, each in enumerate(positional):
            kind = (
                inspect.Parameter.POSITIONAL_ONLY if n < len(arguments.posonlyargs) else inspect.Parameter.POSITIONAL_OR_KEYWORD
            )
            default = arguments.defaults[n - required] if n >= required else None
            parameters.append(self._parameter(module_name, each.arg, kind, default))
        if arguments.vararg is not None:
            parameters.append(inspect.Parameter(arguments.vararg.arg, inspect.Parameter.VAR_POSITIONAL))
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            parameters.append(self._parameter(module_name, each.arg, inspect.Parameter.KEYWORD_ONLY, default))
        if arguments.kwarg is not None:
            parameters.append(inspect.Parameter(arguments.kwarg.arg, inspect.Parameter.VAR_KEYWORD))
        return str(inspect.Signature(parameters))[1:-1]

    def _parameter(
        self, module_name: str, name: str, kind: inspect._ParameterKind, default: ast.expr | None
    ) -> inspect.Parameter:
        if default is None:
            return inspect.Parameter(name, kind)
        return inspect.Parameter(name, kind, default=self._value(module_name, default))

    def _value(self, module_name: str, expression: ast.expr) -> object:
        """The value of a literal, of float("inf"), of a tuple of these, or of a name that is bound to one."""
        try:
            return ast.literal_eval(expression)
        except ValueError:
            pass
        if isinstance(expression, ast.Tuple):
            return tuple(self._value(module_name, each) for each in expression.elts)
        if ast.unparse(expression) == "float('inf')":
            return math.inf
        if isinstance(expression, ast.Name):
            values = [bound for _, bound in self._resolved(module_name, expression.id)]
            if len(values) == 1 and isinstance(values[0], ast.expr):
                return self._value(module_name, values[0])
        raise Unreadable(f"a default is {ast.unparse(expression)}")


def _absolute(module_name: str, module: Module, imported: _Import) -> str:
    """The module that an import names; relative names are resolved."""
    if not imported.level:
        return imported.module
    dropped = imported.level - (1 if module.is_package else 0)
    parts = module_name.split(".")
    return ".".join([*parts[: len(parts) - dropped], *filter(None, [imported.module])])


# ---- What is installed


@functools.lru_cache(maxsize=512)
def _read_file(path: str, modified: int, size: int) -> Module:
    return read(Path(path).read_bytes(), path.endswith("/__init__.py"))


def installed(package: str) -> Source | None:
    """The source of a package as it would be imported; None where there is none."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module that was made without a spec
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    folders = [Path(each) for each in spec.submodule_search_locations]

    def find(path: str) -> Module | None:
        for folder in folders:
            file = folder / path.partition("/")[2]
            try:
                state = file.stat()
                return _read_file(str(file), state.st_mtime_ns, state.st_size)
            except OSError:
                continue
        return None

    return Source(package, find)
