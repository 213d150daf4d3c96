"""Files that the library did not create stay unchanged in any folder that its variables name, and never make it fail or
block."""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from jit_helpers import ARCH, NOWHERE, Child, Gate, Start, entries, entry_of, kernel, leftovers, locks

HOURS = 3600
KEY = "0123456789abcdef" * 4
PRECIOUS = (
    "tmp/thesis/chapter1.tex",
    "tmp/old draft",
    "memo/notes.txt",
    "memo/ours-0123456789abcdef.memo",
    "tuned/notes.tuned",
    f"tuned/mine-{KEY}.tuned",
    "locks/list.lock",
    f"my-{'z' * 64}.cubin",
    f"my-{KEY}.cubin",
    f"my-{KEY}.cu",
    f"my-{KEY}.ptx",
    ".gdn_cuda-draft-of-my-paper",
    "1234-abcdef/draft",
)


def precious_files(folder: Path) -> None:
    """Creates a user's files and folders, some named almost like ours, with times two hours in the past or future."""
    for number, name in enumerate(PRECIOUS):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"precious {number}")
    (folder / "empty").mkdir()
    for number, path in enumerate(sorted(folder.rglob("*"), reverse=True)):
        then = time.time() + (2 * HOURS if number % 2 else -2 * HOURS)
        os.utime(path, (then, then))
    folder.chmod(0o700)


def contents(folder: Path) -> dict[str, Any]:
    return {name: (folder / name).read_text() for name in PRECIOUS} | {"empty": list((folder / "empty").iterdir())}


def clear_all(child: Child) -> None:
    child.call("cache_clear")
    for found in child.call("tuned_list")["files"]:
        assert child.call("tuned_remove", found["file"]) is False


def test_a_users_files_survive_every_use_of_their_folder_as_cache(start: Start, cache: Path) -> None:
    precious_files(cache)
    before = contents(cache)
    child = start(GDN_JIT_CACHE_MAX_BYTES="1", GDN_JIT_DUMP="1")
    for number in range(3):
        assert child.origin(kernel(number)) == "compiled"
    assert contents(cache) == before
    assert len([path for path in entries(cache) if not path.name.startswith("my-")]) == 1
    clear_all(child)
    assert contents(cache) == before
    assert {path.name for path in entries(cache)} == {f"my-{'z' * 64}.cubin", f"my-{KEY}.cubin"}
    assert list(cache.glob("test-scale-*")) == []


@pytest.mark.parametrize("empty", [False, True])
def test_a_users_files_survive_an_export_into_their_folder(start: Start, tmp_path: Path, empty: bool) -> None:
    out = tmp_path / "out"
    (out / "tmp").mkdir(parents=True)
    if not empty:
        precious_files(out)
    before = {path: path.lstat().st_mtime_ns for path in out.rglob("*")}
    child = start(GDN_JIT_CACHE_MAX_BYTES="1")
    for number in range(2):
        child.call("compile", *a_configuration(child, number), ARCH, str(out))
    after = {path: path.lstat().st_mtime_ns for path in out.rglob("*")}
    assert {path: time for path, time in after.items() if path in before} == before
    assert len(after) == len(before) + 2
    assert leftovers(out) == []


def a_configuration(child: Child, number: int) -> tuple[str, str]:
    """A configuration of the kernel with the fewest, but at least two."""
    several = (entry for entry in child.call("kernels") if len(entry["configurations"]) > 1)
    smallest = min(several, key=lambda entry: len(entry["configurations"]))
    return f"{smallest['family']}/{smallest['name']}", smallest["configurations"][number]["configuration"]


def test_links_in_place_of_cache_folders_are_not_followed(start: Start, cache: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    precious_files(mine)
    (mine / "ours-fedcba9876543210.memo").write_text("gdn_cuda memo 1\n")
    before = {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()}
    cache.mkdir(mode=0o700)
    for name in ("memo", "locks", "tuned", "tmp"):
        (cache / name).symlink_to(mine)
    child = start(GDN_JIT_CACHE_MAX_BYTES="1")
    assert child.origin(kernel()) == "compiled"
    assert child.origin(kernel(1)) == "compiled"
    assert child.origin(kernel(1)) == "disk"
    clear_all(child)
    assert {path: path.read_bytes() for path in mine.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("how", ["symlink_to", "hardlink_to"])
def test_a_link_in_place_of_a_lock_file_does_not_truncate_its_target(
    start: Start, cache: Path, tmp_path: Path, how: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    assert start().origin(kernel()) == "compiled"
    [lock] = locks(cache)
    lock.unlink()
    getattr(lock, how)(victim)
    assert start().origin(kernel(), force=True) == "compiled"
    assert victim.read_text() == "precious"


def make_fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def make_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def make_link(path: Path) -> None:
    elsewhere = path.parent / "elsewhere"
    shutil.copyfile(path, elsewhere)
    path.unlink()
    path.symlink_to(elsewhere)


def make_vast(path: Path) -> None:
    os.truncate(path, 1 << 40)  # sparse


@pytest.mark.parametrize("odd", [make_fifo, make_folder, make_link, make_vast])
def test_a_special_file_named_like_an_entry_neither_blocks_nor_fills_memory(start: Start, cache: Path, odd: Any) -> None:
    path = entry_of(cache, start().compile(kernel()))
    odd(path)
    file_type = stat.S_IFMT(path.lstat().st_mode)
    child = start()
    [listed] = child.call("cache_list", True)
    assert listed["problem"]
    assert child.call("cache_clear") == 0
    assert child.origin(kernel()) == "compiled"
    again = child.origin(kernel())
    if odd is make_vast:  # a regular file of this name can only be ours, and is replaced
        assert again == "disk"
        return
    assert again == "memory"
    assert stat.S_IFMT(path.lstat().st_mode) == file_type
    assert sum("is in the way: it is not a regular file" in line for line in child.warnings()) == 1


def test_memos_and_tuned_winners_that_are_not_regular_files_are_ignored(start: Start, cache: Path) -> None:
    assert start().origin(kernel()) == "compiled"
    time.sleep(2.2)  # until csrc/jit/tree.cpp trusts a file's status
    assert start().origin(kernel(1)) == "compiled"
    memos = list((cache / "memo").iterdir())
    assert memos
    for number, memo in enumerate(memos):
        (make_fifo, make_vast)[number % 2](memo)
    (cache / "tuned").mkdir(mode=0o700)
    os.mkfifo(cache / "tuned" / f"x-{KEY}.tuned")
    child = start()
    assert child.origin(kernel()) == "disk"
    [listed] = child.call("tuned_list")["files"]
    assert (listed["problem"], listed["entry"]) == ("it is not a regular file", None)


FAILING_READS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

ssize_t read(int fd, void* bytes, size_t count) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof path);
    if (length > 6 && memcmp(path + length - 6, ".cubin", 6) == 0) return errno = EIO, -1;
    return ((ssize_t(*)(int, void*, size_t))dlsym(RTLD_NEXT, "read"))(fd, bytes, count);
}
"""


def test_an_entry_with_a_read_error_is_not_removed(start: Start, cache: Path, tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the failing read() with")
    source, shim = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(FAILING_READS)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    path = entry_of(cache, start().compile(kernel()))
    inode, sound = path.stat().st_ino, path.read_bytes()
    disabled = start(LD_PRELOAD=shim, GDN_JIT_DISABLE="1")
    assert "GDN_JIT_DISABLE" in disabled.compile_failure(kernel())
    assert (path.stat().st_ino, path.read_bytes()) == (inode, sound)
    [listed] = disabled.call("cache_list", True)
    assert listed["problem"] == "cannot be read: Input/output error"
    failing = start(LD_PRELOAD=shim)
    assert failing.origin(kernel()) == "compiled"
    assert sum("cannot be read: Input/output error; it is compiled again" in line for line in failing.warnings()) == 1
    assert path.read_bytes() == sound
    assert start().origin(kernel()) == "disk"


# ---- Drafts of processes that were killed


def test_processes_killed_at_random_leave_intact_entries_and_drafts_that_are_removed(start: Start, cache: Path) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(4):
        children = [start(GDN_JIT_CACHE_MAX_BYTES="20K") for _ in range(2)]
        for number, child in enumerate(children):
            child.call("in_background", "compile_forever", "test", "scale", kernel(number), ARCH)
        for child in children:
            time.sleep(chance.uniform(0, 0.08))
            child.kill()
        for path in leftovers(cache):
            then = time.time() + chance.choice((-2, 2)) * HOURS
            os.utime(path, (then, then))
    last = start()
    assert [entry for entry in last.call("cache_list", True) if entry["problem"]] == []
    assert last.origin(kernel(9)) == "compiled"
    assert leftovers(cache) == []


def test_a_draft_is_removed_once_its_process_is_dead_whatever_its_timestamps(start: Start, gate: Gate, cache: Path) -> None:
    writer = start(TMPDIR=NOWHERE, **gate.variables)  # so nvcc works in a draft in the cache
    writer.send_compile(kernel())
    gate.wait_for(1)
    [draft] = [path for path in leftovers(cache) if path.parent == cache]
    for number, hours in enumerate((-2, 2)):
        then = time.time() + hours * HOURS
        for path in (draft, *draft.iterdir()):
            os.utime(path, (then, then))
        other = start()
        assert other.origin(kernel(1 + number)) == "compiled"
        assert other.call("cache_clear") == 1
        assert draft.exists()
        assert list(draft.iterdir())
    writer.kill()  # its nvcc still runs, which must not keep the draft
    assert start().origin(kernel(3)) == "compiled"
    assert leftovers(cache) == []
