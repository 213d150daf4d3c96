"""Public docstrings and their sections: `Formula:`, `Shapes:`, `Parameters:`, `Edge cases:` and `Example:`, indented below. The
pages of the operators are made of them, and tests/test_docs.py asks for them. Every parameter is the subject of an item,
"name: …" or "name, name: …": a tensor in `Shapes:`, an option in `Parameters:`."""

from __future__ import annotations

import enum
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import gdn_cuda
import gdn_cuda.nn
import gdn_cuda.parallel


def _families() -> list[ModuleType]:
    """The packages whose public names are all public names of gdn_cuda, in its order."""
    modules = [each for each in vars(gdn_cuda).values() if inspect.ismodule(each) and getattr(each, "__all__", None)]
    found = [each for each in modules if set(each.__all__) <= set(gdn_cuda.__all__)]
    return sorted(found, key=lambda family: gdn_cuda.__all__.index(family.__all__[0]))


FAMILIES = _families()
SECTIONS_OF_OPERATORS = ("Formula", "Shapes", "Edge cases", "Example")
SECTIONS_OF_MODULES = ("Shapes", "Example")
_HEADING = re.compile(r"(Formula|Shapes|Parameters|Edge cases|Example):$")
_LISTS = ("Shapes", "Parameters")
_AS_IN = re.compile(r"as in `(?:\w+\.)*(\w+)`")


def operators(family: ModuleType) -> dict[str, Callable[..., Any]]:
    public = {name: getattr(family, name) for name in family.__all__}
    return {name: function for name, function in public.items() if inspect.isfunction(function)}


def types(family: ModuleType) -> dict[str, type]:
    """Enumerations and NamedTuples, the types that have a page."""
    public = {name: getattr(family, name) for name in family.__all__}
    return {name: each for name, each in public.items() if inspect.isclass(each) and _has_page(each)}


def _has_page(each: type) -> bool:
    return issubclass(each, enum.Enum) or (issubclass(each, tuple) and hasattr(each, "_fields"))


def modules() -> dict[str, type]:
    return {name: getattr(gdn_cuda.nn, name) for name in gdn_cuda.nn.__all__}


def runtime_functions() -> dict[str, Callable[..., Any]]:
    family_names = {name for family in FAMILIES for name in family.__all__}
    public = {name: getattr(gdn_cuda, name) for name in gdn_cuda.__all__ if name not in family_names}
    return {name: each for name, each in public.items() if callable(each)}


def parallel_functions() -> dict[str, Callable[..., Any]]:
    public = {name: getattr(gdn_cuda.parallel, name) for name in gdn_cuda.parallel.__all__}
    return {f"parallel.{name}": each for name, each in public.items() if inspect.isfunction(each)}


def called() -> dict[str, Any]:
    """Every public function, and every module, by name."""
    found = {name: each for family in FAMILIES for name, each in operators(family).items()}
    return found | modules() | runtime_functions() | parallel_functions()


def sections(documented: Any) -> dict[str, str]:
    """By name; "" is the summary, and "Notes" is the text that belongs to no section."""
    found: dict[str, list[str]] = {"": []}
    current = ""
    for line in (inspect.getdoc(documented) or "").splitlines():
        if heading := _HEADING.match(line):
            current = heading[1]
        elif current and line and not line.startswith(" "):
            current = "Notes"
        found.setdefault(current, []).append("" if heading else line)
    return {name: textwrap.dedent("\n".join(lines)).strip() for name, lines in found.items()}


def faults() -> Iterator[str]:
    yield from unknown_names()
    yield from missing_sections()
    yield from unexplained_parameters()


def unknown_names() -> Iterator[str]:
    for family in FAMILIES:
        for name in sorted({*family.__all__} - {*operators(family), *types(family)}):
            got = type(getattr(family, name)).__name__
            yield f"{name}: expected a function, an enumeration or a NamedTuple, which have pages, got {got}"
        for name, each in types(family).items():
            if not each.__doc__ or each.__doc__.startswith(f"{name}("):  # what Python writes for a NamedTuple
                yield f"{name}: expected a docstring, got none"


def missing_sections() -> Iterator[str]:
    """What the docstrings of operators and modules lack."""
    wanted = [(operators(family), SECTIONS_OF_OPERATORS) for family in FAMILIES] + [(modules(), SECTIONS_OF_MODULES)]
    for documented, needed in wanted:
        for name, each in documented.items():
            found = sections(each)
            for section in needed:
                if not found.get(section):
                    yield f"{name}: its docstring lacks the section '{section}:'"
                elif section == "Example" and ">>> " not in found[section]:
                    yield f"{name}: the example in its docstring lacks a line with >>>"


def subjects(documented: Any) -> dict[str, str]:
    """What items say, by the names that they are about. An item, "name, name: …", begins a line or follows a semicolon."""
    found: dict[str, str] = {}
    for line in "\n".join(text for name, text in sections(documented).items() if name in _LISTS).splitlines():
        items = line.split("; ")
        for item in items[1:] if line.startswith(" ") else items:
            names, _, meaning = item.partition(": ")
            found |= dict.fromkeys(re.sub(r"\([^()]*\)", "", names).split(", "), meaning) if meaning else {}
    return found


def unexplained_parameters() -> Iterator[str]:
    explained = {name: subjects(each) for name, each in called().items()}
    for name, each in called().items():
        for parameter in inspect.signature(each).parameters:
            if parameter not in explained[name]:
                yield f"{name}: its docstring lacks an item '{parameter}: …' in Shapes or Parameters"
            elif (same := _AS_IN.match(explained[name][parameter])) and parameter not in explained[same[1]]:
                yield f"{name}: its docstring says that {parameter} is as in {same[1]}, which lacks an item '{parameter}: …'"


def signature(name: str, documented: Any) -> str:
    """On one line, or a parameter a line where it is long; enumerators by name."""
    found = inspect.signature(documented)
    parameters = [each for each in found.parameters.values() if each.name != "self"]
    shown = [_parameter(each) for each in parameters]
    kinds = [each.kind for each in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        shown.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    result = "" if found.return_annotation in (found.empty, None, "None") else f" -> {found.return_annotation}"
    line = f"{name}({', '.join(shown)}){result}"
    if len(line) <= 100:
        return line
    return "\n".join([f"{name}(", *(f"    {each}," for each in shown), f"){result}"])


def _parameter(each: inspect.Parameter) -> str:
    stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
    annotation = "" if each.annotation is each.empty else f": {each.annotation}"
    if each.default is each.empty:
        return f"{stars}{each.name}{annotation}"
    default = (
        f"{type(each.default).__name__}.{each.default.name}" if isinstance(each.default, enum.Enum) else repr(each.default)
    )
    return f"{each.name}{annotation} = {default}"


def markdown(documented: Any, heading: str) -> str:
    """`heading` is the Markdown prefix of the sections' headings, such as "##"."""
    found = sections(documented)
    parts = [found.pop("")]
    for name, text in found.items():
        if name == "Formula":
            text = f"```text\n{text}\n```"
        elif name == "Example":
            text = f"```pycon\n{text}\n```"
        elif name in _LISTS:
            text = re.sub(r'^  (?=")', "  - ", re.sub(r"^(?=\S)", "- ", text, flags=re.MULTILINE), flags=re.MULTILINE)
            text = re.sub(r"(^- |; )([^:()`;\n]+)(?=: )", _with_names_as_code, text, flags=re.MULTILINE)
        elif name == "Edge cases":  # an item ends where a line ends with its sentence
            text = "\n".join(f"- {textwrap.indent(item, '  ').strip()}" for item in re.split(r"(?<=\.)\n", text))
        parts.append(f"{heading} {name}\n\n{text}")
    return "\n\n".join(parts) + "\n"


def _with_names_as_code(item: re.Match[str]) -> str:
    return item[1] + ", ".join(f"`{name}`" if name.isidentifier() else name for name in item[2].split(", "))
