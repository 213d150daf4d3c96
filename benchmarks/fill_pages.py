"""Tables and plots of the pages, from the reports of `python -m gdn_cuda bench OPERATOR --json docs/benchmarks/data`.

    python benchmarks/fill_pages.py

In README.md and docs/benchmarks, `<!-- bench: NAME … -->` begins what is made of docs/benchmarks/data/NAME.json, and
`<!-- plot: NAME -->` a plot alone, which the tables then go without; `<!-- end -->` ends both. Where a report is missing, what
stands there stays. A plot of plot_columns.py is made of the tables of its page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gdn_cuda.cli.bench_markdown import page
from gdn_cuda.cli.bench_report import read

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import plot_columns  # noqa: E402

PAGES = ("README.md", "docs/benchmarks/*.md")
DATA, PLOTS = Path("docs/benchmarks/data"), Path("docs/benchmarks/plots")
BLOCK = re.compile(r"(<!-- (bench|plot): ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
LENGTHS = "_lengths"


def pages(root: Path) -> Iterator[Path]:
    for pattern in PAGES:
        yield from sorted(root.glob(pattern))


def filled(page_path: Path, root: Path) -> str:
    """The text of a page with its blocks made anew."""
    text = page_path.read_text(encoding="utf-8")
    apart = {name for _, kind, names, _ in BLOCK.findall(text) if kind == "plot" for name in names.split()}

    def block(match: re.Match[str]) -> str:
        names = match[3].split()
        if not all((root / DATA / f"{name.removesuffix(LENGTHS)}.json").exists() for name in names):
            return match[0]
        parts = [
            _image(name, page_path, root) if match[2] == "plot" else _tables(name, len(names) > 1, page_path, root, apart)
            for name in names
        ]
        return f"{match[1]}\n" + "\n\n".join(parts) + f"\n\n{match[4]}"

    return BLOCK.sub(block, text)


def require_no_folder_of_a_machine(data: Path) -> None:
    """`--json /home/somebody/out` in a command would be on the page."""
    if found := re.search(r'(?<=[\s"=])/\w[\w./-]*', data.read_text(encoding="utf-8")):
        raise ValueError(f"{data}: expected no absolute path in what pages are made of, got {found[0]}")


def _tables(name: str, is_titled: bool, page_path: Path, root: Path, apart: set[str]) -> str:
    """`apart`: plots that are elsewhere on the page."""
    (report,) = read([str(root / DATA / f"{name}.json")])
    drawn = [name + LENGTHS, name] if _has_lengths(report) else [name]
    plots = [_image(each, page_path, root) for each in drawn if each not in apart]
    return "\n\n".join([f"### `{report['operator']}`"] * is_titled + [page(report), *plots])


def _has_lengths(report: dict[str, Any]) -> bool:
    return any(row.get("curve") for row in report["rows"])


def _image(name: str, page_path: Path, root: Path) -> str:
    plot = (root / PLOTS / f"{name}.svg").relative_to(page_path.parent)
    what = "time over length" if name.endswith(LENGTHS) else "times of every row"
    return f"![{name.removesuffix(LENGTHS)}: {what}]({plot.as_posix()})"


def main() -> int:
    from gdn_cuda.cli.bench_plot import draw

    (ROOT / PLOTS).mkdir(exist_ok=True)
    for data in sorted((ROOT / DATA).glob("*.json")):
        require_no_folder_of_a_machine(data)
        (report,) = read([str(data)])
        print("drew", *draw(report, str(ROOT / PLOTS / f"{data.stem}.svg")))
    for name in plot_columns.COLUMNS:
        plot_columns.draw(ROOT / f"docs/benchmarks/{name}.md", ROOT / PLOTS / f"{name}.svg")
    for path in pages(ROOT):
        text = filled(path, ROOT)
        if text != path.read_text(encoding="utf-8"):
            path.write_text(text, encoding="utf-8")
            print("wrote", path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
