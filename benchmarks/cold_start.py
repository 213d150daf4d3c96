"""The waiting time of a first call: each kernel is compiled with an empty cache, then loaded from disk by another process.

Each process runs one configuration of one kernel, so that every figure is a cold one. Needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from gdn_cuda import _C, __version__
from gdn_cuda.cli.output import console, show, table
from gdn_cuda.runtime import default_arch

ONE = """
import json, sys, time
import torch
start = time.perf_counter()
import gdn_cuda
from gdn_cuda import _C
imported = time.perf_counter()
done = _C.compile(*sys.argv[1:])
print(json.dumps([imported - start, time.perf_counter() - imported, done["origin"]]))
"""


def measure(kernel: str, configuration: str, arch: str, cache: str, origin: str) -> tuple[float, float]:
    environment = os.environ | {"GDN_JIT_CACHE_DIR": cache, "GDN_JIT_PREBUILT_DIR": ""}
    command = [sys.executable, "-c", ONE, kernel, configuration, arch]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{kernel} {configuration}: {done.stderr}")
    imported, seconds, came_from = json.loads(done.stdout)
    if came_from != origin:
        raise RuntimeError(f"{kernel}: expected it to come from {origin}, it came from {came_from}")
    return imported, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default=default_arch())
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kernel", default="", help="only those with this in their name")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for entry in _C.kernels():
        kernel, configuration = f"{entry['family']}/{entry['name']}", entry["configurations"][0]["configuration"]
        if arguments.kernel not in kernel:
            continue
        with tempfile.TemporaryDirectory() as folder:
            caches = [f"{folder}/{number}" for number in range(arguments.repeats)]
            cold = [measure(kernel, configuration, arguments.arch, cache, "compiled") for cache in caches]
            warm = [measure(kernel, configuration, arguments.arch, cache, "disk") for cache in caches]
        rows.append(
            {
                "kernel": kernel,
                "configuration": configuration,
                "cold_s": statistics.median(seconds for _, seconds in cold),
                "disk_ms": statistics.median(seconds for _, seconds in warm) * 1e3,
                "import_ms": statistics.median(seconds for seconds, _ in cold + warm) * 1e3,
            }
        )
    if arguments.json:
        print(json.dumps({"gdn_cuda": __version__, "arch": arguments.arch, "cores": os.cpu_count(), "rows": rows}, indent=2))
        return 0
    listing = table("kernel", ">cold s", ">disk ms", ">import ms", "configuration")
    for row in rows:
        figures = (f"{row['cold_s']:.2f}", f"{row['disk_ms']:.1f}", f"{row['import_ms']:.0f}")
        listing.add_row(str(row["kernel"]), *figures, str(row["configuration"]))
    show(console(), listing)
    return 0


if __name__ == "__main__":
    sys.exit(main())
