"""What an integration replaces, as it was when it was verified. Anything else is refused, and the host's own kernels stay.

A table VERSIONS has a prefix of a version ("5.23") and what was verified there: "module:attribute" and its parameters, with
defaults, as `parameters` writes them.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

Targets = Mapping[str, str]  # parameters by "module:attribute"
Versions = Mapping[str, Targets]


class Refused(RuntimeError):
    """The host is not what was verified."""


def parameters(function: Any) -> str:
    """The parameters with their defaults and without annotations: "q, k, scale=None, **kwargs"."""
    signature = inspect.signature(function)
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))[1:-1]


def installed_version(package: str, module: str) -> str:
    """Raises Refused where there is none."""
    if importlib.util.find_spec(module) is None:
        raise Refused(f"{package} is not installed")
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise Refused(f"{package} has no version: its metadata is missing") from None


def verified(package: str, version: str, versions: Versions) -> Targets:
    for prefix, targets in versions.items():
        if f"{version}.".startswith(f"{prefix}."):
            return targets
    raise Refused(f"{package}: expected version {' or '.join(f'{prefix}.*' for prefix in versions)}, got {version}")


def available(package: str, module: str, versions: Versions) -> tuple[bool, str]:
    """Whether `install` would find a version that was verified; imports nothing of the host."""
    try:
        version = installed_version(package, module)
        verified(package, version, versions)
    except Refused as refused:
        return False, str(refused)
    return True, f"{package} {version}"


def owner_of(target: str) -> tuple[Any, str]:
    """The module or class of "module:attribute", which is imported, and the attribute's name there."""
    module, _, path = target.partition(":")
    *classes, name = path.split(".")
    return reduce(getattr, classes, importlib.import_module(module)), name


def names_of(each: Any, package: str) -> list[tuple[Any, str]]:
    """Where the imported modules of a package have this function or class: they import from each other, under several names."""
    modules = [module for name, module in list(sys.modules.items()) if name == package or name.startswith(f"{package}.")]
    return [(module, name) for module in modules for name, value in list(vars(module).items()) if value is each]


def check(targets: Targets) -> None:
    """Raises Refused with every difference."""
    if found := list(differences(targets)):
        raise Refused("; ".join(found))


def differences(targets: Targets) -> Iterator[str]:
    for target, expected in targets.items():
        try:
            got = parameters(getattr(*owner_of(target)))
        except (ImportError, AttributeError, TypeError) as error:
            yield f"{target}: expected ({expected}), got none: {error}"
        else:
            if got != expected:
                yield f"{target}: expected ({expected}), got ({got})"
