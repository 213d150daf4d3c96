"""The device and the versions of a benchmark run."""

from __future__ import annotations

import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any


def environment(operator: str, cpu: bool) -> dict[str, Any]:
    import torch

    import gdn_cuda

    return {
        "operator": operator,
        "device": platform.processor() or platform.machine() if cpu else torch.cuda.get_device_name(),
        "driver": None if cpu else _driver_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gdn_cuda": gdn_cuda.__version__,
        "commit": _commit(),
        "command": shlex.join(["python", "-m", "gdn_cuda", *sys.argv[1:]]),
    }


def _driver_version() -> str | None:
    module = Path("/proc/driver/nvidia/version")
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", module.read_text()) if module.exists() else None
    return found[1] if found else _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def _commit() -> str | None:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    commit = _output("git", "-C", str(root), "rev-parse", "HEAD")
    return f"{commit}, with changes" if commit and _output("git", "-C", str(root), "status", "--porcelain") else commit


def _output(*command: str) -> str | None:
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return text.splitlines()[0] if text else None
