"""Where a step of ssd/prefill spends its cycles: clocks of each role of one block, of the steps 40 to 47.

    python benchmarks/ssd_clocks.py [--heads 32] [--keep FOLDER]

Copies the package, adds stores of the multiprocessor's clock to the copy's headers, and runs a scan of 8 sequences of 4096
tokens with 16 groups, whose last states are replaced by the clocks. Each line is a role's mean cycles between two places, and
its period. 16 heads: blocks of one head; 32: of two. The stores themselves take some cycles.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
KERNEL = "include/gdn_cuda/kernels/ssd/prefill"
STEPS, FIRST, PLACES = 8, 40, 16

STAMP = f"""namespace gdn_cuda::ssd {{

__device__ __forceinline__ void stamp(const SsdArgs& args, int role, bool chosen, int step, int place) {{
    if (!chosen || blockIdx.x != 5 || blockIdx.y != 0 || step < {FIRST} || step >= {FIRST + STEPS}) return;
    unsigned now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
    static_cast<unsigned*>(args.passes[0].last.data)[(role * {STEPS} + step - {FIRST}) * {PLACES} + place] = now;
}}
"""


class Place(NamedTuple):
    """A name for the time until here, and the statement after (or before) which it is."""

    name: str
    statement: str
    before: bool = False


class Role(NamedTuple):
    name: str
    file: str
    after: str  # statements are looked for after this text
    chosen: str  # the thread that stores
    places: tuple[Place, ...]


ROLES = (
    Role(
        "factors",
        "inputs.cuh",
        "void make_factors(",
        "warp == 1 && lane == 0",
        (
            Place("begin", "load_steps(step + kAhead);", before=True),
            Place("wait: slot, load later steps", "load_steps(step + kAhead);"),
            Place("wait: steps", "takes_turns() ? cp_async_wait<1>() : cp_async_wait<kAhead>();\n        __syncwarp();"),
            Place("factors", "work.outputs_at(step) ? store_factors(slot.index) : store_state_factors(slot.index);"),
        ),
    ),
    Role(
        "scores",
        "scores.cuh",
        "    __device__ __forceinline__ void run() {",
        "thread == 96",
        (
            Place("begin", "barrier(shared.stage_full[current.index]).wait(current.parity);", before=True),
            Place("wait: stage", "barrier(shared.stage_full[current.index]).wait(current.parity);"),
            Place("start C B^T", "start_row_products<kConfig.io, kConfig.states>(products, stage.C, stage.B);"),
            Place("wait: factors, C B^T", "wait_for_product(products);"),
            Place("M", "store_scores(products, ready.index, slot.index, heads);"),
            Place("hand on", "barrier(shared.scores_full[slot.index]).arrive();"),
        ),
    ),
    Role(
        "rows",
        "rows.cuh",
        "void run_output(",
        "this->group == kConfig.scores_group() + 1 && this->thread == 0",
        (
            Place("begin", "barrier(shared.stage_full[current.index]).wait(current.parity);", before=True),
            Place("wait: stage", "barrier(shared.stage_full[current.index]).wait(current.parity);"),
            Place("start S C^T", "start_state_product(y, stage.C);"),
            Place("wait: factors", "barrier(shared.factors_full[ready.index]).wait(ready.parity);"),
            Place("update, wait: S C^T", "wait_for_product<1>(y);"),
            Place("y + D x", "add_x(y, x, factors.before, D);"),
            Place("wait: M", "gdn::start_product<kIo>(y, x,", before=True),
            Place("M x", "wait_for_product(y);\n        finish"),
            Place("write", "cutlass::arch::fence_view_async_shared();"),
            Place("wait: update", "finish_update(step);"),
        ),
    ),
)


def stamped(text: str, role: Role, number: int) -> str:
    head, found, body = text.partition(role.after)
    if not found:
        sys.exit(f"ssd_clocks.py: {role.file}: expected {role.after!r}, got none")
    for place, (name, statement, before) in enumerate(role.places):
        at = body.find(statement)
        if at < 0:
            sys.exit(f"ssd_clocks.py: {role.file}: {name}: expected {statement!r}, got none")
        first, _, _ = statement.partition("\n")
        if not before:
            at += len(first)
        call = f" stamp(args, {number}, {role.chosen}, step, {place}); "
        body = body[:at] + call + body[at:]
    return head + found + body


def instrument(tree: Path) -> None:
    folder = tree / KERNEL
    for number, role in enumerate(ROLES):
        path = folder / role.file
        path.write_text(stamped(path.read_text(), role, number))
    work = folder / "work.cuh"
    work.write_text(work.read_text().replace("namespace gdn_cuda::ssd {\n", STAMP, 1))
    rows = folder / "rows.cuh"
    body, _, end = rows.read_text().rpartition("        this->store_state();\n")  # the clocks are in its place
    rows.write_text(body + end)


def run(heads: int) -> None:
    import torch

    from gdn_cuda import ssd_scan
    from gdn_cuda.ssd.measure import Shape, layer_inputs

    x = layer_inputs("cuda", Shape(8, 4096, heads, 64, 16, 128))
    for _ in range(3):
        _, last = ssd_scan(**x, dt_softplus=True, return_last_state=True)
    clocks = last.view(-1).view(torch.int32)[: len(ROLES) * STEPS * PLACES].reshape(len(ROLES), STEPS, PLACES).cpu().long()
    print(f"{torch.cuda.get_device_name()}, {heads} heads")
    for role, own in zip(ROLES, clocks & 0xFFFFFFFF, strict=True):
        spent = [
            f"{role.places[b].name} {float((own[:, b] - own[:, a]).float().mean()):.0f}"
            for a, b in pairwise(range(len(role.places)))
        ]
        print(f"{role.name}: period {float(own[-1, 0] - own[0, 0]) / (STEPS - 1):.0f}; {', '.join(spent)}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--keep", type=Path, help="leaves the instrumented copy here, and runs nothing")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.here:
        run(chosen.heads)
        return
    with tempfile.TemporaryDirectory() as temporary:
        tree = chosen.keep or Path(temporary)
        for name in ("include", "gdn_cuda", "benchmarks"):
            shutil.copytree(ROOT / name, tree / name, dirs_exist_ok=True)
        instrument(tree)
        if chosen.keep is None:
            paths = os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")])
            command = [sys.executable, "benchmarks/ssd_clocks.py", "--here", "--heads", str(chosen.heads)]
            subprocess.run(command, cwd=tree, env=os.environ | {"PYTHONPATH": paths}, check=True)


if __name__ == "__main__":
    main()
