"""Makes the tables of the pages, from the reports of `python -m gdn_cuda bench OPERATOR --json docs/benchmarks/data`, and the
README's plot.

    python benchmarks/fill_pages.py

In docs/benchmarks, the text between `<!-- bench: NAME … -->` and `<!-- end -->` is made from docs/benchmarks/data/NAME.json; if
that report is missing, the text is unchanged. `<!-- plot: NAME -->` marks the place where the website has a plot, drawn by
plots.py; if a page has this mark elsewhere, it is not put beside the table.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from gdn_cuda.cli.bench_markdown import page
from gdn_cuda.cli.bench_report import read

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import plots  # noqa: E402

DATA = plots.DATA
BLOCK = re.compile(r"(<!-- bench: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
SHOWN = re.compile(r"<!-- plot: (\w+) -->|\]\(plots/(\w+)\.svg\)")


def pages(root: Path) -> list[Path]:
    return sorted((root / plots.PAGES).glob("*.md"))


def filled(page_path: Path, root: Path) -> str:
    """The text of a page with its blocks filled from the reports."""
    text = page_path.read_text(encoding="utf-8")
    elsewhere = {name for pair in SHOWN.findall(BLOCK.sub("", text)) for name in pair}

    def block(match: re.Match[str]) -> str:
        names = match[2].split()
        if not all((root / DATA / f"{name}.json").exists() for name in names):
            return match[0]
        parts = [_tables(name, len(names) > 1, root, elsewhere) for name in names]
        return f"{match[1]}\n" + "\n\n".join(parts) + f"\n\n{match[3]}"

    return BLOCK.sub(block, text)


def require_no_folder_of_a_machine(data: Path) -> None:
    """Refuses commands with a folder (`--json /home/somebody/out`), because they would be on the page."""
    if found := re.search(r'(?<=[\s"=])/\w[\w./-]*', data.read_text(encoding="utf-8")):
        raise ValueError(f"{data}: expected no absolute path in what pages are made of, got {found[0]}")


def _tables(name: str, is_titled: bool, root: Path, elsewhere: set[str]) -> str:
    """The tables of a report. `elsewhere`: plots that other parts of the page have."""
    (report,) = read([str(root / DATA / f"{name}.json")])
    drawn = [name + plots.LENGTHS, name] if _has_lengths(report) else [name]
    shown = [f"<!-- plot: {each} -->" for each in drawn if each not in elsewhere]
    return "\n\n".join([f"### `{report['operator']}`"] * is_titled + [page(report), *shown])


def _has_lengths(report: dict[str, Any]) -> bool:
    return any(row.get("curve") for row in report["rows"])


def main() -> int:
    for data in sorted((ROOT / DATA).glob("*.json")):
        require_no_folder_of_a_machine(data)
    plots.draw_readme_plot()
    for path in pages(ROOT):
        text = filled(path, ROOT)
        if text != path.read_text(encoding="utf-8"):
            path.write_text(text, encoding="utf-8")
            print("wrote", path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
