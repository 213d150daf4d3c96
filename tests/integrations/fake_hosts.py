"""Fake modules with the functions and classes that an integration replaces, with the verified parameters, in place of a library
that is not installed or that a test must not change."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gdn_cuda.hosts.verified import Host


def function(name: str, parameters: str) -> Any:
    """A function that returns "host" and records its calls."""
    names: dict[str, Any] = {"reached": [], "inf": math.inf}
    exec(f"def {name}({parameters}):\n    reached.append({name!r})\n    return 'host'", names)
    names[name].reached = names["reached"]
    return names[name]


def module(monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    """The fake module of this name in sys.modules; it and all packages above it are created if they are missing."""
    path = ""
    for part in name.split("."):
        above, path = path, f"{path}.{part}".lstrip(".")
        if not isinstance(sys.modules.get(path), _Fake):
            monkeypatch.setitem(sys.modules, path, _Fake(path))
            if above:
                setattr(sys.modules[above], part, sys.modules[path])
    return sys.modules[name]


class _Fake(ModuleType):
    def __init__(self, name: str):
        super().__init__(name)
        self.__path__: list[str] = []  # a package without files


def make(monkeypatch: pytest.MonkeyPatch, host: Host, version: str | None = None) -> dict[str, Any]:
    """Fakes of all modules of a host's targets, by name, with this version (default: the newest)."""
    monkeypatch.setattr(type(host), "_version", lambda each: version or each.newest)
    modules = {}
    for target, parameters in host.targets.items():
        name, _, path = target.partition(":")
        owner = modules[name] = module(monkeypatch, name)
        *classes, attribute = path.split(".")
        for each in classes:
            if not hasattr(owner, each):
                setattr(owner, each, type(each, (), {"__module__": name}))
            owner = getattr(owner, each)
        setattr(owner, attribute, function(attribute, parameters))
    return modules


def write(folder: Path, targets: Mapping[str, str]) -> None:
    """Writes the same modules as files of a package in a folder."""
    text: dict[str, list[str]] = {}
    for target, parameters in targets.items():
        name, _, path = target.partition(":")
        lines = text.setdefault(name, ["inf = float('inf')"])
        first, _, method = path.partition(".")
        if not method:
            lines.append(f"def {first}({parameters}): pass")
            continue
        if f"class {first}:" not in lines:
            lines.append(f"class {first}:")
        lines.insert(lines.index(f"class {first}:") + 1, f"    def {method}({parameters}): pass")
    for name, lines in text.items():
        file = folder / f"{name.replace('.', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines) + "\n")
        for above in file.relative_to(folder).parents:
            if above != Path():
                (folder / above / "__init__.py").touch()


def forget(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Makes imports of the package load it again, until the end of the test."""
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
