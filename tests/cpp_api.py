"""Calls the C++ API from Python: builds a source file that uses it, as a C++ program would."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from gdn_cuda import runtime

ROOT = Path(__file__).resolve().parents[1]
TORCH = Path(torch.__file__).parent


def load(source: Path, folder: Path) -> Any:
    """torch.ops.gdn_cuda_api with the operators of `source`, built in the folder of the first call in a process. Skips the
    test if there is no compiler."""
    if source not in _loaded:
        torch.ops.load_library(str(_built(source, folder)))
        _loaded.add(source)
    return torch.ops.gdn_cuda_api


_loaded: set[Path] = set()


def _built(source: Path, folder: Path) -> Path:
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"no C++ compiler: {compiler[0]} is not on PATH; install g++ or set CXX")
    library = runtime.library_path()
    assert library is not None
    target = folder / f"lib{source.stem}.so"
    done = subprocess.run(
        [
            *(*compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"),
            *("-DTORCH_TARGET_VERSION=0x020a000000000000", f"-I{ROOT / 'include'}", "-isystem", str(TORCH / "include")),
            *(str(source), "-o", str(target), f"-L{library.parent}", f"-L{TORCH / 'lib'}"),
            *("-lgdn_cuda", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{library.parent}"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return target
