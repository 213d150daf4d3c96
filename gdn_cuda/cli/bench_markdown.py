"""A benchmark report in Markdown, for the pages of docs/benchmarks: where it was measured, tables, notes."""

from __future__ import annotations

from typing import Any

from .bench_columns import Column, tables
from .bench_table import notes, speeds

Row = dict[str, Any]
Report = dict[str, Any]


def page(report: Report) -> str:
    parts = [provenance(report)]
    for title, columns in tables(report).items():
        parts += [f"{title}:"] if title else []
        parts.append(_table(report["rows"], [column for column in columns if not column.detail]))
    parts += ["\n".join(f"- {note}" for note in said)] if (said := notes(report)) else []
    return "\n\n".join(parts)


def provenance(report: Report) -> str:
    known = [report.get("device"), *(f"{key} {report[key]}" for key in ("driver", "torch") if report.get(key))]
    known += [f"CUDA {report['cuda']}"] if report.get("cuda") else []
    known += [f"{name} {version}" for name, version in report.get("peer_versions", {}).items()]
    known += [report["date"]] if report.get("date") else []
    known += [f"commit {commit[:7]}{' with changes' * ('changes' in commit)}"] if (commit := report.get("commit")) else []
    said = [", ".join(map(str, filter(None, known))) + "."]
    if "ceilings" in report:
        floor = f"replay of a one-element kernel {report['ceilings']['floor_us']:.1f} µs"
        said.append(f"In the run: {speeds(report['ceilings'])}, {floor}.")
        said.append(f"{_timed(report['rows'])}; medians of up to {report['repeats']}, the L2 flushed before each.")
    commands = "".join(f"    {line}\n" for line in report.get("command", "").splitlines())
    return f"{commands}\n" * bool(commands) + " ".join(said)


def _timed(rows: list[Row]) -> str:
    timed = {row.get("timed") for row in rows}
    if timed == {"replay"}:
        return "Replays of a CUDA graph of one call"
    return "Direct calls" if timed == {"call"} else "Replays of a CUDA graph of one call; direct calls where the row says eager"


def name_of(row: Row) -> str:
    return str(row.get("row") or f"{row.get('operator', '')} {row['shape']}".strip())


def kinds_of(rows: list[Row]) -> list[str]:
    """The kinds of all rows, in order of appearance; [""] if no row has one."""
    return list(dict.fromkeys(row["kind"] for row in rows if row.get("kind"))) or [""]


def by_kind(rows: list[Row]) -> dict[str, dict[str, Row]]:
    """Rows by name, which rows of several kinds have in common, and by kind."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(name_of(row), {})[row.get("kind") or ""] = row
    return found


def _table(rows: list[Row], columns: list[Column]) -> str:
    kinds = kinds_of(rows)
    ours = f", {' / '.join(kinds)}" if len(kinds) > 1 else ""
    lines = ["| " + " | ".join(["", *(column.name + ours * column.ours for column in columns)]).strip() + " |"]
    lines.append("|---" * (1 + len(columns)) + "|")
    for name, row_of in by_kind(rows).items():
        here = [""] if "" in row_of else kinds
        cells = [_joined([column.cell(row_of[kind]) if kind in row_of else None for kind in here]) for column in columns]
        cells = [f"**{cell}**" if column.ours and cell else cell for column, cell in zip(columns, cells, strict=True)]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines)


def _joined(cells: list[str | None]) -> str:
    """The cells of one row of all its kinds, as one cell where they are equal."""
    measured = {cell for cell in cells if cell is not None}
    return measured.pop() if len(measured) == 1 else " / ".join(cell or "–" for cell in cells)
