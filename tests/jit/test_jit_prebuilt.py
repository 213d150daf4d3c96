"""GDN_JIT_PREBUILT_DIR and GDN_JIT_DISABLE: kernels baked into an image, for machines that never compile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jit_helpers import (
    ARCH,
    HIDE_CUDA,
    NOBODY,
    NOWHERE,
    CallFailed,
    Child,
    Start,
    choose,
    edit,
    entries,
    entry_of,
    installed_package,
    need_mounts,
    need_root,
    seal,
)


@pytest.fixture(scope="session")
def registered(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A kernel of the registry and one of its configurations."""
    child = Child(tmp_path_factory.mktemp("registry"), {})
    entry = min(child.call("kernels"), key=lambda entry: len(entry["configurations"]))
    child.end()
    return f"{entry['family']}/{entry['name']}", entry["configurations"][0]["configuration"]


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory, registered: tuple[str, str]) -> Path:
    """A prebuilt folder with that configuration; tests that modify it use a copy."""
    folder = tmp_path_factory.mktemp("image")
    child = Child(folder / "run", {"GDN_JIT_CACHE_DIR": str(folder / "cache")})
    assert child.call("compile", *registered, ARCH, str(folder / "prebuilt"))["origin"] == "compiled"
    child.end()
    return folder / "prebuilt"


def state(folder: Path) -> dict[str, Any]:
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_mode, path.stat().st_size) for path in sorted(folder.rglob("*"))
    }


def test_an_export_holds_only_entries_that_everyone_may_read(image: Path) -> None:
    [entry] = image.iterdir()
    assert entry.suffix == ".cubin"
    assert entry.stat().st_mode & 0o777 == 0o644
    assert image.stat().st_mode & 0o777 == 0o755


def test_a_prebuilt_folder_is_searched_first_and_never_written(
    start: Start, image: Path, cache: Path, registered: tuple[str, str]
) -> None:
    before = state(image)
    assert start().call("compile", *registered, ARCH)["origin"] == "compiled"
    [cached] = entries(cache)
    child = start(GDN_JIT_PREBUILT_DIR=image)
    result = child.call("compile", *registered, ARCH)
    assert result["origin"] == "prebuilt"
    assert result["code_key"] in next(image.iterdir()).name
    assert entries(cache) == [cached]
    assert child.call("compile", *registered, "sm_80")["origin"] == "compiled"  # for another arch it has none
    assert child.call("compile", *registered, ARCH, force=True)["origin"] == "compiled"
    assert child.messages() == ""
    assert state(image) == before


@pytest.mark.parametrize("disable", ["0", "1"])
def test_prebuilt_kernels_need_no_compiler_no_headers_and_no_cache(
    start: Start, image: Path, tmp_path: Path, wheels: dict[str, Path], registered: tuple[str, str], disable: str
) -> None:
    need_mounts()
    empty = tmp_path / "empty"
    empty.mkdir()
    child = start(
        hook={"library_root": str(wheels["library_root"])},
        before=f"{HIDE_CUDA}\nmount --bind '{image}' '{image}' && mount -o remount,ro,bind '{image}'",
        GDN_JIT_PREBUILT_DIR=image,
        GDN_JIT_DISABLE=disable,
        GDN_CUDA_HOME=empty,
        GDN_JIT_CACHE_DIR=NOWHERE,
        HOME=NOWHERE,
        TMPDIR=NOWHERE,
        PATH="/usr/bin:/bin",
    )
    result = child.call("compile", *registered, ARCH)
    assert (result["origin"], result["full_key"]) == ("prebuilt", None)
    assert child.call("loaded") == []
    missed = child.failure("compile", *registered, "sm_80")
    assert ("GDN_JIT_DISABLE" in missed) == (disable == "1")
    assert ("NVRTC (libnvrtc.so) not found" in missed) == (disable == "0")


def test_a_corrupt_prebuilt_entry_is_skipped(
    start: Start, image: Path, cache: Path, tmp_path: Path, registered: tuple[str, str]
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(image, broken)
    [entry] = broken.iterdir()
    content = bytearray(entry.read_bytes())
    content[len(content) // 2] ^= 1
    entry.write_bytes(content)
    before = state(broken)
    disabled = start(GDN_JIT_PREBUILT_DIR=broken, GDN_JIT_DISABLE="1").failure("compile", *registered, ARCH)
    assert registered[0] in disabled
    child = start(GDN_JIT_PREBUILT_DIR=broken)
    assert child.call("compile", *registered, ARCH)["origin"] == "compiled"
    assert child.call("compile", *registered, ARCH)["origin"] == "disk"
    assert len(child.warnings()) == 1
    assert f"{entry}: its contents do not match its digest; it is passed over" in child.warnings()[0]
    assert state(broken) == before
    assert len(entries(cache)) == 1


def test_prebuilt_kernels_of_other_sources_are_not_used(
    start: Start, image: Path, library: Path, registered: tuple[str, str]
) -> None:
    child = start(GDN_JIT_PREBUILT_DIR=image)
    child.call("init", str(library), "")
    assert child.call("compile", *registered, ARCH)["origin"] == "prebuilt"  # the same sources elsewhere
    kernels = library / "gdn_cuda" / "kernels"
    for entry in child.call("kernels"):
        if (kernel := f"{entry['family']}/{entry['name']}") != registered[0]:
            edit(kernels / f"{kernel}.cuh", "// another kernel's\n")
    unrelated = start(GDN_JIT_PREBUILT_DIR=image)
    unrelated.call("init", str(library), "")
    assert unrelated.call("compile", *registered, ARCH)["origin"] == "prebuilt"
    edit(kernels / "common" / "types.cuh", "// edited\n")
    edited = start(GDN_JIT_PREBUILT_DIR=image)
    edited.call("init", str(library), "")
    assert edited.call("compile", *registered, ARCH)["origin"] == "compiled"


def test_another_user_may_load_prebuilt_kernels(
    start: Start, image: Path, open_folder: Path, registered: tuple[str, str]
) -> None:
    need_root()
    baked = open_folder / "baked"
    shutil.copytree(image, baked)
    child = start(user=NOBODY, GDN_JIT_PREBUILT_DIR=baked, GDN_JIT_CACHE_DIR=NOWHERE, HOME=NOWHERE)
    assert child.call("compile", *registered, ARCH)["origin"] == "prebuilt"


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: folder.chmod(0o777), "others may write it (mode 0777)"),
        (lambda folder: folder.parent.chmod(0o777), "(mode 0777); chmod go-w or chmod +t makes it usable"),
        (lambda folder: os.chown(folder, NOBODY, NOBODY), f"it belongs to user {NOBODY}"),
        (lambda folder: os.chown(folder.parent, NOBODY, NOBODY), f"belongs to user {NOBODY}, who may rename what is in it"),
    ],
)
def test_a_prebuilt_folder_that_others_may_have_changed_is_skipped(
    start: Start, image: Path, open_folder: Path, registered: tuple[str, str], spoil: Callable[[Path], None], reason: str
) -> None:
    need_root()
    baked = open_folder / "above" / "baked"
    shutil.copytree(image, baked)
    assert start(GDN_JIT_PREBUILT_DIR=baked).call("compile", *registered, ARCH)["origin"] == "prebuilt"
    spoil(baked)
    child = start(GDN_JIT_PREBUILT_DIR=baked)
    assert child.call("compile", *registered, ARCH)["origin"] == "compiled"
    assert [reason in line for line in child.warnings()] == [True]
    [folder] = child.call("prebuilt_folders")
    assert folder["path"] == str(baked) and reason in folder["refusal"]
    assert reason in start(GDN_JIT_PREBUILT_DIR=baked, GDN_JIT_DISABLE="1", GDN_JIT_CACHE_DIR=NOWHERE, HOME=NOWHERE).failure(
        "compile", *registered, ARCH
    )


def test_a_sealed_prebuilt_entry_without_the_kernel_is_skipped(
    start: Start, image: Path, tmp_path: Path, registered: tuple[str, str]
) -> None:
    baked = tmp_path / "baked"
    shutil.copytree(image, baked)
    [entry] = baked.iterdir()
    key = entry.stem[-64:]
    cubin = (Path(image) / entry.name).read_bytes()
    spoilt = {
        "18 bytes of rubbish": (seal(b"18 bytes of rubbish"[:18], "k", key), 0o644),
        "another symbol": (seal(cubin, "k", key), 0o644),
        "another key": (seal(b"", "k", "0" * 64), 0o644),
        "writable by all": (cubin, 0o666),
    }
    for what, (content, mode) in spoilt.items():
        entry.write_bytes(content)
        entry.chmod(mode)
        child = start(GDN_JIT_PREBUILT_DIR=baked)
        assert child.call("compile", *registered, ARCH, force=False)["origin"] in ("compiled", "disk"), what
        assert [f"{entry}: " in line and "it is passed over" in line for line in child.warnings()] == [True], what
    entry.unlink()
    os.mkfifo(entry)
    assert start(GDN_JIT_PREBUILT_DIR=baked).call("compile", *registered, ARCH)["origin"] == "disk"


@pytest.fixture
def package(tmp_path: Path, image: Path) -> Path:
    """A folder with _C and the library, and the image as the folder `prebuilt` beside the library."""
    folder = tmp_path / "package"
    (folder / "lib").mkdir(parents=True)
    for name in ("lib/libgdn_cuda.so", *(path.name for path in installed_package().glob("_C.*.so"))):
        shutil.copy(installed_package() / name, folder / name)
    shutil.copytree(image, folder / "lib" / "prebuilt")
    return folder


def test_a_folder_prebuilt_beside_the_library_is_read_and_never_written(
    start: Start, package: Path, tmp_path: Path, wheels: dict[str, Path], registered: tuple[str, str]
) -> None:
    before = state(package)
    hook = {"library_root": str(wheels["library_root"])}
    never = {"GDN_JIT_DISABLE": "1", "GDN_JIT_CACHE_DIR": NOWHERE, "HOME": NOWHERE, "TMPDIR": NOWHERE}
    child = start(package=package, hook=hook, **never)
    assert child.call("compile", *registered, ARCH)["origin"] == "prebuilt"
    assert child.call("loaded") == []
    assert child.call("prebuilt_folders") == [{"path": str(package / "lib" / "prebuilt"), "refusal": ""}]
    assert str(package / "lib" / "prebuilt") in child.failure("compile", *registered, "sm_80")
    assert state(package) == before


def test_gdn_jit_prebuilt_dir_comes_before_the_folder_beside_the_library(
    start: Start, package: Path, tmp_path: Path, image: Path, registered: tuple[str, str]
) -> None:
    beside = package / "lib" / "prebuilt"
    [entry] = beside.iterdir()
    entry.write_bytes(b"not read")
    child = start(package=package, GDN_JIT_PREBUILT_DIR=image)
    assert child.call("compile", *registered, ARCH)["origin"] == "prebuilt"
    assert child.messages() == ""
    shutil.copy(image / entry.name, entry)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert start(package=package, GDN_JIT_PREBUILT_DIR=empty).call("compile", *registered, ARCH)["origin"] == "prebuilt"


def test_files_beside_the_library_may_be_links(start: Start, package: Path, registered: tuple[str, str]) -> None:
    """Package managers and download caches keep the contents elsewhere, under other names."""
    blobs = package.parent / "blobs"
    blobs.mkdir()
    for number, path in enumerate(sorted(path for path in package.rglob("*") if path.is_file())):
        blob = path.rename(blobs / f"{number:040}")
        path.symlink_to(os.path.relpath(blob, path.parent))
    child = start(package=package, GDN_JIT_DISABLE="1")
    assert child.call("compile", *registered, ARCH)["origin"] == "prebuilt"
    assert child.messages() == ""


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda lib, entry: entry.chmod(0o666), "others may write it (mode 0666)"),
        (lambda lib, entry: entry.chmod(0o664), "others may write it (mode 0664)"),
        (lambda lib, entry: entry.parent.chmod(0o777), "others may write it (mode 0777)"),
        (lambda lib, entry: os.chown(entry, NOBODY, NOBODY), f"it belongs to user {NOBODY}"),
        (lambda lib, entry: os.chown(entry.parent, NOBODY, NOBODY), f"it belongs to user {NOBODY}"),
        (lambda lib, entry: (entry.unlink(), os.mkfifo(entry)), "it is not a regular file"),
        (lambda lib, entry: (lib.chmod(0o775), entry.chmod(0o664), entry.parent.chmod(0o775)), ""),
        (lambda lib, entry: (lib.chmod(0o775), entry.chmod(0o666)), "others may write it"),
        (lambda lib, entry: (os.chown(lib, -1, NOBODY), lib.chmod(0o775), entry.chmod(0o664)), "others may write it"),
        (lambda lib, entry: (os.chown(lib, NOBODY, NOBODY), os.chown(entry, NOBODY, NOBODY)), ""),
    ],
)
def test_files_beside_the_library_are_trusted_as_the_library_is(
    start: Start, package: Path, registered: tuple[str, str], spoil: Callable[[Path, Path], object], reason: str
) -> None:
    """A user who may write the library controls the process anyway; no other user may choose its kernels."""
    need_root()
    (package / "lib" / "libgdn_cuda.so").chmod(0o755)
    [entry] = (package / "lib" / "prebuilt").iterdir()
    spoil(package / "lib" / "libgdn_cuda.so", entry)
    child = start(package=package)
    assert child.call("compile", *registered, ARCH)["origin"] == ("compiled" if reason else "prebuilt")
    assert [reason in line and "it is passed over" in line for line in child.warnings()] == [True] * bool(reason)


def test_no_kernel_is_exported_with_nvcc_flags_that_the_file_name_does_not_cover(
    start: Start, tmp_path: Path, registered: tuple[str, str]
) -> None:
    out = tmp_path / "out"
    child = start(NVCC_APPEND_FLAGS="-G", **choose("nvcc"))
    message = child.failure("compile", *registered, ARCH, str(out))
    assert "expected no settings of nvcc in the environment" in message
    assert "got NVCC_APPEND_FLAGS=-G; unset them" in message
    assert not out.exists()


def test_gdn_jit_disable_makes_a_miss_an_error_and_allows_hits(start: Start, cache: Path, registered: tuple[str, str]) -> None:
    disabled = start(GDN_JIT_DISABLE="1")
    message = disabled.failure("compile", *registered, ARCH)
    for part in (
        *registered,
        ARCH,
        "GDN_JIT_DISABLE",
        "GDN_JIT_PREBUILT_DIR=(not set)",
        str(cache),
        "python -m gdn_cuda compile",
    ):
        assert part in message
    assert disabled.call("loaded") == []
    assert start().call("compile", *registered, ARCH)["origin"] == "compiled"
    assert disabled.call("compile", *registered, ARCH)["origin"] == "disk"
    assert "GDN_JIT_DISABLE" in disabled.failure("compile", *registered, ARCH, force=True)


def test_an_export_takes_entries_from_the_cache(start: Start, cache: Path, tmp_path: Path, registered: tuple[str, str]) -> None:
    child = start()
    child.call("compile", *registered, ARCH)
    relative = child.call("compile", *registered, ARCH, "with spaces/prebuilt")
    assert relative["origin"] == "disk"
    exported = entry_of(tmp_path / "run" / "with spaces" / "prebuilt", relative)
    [cached] = entries(cache)
    assert exported.name != cached.name
    assert start(GDN_JIT_PREBUILT_DIR=exported.parent).call("compile", *registered, ARCH)["origin"] == "prebuilt"


def test_an_export_that_cannot_be_written_names_the_folder(start: Start, tmp_path: Path, registered: tuple[str, str]) -> None:
    (tmp_path / "file").write_text("")
    child = start()
    for folder in (NOWHERE, str(tmp_path / "file"), str(tmp_path / "file" / "below")):
        with pytest.raises(CallFailed, match="expected a writable folder, got " + folder):
            child.call("compile", *registered, ARCH, folder)
