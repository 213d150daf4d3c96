"""The tables of docs/benchmarks/scan.md from reports of `python -m gdn_cuda bench OPERATOR --json FILE`, of selective_scan and
of selective_state_update.

    python benchmarks/scan_tables.py FILE...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# mamba-ssm 2.3.2 on an H200, measured once to set targets, where a report has no time of its own, and these: forward and
# backward, microseconds.
PEER = {
    "1×5120×4096": (395, 1609),
    "8×5120×2048": (1450, 5665),
    "8×1536×2048": (449, 1738),
    "1×8192×32768": (5910, 19000),
    "8×1536×2048 fp32": (879, 2042),
    "8×1024×2048 complex": (781, 2692),
    "8×5120×2048 N=64": (4873, 21880),
}
REACH = {
    "1×5120×4096": (150, 500),
    "8×5120×2048": (550, 1600),
    "8×1536×2048": (170, 550),
    "1×8192×32768": (2000, 6000),
    "8×1536×2048 fp32": (250, 700),
    "8×1024×2048 complex": (400, 1100),
    "8×5120×2048 N=64": (2000, 7000),
}
# Forward: N exponentials an element and 4 for softplus and silu, 15 % of them on the FMA pipe.
ROOF = {
    "1×5120×4096": 100,
    "8×5120×2048": 400,
    "8×1536×2048": 120,
    "1×8192×32768": 1280,
    "8×1536×2048 fp32": 120,
    "8×1024×2048 complex": 235,
    "8×5120×2048 N=64": 1320,
}


LAYOUTS = ("", " transposed", " mixed")


def table(times: dict[str, float], peers: dict[str, float], what: int) -> str:
    """`what`: 0 forward, 1 backward."""
    suffix = (" forward", " backward")[what]
    measured = [shape.removesuffix(suffix) for shape in times if shape.endswith(suffix)]
    shapes = dict.fromkeys(shape.removesuffix(" transposed").removesuffix(" mixed") for shape in measured)
    columns = ["", "ms", "transposed", "mixed", "mamba-ssm", "times as fast", "reach", "÷ reach"]
    columns += ["roof", "share"][: 2 - 2 * what]
    lines = [f"| {' | '.join(columns)} |".replace("|  |", "| |"), "|---" * len(columns) + "|"]
    for shape in shapes:
        ours = [times.get(f"{shape}{layout}{suffix}") for layout in LAYOUTS]
        slower = max(one for one in ours[:2] if one is not None)
        peer, compared = peers.get(shape + suffix), [""] * (len(columns) - 4)
        if shape in REACH:
            peer, reach = peer or PEER[shape][what], REACH[shape][what]
            compared[2:4] = [_ms(reach), f"{slower / reach:.1f}"]
            if not what:
                compared[4:] = [_ms(ROOF[shape]), f"{100 * ROOF[shape] / slower:.0f} %"]
        if peer:
            compared[:2] = [_ms(peer), f"{peer / slower:.2f}"]
        lines.append(f"| {shape} | {' | '.join(['' if one is None else f'**{_ms(one)}**' for one in ours] + compared)} |")
    return "\n".join(lines)


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1000:.3f}"


def steps(rows: list[dict[str, Any]]) -> str:
    lines = ["| | µs | in-place add of the state | ÷ | mamba-ssm (Triton) | times as fast |", "|---" * 6 + "|"]
    for row in rows:
        ours, add, peer = row["time_us"], row["in_place_us"], row.get("peers_us", {}).get("mamba-ssm")
        compared = [f"{peer:.1f}", f"{peer / ours:.2f}"] if peer else ["", ""]
        lines.append(f"| {' | '.join([row['shape'], f'**{ours:.1f}**', f'{add:.1f}', f'{ours / add:.2f}', *compared])} |")
    return "\n".join(lines)


def main() -> None:
    for file in sys.argv[1:]:
        report = json.loads(Path(file).read_text(encoding="utf-8"))
        print(f"{report['device']}, driver {report['driver']}, torch {report['torch']}, commit {report['commit'][:7]}\n")
        if report["operator"] == "selective_state_update":
            print(f"## `selective_state_update`\n\n{steps(report['rows'])}\n")
            continue
        measured = {row["shape"]: row["time_us"] for row in report["rows"]}
        peers = {row["shape"]: row.get("peers_us", {}).get("mamba-ssm") for row in report["rows"]}
        for number, title in enumerate(("forward", "backward")):
            print(f"## `selective_scan`, {title}\n\n{table(measured, peers, number)}\n")


if __name__ == "__main__":
    main()
