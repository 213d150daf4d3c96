"""Builds libemulator.so in build/emulator: the kernels of FAMILIES, every registered configuration from the source that NVRTC
gets, and the operators that launch them. What depends on no changed file stays as it is; ccache is used if there.

EMULATOR_KERNELS, where set, names the kernels to build, as in `gdn/prefill,conv/causal_conv`; others cannot run then."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from translate import translated

from gdn_cuda import _C, runtime

FAMILIES = ("common", "conv", "gdn", "layers", "scan")
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDER = ROOT / "build" / "emulator"
TORCH = Path(torch.__file__).resolve().parent

COMPILER = shlex.split(os.environ.get("CXX") or "g++")
_IS_X86 = platform.machine() == "x86_64"
COMMON = ["-std=c++20", "-fPIC", "-fvisibility=hidden", "-U_FORTIFY_SOURCE", f"-I{HERE}"]  # setjmp between stacks is on purpose
KERNELS = [
    *("-O1", "-finline-small-functions", "-g1", "-include", str(HERE / "cuda.hpp"), f"-I{FOLDER / 'include'}"),
    *("-Wno-attributes", "-Wno-unknown-pragmas"),
    *("-fno-strict-aliasing", "-ffp-contract=fast", *(["-mfma", "-mf16c"] if _IS_X86 else [])),
    "-ftrivial-auto-var-init=pattern",  # what nobody has written is large
    *("-fsanitize=alignment,bounds,shift,signed-integer-overflow,integer-divide-by-zero", "-fno-sanitize-recover=all"),
]
# For kernels with instructions that go on by themselves: calls of watch.cpp for loads and stores. The linker must not take
# functions of others for theirs, so none are weak.
WATCHED = ["-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0", "-fno-weak", "-w"]
HAVE_THEM = "gdn_cuda/kernels/common/cutlass_sm90.cuh"
VECTORIZED = ["-O3", *(["-mavx2", "-mfma", "-mf16c"] if _IS_X86 else [])]
HOST = [
    *("-O0", "-DTORCH_TARGET_VERSION=0x020a000000000000", "-DFMT_HEADER_ONLY=1", f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'include'}"),
    *("-isystem", str(TORCH / "include")),
]
SLICE = 4  # configurations of a file
_INCLUDE = re.compile(r"#include <(gdn_cuda/[^>]+)>")


@dataclass(frozen=True)
class Unit:
    """A file to compile."""

    source: Path
    options: list[str]

    @property
    def target(self) -> Path:
        return FOLDER / f"{self.source.parent.name}_{self.source.stem}.o"

    def command(self, compiler: list[str]) -> list[str]:
        return [*compiler, *COMMON, *self.options, "-MMD", "-c", str(self.source), "-o", str(self.target)]

    def dependencies(self) -> list[str]:
        rule = self.target.with_suffix(".d").read_text().replace("\\\n", " ")
        return rule.partition(":")[2].split()

    def is_current(self) -> bool:
        record = self.target.with_suffix(".json")
        return record.is_file() and json.loads(record.read_text()) == self.record()

    def record(self) -> list[str]:
        return [*self.command(COMPILER), *(f"{path} {_digest(Path(path))}" for path in self.dependencies())]

    def compile(self) -> None:
        ccache = [path] if (path := shutil.which("ccache")) else []
        done = subprocess.run(self.command([*ccache, *COMPILER]), capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{self.source} does not compile for the emulator:\n{done.stderr[:3000]}")
        self.target.with_suffix(".json").write_text(json.dumps(self.record()))


def library() -> Path:
    """The library as the files are now."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _translate()
        units = [*_kernel_units(), *_host_units()]
        stale = [unit for unit in units if not unit.is_current()]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            try:
                for compiled in [pool.submit(unit.compile) for unit in stale]:
                    compiled.result()
            except RuntimeError:
                pool.shutdown(cancel_futures=True)
                raise
        target = FOLDER / f"libemulator-{_named(units)}.so"
        if not target.is_file():
            for old in FOLDER.glob("libemulator-*.so"):
                old.unlink()
            _link(units, target)
    return target


def _translate() -> None:
    for header in (ROOT / "include").rglob("*.*h*"):
        _write(FOLDER / "include" / header.relative_to(ROOT / "include"), _with_places(header))


def _with_places(header: Path) -> str:
    return f'#line 1 "{header}"\n' + translated(header.read_text())


def _kernel_units() -> Iterator[Unit]:
    wanted = [name for name in os.environ.get("EMULATOR_KERNELS", "").split(",") if name]
    for kernel in _C.kernels():
        name = f"{kernel['family']}/{kernel['name']}"
        if kernel["family"] in FAMILIES and (not wanted or name in wanted):
            codes = [(entry["configuration"], entry["code"]) for entry in kernel["configurations"]]
            for first in range(0, len(codes), SLICE):
                source = FOLDER / f"{name.replace('/', '_')}_{first // SLICE}.cpp"
                _write(source, "".join(_registered(name, *each) for each in codes[first : first + SLICE]))
                yield Unit(source, [*KERNELS, *(WATCHED if HAVE_THEM in _included(codes[0][1]) else [])])
    for source in HERE.glob("*_kernels.cuh"):
        copy = FOLDER / f"{source.stem}.cpp"
        _write(copy, _with_places(source))
        yield Unit(copy, [*KERNELS, *(WATCHED if HAVE_THEM in _included(source.read_text()) else [])])


def _included(code: str) -> set[str]:
    """Our headers that it includes, directly or not."""
    found: set[str] = set()
    left = _INCLUDE.findall(code)
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += _INCLUDE.findall((ROOT / "include" / name).read_text())
    return found


def _registered(kernel: str, configuration: str, code: str) -> str:
    """The source that NVRTC gets, and its function under the kernel's name."""
    function = re.search(r"template __global__ void (.+)\(const __grid_constant__ ", code)
    assert function, code
    name = f'registered_{_short(configuration)}{{"{kernel}", "{configuration}"}}'
    return f"{code}static const emulator::Kernel<{function[1]}> {name};\n"


def _host_units() -> Iterator[Unit]:
    # Not ours, which -I names: a system header is no dependency, and a system folder is one under any option.
    others = [path for folder in _C.toolchain()["include_dirs"] if (path := Path(folder).resolve()) != ROOT / "include"]
    options = [
        *HOST,
        *(word for folder in others for word in ("-isystem", str(folder))),
    ]
    ahead = ["-include", str(HERE / "operators.hpp")]
    folders = [*(ROOT / "csrc/families" / family for family in FAMILIES), ROOT / "csrc/operators"]
    for source in [*(each for folder in folders for each in folder.glob("*.cpp")), ROOT / "csrc/launch/spec.cpp"]:
        yield Unit(source, [*options, *ahead])
    for name in ("operators", "tensor_map"):
        yield Unit(HERE / f"{name}.cpp", options)
    for name in ("barriers", "faults", "grid", "tma"):
        yield Unit(HERE / f"{name}.cpp", ["-O2"])
    for name in ("mma", "order", "watch", "wgmma"):
        yield Unit(HERE / f"{name}.cpp", VECTORIZED)


def _link(units: list[Unit], target: Path) -> None:
    ours = runtime.library_path()
    assert ours is not None
    command = [
        *COMPILER,
        "-shared",
        *(str(unit.target) for unit in units),
        "-o",
        str(target),
        "-Wl,--no-undefined",
        "-Wl,-Bsymbolic",
    ]
    command += [f"-L{ours.parent}", "-lgdn_cuda", f"-L{TORCH / 'lib'}", "-ltorch_cpu", "-lc10"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"the emulator does not link:\n{done.stderr[-3000:]}")


def _named(units: list[Unit]) -> str:
    return _short("".join(unit.target.with_suffix(".json").read_text() for unit in units))


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "gone"


def _write(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    print(library())
