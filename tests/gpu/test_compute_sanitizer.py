"""What NVRTC compiles under compute-sanitizer is what it compiles elsewhere, so both may use one cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = ("layers/gating", "gdn/chunk_gates")  # small ones, of which one has several configurations
COMPILE = f"""
import torch, gdn_cuda
if torch.cuda.is_available():  # a call that the tool instruments, so that all of it is loaded
    torch.zeros(1, device="cuda").add_(1)
for kernel in {KERNELS}:
    gdn_cuda.compile(*kernel.split("/"), arch="sm_90a")
"""

pytestmark = pytest.mark.skipif(not shutil.which("compute-sanitizer"), reason="compute-sanitizer is not on PATH")


def cubins(cache: Path, *tool: str) -> dict[str, bytes]:
    """The cache's entries by name, which has the key. The exit status is not looked at: without a GPU the tool's is 255."""
    environment = os.environ | {"GDN_JIT_CACHE_DIR": str(cache), "GDN_JIT_DISABLE": "0"}
    environment.pop("GDN_JIT_PREBUILT_DIR", None)
    done = subprocess.run([*tool, sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True)
    found = {path.name: path.read_bytes() for path in cache.glob("*.cubin")}
    assert len(found) > len(KERNELS), done.stdout + done.stderr
    return found


def test_cubins_are_the_same_under_compute_sanitizer(tmp_path: Path) -> None:
    assert cubins(tmp_path / "tool", "compute-sanitizer", "--tool", "memcheck") == cubins(tmp_path / "plain")
