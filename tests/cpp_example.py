"""Builds examples/layer.cpp: with the commands in its first comment, and as docs/cpp.md says for an installed package."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gdn_cuda
from gdn_cuda import runtime

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "examples" / "layer.cpp"
GUIDE = ROOT / "docs" / "cpp.md"
CONFIG = Path("lib/cmake/gdn_cuda")
NO_GPU = 77


def build(folder: Path) -> Path:
    """The program, in `folder`; skips the test if there is no compiler."""
    _require_compiler()
    library = runtime.library_path()
    assert library is not None
    (folder / "gdn_cuda").mkdir()
    (folder / "gdn_cuda" / "lib").symlink_to(library.parent)
    for name in ("examples", "include"):
        (folder / name).symlink_to(ROOT / name)

    commands = re.findall(r"^//     (.+)", SOURCE.read_text(), re.MULTILINE)
    _run(f'python() {{ {shlex.quote(sys.executable)} "$@"; }}', *commands, folder=folder)
    return folder / "layer"


def build_as_installed(folder: Path) -> Path:
    """The program, in `folder`, by the CMake project of docs/cpp.md and a package as a wheel installs it; skips the test where
    there is no such package and no build tree to make one from."""
    _require_compiler()
    site = folder / "site-packages"
    cmake = _installed_config(site)
    page = GUIDE.read_text()
    (project,) = re.findall(r"```cmake\n(.*?)```", page, re.DOTALL)
    (command,) = re.findall(r"^    (cmake .+)", page, re.MULTILINE)
    (folder / "CMakeLists.txt").write_text(project)
    shutil.copy(SOURCE, folder)
    _run(f"gdn-cuda() {{ [ $1 = --cmake-dir ] && echo {shlex.quote(str(cmake))}; }}", command, folder=folder)
    return folder / "build" / "layer"


def _installed_config(site: Path) -> Path:
    """The folder of CMake's package file, in this environment's package or in a new one in `site`, which is beside torch."""
    here = Path(gdn_cuda.__path__[0]) / CONFIG
    if here.is_dir():
        return here
    built = ROOT / "build" / f"editable-{sys.implementation.cache_tag}"
    if shutil.which("cmake", path=_path()) is None or not built.is_dir():
        pytest.skip("neither an installed package nor cmake and the build tree of ./develop.sh")
    _run(f"cmake --install {shlex.quote(str(built))} --prefix {shlex.quote(str(site))}", folder=ROOT)
    for package in (Path(torch.__path__[0]), Path(torch.__path__[0]).parent / "nvidia"):  # RUNPATHs of torch's libraries
        (site / package.name).symlink_to(package)
    return site / "gdn_cuda" / CONFIG


def _require_compiler() -> None:
    compiler = shlex.split(os.environ.get("CXX") or "g++")[0]
    if shutil.which(compiler) is None:
        pytest.skip(f"no C++ compiler: {compiler} is not on PATH; install g++ or set CXX")


def _path() -> str:
    """PATH with this environment's programs, such as the cmake and ninja of requirements-dev.txt, last."""
    return os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)])


def _run(*commands: str, folder: Path) -> None:
    environment = os.environ | {"PATH": _path()}
    if shutil.which("make") is None:
        environment |= {"CMAKE_GENERATOR": "Ninja"}
    script = "\n".join(commands)
    done = subprocess.run(["bash", "-ec", script], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
