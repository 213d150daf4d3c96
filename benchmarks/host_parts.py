"""What a warm call's host time consists of, on a GPU: in Python and torch's dispatcher, in this library, in the driver.

    python benchmarks/host_parts.py [--rounds 20] [--only ssd_scan] [--library FILE]

All calls of host_times.py and longer ones in turns, so that a host that slows down slows all; least and median of the rounds.
"outside" is what a call takes before and after the operator's C++: the Python function, torch's reading of arguments and its
dispatcher. "own" is that C++ without what it asks of the driver and of torch's allocator. Parts are timed by the processor's
counter, some 0.02 us a time. Then launches of an empty kernel by themselves. `--library`: host_parts.cpp as a library, for a
machine without g++.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
PARTS = ("operators", "launches", "maps", "memsets", "allocations", "drops", "streams", "by name")
CALLS = 60  # in a round: they fit in the driver's queue
SHARED = 200 << 10
ENTRIES = {"small": 8, "kilobyte": 1024, "large": 2048}  # bytes of arguments
PTX = ".version 8.0\n.target sm_90\n.address_size 64\n" + "".join(
    f".visible .entry {name}(.param .align 64 .b8 arguments[{size}]) {{ ret; }}\n" for name, size in ENTRIES.items()
)


def built(folder: Path) -> Path:
    """host_parts.cpp as a library that needs libcuda.so.1, which only its name stands for here."""
    include = next(path for path in Path(torch.__file__).parents[1].glob("nvidia/*/include") if (path / "cuda.h").is_file())
    stub, library = folder / "libcuda.so.1", folder / "libhost_parts.so"
    subprocess.run(["g++", "-shared", "-x", "c++", os.devnull, "-Wl,-soname,libcuda.so.1", "-o", str(stub)], check=True)
    source = [f"-I{include}", str(HERE / "host_parts.cpp"), "-x", "none", "-Wl,--no-as-needed", str(stub), "-o", str(library)]
    subprocess.run(["g++", "-std=c++20", "-O2", "-shared", "-fPIC", *source], check=True)
    return library


def longer_calls() -> dict[str, Callable[[], object]]:
    """chunked_forward with one launch and with two, whose kernels would fill the driver's queue: fewer calls of them fit."""
    import gdn_cuda

    def chunk(batch: int, tokens: int) -> Callable[[], object]:
        def bf16(heads: int) -> torch.Tensor:
            return torch.randn(batch, tokens, heads, 128, device="cuda", dtype=torch.bfloat16)

        beta, gate = (torch.rand(batch, tokens, 32, device="cuda") for _ in range(2))
        arguments = (bf16(16), bf16(16), bf16(32), beta, -gate)
        return lambda: gdn_cuda.chunked_forward(*arguments)

    return {f"chunked_forward, {batch} x {tokens}": chunk(batch, tokens) for batch, tokens in ((1, 8192), (8, 4096))}


class Measured:
    """Rounds of a call: us in all, and of each part, with the number of its calls."""

    def __init__(self, parts: ctypes.CDLL, call: Callable[[], object], calls: int):
        self.parts, self.call, self.calls = parts, call, calls
        self.rounds: list[list[float]] = []
        self.counts: list[float] = []
        for _ in range(3):
            call()

    def round(self, ticks_per_us: float) -> None:
        spent = (ctypes.c_uint64 * (2 * len(PARTS)))()
        call = self.call
        torch.cuda.synchronize()
        self.parts.host_parts_spent(spent)
        start = time.perf_counter_ns()
        for _ in range(self.calls):
            call()
        us = (time.perf_counter_ns() - start) * 1e-3 / self.calls
        self.parts.host_parts_spent(spent)
        found = [n / self.calls for n in spent]
        each = [n / ticks_per_us for n in found[: len(PARTS)]]
        self.counts = found[len(PARTS) :]
        self.rounds.append([us, us - each[0], each[0] - sum(each[1:]), *each[1:]])

    def figures(self, pick: Callable[[list[float]], float]) -> list[float]:
        return [pick(list(column)) for column in zip(*self.rounds, strict=True)]


def print_operators(parts: ctypes.CDLL, rounds: int, only: str) -> None:
    from host_times import make_calls

    import gdn_cuda

    x = torch.ones(16, device="cuda")
    calls: dict[str, tuple[Callable[[], object], int]] = {
        "torch.empty": (lambda: torch.empty(16, device="cuda"), CALLS),
        "torch.empty_like": (lambda: torch.empty_like(x), CALLS),
        **{name: (call, CALLS) for name, call in make_calls().items()},
        **{name: (call, 20) for name, call in longer_calls().items()},
    }
    ticks_per_us = parts.host_parts_ticks_per_us()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {gdn_cuda.__path__[0]}")
    print(f"{'us: least of all; of each part, and (how many)':40}")
    names = ("median", "outside", "own", "launches", "maps", "memsets", "allocated", "dropped", "stream", "by name")
    print(f"{'':40}{'least':>8}" + "".join(f"{name:>10}" for name in names))
    with torch.no_grad():
        measured = {
            name: Measured(parts, call, count) for name, (call, count) in calls.items() if only in name or name == "torch.add"
        }
        for _ in range(rounds):
            for each in measured.values():
                each.round(ticks_per_us)
    for name, each in measured.items():
        least, middle = each.figures(min), each.figures(statistics.median)
        line = f"{name:40}{least[0]:8.2f}{middle[0]:10.2f}{least[1]:10.2f}{least[2]:10.2f}"
        for us, count in zip(least[3:], each.counts[1:], strict=True):
            line += f"{us:6.2f} ({count:.0f})" if count else f"{'':10}"
        print(line, flush=True)


def checked(result: int, what: str) -> None:
    if result:
        raise RuntimeError(f"{what}: CUDA error {result}")


def print_launches(parts: ctypes.CDLL, rounds: int) -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    module, library, options = ctypes.c_void_p(), ctypes.c_void_p(), [None, None, 0]
    checked(cuda.cuModuleLoadData(ctypes.byref(module), PTX.encode()), "cuModuleLoadData")
    checked(cuda.cuLibraryLoadData(ctypes.byref(library), PTX.encode(), *options, *options), "cuLibraryLoadData")
    functions, handles = {}, {}
    for name in ENTRIES:
        functions[name], handles[name] = ctypes.c_void_p(), ctypes.c_void_p()
        checked(cuda.cuModuleGetFunction(ctypes.byref(functions[name]), module, name.encode()), "cuModuleGetFunction")
        checked(cuda.cuLibraryGetKernel(ctypes.byref(handles[name]), library, name.encode()), "cuLibraryGetKernel")
        checked(cuda.cuFuncSetAttribute(functions[name], 8, SHARED), "cuFuncSetAttribute")
    other = torch.cuda.Stream()
    early, buffer = 1, 2
    variants = {
        "8 bytes of arguments": (functions["small"], 8, 1, 0, 0, None),
        "1 KB": (functions["kilobyte"], 1024, 1, 0, 0, None),
        "2 KB": (functions["large"], 2048, 1, 0, 0, None),
        "1 KB, a CUkernel": (handles["kilobyte"], 1024, 1, 0, 0, None),
        "1 KB, as one buffer": (functions["kilobyte"], 1024, 1, 0, buffer, None),
        "1 KB, a stream that is not the default": (functions["kilobyte"], 1024, 1, 0, 0, other.cuda_stream),
        "1 KB, 200 KB of shared memory": (functions["kilobyte"], 1024, 1, SHARED, 0, None),
        "1 KB, may start early": (functions["kilobyte"], 1024, 1, 0, early, None),
        "1 KB, a cluster of 2": (functions["kilobyte"], 1024, 2, 0, 0, None),
        "1 KB, a cluster of 2, may start early": (functions["kilobyte"], 1024, 2, 0, early, None),
    }
    parts.host_parts_launch.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.c_int,
    ]  # fmt: skip
    found: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds + 1):
        for name, variant in variants.items():
            torch.cuda.synchronize()
            found[name].append(parts.host_parts_launch(*variant, CALLS))
    print(f"\n{'us of a launch of an empty kernel':40}{'least':>8}{'median':>10}")
    for name, times in found.items():
        print(f"{name:40}{min(times[1:]):8.2f}{statistics.median(times[1:]):10.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="", help="calls whose names contain this")
    parser.add_argument("--library")
    options = parser.parse_args()
    if "libhost_parts" not in os.environ.get("LD_PRELOAD", ""):
        library = Path(options.library) if options.library else built(Path(tempfile.mkdtemp()))
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"LD_PRELOAD": str(library.resolve())})
    parts = ctypes.CDLL(os.environ["LD_PRELOAD"])
    parts.host_parts_ticks_per_us.restype = parts.host_parts_launch.restype = ctypes.c_double
    print_operators(parts, options.rounds, options.only)
    print_launches(parts, options.rounds)


if __name__ == "__main__":
    main()
