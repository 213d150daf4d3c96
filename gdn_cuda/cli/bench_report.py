"""Reports of benchmarks as files: written after every row, read, and joined where a benchmark was measured in parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Report = dict[str, Any]

DIGITS = 5
MADE_ON = ("operator", "device", "driver", "torch", "cuda", "gdn_cuda", "commit")


def read(files: list[str]) -> list[Report]:
    """The reports of these files, one for each operator."""
    found: list[Report] = []
    for file in files:
        try:
            written = json.loads(Path(file).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{file}: expected a report that --json wrote: {error}") from error
        for report in written if isinstance(written, list) else [written]:
            if not isinstance(report, dict) or not report.get("rows"):
                raise ValueError(f"{file}: expected a report that --json wrote, got {str(report)[:40]}")
            _join(found, report)
    return found


def _join(reports: list[Report], report: Report) -> None:
    same = next((each for each in reports if each.get("operator") == report.get("operator")), None)
    if same is None:
        reports.append(report)
        return
    for key in MADE_ON:
        if same.get(key) != report.get(key):
            raise ValueError(
                f"{report.get('operator')}: expected parts of one {key}, got {same.get(key)} and {report.get(key)}; "
                "write them to different files"
            )
    again = {row["shape"] for row in report["rows"]}
    same["rows"] = [row for row in same["rows"] if row["shape"] not in again] + report["rows"]
    same["peers_absent"] = same.get("peers_absent", []) + report.get("peers_absent", [])
    same["peer_versions"] = same.get("peer_versions", {}) | report.get("peer_versions", {})
    same["command"] = "\n".join(dict.fromkeys([*same["command"].splitlines(), report["command"]]))


def selected(report: Report, only: str | None) -> Report:
    return report if only is None else report | {"rows": [row for row in report["rows"] if matches(row["shape"], only)]}


def matches(shape: str, only: str | None) -> bool:
    return only is None or only.replace("x", "×") in shape.replace("x", "×")


def write(reports: list[Report], to: str) -> None:
    """Writes a file for each report if `to` is a folder; otherwise all into one file, as a list if there are several."""
    path = Path(to)
    if path.is_dir():
        for report in reports:
            (path / f"{report['operator']}.json").write_text(dumps(report) + "\n", encoding="utf-8")
        return
    path.write_text(dumps(reports[0] if len(reports) == 1 else reports) + "\n", encoding="utf-8")


def dumps(reports: Report | list[Report], ensure_ascii: bool = False) -> str:
    """JSON with one line for each row, so that a changed row is one changed line."""
    if isinstance(reports, list):
        return "[\n" + ",\n".join(dumps(report, ensure_ascii) for report in reports) + "\n]"

    def compact(value: Any) -> str:
        return json.dumps(_rounded(value), ensure_ascii=ensure_ascii)

    def line(key: str, value: Any) -> str:
        rows = ",\n  ".join(map(compact, value)) if key == "rows" else ""
        return f' "rows": [\n  {rows}\n ]' if rows else f" {json.dumps(key)}: {compact(value)}"

    return "{\n" + ",\n".join(line(key, value) for key, value in reports.items()) + "\n}"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, (list, tuple)) else value
