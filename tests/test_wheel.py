"""The compiled libraries of a wheel: exported symbols, RUNPATH, embedded paths, hardening.

The tests examine the libraries installed in this environment, because building a wheel takes minutes (`./develop.sh wheel`).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gdn_cuda import runtime

ROOT = Path(__file__).resolve().parents[1]
API = "\n".join(path.read_text() for path in (ROOT / "include" / "gdn_cuda").glob("*.hpp"))
VISIBLE = re.compile(r"^#pragma GCC visibility push\(default\)(.*?)^#pragma GCC visibility pop", re.MULTILINE | re.DOTALL)
FOR_PYTHON = {  # and the runtime, gdn_cuda::jit
    f"gdn_cuda::{name}"
    for folder in (ROOT / "csrc", ROOT / "csrc/launch", ROOT / "csrc/operators")
    for header in folder.glob("*.hpp")
    for block in VISIBLE.findall(header.read_text())
    for name in re.findall(r"^(?:class (?=\w+ {)|[\w:<>&*, ]+[ &*](?=\w+\())(\w+)", block, re.MULTILINE)
}

pytestmark = pytest.mark.skipif(not shutil.which("readelf") or not shutil.which("nm"), reason="binutils is not installed")


def libraries() -> dict[str, Path]:
    core, extension = runtime.library_path(), importlib.util.find_spec("gdn_cuda._C")
    assert core is not None and extension is not None and extension.origin is not None
    return {"libgdn_cuda": core, "_C": Path(extension.origin)}


LIBRARIES = libraries()
every_library = pytest.mark.parametrize("library", LIBRARIES.values(), ids=LIBRARIES.keys())


def output(*command: object) -> str:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout


def runpath(library: Path) -> list[str]:
    (found,) = re.findall(r"\(RUNPATH\).*\[(.*)\]", output("readelf", "-dW", library))
    return found.split(":")


def undefined(library: Path) -> set[str]:
    return {line.split()[-1].partition("@")[0] for line in output("nm", "-D", "--undefined-only", library).splitlines()}


def exported(library: Path) -> set[str]:
    """Names of exported symbols, without parameters."""
    lines = output("nm", "-DC", "--defined-only", library).splitlines()
    return {re.sub(r"\[abi:\w+\]|\(.*|^(typeinfo|vtable)( name)? for ", "", line.split(maxsplit=2)[2]) for line in lines}


@every_library
def test_runpath_has_no_empty_or_relative_folder(library: Path) -> None:
    """An empty entry means the current folder, from which any library would be loaded."""
    for place in runpath(library):
        assert place.startswith(("$ORIGIN/", "/")), runpath(library)


def test_the_folders_in_runpath_hold_the_needed_libraries() -> None:
    for name, needed in (("libgdn_cuda", "libtorch_cpu.so"), ("_C", "libgdn_cuda.so")):
        (place,) = runpath(LIBRARIES[name])
        assert Path(place.replace("$ORIGIN", str(LIBRARIES[name].resolve().parent)), needed).is_file()


@every_library
def test_the_libraries_are_hardened(library: Path) -> None:
    dynamic, segments = output("readelf", "-dW", library), output("readelf", "-lW", library)
    assert re.search(r"\(FLAGS\).*BIND_NOW", dynamic)
    assert "TEXTREL" not in dynamic
    assert "GNU_RELRO" in segments
    assert re.search(r"GNU_STACK( +0x0+){5} +RW ", segments), "the stack is not executable"
    assert "__stack_chk_fail" in undefined(library)


def test_copies_into_buffers_use_fortified_functions() -> None:
    assert {name for name in undefined(LIBRARIES["libgdn_cuda"]) if re.fullmatch(r"__\w+_chk", name)}


@every_library
def test_the_libraries_contain_no_path_of_the_build_machine(library: Path) -> None:
    content = library.read_bytes().replace(":".join(runpath(library)).encode(), b"")
    assert os.fsencode(ROOT) not in content
    assert os.fsencode(Path.home()) + b"/" not in content


def test_the_library_exports_only_the_cpp_api_and_the_runtime() -> None:
    names = exported(LIBRARIES["libgdn_cuda"])
    declared = {f"gdn_cuda::{a or b}" for a, b in re.findall(r"^(?:\w[\w:<>, ]* (\w+)\(|class (\w+) {)", API, re.MULTILINE)}
    assert {"gdn_cuda::init", "gdn_cuda::fused_decode", "gdn_cuda::toeplitz_solve_ex"} <= declared
    without_methods = {re.sub(r"^(gdn_cuda::[A-Z]\w*)::~?\w+$", r"\1", name) for name in names}
    assert {name for name in without_methods if not name.startswith("gdn_cuda::jit::")} == declared | FOR_PYTHON


def test_the_extension_exports_only_its_init_function() -> None:
    names = exported(LIBRARIES["_C"])
    assert "PyInit__C" in names
    assert not {name for name in names if "gdn_cuda" in name}
