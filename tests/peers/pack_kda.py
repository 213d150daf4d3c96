"""Builds and packs the peers of benchmarks/kda_peers.py into .carry/peers_kda.tar.xz: packages, and kernels built for sm_90a.

    pip download --no-deps --only-binary=:all: --dest WHEELS fla-core==0.6.0 einops==0.8.2 nvidia-cudnn-frontend==1.32.0 \\
        apache-tvm-ffi==0.1.12 nvidia-cutlass-dsl==4.8.1 nvidia-cutlass-dsl-libs-{base,core,cu13}==4.8.1
    python tests/peers/pack_kda.py --wheels WHEELS --flash-kda GIT --flashinfer GIT --vllm SDIST [--out FILE]

Tested with https://github.com/MoonshotAI/FlashKDA at 1ce47ea, https://github.com/flashinfer-ai/flashinfer at fb28d72 and the
sdist vllm-0.33.0.tar.gz of PyPI; a source may be a git directory, an sdist or a folder. It wants nvcc, g++ and this project's
environment (torch, cuda-bindings, CUTLASS' headers), no GPU, and the GPU machine's versions of Python and torch, for which
FlashKDA is built. On the GPU machine, site/ of the pack belongs into PYTHONPATH.

The compiler of CuTe DSL (200 MB) stays here: its kernels are compiled for each shape that is measured, and linked with what
little of its runtime they call. Of vLLM, only the file of the decode kernel is compiled, without its operator for torch.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import torch
from pack import files_of

import gdn_cuda.paths

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("fla_core", "einops", "nvidia_cudnn_frontend", "apache_tvm_ffi")
UNUSED = ("include/*", "*/3rdparty/*", "tvm_ffi/include/*", "*/licenses/*", "*/RECORD")
CUDA_HOME = os.environ.get("CUDA_HOME", "/usr/local/cuda")
NVCC = ("nvcc", "-O3", "-std=c++17", "-gencode", "arch=compute_90a,code=sm_90a", "-Xcompiler", "-fPIC")
# As FlashKDA's setup.py has them
FLASH_KDA = (
    *(f"-U__CUDA_NO_{name}__" for name in ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_CONVERSIONS")),
    *("--expt-relaxed-constexpr", "--expt-extended-lambda", "--use_fast_math", "--ptxas-options=--register-usage-level=10"),
)
# What vLLM's file includes for its operator, which is cut off
VLLM_CHECK = """#include <cstdio>
#include <cstdlib>
#define STD_TORCH_CHECK(ok, ...) do { if (!(ok)) { std::fputs("check failed: " #ok "\\n", stderr); std::abort(); } } while (0)
"""
# The one function of libcute_dsl_runtime.so (43 MB) that compiled kernels call beside those of the small static library
CUTE_RUNTIME = """#include <cstdio>
extern "C" void CuteDSLRT_TVMFFISetRaisedCudaError(int code) { std::fprintf(stderr, "CuTe DSL: CUDA error %d\\n", code); }
"""


def run(*command: str | Path, **variables: str) -> None:
    subprocess.run([str(word) for word in command], check=True, env=os.environ | variables)


def build(output: Path, *command: str | Path) -> None:
    """What is there already stays."""
    if not output.exists():
        run(*command, "-o", output.with_suffix(".part"))
        output.with_suffix(".part").rename(output)


def unpack(wheels: Path, names: tuple[str, ...], to: Path) -> None:
    for name in names:
        (wheel,) = wheels.glob(f"{name}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(to, [file for file in archive.namelist() if not any(fnmatch(file, one) for one in UNUSED)])


def cuda_library() -> list[str]:
    folder = Path(gdn_cuda.paths.find_paths()["nvrtc"]).parent
    return [f"-L{folder}", "-l:libcudart.so.13"]


def build_flash_kda(source: Path, made: Path, site: Path) -> None:
    for path, read in files_of(source).items():
        if path.startswith(("csrc/", "flash_kda/")):
            (file := made / "flash_kda" / path).parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(read())
    here, found, paths = made / "flash_kda", Path(torch.__file__).parent, gdn_cuda.paths.find_paths()
    folders = (here / "csrc", paths["cutlass_include"], found / "include", found / "include/torch/csrc/api/include")
    includes = [f"-I{folder}" for folder in (*folders, sysconfig.get_path("include"))]
    build(here / "launch.o", *NVCC, *FLASH_KDA, *includes, "-c", here / "csrc/smxx/fwd_launch.cu")
    defines = ("-DTORCH_EXTENSION_NAME=flash_kda_C", "-DTORCH_API_INCLUDE_EXTENSION_H")
    options = ("-O2", "-w", "-std=c++17", "-fPIC", *defines, f"-I{CUDA_HOME}/include")
    build(here / "binding.o", "g++", *options, *includes, "-c", here / "csrc/flash_kda.cpp")
    library = site / f"flash_kda_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    torch_libraries = [f"-l{name}" for name in ("c10", "c10_cuda", "torch", "torch_cpu", "torch_cuda", "torch_python")]
    linked = (here / "launch.o", here / "binding.o", f"-L{found / 'lib'}", *torch_libraries, *cuda_library())
    build(library, "g++", "-shared", "-s", *linked)
    (site / "flash_kda").mkdir(exist_ok=True)
    (site / "flash_kda/__init__.py").write_bytes((here / "flash_kda/__init__.py").read_bytes())


def build_vllm(source: Path, made: Path, site: Path) -> None:
    text = files_of(source)["csrc/kimi_k3/fused_kda_decode_kernel.cu"]().decode()
    kernels, operator, _ = text.partition("\nvoid fused_kda_decode(")
    assert operator, "fused_kda_decode_kernel.cu: expected the operator fused_kda_decode, got none"
    lines = [line for line in kernels.splitlines() if "torch_utils.h" not in line and "cuda_compat.h" not in line]
    (made / "vllm_kda_decode.cu").write_text(VLLM_CHECK + "\n".join(lines))
    options = ("-shared", "-cudart", "shared", "-Xlinker", "-s")
    build(site / "libvllm_kda_decode.so", *NVCC, *options, made / "vllm_kda_decode.cu")


def build_cute(source: Path, wheels: Path, made: Path, site: Path) -> None:
    dsl, objects = made / "dsl", made / "objects"
    unpack(wheels, ("nvidia_cutlass_dsl", *(f"nvidia_cutlass_dsl_libs_{part}" for part in ("base", "core", "cu13"))), dsl)
    objects.mkdir(exist_ok=True)
    path = files_of(source)["flashinfer/kda_kernels/fused_kda_decode.py"]().decode()
    # Its import of FlashInfer's cache of compiled kernels is relative to a package that is not here.
    text = "\n".join(line for line in path.splitlines() if not line.startswith("from .."))
    (made / "fused_kda_decode.py").write_text(text)
    folders = (dsl, dsl / "nvidia_cutlass_dsl/dsl_packages", site, made, ROOT / "benchmarks", ROOT)
    child = Path(__file__).with_name("compile_kda_cute.py")
    run(sys.executable, child, objects, PYTHONPATH=os.pathsep.join(map(str, folders)), CUTE_DSL_ARCH="sm_90a")
    (made / "runtime.cc").write_text(CUTE_RUNTIME)
    run("g++", "-O2", "-fPIC", "-c", made / "runtime.cc", "-o", objects / "runtime.o")
    static = dsl / "nvidia_cutlass_dsl/cu13/lib/libcuda_dialect_runtime_static.a"
    linked = [*sorted(objects.glob("*.o")), static, f"-L{site / 'tvm_ffi/lib'}", "-ltvm_ffi", *cuda_library()]
    run("g++", "-shared", "-s", "-o", site / "libkda_cute.so", *linked)
    (site / "kda_cute.json").write_bytes((objects / "kda_cute.json").read_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("wheels", "flash-kda", "flashinfer", "vllm"):
        parser.add_argument(f"--{name}", type=Path, required=True, metavar="PATH")
    parser.add_argument("--out", type=Path, default=ROOT / ".carry/peers_kda.tar.xz", metavar="FILE")
    given = parser.parse_args()
    made = ROOT / ".carry/made_kda"
    site = made / "site"
    site.mkdir(parents=True, exist_ok=True)
    unpack(given.wheels, PACKAGES, site)
    build_flash_kda(given.flash_kda, made, site)
    build_vllm(given.vllm, made, site)
    build_cute(given.flashinfer, given.wheels, made, site)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(given.out, "w:xz", preset=9) as archive:
        for file in sorted(site.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.add(file, file.relative_to(made))
    print(f"{given.out}: {given.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
