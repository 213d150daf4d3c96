"""The same kernels through nvcc, and through the NVRTC and headers of CUDA 12.9."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from compile_helpers import EVERY, HOPPER, KeepingChild, check_compiled, representatives

from gdn_cuda import _C

CUDA12_WHEELS = ("nvidia-cuda-nvrtc-cu12==12.9.*", "nvidia-cuda-runtime-cu12==12.9.*")


def test_kernels_compile_with_nvcc(tmp_path: Path) -> None:
    """Compiles a twelfth of the kernels. Its code differs from NVRTC's, for which they are written:
    conv/hyena_short_backward spills 128 bytes with 8 taps."""
    if _C.toolchain()["nvcc_identity"] is None:
        pytest.skip("no nvcc: not on PATH, in GDN_JIT_NVCC, or in /usr/local/cuda")
    work = list({each.kernel: each for each in reversed(representatives(HOPPER))}.values())  # the plainest ones: nvcc is slow
    work = work if EVERY else work[::12]
    with KeepingChild(tmp_path, GDN_JIT_USE_NVCC="1") as child:
        check_compiled(work, child.compile(work, HOPPER), may_spill={each.kernel for each in work})


def is_cuda12(nvidia: Path) -> bool:
    """Whether this is a folder of CUDA 12 wheels, with a compiler and the headers of its release."""
    version = nvidia / "cuda_runtime" / "include" / "cuda_runtime_api.h"
    return (
        any((nvidia / "cuda_nvrtc" / "lib").glob("libnvrtc.so.12"))
        and version.is_file()
        and "#define CUDART_VERSION  12090" in version.read_text(errors="replace")
    )


def unpack_wheels(wheels: Path, folder: Path) -> None:
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)


@pytest.fixture(scope="session")
def cuda12(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `nvidia` of CUDA 12.9's wheels: GDN_TEST_CUDA12, installed here, or fetched once for this session."""
    named = os.environ.get("GDN_TEST_CUDA12")
    if named:
        folders = [Path(named), Path(named) / "nvidia"]
        found = next((folder for folder in folders if is_cuda12(folder)), None)
        assert found is not None, f"GDN_TEST_CUDA12: expected unpacked {' and '.join(CUDA12_WHEELS)} in {named}"
        return found
    spec = importlib.util.find_spec("nvidia")
    for location in (spec.submodule_search_locations or []) if spec is not None else []:
        if is_cuda12(Path(location)):
            return Path(location)
    folder = tmp_path_factory.mktemp("cuda12")
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--no-deps", "--retries", "1"]
    try:
        done = subprocess.run([*command, "--dest", str(folder), *CUDA12_WHEELS], capture_output=True, text=True, timeout=120)
        why_not = done.stderr.strip().splitlines()[-1] if done.returncode else ""
    except subprocess.TimeoutExpired:
        why_not = "timed out"
    if why_not:
        pytest.skip(
            f"no CUDA 12.9 wheels, and pip download failed ({why_not}); GDN_TEST_CUDA12 may name a folder that has them"
        )
    unpack_wheels(folder, folder)
    assert is_cuda12(folder / "nvidia")
    return folder / "nvidia"


SPILLED_BY_CUDA_12 = {"ssd/prefill_mma"}  # 332 bytes with 256 states in fp16, on Hopper, which has ssd/prefill


def test_kernels_compile_with_cuda_12(cuda12: Path, tmp_path: Path) -> None:
    """Compiles a twelfth of the kernels for Hopper, and gdn/prefill, which needs most of a compiler; an eighteenth for the
    newest GPUs."""
    with KeepingChild(tmp_path, GDN_CUDA_HOME=cuda12) as child:
        for arch, every in ((HOPPER, 12), ("sm_120a", 18)):  # one test, so that one process fetches the wheels
            listed = list({each.kernel: each for each in representatives(arch)}.values())
            work = [each for i, each in enumerate(listed) if EVERY or i % every == 0 or each.kernel == "gdn/prefill"]
            made = child.compile(work, arch)
            check_compiled(work, made, may_spill=SPILLED_BY_CUDA_12)
            used = [found for what, found in made.findings.items() if found and ("NVRTC" in what or "CUDA headers" in what)]
            assert len(used) >= 2 and all(Path(found).is_relative_to(cuda12) for found in used), made.findings
