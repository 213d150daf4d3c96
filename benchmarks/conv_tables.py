"""The tables of docs/benchmarks/conv.md from reports of `python -m gdn_cuda bench OPERATOR --json FILE`.

python benchmarks/conv_tables.py FILE...
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

Row = dict[str, Any]

# Microseconds on an H200 that other libraries took when the targets were set: vortex (vtx 1.1.0) by its longest sequence,
# causal-conv1d 1.7.0 by shape. A report has its own where they are installed.
VORTEX = {
    "hyena_short": {8192: 363, 65536: 2713, 131072: 5355},
    "hyena_medium": {8192: 1388, 65536: 19130, 131072: 38850},
    "hyena_long": {8192: 1691, 65536: 21350, 131072: 43160},
}
CAUSAL_CONV1D = {
    "1×8192×32768 tokens last, forward": 279,
    "1×8192×32768 channels last, forward": 338,
    "8×5120×2048 tokens last, forward": 93,
    "8×5120×2048 channels last, forward": 113,
}
# Targets: of Hyena's operators at 65536 tokens, linear in tokens and 5 µs; as a share of the roof and a launch; of backward.
REACH_AT_65536 = {"hyena_short": 580, "hyena_medium": 750, "hyena_long": 900}
PUBLISHED = {"hyena_short": "7 taps", "hyena_medium": "128 taps, bfloat16", "hyena_long": "16 poles, bfloat16"}
LAUNCH, OF_ROOF, OF_FORWARD = 4, 0.95, 2.5
UPDATE_AT_256 = 13.2  # 9 behind the replay of an empty graph


def target(operator: str, row: Row, times: dict[str, float]) -> float | None:
    shape: str = row["shape"]
    if shape.endswith("backward"):
        return OF_FORWARD * times[forward] if (forward := _forward(shape)) in times else None
    if operator in ("causal_conv1d", "conv_split_l2norm"):
        return float(row["roof_us"]) / OF_ROOF + LAUNCH
    if operator in PUBLISHED and PUBLISHED[operator] in shape and (tokens := _evo2_tokens(shape)):
        return REACH_AT_65536[operator] * tokens / 65536 + 5
    if operator == "causal_conv1d_update" and shape.startswith("B=256 D=8192 W=4"):
        return UPDATE_AT_256
    if operator == "rms_norm_gated" and shape == "32768×32×128 bfloat16":
        return 200
    return None


def peer(operator: str, row: Row) -> tuple[float | None, bool]:
    """Its time, and whether it is of this run."""
    measured = [time for time in row["peers_us"].values() if time]
    if measured:
        return float(measured[0]), True
    if operator == "causal_conv1d":
        return CAUSAL_CONV1D.get(row["shape"]), False
    if operator in PUBLISHED and PUBLISHED[operator] in row["shape"] and not row["shape"].endswith("backward"):
        return VORTEX[operator].get(_evo2_tokens(row["shape"]) or 0), False
    return None, False


def _forward(shape: str) -> str:
    return shape.replace(", backward", ", forward")


def _evo2_tokens(shape: str) -> int | None:
    found = re.match(r"1×4096×(\d+) ", shape)
    return int(found[1]) if found else None


def table(report: Row) -> str:
    rows: list[Row] = report["rows"]
    operator = report["operator"]
    times = {row["shape"]: row["time_us"] for row in rows}
    times |= {f"{shape}, forward": time for shape, time in times.items() if not shape.endswith("ward")}
    columns: dict[str, list[str]] = {}
    for row in rows:
        ours, add = row["time_us"], row["in_place_us"]
        reach, (theirs, of_this_run) = target(operator, row, times), peer(operator, row)
        cells = {
            "µs": f"**{_us(ours)}**",
            "in-place add": add and _us(add),
            "roof": _us(row["roof_us"]),
            "share": f"{100 * row['roof_us'] / ours:.0f} %",
            "reach": reach and _us(reach),
            "÷ reach": reach and f"{ours / reach:.2f}",
            "peer": theirs and _us(theirs) + " †" * (not of_this_run),
            "times as fast": theirs and f"{theirs / ours:.2f}",
        }
        for name, cell in cells.items():
            columns.setdefault(name, []).append(cell or "")
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    lines = [f"| | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    lines += [f"| {row['shape']} | {' | '.join(cells)} |" for row, *cells in zip(rows, *columns.values(), strict=True)]
    return "\n".join(lines)


def _us(time: float) -> str:
    return f"{time:.1f}" if time < 1000 else f"{time:.0f}"


def main() -> None:
    for file in sys.argv[1:]:
        report = json.loads(Path(file).read_text(encoding="utf-8"))
        commit = (report["commit"] or "unknown")[:7]
        print(f"{report['device']}, driver {report['driver']}, torch {report['torch']}, commit {commit}\n")
        print(f"## `{report['operator']}`\n\n{table(report)}\n")


if __name__ == "__main__":
    main()
