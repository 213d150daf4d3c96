"""A process whose daemon threads compile when its main thread ends (test_jit_exit.py): `jit_exit_child.py PACKAGE MOMENT`."""

from __future__ import annotations

import sys
import threading
import time

import jit_child
from jit_helpers import kernel

THREADS = 6
PATIENCE = 60.0  # seconds


def wait(event: threading.Event) -> None:
    if not event.wait(PATIENCE):
        sys.exit("waited in vain")


def compile_for_ever(first: int) -> None:
    for number in range(first, 1 << 30, THREADS):
        core.compile_text("test", "scale", kernel(number), "sm_90a")


def stay(reached: threading.Event) -> None:
    """Runs Python code until the process ends."""
    reached.set()
    while True:
        time.sleep(0.001)


def in_a_callback(name: str) -> None:
    """The main thread ends while a thread of the core is in the callback."""
    reached = threading.Event()
    if name == "sink":
        core.set_log_sink(lambda *_: stay(reached))
    else:
        core.set_path_hook(lambda: stay(reached))
    threading.Thread(target=compile_for_ever, args=(0,), daemon=True).start()
    wait(reached)


def after_messages(count: int) -> None:
    """The main thread ends once so many messages were logged by many threads, which are anywhere in their compiles."""
    enough = threading.Event()
    messages: list[str] = []

    def sink(_: int, text: str) -> None:
        messages.append(text)
        if len(messages) >= count:
            enough.set()

    core.set_log_sink(sink)
    for first in range(THREADS):
        threading.Thread(target=compile_for_ever, args=(first,), daemon=True).start()
    if count:
        wait(enough)


def cached() -> None:
    """The main thread ends while threads find one kernel on disk, thousands of times a second."""
    core.compile_text("test", "scale", kernel(), "sm_90a")

    def find() -> None:
        while True:
            core.compile_text("test", "scale", kernel(), "sm_90a")

    for _ in range(THREADS):
        threading.Thread(target=find, daemon=True).start()


core = jit_child.load_core(sys.argv[1])
core.set_path_hook(jit_child.found_in_wheels)
moment = sys.argv[2]
if moment == "cached":
    cached()
elif moment.isdecimal():
    after_messages(int(moment))
else:
    in_a_callback(moment)
