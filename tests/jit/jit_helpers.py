"""For the JIT's tests: child processes with a clean environment, small kernels, and the contents of a cache folder."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jit_processes import Forked

CHILD = Path(__file__).with_name("jit_child.py")
ARCH = "sm_90a"
NOBODY = 65534
NOWHERE = "/proc/self/nowhere"  # where not even root can create a folder
HIDE_CUDA = "if [ -d /usr/local/cuda ]; then mount -t tmpfs none $(readlink -f /usr/local/cuda); fi"
LONGEST = 300.0  # seconds that a call may take; calls that tests interrupt take longer
PATIENCE = 60.0  # seconds to wait, on a busy machine, for events that should be immediate


def kernel(number: int = 0, entry: str = "scale", before: str = "") -> str:
    """A translation unit with one kernel, different for each number."""
    return f'{before}extern "C" __global__ void {entry}(float* x) {{ x[threadIdx.x] += {number}.5f; }}\n'


def slow_kernel(number: int = 0) -> str:
    """A kernel that NVRTC compiles for tens of seconds."""
    steps = "\n".join(f"x[{i}] = sinf(x[{i}] * {number}.25f + x[{i + 1}]) / cosf(x[{i + 2}]);" for i in range(4000))
    return f'extern "C" __global__ void scale(float* x) {{ {steps} }}\n'


def installed_package() -> Path:
    package = importlib.util.find_spec("gdn_cuda")
    assert package is not None and package.submodule_search_locations is not None
    return Path(next(iter(package.submodule_search_locations)))


class CallFailed(RuntimeError):
    """The child's call raised; the text is the message."""


class Child:
    """A process that runs calls on gdn_cuda._C (jit_child.py), one after another."""

    def __init__(
        self,
        folder: Path,
        variables: dict[str, str | Path | None],
        hook: str | dict[str, str] | None = "wheels",
        user: int | None = None,
        before: str = "",
        package: Path | None = None,
    ):
        """`variables`: None removes one. `before`: shell commands in a mount namespace of the child's own. `package`: the
        folder with _C and lib/, in place of the installed one."""
        temporary = folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        environment = {"PATH": os.environ["PATH"], "HOME": str(folder / "home"), "TMPDIR": str(temporary), "LC_ALL": "C.UTF-8"}
        for name, value in variables.items():
            environment.pop(name, None)
            if value is not None:
                environment[name] = str(value)
        code = str(package or installed_package())
        self._errors = folder / f"stderr-{time.monotonic_ns()}"
        with self._errors.open("wb") as errors:
            self.process: Forked | subprocess.Popen[str]
            if before or "LD_PRELOAD" in environment:
                command = ["unshare", "--mount", "sh", "-ec", before + '\nexec "$@"', "sh"] if before else []
                self.process = subprocess.Popen(
                    [*command, sys.executable, str(CHILD), code],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=folder, text=True,
                )  # fmt: skip
            else:
                self.process = Forked(code, environment, folder, errors.fileno())
        self._write({"hook": hook, "user": user})
        self._ready = False

    def _write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def _read(self) -> Any:
        """Reads an answer. The child sends one line at a time, so no line is left in Python's buffer when the pipe is empty."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], LONGEST)[0], f"no answer in {LONGEST} s"
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the child ended with {self.process.wait()}:\n{self.messages()}")
        return json.loads(line)

    def wait_until_ready(self) -> Child:
        if not self._ready:
            assert self._read() == "ready"
            self._ready = True
        return self

    def send(self, call: str, *args: Any, **kwargs: Any) -> None:
        """Starts a call; `receive` waits for its result."""
        self.wait_until_ready()
        self._write({"call": call, "args": args, "kwargs": kwargs})

    def outcome(self) -> dict[str, Any]:
        return self._read()

    def wait_until_busy(self, seconds: float = 0.2) -> None:
        """Returns once this child has used so much CPU time, in a call or in a compile that outlives its call."""
        end = self._ticks() + round(seconds * os.sysconf("SC_CLK_TCK"))
        wait_for(lambda: self._ticks() >= end, "work of a child")

    def _ticks(self) -> int:
        """CPU time of all its threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    def receive(self) -> Any:
        result = self.outcome()
        if "error" in result:
            raise CallFailed(result["error"])
        return result["value"]

    def call(self, call: str, *args: Any, **kwargs: Any) -> Any:
        self.send(call, *args, **kwargs)
        return self.receive()

    def send_compile(self, code: str, name: str = "scale", arch: str = ARCH, **kwargs: Any) -> None:
        self.send("compile_text", "test", name, code, arch, **kwargs)

    def compile(self, code: str, name: str = "scale", arch: str = ARCH, **kwargs: Any) -> dict[str, Any]:
        return self.call("compile_text", "test", name, code, arch, **kwargs)

    def origin(self, code: str, **kwargs: Any) -> str:
        return self.compile(code, **kwargs)["origin"]

    def failure(self, call: str, *args: Any, **kwargs: Any) -> str:
        """The message of a call that must raise."""
        self.send(call, *args, **kwargs)
        result = self.outcome()
        assert "error" in result, f"{call} was expected to fail and gave {result['value']}"
        return result["error"]

    def compile_failure(self, code: str, name: str = "scale", arch: str = ARCH, **kwargs: Any) -> str:
        return self.failure("compile_text", "test", name, code, arch, **kwargs)

    def compile_by(self, how: str, code: str, *options: Any) -> Any:
        """A compile in_background, in_fork, or in_threads with their number (jit_child.py)."""
        return self.call(how, *options, "compile_text", "test", "scale", code, ARCH)

    def messages(self) -> str:
        """Standard error so far."""
        return self._errors.read_text(errors="replace")

    def warnings(self) -> list[str]:
        return [line for line in self.messages().splitlines() if "gdn_cuda: warning:" in line]

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


Start = Callable[..., Child]


def entries(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.cubin"))


def entry_of(cache: Path, compiled: dict[str, Any]) -> Path:
    """The file of a compiled kernel, found by either of its keys."""
    found = [path for path in entries(cache) if path.stem.endswith((compiled["code_key"], str(compiled["full_key"])))]
    assert len(found) == 1, (found, compiled)
    return found[0]


def locks(cache: Path) -> list[Path]:
    return sorted((cache / "locks").glob("*"))


def leftovers(cache: Path) -> list[Path]:
    """Drafts that should have been removed."""
    return sorted(cache.rglob(".gdn_cuda-draft-" + "?" * 16 + "-*-" + "?" * 16))


def seal(cubin: bytes, symbol: str, key: str) -> bytes:
    """An entry as csrc/jit/seal.cpp writes it."""
    body = cubin + symbol.encode() + key.encode() + len(cubin).to_bytes(8, "little") + len(symbol).to_bytes(8, "little")
    return body + hashlib.sha256(body).digest() + b"gdn_cuda cubin 1"


def wait_for(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    end = time.monotonic() + patience
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {patience} s in vain for {what}"
        time.sleep(0.02)
    return value


@cache
def nvcc() -> Path:
    found = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if found is None:
        pytest.skip("nvcc is not installed")
    return Path(found)


def choose(compiler: str) -> dict[str, str]:
    """The variables that choose "nvrtc" or "nvcc"."""
    return {"GDN_JIT_USE_NVCC": "1", "GDN_JIT_NVCC": str(nvcc())} if compiler == "nvcc" else {}


class Gate:
    """An nvcc that waits until the test opens the gate, so that a compile takes as long as the test needs."""

    def __init__(self, folder: Path):
        folder.mkdir()
        self._open = folder / "open"
        self._started = folder / "started"
        self._started.mkdir()
        script = folder / "nvcc"
        script.write_text(
            f"""#!/bin/sh
case "$*" in --version) exec {nvcc()} --version ;; esac
: > {self._started}/$$
while ! [ -e {self._open} ]; do sleep 0.02; done
exec {nvcc()} "$@"
"""
        )
        script.chmod(0o755)
        self.variables = {"GDN_JIT_USE_NVCC": "1", "GDN_JIT_NVCC": str(script)}

    def started(self) -> int:
        """How many compiles have reached the gate so far."""
        return len(list(self._started.iterdir()))

    def processes(self) -> list[int]:
        return [int(path.name) for path in self._started.iterdir()]

    def wait_for(self, count: int) -> None:
        wait_for(lambda: self.started() >= count, f"{count} compiles at the gate")

    def open(self) -> None:
        self._open.touch()


@cache
def mounts_allowed() -> bool:
    trial = 'mount -t tmpfs none "$1" && touch "$1/x" && mount -o remount,ro "$1" && ! touch "$1/y" 2>/dev/null'
    return (
        shutil.which("unshare") is not None
        and subprocess.run(["unshare", "--mount", "sh", "-ec", trial, "sh", "/mnt"], capture_output=True).returncode == 0
    )


def need_mounts() -> None:
    if not mounts_allowed():
        pytest.skip("mounting is not permitted here (it needs root)")


def need_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to act as another user")


def copy_cuda_home(paths: dict[str, Path], home: Path) -> Path:
    """The headers and NVRTC of this environment in the layout of a toolkit."""
    shutil.copytree(paths["cuda_include"], home / "include")
    (home / "lib").mkdir()
    for library in paths["nvrtc"].parent.glob("libnvrtc*.so.*"):
        if ".alt." not in library.name:
            shutil.copyfile(library, home / "lib" / library.name)
    return home


def edit(path: Path, append: str) -> None:
    path.write_text(path.read_text() + append)


def temporary_open_to_all() -> Iterator[Path]:
    """A folder that every user may enter (pytest's own are for one), removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="gdn_cuda-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
