"""The C++ API of the structured operators, callable from here: structured_api.cpp built as a program's library would be."""

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
from helpers import rel_rms
from torch import Tensor

import gdn_cuda
from gdn_cuda import runtime

ROOT = Path(__file__).resolve().parents[1]
TORCH = Path(torch.__file__).parent


@functools.cache
def load(folder: Path) -> Any:
    """torch.ops.gdn_cuda_api, once a process; skips the test where there is no compiler."""
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"no C++ compiler: {compiler[0]} is not on PATH; install g++ or set CXX")
    library = runtime.library_path()
    assert library is not None
    target = folder / "libstructured_api.so"
    done = subprocess.run(
        [
            *(*compiler, "-std=c++20", "-shared", "-fPIC", "-DTORCH_TARGET_VERSION=0x020a000000000000"),
            *(f"-I{ROOT / 'include'}", "-isystem", str(TORCH / "include"), str(ROOT / "tests" / "structured_api.cpp")),
            *("-o", str(target), f"-L{library.parent}", f"-L{TORCH / 'lib'}", "-lgdn_cuda", "-ltorch_cpu", "-lc10"),
            f"-Wl,-rpath,{library.parent}",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    torch.ops.load_library(str(target))
    return torch.ops.gdn_cuda_api


def check(api: Any, device: str, seed: int) -> None:
    """Every function on one device: the results of Python, conjugate views, and results into `out`."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype).to(device)

    calls: list[tuple[str, tuple[Any, ...]]] = []
    for dtype in (torch.float32, torch.complex64):
        calls.append(("cauchy_kernel", (draw(2, 5, dtype=dtype), draw(3, 1, 40, dtype=dtype), draw(5, dtype=dtype))))
    pairs = draw(2, 5, dtype=torch.complex128).conj(), draw(40, dtype=torch.complex128), draw(5, dtype=torch.complex128)
    calls += [("cauchy_conj", pairs), ("cauchy_conj", (pairs[0], pairs[1].conj(), pairs[2].conj()))]
    v, x = draw(2, 5, dtype=torch.complex64), 0.1 * draw(2, 5, dtype=torch.complex64)
    calls += [("log_vandermonde", (v, x.conj(), 33)), ("log_vandermonde", (v.conj(), x, 33))]
    for name, arguments in calls:
        expected = getattr(gdn_cuda, name)(*arguments)
        assert torch.equal(getattr(api, name)(*arguments), expected)
        out = torch.full_like(expected, torch.nan)
        assert getattr(api, name)(*arguments, out).data_ptr() == out.data_ptr()
        assert torch.equal(out, expected)
    u = draw(2, 33, dtype=torch.float32)
    assert rel_rms(api.log_vandermonde_transpose(u, v.conj(), x), gdn_cuda.log_vandermonde_transpose(u, v.conj(), x, 33)) < 1e-7
