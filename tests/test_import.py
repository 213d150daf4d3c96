"""Importing is quick and touches neither CUDA nor a compiler."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import processes
import pytest

import gdn_cuda

PROBE = """
import json, sys, time
import torch
before = {"modules": set(sys.modules), "mapped": open("/proc/self/maps").read()}
torch_seconds = time.process_time()
start = time.process_time()
import gdn_cuda
seconds = time.process_time() - start
mapped = open("/proc/self/maps").read()
print(json.dumps({
    "share": seconds / torch_seconds,
    "libraries": [name for name in ("libcuda.so", "libnvrtc") if name in mapped and name not in before["mapped"]],
    "modules": [name for name in ("rich", "cuda.pathfinder", "cutlass_library", "matplotlib", "concurrent.futures.thread")
                if name in sys.modules and name not in before["modules"]],
    "initialized": torch.cuda.is_initialized(),
}))
"""


@functools.cache
def probe(attempt: int = 1) -> dict[str, object]:
    return json.loads(subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True).stdout)


def test_importing_the_package_after_torch_is_fast() -> None:
    """It takes a quarter of a second on a slow core, on which torch takes two; most of it registers operators with torch."""
    assert any(probe(attempt)["share"] < 0.5 for attempt in (1, 2, 3))


def test_import_touches_neither_cuda_nor_a_compiler() -> None:
    seen = probe()
    assert seen["initialized"] is False
    assert seen["modules"] == []
    assert seen["libraries"] == []  # some torch builds load NVRTC themselves


def test_modules_of_the_package_import_each_other_by_relative_names() -> None:
    """A kernel repository is imported under its own name, with or without an installed package."""
    package = Path(gdn_cuda.__file__).parent
    absolute = []
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            absolute += [f"{path}:{node.lineno}" for name in names if name.partition(".")[0] == "gdn_cuda"]
    assert not absolute


def import_uncompiled(folder: Path, *later: Path, built: str = "") -> str:
    """The error of importing a copy without libraries in `folder`, followed on the path by the folders `later`; `built`: the
    name of a _C that it has."""
    package = Path(gdn_cuda.__file__).parent
    shutil.copytree(package, folder / "gdn_cuda", ignore=shutil.ignore_patterns("*.so", "lib", "__pycache__"))
    if built:
        (folder / "gdn_cuda" / "lib").mkdir()
        (folder / "gdn_cuda" / "lib" / "libgdn_cuda.so").touch()
        (folder / "gdn_cuda" / built).touch()
    # -S -E and an explicit path keep the installed package out, torch's own folder in.
    torch_folder = Path(importlib.util.find_spec("torch").origin).parents[1]
    path = [str(each) for each in (*later, torch_folder)]
    code = f"import sys; sys.path[:0] = [{str(folder)!r}]; sys.path += {path!r}; import gdn_cuda"
    done = subprocess.run([sys.executable, "-S", "-E", "-c", code], capture_output=True, text=True, cwd=folder)
    assert done.returncode != 0
    return done.stderr


def test_an_import_without_the_compiled_library_says_how_to_build_it(tmp_path: Path) -> None:
    error = import_uncompiled(tmp_path / "tree")
    assert "ImportError: gdn_cuda: the compiled library is not built" in error
    assert "./develop.sh" in error


def test_a_tree_that_was_built_for_another_python_says_so(tmp_path: Path) -> None:
    error = import_uncompiled(tmp_path / "tree", built="_C.cpython-27-x86_64-linux-gnu.so")
    assert f"built for another Python: expected a _C for {sys.implementation.cache_tag}, got cpython-27-x86_64" in error
    assert f"PYTHON={sys.executable} ./develop.sh" in error


def test_a_source_tree_that_hides_an_installed_package_says_so(tmp_path: Path) -> None:
    """`pip install .` and then Python in the same folder."""
    installed = tmp_path / "site" / "gdn_cuda"
    installed.mkdir(parents=True)
    (installed / "__init__.py").touch()
    error = import_uncompiled(tmp_path / "tree", tmp_path / "site")
    assert f"This is the source tree, which hides {installed}: start Python in another folder" in error


SECOND_IMPORT = """
import sys
import gdn_cuda
for name in [name for name in sys.modules if name.partition(".")[0] == "gdn_cuda"]:
    del sys.modules[name]
try:
    import gdn_cuda
except ImportError as error:
    print(error)
"""


def test_a_second_import_says_what_is_wrong() -> None:
    done = processes.run("-c", SECOND_IMPORT)
    assert done.stdout.startswith("gdn_cuda: expected to be imported once in a process, got a second import")
    assert "libgdn_cuda.so. Leave its modules in sys.modules" in done.stdout, done.stderr


@pytest.mark.parametrize("again", ["importlib.reload(gdn_cuda)", "del sys.modules['gdn_cuda']; import gdn_cuda"])
def test_the_package_alone_can_be_imported_again(again: str) -> None:
    done = processes.run("-c", f"import importlib, sys, gdn_cuda; {again}; print(gdn_cuda.__version__)")
    assert done.stdout == f"{gdn_cuda.__version__}\n", done.stderr


SUBINTERPRETER = '''
import importlib
for name, options in (("_interpreters", ["legacy"]), ("_xxsubinterpreters", [])):
    try:
        interpreters = importlib.import_module(name)
        break
    except ImportError:
        pass
code = """
try:
    import gdn_cuda
except ImportError as error:
    print(error, flush=True)
"""
interpreters.run_string(interpreters.create(*options), code)
'''


def test_an_import_in_a_subinterpreter_says_what_is_wrong() -> None:
    done = subprocess.run([sys.executable, "-c", SUBINTERPRETER], capture_output=True, text=True)
    assert done.stdout == (
        "gdn_cuda: expected Python's main interpreter, got a subinterpreter; import it there, or in a process\n"
    ), done.stderr
