"""Compiling with NVRTC and nvcc: resources, odd environments, dumps, line information, printed lines."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from jit_helpers import NOBODY, NOWHERE, Start, choose, entries, entry_of, kernel, leftovers, need_root, nvcc

COMPILERS = ["nvrtc", "nvcc"]
PRINTED = re.compile(
    r"compiled test/scale \{\} in \d+\.\d\d s: [1-9]\d* registers, (\d+) B shared, \d+ B spills, \d+ B stack", re.MULTILINE
)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_compile_reports_its_resources_and_is_cached(start: Start, compiler: str) -> None:
    code = kernel().replace(
        "{ x", "{ __shared__ float s[64]; s[threadIdx.x] = x[0]; __syncthreads(); *x = s[63 - threadIdx.x]; x"
    )
    child = start(**choose(compiler))
    compiled = child.compile(code)
    assert compiled["origin"] == "compiled"
    assert compiled["shared_bytes"] == 256
    assert compiled["registers"] > 0
    assert compiled["spill_bytes"] == compiled["stack_bytes"] == 0
    assert start(**choose(compiler)).origin(code) == "disk"


@pytest.mark.parametrize("compiler", COMPILERS)
def test_an_array_in_local_memory_is_reported_as_stack(start: Start, compiler: str) -> None:
    """The array's index is not known at compile time, so it cannot be in registers; it is no spill."""
    local = "float a[64] = {}; for (int i = 0; i < 99; ++i) a[int(x[i])] += x[i]; for (float each : a) *x += each;"
    code = kernel().replace("{ x", f"{{ {local} x")
    compiled = start(**choose(compiler)).compile(code)
    assert compiled["stack_bytes"] >= 256
    assert compiled["spill_bytes"] == 0


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_template_instance_compiles(start: Start, compiler: str) -> None:
    code = (
        "struct Config { int width; };\n"
        "namespace n { template <Config c> __global__ void scale(float* x) { x[0] *= c.width; } }\n"
        "template __global__ void n::scale<Config{.width = 3}>(float*);\n"
    )
    assert start(**choose(compiler)).origin(code) == "compiled"


@pytest.mark.parametrize("compiler", COMPILERS)
def test_paths_with_spaces_and_unicode(start: Start, tmp_path: Path, wheels: dict[str, Path], compiler: str) -> None:
    # Paths with $ ' " or , are left out: nvcc pastes them into the commands that it runs.
    odd = tmp_path / {"nvrtc": "ein $(Ordner), größer's", "nvcc": "ein (Ordner) & größer"}[compiler]
    library, cutlass, temporary = odd / "library", odd / "cut lass", odd / "t m p"
    shutil.copytree(wheels["library_root"] / "gdn_cuda", library / "gdn_cuda")
    temporary.mkdir()
    cutlass.symlink_to(wheels["cutlass_include"])
    chosen = choose(compiler)
    if compiler == "nvcc":
        (odd / "bin").mkdir()
        chosen["GDN_JIT_NVCC"] = str(odd / "bin" / "nvcc")
        (odd / "bin" / "nvcc").write_text(f'#!/bin/sh\nexec {nvcc()} "$@"\n')
        (odd / "bin" / "nvcc").chmod(0o755)
    child = start(GDN_JIT_CACHE_DIR=odd / "cache", GDN_CUTLASS_INCLUDE=cutlass, TMPDIR=temporary, GDN_JIT_DUMP="1", **chosen)
    child.call("init", str(library), "")
    code = kernel(before="#include <cutlass/cutlass.h>\n#include <gdn_cuda/kernels/common/types.cuh>\n")
    compiled = child.compile(code, uses_cutlass=True)
    assert compiled["origin"] == "compiled"
    assert entry_of(odd / "cache", compiled).with_suffix(".ptx").stat().st_size > 0
    assert list(temporary.iterdir()) == []


def test_nvcc_writes_temporaries_to_the_cache_folder_without_a_temporary_one(start: Start, cache: Path) -> None:
    child = start(TMPDIR=NOWHERE, **choose("nvcc"))
    assert child.origin(kernel()) == "compiled"
    assert leftovers(cache) == []


def test_nvcc_as_a_user_without_home(start: Start, open_folder: Path) -> None:
    need_root()
    mine = open_folder / "mine"
    mine.mkdir()
    shutil.chown(mine, NOBODY, NOBODY)
    child = start(user=NOBODY, HOME=None, GDN_JIT_CACHE_DIR=None, TMPDIR=mine, **choose("nvcc"))
    assert child.origin(kernel()) == "compiled"
    assert child.call("cache_directory") == str(mine / f"gdn_cuda-{NOBODY}")


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_host_process_that_ignores_its_children_and_lost_its_working_directory(start: Start, compiler: str) -> None:
    child = start(**choose(compiler))
    child.call("ignore_children")  # then nvcc's exit status is unavailable
    child.call("lose_working_folder")
    assert child.origin(kernel()) == "compiled"
    assert "undefined_thing" in child.compile_failure(kernel().replace("0.5f", "undefined_thing"))


@pytest.mark.parametrize("compiler", COMPILERS)
def test_gdn_jit_print_prints_one_line_per_compile(start: Start, compiler: str) -> None:
    child = start(GDN_JIT_PRINT="1", **choose(compiler))
    child.compile(kernel())
    lines = child.messages().splitlines()
    assert len(lines) == 1
    assert PRINTED.fullmatch(lines[0]), lines
    child.compile(kernel())
    assert child.messages().splitlines() == lines
    silent = start(**choose(compiler))
    silent.compile(kernel(1))
    assert silent.messages() == ""


def test_the_log_level_selects_the_messages(start: Start) -> None:
    said = {}
    for number, level in enumerate(("debug", "info", "warning", "off")):
        child = start(GDN_LOG_LEVEL=level)
        child.compile(kernel(number))
        said[level] = child.messages()
    assert "gdn_cuda: debug: test/scale {} for sm_90a: compiled in " in said["debug"]
    assert "gdn_cuda: info: compiled test/scale" in said["info"]
    assert "debug" not in said["info"]
    assert said["warning"] == said["off"] == ""


@pytest.mark.parametrize("compiler", COMPILERS)
def test_dump_keeps_source_ptx_and_sass_beside_the_cubin(start: Start, cache: Path, compiler: str) -> None:
    plain = start(**choose(compiler)).compile(kernel())
    assert [path.suffix for path in cache.iterdir() if path.is_file()] == [".cubin"]
    child = start(GDN_JIT_DUMP="1", PATH=f"/usr/bin:/bin:{nvcc().parent}", **choose(compiler))
    dumped = child.compile(kernel())
    assert dumped["full_key"] == plain["full_key"]
    assert dumped["origin"] == "compiled"  # again, for its dumps
    [entry] = entries(cache)
    last_line = f"// gdn_cuda dump {dumped['full_key']}\n"
    assert entry.with_suffix(".cu").read_text() == kernel() + last_line
    for suffix in (".ptx", ".sass"):
        assert entry.with_suffix(suffix).read_text().endswith("\n" + last_line)
    assert ".entry scale" in entry.with_suffix(".ptx").read_text()
    assert re.search(r"FADD|FFMA", entry.with_suffix(".sass").read_text())
    assert child.origin(kernel()) == "disk"
    assert start(**choose(compiler)).origin(kernel()) == "disk"
    assert leftovers(cache) == []


def test_dumps_are_evicted_with_their_entry(start: Start, cache: Path) -> None:
    child = start(GDN_JIT_DUMP="1")
    old = entry_of(cache, child.compile(kernel(1)))
    assert old.with_suffix(".cu").exists()
    start(GDN_JIT_CACHE_MAX_BYTES="1").compile(kernel(2))
    assert not list(cache.glob(old.stem + ".*"))


def test_line_information_is_included_on_request(start: Start, cache: Path) -> None:
    plain = entry_of(cache, start().compile(kernel())).read_bytes()
    lines = entry_of(cache, start(GDN_JIT_LINEINFO="1").compile(kernel())).read_bytes()
    assert b".debug_line" in lines
    assert b".debug_line" not in plain
