"""Which pages of the repository the site has, and in which order: a section of the table of contents each. Its first sections,
the operators and the Python interface, are generated. A page of docs/ that is in no list is an error: add it here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START = "docs/website/index.md"

# A folder stands for an index of its pages, and these.
SECTIONS = {
    "Guides": (
        "docs/recipes.md",
        "docs/integrations.md",
        "docs/cpp.md",
        "docs/jit.md",
        "docs/hub.md",
        "docs/numerics.md",
        "docs/scan.md",
        "docs/conv.md",
        "docs/structured.md",
        "docs/support.md",
        "docs/references.md",
    ),
    "Performance": ("docs/performance.md", "docs/benchmarks", "benchmarks/README.md"),
    "Inside": ("docs/architecture.md", "docs/kernels", "CONTRIBUTING.md", "CHANGELOG.md"),
}
# Title, what they are, and the names of the pages that come first; the others follow by name.
FOLDERS = {
    "docs/benchmarks": (
        "Benchmarks",
        "Measurements, with the commands that made them, device, versions and commit.",
        ("prefill", "decode", "scan", "conv", "structured", "host"),
    ),
    "docs/kernels": ("Kernels of prefill", "What each kernel of `chunked_forward` does, and what bounds it.", ()),
}


def pages_of(entry: str, root: Path = ROOT) -> list[str]:
    """The pages that an entry of a list stands for."""
    if entry not in FOLDERS:
        return [entry]
    *_, first = FOLDERS[entry]
    names = {path.stem for path in (root / entry).glob("*.md")}
    return [f"{entry}/{name}.md" for name in (*first, *sorted(names - {*first}))]


def faults(root: Path = ROOT) -> Iterator[str]:
    listed = {page for entries in SECTIONS.values() for entry in entries for page in pages_of(entry, root)} | {START}
    for page in sorted(listed):
        if not (root / page).is_file():
            yield f"{page}: it is in a list of docs/website/contents.py, and does not exist"
    for path in sorted((root / "docs").rglob("*.md")):
        if (page := path.relative_to(root).as_posix()) not in listed:
            yield f"{page}: it is in no list of docs/website/contents.py"
