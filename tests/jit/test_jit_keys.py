"""Changes that must change a cache key, and changes that must not."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from jit_helpers import Child, Gate, Start, choose, copy_cuda_home, edit, entries, entry_of, kernel, nvcc

SETTLED = 2.2  # seconds after which csrc/jit/file_memo.cpp trusts a file's status


def started_with(start: Start, library: Path, **options: Any) -> Child:
    child = start(**options)
    child.call("init", str(library), "")
    return child


def header(library: Path, name: str, text: str = "") -> Path:
    """A new header of ours."""
    path = library / "gdn_cuda" / "kernels" / name
    path.write_text(text)
    return path


def including(*names: str) -> str:
    """A kernel that includes these headers of ours."""
    return kernel(before="".join(f"#include <gdn_cuda/kernels/{name}>\n" for name in names))


@pytest.fixture
def a_header(library: Path) -> Path:
    """The header that including(a_header.name) includes."""
    return header(library, "a.cuh")


def test_source_arch_name_and_options_each_change_the_key(start: Start) -> None:
    plain, lines = start(), start(GDN_JIT_LINEINFO="1")
    same = [plain.compile(kernel()), lines.compile(kernel(), arch="sm_80"), start().compile(kernel())]
    different = [
        plain.compile(kernel(1)),
        plain.compile(kernel() + " "),
        plain.compile(kernel(), name="other"),
        plain.call("compile_text", "other", "scale", kernel(), "sm_90a"),
        plain.compile(kernel(), arch="sm_80"),
        plain.compile(kernel(), arch="sm_90"),
        plain.compile(kernel(), uses_cutlass=True),
        lines.compile(kernel()),
    ]
    for key in ("code_key", "full_key"):
        assert same[0][key] == same[2][key]
        assert len({result[key] for result in [*same, *different]}) == len(different) + 2
    assert same[2]["origin"] == "disk"
    assert {result["origin"] for result in different} == {"compiled"}


def test_each_compiler_has_its_own_entry_of_the_same_code(start: Start, cache: Path) -> None:
    by_nvrtc = start().compile(kernel())
    by_nvcc = start(GDN_JIT_USE_NVCC="1", GDN_JIT_NVCC=nvcc()).compile(kernel())
    assert by_nvcc["origin"] == "compiled"
    assert by_nvcc["code_key"] == by_nvrtc["code_key"]
    assert by_nvcc["full_key"] != by_nvrtc["full_key"]
    assert entry_of(cache, {**by_nvcc, "code_key": "none"}) != entry_of(cache, {**by_nvrtc, "code_key": "none"})


def test_variables_of_nvcc_change_the_key_or_are_removed_from_its_environment(start: Start, tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.mkdir()
    (headers / "probe.h").write_text("#define PROBE\n")
    code = (
        "#if __has_include(<probe.h>)\n#include <probe.h>\n#endif\n"
        "#ifdef PROBE\n#define FACTOR 2\n#else\n#define FACTOR 1\n#endif\n"
        'extern "C" __global__ void scale(float* x) { for (int i = 0; i < FACTOR; ++i) x[i] = sinf(x[i]) + FACTOR; }\n'
    )
    counted = {
        "NVCC_PREPEND_FLAGS": "-DPROBE",
        "NVCC_APPEND_FLAGS": "-DPROBE",
        "PTXAS_FLAGS": "-O0",
        "NVVM_FLAGS": "-O0",
    }
    taken = {
        **dict.fromkeys(("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"), str(headers)),
        **dict.fromkeys(("INCLUDES", "SYSTEM_INCLUDES"), "-DPROBE"),
    }
    children = {
        name: start(GDN_JIT_CACHE_DIR=tmp_path / "caches" / name, **{name: value}, **choose("nvcc"))
        for name, value in {"CLEAN": "1", **counted, **taken}.items()
    }
    for child in children.values():
        child.send_compile(code)
    keys = {name: child.receive()["full_key"] for name, child in children.items()}
    made = {
        name: next((tmp_path / "caches" / name).glob("*.cubin")).read_bytes().partition(keys[name].encode()) for name in keys
    }
    assert {name for name in keys if keys[name] != keys["CLEAN"]} == set(counted)
    assert {name for name in keys if made[name][0] != made["CLEAN"][0]} == set(counted), "each of these changes the cubin"

    by_nvrtc = [
        start(GDN_JIT_CACHE_DIR=tmp_path / name, **variables) for name, variables in (("a", {}), ("b", counted | taken))
    ]
    assert len({child.compile(code)["full_key"] for child in by_nvrtc}) == 1
    assert entries(tmp_path / "a")[0].read_bytes() == entries(tmp_path / "b")[0].read_bytes()


def test_the_host_compiler_of_nvcc_changes_the_key(start: Start, tmp_path: Path) -> None:
    real = shutil.which("gcc")
    assert real is not None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gcc").write_text(f'#!/bin/sh\nexec {real} "$@"\n')
    (tmp_path / "bin" / "gcc").chmod(0o755)
    usual = start(**choose("nvcc")).compile(kernel())
    other = start(PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}", **choose("nvcc")).compile(kernel())
    assert (usual["code_key"], other["origin"]) == (other["code_key"], "compiled")
    assert usual["full_key"] != other["full_key"]
    named = start(NVCC_CCBIN=tmp_path / "bin", **choose("nvcc")).compile(kernel())
    assert (named["origin"], named["full_key"]) == ("disk", other["full_key"])


def test_editing_a_header_changes_the_key_and_touching_it_does_not(start: Start, library: Path, a_header: Path) -> None:
    compiled = started_with(start, library).compile(including(a_header.name))
    for path in library.rglob("*"):
        os.utime(path, (1, 1))
    (library / "gdn_cuda" / "kernels" / ".header.cuh.swp").write_text("an editor's")
    (library / "gdn_cuda" / "kernels" / "header.cuh~").write_text("an editor's")
    (library / "not_ours.h").write_text("beside gdn_cuda/, as in an install prefix")
    assert started_with(start, library).compile(including(a_header.name))["origin"] == "disk"

    edit(a_header, "// edited\n")
    edited = started_with(start, library).compile(including(a_header.name))
    assert edited["origin"] == "compiled"
    assert edited["code_key"] != compiled["code_key"]


@pytest.mark.parametrize("compiler", ["nvrtc", "nvcc"])
def test_an_edited_header_recompiles_only_the_kernels_that_include_it(start: Start, library: Path, compiler: str) -> None:
    headers = {
        "shared": header(library, "shared.cuh"),
        "one": header(library, "one.cuh", '#pragma once\n#ifdef NEVER\n#include "shared.cuh"\n#endif\n'),
        "two": header(library, "two.cuh", '#pragma once\n// #include "shared.cuh"\n'),
        "nobody": header(library, "nobody.cuh"),
    }
    kernels = {"one": including("one.cuh"), "two": including("two.cuh"), "neither": kernel()}

    def compiled() -> set[str]:
        child = started_with(start, library, **choose(compiler))
        return {name for name, code in kernels.items() if child.origin(code) == "compiled"}

    assert compiled() == {"one", "two", "neither"}
    for edited, expected in {"shared": {"one"}, "one": {"one"}, "two": {"two"}, "nobody": set()}.items():
        edit(headers[edited], "// edited\n")
        assert compiled() == expected, edited
    assert compiled() == set()


def test_with_an_include_by_macro_every_header_changes_the_key(start: Start, library: Path, a_header: Path) -> None:
    (used, unused), code = (header(library, "used.cuh"), header(library, "unused.cuh")), including(a_header.name)
    a_header.write_text("#define USED <gdn_cuda/kernels/used.cuh>\n#include USED\n")
    keys = [started_with(start, library).compile(code)["code_key"]]
    for path in (used, unused):
        edit(path, "// edited\n")
        keys.append(started_with(start, library).compile(code)["code_key"])
    assert len(set(keys)) == 3


def test_names_and_folders_of_headers_change_the_key(start: Start, library: Path) -> None:
    code = (
        "#if __has_include(<gdn_cuda/kernels/extra.cuh>)\n#include <gdn_cuda/kernels/extra.cuh>\n"
        '#else\nextern "C" __global__ void scale(float* x) { *x += 1; }\n#endif\n'
    )
    keys = [started_with(start, library).compile(code)["code_key"]]
    added = header(library, "extra.cuh", 'extern "C" __global__ void scale(float* x) { *x += 2; }\n')
    keys.append(started_with(start, library).compile(code)["code_key"])
    added.write_text('#include "../extra.cuh"\n')
    (library / "gdn_cuda" / "extra.cuh").write_text('extern "C" __global__ void scale(float* x) { *x += 3; }\n')
    keys.append(started_with(start, library).compile(code)["code_key"])
    (library / "gdn_cuda" / "extra.cuh").write_text('extern "C" __global__ void scale(float* x) { *x += 4; }\n')
    keys.append(started_with(start, library).compile(code)["code_key"])
    assert len(set(keys)) == 4
    added.unlink()
    assert started_with(start, library).compile(code)["code_key"] == keys[0]


def test_a_fifo_in_place_of_a_header_is_an_error_and_does_not_block(start: Start, library: Path, a_header: Path) -> None:
    a_header.unlink()
    os.mkfifo(a_header)
    child = started_with(start, library)
    assert f"header {a_header}: expected a readable file, got: it is not a regular file" in child.compile_failure(
        including(a_header.name)
    )
    assert child.origin(kernel()) == "compiled", "another kernel's"


def test_an_edit_that_keeps_size_and_time_is_noticed(start: Start, library: Path, cache: Path, a_header: Path) -> None:
    a_header.write_text("// 1\n")
    time.sleep(SETTLED)
    first = started_with(start, library).compile(including(a_header.name))
    assert any(str(a_header.relative_to(library / "gdn_cuda")) in memo.read_text() for memo in (cache / "memo").iterdir())
    before = a_header.stat()
    a_header.write_text("// 2\n")
    os.utime(a_header, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert a_header.stat().st_size == before.st_size
    assert started_with(start, library).compile(including(a_header.name))["code_key"] != first["code_key"]


def test_a_header_edited_while_a_process_runs_is_noticed_by_its_next_compile(start: Start, library: Path, cache: Path) -> None:
    increment = header(library, "increment.cuh", "constexpr float increment = 1;\n")
    code = '#include <gdn_cuda/kernels/increment.cuh>\nextern "C" __global__ void scale(float* x) { *x += increment; }\n'
    child = started_with(start, library)
    old = child.compile(code)
    increment.write_text("constexpr float increment = 2;\n")
    new = child.compile(code, force=True)
    assert new["code_key"] != old["code_key"]
    assert entry_of(cache, new).read_bytes() != entry_of(cache, old).read_bytes()
    fresh = started_with(start, library).compile(code)
    assert (fresh["origin"], fresh["full_key"]) == ("disk", new["full_key"])


def test_a_header_edited_during_a_compile_is_not_published_under_the_old_key(
    start: Start, library: Path, gate: Gate, cache: Path, a_header: Path
) -> None:
    child = started_with(start, library, **gate.variables)
    child.send_compile(including(a_header.name))
    gate.wait_for(1)
    edit(a_header, "// edited while nvcc runs\n")
    gate.open()
    result = child.receive()
    assert gate.started() == 2
    assert entries(cache) == [entry_of(cache, result)]
    fresh = started_with(start, library, **gate.variables).compile(including(a_header.name))
    assert (fresh["origin"], fresh["full_key"]) == ("disk", result["full_key"])


def test_an_edited_cutlass_header_recompiles_only_kernels_that_include_it(
    start: Start, tmp_path: Path, wheels: dict[str, Path]
) -> None:
    cutlass = tmp_path / "cutlass"
    shutil.copytree(wheels["cutlass_include"], cutlass)
    code = kernel(before="#include <cutlass/cutlass.h>\n")

    def compile_both() -> tuple[dict[str, Any], dict[str, Any]]:
        child = start(GDN_CUTLASS_INCLUDE=cutlass)
        return child.compile(code, uses_cutlass=True), child.compile(kernel())

    with_cutlass, without = compile_both()
    assert compile_both()[0]["origin"] == "disk"
    assert start().compile(code, uses_cutlass=True)["origin"] == "disk"  # the same headers elsewhere

    edit(cutlass / "cute" / "tensor.hpp", "// edited\n")
    assert compile_both()[0]["origin"] == "disk"  # cutlass.h includes another
    edit(cutlass / "cutlass" / "detail" / "helper_macros.hpp", "// edited\n")
    edited, still_without = compile_both()
    assert edited["origin"] == "compiled"
    assert edited["code_key"] == with_cutlass["code_key"]
    assert edited["full_key"] != with_cutlass["full_key"]
    assert (still_without["origin"], still_without["full_key"]) == ("disk", without["full_key"])


def test_an_upgraded_cutlass_recompiles_and_the_old_one_still_has_its_entry(
    start: Start, tmp_path: Path, wheels: dict[str, Path]
) -> None:
    """As pip installs another version: all files are new, some differ; then through a link, as /usr/local/cuda is one."""
    installed = tmp_path / "cutlass"
    code = kernel(before="#include <cutlass/cutlass.h>\n")

    def compile_it() -> dict[str, Any]:
        return start(GDN_CUTLASS_INCLUDE=installed).compile(code, uses_cutlass=True)

    versions = [tmp_path / "4.2", tmp_path / "4.3"]
    for version in versions:
        shutil.copytree(wheels["cutlass_include"], version)
    edit(versions[1] / "cutlass" / "detail" / "helper_macros.hpp", "// of 4.3\n")
    time.sleep(SETTLED)
    installed.symlink_to(versions[0])
    old = compile_it()
    assert compile_it()["origin"] == "disk"
    installed.unlink()
    shutil.copytree(versions[1], installed)
    new = compile_it()
    assert (new["origin"], new["code_key"]) == ("compiled", old["code_key"])
    shutil.rmtree(installed)
    for version, result in zip([*versions, versions[0]], [old, new, old], strict=True):
        installed.symlink_to(version)
        again = compile_it()
        assert (again["origin"], again["full_key"]) == ("disk", result["full_key"])
        installed.unlink()


def test_a_header_that_hides_another_recompiles(start: Start, tmp_path: Path, wheels: dict[str, Path]) -> None:
    cutlass = tmp_path / "cutlass"
    shutil.copytree(wheels["cutlass_include"], cutlass)
    code = kernel(before="#include <cutlass/cutlass.h>\n#include <cuda_fp16.h>\n")
    time.sleep(SETTLED)
    for text, origin in ((None, "compiled"), (None, "disk"), ("struct dim;\n", "compiled"), (None, "disk")):
        if text is not None:
            (cutlass / "cuda_fp16.h").write_text(text)
        else:
            (cutlass / "cuda_fp16.h").unlink(missing_ok=True)
        assert start(GDN_CUTLASS_INCLUDE=cutlass).compile(code, uses_cutlass=True)["origin"] == origin


def test_an_edited_cuda_header_changes_the_keys_of_kernels_that_include_it(
    start: Start, tmp_path: Path, wheels: dict[str, Path]
) -> None:
    home = copy_cuda_home(wheels, tmp_path / "cuda")
    code = kernel(before="#include <cuda_bf16.h>\n")

    def compile_both() -> list[dict[str, Any]]:
        child = start(GDN_CUDA_HOME=home)
        return [child.compile(code), child.compile(kernel())]

    compiled = compile_both()
    edit(home / "include" / "cuda_bf16.hpp", "// edited\n")
    edited = compile_both()
    assert [result["origin"] for result in edited] == ["compiled", "disk"]
    assert edited[0]["code_key"] == compiled[0]["code_key"]


def test_headers_that_nvcc_includes_by_itself_count(start: Start, tmp_path: Path, wheels: dict[str, Path]) -> None:
    home = copy_cuda_home(wheels, tmp_path / "cuda")
    compiler = home / "bin" / "nvcc"
    compiler.parent.mkdir()
    compiler.write_text(f'#!/bin/sh\nexec {nvcc()} "$@"\n')
    compiler.chmod(0o755)

    def compile_both() -> list[str]:
        by_nvcc = start(GDN_JIT_USE_NVCC="1", GDN_JIT_NVCC=compiler).compile(kernel())
        return [by_nvcc["origin"], start(GDN_CUDA_HOME=home).compile(kernel())["origin"]]

    assert compile_both() == ["compiled", "compiled"]
    assert compile_both() == ["disk", "disk"]
    edit(home / "include" / "driver_types.h", "// edited\n")
    assert compile_both() == ["compiled", "disk"]


def test_a_moved_environment_keeps_its_cache(start: Start, library: Path, tmp_path: Path, wheels: dict[str, Path]) -> None:
    code = kernel(before="#include <cuda_bf16.h>\n#include <cutlass/cutlass.h>\n")
    here = [start().compile(code, uses_cutlass=True), start().compile(kernel())]
    moved = tmp_path / "moved to here"
    copy_cuda_home(wheels, moved / "cuda")
    shutil.copytree(wheels["cutlass_include"], moved / "cutlass")
    child = start(hook=None, GDN_CUDA_HOME=moved / "cuda", GDN_CUTLASS_INCLUDE=moved / "cutlass")
    child.call("init", str(library), "")
    found = {finding["what"]: finding["found"] for finding in child.call("toolchain")["findings"]}
    assert all(str(path).startswith(str(tmp_path)) for what, path in found.items() if what != "nvcc"), found
    there = [child.compile(code, uses_cutlass=True), child.compile(kernel())]
    assert [result["origin"] for result in there] == ["disk", "disk"]
    assert [result["full_key"] for result in there] == [result["full_key"] for result in here]


def test_another_build_of_the_compiler_changes_the_key(start: Start, tmp_path: Path, wheels: dict[str, Path]) -> None:
    home = copy_cuda_home(wheels, tmp_path / "cuda")
    compiled = start(GDN_CUDA_HOME=home).compile(kernel())
    builtins = next((home / "lib").glob("libnvrtc-builtins.so.*"))
    content = bytearray(builtins.read_bytes())
    build_id = content.index(b"GNU\0", content.index(b"\x03\0\0\0GNU\0")) + 4
    content[build_id] ^= 1
    builtins.write_bytes(content)
    other = start(GDN_CUDA_HOME=home).compile(kernel())
    assert other["origin"] == "compiled"
    assert other["code_key"] == compiled["code_key"]
