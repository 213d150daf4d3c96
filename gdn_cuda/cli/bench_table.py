"""Prints a benchmark report as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .bench_columns import ANOTHER_DAY, tables
from .output import console, show, table

if TYPE_CHECKING:
    from rich.console import Console

Report = dict[str, Any]


def print_report(report: Report) -> None:
    terminal = console()
    terminal.print(made_on(report), soft_wrap=True)
    if "ceilings" in report:
        _print_ceilings(terminal, report)
    for title, columns in tables(report).items():
        listing = table(title.lower() or "shape", *(f">{column.name}" for column in columns))
        for row in report["rows"]:
            listing.add_row(row["shape"], *(column.cell(row) or "-" for column in columns))
        show(terminal, listing)
    for note in notes(report):
        terminal.print(note, soft_wrap=True)


def made_on(report: Report) -> str:
    keys = ("device", "driver", "torch", "cuda", "gdn_cuda", "commit", "date")
    said = [f"{key} {report[key]}" for key in keys if report.get(key)]
    said += [f"{name} {version}" for name, version in report.get("peer_versions", {}).items()]
    return f"{report.get('operator', 'two trees')}: " + ", ".join(said)


def _print_ceilings(terminal: Console, report: Report) -> None:
    measured = report["ceilings"]
    terminal.print(f"roof: {speeds(report['roof'])}", soft_wrap=True)
    terminal.print(
        f"in this run: {speeds(measured)}, replay of a one-element kernel {measured['floor_us']:.1f} µs; "
        f"medians of up to {report['repeats']}, L2 flushed",
        soft_wrap=True,
    )


def speeds(ceilings: dict[str, float]) -> str:
    return (
        f"copy {ceilings['copy_bytes_per_s'] * 1e-12:.2f} TB/s, bf16 product {ceilings['bf16_flop_per_s'] * 1e-12:.0f} TFLOP/s"
    )


def notes(report: Report) -> list[str]:
    """The notes under a table: how far peers' results were from ours, and where and why peers were not measured."""
    from ..operators.measure import load

    rows, said = report["rows"], []
    for peer in rows[0].get("peers_us", {}):
        if found := [row["peers_errors"][peer] for row in rows if peer in row["peers_errors"]]:
            largest = zip(load().benches[report["operator"]].parts, zip(*found, strict=True), strict=False)
            errors = ", ".join(f"{name} {max(errors):.1e}" for name, errors in largest)
            said.append(f"{peer} against ours, the largest relative RMS: {errors}")
    for gap in report.get("peers_absent", []):
        shapes = gap["shapes"]
        where = "" if len(shapes) == len(rows) else f" at {shapes[0]}" + f" and {len(shapes) - 1} more" * (len(shapes) > 1)
        said.append(f"{gap['peer']} was not measured{where}: {gap['reason']}")
    if any(row.get("published_us") for row in rows):
        said.append(f"{ANOTHER_DAY} measured on another day, when the target was set, unless the library is in this run")
    return said
