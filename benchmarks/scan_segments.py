"""Selective scans with sequences split into segments: measurements for the constants of split_forward and split_backward.

    python benchmarks/scan_segments.py

One row per shape and pass: microseconds with the host's choice (0), not split (1), and split into 2, 3, 4 … segments.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict

SHAPES = [(1536, 512), (5120, 512), (1536, 1024), (1024, 1024), (2048, 2048), (256, 4096), (1024, 4096), (2048, 4096)]
SHAPES += [(1536, 8192), (4096, 16384), (8192, 16384), (1024, 65536), (256, 131072)]
SEGMENTS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 33, 49, 66, 82, 99, 128)
FEWEST_CHANNELS, MOST_CHANNELS = 3200, 51200  # bounds between which the GPU is neither nearly idle nor full three times over
SHORTEST = 64


def times(segments: int) -> dict[str, float]:
    """In this process, as GDN_SCAN_PIECES is read once per process."""
    from gdn_cuda.cli.bench_timing import Timer
    from gdn_cuda.scan.measure_selective import Shape, layer_inputs, timed_call

    timer, found = Timer(9), {}
    for dim, tokens in SHAPES:
        if segments > 1 and not (FEWEST_CHANNELS <= dim * segments <= MOST_CHANNELS and tokens >= SHORTEST * segments):
            continue
        shape = Shape(1, dim, tokens)
        x = layer_inputs("cuda", shape)
        for backward in (False, True):
            name = f"{shape.name} {'backward' if backward else 'forward'}"
            found[name] = timer.stream_us(timed_call(x, backward))
    return found


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(times(int(sys.argv[1]))))
        return
    rows = defaultdict[str, dict[int, float]](dict)
    for segments in SEGMENTS:
        environment = os.environ | ({"GDN_SCAN_PIECES": str(segments)} if segments else {})
        done = subprocess.run([sys.executable, __file__, str(segments)], env=environment, check=True, capture_output=True)
        for name, us in json.loads(done.stdout).items():
            rows[name][segments] = us
    for name, times_us in rows.items():
        print(f"{name:24}", "  ".join(f"{segments}: {us:.0f}" for segments, us in times_us.items()))


if __name__ == "__main__":
    main()
