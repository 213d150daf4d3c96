"""Host time of warm calls without a GPU: the operators' C++ for CUDA tensors on CPU tensors, with launches that do nothing.

    python benchmarks/host_profile.py [--rounds 40] [--only chunked_forward] [--loop 10]

Beside the time: launches, tensor maps, memsets, allocations by torch's shim, and calls that torch looks up by name, each of
one warm call. What a driver takes is missing, and so is the difference between CPU's and CUDA's allocator. `--loop SECONDS`
repeats a call, for `perf record -e cpu-clock -p PID`. The first call of a kernel compiles it. host_times.py measures on a GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
CALLS = 200  # in a round


def shim(folder: Path) -> Path:
    """host_profile.cpp as a library, to preload."""
    library = folder / "libhost_profile.so"
    include = next(path for path in Path(torch.__file__).parents[1].glob("nvidia/*/include") if (path / "cuda.h").is_file())
    source = str(HERE / "host_profile.cpp")
    subprocess.run(["g++", "-std=c++20", "-O2", "-shared", "-fPIC", f"-I{include}", source, "-o", str(library)], check=True)
    return library


def preload() -> None:
    """Starts this script again with host_profile.cpp in front of torch."""
    library = shim(Path(tempfile.mkdtemp()))
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"LD_PRELOAD": str(library)})


def keep_kernels_for_cpu_tensors() -> None:
    """Python's implementations for CPU tensors would replace C++'s, which host_profile.cpp registers for them."""
    impl = torch.library.Library.impl

    def without_cpu(self: torch.library.Library, name: object, function: object, key: str = "", **options: object) -> None:
        if key != "CPU":
            impl(self, name, function, key, **options)

    torch.library.Library.impl = without_cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", help="calls whose names contain this")
    parser.add_argument("--loop", type=float, help="seconds")
    parser.add_argument("--names", action="store_true", help="what is looked up by name")
    options = parser.parse_args()
    shim = ctypes.CDLL(os.environ["LD_PRELOAD"])
    keep_kernels_for_cpu_tensors()
    from host_times import MODES, make_calls

    counts = (ctypes.c_long * 5)()
    print(f"{'us: no_grad, grad mode; launches, maps, memsets, allocations, by name':>100}")
    for name, call in make_calls("cpu").items():
        if options.only and options.only not in name:
            continue
        line = f"{name:42}"
        for mode in MODES.values():
            with mode():
                for _ in range(3):
                    call()
                shim.host_profile_counts(counts, options.names)
                call()
                shim.host_profile_counts(counts, False)
                line += f"{least_us(call, options.rounds):8.2f}"
                until = time.monotonic() + (options.loop or 0)
                while time.monotonic() < until:
                    call()
        print(line + "".join(f"{count:4}" for count in counts), flush=True)


def least_us(call, rounds: int) -> float:
    least = float("inf")
    for _ in range(rounds):
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        least = min(least, (time.perf_counter_ns() - start) / CALLS * 1e-3)
    return least


if __name__ == "__main__":
    main() if "libhost_profile" in os.environ.get("LD_PRELOAD", "") else preload()
