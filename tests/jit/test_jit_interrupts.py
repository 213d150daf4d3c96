"""Ctrl-C ends any compile or wait with KeyboardInterrupt, and the next call works."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from jit_helpers import PATIENCE, Child, Gate, Start, kernel, leftovers, locks, slow_kernel, wait_for

from gdn_cuda import runtime

NVRTC_STARTED = 0.5  # seconds of CPU time after which a compile has entered NVRTC, which cannot be observed


def assert_interrupted(child: Child) -> None:
    """Sends the signal to a child that is in a call which would not end by itself for a long time, or never."""
    child.interrupt()
    outcome = child.outcome()
    assert outcome.get("type") == "KeyboardInterrupt", outcome


def test_ctrl_c_ends_a_compile_by_nvrtc(start: Start, cache: Path) -> None:
    child = start()
    assert child.origin(kernel()) == "compiled"  # NVRTC is open
    child.send_compile(slow_kernel())
    child.wait_until_busy(NVRTC_STARTED)
    assert_interrupted(child)
    child.wait_until_busy()
    assert child.origin(kernel(1)) == "compiled"
    assert locks(cache)[0].read_text() == "", "the lock is free"
    child.send_compile(slow_kernel())  # it was not cached
    child.wait_until_busy(NVRTC_STARTED)
    assert_interrupted(child)


def test_ctrl_c_while_nvrtc_parses_runs_the_hosts_handler(start: Start) -> None:
    """NVRTC's front end installs handlers of its own in a process's first compile, and they end the process."""
    child = start()
    child.send_compile(kernel(before="".join(f"struct S{i} {{ int f() {{ return {i}; }} }};\n" for i in range(100_000))))
    child.wait_until_busy(2 * NVRTC_STARTED)  # NVRTC is opened in less, and parses for several
    assert_interrupted(child)
    child.wait_until_busy()
    assert child.origin(kernel(1)) == "compiled"


def test_ctrl_c_ends_a_compile_by_nvcc_and_its_processes(start: Start, cache: Path, gate: Gate) -> None:
    child = start(**gate.variables)
    child.send_compile(kernel())
    gate.wait_for(1)
    [nvcc] = gate.processes()
    assert_interrupted(child)
    wait_for(lambda: not Path(f"/proc/{nvcc}").exists(), "nvcc's end")
    assert leftovers(cache) == []
    gate.open()
    assert child.origin(kernel()) == "compiled"


def test_ctrl_c_ends_a_wait_for_another_process(start: Start, gate: Gate, cache: Path) -> None:
    holder, waiter = start(**gate.variables), start(**gate.variables)
    holder.send_compile(kernel())
    gate.wait_for(1)
    waiter.send_compile(kernel())
    time.sleep(0.5)
    assert_interrupted(waiter)
    gate.open()
    assert holder.receive()["origin"] == "compiled"
    assert waiter.origin(kernel()) == "disk"


def test_ctrl_c_ends_a_wait_for_another_thread(start: Start, gate: Gate) -> None:
    child = start(**gate.variables)
    child.compile_by("in_background", kernel())
    gate.wait_for(1)
    child.send_compile(kernel())
    time.sleep(0.2)
    assert_interrupted(child)
    gate.open()
    assert child.call("join")["value"]["origin"] == "compiled", "the other thread is not interrupted"
    assert child.origin(kernel()) == "disk"


def test_ctrl_c_ends_the_search_for_headers(start: Start) -> None:
    child = start(hook=None)
    child.call("use_hook_that_first", "sleeps")
    child.send_compile(kernel())
    wait_for(lambda: "in the hook" in child.messages(), "the hook")
    assert_interrupted(child)
    assert child.origin(kernel()) == "compiled"


def test_a_failed_search_for_headers_is_repeated(start: Start) -> None:
    child = start(hook=None, GDN_CUDA_HOME=None)
    child.call("use_hook_that_first", "raises")
    child.send_compile(kernel())
    outcome = child.outcome()
    if "error" in outcome:  # a machine without a toolkit has no other place to search
        assert "the hook failed" in outcome["error"]
    assert child.origin(kernel(1)) == "compiled"
    assert child.call("hook_calls") >= 2


def test_a_compile_goes_on_when_the_signal_handler_does_not_raise(start: Start, gate: Gate) -> None:
    child = start(**gate.variables)
    child.call("ignore_interrupts")
    child.send_compile(kernel())
    gate.wait_for(1)
    child.interrupt()
    time.sleep(0.2)
    gate.open()
    assert child.receive()["origin"] == "compiled"


# ---- While a message is logged


@pytest.mark.parametrize(("number", "error"), [("SIGINT", "KeyboardInterrupt"), ("SIGALRM", "Timeout")])
def test_an_exception_of_a_signal_handler_in_a_log_line_is_raised_when_the_call_returns(
    start: Start, number: str, error: str
) -> None:
    child = start()
    child.call("use_sink_that", number, "compiled test/scale")
    child.send_compile(kernel())
    assert child.outcome().get("type") == error
    assert child.messages() == ""
    assert child.origin(kernel()) == "disk", "the compile was kept, and the exception is raised once"


def test_ctrl_c_in_a_log_line_about_a_wait_ends_the_wait(start: Start, gate: Gate) -> None:
    holder, waiter = start(**gate.variables), start(**gate.variables)
    holder.send_compile(kernel())
    gate.wait_for(1)
    waiter.call("use_sink_that", "SIGINT", "waiting for process")
    waiter.send_compile(kernel())
    assert waiter.outcome().get("type") == "KeyboardInterrupt"  # the gate is still closed
    gate.open()
    assert holder.receive()["origin"] == "compiled"
    assert waiter.origin(kernel()) == "disk"


def test_an_exception_of_a_log_sink_in_another_thread_is_reported(start: Start) -> None:
    """No signal handler runs in that thread, and the thread's call has succeeded."""
    child = start()
    child.call("use_sink_that", "raises", "compiled test/scale")
    [outcome] = child.compile_by("in_threads", kernel(), 1)
    assert outcome["value"]["origin"] == "compiled"
    assert "Exception ignored in: 'gdn_cuda log sink'" in child.messages()
    assert "RuntimeError: the sink failed" in child.messages()


POOL = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import gdn_cuda
try:
    gdn_cuda.compile(kernel="gating", arch="sm_90a", jobs=2)
except KeyboardInterrupt:
    sys.exit(77)
"""


def test_ctrl_c_ends_all_threads_of_an_ahead_of_time_compile(gate: Gate, cache: Path) -> None:
    variables = gate.variables | {"GDN_JIT_CACHE_DIR": str(cache)}
    child = subprocess.Popen([sys.executable, "-c", POOL], env=os.environ | variables)
    gate.wait_for(2)
    child.send_signal(signal.SIGINT)
    assert child.wait(PATIENCE) == 77, "the gate stays closed: nothing else ends its compiles"
    assert leftovers(cache) == []


EXIT = """
import os, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
from gdn_cuda import _C
[kernel] = [each for each in _C.kernels() if (each["family"], each["name"]) == ("gdn", "prefill")]
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    _C.compile("gdn/prefill", kernel["configurations"][0]["configuration"], "sm_90a")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_process_exits_cleanly_after_an_interrupted_compile(cache: Path) -> None:
    """exit() destroys objects that a running NVRTC still uses, so the process waits for NVRTC."""
    environment = os.environ | {"GDN_JIT_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, "-c", EXIT], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


# ---- Through torch's dispatcher, which does not check for signals

OPERATOR = """
#include <torch/csrc/stable/library.h>
#include <chrono>
#include <cstdio>
#include <thread>
namespace gdn_cuda::jit {
void interruption_point();
}
void wait_for_ever() {
    std::puts("waiting");
    std::fflush(stdout);
    for (;;) {
        gdn_cuda::jit::interruption_point();
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
}
STABLE_TORCH_LIBRARY(gdn_cuda_interrupts, library) {
    library.def("wait_for_ever() -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(gdn_cuda_interrupts, CompositeExplicitAutograd, library) {
    library.impl("wait_for_ever", TORCH_BOX(&wait_for_ever));
}
"""

PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import torch, gdn_cuda
torch.ops.load_library(sys.argv[1])
for call in (torch.ops.gdn_cuda_interrupts.wait_for_ever, torch.ops.gdn_cuda_interrupts.wait_for_ever.default):
    try:
        call()
    except KeyboardInterrupt as error:
        print("interrupted", flush=True)

class Timeout(Exception):
    pass

def expire(*_):
    raise Timeout("too late")

signal.signal(signal.SIGALRM, expire)
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    call()
except Timeout as error:
    print("timeout:", error, flush=True)
"""


def test_an_operator_raises_the_exception_of_the_signal_handler(tmp_path: Path) -> None:
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"no C++ compiler: {compiler[0]} is not on PATH; install g++ or set CXX")
    library, torch_folder = runtime.library_path(), Path(torch.__file__).parent
    assert library is not None
    (tmp_path / "operator.cpp").write_text(OPERATOR)
    built = tmp_path / "liboperator.so"
    subprocess.run(
        [
            *(*compiler, "-std=c++20", "-shared", "-fPIC", "-DTORCH_TARGET_VERSION=0x020a000000000000"),
            *("-isystem", str(torch_folder / "include"), str(tmp_path / "operator.cpp"), "-o", str(built)),
            *(f"-L{library.parent}", f"-L{torch_folder / 'lib'}", "-lgdn_cuda", "-ltorch_cpu", "-lc10"),
            f"-Wl,-rpath,{library.parent}",
        ],
        check=True,
    )
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, str(built)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for _ in range(2):
        assert child.stdout.readline() == "waiting\n"
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "interrupted\n"
    assert child.communicate()[0] == "waiting\ntimeout: too late\n"
    assert child.returncode == 0
