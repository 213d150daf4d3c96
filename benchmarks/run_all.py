"""Every operator's benchmark on this machine's GPU, as JSON and as pictures, into one folder."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from gdn_cuda.cli.bench import benches


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    status = 0
    for operator in benches():
        target = arguments.out / operator
        command = [sys.executable, "-m", "gdn_cuda", "bench", operator, "--json", f"{target}.json", "--plot", f"{target}.png"]
        status |= subprocess.run(command + ["--quick"] * arguments.quick).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
