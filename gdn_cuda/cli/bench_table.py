"""Prints a benchmark report as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .output import console, show, table

if TYPE_CHECKING:
    from rich.console import Console

Row = dict[str, Any]


def print_report(report: dict[str, Any]) -> None:
    terminal = console()
    keys = ("device", "driver", "torch", "cuda", "gdn_cuda", "commit")
    terminal.print(f"{report['operator']}: " + ", ".join(f"{key} {report[key]}" for key in keys if report[key]), soft_wrap=True)
    if "ceilings" in report:
        _print_ceilings(terminal, report)
        _print_rows(terminal, report["rows"])
        _print_peers(terminal, report)
    else:
        listing = table("shape", ">time µs")
        for row in report["rows"]:
            listing.add_row(row["shape"], f"{row['time_us']:.1f}")
        show(terminal, listing)


def _print_ceilings(terminal: Console, report: dict[str, Any]) -> None:
    measured = report["ceilings"]
    terminal.print(f"roof: {_speeds(report['roof'])}", soft_wrap=True)
    terminal.print(
        f"in this run: {_speeds(measured)}, replay of a one-element kernel {measured['floor_us']:.1f} µs; "
        f"medians of up to {report['repeats']}, L2 flushed",
        soft_wrap=True,
    )


def _speeds(ceilings: dict[str, float]) -> str:
    return (
        f"copy {ceilings['copy_bytes_per_s'] * 1e-12:.2f} TB/s, bf16 product {ceilings['bf16_flop_per_s'] * 1e-12:.0f} TFLOP/s"
    )


def _print_rows(terminal: Console, rows: list[Row]) -> None:
    computes = any(row["flops"] for row in rows)
    peers = list(rows[0]["peers_us"])
    listing = table(
        "shape",
        ">time µs",
        ">TFLOP/s" if computes else ">GB/s",
        ">roof µs",
        ">share",
        *(() if computes else (">in-place add µs",)),
        ">host µs",
        *(f">{peer} µs" for peer in peers),
        *((">best peer ÷ ours",) if peers else ()),
    )
    for row in rows:
        times = [row["peers_us"][peer] for peer in peers]
        best = min((time for time in times if time is not None), default=None)
        listing.add_row(
            row["shape"],
            f"{row['time_us']:.1f}",
            f"{row['tflop_per_s']:.1f}" if computes else f"{row['gb_per_s']:.0f}",
            f"{row['roof_us']:.1f}",
            f"{row['share_of_roof']:.0%}",
            *(() if computes else (f"{row['in_place_us']:.1f}",)),
            f"{row['host_us']:.1f}",
            *("-" if time is None else f"{time:.1f}" for time in times),
            *(("-" if best is None else f"{best / row['time_us']:.2f}",) if peers else ()),
        )
    show(terminal, listing)


def _print_peers(terminal: Console, report: dict[str, Any]) -> None:
    from ..operators.measure import load

    rows = report["rows"]
    for peer in rows[0]["peers_us"]:
        found = [row["peers_errors"][peer] for row in rows if peer in row["peers_errors"]]
        if found:
            largest = zip(load().benches[report["operator"]].parts, zip(*found, strict=True), strict=False)
            said = ", ".join(f"{name} {max(errors):.1e}" for name, errors in largest)
            terminal.print(f"{peer} against ours, the largest relative RMS: {said}")
    for gap in report["peers_absent"]:
        shapes = "" if len(gap["shapes"]) == len(rows) else f" at {', '.join(gap['shapes'])}"
        terminal.print(f"{gap['peer']} was not measured{shapes}: {gap['reason']}", soft_wrap=True)
