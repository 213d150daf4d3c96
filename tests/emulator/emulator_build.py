"""Builds the emulator in build/emulator: libemulator.so with the operators' host code, and a library for each configuration of
a kernel, from the source that NVRTC gets, at its first launch. What depends on no changed file is not built again.

`python tests/emulator/emulator_build.py` builds every configuration, on all cores."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from translate import translated

from gdn_cuda import _C, runtime

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDER = ROOT / "build" / "emulator"
TORCH = Path(torch.__file__).resolve().parent
FAMILIES = tuple(sorted({kernel["family"] for kernel in _C.kernels()} - {"structured"}))

COMPILER = shlex.split(os.environ.get("CXX") or "g++")
_IS_X86 = platform.machine() == "x86_64"
COMMON = ["-std=c++20", "-fPIC", "-U_FORTIFY_SOURCE", f"-I{HERE}"]  # setjmp between stacks is on purpose
KERNELS = [
    *("-O1", "-finline-small-functions", "-g1", "-fvisibility=hidden", f"-I{FOLDER / 'include'}"),
    *("-Wno-attributes", "-Wno-unknown-pragmas", "-Wno-psabi"),
    *("-fno-strict-aliasing", "-ffp-contract=fast", *(["-mfma", "-mf16c"] if _IS_X86 else [])),
    "-ftrivial-auto-var-init=pattern",  # uninitialised variables are large
    *("-fsanitize=alignment,bounds,shift,signed-integer-overflow,integer-divide-by-zero", "-fno-sanitize-recover=all"),
]
# For kernels with asynchronous instructions: g++ calls accesses.cpp for every load and store.
INSTRUMENTED = ["-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0", "-w"]
ASYNCHRONOUS = "gdn_cuda/kernels/common/cutlass_sm90.cuh"
VECTORIZED = ["-O3", *(["-mavx2", "-mfma", "-mf16c"] if _IS_X86 else [])]
HOST = [
    *("-O0", "-fvisibility=hidden", "-Wno-psabi", "-DTORCH_TARGET_VERSION=0x020a000000000000", "-DFMT_HEADER_ONLY=1"),
    *(f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'include'}", "-isystem", str(TORCH / "include")),
]
_INCLUDE = re.compile(r"#include <(gdn_cuda/[^>]+)>")


@dataclass(frozen=True)
class Unit:
    """A file to compile."""

    source: Path
    options: tuple[str, ...]
    suffix: str = ".o"  # .gch: a precompiled header

    @property
    def target(self) -> Path:
        return FOLDER / f"{self.source.parent.name}_{self.source.name}{self.suffix}"

    def command(self) -> list[str]:
        language = ["-x", "c++-header"] if self.suffix == ".gch" else ["-c"]
        return [*COMPILER, *COMMON, *self.options, "-MMD", *language, str(self.source), "-o", str(self.target)]

    def record(self) -> str:
        """What the target depends on. Written by `compile`, compared by `is_current`."""
        rule = self.target.with_suffix(".d").read_text().replace("\\\n", " ")
        return json.dumps([self.command(), *(f"{path} {_digest(path)}" for path in rule.partition(":")[2].split())], indent=0)

    def is_current(self) -> bool:
        record = _record_of(self.target)
        return record.is_file() and self.target.is_file() and record.read_text() == self.record()

    def compile(self) -> None:
        _run(self.command(), f"{self.source} does not compile for the emulator")
        _record_of(self.target).write_text(self.record())


@functools.cache
def library() -> Path:
    """The emulator and the operators, as the files were when the process first asked."""
    target = FOLDER / "libemulator.so"
    with _locked(FOLDER / "lock"):
        for header in (ROOT / "include").rglob("*.*h*"):
            _write(FOLDER / "include" / header.relative_to(ROOT / "include"), _with_line_numbers(header))
        header = _host_header()
        if not header.is_current():
            header.compile()
        units = [*_host_units(header), *_emulator_units(), *map(_precompiled, (False, True))]
        stale = [unit for unit in units if not unit.is_current()]
        _in_parallel(unit.compile for unit in stale)
        ours = runtime.library_path()
        assert ours is not None
        if stale or not target.is_file() or target.stat().st_mtime < ours.stat().st_mtime:
            objects = [str(unit.target) for unit in units if unit.suffix == ".o"]
            libraries = [f"-L{ours.parent}", "-lgdn_cuda", f"-L{TORCH / 'lib'}", "-ltorch_cpu", "-lc10"]
            _link([*objects, "-Wl,--no-undefined", f"-Wl,-soname,{target.name}", *libraries], target)
    return target


def kernel_library(kernel: str, configuration: str) -> Path:
    """Registers this configuration when it is loaded. `library` is built."""
    family, _, name = kernel.partition("/")
    source = FOLDER / f"{family}_{name}_{_short(configuration)}.cpp"
    if (own := HERE / f"{family}_kernels.cuh").is_file():  # the emulator's tests' own, all of them together
        source = FOLDER / f"{own.stem}.cpp"
        code = _with_line_numbers(own)
    elif (found := _registered().get((kernel, configuration))) is not None:
        code = _registering(kernel, configuration, found)
    else:
        raise RuntimeError(f"{kernel}{configuration}: no such kernel is registered")
    target = source.with_suffix(".so")
    with _locked(source.with_suffix(".lock")):
        _write(source, code)
        header = _precompiled(any(ASYNCHRONOUS in _included(name) for name in _INCLUDE.findall(code)))
        unit = Unit(source, (*header.options, *_including(header)))
        if not unit.is_current() or not target.is_file():
            unit.compile()
            _link([str(unit.target), f"-L{FOLDER}", "-lemulator"], target)
    return target


def build_all() -> None:
    library()
    _in_parallel(functools.partial(kernel_library, *each) for each in _registered())


@functools.cache
def _registered() -> dict[tuple[str, str], str]:
    """The source that NVRTC gets, by kernel and configuration."""
    return {
        (f"{kernel['family']}/{kernel['name']}", entry["configuration"]): entry["code"]
        for kernel in _C.kernels()
        if kernel["family"] in FAMILIES
        for entry in kernel["configurations"]
    }


def _registering(kernel: str, configuration: str, code: str) -> str:
    function = re.search(r"template __global__ void (.+)\(const __grid_constant__ ", code)
    assert function, code
    return f'{code}static const emulator::Kernel<{function[1]}> registered{{"{kernel}", "{configuration}"}};\n'


def _with_line_numbers(header: Path) -> str:
    return f'#line 1 "{header}"\n' + translated(header.read_text())


@functools.cache
def _included(header: str) -> frozenset[str]:
    """Our headers that it includes, directly or not, and itself."""
    found: set[str] = set()
    left = [header]
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += _INCLUDE.findall((ROOT / "include" / name).read_text())
    return frozenset(found)


def _precompiled(is_instrumented: bool) -> Unit:
    """CUDA's language, for kernels with or without asynchronous instructions."""
    source = FOLDER / ("cuda_instrumented.hpp" if is_instrumented else "cuda.hpp")
    _write(source, f'#include "{HERE / "cuda.hpp"}"\n')
    return Unit(source, (*KERNELS, *(INSTRUMENTED if is_instrumented else ())), ".gch")


def _emulator_units() -> Iterator[Unit]:
    for name in ("barriers", "faults", "grid", "tma"):
        yield Unit(HERE / f"{name}.cpp", ("-O2",))
    for name in ("accesses", "clocks", "mma", "wgmma"):
        yield Unit(HERE / f"{name}.cpp", tuple(VECTORIZED))


def _including(header: Unit) -> tuple[str, ...]:
    """The preprocessor finds the precompiled header under the name of a source, which need not exist."""
    return ("-include", str(header.target.with_suffix("")), "-Winvalid-pch")


def _host_header() -> Unit:
    # Not ours, which -I names: a system header is no dependency, and a system folder is one under any option.
    others = [path for folder in _C.toolchain()["include_dirs"] if (path := Path(folder).resolve()) != ROOT / "include"]
    return Unit(HERE / "operators.hpp", (*HOST, *(word for folder in others for word in ("-isystem", str(folder)))), ".gch")


def _host_units(header: Unit) -> Iterator[Unit]:
    yield Unit(HERE / "operators.cpp", header.options)
    yield Unit(HERE / "tensor_map.cpp", header.options)
    folders = [*(ROOT / "csrc/families" / family for family in FAMILIES), ROOT / "csrc/operators"]
    sources = [each for folder in folders for each in sorted(folder.glob("*.cpp"))]
    sources += [ROOT / "csrc/launch" / f"{name}.cpp" for name in ("registry", "spec", "tunables")]  # hidden in libgdn_cuda.so
    for number, group in enumerate(_grouped(sources)):
        source = FOLDER / f"host_{number}.cpp"
        _write(source, "".join(f'#include "{each}"\n' for each in group))
        yield Unit(source, (*header.options, *_including(header)))


def _grouped(sources: list[Path]) -> list[list[Path]]:
    """Files that are compiled as one, because their headers take longer than they do: those in which no name of another one's
    unnamed namespace occurs."""
    texts = {source: source.read_text() for source in sources}
    words = {source: set(re.findall(r"\w+", re.sub(r"//.*", "", text))) for source, text in texts.items()}
    names = {source: _unnamed(text) for source, text in texts.items()}
    groups: list[list[Path]] = []
    for source in sources:
        for group in groups:
            if all(names[source].isdisjoint(words[other]) and names[other].isdisjoint(words[source]) for other in group):
                group.append(source)
                break
        else:
            groups.append([source])
    return groups


def _unnamed(text: str) -> set[str]:
    """Names that its unnamed namespaces declare."""
    names: set[str] = set()
    for part in re.findall(r"^namespace \{\n(.*?)^\}  // namespace\n", text, re.MULTILINE | re.DOTALL):
        names.update(
            re.findall(r"^(?:struct|class|enum class|enum|using|union) (?:\w+ )*?(\w+)(?= [={:]|;)", part, re.MULTILINE)
        )
        names.update(re.findall(r"^[A-Za-z][^;={}()\n]*?\b(\w+)\(", part, re.MULTILINE))
        names.update(re.findall(r"^[A-Za-z][^;=(\n]*?\b(\w+)(?:\[\w*\])?(?: =|\{|;)", part, re.MULTILINE))
    return names


def _link(words: list[str], target: Path) -> None:
    """Renamed into place: a process may have loaded the one before. -Bsymbolic: what a library defines, it uses."""
    new = target.with_suffix(".new")
    _run([*COMPILER, "-shared", *words, "-Wl,-Bsymbolic", "-o", str(new)], f"{target.name} does not link")
    new.replace(target)


def _run(command: list[str], failure: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{failure}:\n{done.stderr[:3000]}")


def _in_parallel(calls: Iterable[Callable[[], object]]) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            for done in [pool.submit(call) for call in calls]:
                done.result()
        except RuntimeError:
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _record_of(target: Path) -> Path:
    return target.with_name(target.name + ".json")


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@functools.cache
def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if Path(path).is_file() else "gone"


def _write(path: Path, text: str) -> None:
    if not path.is_file() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    build_all()
