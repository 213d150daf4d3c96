"""The columns of a report's tables, in the terminal and on the pages of docs/benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Report = dict[str, Any]

ANOTHER_DAY = "†"  # after a time that was not measured in the run


@dataclass(frozen=True)
class Column:
    name: str
    cell: Callable[[Row], str]
    ours: bool = False  # our own times, which the table compares with others
    detail: bool = False  # in the terminal only


def tables(report: Report) -> dict[str, list[Column]]:
    """The columns of each table by title; the first table has none. A column without any cell is left out."""
    rows = report["rows"]
    if "before" in rows[0]:
        return {"": _two_trees()}
    found = {"": _times(rows)}
    if any(row.get("call_us") for row in rows):
        found["Calls as they come"] = _calls(rows)
    return {title: [each for each in columns if any(map(each.cell, rows))] for title, columns in found.items()}


def peers(rows: list[Row]) -> list[str]:
    """The peers that at least one row has a time of."""
    named = dict.fromkeys(name for row in rows for name in (*row.get("peers_us", {}), *row.get("published_us", {})))
    return [name for name in named if any(peer_us(row, name) for row in rows)]


def peer_us(row: Row, name: str) -> float | None:
    measured: float | None = row.get("peers_us", {}).get(name)
    return measured or row.get("published_us", {}).get(name)


def is_published(row: Row, name: str) -> bool:
    return not row.get("peers_us", {}).get(name)


def _times(rows: list[Row]) -> list[Column]:
    unit, time = unit_of(rows)
    computes = any(row.get("flops") for row in rows)

    def of(key: str) -> Callable[[Row], str]:
        return lambda row: time(row[key]) if row.get(key) else ""

    def over(key: str) -> Callable[[Row], str]:
        return lambda row: f"{row['time_us'] / row[key]:.2f}" if row.get(key) else ""

    def peer(name: str) -> Callable[[Row], str]:
        mark = f" {ANOTHER_DAY}"
        return lambda row: time(us) + mark * is_published(row, name) if (us := peer_us(row, name)) else ""

    def best(row: Row) -> str:
        known = [us for name in peers([row]) if (us := peer_us(row, name))]
        return f"{min(known) / row['time_us']:.2f}" if known else ""

    return [
        Column(unit, of("time_us"), ours=True),
        Column("TFLOP/s", lambda row: f"{row['flops'] / row['time_us'] * 1e-6:.1f}", detail=True)
        if computes
        else Column("GB/s", lambda row: f"{row['bytes'] / row['time_us'] * 1e-3:.0f}" if row.get("bytes") else "", detail=True),
        *(Column(name, peer(name)) for name in peers(rows)),
        Column("best peer ÷ ours", best),
        Column("in-place add", of("in_place_us")),
        Column("÷ add", over("in_place_us")),
        Column("roof", of("roof_us")),
        Column("share", lambda row: f"{100 * row['roof_us'] / row['time_us']:.0f} %" if row.get("roof_us") else ""),
        Column("reach", of("reach_us")),
        Column("÷ reach", over("reach_us")),
        Column("peak GiB", lambda row: f"{row['peak_bytes'] / 2**30:.1f}" if row.get("peak_bytes") else ""),
        Column("host µs", lambda row: f"{row['host_us']:.1f}" if row.get("host_us") else "", detail=True),
    ]


def _calls(rows: list[Row]) -> list[Column]:
    """The table of direct calls, for rows whose graph replays are in the first table."""
    unit, time = unit_of(rows)
    names = [name for name in peers(rows) if any(name in row["peers_call_us"] for row in rows)]

    def peer(name: str) -> Callable[[Row], str]:
        return lambda row: time(us) if (us := row["peers_call_us"].get(name)) else ""

    def best(row: Row) -> str:
        known = row["peers_call_us"].values()
        return f"{min(known) / row['call_us']:.2f}" if known and row["call_us"] else ""

    return [
        Column(unit, lambda row: time(row["call_us"]) if row["call_us"] else "", ours=True),
        *(Column(name, peer(name)) for name in names),
        Column("best peer ÷ ours", best),
        Column("host µs", lambda row: f"{row['host_us']:.1f}"),
    ]


def _two_trees() -> list[Column]:
    """The columns of a report of benchmarks/compare_trees.py."""

    def time(tree: str) -> Callable[[Row], str]:
        return lambda row: f"{row[tree]['time_us']:.2f}"

    ratio = Column("after ÷ before", lambda row: f"{ratio_of(row):.3f}", ours=True)
    return [Column("before, µs", time("before")), Column("after, µs", time("after")), ratio]


def ratio_of(row: Row, figure: str = "time_us") -> float:
    return float(row["after"][figure] / row["before"][figure])


def unit_of(rows: list[Row]) -> tuple[str, Callable[[float], str]]:
    """Milliseconds if any row takes one or more, otherwise microseconds."""
    if max(row["time_us"] for row in rows) < 1000:
        return "µs", lambda us: f"{us:.1f}"
    return "ms", lambda us: f"{us / 1000:.3f}" if us >= 10 else f"{us / 1000:.4f}"
