"""Runs a test file again with GDN_PREFILL or another variable, for kernels that would not be chosen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHOSEN = os.environ.get("GDN_PREFILL", "auto")


def check_with(kernels: str, file: str, variable: str = "GDN_PREFILL") -> None:
    """In a new process, as a process reads the variable once."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(Path(file).resolve())]
    done = subprocess.run(command, env={**os.environ, variable: kernels}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
