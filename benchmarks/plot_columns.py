"""Draws a column of all tables of a page, a point for each row, by operator: for pages that have tables without reports."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from gdn_cuda.cli.bench_plot import OURS

# The column of a page's tables, and what it says.
COLUMNS = {"conv": "share", "pieces": "share", "scan": "times as fast"}
LABELS = {
    "share": "time of the roof ÷ ours, %: a point for each row",
    "times as fast": "mamba-ssm's time ÷ ours: a point for each row",
}


def points(text: str, column: str) -> dict[str, list[float]]:
    """Values of the tables of a page, by operator; those of backward rows apart."""
    found: dict[str, list[float]] = {}
    title, operator, place = "", "", None
    for line in text.splitlines():
        if line.startswith("#"):
            title = line.lstrip("# ")
        if not line.startswith("|"):
            place, operator = None, _name(title)
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if place is None:
            place = cells.index(column) if column in cells else len(cells)
        elif place < len(cells):
            operator = _name(cells[0]) or operator
            direction = re.search(r"\bbackward\b", f"{title} {line}")
            label = f"{operator}, backward" if direction else operator
            values = [float(value) for value in re.findall(r"\d+(?:\.\d+)?", cells[place])]
            if operator and values:
                found.setdefault(label, []).extend(values)
    return found


def _name(text: str) -> str:
    found = re.search(r"`(\w+)[^`]*`", text)
    return found[1] if found else ""


def digest(found: dict[str, list[float]]) -> str:
    """A digest of the points that the SVG carries, so that a test sees when the tables have changed since."""
    return hashlib.sha256(repr(found).encode()).hexdigest()


def draw(page: Path, path: Path) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    column = COLUMNS[page.stem]
    found = points(page.read_text(encoding="utf-8"), column)
    with matplotlib.rc_context({"svg.hashsalt": "gdn_cuda", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(8, 1.2 + 0.26 * len(found)), layout="constrained")
        axes = figure.subplots()
        marks = [(value, place) for place, values in enumerate(found.values()) for value in values]
        axes.plot(*zip(*marks, strict=True), "o", color=OURS, alpha=0.6, ms=6)
        axes.axvline(100 if column == "share" else 1, color="black", lw=1)
        axes.set_yticks(range(len(found)), list(found))
        axes.set_ylim(len(found) - 0.4, -0.6)
        axes.set_xlim(left=0)
        axes.set_xlabel(LABELS[column])
        axes.grid(alpha=0.25)
        figure.savefig(path, metadata={"Date": None, "Description": digest(found)})
