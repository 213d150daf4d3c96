"""A benchmark's rows as a picture."""

from __future__ import annotations

from typing import Any


def require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise RuntimeError("--plot needs matplotlib: pip install 'gdn_cuda[plot]'") from error


def draw(report: dict[str, Any], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = report["rows"]
    figure, axes = pyplot.subplots(figsize=(9, 1.8 + 0.34 * len(rows)), layout="constrained")
    places = range(len(rows))
    axes.barh(places, [row["time_us"] for row in rows], color="#76b900", label="gdn_cuda", height=0.6)
    if "ceilings" in report:
        axes.plot([row["roof_us"] for row in rows], places, "|", color="black", ms=14, mew=2, label="roof")
        axes.plot([row["in_place_us"] for row in rows], places, "d", color="gray", ms=5, label="in-place add of the same bytes")
        for marker, peer in zip("os^v", rows[0]["peers_us"], strict=False):
            measured = [(row["peers_us"][peer], place) for place, row in enumerate(rows) if row["peers_us"][peer] is not None]
            if measured:
                axes.plot(*zip(*measured, strict=True), marker, ms=6, ls="", label=peer)
    axes.set_xscale("log")
    axes.set_xlabel("µs")
    axes.set_yticks(places, [row["shape"] for row in rows])
    axes.invert_yaxis()
    axes.set_title(f"{report['operator']} on {report['device']}, torch {report['torch']}, CUDA {report['cuda']}", fontsize=10)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path, dpi=150)
