"""A child forked while another thread of its parent is working has neither that thread nor the locks it would release."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from jit_helpers import Gate, Start, kernel, slow_kernel, wait_for


def test_a_child_compiles_the_kernel_that_its_parent_is_compiling(start: Start, gate: Gate) -> None:
    child = start(**gate.variables)
    child.compile_by("in_background", kernel())
    gate.wait_for(1)
    child.send("in_fork", "compile_text", "test", "scale", kernel(), "sm_90a")
    gate.wait_for(2)
    gate.open()
    assert child.receive()["value"]["origin"] == "compiled"
    assert child.call("join")["value"]["origin"] == "compiled"
    assert child.origin(kernel()) == "disk"


def test_a_child_forked_while_nvrtc_compiles_raises_at_once(start: Start) -> None:
    child = start()
    assert child.origin(kernel()) == "compiled"
    child.compile_by("in_background", slow_kernel())
    child.wait_until_busy(0.5)  # until NVRTC compiles, which cannot be observed
    for code in (slow_kernel(), kernel(1)):
        outcome = child.compile_by("in_fork", code)
        assert "forked while its parent compiled a kernel with NVRTC" in outcome["error"]
        assert "spawn" in outcome["error"]
    child.wait_until_busy()  # neither of them waited for its parent's compile
    assert child.compile_by("in_fork", kernel())["value"]["origin"] == "disk"
    assert child.origin(kernel(2)) == "compiled", "the parent goes on"


def test_a_child_forked_during_the_search_for_headers_searches_again(start: Start) -> None:
    child = start(hook=None)
    child.call("use_hook_that_first", "sleeps")
    child.call("in_background", "toolchain")
    wait_for(lambda: "in the hook" in child.messages(), "the hook")
    assert child.compile_by("in_fork", kernel())["value"]["origin"] == "compiled", "the parent's search goes on for longer"


def test_a_child_does_not_hold_the_lock_of_its_killed_parent(start: Start, gate: Gate) -> None:
    parent = start(**gate.variables)
    parent.compile_by("in_background", kernel())
    gate.wait_for(1)
    fork = parent.call("leave_fork", 60.0)
    parent.kill()
    other = start(**gate.variables)
    other.send_compile(kernel())
    gate.wait_for(2)
    gate.open()
    assert other.receive()["origin"] == "compiled"
    assert other.warnings() == []
    assert Path(f"/proc/{fork}").exists(), "the fork lives on, without the lock"
    os.kill(fork, signal.SIGKILL)
