"""Graphs of the files and folders that include or import each other, and the circles in them."""

from __future__ import annotations

import ast
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

Graph = dict[str, set[str]]

_INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)


def cpp_files(root: Path, folders: tuple[str, ...], suffixes: tuple[str, ...] = (".cpp", ".hpp", ".cuh")) -> Graph:
    """File → files of `folders` that it includes, as paths from `root`; other includes are left out.

    A name in quotes is looked for beside the file first, and any name then below each of `folders`."""
    files = [path for folder in folders for path in (root / folder).rglob("*") if path.suffix in suffixes]
    known = {path.relative_to(root).as_posix() for path in files}

    def found(path: Path, quoted: str, angled: str) -> str | None:
        places = [path.parent / quoted] if quoted else []
        for place in [*places, *(root / folder / (quoted or angled) for folder in folders)]:
            name = os.path.relpath(os.path.normpath(place), root)
            if name in known:
                return name
        return None

    return {
        path.relative_to(root).as_posix(): {name for pair in _INCLUDE.findall(path.read_text()) if (name := found(path, *pair))}
        for path in files
    }


def python_files(package: Path) -> Graph:
    """Module → modules of the package that it imports at the top level, for types too; imports in functions are left out."""
    modules = {_module(path, package): path for suffix in ("pyi", "py") for path in package.rglob(f"*.{suffix}")}
    return {name: set(_imports(name, path, modules)) - {name} for name, path in modules.items()}


def _module(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(module: str, path: Path, modules: dict[str, Path]) -> Iterator[str]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in _outside_functions(ast.parse(path.read_text()).body):
        if isinstance(node, ast.Import):
            yield from (_nearest(alias.name, modules) for alias in node.names if _nearest(alias.name, modules))
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:  # a module of the package `base`, or a name in it
                if name := _nearest(f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base, modules):
                    yield name


def _nearest(name: str, modules: dict[str, Path]) -> str:
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def _outside_functions(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements outside functions, including those in classes, conditions and `try`."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield node
        for field in ("body", "orelse", "finalbody"):
            yield from _outside_functions(getattr(node, field, []))
        for handler in getattr(node, "handlers", []):
            yield from _outside_functions(handler.body)


def by_folder(files: Graph, folder_of: Callable[[str], str]) -> Graph:
    folders: Graph = defaultdict(set)
    for name, others in files.items():
        folders[folder_of(name)] |= {folder_of(other) for other in others} - {folder_of(name)}
    return dict(folders)


def folder(path: str) -> str:
    """The folder of a path with slashes."""
    return str(PurePosixPath(path).parent)


def circles(graph: Graph) -> list[list[str]]:
    """The strongly connected components of more than one node, and nodes that point to themselves: Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    open_: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        open_.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in open_:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = open_.index(node)
            component = sorted(open_[at:])
            del open_[at:]
            if len(component) > 1 or node in graph.get(node, ()):
                found.append(component)

    for node in graph:
        if node not in index:
            visit(node)
    return found


def edges(graph: Graph, files: Graph, folder_of: Callable[[str], str]) -> list[str]:
    """The includes that make the circles of folders, to show which files to move."""
    inside = {name: index for index, component in enumerate(circles(graph)) for name in component}
    return sorted(
        f"{name} -> {other}"
        for name, others in files.items()
        for other in others
        if folder_of(name) != folder_of(other) and inside.get(folder_of(name), -1) == inside.get(folder_of(other), -2)
    )
