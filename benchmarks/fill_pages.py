"""Tables and plots of the pages, from the reports of `python -m gdn_cuda bench OPERATOR --json docs/benchmarks/data`.

    python benchmarks/fill_pages.py

In README.md and docs/benchmarks, `<!-- bench: NAME … -->` begins what is made of docs/benchmarks/data/NAME.json, and
`<!-- plot: NAME -->` a plot alone; `<!-- end -->` ends both. Where a report is missing, what stands there stays.
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
PAGES = ("README.md", "docs/benchmarks/*.md")
DATA, PLOTS = Path("docs/benchmarks/data"), Path("docs/benchmarks/plots")
BLOCK = re.compile(r"(<!-- (bench|plot): ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
LENGTHS = "_lengths"


def pages(root: Path) -> Iterator[Path]:
    for pattern in PAGES:
        yield from sorted(root.glob(pattern))


def filled(page_path: Path, root: Path) -> str:
    """The text of a page with its blocks made anew."""

    def block(match: re.Match[str]) -> str:
        names = match[3].split()
        if not all((root / DATA / f"{name.removesuffix(LENGTHS)}.json").exists() for name in names):
            return match[0]
        parts = [
            _image(name, page_path, root) if match[2] == "plot" else _tables(name, len(names) > 1, page_path, root)
            for name in names
        ]
        return f"{match[1]}\n" + "\n\n".join(parts) + f"\n\n{match[4]}"

    return BLOCK.sub(block, page_path.read_text(encoding="utf-8"))


def require_no_folder_of_a_machine(data: Path) -> None:
    """`--json /home/somebody/out` in a command would be on the page."""
    if found := re.search(r'(?<=[\s"=])/\w[\w./-]*', data.read_text(encoding="utf-8")):
        raise ValueError(f"{data}: expected no absolute path in what pages are made of, got {found[0]}")


def _tables(name: str, is_titled: bool, page_path: Path, root: Path) -> str:
    (report,) = read([str(root / DATA / f"{name}.json")])
    plots = [_image(name, page_path, root)]
    if _has_lengths(report):
        plots.insert(0, _image(name + LENGTHS, page_path, root))
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
    for path in pages(ROOT):
        text = filled(path, ROOT)
        if text != path.read_text(encoding="utf-8"):
            path.write_text(text, encoding="utf-8")
            print("wrote", path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
