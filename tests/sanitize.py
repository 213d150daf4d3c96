"""Calls every kernel at small sizes, for compute-sanitizer, under which the suite would take hours.

    compute-sanitizer --tool memcheck --kernel-name kernel_substring=gdn_cuda python tests/sanitize.py
    compute-sanitizer --tool racecheck --kernel-name kernel_substring=KERNEL python tests/sanitize.py KERNEL

Families declare the calls (`@sanitizes`). Without names, every kernel: 17 seconds under memcheck once they are compiled. Under
racecheck a kernel takes 5 to 15 seconds where the tool has it alone in view (selective_backward 60), and minutes beside the
others of its calls; toeplitz_schur and toeplitz_eliminate take minutes anyway. It prints how many configurations ran; whether
results are right is the tests' concern.

In four kernels racecheck reports pairs of accesses that are ordered in a way that it does not follow:
- prefill: one lane arrives at an mbarrier for its warp, behind __syncwarp. With an arrival of every lane, and every warp at the
  named barrier that follows the clearing of a tail's tokens, 1 of 77 reports is left: that clearing before the reads of keys
  for their norms (head dimension 96). The same named barrier lies between the two. Of linked segments, what is left with such
  arrivals are the work and the mbarriers of the next pass, behind a barrier of all threads that roles reach at places of their
  own.
- prefill_ahead: the same arrivals. With one of every lane, what is left is the clearing of a tail's tokens: by the inverse
  role, as in prefill, and by a warp whose lane 0 arrives behind __syncwarp.
- prefill_mma: a named barrier of the four warps that invert lies between barriers of all, and what is on the two sides of those
  is taken for unordered. With every warp at that barrier there was no report (before chunks with resets were added). A chunk
  taken token by token overwrites a value with its output: a warp's lanes read it, exchange sums by shuffles, and one stores.
- seq_state_update: a warp's ldmatrix, which is one instruction, then the same warp's stores.
"""

from __future__ import annotations

import sys

import torch

from gdn_cuda import _C
from gdn_cuda.operators import measure


def main(names: list[str]) -> None:
    calls = measure.load().sanitized
    if unknown := set(names) - set(calls):
        sys.exit(f"sanitize.py: expected kernels among {', '.join(calls)}, got {', '.join(sorted(unknown))}")
    registered = {kernel["name"]: kernel for kernel in _C.kernels()}
    for name in names or calls:
        calls[name]()
        torch.cuda.synchronize()
        kernel = registered[name]
        loaded = [event["kernel"] for event in _C.load_events()].count(f"{kernel['family']}/{name}")
        print(f"{name}: {loaded} of {len(kernel['configurations'])} configurations", flush=True)
        if loaded == 0:
            sys.exit(f"sanitize.py: {name}: expected its calls to run it, got other kernels alone")


if __name__ == "__main__":
    main(sys.argv[1:])
