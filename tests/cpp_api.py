"""Programs' use of the C++ API, callable from here: tests/<name>.cpp built as a program's library would be."""

from __future__ import annotations

import functools
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


@functools.cache
def load(name: str, folder: Path) -> Any:
    """torch.ops.gdn_cuda_api, once a process; skips the test where there is no compiler."""
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"no C++ compiler: {compiler[0]} is not on PATH; install g++ or set CXX")
    library = runtime.library_path()
    assert library is not None
    target = folder / f"lib{name}.so"
    done = subprocess.run(
        [
            *(*compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"),
            *("-DTORCH_TARGET_VERSION=0x020a000000000000", f"-I{ROOT / 'include'}", "-isystem", str(TORCH / "include")),
            *(str(ROOT / "tests" / f"{name}.cpp"), "-o", str(target), f"-L{library.parent}", f"-L{TORCH / 'lib'}"),
            *("-lgdn_cuda", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{library.parent}"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    torch.ops.load_library(str(target))
    return torch.ops.gdn_cuda_api
