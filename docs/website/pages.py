"""Writes the pages of the website, Markdown that Sphinx reads: `python docs/website/pages.py FOLDER PLAIN`.

Pages of the repository are copied, those that docs/README.md lists, which is the start page, with a plot where a line is
`<!-- plot: NAME -->`. Everything else is generated: an operator's page from its signature, its docstring and the benchmark
tables that name it, the commands' page from their parsers. PLAIN gets what stands beside the HTML: each page as Markdown, and
llms.txt.
Exits with 1 where a docstring lacks a section or does not explain a parameter, a public name is of a type that has no page, or
a page of docs/ is in no list. Sphinx then fails on links that lead nowhere, and built.py looks at what it built.
"""

from __future__ import annotations

import inspect
import re
import shutil
import sys
import tempfile
from pathlib import Path

import contents
import docstrings
import llms
from contents import ROOT
from links import LINK, linked, relative
from python_pages import PYTHON_PAGES, operator_page, type_page

sys.path.insert(0, str(ROOT / "benchmarks"))

import plots

PLOT = re.compile(r"^<!-- plot: (\w+) -->$", re.MULTILINE)

_FOR_PROGRAMS = """\
Programs read this site as <a href="llms.txt">llms.txt</a>, which lists its pages, or <a href="llms-full.txt">llms-full.txt</a>,
which has them all; each page is also beside its HTML as Markdown.
"""


class Site:
    """Pages by their path, and files that they show."""

    def __init__(self) -> None:
        self.pages: dict[str, str] = {}
        self.files: set[str] = set()
        self.plots: set[str] = set()  # paths, like those of files; they are drawn

    def write(self, page: str, text: str) -> None:
        self.pages[page] = linked(text, page)

    def copy(self, source: str, extra: str = "") -> None:
        """A page of the repository, with links from where it is on the site; one to a folder goes to that folder's index."""
        page = contents.place(source)

        def followed(match: re.Match[str]) -> str:
            target, anchor = match[1], match[2]
            if "://" in target:
                return match[0]
            path = (ROOT / source).parent.joinpath(target).resolve()
            name = path.relative_to(ROOT).as_posix()
            if path.is_file() and path.suffix != ".md":
                self.files.add(name)
            found = f"{name}/index.md" if path.is_dir() else contents.place(name)
            return f"]({relative(found + anchor, page)})"

        text = LINK.sub(followed, (ROOT / source).read_text())
        self.write(page, PLOT.sub(lambda match: self.plot(match[1], page), text) + extra)

    def plot(self, name: str, page: str) -> str:
        """Where the repository's page has a comment, the site's has the plot."""
        path = f"plots/{name}.svg"
        self.plots.add(path)
        return f"![{plots.alt_text(name)}]({relative(path, page)})"

    def index(self, folder: str) -> None:
        title, about, _ = contents.FOLDERS[folder]
        pages = contents.pages_of(folder)
        for page in pages:
            self.copy(page)
        rows = [f"- [{llms.title_of(self.pages[page])}]({Path(page).name}): {llms.about(self.pages[page])}" for page in pages]
        text = f"# {title}\n\n{about}\n\n" + "\n".join(rows)
        self.write(f"{folder}/index.md", f"{text}\n\n{tree([Path(page).stem for page in pages])}")

    def operators(self) -> list[str]:
        """Pages of every function and type, and of each family. Returns the families' names."""
        found = []
        for family in docstrings.FAMILIES:
            name, everything = family.__name__.rpartition(".")[2], {**docstrings.operators(family), **docstrings.types(family)}
            summary, _, text = (inspect.getdoc(family) or "").partition("\n")
            pages = [each for each in family.__all__ if each in everything]
            rows = [f"| `{each}` | {llms.first_sentence(docstrings.sections(everything[each])[''])} |" for each in pages]
            table = "\n".join(["| function | what it does |", "|---|---|", *rows])
            title, _, rest = summary.rstrip(".").partition(": ")
            intro = f"{rest[:1].upper()}{rest[1:]}.\n" if rest else ""
            self.write(f"operators/{name}.md", f"# {title}\n\n{intro}{text}\n\n{table}\n\n{tree(pages)}")
            for each in pages:
                page_of = operator_page if inspect.isfunction(everything[each]) else type_page
                self.write(f"operators/{each}.md", page_of(each, everything[each]))
            found.append(name)
        return found


def tree(pages: list[str], caption: str = "") -> str:
    """A part of the table of contents, which the page itself does not show."""
    options = [":maxdepth: 1", ":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["```{toctree}", *options, "", *pages, "```", ""])


def site() -> tuple[Site, dict[str, list[str]]]:
    """The site, and its sections."""
    found = Site()
    sections: dict[str, list[str]] = {}
    children = {contents.OPERATORS: f"\n{tree(found.operators())}"}
    for page, text_of in PYTHON_PAGES.items():
        found.write(f"{page}.md", text_of())
    for section, entries in contents.sections().items():
        sections[section] = [f"{e}/index" if e in contents.FOLDERS else contents.place(e).removesuffix(".md") for e in entries]
        for entry in entries:
            if entry in contents.FOLDERS:
                found.index(entry)
            else:
                found.copy(entry, children.get(entry, ""))
        sections[section] += contents.GENERATED.get(section, ())
    found.copy(contents.INDEX, f"\n{_FOR_PROGRAMS}\n" + "\n".join(tree(pages, section) for section, pages in sections.items()))
    return found, sections


def write_site(folder: Path, plain: Path) -> None:
    found, sections = site()
    with tempfile.TemporaryDirectory() as drawn:
        plots.draw_all(Path(drawn) / "plots")
        _write(found, sections, folder, plain, Path(drawn))


def _write(found: Site, sections: dict[str, list[str]], folder: Path, plain: Path, drawn: Path) -> None:
    for target, pages in ((folder, found.pages), (plain, llms.plain(found.pages, sections))):
        shutil.rmtree(target, ignore_errors=True)
        for name, text in pages.items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for source, names in ((ROOT, found.files), (drawn, found.plots)):
            for name in names:
                path = target / name
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source / name, path)


def main() -> int:
    if faults := [*docstrings.faults(), *contents.faults()]:
        print("docs: " + "\ndocs: ".join(faults), file=sys.stderr)
        return 1
    folder, plain = map(Path, sys.argv[1:])
    write_site(folder, plain)
    return 0


if __name__ == "__main__":
    sys.exit(main())
