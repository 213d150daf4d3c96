"""Parameters read from source: compared with `inspect` for all functions of importable packages; and sources that do not show
them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gdn_cuda.hosts import source, verified

STANDARD = ["asyncio", "email", "importlib", "json", "logging", "unittest"]


def functions(package: str) -> Iterator[tuple[str, Any]]:
    """ "module:function" and "module:Class.method", imported names too."""
    path = importlib.import_module(package).__path__
    names = [package, *(each.name for each in pkgutil.iter_modules(path, f"{package}.") if "__main__" not in each.name)]
    for name in names:
        try:
            module = importlib.import_module(name)
        except ImportError:  # of another operating system
            continue
        for attribute, value in list(vars(module).items()):
            owner = getattr(value, "__module__", "") or ""
            if owner.partition(".")[0] != package:
                continue
            if inspect.isfunction(value):
                yield f"{name}:{attribute}", value
            elif inspect.isclass(value):
                for method, each in vars(value).items():
                    if inspect.isfunction(each) and not hasattr(each, "__wrapped__"):
                        yield f"{name}:{attribute}.{method}", each


@pytest.mark.parametrize("package", STANDARD)
def test_source_shows_the_same_parameters_as_an_import(package: str) -> None:
    files = source.installed(package)
    assert files is not None
    compared, unreadable = 0, []
    for target, function in functions(package):
        if package not in Path(function.__code__.co_filename).parts:  # a decorator made it, or dataclasses
            continue
        defaults = inspect.signature(function).parameters.values()
        if function.__qualname__ != target.partition(":")[2].removeprefix(f"{package}.") or any(
            isinstance(each.default, (list, dict)) for each in defaults
        ):
            continue  # functions that a loop bound, and defaults that calls change
        found, why = files.parameters(target)
        if why or hasattr(function, "__wrapped__"):
            unreadable.append(target)
            continue
        assert verified.parameters(function) in found, target
        compared += 1
    assert compared > 4 * len(unreadable) and compared > 10, unreadable


def files(**text: str) -> source.Source:
    """A package "lib" with these modules."""
    names = {f"lib/{name.replace('__', '/')}.py" if name != "init" else "lib/__init__.py": each for name, each in text.items()}
    return source.Source("lib", lambda path: source.read(names[path], path.endswith("__init__.py")) if path in names else None)


@pytest.mark.parametrize(
    ("modules", "target", "expected"),
    [
        ({"a": "def f(x, /, y: int = 1, *args, z='s', **kw) -> int: ..."}, "lib.a:f", "x, /, y=1, *args, z='s', **kw"),
        ({"a": "async def f(x, *, scale=1e-6): ..."}, "lib.a:f", "x, *, scale=1e-06"),
        ({"a": "from .b import g as f", "b": "def g(x): ..."}, "lib.a:f", "x"),
        ({"init": "from .b import g", "b": "from lib.c import g", "c": "def g(x): ..."}, "lib:g", "x"),
        ({"init": "from lib.b import *", "b": "def g(x): ..."}, "lib:g", "x"),
        ({"a": "def g(x): ...\nf = g"}, "lib.a:f", "x"),
        ({"a": "try:\n    from .gone import f\nexcept ImportError:\n    def f(x): ..."}, "lib.a:f", "x"),
        ({"a": "try:\n    from .b import f\nexcept ImportError:\n    f = None", "b": "def f(x): ..."}, "lib.a:f", "x"),
        ({"a": "from .b import NULL\ndef f(x=NULL): ...", "b": "NULL = -1"}, "lib.a:f", "x=-1"),
        ({"a": 'def f(x=(0.0, float("inf"))): ...'}, "lib.a:f", "x=(0.0, inf)"),
        ({"a": "from .b import N\ndef f(x=(N, 'a')): ...", "b": "N = 3"}, "lib.a:f", "x=(3, 'a')"),
        ({"a": "@decorated(1)\nclass C:\n    @other\n    def f(self, x): ..."}, "lib.a:C.f", "self, x"),
        ({"a": "class C:\n    def g(self, x): ...\n    f = g"}, "lib.a:C.f", "self, x"),
        ({"a": "def g(self, x): ...\nclass C:\n    f = g"}, "lib.a:C.f", "self, x"),
        ({"a": "class C:\n    if True:\n        def f(self, x): ..."}, "lib.a:C.f", "self, x"),
        ({"a": "from .b import D\nclass C(D): ...", "b": "class D:\n    def f(self, x): ..."}, "lib.a:C.f", "self, x"),
    ],
)
def test_names_are_followed(modules: dict[str, str], target: str, expected: str) -> None:
    assert files(**modules).parameters(target) == ({expected}, "")


def test_all_branches_are_reported() -> None:
    text = "if cuda:\n    def f(x): ...\nelse:\n    def f(x, y): ..."
    assert files(a=text).parameters("lib.a:f") == ({"x", "x, y"}, "")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("from other import f", "f is imported from other"),
        ("f = made(1)", "f is made when lib.a is imported"),
        ("def f(x=made()): ...", "a default is made()"),
        ("f = made.other", "f is made when lib.a is imported"),
        ("def f(x=torch.float32): ...", "a default is torch.float32"),
        ("A = B\nB = A\ndef f(x=A): ...", "a default is A"),
    ],
)
def test_parameters_that_only_an_import_shows_are_unreadable(text: str, why: str) -> None:
    assert files(a=text).parameters("lib.a:f") == (frozenset(), why)
    assert not verified.source_difference(files(a=text), "lib.a:f", "x")


@pytest.mark.parametrize(
    ("text", "target", "why"),
    [
        ("", "lib.b:f", "there is no module lib.b"),
        ("", "lib.a:f", "lib.a has no f"),
        ("f = None", "lib.a:f", "lib.a has no f"),
        ("class C: ...", "lib.a:C.f", "lib.a has no C.f"),
        ("from .gone import f", "lib.a:f", "there is no module lib.gone"),
        ("from .a import f", "lib.a:f", "lib.a has no f"),
        ("class C(C): ...", "lib.a:C.f", "lib.a has no C.f"),
        ("class C:\n    f = g\n    g = f", "lib.a:C.f", "lib.a has no C.f"),
        ("f = f", "lib.a:f", "lib.a has no f"),
    ],
)
def test_a_missing_name_raises_missing(text: str, target: str, why: str) -> None:
    with pytest.raises(source.Missing, match=why):
        files(a=text).parameters(target)
    assert verified.source_difference(files(a=text), target, "x") == f"{target}: expected (x), got none: {why}"
    assert not verified.source_difference(files(a=text), target, "x", optional=True)


def test_source_that_this_python_cannot_parse_is_no_difference() -> None:
    assert not verified.source_difference(files(a="def f(x: ..."), "lib.a:f", "x")
    assert not verified.source_difference(files(a="\0"), "lib.a:f", "x")


def test_an_edited_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "gdn_cuda_test_edited"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    for parameters in ("x", "x, y"):
        (package / "a.py").write_text(f"def f({parameters}): ...")
        found = source.installed(package.name)
        assert found is not None and found.parameters(f"{package.name}.a:f") == ({parameters}, "")
    assert package.name not in sys.modules


@pytest.mark.parametrize(
    "text", ["import other\nclass C(other.D): ...", "class C:\n    f = made()", "C = made()", "from other import C"]
)
def test_methods_that_only_an_import_shows(text: str) -> None:
    assert files(a=text).parameters("lib.a:C.f")[1]
    assert not verified.source_difference(files(a=text), "lib.a:C.f", "self, x")
