"""Processes, threads and forks that want the same kernel at the same time compile it once per machine."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections import Counter
from pathlib import Path

from jit_helpers import NOWHERE, Gate, Start, entries, entry_of, kernel, leftovers, locks, wait_for


def test_sixteen_cold_processes_compile_once(start: Start, cache: Path) -> None:
    children = [start(GDN_JIT_PRINT="1") for _ in range(16)]
    for child in children:
        child.wait_until_ready()
    for child in children:
        child.send_compile(kernel())
    results = [child.receive() for child in children]
    assert Counter(result["origin"] for result in results) == {"compiled": 1, "disk": 15}
    assert len({(result["code_key"], result["full_key"]) for result in results}) == 1
    assert entries(cache) == [entry_of(cache, results[0])]
    assert sum(child.messages().count("compiled test/scale") for child in children) == 1
    assert leftovers(cache) == []


def test_sixteen_threads_compile_once(start: Start, cache: Path) -> None:
    child = start(GDN_JIT_PRINT="1")
    outcomes = child.compile_by("in_threads", kernel(), 16)
    assert Counter(outcome["value"]["origin"] for outcome in outcomes) == {"compiled": 1, "disk": 15}
    assert len(entries(cache)) == 1
    assert child.messages().count("compiled test/scale") == 1


def test_sixteen_threads_without_a_disk_compile_once(start: Start) -> None:
    child = start(GDN_JIT_CACHE_DIR=NOWHERE, HOME=NOWHERE, TMPDIR=NOWHERE, GDN_JIT_PRINT="1")
    outcomes = child.compile_by("in_threads", kernel(), 16)
    assert Counter(outcome["value"]["origin"] for outcome in outcomes) == {"compiled": 1, "memory": 15}
    assert child.messages().count("compiled test/scale") == 1


def test_a_waiter_names_the_lock_holder_and_compiles_when_it_is_killed(start: Start, gate: Gate, cache: Path) -> None:
    holder, waiter = start(**gate.variables), start(**gate.variables)
    holder.send_compile(kernel())
    gate.wait_for(1)
    asked = time.monotonic()
    waiter.send_compile(kernel())
    wait_for(waiter.warnings, "the waiter's message")
    assert time.monotonic() - asked > 4.5
    [message] = waiter.warnings()
    assert f"waiting for process {holder.process.pid} on " in message
    assert str(locks(cache)[0]) in message
    assert gate.started() == 1

    holder.kill()  # its nvcc lives on, which must not hold the lock
    gate.wait_for(2)
    gate.open()
    assert waiter.receive()["origin"] == "compiled"
    assert len(entries(cache)) == 1
    assert len(waiter.warnings()) == 1


def test_a_killed_lock_holder_leaves_no_entry(start: Start, cache: Path) -> None:
    slow = kernel().replace("+= 0.5f;", "+= 0.5f;\n#pragma unroll\nfor (int i = 0; i < 40; ++i) x[0] = sinf(x[0] + x[i]);\n")
    holder = start()
    holder.send_compile(slow)
    wait_for(lambda: locks(cache) and locks(cache)[0].read_text(), "the holder's lock")
    holder.kill()
    assert entries(cache) == []
    assert start().compile(kernel(1), name="other")["origin"] == "compiled"
    assert start().origin(slow) == "compiled"


def test_a_compile_of_another_kernel_does_not_wait(start: Start, gate: Gate) -> None:
    holder, other = start(**gate.variables), start()
    holder.send_compile(kernel(1))
    gate.wait_for(1)
    assert other.origin(kernel(2)) == "compiled"
    assert other.warnings() == []


def test_a_warm_hit_takes_no_lock(start: Start, cache: Path) -> None:
    compiled = start().compile(kernel())
    [lock] = locks(cache)  # never unlinked: another process may wait on it
    assert compiled["full_key"] in lock.name
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert start().origin(kernel()) == "disk"
    lock.unlink()
    lock.parent.rmdir()
    assert start().origin(kernel()) == "disk"
    assert not lock.parent.exists()


def test_kernels_compile_where_lock_files_cannot_be_created(start: Start, cache: Path) -> None:
    cache.mkdir(mode=0o700)
    (cache / "locks").write_text("a file, where lock files cannot be made")
    assert start().origin(kernel()) == "compiled"
    assert start().origin(kernel()) == "disk"


def test_forked_children_compile_and_find_entries(start: Start, cache: Path) -> None:
    child = start()
    assert child.compile_by("in_fork", kernel(1))["value"]["origin"] == "compiled"
    assert child.origin(kernel(1)) == "disk"
    assert child.origin(kernel(2)) == "compiled"  # NVRTC is loaded now
    assert child.compile_by("in_fork", kernel(3))["value"]["origin"] == "compiled"
    assert child.compile_by("in_fork", kernel(2))["value"]["origin"] == "disk"
    assert len(entries(cache)) == 3


def test_a_child_forked_during_a_compile_does_not_hold_its_lock(start: Start, gate: Gate) -> None:
    child = start(**gate.variables)
    child.compile_by("in_background", kernel())
    gate.wait_for(1)
    fork = child.call("leave_fork", 600.0)  # inherits the lock's descriptor
    gate.open()
    assert child.call("join")["value"]["origin"] == "compiled"
    assert start(**gate.variables).origin(kernel(), force=True) == "compiled", "long before the fork ends"
    os.kill(fork, signal.SIGKILL)


def test_processes_that_force_and_clear_at_the_same_time_all_get_their_kernel(start: Start, cache: Path) -> None:
    children = [start() for _ in range(4)]
    for child in children:
        child.compile(kernel())
    for _ in range(5):
        for number, child in enumerate(children):
            if number == 0:
                child.send("cache_clear")
            else:
                child.send_compile(kernel(), force=number % 2 == 1)
        for child in children:
            child.receive()
    assert children[1].call("cache_list", True) == [] or [e["problem"] for e in children[1].call("cache_list", True)] == [""]
    assert leftovers(cache) == []
