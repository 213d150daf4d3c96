"""Draws benchmark reports: the time of every row with its roof, its target and its peers, in a panel for each kind of inputs.
Rows that form a curve are also drawn as time over length, in a second file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .bench_columns import is_published, peer_us, peers, ratio_of, unit_of
from .bench_markdown import by_kind, kinds_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Row = dict[str, Any]
Report = dict[str, Any]

OURS = "#76b900"
LEAST = 0.05  # of our time: the left limit of the axis, which omits roofs of calls that take as long as a launch
PEERS = {"marker": "sD^vP", "color": ("#1f5fa8", "#c8501e", "#7a4fa3", "#8c6d1f", "#555555")}


def require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise RuntimeError("--plot needs matplotlib: pip install 'gdn_cuda[plot]'") from error


def require_format(path: str) -> None:
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    suffix = path.rpartition(".")[2]
    if suffix.lower() not in known:
        raise ValueError(f"--plot: expected a name that ends in one of {', '.join(sorted(known))}, got {path}")


def draw(report: Report, path: str) -> list[str]:
    """Returns the files that were written: `path`, and one whose name ends in _lengths if rows form a curve."""
    import matplotlib

    # The same report gives the same file. Text in an SVG stays text.
    with matplotlib.rc_context({"svg.hashsalt": "gdn_cuda", "svg.fonttype": "none", "font.size": 9}):
        if "before" in report["rows"][0]:
            return [_saved(_ratios(report), report, path)]
        written = [_saved(_rows(report), report, path)]
        if curve := [row for row in report["rows"] if row.get("curve")]:
            written.append(_saved(_lengths(curve), report, lengths_of(path)))
        return written


def lengths_of(path: str) -> str:
    return str(Path(path).with_stem(f"{Path(path).stem}_lengths"))


def _saved(figure: Figure, report: Report, path: str) -> str:
    device = [str(report["device"]), *(f"{name} {report[name]}" for name in ("torch", "CUDA") if report.get(name))]
    versions = [f"{name} {version}" for name, version in report.get("peer_versions", {}).items()]
    figure.suptitle(f"{report.get('operator', 'two trees')} on {', '.join([*device, *versions])}", fontsize=10)
    # Peers appear in every panel; the legend has each once.
    handles = {label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=6, fontsize=8)
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.lower().endswith(".svg") else None)
    return path


def _panels(kinds: list[str], width: float, height: float) -> tuple[Figure, list[tuple[str, Axes]]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, len(kinds), sharex=True, sharey=True, squeeze=False)
    return figure, list(zip(kinds, axes[0], strict=True))


def _style(number: int, is_hollow: bool = False) -> dict[str, Any]:
    color = PEERS["color"][number % 5]
    return {"marker": PEERS["marker"][number % 5], "color": color, "mfc": "white" if is_hollow else color, "ls": "", "ms": 5}


def _plain_ticks(*axes: Axis) -> None:
    """1, 2, 5, 10 … on a logarithmic axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in axes:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


# ---- Rows


def _rows(report: Report) -> Figure:
    """Draws every time relative to ours, which is printed at the right."""
    rows = report["rows"]
    found, kinds, names = by_kind(rows), kinds_of(rows), peers(rows)
    figure, panels = _panels(kinds, 4.5 + 3.2 * len(kinds), 1.7 + 0.24 * len(found))
    places = {name: place for place, name in enumerate(found)}
    unit, time = unit_of(rows)
    for kind, axes in panels:
        shown = {kind, ""} if kind == kinds[0] else {kind}  # rows without a kind are in the first panel
        here = [(places[name], row) for name, rows_of in found.items() for each, row in rows_of.items() if each in shown]
        axes.axvline(1, color=OURS, lw=1)
        _marks(axes, here, lambda row: row["time_us"], {"marker": "o", "color": OURS, "ms": 8}, "gdn_cuda")
        _marks(axes, here, lambda row: row.get("roof_us"), {"marker": "|", "color": "black", "ms": 10, "mew": 2}, "roof")
        add = {"marker": "x", "color": "gray", "ms": 5}
        _marks(axes, here, lambda row: row.get("in_place_us"), add, "in-place add of the same bytes")
        for number, name in enumerate(names):
            _draw_peer(axes, here, number, name)
        _marks(axes, here, lambda row: row.get("reach_us"), {"marker": "|", "color": OURS, "ms": 14, "mew": 2}, "reach")
        for place, row in here:
            axes.text(1.01, place, time(row["time_us"]), transform=axes.get_yaxis_transform(), va="center", fontsize=7)
        axes.set_title(kind, fontsize=9)
        axes.set_xscale("log")
        axes.set_xlabel(f"time ÷ that of gdn_cuda, at the right in {unit}")
        axes.grid(alpha=0.25)
    axes = panels[0][1]
    axes.set_xlim(left=max(axes.get_xlim()[0], LEAST))
    _plain_ticks(axes.xaxis)
    axes.set_yticks(list(places.values()), list(places))
    axes.set_ylim(len(places) - 0.4, -0.6)
    return figure


def _draw_peer(axes: Axes, here: list[tuple[int, Row]], number: int, name: str) -> None:
    for published in (False, True):
        chosen = [(place, row) for place, row in here if is_published(row, name) == published]
        label = f"{name}, another day" if published else name
        _marks(axes, chosen, lambda row: peer_us(row, name), _style(number, published), label)


def _marks(
    axes: Axes, rows: list[tuple[int, Row]], figure_of: Callable[[Row], float | None], style: dict[str, Any], label: str
) -> None:
    known = [(figure / row["time_us"], place) for place, row in rows if (figure := figure_of(row))]
    if known:
        axes.plot(*zip(*known, strict=True), **{"ls": ""} | style, label=label)


# ---- Curves


def _lengths(rows: list[Row]) -> Figure:
    kinds, names = kinds_of(rows), peers(rows)
    figure, panels = _panels(kinds, 1.2 + 3.4 * len(kinds), 4.2)
    for kind, axes in panels:
        here = sorted((row for row in rows if row.get("kind", "") == kind), key=lambda row: row["curve"][1])
        for number, name in enumerate(names):
            _line(axes, here, partial(peer_us, name=name), _style(number) | {"ls": "-", "lw": 1}, name)
        _line(axes, here, lambda row: row.get("roof_us"), {"ls": "--", "color": "black", "lw": 1}, "roof")
        _line(
            axes, here, lambda row: row.get("reach_us"), {"ls": "", "marker": "_", "color": OURS, "ms": 14, "mew": 2}, "reach"
        )
        _line(axes, here, lambda row: row["time_us"], {"marker": "o", "color": OURS, "lw": 2.5, "ms": 6}, "gdn_cuda")
        axes.set_title(kind)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.grid(alpha=0.25)
        axes.set_xlabel(here[0]["curve"][0] if here else "")
    lengths = sorted({row["curve"][1] for row in rows})
    axes = panels[0][1]
    axes.set_xticks(lengths, [f"{length // 1024}K" if length >= 1024 else str(length) for length in lengths])
    axes.minorticks_off()
    _plain_ticks(axes.yaxis)
    axes.set_ylabel("ms")
    return figure


def _line(axes: Axes, rows: list[Row], figure_of: Callable[[Row], float | None], style: dict[str, Any], label: str) -> None:
    known = [(row["curve"][1], figure / 1000) for row in rows if (figure := figure_of(row))]
    if known:
        axes.plot(*zip(*known, strict=True), **style, label=label)


# ---- Two trees


def _ratios(report: Report) -> Figure:
    """Draws a report of benchmarks/compare_trees.py: for every row the time after divided by the time before."""
    operators = list(dict.fromkeys(row["operator"] for row in report["rows"]))
    figure, ((_, axes),) = _panels([""], 8, 1.6 + 0.26 * len(operators))
    ratios = [(ratio_of(row), operators.index(row["operator"])) for row in report["rows"]]
    axes.plot(*zip(*ratios, strict=True), "o", color=OURS, alpha=0.6, ms=6)
    axes.axvline(1, color="black", lw=1)
    axes.set_yticks(range(len(operators)), operators)
    axes.invert_yaxis()
    axes.set_xlabel("device time after ÷ before, a point for each row")
    axes.grid(alpha=0.25)
    return figure
