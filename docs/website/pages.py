"""Writes the Markdown pages of the website into a folder: `python docs/website/pages.py FOLDER`.

Guides are copied. Everything else is generated: an operator's page from its signature, its docstring and the benchmark tables
that name it, the commands' page from their parsers. No list of operators exists here; families' `__all__` is the only one.
Exits with 1 where an operator's docstring lacks a section. Sphinx then fails on links that lead nowhere.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import pkgutil
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docstrings

import gdn_cuda._C
import gdn_cuda.compat
import gdn_cuda.nn

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ("jit", "structured", "scan", "conv", "numerics", "architecture")  # this order first; the others follow by name
LINK = re.compile(r"\]\(([^)#\s]+)((?:#[^)\s]+)?)\)")


# ---- Benchmark tables, by operator


def benchmark_tables(name: str) -> Iterator[tuple[Path, str, str]]:
    """(page, title, table) for every table of docs/benchmarks that is of this operator: the heading above it, or its rows, have
    the name in backticks. Of a table with several operators, the rows from this name to the next one."""
    for page in sorted((ROOT / "docs/benchmarks").glob("*.md")):
        title, lines = "", iter([*page.read_text().splitlines(), ""])
        table: list[str] = []
        for line in lines:
            if line.startswith("#"):
                title = line.lstrip("# ")
            if line.startswith("|"):
                table.append(line)
            elif table:
                head, rows = table[:2], _rows_of(name, title, table[2:])
                if rows:
                    yield page, title, "\n".join([*head, *rows])
                table = []


def _rows_of(name: str, title: str, rows: list[str]) -> list[str]:
    """A row without an operator's name belongs to the operators of the row before it, in the end of the title."""
    public = {each for family in docstrings.FAMILIES for each in docstrings.operators(family)}
    found, current = [], set(_named(title))
    for row in rows:
        current = public & set(_named(row)) or current
        if name in current:
            found.append(row)
    return found


def _named(text: str) -> list[str]:
    return re.findall(r"`(\w+)[^`]*`", text)


# ---- Links


def targets() -> dict[str, str]:
    """Pages of names in backticks, relative to the site's root."""
    found = {}
    for family in docstrings.FAMILIES:
        for name in (*docstrings.operators(family), *docstrings.types(family)):
            found[name] = found[f"gdn_cuda.{name}"] = f"operators/{name}.md"
    for name in docstrings.modules():
        found[name] = found[f"gdn_cuda.nn.{name}"] = f"api/nn.md#{name.lower()}"
    for name in docstrings.runtime_functions():
        found[f"gdn_cuda.{name}"] = f"api/runtime.md#{name}"
    return found


def linked(text: str, page: str) -> str:
    """With links at the names of operators and of pages, outside of code and headings."""
    known = targets()

    def to_name(match: re.Match[str]) -> str:
        target = known.get(match[1])
        return f"[`{match[1]}`]({_relative(target, page)})" if target and target.split("#")[0] != page else match[0]

    def to_page(match: re.Match[str]) -> str:
        return f"[{match[0]}]({_relative(match[0], page)})"

    lines, fenced = [], False
    for line in text.split("\n"):
        fenced ^= line.lstrip().startswith("```")
        if not fenced and not line.startswith(("#", "    ", "```")):
            line = re.sub(r"(?<![\w\[(/])docs/[\w/]+\.md(?![\w\]`)])", to_page, line)
            line = re.sub(r"(?<!\[)`([\w.]+)`(?!\])", to_name, line)
        lines.append(line)
    return "\n".join(lines)


def _relative(target: str, page: str) -> str:
    path, _, anchor = target.partition("#")
    relative = os.path.relpath(path, Path(page).parent)
    return f"{relative}#{anchor}" if anchor else relative


# ---- Pages


class Site:
    def __init__(self, folder: Path):
        self.folder = folder

    def write(self, page: str, text: str) -> None:
        path = self.folder / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(linked(text, page))

    def copy(self, source: str, page: str | None = None, extra: str = "") -> None:
        """A page of the repository with what it links to; a link to a folder goes to that folder's index."""
        page = page or source
        here = (ROOT / source).parent

        def followed(match: re.Match[str]) -> str:
            target, anchor = match[1], match[2]
            if "://" in target:
                return match[0]
            path = (here / target).resolve()
            if path.is_dir():
                return f"]({target}/index.md)"
            if path == ROOT / "README.md":
                return f"]({_relative('index.md', page)}{anchor})"
            if path.is_file() and path.suffix != ".md":
                copied = self.folder / path.relative_to(ROOT)
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copied)
            return match[0]

        self.write(page, LINK.sub(followed, (ROOT / source).read_text()) + extra)

    def index(self, folder: str, title: str) -> None:
        pages = sorted(path.stem for path in (ROOT / folder).glob("*.md"))
        for page in pages:
            self.copy(f"{folder}/{page}.md")
        self.write(f"{folder}/index.md", f"# {title}\n\n{contents(pages)}")

    def operators(self) -> None:
        for family in docstrings.FAMILIES:
            name, everything = family.__name__.rpartition(".")[2], {**docstrings.operators(family), **docstrings.types(family)}
            summary, _, text = (inspect.getdoc(family) or "").partition("\n")
            pages = [each for each in family.__all__ if each in everything]
            rows = [f"| `{each}` | {docstrings.sections(everything[each])[''].splitlines()[0]} |" for each in pages]
            table = "\n".join(["| function | |", "|---|---|", *rows])
            title, _, rest = summary.rstrip(".").partition(": ")
            intro = f"{rest[:1].upper()}{rest[1:]}.\n" if rest else ""
            self.write(f"operators/{name}.md", f"# {title}\n\n{intro}{text}\n\n{table}\n\n{contents(pages, hidden=True)}")
            for each in pages:
                page_of = operator_page if inspect.isfunction(everything[each]) else type_page
                self.write(f"operators/{each}.md", page_of(each, everything[each]))

    def api(self) -> None:
        parts = [f"# Modules: `gdn_cuda.nn`\n\n{inspect.getdoc(gdn_cuda.nn)}\n"]
        for name, module in docstrings.modules().items():
            parts.append(f"## {name}\n\n{code(docstrings.signature(name, module))}\n\n{docstrings.markdown(module, '###')}")
            parts += [entry(method, getattr(module, method), "###") for method in methods(module)]
        self.write("api/nn.md", "\n".join(parts))

        parts = [f"# Other libraries' names: `gdn_cuda.compat`\n\n{inspect.getdoc(gdn_cuda.compat)}\n"]
        names = [each.name for each in pkgutil.iter_modules(gdn_cuda.compat.__path__)]
        for module in (importlib.import_module(f"gdn_cuda.compat.{name}") for name in names):
            if hasattr(module, "__all__"):
                parts.append(f"\n## {module.__name__}\n\n{inspect.getdoc(module)}\n")
                parts += [compat_row(module, name) for name in module.__all__]
        self.write("api/compat.md", "\n".join(parts) + "\n")

        parts = [f"# Compiling, warm-up and paths\n\n{inspect.getdoc(gdn_cuda)}\n"]
        parts += [entry(name, function, "##") for name, function in docstrings.runtime_functions().items()]
        result = gdn_cuda.runtime.CompileResult
        parts.append(f"## CompileResult\n\n{code(docstrings.signature('CompileResult', result))}\n\n{inspect.getdoc(result)}\n")
        self.write("api/runtime.md", "\n".join(parts))

        reference = gdn_cuda.reference
        parts = [f"# The reference: `gdn_cuda.reference`\n\n{inspect.getdoc(reference)}\n"]
        for name in reference.__all__:
            found = getattr(reference, name)
            summary = (inspect.getdoc(found) or "").split("\n\n")[0].replace("\n", " ")
            parts.append(f"- {'' if inspect.isfunction(found) else 'module '}`gdn_cuda.reference.{name}`: {summary}")
        self.write("api/reference.md", "\n".join(parts) + "\n")
        self.write("api/commands.md", commands_page())
        self.write("api/kernels.md", kernels_page())


def type_page(name: str, enumeration: Any) -> str:
    members = [f"- `gdn_cuda.{name}.{each.name}` = {each.value}" for each in enumeration]
    return "\n\n".join([f"# {name}", inspect.getdoc(enumeration) or "", "\n".join(members)]) + "\n"


def operator_page(name: str, documented: Any) -> str:
    parts = [f"# {name}", code(docstrings.signature(f"gdn_cuda.{name}", documented)), docstrings.markdown(documented, "##")]
    if tables := list(benchmark_tables(name)):
        parts.append("## Benchmarks")
        parts.append("How the figures were made and what the columns mean is on the pages that they come from.")
        for page, title, table in tables:
            parts.append(f"From [{title.replace('`', '')}]({_relative(str(page.relative_to(ROOT)), f'operators/{name}.md')}):")
            parts.append(table)
    return "\n\n".join(parts) + "\n"


def entry(name: str, documented: Any, heading: str) -> str:
    text = docstrings.markdown(documented, f"{heading}#")
    return f"{heading} {name}\n\n{code(docstrings.signature(name, documented))}\n\n{text}"


def methods(module: type) -> list[str]:
    found = {name: each for name, each in inspect.getmembers(module, inspect.isfunction) if not name.startswith("_")}
    ours = (name for name, each in found.items() if each.__module__.startswith("gdn_cuda") and each.__doc__)
    has_page = vars(gdn_cuda).values()
    return [name for name in ours if name != "extra_repr" and found[name] not in has_page]


def compat_row(module: Any, name: str) -> str:
    found = getattr(module, name)
    if inspect.isclass(found):
        return f"- `{name}`: `gdn_cuda.nn.{name}`"
    if not inspect.isfunction(found):
        return f"- `{name}`: a {type(found).__name__} with the keys {', '.join(map(repr, found))}"
    if found is getattr(gdn_cuda, found.__name__, None):
        return f"- `{name}`: `gdn_cuda.{found.__name__}`"
    if name != found.__name__:
        return f"- `{name}`: `{module.__name__}.{found.__name__}`"
    signature = " ".join(docstrings.signature(name, found).split()).replace("( ", "(").replace(", )", ")")
    return f"- `{signature}`: " + " ".join((inspect.getdoc(found) or "").split())


def commands_page() -> str:
    os.environ |= {"COLUMNS": "110", "NO_COLOR": "1"}
    from gdn_cuda.cli import parser

    top = parser()
    commands = next(action for action in top._actions if isinstance(action, argparse._SubParsersAction)).choices
    parts = ["# The command line", code(top.format_help(), "text")]
    for name, command in commands.items():
        parts += [f"## {name}", code(command.format_help(), "text")]
    return "\n\n".join(parts) + "\n"


def kernels_page() -> str:
    rows = [
        f"| `{each['family']}/{each['name']}` | {each['summary']} | {len(each['configurations'])} | "
        f"{gdn_cuda.runtime.architectures(each['min_capability'], each['max_capability'])} | "
        f"{'yes' if each['uses_cutlass'] else ''} |"
        for each in gdn_cuda._C.kernels()
    ]
    head = ["| kernel | what it does | configurations | architectures | needs CUTLASS |", "|---|---|---|---|---|"]
    return "# Kernels\n\nWhat `python -m gdn_cuda kernels` lists.\n\n" + "\n".join([*head, *rows]) + "\n"


def code(text: str, language: str = "python") -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def contents(pages: list[str], caption: str = "", hidden: bool = False) -> str:
    options = [":maxdepth: 1", *([":hidden:"] if hidden else []), *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["```{toctree}", *options, "", *pages, "```", ""])


def write_site(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    site = Site(folder)
    found = sorted(path.stem for path in (ROOT / "docs").glob("*.md"))
    guides = [*GUIDES, *(name for name in found if name not in GUIDES)]
    for name in guides:
        site.copy(f"docs/{name}.md")
    site.index("docs/kernels", "Kernels")
    site.index("docs/benchmarks", "Benchmarks")
    project = ["CONTRIBUTING", "CHANGELOG", "benchmarks/README"]
    for name in project:
        site.copy(f"{name}.md")
    site.operators()
    site.api()
    families = [f"operators/{family.__name__.rpartition('.')[2]}" for family in docstrings.FAMILIES]
    api = [f"api/{name}" for name in ("nn", "compat", "runtime", "commands", "kernels", "reference")]
    guides = [f"docs/{name}" for name in (*guides, "kernels/index", "benchmarks/index")]
    sections = {"Operators": families, "Python": api, "Guides": guides, "Project": project}
    site.copy("README.md", "index.md", "\n" + "\n".join(contents(pages, name, True) for name, pages in sections.items()))


def main() -> int:
    if faults := list(docstrings.faults()):
        print("docs: " + "\ndocs: ".join(faults), file=sys.stderr)
        return 1
    write_site(Path(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
