"""Which pages the site has, and in which order: docs/README.md lists them, a section of the table of contents each, and is the
site's start page. Generated pages of the Python interface come after those of their section. A page of docs/ that
docs/README.md does not link to is an error."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INDEX = "docs/README.md"
OPERATORS = "docs/operators.md"  # on the site the pages of families and functions are below it
_ENTRY = re.compile(r"- \[[^\]]+\]\(([^)]+)\): ")

# Pages whose place on the site is another one than in the repository.
PLACES = {INDEX: "index.md", "README.md": "index.md", OPERATORS: "operators/index.md"}
# Generated pages by section.
GENERATED = {
    "Use": ("api/nn", "api/parallel", "api/compat"),
    "Run": ("api/runtime", "api/commands", "api/kernels"),
    "Trust": ("api/reference",),
}
# A folder stands for an index of its pages, and these. Title, what they are, and the names of the pages that come first; the
# others follow by name.
FOLDERS = {
    "docs/benchmarks": (
        "Benchmarks",
        "Measurements, with the commands that made them, device, versions and commit.",
        ("prefill", "decode", "scan", "ssd", "conv", "structured", "host"),
    ),
    "docs/kernels": ("Kernels of the chunked form", "What each kernel of Gated Delta Net does, and what bounds it.", ()),
}


def sections(root: Path = ROOT) -> dict[str, list[str]]:
    """Pages and folders of the repository by section, as docs/README.md lists them."""
    found: dict[str, list[str]] = {}
    for line in (root / INDEX).read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            current = found.setdefault(line[3:], [])
        elif entry := _ENTRY.match(line):
            current.append(os.path.normpath(f"docs/{entry[1]}"))
    return found


def place(page: str) -> str:
    """Where a page of the repository is on the site."""
    return PLACES.get(page, page)


def pages_of(entry: str, root: Path = ROOT) -> list[str]:
    """The pages that an entry of a section stands for."""
    if entry not in FOLDERS:
        return [entry]
    *_, first = FOLDERS[entry]
    names = {path.stem for path in (root / entry).glob("*.md")}
    return [f"{entry}/{name}.md" for name in (*first, *sorted(names - {*first}))]


def faults(root: Path = ROOT) -> Iterator[str]:
    listed = {page for entries in sections(root).values() for entry in entries for page in pages_of(entry, root)} | {INDEX}
    for page in sorted(listed):
        if not (root / page).is_file():
            yield f"{page}: {INDEX} lists it, and it does not exist"
    for path in sorted((root / "docs").rglob("*.md")):
        if (page := path.relative_to(root).as_posix()) not in listed:
            yield f"{page}: {INDEX} does not list it"
