"""The functions that an integration replaces, with the parameters that were verified. A host with other parameters is refused
and keeps its own kernels. A host is never refused for its version alone."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

from . import source

logger = logging.getLogger("gdn_cuda")
Targets = Mapping[str, str]  # parameters, as `parameters` writes them, by "module:attribute"
# By version, the newest last. "run": tests ran its calls. "compared": its parameters alone were compared, by
# tests/peers/check_versions.py.
Versions = Mapping[str, Literal["run", "compared"]]


class Refused(RuntimeError):
    """The host differs from what was verified."""


class NotInstalled(Refused):
    """There is no host."""


# ---- Parameters of imported functions


def parameters(function: Any) -> str:
    """The parameters with their defaults and without annotations: "q, k, scale=None, **kwargs"."""
    signature = inspect.signature(function)
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))[1:-1]


def owner_of(target: str) -> tuple[Any, str]:
    """The module or class of "module:attribute", which is imported, and the attribute's name there."""
    module, _, path = target.partition(":")
    *classes, name = path.split(".")
    return reduce(getattr, classes, importlib.import_module(module)), name


def names_of(each: Any, package: str) -> list[tuple[Any, str]]:
    """All places where the imported modules of a package refer to this function or class: modules import from each other, under
    several names."""
    modules = [module for name, module in list(sys.modules.items()) if name == package or name.startswith(f"{package}.")]
    return [(module, name) for module in modules for name, value in list(vars(module).items()) if value is each]


def _refusal(target: str, expected: str, got: str) -> str:
    return f"{target}: expected ({expected}), got {got}"


def difference(target: str, expected: str, optional: bool = False) -> str:
    """The difference found after an import of the module, or "". An optional target may be absent or None."""
    try:
        found = getattr(*owner_of(target))
        if found is None and optional:
            return ""
        got = parameters(found)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        absent = optional and isinstance(error, (ImportError, AttributeError))
        return "" if absent else _refusal(target, expected, f"none: {error}")
    return "" if got == expected else _refusal(target, expected, f"({got})")


def check(targets: Targets, optional: frozenset[str] = frozenset()) -> None:
    """Imports the modules. Raises Refused with every difference."""
    found = [difference(target, expected, target in optional) for target, expected in targets.items()]
    if any(found):
        raise Refused("; ".join(filter(None, found)))


# ---- Hosts


@dataclass(frozen=True)
class Finding:
    """The result of `Host.examine`: no library, one that is refused, one with some parts refused, or one as verified."""

    status: Literal["absent", "refused", "partial", "verified"]
    text: str


@dataclass(frozen=True)
class Host:
    """A library, and the functions that are replaced in it. Its parts are replaced independently of each other."""

    package: str  # as pip calls it
    module: str
    versions: Versions
    parts: Mapping[str, Targets]
    optional: frozenset[str] = frozenset()  # targets that the library may lack

    @property
    def targets(self) -> Targets:
        return {target: expected for part in self.parts.values() for target, expected in part.items()}

    @property
    def newest(self) -> str:
        return [*self.versions][-1]

    def installed(self) -> str:
        """Its name with its version; imports nothing of it. Raises NotInstalled."""
        if sys.modules.get(self.module) is None and importlib.util.find_spec(self.module) is None:
            raise NotInstalled(f"{self.package} is not installed")
        return f"{self.package} {self._version() or '(its metadata has no version)'}"

    def _version(self) -> str:
        try:
            found = importlib.metadata.version(self.package) or ""
        except (importlib.metadata.PackageNotFoundError, KeyError):
            return ""
        return found.partition("+")[0]  # without what a build adds: 0.33.0+cu129

    def require(self, parts: Iterable[str] | None = None) -> None:
        """Compares imported modules, and the source of the others. Raises Refused with every difference if an imported module
        differs, or if all parts do."""
        self.installed()
        parts = [*(self.parts if parts is None else parts)]
        found = {part: [*self._differences(self.parts[part])] for part in parts}
        different = [text for texts in found.values() for _, text in texts if text]
        imported = [text for texts in found.values() for is_imported, text in texts if text and is_imported]
        if imported or (parts and all(any(text for _, text in texts) for texts in found.values())):
            raise Refused("; ".join(imported or different))
        self._tell()

    def require_imported(self) -> None:
        """Imports the modules of all targets and compares. Raises Refused with every difference."""
        self.installed()
        check(self.targets, self.optional)
        self._tell()

    def _tell(self) -> None:
        level = logging.INFO if self._version() in self.versions else logging.WARNING
        if self.versions.get(self._version()) != "run":
            logger.log(level, "%s was not run with gdn_cuda; its parameters are those of %s", self.installed(), self.newest)

    def examine(self) -> Finding:
        """What `install` would find. Imports nothing of the library."""
        try:
            title = self.installed()
        except NotInstalled as absent:
            return Finding("absent", str(absent))
        found = {part: [text for _, text in self._differences(targets) if text] for part, targets in self.parts.items()}
        different = {part: texts for part, texts in found.items() if texts}
        count, first = sum(map(len, different.values())), next(iter(different.values()), [""])[0]
        more = f"; and {count - 1} more" if count > 1 else ""
        if len(different) == len(found):
            return Finding("refused", f"{title} is refused: {first}{more}")
        was_run = "was run" if self.versions.get(self._version()) == "run" else "was not run"
        compared = (
            f"{title} {was_run}: {len(self.targets) - count} functions that are replaced have the parameters of {self.newest}"
        )
        if different:
            return Finding("partial", f"{compared}; left as they are: {', '.join(different)}: {first}{more}")
        return Finding("verified", compared)

    def available(self) -> tuple[bool, str]:
        finding = self.examine()
        return finding.status in ("partial", "verified"), finding.text

    def _differences(self, targets: Targets) -> Iterator[tuple[bool, str]]:
        """For each target, whether its module is imported, and the difference or "". A target whose parameters the source does
        not show counts as equal: it is compared again once it is imported."""
        files = source.installed(self.module)
        for target, expected in targets.items():
            optional = target in self.optional
            if target.partition(":")[0] in sys.modules:
                yield True, difference(target, expected, optional)
            else:
                yield False, "" if files is None else source_difference(files, target, expected, optional)


def source_difference(files: source.Source, target: str, expected: str, optional: bool = False) -> str:
    """A difference that the source shows for certain, or ""."""
    try:
        found, unreadable = files.parameters(target)
    except source.Missing as missing:
        return "" if optional else _refusal(target, expected, f"none: {missing}")
    except source.Unreadable:
        return ""
    if expected in found or unreadable:
        return ""
    return _refusal(target, expected, " or ".join(f"({each})" for each in sorted(found)))
