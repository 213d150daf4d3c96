"""The same built library under a second torch: the operators' CPU tests in another interpreter, without rebuilding the library.

Only the small pybind11 module, which includes no torch header, is compiled again, because it belongs to one Python version.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

import gdn_cuda
from gdn_cuda import _C, runtime

ROOT = Path(__file__).resolve().parents[1]
SECOND = os.environ.get("GDN_TEST_SECOND_TORCH", "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not SECOND,
        reason="no second torch: GDN_TEST_SECOND_TORCH=make ./develop.sh test makes one, or set it to a python that has one",
    ),
]


def ask(code: str, **options: object) -> object:
    done = subprocess.run([SECOND, "-c", code], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This package, with the same libgdn_cuda.so, and _C compiled for the second interpreter."""
    folder = tmp_path_factory.mktemp("second")
    copy = folder / "gdn_cuda"
    copy.mkdir()
    for entry in Path(gdn_cuda.__file__).parent.iterdir():
        if not entry.name.startswith(("_C", "lib", "__pycache__")):
            (copy / entry.name).symlink_to(entry)
    library = runtime.library_path()
    assert library is not None
    (copy / "lib").symlink_to(library.parent)
    python_include, suffix = ask(
        "import json, sysconfig; print(json.dumps([sysconfig.get_path('include'), sysconfig.get_config_var('EXT_SUFFIX')]))"
    )
    includes = [
        python_include,
        pybind11_include(),
        *_C.toolchain()["include_dirs"],
        str(Path(torch.__file__).parent / "include"),
    ]
    subprocess.run(
        [
            os.environ.get("CXX", "g++"),
            *("-std=c++20", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-DFMT_HEADER_ONLY"),
            *(argument for include in includes for argument in ("-isystem", include)),
            *map(str, sorted((ROOT / "csrc").glob("python_*.cpp"))),
            *("-o", str(copy / f"_C{suffix}"), f"-L{library.parent}", "-lgdn_cuda", "-Wl,-rpath,$ORIGIN/lib"),
            "-Wl,--allow-shlib-undefined",
        ],
        check=True,
    )
    return folder


def pybind11_include() -> str:
    pybind11 = pytest.importorskip("pybind11")
    return str(pybind11.get_include())


def test_operators_on_the_second_torch(package: Path) -> None:
    other_torch, where = ask(
        "import json, torch, gdn_cuda; print(json.dumps([torch.__version__, gdn_cuda.__file__]))", cwd=package
    )
    assert Path(where).is_relative_to(package) or Path(where).resolve() == Path(gdn_cuda.__file__).resolve()
    assert other_torch != torch.__version__, "GDN_TEST_SECOND_TORCH has the torch that the suite runs under already"
    done = subprocess.run(
        [
            *(SECOND, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"),
            *(
                f"--rootdir={ROOT}",
                "-c",
                str(ROOT / "pyproject.toml"),
                *map(str, sorted((ROOT / "tests").glob("**/operators"))),
            ),
        ],
        cwd=package,
        env=os.environ | {"PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
    )
    print(done.stdout[-3000:])
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
