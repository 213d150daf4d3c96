"""Compiles configurations of the registry in child processes with caches of their own, and looks into the cubins."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import gdn_cuda
from gdn_cuda import _C
from gdn_cuda.runtime import capability_of, configuration_fields

CHILD = Path(__file__).with_name("compile_child.py")
KEPT = Path(__file__).resolve().parents[2] / "build" / "compile-tests"
JOBS = max(1, 2 // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
HOPPER = "sm_90a"
EVERY = os.environ.get("GDN_TEST_EVERY_CONFIGURATION") == "1"  # without it tests compile some of the configurations


@dataclass(frozen=True)
class Registered:
    kernel: str  # "gdn/recurrent"
    configuration: str
    min_capability: int
    max_capability: int | None

    @property
    def fields(self) -> dict[str, Any]:
        return configuration_fields(self.configuration)


def registered() -> Iterator[Registered]:
    for entry in _C.kernels():
        for listed in entry["configurations"]:
            yield Registered(
                f"{entry['family']}/{entry['name']}",
                listed["configuration"],
                entry["min_capability"],
                entry["max_capability"],
            )


def representatives(arch: str) -> list[Registered]:
    """The first and the last configuration of every kernel that `arch` can run: the plainest and the most special one."""
    kernels: dict[str, list[Registered]] = {}
    for each in registered():
        if each.min_capability <= capability_of(arch) <= (each.max_capability or capability_of(arch)):
            kernels.setdefault(each.kernel, []).append(each)
    return [each for listed in kernels.values() for each in dict.fromkeys((listed[0], listed[-1]))]


@dataclass(frozen=True)
class Compiled:
    """The results of a child's compiles."""

    findings: dict[str, Any]  # part of the toolchain -> where it was found
    cache: Path
    results: list[dict[str, Any]]  # the results of _C.compile, in the order of the work

    def cubin(self, i: int) -> Path:
        found = list(self.cache.glob(f"*{self.results[i]['full_key']}*.cubin"))
        assert len(found) == 1
        return found[0]


class Child:
    """A process with its own cache, empty at first, and none of the caller's GDN_ variables: the first request for a kernel
    compiles it."""

    def __init__(self, folder: Path, **variables: str | Path):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GDN_")}
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(Path(next(iter(gdn_cuda.__path__))).parent), environment.get("PYTHONPATH", "")]
        )
        environment |= {"GDN_JIT_CACHE_DIR": str(folder / "cache")} | {name: str(value) for name, value in variables.items()}
        self._errors = folder / "stderr"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment,
                cwd=folder, text=True,
            )  # fmt: skip

    def compile(self, work: list[Registered], arch: str, force: bool = False) -> Compiled:
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"jobs": JOBS, "force": force, "work": [(each.kernel, each.configuration, arch) for each in work]}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, self._errors.read_text()
        answer = json.loads(line)
        findings = {finding["what"]: finding["found"] for finding in answer["findings"]}
        return Compiled(findings, Path(answer["cache"]), answer["results"])

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # ends with its input


class KeepingChild(Child):
    """Compiles a kernel again, in this session or a later one, only when its key has changed: the cache is in the build folder,
    with the compiler's report about each cubin. If the library refuses that folder, the cache is in `folder`."""

    def __init__(self, folder: Path, **variables: str | Path):
        super().__init__(folder, GDN_JIT_CACHE_DIR=KEPT, XDG_CACHE_HOME=folder, **variables)

    def compile(self, work: list[Registered], arch: str, force: bool = False) -> Compiled:
        made = super().compile(work, arch, force)
        reports = made.cache / "reports"
        reports.mkdir(exist_ok=True)
        unreported = []
        for i, result in enumerate(made.results):
            report = reports / f"{result.get('full_key')}.json"
            if result.get("origin") == "compiled":
                draft = report.with_suffix(f".{os.getpid()}")
                draft.write_text(json.dumps(result))
                draft.rename(report)
            elif report.exists():
                made.results[i] = json.loads(report.read_text())
            elif "error" not in result:
                unreported.append(i)
        if unreported:
            again = self.compile([work[i] for i in unreported], arch, force=True)
            for i, result in zip(unreported, again.results, strict=True):
                made.results[i] = result
        return made


def check_compiled(work: list[Registered], made: Compiled, arch: str = HOPPER, may_spill: Collection[str] = ()) -> None:
    """Asserts that all of the work was compiled, without spills, stack and serialized wgmmas. Spills do not count where `arch`
    has too little shared memory to run the configuration, and of the kernels `may_spill`."""
    most_shared = _C.device_traits_for_arch(arch)["shared_bytes_per_block"]
    wrong = []
    for each, result in zip(work, made.results, strict=True):
        what = f"{each.kernel} {each.configuration}"
        if "error" in result:
            wrong.append(f"{what}: {result['error']}")
        elif result["origin"] != "compiled":
            wrong.append(f"{what}: came from {result['origin']}")
        elif (
            (result["spill_bytes"] or result["stack_bytes"])
            and result["shared_bytes"] <= most_shared
            and each.kernel not in may_spill
        ):
            wrong.append(f"{what}: {result['spill_bytes']} bytes of spills, {result['stack_bytes']} bytes of stack")
        elif result["is_serialized"]:
            wrong.append(f"{what}: wgmmas are serialized")
        elif not 0 < result["registers"] <= 255:
            wrong.append(f"{what}: {result['registers']} registers")
    assert not wrong, "\n".join(wrong)


def median_seconds(made: Compiled) -> float:
    return median(result["seconds"] for result in made.results)


# ---- Machine code


def find_disassembler() -> str:
    """The path of nvdisasm or cuobjdump: on PATH, in a wheel, or in a toolkit. Skips the test if there is none."""
    folders: list[Path] = []
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or []) if spec is not None else []:
        folders += [Path(root) / "cu13" / "bin", Path(root) / "cuda_cuobjdump" / "bin", Path(root) / "cuda_nvdisasm" / "bin"]
    homes = [os.environ[name] for name in ("GDN_CUDA_HOME", "CUDA_HOME") if name in os.environ]
    folders += [Path(home) / "bin" for home in [*homes, "/usr/local/cuda"]]
    search = os.pathsep.join([os.environ.get("PATH", ""), *map(str, folders)])
    for name in ("nvdisasm", "cuobjdump"):
        if (tool := shutil.which(name, path=search)) is not None:
            return tool
    return pytest.skip(
        f"no nvdisasm and no cuobjdump on PATH or in {', '.join(map(str, folders))}: pip install nvidia-cuda-nvdisasm"
    )


def instructions(cubin: Path) -> list[str]:
    """The instructions of a cubin's kernel with their modifiers: LDG.E.128, for instance."""
    tool = find_disassembler()
    options = ["-sass"] if Path(tool).name == "cuobjdump" else ["-c"]
    text = subprocess.run([tool, *options, str(cubin)], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", text)
    assert found, text[:500]
    return found
