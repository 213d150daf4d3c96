"""Builds examples/layer.cpp with the commands in its first comment."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gdn_cuda import runtime

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "examples" / "layer.cpp"
NO_GPU = 77


def build(folder: Path) -> Path:
    """The program, in `folder`; skips the test if there is no compiler."""
    compiler = shlex.split(os.environ.get("CXX") or "g++")[0]
    if shutil.which(compiler) is None:
        pytest.skip(f"no C++ compiler: {compiler} is not on PATH; install g++ or set CXX")
    library = runtime.library_path()
    assert library is not None
    (folder / "gdn_cuda").mkdir()
    (folder / "gdn_cuda" / "lib").symlink_to(library.parent)
    for name in ("examples", "include"):
        (folder / name).symlink_to(ROOT / name)

    commands = re.findall(r"^//     (.+)", SOURCE.read_text(), re.MULTILINE)
    this_python = f'python() {{ {shlex.quote(sys.executable)} "$@"; }}'
    done = subprocess.run(["bash", "-ec", "\n".join([this_python, *commands])], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "layer"
