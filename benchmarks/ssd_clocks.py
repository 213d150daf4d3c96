"""Where a step of ssd/prefill or ssd/backward spends its cycles: clocks of each role of one block, of eight steps.

    python benchmarks/ssd_clocks.py [--heads 32] [--keep FOLDER]
    python benchmarks/ssd_clocks.py --backward [--keep FOLDER]

Copies the package, adds stores of the multiprocessor's clock to the copy's headers, and runs a scan of 8 sequences of 4096
tokens with 16 groups, whose last states are replaced by the clocks, or the gradients of one of 8192 tokens of 128 heads, 8
groups, where those of dt are replaced. Each line is a role's mean cycles between two places, and its period. 16 heads: blocks
of one head; 32: of two. The stores themselves take some cycles.
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
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
STEPS, PLACES = 8, 16


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


class Kernel(NamedTuple):
    folder: str  # of its headers
    args: str
    first: int  # step of which clocks are stored
    step: str  # the variable
    to: str  # what is replaced by clocks, 32 bits each
    unwanted: tuple[str, str]  # a header and its statement that would store there
    roles: tuple[Role, ...]

    def stamp(self) -> str:
        return f"""namespace gdn_cuda::ssd {{

__device__ __forceinline__ void stamp(const {self.args}& args, int role, bool chosen, int step, int place) {{
    if (!chosen || blockIdx.x != 5 || blockIdx.y != 0 || step < {self.first} || step >= {self.first + STEPS}) return;
    unsigned now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
    reinterpret_cast<unsigned*>({self.to})[(role * {STEPS} + step - {self.first}) * {PLACES} + place] = now;
}}
"""


PREFILL_ROLES = (
    Role(
        "factors",
        "inputs.cuh",
        "void make_factors(",
        "warp == 1 && lane == 0",
        (
            Place("begin", "load_steps(step + kAhead);", before=True),
            Place("wait: slot, load later steps", "load_steps(step + kAhead);"),
            Place("wait: steps", "takes_turns() ? cp_async_wait<1>() : cp_async_wait<kAhead>();\n        __syncwarp();"),
            Place("factors", "outputs_at<kConfig>(work, step) ? store_factors(slot.index) : store_state_factors(slot.index);"),
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
            Place("write", "write_tile(own, rounded);"),
            Place("wait: update", "release(step);"),
        ),
    ),
)


BACKWARD_ROLES = (
    Role(
        "readers",
        "readers.cuh",
        "    __device__ __forceinline__ void run() {",
        "this->thread == 96",
        (
            Place("begin", "barrier(shared.stage_full[at.index]).wait(at.parity);", before=True),
            Place("wait: stage", "barrier(shared.factors_full[at.index]).wait(at.parity);"),
            Place("K", "wait_for_product(K);"),
            Place("wait: sums", "use_products(K, N, CB,", before=True),
            Place("M', N", "barrier(shared.scores_full[at.index]).arrive();"),
            Place("across", "store_across(sums.across[warp], K);"),
            Place("C S^T", "wait_for_product(read);"),
            Place("sums of reads", "this->store_row_sums(sums.read, c);"),
            Place("dC", "wait_for_product(dC);"),
        ),
    ),
    Role(
        "writers",
        "writers.cuh",
        "    __device__ __forceinline__ void run() {",
        "this->thread == 96",
        (
            Place("begin", "barrier(shared.stage_full[at.index]).wait(at.parity);", before=True),
            Place("wait: stage", "barrier(shared.factors_full[at.index]).wait(at.parity);"),
            Place("B E^T", "wait_for_product(dW);"),
            Place("wait: sums", "float b[2];", before=True),
            Place("sums of writes", "this->store_row_sums(sums.written, b);"),
            Place("wait: M'", "barrier(shared.scores_full[at.index]).wait(at.parity);"),
            Place("M'^T dY", "float r[2];", before=True),
            Place("sums", "if (lane == 0) sums.D[warp] = D;"),
            Place("dX", "store_dx(dW, dy, delta, factors.D, tile, stage.x);"),
            Place("dB", "wait_for_product(dB);"),
        ),
    ),
    Role(
        "sums",
        "inputs.cuh",
        "    __device__ __forceinline__ void use_sums(int tile) {",
        "warp == 1 && lane == 0",
        (
            Place("begin", "barrier(shared.sums_full[at.index]).wait(at.parity);", before=True),
            Place("wait: sums", "barrier(shared.sums_full[at.index]).wait(at.parity);"),
            Place("gradients", "store_step_gradients(args, work, head, inputs, found, delta, decay, lane);"),
        ),
    ),
    Role(
        "states",
        "inputs.cuh",
        "void multiply_states(int tile) const {",
        "thread == 64",
        (
            Place("begin", "barrier(shared.stage_full[at.index]).wait(at.parity);", before=True),
            Place("wait: stage", "barrier(shared.stage_full[at.index]).wait(at.parity);"),
            Place("wait: sums", "const auto& stage = shared.stages[at.index];\n        constexpr", before=True),
            Place("<E, S>", "if (lane == 0) {\n            shared.sums", before=True),
        ),
    ),
)
PREFILL = Kernel(
    "include/gdn_cuda/kernels/ssd/prefill",
    "SsdArgs",
    40,
    "step",
    "args.passes[0].last.data",
    ("rows.cuh", "        this->store_state();\n"),
    PREFILL_ROLES,
)
BACKWARD = Kernel(
    "include/gdn_cuda/kernels/ssd/backward",
    "SsdBackwardArgs",
    4,
    "tile",
    "args.ddt",
    ("../gradients.cuh", "        if (i < raw.count) args.ddt[(token + i) * args.heads + head] = ddt[i];\n"),
    BACKWARD_ROLES,
)


def stamped(text: str, kernel: Kernel, number: int) -> str:
    role = kernel.roles[number]
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
        call = f" stamp(args, {number}, {role.chosen}, {kernel.step}, {place}); "
        body = body[:at] + call + body[at:]
    return head + found + body


def instrument(tree: Path, kernel: Kernel) -> None:
    folder = tree / kernel.folder
    for number, role in enumerate(kernel.roles):
        path = folder / role.file
        path.write_text(stamped(path.read_text(), kernel, number))
    work = folder / "work.cuh"
    work.write_text(work.read_text().replace("namespace gdn_cuda::ssd {\n", kernel.stamp(), 1))
    file, statement = kernel.unwanted
    body, found, end = (folder / file).read_text().rpartition(statement)
    if not found:
        sys.exit(f"ssd_clocks.py: {file}: expected {statement!r}, got none")
    (folder / file).write_text(body + (";" if kernel is BACKWARD else "") + end)


def run_prefill(heads: int) -> Any:
    from gdn_cuda import ssd_scan
    from gdn_cuda.ssd.measure import Shape, layer_inputs

    x = layer_inputs("cuda", Shape(8, 4096, heads, 64, 16, 128))
    return [ssd_scan(**x, dt_softplus=True, return_last_state=True)[1] for _ in range(3)][-1]


def run_backward() -> Any:
    import torch

    from gdn_cuda.ssd.gradients import ssd_scan_backward
    from gdn_cuda.ssd.measure import Shape, layer_inputs

    x = layer_inputs("cuda", Shape(1, 8192, 128, 64, 8, 128))
    x = {name: y for name, y in x.items() if name in ("x", "dt", "A", "B", "C", "D", "dt_bias")}
    x["out_gradient"] = torch.randn_like(x["x"])
    return [ssd_scan_backward(**x, dt_softplus=True)[1] for _ in range(3)][-1]


def run(kernel: Kernel, heads: int) -> None:
    import torch

    found = run_backward() if kernel is BACKWARD else run_prefill(heads)
    count = len(kernel.roles) * STEPS * PLACES
    clocks = found.view(-1).view(torch.int32)[:count].reshape(len(kernel.roles), STEPS, PLACES).cpu().long()
    print(f"{torch.cuda.get_device_name()}, {'backward' if kernel is BACKWARD else f'{heads} heads'}")
    for role, own in zip(kernel.roles, clocks & 0xFFFFFFFF, strict=True):
        spent = [
            f"{role.places[b].name} {float((own[:, b] - own[:, a]).float().mean()):.0f}"
            for a, b in pairwise(range(len(role.places)))
        ]
        print(f"{role.name}: period {float(own[-1, 0] - own[0, 0]) / (STEPS - 1):.0f}; {', '.join(spent)}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--keep", type=Path, help="leaves the instrumented copy here, and runs nothing")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    kernel = BACKWARD if chosen.backward else PREFILL
    if chosen.here:
        run(kernel, chosen.heads)
        return
    with tempfile.TemporaryDirectory() as temporary:
        tree = chosen.keep or Path(temporary)
        for name in ("include", "gdn_cuda", "benchmarks"):
            shutil.copytree(ROOT / name, tree / name, dirs_exist_ok=True)
        instrument(tree, kernel)
        if chosen.keep is None:
            paths = os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")])
            command = [sys.executable, "benchmarks/ssd_clocks.py", "--here", "--heads", str(chosen.heads)]
            command += ["--backward"] if chosen.backward else []
            subprocess.run(command, cwd=tree, env=os.environ | {"PYTHONPATH": paths}, check=True)


if __name__ == "__main__":
    main()
