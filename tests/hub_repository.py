"""For the tests of kernel repositories: makes one with a few kernels by tools/hub.py from a wheel of the tested package, and
runs processes that load it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import processes

import gdn_cuda
from gdn_cuda import paths

ROOT = Path(__file__).resolve().parents[1]
MAKE = ROOT / "tools" / "hub.py"
KERNELS = ("gating", "toeplitz_sums")
TAG = sys.implementation.cache_tag.replace("cpython-", "cp")


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hub_tool", MAKE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files() -> dict[str, bytes]:
    """The files of a wheel of the tested package, by their names in it."""
    package, root = Path(gdn_cuda.__path__[0]), paths.library_root()
    assert root is not None
    wanted = [path for pattern in ("**/*.py", "**/*.pyi", "_C.*.so", "lib/*.so") for path in package.glob(pattern)]
    found = {f"gdn_cuda/{path.relative_to(package)}": path.read_bytes() for path in wanted}
    headers = [path for path in (root / "gdn_cuda").rglob("*") if path.is_file()]
    return found | {f"gdn_cuda/include/{path.relative_to(root)}": path.read_bytes() for path in headers}


def wheel(folder: Path, tag: str = TAG, content: Mapping[str, bytes] | None = None) -> Path:
    path = folder / f"gdn_cuda-{gdn_cuda.__version__}-{tag}-{tag}-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (content or files()).items():
            archive.writestr(name, data)
        archive.writestr(f"gdn_cuda-{gdn_cuda.__version__}.dist-info/METADATA", "Name: gdn_cuda\n")
    return path


def make(folder: Path, arch: str) -> Path:
    """The repository's folder."""
    command = [sys.executable, str(MAKE), str(wheel(folder)), "--out", str(folder / "repository"), "--arch", arch]
    for kernel in KERNELS:
        command += ["--kernel", kernel]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"for {sys.implementation.cache_tag}" in done.stdout.splitlines()[-1]
    return folder / "repository"


def variant(repository: Path) -> Path:
    [folder] = (repository / "build").iterdir()
    return folder


BEFORE = """
import importlib, json, sys, warnings
from pathlib import Path
warnings.simplefilter("error", ImportWarning)
import torch
from kernels import get_kernel, get_local_kernel

def answer(**result):
    print(json.dumps(result))

def hide_the_installed_package():
    sys.modules["gdn_cuda"] = None

def libraries():
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split()[-1] for line in lines if "/libgdn_cuda.so" in line or "/blobs/" in line and "r-xp" in line})

def run_operators(package, device="cpu"):
    a, b = torch.randn(2, 3, 1, 8, device=device).bfloat16()
    A_log, dt_bias = torch.randn(2, 8, device=device)
    beta, gate = package.fused_gdn_gating(a=a, b=b, A_log=A_log, dt_bias=dt_bias)
    assert torch.allclose(beta.float(), torch.sigmoid(b.float()), rtol=1e-2)
    assert torch.allclose(gate.float(), -A_log.exp() * torch.nn.functional.softplus(a.float() + dt_bias), rtol=1e-2)
    hotdog = importlib.import_module(".compat.hotdog", package.__name__)
    c, r, x = torch.randn(3, 8, device=device)
    full = torch.cat([r[1:].flip(0), c])
    T = torch.stack([full[7 - j : 15 - j] for j in range(8)], dim=1)
    T[0].copy_(torch.cat([c[:1], r[1:]]))
    assert torch.allclose(hotdog.toeplitz_matvec(c, r, x), T @ x, rtol=1e-4, atol=1e-4)
    assert all(hasattr(hotdog, name) for name in hotdog.__all__)
"""


def run(code: str, folder: Path, *arguments: object, **variables: str) -> Any:
    """The answer of `code` in a process that cannot compile, and has no other kernels in its cache."""
    variables = {
        "GDN_JIT_DISABLE": "1",
        "GDN_JIT_CACHE_DIR": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "hf"),
    } | variables
    done = processes.run("-c", BEFORE + code, *arguments, folder=folder, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]) | {"messages": done.stderr}
