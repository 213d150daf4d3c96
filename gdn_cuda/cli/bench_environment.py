"""The device, the day and the versions of a benchmark run."""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CHOICES = (
    "GDN_DECODE_CODES",
    "GDN_KDA_AHEAD",
    "GDN_KDA_BACKWARD_SEGMENTS",
    "GDN_KDA_SEGMENTS",
    "GDN_KDA_WINDOW",
    "GDN_PREFILL",
    "GDN_SCAN_PIECES",
    "GDN_SCAN_TURNS",
    "GDN_SSD_PREFILL",
    "GDN_TUNED",
)


def environment(operator: str, cpu: bool) -> dict[str, Any]:
    import torch

    from ..runtime import package as gdn_cuda

    return {
        "operator": operator,
        "device": platform.processor() or platform.machine() if cpu else torch.cuda.get_device_name(),
        "driver": None if cpu else _driver_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gdn_cuda": gdn_cuda.__version__,
        "commit": _commit(),
        "date": datetime.date.today().isoformat(),
        "command": _command(),
    }


def _command() -> str:
    """The command line, preceded by the variables that choose between kernels."""
    chosen = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name in CHOICES]
    script = Path(sys.argv[0]).resolve()
    program = [str(script.relative_to(ROOT))] if script.parent == ROOT / "benchmarks" else ["-m", "gdn_cuda"]
    named = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]  # no folder of this machine
    return shlex.join([*chosen, "python", *program, *named])


_packages = functools.cache(importlib.metadata.packages_distributions)  # reads the lists of all files that are installed


def peer_versions() -> dict[str, str]:
    """Versions of the packages whose operators have been imported."""
    from ..operators.measure import IMPORTED_PEERS

    packages = _packages()
    return {name: importlib.metadata.version(name) for module in sorted(IMPORTED_PEERS) for name in packages.get(module, ())}


def _driver_version() -> str | None:
    module = Path("/proc/driver/nvidia/version")
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", module.read_text()) if module.exists() else None
    return found[1] if found else _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def _commit() -> str | None:
    if not (ROOT / ".git").exists():
        return None
    commit = _output("git", "-C", str(ROOT), "rev-parse", "HEAD")
    return f"{commit}, with changes" if commit and _output("git", "-C", str(ROOT), "status", "--porcelain") else commit


def _output(*command: str) -> str | None:
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return text.splitlines()[0] if text else None
