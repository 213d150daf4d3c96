"""Plots a benchmark report: a bar per row, or, where rows form a curve, time against length and the share of the roof."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, Any]

OURS = "#76b900"
MARKERS = "os^v"


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


def draw(report: dict[str, Any], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = report["rows"]
    curve = sorted((row for row in rows if row.get("curve")), key=lambda row: row["curve"][1])
    height = 1.8 + 0.34 * len(rows)
    if curve:
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, max(height, 4.5)), layout="constrained")
        _draw_curve(left, curve)
        _draw_shares(right, rows)
    else:
        figure, axes = pyplot.subplots(figsize=(9, height), layout="constrained")
        _draw_times(axes, rows, with_roof="ceilings" in report)
    figure.suptitle(f"{report['operator']} on {report['device']}, torch {report['torch']}, CUDA {report['cuda']}", fontsize=10)
    # Peers appear in both panels; the legend has each once.
    handles = {label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5, fontsize=8)
    figure.savefig(path, dpi=150)


def _draw_times(axes: Axes, rows: list[Row], with_roof: bool) -> None:
    places = list(range(len(rows)))
    axes.barh(places, [row["time_us"] for row in rows], color=OURS, label="gdn_cuda", height=0.6)
    if with_roof:
        axes.plot([row["roof_us"] for row in rows], places, "|", color="black", ms=14, mew=2, label="roof")
        added = [(row["in_place_us"], place) for place, row in enumerate(rows) if row["in_place_us"] is not None]
        if added:
            axes.plot(*zip(*added, strict=True), "d", color="gray", ms=5, label="in-place add of the same bytes")
        for peer, style, measured in _peers(rows):
            axes.plot([row["peers_us"][peer] for _, row in measured], [at for at, _ in measured], label=peer, **style)
    axes.set_xscale("log")
    axes.set_xlabel("µs")
    _name_rows(axes, rows)


def _draw_curve(axes: Axes, rows: list[Row]) -> None:
    lengths = [row["curve"][1] for row in rows]
    axes.plot(lengths, [row["time_us"] for row in rows], "-", color=OURS, marker=".", label="gdn_cuda")
    axes.plot(lengths, [row["roof_us"] for row in rows], "--", color="black", label="roof")
    for peer, style, measured in _peers(rows):
        axes.plot([lengths[at] for at, _ in measured], [row["peers_us"][peer] for _, row in measured], label=peer, **style)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.set_xlabel(f"tokens, {rows[0]['curve'][0]}")
    axes.set_ylabel("µs")
    axes.grid(alpha=0.3)


def _draw_shares(axes: Axes, rows: list[Row]) -> None:
    axes.barh(range(len(rows)), [100 * row["share_of_roof"] for row in rows], color=OURS, height=0.6)
    for peer, style, measured in _peers(rows):
        shares = [100 * row["roof_us"] / row["peers_us"][peer] for _, row in measured]
        axes.plot(shares, [at for at, _ in measured], label=peer, **style)
    axes.set_xlabel("share of the roof, %")
    _name_rows(axes, rows)


def _peers(rows: list[Row]) -> list[tuple[str, Row, list[tuple[int, Row]]]]:
    """Each measured peer with its style and its rows, with their positions."""
    found = []
    for number, (peer, marker) in enumerate(zip(rows[0].get("peers_us", {}), MARKERS, strict=False)):
        style = {"marker": marker, "color": f"C{number}", "ms": 6, "ls": ""}  # equal in both panels
        measured = [(place, row) for place, row in enumerate(rows) if row["peers_us"][peer] is not None]
        if measured:
            found.append((peer, style, measured))
    return found


def _name_rows(axes: Axes, rows: list[Row]) -> None:
    axes.set_yticks(range(len(rows)), [row["shape"] for row in rows])
    axes.invert_yaxis()
