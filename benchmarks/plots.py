"""Draws the plots of the pages: `python benchmarks/plots.py FOLDER`. The website's build draws them too; only the README's is
committed, which `fill_pages.py` draws.

A plot shows a report in docs/benchmarks/data, or, for a page whose reports are not kept, a column of all its tables.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
from pathlib import Path

from gdn_cuda.cli.bench_plot import OURS, draw
from gdn_cuda.cli.bench_report import read

ROOT = Path(__file__).resolve().parents[1]
PAGES, DATA = Path("docs/benchmarks"), Path("docs/benchmarks/data")
README_PLOT = Path("docs/benchmarks/plots/chunked_forward_lengths.svg")
LENGTHS = "_lengths"
# The column of a page's tables, and its label.
COLUMNS = {
    "conv": "share",
    "chunk_steps": "share",
    "scan": "best peer ÷ ours",
    "ssd": "times as fast",
    "parallel": "efficiency",
}
LABELS = {
    "share": "time of the roof ÷ ours, %: a point for each row",
    "times as fast": "mamba-ssm's time ÷ ours: a point for each row",
    "best peer ÷ ours": "mamba-ssm's time ÷ ours: a point for each row",
    "efficiency": "one GPU's time ÷ two GPUs' and 2, %: a point for each row",
}


def draw_all(folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [
        file
        for data in sorted((ROOT / DATA).glob("*.json"))
        for file in draw(*read([str(data)]), str(folder / f"{data.stem}.svg"))
    ]
    for name in COLUMNS:
        draw_column(ROOT / PAGES / f"{name}.md", folder / f"{name}.svg")
    return [*map(Path, drawn), *(folder / f"{name}.svg" for name in COLUMNS)]


def alt_text(name: str) -> str:
    """A description of a plot, for its alt attribute."""
    if name in COLUMNS:
        return f"{name}: {LABELS[COLUMNS[name]]}"
    return f"{name.removesuffix(LENGTHS)}: {'time over length' if name.endswith(LENGTHS) else 'times of every row'}"


# ---- A column of the tables of a page


def points(text: str, column: str) -> dict[str, list[float]]:
    """Values of the tables of a page, by operator; backward rows have their own label."""
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


def draw_column(page: Path, path: Path) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    column = COLUMNS[page.stem]
    found = points(page.read_text(encoding="utf-8"), column)
    with matplotlib.rc_context({"svg.hashsalt": "gdn_cuda", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(8, 1.2 + 0.26 * len(found)), layout="constrained")
        axes = figure.subplots()
        marks = [(value, place) for place, values in enumerate(found.values()) for value in values]
        axes.plot(*zip(*marks, strict=True), "o", color=OURS, alpha=0.6, ms=6)
        axes.axvline(100 if column in ("share", "efficiency") else 1, color="black", lw=1)
        axes.set_yticks(range(len(found)), list(found))
        axes.set_ylim(len(found) - 0.4, -0.6)
        axes.set_xlim(left=0)
        axes.set_xlabel(LABELS[column])
        axes.grid(alpha=0.25)
        figure.savefig(path, metadata={"Date": None})


# ---- The plot that is committed


def draw_readme_plot() -> None:
    """Draws it with one element per line, and with a digest of the report, so that a test sees whether the report has
    changed."""
    data, path = readme_report(), ROOT / README_PLOT
    with tempfile.TemporaryDirectory() as folder:
        draw(*read([str(data)]), str(Path(folder) / f"{data.stem}.svg"))
        svg = (Path(folder) / path.name).read_text(encoding="utf-8")
    path.parent.mkdir(exist_ok=True)
    path.write_text(compact(svg, digest(data)), encoding="utf-8")


def readme_report() -> Path:
    return ROOT / DATA / f"{README_PLOT.stem.removesuffix(LENGTHS)}.json"


def digest(data: Path) -> str:
    return hashlib.sha256(data.read_bytes()).hexdigest()


def compact(svg: str, comment: str) -> str:
    """matplotlib's SVG with one element per line, without metadata, and without groups that have no attribute but an id."""
    svg = re.sub(r"\s*\n(?!\s*<)\s*", " ", re.sub(r"<metadata>.*?</metadata>\n", "", svg, flags=re.DOTALL))
    kept: list[str] = []
    is_kept: list[bool] = []  # for each open group
    for line in map(str.strip, svg.splitlines()):
        if line.startswith("<g"):
            is_kept.append(not re.fullmatch(r'<g(?: id="[^"]*")?>', line))
        if not line.startswith(("<g", "</g>")) or is_kept[-1]:
            kept.append(line)
        if line == "</g>":
            is_kept.pop()
    return "\n".join([kept[0], f"<!-- {comment} -->", *kept[1:], ""])


if __name__ == "__main__":
    print("drew", *draw_all(Path(sys.argv[1])))
