"""No circle of files or folders, in C++ includes and in Python imports: each layer knows only those below it."""

from __future__ import annotations

import re
from pathlib import Path

import include_graph as graphs
import pytest

ROOT = Path(__file__).resolve().parents[1]
CPP = ("csrc", "include")
PYTHON = ROOT / "gdn_cuda"


@pytest.fixture(scope="module")
def cpp() -> graphs.Graph:
    return graphs.cpp_files(ROOT, CPP)


@pytest.fixture(scope="module")
def python() -> graphs.Graph:
    return graphs.python_files(PYTHON)


def cpp_folder(path: str) -> str:
    """The folder of a file in the project's map. All folders of a family's kernels count as one; each of csrc's own files
    counts as a folder of its own, because the lists there are above the families that they list."""
    parts = Path(path).parts
    if parts[0] == "include":
        return "/".join(parts[:4]) if parts[2] == "kernels" else path
    return path if len(parts) == 2 else "/".join(parts[:3]) if parts[1] == "families" else "/".join(parts[:2])


def cpp_family(path: str) -> str:
    """The family of a file, with host code, kernels and public header together; the folder of a file that belongs to none.
    kernels/common is below the JIT, the host code of its one kernel above it."""
    found = re.match(r"csrc/families/(\w+)/|include/gdn_cuda/kernels/(\w+)/|include/gdn_cuda/(\w+)\.hpp$", path)
    name = next(filter(None, found.groups())) if found else ""
    return name if name and name != "common" and (ROOT / "csrc/families" / name).is_dir() else cpp_folder(path)


def python_folder(module: str) -> str:
    """The subpackage of a module. A module of the package itself is alone, and so is the package's __init__, which imports
    all."""
    parts = module.split(".")
    return ".".join(parts[:2]) if (PYTHON / parts[1] if len(parts) > 1 else PYTHON).is_dir() else module


def test_cpp_files_include_each_other_in_no_circle(cpp: graphs.Graph) -> None:
    assert len(cpp) > 300 and any(cpp.values())
    assert not graphs.circles(cpp)


def test_cpp_folders_include_each_other_in_no_circle(cpp: graphs.Graph) -> None:
    rooms = graphs.by_folder(cpp, cpp_folder)
    assert {"csrc/jit", "csrc/launch", "csrc/operators", "csrc/families/gdn", "include/gdn_cuda/kernels/common"} <= set(rooms)
    assert "csrc/jit" in rooms["csrc/launch"] and "csrc/launch" in rooms["csrc/families/gdn"]
    assert not graphs.circles(rooms), graphs.edges(rooms, cpp, cpp_folder)


def test_cpp_families_include_each_other_in_no_circle(cpp: graphs.Graph) -> None:
    """Host code that includes kernels of another family, and the reverse, is a circle of families but not of folders."""
    families = graphs.by_folder(cpp, cpp_family)
    assert {"conv", "gdn", "layers", "scan", "structured"} <= set(families) and {"conv", "gdn"} <= families["layers"]
    assert not graphs.circles(families), graphs.edges(families, cpp, cpp_family)


def test_common_code_includes_no_family(cpp: graphs.Graph) -> None:
    rooms = graphs.by_folder(cpp, cpp_folder)
    below = {"csrc/jit", "csrc/launch", "csrc/operators", "include/gdn_cuda/kernels/common"}
    for room in below:
        assert not {other for other in rooms[room] if "families/" in other or "/kernels/" in other} - below, room


def test_gdn_and_conv_do_not_include_each_other(cpp: graphs.Graph, python: graphs.Graph) -> None:
    """Code that uses both is in the family `layers`."""
    cpp_folders, python_folders = graphs.by_folder(cpp, cpp_folder), graphs.by_folder(python, python_folder)
    for one, other in (("gdn", "conv"), ("conv", "gdn")):
        assert f"csrc/families/{other}" not in cpp_folders[f"csrc/families/{one}"]
        assert f"include/gdn_cuda/kernels/{other}" not in cpp_folders[f"include/gdn_cuda/kernels/{one}"]
        assert f"gdn_cuda.{other}" not in python_folders[f"gdn_cuda.{one}"]
        assert f"gdn_cuda.{other}" in python_folders["gdn_cuda.layers"]
        assert f"csrc/families/{other}" in cpp_folders["csrc/families/layers"]


def test_python_modules_import_each_other_in_no_circle(python: graphs.Graph) -> None:
    assert len(python) > 100 and any(python.values())
    assert not graphs.circles(python)


def test_python_folders_import_each_other_in_no_circle(python: graphs.Graph) -> None:
    rooms = graphs.by_folder(python, python_folder)
    assert not graphs.circles(rooms), graphs.edges(rooms, python, python_folder)


# ---- The checks above can fail


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_circles_of_a_small_cpp_tree_are_found(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "csrc/launch/list.cpp": '#include "spec.hpp"\n#include "../families/a/a.hpp"\n',
            "csrc/launch/spec.hpp": "#include <vector>\n#include <kernels/a.cuh>\n",
            "csrc/families/a/a.hpp": '  #  include "../../launch/spec.hpp"\n// #include "../b/b.hpp"\n',
            "csrc/families/b/b.hpp": '#include "families/b/c.hpp"\n',
            "csrc/families/b/c.hpp": '#include "b.hpp"\n',
            "include/kernels/a.cuh": "",
        },
    )
    files = graphs.cpp_files(root, CPP)
    assert files["csrc/launch/spec.hpp"] == {"include/kernels/a.cuh"}
    assert files["csrc/families/a/a.hpp"] == {"csrc/launch/spec.hpp"}
    assert graphs.circles(files) == [["csrc/families/b/b.hpp", "csrc/families/b/c.hpp"]]
    rooms = graphs.by_folder(files, graphs.folder)
    assert graphs.circles(rooms) == [["csrc/families/a", "csrc/launch"]]
    assert graphs.edges(rooms, files, graphs.folder) == [
        "csrc/families/a/a.hpp -> csrc/launch/spec.hpp",
        "csrc/launch/list.cpp -> csrc/families/a/a.hpp",
    ]


def test_circles_of_a_small_python_tree_are_found(tmp_path: Path) -> None:
    package = write(
        tmp_path / "house",
        {
            "__init__.py": "from . import one\nfrom .two.deep import name\n",
            "one/__init__.py": "from .first import x\n",
            "one/first.py": "import typing\nfrom ..two import deep\n\n\ndef late() -> None:\n    from .second import y\n",
            "one/second.py": "try:\n    from .first import x\nexcept ImportError:\n    import house.one.third\n",
            "one/third.py": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from .second import y\n",
            "two/__init__.py": "",
            "two/deep.py": "class C:\n    from ..one.third import z\n",
            "two/me.py": "from . import other\n",
            "two/other.py": "from .me import name\n",
        },
    )
    files = graphs.python_files(package)
    assert files["house.one.first"] == {"house.two.deep"}
    assert files["house.one.second"] == {"house.one.first", "house.one.third"}
    assert files["house.one.third"] == {"house.one.second"}
    through_both = ["house.one.first", "house.one.second", "house.one.third", "house.two.deep"]
    assert graphs.circles(files) == [through_both, ["house.two.me", "house.two.other"]]
    rooms = graphs.by_folder(files, lambda module: ".".join(module.split(".")[:2]))
    assert graphs.circles(rooms) == [["house.one", "house.two"]]
