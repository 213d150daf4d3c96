"""Times of two trees of this library, measured alternately on one GPU.

    python benchmarks/compare_trees.py BEFORE AFTER [--operator OP] [--only TEXT] [--rounds 3] [--json FILE]

BEFORE and AFTER are folders that hold a built `gdn_cuda`; a folder `.pre` in one of them is its GDN_JIT_PREBUILT_DIR. A figure
is the minimum over all rounds, because one host and one card vary from minute to minute by more than the trees may differ. Host
times are compared if a call takes longer on the host than on the device.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

Times = dict[tuple[str, str], dict[str, float]]  # (operator, shape) -> the minimum of each figure
FIGURES = ("time_us", "host_us")


def environment(tree: Path) -> dict[str, str]:
    """The environment in which `import gdn_cuda` finds the tree. An editable install would come before PYTHONPATH, and be
    measured twice."""
    env = os.environ | {"PYTHONPATH": f"{tree}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", "import gdn_cuda; print(gdn_cuda.__path__[0])"]
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
    if Path(done.stdout.strip()) != tree / "gdn_cuda":
        got = done.stdout.strip() or (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise SystemExit(f"compare_trees: expected a Python that imports {tree / 'gdn_cuda'}, without an install, got {got}")
    if (tree / ".pre").is_dir():
        env["GDN_JIT_PREBUILT_DIR"] = str(tree / ".pre")
    return env


def measure(tree: Path, operator: str, only: str | None, times: Times, env: dict[str, str]) -> str:
    """Adds a round; returns the device and versions."""
    options = ["--only", only] if only else []
    command = [sys.executable, "-m", "gdn_cuda", "bench", operator, "--quick", "--json", "-", *options]
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"compare_trees: {tree}: {' '.join(command)} failed\n{done.stderr}")
    found = json.loads(done.stdout)
    reports: list[dict[str, Any]] = found if operator == "all" else [found]
    for report in reports:
        for row in report["rows"]:
            least = times.setdefault((report["operator"], row["shape"]), {figure: float("inf") for figure in FIGURES})
            for figure in FIGURES:
                least[figure] = min(least[figure], row[figure])
    return f"{reports[0]['device']}, torch {reports[0]['torch']}"


def write(path: Path, made_on: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Writes one row per line, without importing gdn_cuda: neither tree may be installed in this process."""
    lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text(f'{json.dumps(made_on)[:-1]}, "rows": [\n  {lines}\n]}}\n', encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=lambda folder: Path(folder).resolve())
    parser.add_argument("after", type=lambda folder: Path(folder).resolve())
    parser.add_argument("--operator", default="all")
    parser.add_argument("--only", help="only the shapes that contain this")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    before: Times = {}
    after: Times = {}
    trees = [(options.before, before, environment(options.before)), (options.after, after, environment(options.after))]
    for _ in range(options.rounds):
        for tree, times, env in trees:
            device = measure(tree, options.operator, options.only, times, env)
    print(f"{device}: us before and after, and after / before")
    rows = []
    for (operator, shape), least in after.items():
        if (operator, shape) not in before:
            continue
        old = before[operator, shape]
        rows.append({"operator": operator, "shape": shape, "before": old, "after": least})
        ratio = least["time_us"] / old["time_us"]
        line = f"{operator:32} {shape:40} {old['time_us']:9.2f} {least['time_us']:9.2f} {ratio:6.3f}"
        if least["host_us"] > 1.1 * least["time_us"]:
            line += f"   host {old['host_us']:6.2f} {least['host_us']:6.2f} {least['host_us'] / old['host_us']:6.3f}"
        print(line)
    if options.json:
        write(options.json, {"device": device, "rounds": options.rounds}, rows)


if __name__ == "__main__":
    main()
