"""Cache entries on disk: corrupt ones are rebuilt, old ones evicted, and the others found fast."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from jit_helpers import Child, Start, entries, entry_of, kernel

FOOTER = 128  # csrc/jit/seal.cpp
DISK_HIT_SHARE = 0.2  # of a compile's time, most of which is a fixed cost; a hundredth on a quiet machine
NOT_OURS = {
    *("notes.txt", "mine.cubin", "mine.cu", "mine-0123456789abcdef.cubin"),
    *(f"mine-{key}{suffix}" for key in ("0" * 64, "z" * 64) for suffix in (".cubin", ".cu", ".ptx", ".sass")),
}


def compile_many(child: Child, count: int) -> list[str]:
    return [child.origin(kernel(number)) for number in range(count)]


def flip(position: Callable[[int], int]) -> Callable[[Path], None]:
    """Flips one bit, at a position that may depend on the size; negative positions count from the end."""

    def break_it(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[position(len(content))] ^= 0x10
        path.write_bytes(content)

    return break_it


def rewrite(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(change(path.read_bytes())) and None


CORRUPTIONS: dict[str, Callable[[Path], None]] = {
    "empty": rewrite(lambda _: b""),
    "one byte": rewrite(lambda content: content[:1]),
    "truncated in the code": rewrite(lambda content: content[: len(content) // 2]),
    "truncated in the trailer": rewrite(lambda content: content[: -FOOTER // 2]),
    "without its last byte": rewrite(lambda content: content[:-1]),
    "with a byte more": rewrite(lambda content: content + b"\0"),
    "a cubin without trailer": rewrite(lambda content: content[: content.rindex(b"scale", 0, len(content) - FOOTER)]),
    "text": rewrite(lambda _: b"<html>disk quota exceeded</html>" * 100),
    "zeros of the same size": rewrite(lambda content: bytes(len(content))),
    "zeros in a page": rewrite(lambda content: content[:512] + bytes(512) + content[1024:]),
    "twice": rewrite(lambda content: content + content),
    "ELF magic": flip(lambda _: 0),
    "ELF header": flip(lambda _: 0x28),
    "code": flip(lambda size: size // 3),
    "section table": flip(lambda size: size - FOOTER - 200),
    "symbol": flip(lambda _: -FOOTER - 1),
    "key in the trailer": flip(lambda _: -FOOTER + 5),
    "cubin length": flip(lambda _: -FOOTER + 64),
    "cubin length, highest byte": flip(lambda _: -FOOTER + 71),
    "symbol length": flip(lambda _: -FOOTER + 72),
    "digest": flip(lambda _: -20),
    "magic": flip(lambda _: -1),
}


def test_a_corrupt_entry_is_a_miss_with_one_warning(start: Start, cache: Path) -> None:
    first = start()
    compiled = [first.compile(kernel(number)) for number in range(len(CORRUPTIONS) + 2)]
    paths = [entry_of(cache, result) for result in compiled]
    sound = [path.read_bytes() for path in paths]
    for path, break_it in zip(paths, CORRUPTIONS.values(), strict=False):
        break_it(path)
    shutil.copyfile(paths[-1], paths[-2])  # foreign: valid, but for another key
    what = dict(zip(paths, [*CORRUPTIONS, "foreign", "untouched"], strict=True))

    second = start()
    listed = {entry["file"]: entry["problem"] for entry in second.call("cache_list", True)}
    assert [what[path] for path in paths if not listed[path.name]] == ["untouched"]

    origins = {what[path]: second.origin(kernel(number)) for number, path in enumerate(paths)}
    assert origins == dict.fromkeys([*CORRUPTIONS, "foreign"], "compiled") | {"untouched": "disk"}
    for path, content in zip(paths, sound, strict=True):
        assert path.read_bytes() == content, what[path]
        assert second.messages().count(path.name) == (what[path] != "untouched"), what[path]
    assert second.messages().count("it is compiled again") == len(CORRUPTIONS) + 1

    third = start()
    assert set(compile_many(third, len(paths))) == {"disk"}
    assert third.messages() == ""


def test_an_entry_corrupted_while_the_process_runs_is_compiled_again(start: Start, cache: Path) -> None:
    child = start()
    path = entry_of(cache, child.compile(kernel()))
    sound = path.read_bytes()
    for _ in range(2):
        flip(lambda size: size // 2)(path)
        assert child.origin(kernel()) == "compiled"
        assert path.read_bytes() == sound
    path.unlink()
    assert child.origin(kernel()) == "compiled"
    assert len(child.warnings()) == 1


def test_a_corrupt_memo_does_not_change_the_key(start: Start, cache: Path) -> None:
    compiled = start().compile(kernel(), uses_cutlass=True)
    memos = sorted((cache / "memo").iterdir())
    assert memos
    for number, memo in enumerate(memos):
        content = memo.read_bytes()
        if number % 2:
            flip(lambda size: size // 2)(memo)
        else:
            memo.write_bytes(content[: len(content) // 2])
    again = start().compile(kernel(), uses_cutlass=True)
    assert again["origin"] == "disk"
    assert again["full_key"] == compiled["full_key"]


def test_an_entry_is_readable_by_nvdisasm_and_contains_no_path(start: Start, cache: Path, tmp_path: Path) -> None:
    path = entry_of(cache, start().compile(kernel()))
    content = path.read_bytes()
    assert content.startswith(b"\x7fELF")
    for folder in (str(tmp_path), str(Path(__file__).parents[2]), "site-packages"):
        assert folder.encode() not in content
    disassembler = shutil.which("nvdisasm") or shutil.which("nvdisasm", path="/usr/local/cuda/bin")
    if disassembler:
        assert "scale" in subprocess.run([disassembler, path], capture_output=True, text=True, check=True).stdout


def test_two_cold_compiles_give_the_same_bytes(start: Start, tmp_path: Path) -> None:
    contents = []
    for name in ("one", "another, longer name"):
        child = start(GDN_JIT_CACHE_DIR=tmp_path / name, folder=tmp_path / ("run in " + name))
        contents.append(entry_of(tmp_path / name, child.compile(kernel())).read_bytes())
        assert child.origin(kernel(), force=True) == "compiled"
        contents.append(entries(tmp_path / name)[0].read_bytes())
    assert len(set(contents)) == 1


def test_a_disk_hit_is_fast_and_loads_no_compiler(start: Start) -> None:
    compile_many(start(), 4)
    child = start()
    assert child.origin(kernel(0)) == "disk"  # the first call of a process searches for the headers and examines them
    hits = [child.compile(kernel(number)) for number in range(1, 4)]
    assert [hit["origin"] for hit in hits] == ["disk"] * 3
    assert [hit["registers"] for hit in hits] == [None] * 3
    print("disk hits:", ", ".join(f"{hit['seconds'] * 1e3:.3f} ms" for hit in hits))
    assert child.call("loaded") == []
    compiled = child.compile(kernel(9))
    assert compiled["origin"] == "compiled"
    assert min(hit["seconds"] for hit in hits) < DISK_HIT_SHARE * compiled["seconds"]
    assert child.call("loaded") == ["libnvrtc"]


def test_loading_the_core_loads_neither_compiler_nor_driver(start: Start) -> None:
    child = start()
    assert child.call("loaded") == []
    child.call("kernels")
    child.call("toolchain")
    child.call("cache_list", True)
    assert child.call("loaded") == []


def test_eviction_takes_the_least_recently_used_and_never_the_newest(start: Start, cache: Path) -> None:
    child = start()
    compiled = [child.compile(kernel(number)) for number in range(4)]
    paths = [entry_of(cache, result) for result in compiled]
    size = max(path.stat().st_size for path in paths)
    now = time.time()
    for number, path in enumerate(paths):  # 0 is the oldest
        os.utime(path, (now - 1000 + number, now - 1000 + number))

    limited = start(GDN_JIT_CACHE_MAX_BYTES=str(3 * size + size // 2))
    assert limited.origin(kernel(0)) == "disk"  # now it is the most recently used
    newest = entry_of(cache, limited.compile(kernel(4)))
    assert set(entries(cache)) == {paths[0], paths[3], newest}

    for path in entries(cache):  # written by a machine whose clock is ahead
        os.utime(path, (now + 1000, now + 1000))
    tiny = start(GDN_JIT_CACHE_MAX_BYTES="1")
    newest = entry_of(cache, tiny.compile(kernel(5)))
    assert entries(cache) == [newest]
    assert start(GDN_JIT_CACHE_MAX_BYTES="1K").origin(kernel(5)) == "disk"
    assert [child.messages() for child in (limited, tiny)] == ["", ""]


def test_processes_with_a_tiny_size_limit_all_get_their_kernels(start: Start, cache: Path) -> None:
    children = [start(GDN_JIT_CACHE_MAX_BYTES="1") for _ in range(3)]
    for child in children:
        child.wait_until_ready()
    for number in range(8):
        for child in children:
            child.send_compile(kernel(number % 3))
        for child in children:
            assert child.receive()["origin"] in ("compiled", "disk")
    assert len(entries(cache)) <= len(children)
    assert [child.messages() for child in children] == ["", "", ""]


def test_files_are_private_whatever_the_umask(start: Start, cache: Path) -> None:
    child = start(GDN_JIT_DUMP="1")
    child.call("umask", 0)
    child.compile(kernel())
    modes = {path: path.stat().st_mode & 0o777 for path in [cache, *cache.rglob("*")]}
    assert {path: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}


def test_clear_removes_entries_with_their_dumps_and_keeps_locks(start: Start, cache: Path) -> None:
    child = start(GDN_JIT_DUMP="1")
    compile_many(child, 2)
    for name in NOT_OURS:
        (cache / name).write_text("not ours")
    assert child.call("cache_clear") == 2
    assert {path.name for path in cache.iterdir() if path.is_file()} == NOT_OURS
    assert {path.read_text() for path in cache.iterdir() if path.is_file()} == {"not ours"}
    assert len(list((cache / "locks").iterdir())) == 2
    assert [entry["file"] for entry in child.call("cache_list")] == [f"mine-{'0' * 64}.cubin"]
    assert child.origin(kernel()) == "compiled"


def test_an_entry_is_named_by_kernel_and_key(start: Start, cache: Path) -> None:
    compiled = start().compile(kernel(), name="../odd name/€")
    [path] = entries(cache)
    assert path.parent == cache
    assert re.fullmatch(r"[\w-]+-" + compiled["full_key"] + r"\.cubin", path.name, re.ASCII)
