"""Times steps of selective scans with every candidate of the heuristic, for the constants of
csrc/families/scan/selective_step.hpp.

    python benchmarks/step_choices.py

Prints a row for each shape of `bench selective_state_update`, in microseconds; the heuristic's own choice is first.
"""

from __future__ import annotations

import torch

from gdn_cuda import _C
from gdn_cuda.cli.bench_timing import Timer
from gdn_cuda.operators import measure
from gdn_cuda.scan.measure_tune import Step
from gdn_cuda.scan.selective_step import step_work

BATCHES = (1, 4, 16, 32, 64, 128, 256, 1024)
ROWS = (((5120,), 16), ((64, 64), 128), ((128, 64), 128))
STATES = {"f32": torch.float32, "bf16": torch.bfloat16}


def main() -> None:
    device = _C.driver()["devices"][torch.cuda.current_device()]
    timer = Timer(15)
    declared = measure.load().tunables["selective_state_update"]
    for rows, columns in ROWS:
        for dtype, state in STATES.items():
            for batch in BATCHES:
                dim = torch.Size(rows).numel()
                problem = declared.problem(Step(batch, dim, columns), dtype, False)
                if len(rows) > 1:  # Mamba-2: A has one value for each head
                    problem = problem.replace(".tied = false", ".tied = true")
                call = step_work("cuda", batch, rows, columns, state).call
                times = []
                for choice in _C.tuned_candidates(declared.kernel, problem, device):
                    _C.tuned_attempt(declared.kernel, problem, choice, device)
                    call()
                    assert _C.tuned_attempted(declared.kernel, device["ordinal"]), problem
                    times.append(f"{choice} {timer.graph_us(call):.1f} µs")
                    _C.tuned_forget()
                print(f"B={batch} {'×'.join(map(str, rows))} N={columns} {dtype}:", "  ".join(times), flush=True)


if __name__ == "__main__":
    main()
