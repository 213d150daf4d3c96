"""Where the cache is when the first folder cannot be used: in the next one, then in memory, with one warning."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jit_helpers import NOBODY, NOWHERE, Child, Start, entries, kernel, leftovers, need_mounts, need_root


def assert_one_warning(child: Child, *parts: object) -> None:
    assert len(child.warnings()) == 1, child.messages()
    for part in parts:
        assert str(part) in child.warnings()[0]
    assert len(child.call("cache_refusals")) >= 1


def assert_fresh_compile_is_kept_in(child: Child, folder: Path) -> None:
    assert child.origin(kernel()) == "compiled"
    assert child.origin(kernel()) == "disk"
    assert child.call("cache_directory") == str(folder)
    assert len(entries(folder)) == 1
    assert folder.stat().st_mode & 0o777 == 0o700


def assert_in_memory_only(child: Child) -> None:
    assert child.origin(kernel()) == "compiled"
    assert child.origin(kernel()) == "memory"
    assert child.origin(kernel(1)) == "compiled"
    assert child.call("cache_list", True) == []
    assert child.call("cache_clear") == 0


def test_the_cache_folder_is_chosen_in_a_fixed_order(start: Start, tmp_path: Path) -> None:
    home, xdg, temporary, mine = (tmp_path / name for name in ("home", "xdg", "tmp", "mine"))
    temporary.mkdir()
    all_set = {"HOME": home, "XDG_CACHE_HOME": xdg, "TMPDIR": temporary}
    expected = {
        mine: {"GDN_JIT_CACHE_DIR": mine},
        xdg / "gdn_cuda": {"GDN_JIT_CACHE_DIR": None},
        home / ".cache" / "gdn_cuda": {"GDN_JIT_CACHE_DIR": None, "XDG_CACHE_HOME": None},
        temporary / f"gdn_cuda-{os.geteuid()}": {"GDN_JIT_CACHE_DIR": None, "XDG_CACHE_HOME": None, "HOME": None},
    }
    for folder, variables in expected.items():
        child = start(**{**all_set, **variables})
        assert child.call("cache_directory") == str(folder)
        assert child.messages() == ""


def test_a_relative_xdg_cache_home_and_empty_variables_are_ignored(start: Start, tmp_path: Path) -> None:
    child = start(GDN_JIT_CACHE_DIR="", XDG_CACHE_HOME="relative", HOME="", TMPDIR=tmp_path)
    assert_fresh_compile_is_kept_in(child, tmp_path / f"gdn_cuda-{os.geteuid()}")
    assert child.messages() == ""


@pytest.mark.parametrize("name", ["with spaces, 'quotes' and $(signs)", "größe/ключ/鍵 😀", "deep/" * 20 + "end"])
def test_the_cache_path_may_have_spaces_unicode_and_many_levels(start: Start, tmp_path: Path, name: str) -> None:
    assert_fresh_compile_is_kept_in(start(GDN_JIT_CACHE_DIR=tmp_path / name), tmp_path / name)


def test_a_relative_cache_path_is_resolved_where_the_process_started(start: Start, tmp_path: Path) -> None:
    assert_fresh_compile_is_kept_in(start(GDN_JIT_CACHE_DIR="a/../b"), tmp_path / "run" / "b")


def test_a_link_to_a_private_folder_is_accepted(start: Start, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    assert start(GDN_JIT_CACHE_DIR=tmp_path / "link").origin(kernel()) == "compiled"
    assert len(entries(tmp_path / "real")) == 1


@pytest.mark.parametrize("mode", [0o777, 0o1770, 0o702])
def test_a_folder_that_others_may_write_is_refused(start: Start, cache: Path, tmp_path: Path, mode: int) -> None:
    cache.mkdir()
    cache.chmod(mode)
    child = start(XDG_CACHE_HOME=tmp_path / "xdg")
    assert child.call("cache_directory") == str(tmp_path / "xdg" / "gdn_cuda")
    assert child.call("cache_refusals") == [f"{cache}: others may write it (mode {mode:04o}); chmod go-w makes it usable"]
    assert_one_warning(child, tmp_path / "xdg" / "gdn_cuda", f"{mode:04o}")
    assert list(cache.iterdir()) == []


def test_a_folder_below_one_that_others_may_rename_is_refused(start: Start, tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(0o777)
    folder = above / "mine" / "cache"
    child = start(GDN_JIT_CACHE_DIR=folder, XDG_CACHE_HOME=tmp_path / "xdg")
    assert_fresh_compile_is_kept_in(child, tmp_path / "xdg" / "gdn_cuda")
    assert_one_warning(child, f"{folder}: others may rename what is in {above} (mode 0777)")
    assert list(above.iterdir()) == []
    above.chmod(0o1777)
    assert_fresh_compile_is_kept_in(start(GDN_JIT_CACHE_DIR=folder), folder)


def test_a_cache_folder_that_another_user_moved_into_place_is_not_loaded(
    start: Start, open_folder: Path, tmp_path: Path
) -> None:
    """Root owns the folder and its kernels; only the parent folder lets another user move them into place."""
    need_root()
    above = open_folder / "above"
    mine, planted = above / "cache", above / "planted"
    above.mkdir()
    assert start(GDN_JIT_CACHE_DIR=planted).origin(kernel()) == "compiled"
    above.chmod(0o777)
    subprocess.run(["mv", str(planted), str(mine)], user=NOBODY, check=True)
    child = start(GDN_JIT_CACHE_DIR=mine, XDG_CACHE_HOME=tmp_path / "xdg")
    assert child.origin(kernel()) == "compiled"
    assert_one_warning(child, mine, "others may rename what is in")


def test_a_folder_of_another_user_is_refused(start: Start, cache: Path, tmp_path: Path) -> None:
    need_root()
    cache.mkdir(mode=0o700)
    os.chown(cache, NOBODY, NOBODY)
    child = start(XDG_CACHE_HOME=tmp_path / "xdg")
    assert_fresh_compile_is_kept_in(child, tmp_path / "xdg" / "gdn_cuda")
    assert_one_warning(child, cache, f"it belongs to user {NOBODY}, not to 0")


def test_a_link_planted_in_the_temporary_folder_is_refused(start: Start, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    (tmp_path / f"gdn_cuda-{os.geteuid()}").symlink_to(mine)
    child = start(GDN_JIT_CACHE_DIR=None, HOME=None, TMPDIR=tmp_path)
    assert_in_memory_only(child)
    assert_one_warning(child, "in memory only", "not a folder")
    assert list(mine.iterdir()) == []


def test_a_file_in_place_of_the_cache_folder_is_refused(start: Start, cache: Path, tmp_path: Path) -> None:
    cache.write_text("a file")
    child = start(XDG_CACHE_HOME=tmp_path / "xdg")
    assert_fresh_compile_is_kept_in(child, tmp_path / "xdg" / "gdn_cuda")
    assert_one_warning(child, cache, "not a folder")


def test_without_a_usable_folder_kernels_are_kept_in_memory_with_one_warning(start: Start) -> None:
    child = start(GDN_JIT_CACHE_DIR=NOWHERE, XDG_CACHE_HOME=NOWHERE, HOME=NOWHERE, TMPDIR=NOWHERE)
    assert_in_memory_only(child)
    assert child.call("cache_directory") == ""
    assert_one_warning(child, "in memory only", NOWHERE)
    assert child.origin(kernel(), force=True) == "compiled"


def test_a_read_only_file_system_is_skipped(start: Start, cache: Path, tmp_path: Path) -> None:
    need_mounts()
    cache.mkdir(mode=0o700)
    read_only = f"mount --bind '{cache}' '{cache}' && mount -o remount,ro,bind '{cache}'"
    child = start(before=read_only, XDG_CACHE_HOME=tmp_path / "xdg")
    assert_fresh_compile_is_kept_in(child, tmp_path / "xdg" / "gdn_cuda")
    assert_one_warning(child, cache, "Read-only file system")


def test_a_folder_that_its_owner_may_not_write_is_skipped(start: Start, open_folder: Path) -> None:
    need_root()
    locked, home = open_folder / "locked", open_folder / "home"
    locked.mkdir(mode=0o500)
    home.mkdir()
    for folder in (locked, home):
        os.chown(folder, NOBODY, NOBODY)
    child = start(user=NOBODY, GDN_JIT_CACHE_DIR=locked, HOME=home)
    assert_fresh_compile_is_kept_in(child, home / ".cache" / "gdn_cuda")
    assert_one_warning(child, locked, "Permission denied")


def test_a_disk_that_is_full_from_the_start_is_skipped(start: Start, cache: Path, tmp_path: Path) -> None:
    need_mounts()
    cache.mkdir(mode=0o700)
    full = f"mount -t tmpfs -o nr_inodes=1,mode=0700 none '{cache}'"
    child = start(before=full, XDG_CACHE_HOME=tmp_path / "xdg")
    assert_fresh_compile_is_kept_in(child, tmp_path / "xdg" / "gdn_cuda")
    assert_one_warning(child, cache, "No space left on device")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a megabyte that every process sees."""
    folder = tmp_path / "small disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k,mode=0700", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting is not permitted here (it needs root)")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> None:
    with (disk / "else").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


def make_read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)


@pytest.mark.parametrize(("happens", "reason"), [(fill, "No space left on device"), (make_read_only, "Read-only file system")])
def test_the_next_folder_is_used_when_a_disk_can_no_longer_be_written(
    start: Start, small_disk: Path, tmp_path: Path, happens: Callable[[Path], None], reason: str
) -> None:
    first, second = small_disk / "cache", tmp_path / "xdg" / "gdn_cuda"
    child = start(GDN_JIT_CACHE_DIR=first, XDG_CACHE_HOME=tmp_path / "xdg")
    assert child.origin(kernel(1)) == "compiled"
    assert child.call("cache_directory") == str(first)
    happens(small_disk)
    outcomes = child.compile_by("in_threads", kernel(2), 4)
    assert sorted(outcome["value"]["origin"] for outcome in outcomes) == ["compiled", "disk", "disk", "disk"]
    assert child.origin(kernel(3)) == "compiled"
    assert child.origin(kernel(1)) == "disk"  # still read where it is
    assert child.call("cache_directory") == str(second)
    assert len(entries(second)) == 2
    assert leftovers(first) == []
    assert_one_warning(child, f"cannot be kept in {first}", reason, f"from now on they are kept in {second}")

    fresh = start(GDN_JIT_CACHE_DIR=first, XDG_CACHE_HOME=tmp_path / "xdg")
    assert [fresh.origin(kernel(number)) for number in (1, 2, 3)] == ["disk", "disk", "disk"]
    assert_one_warning(fresh, f"kept in {second} because of {first}", reason)


def test_kernels_are_kept_in_memory_when_the_only_disk_fills_up(start: Start, small_disk: Path) -> None:
    cache = small_disk / "cache"
    child = start(GDN_JIT_CACHE_DIR=cache, HOME=NOWHERE, TMPDIR=NOWHERE)
    assert child.call("cache_directory") == str(cache)
    fill(small_disk)
    assert_in_memory_only(child)
    assert_one_warning_of_a_failed_write(child, cache, "No space left on device")
    assert leftovers(cache) == []
    (small_disk / "else").unlink()
    assert child.origin(kernel(2)) == "compiled"
    assert child.origin(kernel(2)) == "disk"
    assert [entry["problem"] for entry in child.call("cache_list", True)] == [""]


def test_kernels_are_kept_in_memory_when_a_quota_is_exceeded(start: Start, cache: Path) -> None:
    child = start()
    assert child.origin(kernel()) == "compiled"
    child.call("limit_file_size", 1000)
    assert child.origin(kernel(1)) == "compiled"
    assert child.origin(kernel(1)) == "memory"
    assert child.origin(kernel()) == "disk"
    assert_one_warning_of_a_failed_write(child, cache, "File too large")
    assert len(entries(cache)) == 1
    assert leftovers(cache) == []


def assert_one_warning_of_a_failed_write(child: Child, folder: Path, reason: str) -> None:
    assert len(child.warnings()) == 1, child.messages()
    assert f"compiled kernels cannot be kept in {folder}" in child.warnings()[0]
    assert reason in child.warnings()[0]


def test_a_deleted_cache_folder_is_created_again(start: Start, cache: Path) -> None:
    child = start()
    assert child.origin(kernel()) == "compiled"
    shutil.rmtree(cache)
    assert child.origin(kernel()) == "compiled"
    assert child.origin(kernel()) == "disk"
    assert cache.stat().st_mode & 0o777 == 0o700
    assert child.messages() == ""


def test_a_tilde_in_a_variable_is_the_home(start: Start, tmp_path: Path) -> None:
    home = tmp_path / "run" / "home"  # the children's home
    (home / "baked").mkdir(parents=True)
    child = start(GDN_JIT_CACHE_DIR="~/x", GDN_JIT_PREBUILT_DIR="~/baked")
    assert child.origin(kernel()) == "compiled"
    assert child.call("cache_directory") == str(home / "x")
    assert len(entries(home / "x")) == 1
    assert child.call("env")["prebuilt_dir"] == str(home / "baked")
    assert not (tmp_path / "run" / "~").exists()
    unknown = start(GDN_JIT_CACHE_DIR="~no-such-user/x").compile_failure(kernel())
    assert "GDN_JIT_CACHE_DIR: expected a path; ~ and ~user at its start are a home that exists" in unknown
