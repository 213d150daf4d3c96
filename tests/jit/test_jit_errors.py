"""Errors name their cause: broken kernels, missing files, malformed variables. A failed compile is never cached."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from jit_helpers import HIDE_CUDA, Child, Start, choose, copy_cuda_home, entries, kernel, leftovers, need_mounts, nvcc

BROKEN = """extern "C" __global__ void scale(float* x) {
    const char* text = "$HOME 'quoted' \\\\";
    x[0] = undefined_thing;
}"""  # no newline at the end


def assert_nothing_kept(cache: Path) -> None:
    assert entries(cache) == []
    assert leftovers(cache) == []


@pytest.mark.parametrize("compiler", ["nvrtc", "nvcc"])
def test_a_compile_error_shows_all_that_is_needed_to_reproduce_it(
    start: Start, cache: Path, tmp_path: Path, wheels: dict[str, Path], compiler: str
) -> None:
    library = tmp_path / "a library (of $HOME) & \\more"
    shutil.copytree(wheels["library_root"] / "gdn_cuda", library / "gdn_cuda")
    child = start(**choose(compiler) | {"GDN_JIT_NVCC": str(nvcc())})
    child.call("init", str(library), "")
    code = "#include <gdn_cuda/kernels/common/types.cuh>\n" + BROKEN
    message = child.compile_failure(code, uses_cutlass=True)

    assert message.startswith("test/scale {} did not compile for sm_90a\n")
    assert "\n    1 | #include <gdn_cuda/kernels/common/types.cuh>\n    2 | extern" in message
    assert "\n    5 | }\n" in message
    assert "--gpu-architecture=sm_90a" in message
    complaint = 'error: identifier "undefined_thing" is undefined'
    assert complaint in message.partition("log:\n")[2].partition("source:\n")[0]

    command = message.partition("to reproduce it in a shell:\n")[2]
    shell = subprocess.run(["bash", "-e"], input=command, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert shell.returncode != 0
    assert complaint in shell.stdout + shell.stderr
    assert "4)" in shell.stdout + shell.stderr  # the line number, which the numbered source has too
    repaired = subprocess.run(["bash", "-e"], input=command.replace("undefined_thing", "1.0f"), capture_output=True, text=True)
    assert repaired.returncode == 0, repaired.stdout + repaired.stderr
    assert_nothing_kept(cache)


@pytest.mark.parametrize("compiler", ["nvrtc", "nvcc"])
def test_a_source_without_exactly_one_kernel_is_refused(start: Start, cache: Path, compiler: str) -> None:
    child = start(**choose(compiler))
    none = child.compile_failure("__device__ int helper() { return 1; }\n")
    assert "expected exactly one kernel in the cubin, got 0" in none
    two = child.compile_failure(kernel(1) + kernel(2, entry="twice"))
    assert "expected exactly one kernel in the cubin, got 2" in two
    assert "twice" in two
    bogus = child.compile_failure(
        kernel().replace("x[threadIdx.x]", 'asm("bogus;"); x[0]')
    )  # ptxas complains, not the front end
    assert "did not compile" in bogus
    assert "bogus" in bogus.partition("log:\n")[2].partition("source:\n")[0]
    assert_nothing_kept(cache)
    assert child.origin(kernel()) == "compiled"


def test_a_failed_compile_is_retried(start: Start, cache: Path, library: Path) -> None:
    header = library / "gdn_cuda" / "kernels" / "new.cuh"
    header.write_text("#error not yet\n")
    child = start()
    child.call("init", str(library), "")
    code = kernel(before="#include <gdn_cuda/kernels/new.cuh>\n")
    for _ in range(2):
        assert "not yet" in child.compile_failure(code)
    assert_nothing_kept(cache)
    header.write_text("// now\n")
    assert child.origin(code) == "compiled"


@pytest.mark.parametrize("arch", ["hopper", "", "sm_", "sm_9x", "sm_90a ", "90a", "sm_90a;rm", "../sm_90a", "sm_99999999999"])
def test_a_malformed_arch_is_refused(start: Start, cache: Path, arch: str) -> None:
    assert arch in start().compile_failure(kernel(), arch=arch)
    assert_nothing_kept(cache)


def test_an_arch_unknown_to_the_compiler_is_refused(start: Start, cache: Path) -> None:
    message = start().compile_failure(kernel(), arch="sm_50")
    assert "test/scale: NVRTC" in message
    assert "does not compile for sm_50; it knows sm_" in message
    assert_nothing_kept(cache)


# ---- Missing parts of the toolchain


def test_missing_builtins_are_named(start: Start, tmp_path: Path, cache: Path, wheels: dict[str, Path]) -> None:
    home = copy_cuda_home(wheels, tmp_path / "cuda")
    [builtins] = (home / "lib").glob("libnvrtc-builtins.so.*")
    other_release = builtins.with_name("libnvrtc-builtins.so.11.8")
    builtins.rename(other_release)
    assert_names_the_builtins(start(GDN_CUDA_HOME=home), home)
    other_release.unlink()
    assert_names_the_builtins(start(GDN_CUDA_HOME=home), home)

    found = {name: str(path) for name, path in wheels.items()} | {"nvrtc": str(next((home / "lib").glob("libnvrtc.so.*")))}
    assert_names_the_builtins(start(hook=found), home)
    assert_nothing_kept(cache)


def assert_names_the_builtins(child: Child, home: Path) -> None:
    message = child.compile_failure(kernel())
    assert re.search(r"no libnvrtc-builtins\.so\.1\d\.[\d*]+ in " + re.escape(str(home / "lib")), message), message
    assert "pip install" in message


@pytest.mark.parametrize("broken", ["libnvrtc.so.", "libnvrtc-builtins.so."])
def test_a_library_that_does_not_load_is_named(
    start: Start, tmp_path: Path, cache: Path, wheels: dict[str, Path], broken: str
) -> None:
    home = copy_cuda_home(wheels, tmp_path / "cuda")
    [library] = (home / "lib").glob(broken + "*")
    library.write_text("this is not a library\n")
    message = start(GDN_CUDA_HOME=home).compile_failure(kernel())
    assert f"{library}: expected a library that loads, got: " in message
    assert "pip install" in message
    assert_nothing_kept(cache)


def test_with_nothing_installed_every_place_tried_is_listed(start: Start, tmp_path: Path, wheels: dict[str, Path]) -> None:
    need_mounts()
    empty = tmp_path / "empty"
    empty.mkdir()
    child = start(
        hook={"library_root": str(wheels["library_root"]), "cuda_include": str(empty / "gone")},
        before=HIDE_CUDA,
        GDN_CUDA_HOME=empty,
        GDN_CUTLASS_INCLUDE=empty,
        PATH="/usr/bin:/bin",
    )
    message = child.compile_failure(kernel(), uses_cutlass=True)
    for what in ("NVRTC (libnvrtc.so)", "CUDA headers (cuda_bf16.h)", "CUTLASS headers", "libcu++ headers"):
        assert f"{what.split(' (')[0]}" in message
    for place in (f"GDN_CUDA_HOME {empty}", f"wheels {empty}/gone", "/usr/local/cuda", f"GDN_CUTLASS_INCLUDE {empty}"):
        assert place in message, message
    assert message.count("to fix: ") >= 4
    assert "cutlass" not in child.compile_failure(kernel()).lower()
    missing = {finding["what"] for finding in child.call("toolchain")["findings"] if finding["found"] is None}
    assert len(missing) == 6


def test_an_error_of_the_path_hook_is_reported(start: Start, wheels: dict[str, Path]) -> None:
    found = {"library_root": str(wheels["library_root"]), "surprise": "/"}
    message = start(hook=found).compile_failure(kernel(), uses_cutlass=True)
    assert "wheels: set_path_hook: the hook returned the unknown key 'surprise'" in message


def test_kernels_without_cutlass_compile_where_cutlass_is_missing(start: Start, wheels: dict[str, Path]) -> None:
    child = start(hook={name: str(path) for name, path in wheels.items() if name != "cutlass_include"})
    message = child.compile_failure(kernel(), uses_cutlass=True)
    assert "pip install nvidia-cutlass, or set GDN_CUTLASS_INCLUDE" in message
    assert child.origin(kernel()) == "compiled"


def set_cccl_version(cccl: Path, version: int) -> None:
    header = cccl / "cuda/std/__cccl/version.h"
    header.write_text(re.sub(r"(#define CCCL_VERSION) \d+", rf"\1 {version}", header.read_text()))


def test_a_libcupp_too_new_for_cutlass_is_skipped(start: Start, tmp_path: Path, wheels: dict[str, Path]) -> None:
    """With a newer libcu++ beside the CUDA headers, as in a newer toolkit, the wheel's is used."""
    cuda = tmp_path / "cuda" / "include"
    shutil.copytree(wheels["cuda_include"], cuda)
    set_cccl_version(cuda / "cccl", 3002000)
    hook = {name: str(path) for name, path in wheels.items()} | {"cuda_include": str(cuda)}
    code = kernel(before="#include <cute/arch/copy_sm80.hpp>\n")
    child = start(hook=hook)
    assert child.origin(code, uses_cutlass=True) == "compiled"
    folders = child.call("toolchain")["include_dirs"]
    assert folders.index(str(wheels["cccl_include"])) < folders.index(str(cuda))
    assert folders.index(str(wheels["cccl_include"].parent)) < folders.index(str(cuda))
    [libcupp] = [finding for finding in child.call("toolchain")["findings"] if finding["what"].startswith("libcu++")]
    newer = f"{cuda / 'cccl'}: expected CCCL 2.8 to 3.1, which CUTLASS 4.2 compiles with, got 3.2"
    assert libcupp["tried"] == [f"beside the CUDA headers {newer}"]


def test_kernels_without_cutlass_compile_where_every_libcupp_is_too_new(
    start: Start, tmp_path: Path, wheels: dict[str, Path]
) -> None:
    need_mounts()
    cuda = tmp_path / "cuda" / "include"
    shutil.copytree(wheels["cuda_include"], cuda)
    set_cccl_version(cuda / "cccl", 3003005)
    hook = {name: str(path) for name, path in wheels.items() if name != "cccl_include"} | {"cuda_include": str(cuda)}
    child = start(hook=hook, before=HIDE_CUDA, GDN_CCCL_INCLUDE=tmp_path)
    message = child.compile_failure(kernel(), uses_cutlass=True)
    assert f"GDN_CCCL_INCLUDE {tmp_path}: no cccl/cuda/std/type_traits or cuda/std/type_traits" in message
    assert f"{cuda / 'cccl'}: expected CCCL 2.8 to 3.1, which CUTLASS 4.2 compiles with, got 3.3" in message
    assert "to fix: pip install 'nvidia-cuda-cccl>=13.0,<13.2' (for CUDA 12 too), or set GDN_CCCL_INCLUDE" in message
    assert child.origin(kernel()) == "compiled"


def test_init_refuses_folders_that_do_not_exist(start: Start, tmp_path: Path) -> None:
    child = start()
    assert f"init: library_root: expected a folder that exists, got {tmp_path}/gone" in child.failure(
        "init", f"{tmp_path}/gone", ""
    )
    assert "init: cuda_home: expected a folder that exists" in child.failure("init", "", f"{tmp_path}/gone")
    assert child.origin(kernel()) == "compiled"


# ---- An nvcc that misbehaves

NVCCS = {
    "fails at once": ("exit 3", "expected a working nvcc"),
    "is killed": ("case $1 in --version) echo 1;; *) kill -9 $$;; esac", "exit status 137"),
    "gives nothing": ("echo fine", "its output cannot be used"),
    "gives an empty file": (
        'echo 1; while [ $# -gt 0 ]; do [ "$1" = -o ] && : > "$2"; shift; done',
        "its output cannot be used",
    ),
    "gives text": ('echo 1; while [ $# -gt 0 ]; do [ "$1" = -o ] && echo hi > "$2"; shift; done', "expected a cubin"),
    "gives half a cubin": (
        'case $1 in --version) echo 1; exit;; esac; NVCC "$@"; '
        'while [ $# -gt 0 ]; do [ "$1" = -o ] && truncate -s 1500 "$2"; shift; done',
        "expected a cubin",
    ),
}


@pytest.mark.parametrize("name", NVCCS)
def test_nothing_is_published_when_nvcc_misbehaves(start: Start, cache: Path, tmp_path: Path, name: str) -> None:
    script, complaint = NVCCS[name]
    program = tmp_path / "nvcc"
    program.write_text("#!/bin/sh\n" + script.replace("NVCC", str(nvcc())))
    program.chmod(0o755)
    message = start(GDN_JIT_USE_NVCC="1", GDN_JIT_NVCC=program).compile_failure(kernel())
    assert complaint in message
    assert str(program) in message
    assert_nothing_kept(cache)


def test_an_nvcc_that_is_not_executable_is_named(start: Start, cache: Path, tmp_path: Path) -> None:
    program = tmp_path / "nvcc"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o644)
    message = start(GDN_JIT_USE_NVCC="1", GDN_JIT_NVCC=program).compile_failure(kernel())
    assert str(program) in message
    assert "Permission denied" in message


# ---- Variables

SWITCHES = ("GDN_JIT_DISABLE", "GDN_JIT_USE_NVCC", "GDN_JIT_DUMP", "GDN_JIT_LINEINFO", "GDN_JIT_PRINT")
FOLDERS = ("GDN_JIT_PREBUILT_DIR", "GDN_CUDA_HOME", "GDN_CUTLASS_INCLUDE", "GDN_CCCL_INCLUDE")
SIZES = ("lots", "-1", "1.5G", "1T", "G", " 5", "5 ", "0x10", "5KB", "99999999999999999999", "18446744073709551615K")


def test_a_malformed_variable_is_an_error_that_names_it(start: Start) -> None:
    malformed = [(name, value) for name in SWITCHES for value in ("2", "maybe", " 1", "-1", "yess")]
    malformed += [("GDN_JIT_CACHE_MAX_BYTES", value) for value in SIZES]
    malformed += [("GDN_LOG_LEVEL", value) for value in ("loud", "30", "warn ing")]
    malformed += [("GDN_SCAN_PIECES", value) for value in ("0", "129", "-1", "many", "2.5", " 2")]
    malformed += [(name, value) for name in FOLDERS for value in ("/nowhere/at/all", __file__)]
    malformed += [("GDN_JIT_NVCC", value) for value in ("/nowhere/nvcc", "/usr")]
    child = start()
    for name, value in malformed:
        child.call("setenv", name, value)
        message = child.failure("env")
        assert re.fullmatch(re.escape(name) + r": expected .+, got " + re.escape(f'"{value}"'), message), message
        assert child.compile_failure(kernel()) == message
        child.call("setenv", name, None)
    assert child.origin(kernel()) == "compiled"


def test_the_table_lists_every_variable_and_its_actual_default(start: Start) -> None:
    child = start(GDN_JIT_CACHE_DIR=None)
    table = {variable["name"]: variable["default"] for variable in child.call("variables")}
    names = (
        "GDN_DECODE_CODES",
        "GDN_JIT_CACHE_DIR",
        "GDN_JIT_CACHE_MAX_BYTES",
        "GDN_INTEGRATIONS",
        "GDN_JIT_NVCC",
        "GDN_KDA_AHEAD",
        "GDN_KDA_BACKWARD_SEGMENTS",
        "GDN_KDA_SEGMENTS",
        "GDN_KDA_WINDOW",
        "GDN_LOG_LEVEL",
        "GDN_NVTX",
        "GDN_PREFILL",
        "GDN_SCAN_PIECES",
        "GDN_SCAN_TURNS",
        "GDN_SSD_PREFILL",
        "GDN_TUNED",
        *SWITCHES,
        *FOLDERS,
    )
    assert set(table) == set(names)
    unset = child.call("env")
    stated = start(**table).call("env")
    assert stated == unset
    assert unset["cache_max_bytes"] == 2 << 30


def test_accepted_forms_of_switches_and_sizes(start: Start) -> None:
    on = dict(zip(SWITCHES, ("1", "true", "ON", "Yes", "1"), strict=True))
    off = dict(zip(SWITCHES, ("0", "false", "OFF", "No", ""), strict=True))
    children = {
        size: start(GDN_JIT_CACHE_MAX_BYTES=size, **switches) for size, switches in (("5k", on), ("0", off), ("3G", off))
    }
    found = {size: child.call("env") for size, child in children.items()}
    assert [found[size]["cache_max_bytes"] for size in children] == [5 << 10, 0, 3 << 30]
    fields = [name.rpartition("GDN_JIT_")[2].lower() for name in SWITCHES]
    assert [found["5k"][field] for field in fields] == [True] * 5
    assert [found["0"][field] for field in fields] == [False] * 5


def test_a_misspelt_variable_gives_one_warning_with_the_nearest_name(start: Start) -> None:
    child = start(GDN_JIT_CACHEDIR="/x", GDN_JIT_DISABLED="1", GDN_TEST_SOMETHING="1", GDN_JIT_PRINT="0")
    child.compile(kernel())
    child.call("env")
    assert sorted(line.partition("warning: ")[2] for line in child.warnings()) == [
        "GDN_JIT_CACHEDIR: gdn_cuda has no such variable; the nearest is GDN_JIT_CACHE_DIR",
        "GDN_JIT_DISABLED: gdn_cuda has no such variable; the nearest is GDN_JIT_DISABLE",
    ]


def test_paths_that_are_not_utf8_work_and_are_escaped_in_errors(start: Start, tmp_path: Path, wheels: dict[str, Path]) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9 \xff")
    shutil.copytree(wheels["library_root"] / "gdn_cuda", Path(odd) / "library" / "gdn_cuda")
    child = start(GDN_JIT_CACHE_DIR=f"{odd}/cache", GDN_CUTLASS_INCLUDE=odd)
    child.call("init", f"{odd}/library", "")
    assert child.origin(kernel()) == "compiled"
    assert child.call("cache_directory") == child.call("env")["cache_dir"] == f"{odd}/cache"
    assert [entry["problem"] for entry in child.call("cache_list", True)] == [""]
    assert f"{odd}/library" in child.call("toolchain")["include_dirs"]
    [smallest] = sorted((len(each["configurations"]), each["family"], each["name"]) for each in child.call("kernels"))[:1]
    entry = next(each for each in child.call("kernels") if each["name"] == smallest[2])
    configuration = entry["configurations"][0]["configuration"]
    child.call("compile", f"{smallest[1]}/{smallest[2]}", configuration, "sm_90a", f"{odd}/out")
    assert list(Path(f"{odd}/out").glob("*.cubin"))
    assert "library_root: expected a folder that exists, got " in child.failure("init", f"{odd}/nowhere", "")
    assert "caf\\xe9 \\xff" in child.failure("init", f"{odd}/nowhere", "")
    for name in ("GDN_CUDA_HOME", "GDN_LOG_LEVEL"):
        message = start(**{name: os.fsdecode(b"/no\xffwhere")}).compile_failure(kernel())
        assert message.startswith(f"{name}: expected ")
        assert message.endswith('got "/no\\xffwhere"')


@pytest.mark.parametrize("opened", [False, True])
def test_a_compile_without_memory_is_an_error(start: Start, opened: bool) -> None:
    """Without the check NVRTC would abort, or recurse until the stack ends."""
    child = start()
    if opened:
        assert child.origin(kernel()) == "compiled"
    child.call("limit_memory", 128 << 20)
    large = kernel(1, before="".join(f"struct S{i} {{ int f() {{ return {i}; }} }};\n" for i in range(200_000)))
    assert "NVRTC: expected 256 MiB of free memory to compile in, got: Cannot allocate memory" in child.compile_failure(large)
    if opened:
        assert child.origin(kernel()) == "disk"
