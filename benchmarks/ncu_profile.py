"""Where a kernel's instructions and stalls are: a call of one row of `bench` for ncu, and a summary of what ncu reports.

    ncu --section SourceCounters --kernel-name regex:selective -o REPORT \\
        python benchmarks/ncu_profile.py selective_scan "8×5120×2048 forward"
    ncu --import REPORT.ncu-rep --page source --csv > REPORT.csv
    python benchmarks/ncu_profile.py REPORT.csv [--listing FILE]

The summary joins consecutive instructions that are executed equally often. For each group it prints the first and the last, how
often a warp executes them, their share of the kernel's instructions and of its stall samples, and the shared-memory wavefronts
per warp. The listing has the same for each instruction, with its main stalls.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LEAST = 0.004  # share of all instructions or samples from which on a group is printed


@dataclass
class Instruction:
    executed: int  # times, by warps
    samples: int
    wavefronts: int
    stalls: list[tuple[int, str]]
    text: str


def kernels_of(report: Path) -> Iterator[tuple[str, list[Instruction]]]:
    name, columns, found = "", [], list[Instruction]()
    for row in csv.reader(report.read_text(encoding="utf-8").splitlines()):
        if row[:1] == ["Kernel Name"]:
            if found:
                yield name, found
            name, found = row[1], []
        elif row[:1] == ["Address"]:
            columns = row
        elif columns and len(row) == len(columns):
            of = dict(zip(columns, row, strict=True))
            stalls = [(int(of[column]), column[6:]) for column in columns if column.startswith("stall_") and "(" not in column]
            found.append(
                Instruction(
                    executed=int(of["Instructions Executed"]),
                    samples=int(of["# Samples"]),
                    wavefronts=int(of.get("L1 Wavefronts Shared", 0)),
                    stalls=sorted((stall for stall in stalls if stall[0] > 0), reverse=True)[:3],
                    text=of["Source"].strip(),
                )
            )
    if found:
        yield name, found


def summary(instructions: list[Instruction]) -> Iterator[str]:
    warps = instructions[0].executed
    executed, samples = (max(1, sum(getattr(i, what) for i in instructions)) for what in ("executed", "samples"))
    numbered = itertools.groupby(enumerate(instructions), key=lambda x: x[1].executed)
    for each, group in numbered:
        run = list(group)
        share = each * len(run) / executed
        stalled = sum(i.samples for _, i in run) / samples
        if max(share, stalled) >= LEAST:
            wavefronts = sum(i.wavefronts for _, i in run) / warps
            yield (
                f"{run[0][0]:6}-{run[-1][0]:<6} × {each / warps:8.1f}  instructions {share:6.1%}  "
                f"samples {stalled:6.1%}  wavefronts {wavefronts:8.1f}"
            )


def listing(instructions: list[Instruction]) -> Iterator[str]:
    warps = instructions[0].executed
    for index, i in enumerate(instructions):
        stalls = " ".join(f"{name}:{count}" for count, name in i.stalls)
        yield f"{index:6} × {i.executed / warps:8.2f} {i.samples:7} {i.wavefronts / warps:8.1f}  {stalls:42} {i.text}"


def call(operator: str, shape: str) -> None:
    import torch

    from gdn_cuda.operators import measure

    cases = {case.shape: case for case in measure.load().benches[operator].cases("cuda")}
    if shape not in cases:
        sys.exit(f"ncu_profile.py: expected a row of {operator}, one of {', '.join(cases)}, got {shape}")
    cases[shape].prepare().call()
    torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", help="an operator, followed by a shape, or a CSV file of ncu")
    parser.add_argument("shape", nargs="?")
    parser.add_argument("--listing", type=Path)
    arguments = parser.parse_args()
    if arguments.shape is not None:
        return call(arguments.what, arguments.shape)
    lines = []
    for name, instructions in kernels_of(Path(arguments.what)):
        print(f"{name}\n{len(instructions)} instructions, {instructions[0].executed} warps", *summary(instructions), sep="\n")
        lines += [name, *listing(instructions)]
    if arguments.listing:
        arguments.listing.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return None


if __name__ == "__main__":
    main()
