"""Calls every kernel at small sizes, for compute-sanitizer, under which the suite would take hours.

    compute-sanitizer --tool memcheck --kernel-name kernel_substring=gdn_cuda python tests/sanitize.py
    compute-sanitizer --tool racecheck --kernel-name kernel_substring=KERNEL python tests/sanitize.py KERNEL

Families declare the calls (`@sanitizes`). Without names, every kernel runs: 17 seconds under memcheck once they are compiled.
Under racecheck a kernel takes 5 to 15 seconds if the tool checks it alone (selective_backward 60), and minutes with the other
kernels of its calls; toeplitz_schur and toeplitz_eliminate take minutes in any case. The script prints how many configurations
ran; it does not check results.

A kernel that is launched in clusters ends with an illegal memory access under racecheck where the tool does not check it
(compute-sanitizer of CUDA 13.0: decode_layer, mamba2_decode_layer, toeplitz_eliminate, kda_gradients, with no kernel checked at
all); memcheck and synccheck report nothing.

In some kernels racecheck reports pairs of accesses that are ordered by means that it does not track:
- prefill: one lane arrives at an mbarrier for its warp, after __syncwarp. If every lane arrives, and every warp waits at the
  named barrier after the clearing of a tail's tokens, 1 of 77 reports remains: this clearing, and the reads of keys for their
  norms (head dimension 96). That named barrier separates the two. For chained segments, with these arrivals, reports remain
  about the work and the mbarriers of the next pass, which follow a barrier of all threads that each role reaches in its own
  code.
- prefill_ahead: the same arrivals. If every lane arrives, reports remain about the clearing of a tail's tokens: by the inverse
  role, as in prefill, and by a warp whose lane 0 arrives after __syncwarp.
- backward_chain: the same arrivals. All reports of 300 seconds are of the clearing of a tail's tokens, by a warp whose
  lane 0 arrives after __syncwarp. With every lane arriving it was not run to an end: one report, then the launch failed under
  the tool, twice. The emulator, which tracks the arrivals, reports none.
- backward_gradients: the same arrivals; none was left when every lane arrived, in its first form.
- gdn/prefill_mma: a named barrier of the four warps that invert is between barriers of all threads, and racecheck treats
  accesses on the two sides of those as unordered. With every warp at that barrier there was no report (before chunks with
  resets were added). A chunk that is processed token by token overwrites a value with its output: a warp's lanes read it,
  exchange sums by shuffles, and one lane stores.
- ssd/prefill, ssd/backward: the same arrivals; not run with every lane arriving. The emulator, which tracks them, reports none.
- ssd/prefill_mma: chunks that cp.async has written, read after the wait for its group and a barrier of all threads; in fp16
  alone, whose code is that of bf16. The emulator, which tracks both, reports none.
- kda_own and what it is of kda_ahead: the same arrivals; not run with every lane arriving. The emulator reports none.
- kda_prepare: two named barriers, of the four warps that invert and of these and the others, as in gdn/prefill_mma: all reports
  are of accesses on the two sides of a barrier of all threads. In kda_ahead named barriers are all that it has. The emulator
  reports none.
- kda_gradients: two named barriers between its warpgroups: all reports are of accesses on the two sides of __syncthreads, but
  for warnings about a word that every lane of a warp writes, the same, and reads. The emulator reports none.
- seq_state_update, ring_decode with states of 16 bits: a warp's ldmatrix, which is one instruction, then the same warp's
  stores.
"""

from __future__ import annotations

import os
import subprocess
import sys

import torch

from gdn_cuda import _C
from gdn_cuda.operators import measure


def main(names: list[str]) -> None:
    calls = measure.load().sanitized
    if unknown := set(names) - set(calls):
        sys.exit(f"sanitize.py: expected kernels among {', '.join(calls)}, got {', '.join(sorted(unknown))}")
    registered = {f"{kernel['family']}/{kernel['name']}": kernel for kernel in _C.kernels()}
    registered |= {kernel["name"]: kernel for kernel in registered.values()}  # where no other family has the name
    for name in names or calls:
        needed = measure.load().variables[name]
        if any(os.environ.get(variable) != value for variable, value in needed.items()):  # a process reads them once
            subprocess.run([sys.executable, __file__, name], env=os.environ | needed, check=True)
            continue
        calls[name]()
        torch.cuda.synchronize()
        kernel = registered[name]
        loaded = [event["kernel"] for event in _C.load_events()].count(f"{kernel['family']}/{kernel['name']}")
        print(f"{name}: {loaded} of {len(kernel['configurations'])} configurations", flush=True)
        if loaded == 0:
            sys.exit(f"sanitize.py: {name}: expected its calls to run it, got other kernels alone")


if __name__ == "__main__":
    main(sys.argv[1:])
