"""The program of a child of the JIT's tests: it reads one call per line from standard input, and writes one outcome per line to
standard output, both in JSON.

A line is {"call": name, "args": [...], "kwargs": {...}}: a function of gdn_cuda._C, or one of `extra`. The child loads libtorch
but not Python's torch, which takes ten times as long and brings an NVRTC of its own with it: {"hook": ..., "user": ...} on the
first line chooses the path hook, and the user that the child runs as.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import resource
import signal
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIBRARIES = ("libnvrtc", "libcuda.so")


def mapped() -> set[str]:
    maps = Path("/proc/self/maps").read_text()
    return {name for name in LIBRARIES if name in maps}


def loaded() -> list[str]:
    """The LIBRARIES that this process loaded with the core or after it."""
    return sorted(mapped() - mapped_before)


def load_torch() -> None:
    torch = Path(importlib.util.find_spec("torch").origin).parent  # type: ignore[union-attr, arg-type]
    ctypes.CDLL(str(torch / "lib" / "libtorch_cpu.so"), ctypes.RTLD_GLOBAL)


def load_core(package: str) -> Any:
    """gdn_cuda._C without running gdn_cuda/__init__.py, which needs Python's torch."""
    load_torch()
    mapped_before.update(mapped())
    stub = types.ModuleType("gdn_cuda")
    stub.__path__ = [package]
    sys.modules["gdn_cuda"] = stub
    from gdn_cuda import _C

    return _C


def outcome(call: str, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    function = extra.get(call) or getattr(core, call)
    start = time.perf_counter()
    try:
        result = {"value": function(*args, **kwargs)}
    except (Exception, KeyboardInterrupt) as error:
        result = {"error": str(error), "type": type(error).__name__}
    return result | {"seconds": time.perf_counter() - start}


def in_threads(count: int, call: str, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
    """The same call in `count` threads that start it together."""
    barrier = threading.Barrier(count)
    outcomes: list[dict[str, Any]] = []

    def run() -> None:
        barrier.wait()
        outcomes.append(outcome(call, list(args), kwargs))

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def in_background(call: str, *args: Any, **kwargs: Any) -> None:
    """Starts the call in a thread, while this process answers other calls; `join` waits for it."""
    thread = threading.Thread(target=lambda: finished.append(outcome(call, list(args), kwargs)), daemon=True)
    background.append(thread)
    thread.start()


def join() -> dict[str, Any]:
    background.pop().join()
    return finished.pop()


def in_fork(call: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The call in a fork of this process, which ends without Python's clean-up, as multiprocessing's forks do."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, json.dumps(outcome(call, list(args), kwargs)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    return json.loads(answer)


def found_in_wheels() -> dict[str, str]:
    from gdn_cuda import paths

    return paths.find_paths()


def use_hook_that_first(action: str) -> None:
    """Sets a hook whose first call sleeps, or raises; later calls find the wheels."""

    def hook() -> dict[str, str]:
        hook_calls.append(action)
        if len(hook_calls) == 1 and action == "sleeps":
            print("in the hook", file=sys.stderr, flush=True)
            time.sleep(600)  # longer than any test waits for an outcome
        elif len(hook_calls) == 1:
            raise RuntimeError("the hook failed")
        return found_in_wheels()

    core.set_path_hook(hook)


class Timeout(Exception):
    """Raised by a handler of SIGALRM."""


def raise_timeout(*_: object) -> None:
    raise Timeout("too late")


def use_sink_that(action: str, part: str) -> None:
    """Sets a log sink that raises a signal, or an exception, at a message with this part; others are dropped."""

    def sink(_: int, text: str) -> None:
        if part not in text:
            return
        if action == "raises":
            raise RuntimeError("the sink failed")
        signal.raise_signal(signal.Signals[action])

    signal.signal(signal.SIGALRM, raise_timeout)
    core.set_log_sink(sink)


def enter_no_compile() -> None:
    sections.append(core.NoCompile())
    sections[-1].__enter__()


def leave_no_compile() -> None:
    sections.pop().__exit__(None, None, None)


def use_the_packages_hook() -> None:
    from gdn_cuda import paths

    def hook() -> dict[str, str]:
        hook_calls.append("searched")
        return paths.find_paths()

    core.set_path_hook(hook, paths.search_inputs)


def leave_fork(seconds: float) -> int:
    """Forks a child that only sleeps, and keeps every inherited descriptor open."""
    child = os.fork()
    if child == 0:
        time.sleep(seconds)
        os._exit(0)
    return child


def setenv(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def limit_file_size(size: int) -> None:
    """Makes writes of larger files fail, like a quota: Python ignores the signal that would end the process."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def limit_memory(more: int) -> None:
    """Limits the address space to its present size and `more` bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, lambda *_: None)


def ignore_children() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def lose_working_folder() -> None:
    os.chdir(folder := tempfile.mkdtemp())
    os.rmdir(folder)  # noqa: PTH106


def compile_forever(*args: Any) -> None:
    while True:
        core.compile_text(*args, force=True)


hook_calls: list[str] = []
sections: list[Any] = []
background: list[threading.Thread] = []
finished: list[dict[str, Any]] = []
mapped_before: set[str] = set()
extra: dict[str, Callable[..., Any]] = {
    "loaded": loaded,
    "in_threads": in_threads,
    "in_background": in_background,
    "join": join,
    "in_fork": in_fork,
    "leave_fork": leave_fork,
    "found_in_wheels": found_in_wheels,
    "use_hook_that_first": use_hook_that_first,
    "use_the_packages_hook": use_the_packages_hook,
    "use_sink_that": use_sink_that,
    "enter_no_compile": enter_no_compile,
    "leave_no_compile": leave_no_compile,
    "drop_no_compile": sections.clear,
    "hook_calls": lambda: len(hook_calls),
    "umask": os.umask,
    "limit_file_size": limit_file_size,
    "limit_memory": limit_memory,
    "setenv": setenv,
    "ignore_children": ignore_children,
    "ignore_interrupts": ignore_interrupts,
    "lose_working_folder": lose_working_folder,
    "compile_forever": compile_forever,
    "pid": os.getpid,
}


def main() -> None:
    global core
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of libraries must not be read as an answer
    setting = json.loads(sys.stdin.readline())
    core = load_core(sys.argv[1])
    if setting["hook"] == "wheels":
        core.set_path_hook(found_in_wheels)
    elif setting["hook"] is not None:
        core.set_path_hook(lambda: setting["hook"])
    if setting["user"] is not None:
        os.setgroups([])
        os.setgid(setting["user"])
        os.setuid(setting["user"])
    answers.write('"ready"\n')
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(outcome(request["call"], request["args"], request["kwargs"])) + "\n")


core: Any = None
if __name__ == "__main__":
    main()
