"""./develop.sh hub: Hugging Face's package `kernels` loads the repository that tools/hub.py makes, with and without an
installed gdn_cuda."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from hub_repository import ROOT, files, make, run, tool, variant, wheel

import gdn_cuda

kernels = pytest.importorskip("kernels", reason="needs the package kernels: pip install -r requirements-dev.txt")
ARCH = "sm_90a"

PREBUILT = """
def origins(package):
    results = [each for kernel in ("gating", "toeplitz_sums") for each in package.compile(kernel=kernel, arch="sm_90a")]
    return sorted({each.origin for each in results})
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("hub"), ARCH)


@pytest.fixture
def unused(repository: Path, tmp_path: Path) -> Path:
    """An unchanged copy: imports by other tests leave bytecode in the shared repository."""
    return shutil.copytree(repository, tmp_path / "unused", ignore=shutil.ignore_patterns("__pycache__"))


def other_version(repository: Path, folder: Path) -> Path:
    copy = folder / "other"
    shutil.copytree(repository, copy)
    file = variant(copy) / "__init__.py"
    file.write_text(file.read_text().replace(f'"{gdn_cuda.__version__}"', '"99.0.0"'))
    return copy


def test_a_repository_runs_without_an_installed_package(repository: Path, tmp_path: Path) -> None:
    """It uses its own kernels, and none of its modules imports the name gdn_cuda."""
    code = """
hide_the_installed_package()
hub = get_local_kernel(Path(sys.argv[1]))
run_operators(hub)
x, heads = torch.randn(2, 1, 8).bfloat16(), torch.randn(8)
steps = hub.explain(hub.fused_gdn_gating, a=x, b=x, A_log=heads, dt_bias=heads)
points = torch.randn(3, dtype=torch.double, requires_grad=True)
hub.cauchy_kernel(points, points.detach() + 5, points.detach()).sum().backward()
for name in ("integrations.flashinfer", "integrations.fla_modules", "gdn.examples", "gdn.sanitize", "structured.sanitize"):
    importlib.import_module(f".{name}", hub.__name__)
answer(name=hub.__name__, origins=origins(hub), steps=str(steps), libraries=libraries(), file=hub.__file__,
       public=sorted(hub.__all__), grad=points.grad is not None)
"""
    seen = run(PREBUILT + code, tmp_path, repository)
    folder = variant(repository)
    assert re.fullmatch(r"_gdn_cuda_cuda_[0-9a-f]{10}", seen["name"])
    assert seen["file"] == str(folder / "__init__.py")
    assert seen["libraries"] == [str(folder / "lib" / "libgdn_cuda.so")]
    assert seen["origins"] == ["prebuilt"]
    assert "layers/gating" in seen["steps"]
    assert seen["grad"] and seen["public"] == sorted(gdn_cuda.__all__)
    assert seen["messages"] == ""


def test_get_kernel_loads_what_the_hub_has_cached(repository: Path, tmp_path: Path) -> None:
    """In the Hub's cache every file is a link to a file of another name, with the permissions of the user's umask."""
    commit = "0123456789" * 4
    cached = tmp_path / "kernels" / "kernels--OWNER--gdn_cuda"
    snapshot = cached / "snapshots" / commit
    shutil.copytree(repository, snapshot)
    (cached / "blobs").mkdir()
    for number, path in enumerate(sorted(path for path in snapshot.rglob("*") if path.is_file())):
        blob = path.rename(cached / "blobs" / f"{number:064}")
        blob.chmod(0o664)
        path.symlink_to(os.path.relpath(blob, path.parent))
    for path in snapshot.rglob("*"):
        if path.is_dir():
            path.chmod(0o775)
    (cached / "refs").mkdir()
    (cached / "refs" / f"v{gdn_cuda.__version__.partition('.')[0]}").write_text(commit)
    code = """
hide_the_installed_package()
hub = get_kernel("OWNER/gdn_cuda", version=int(sys.argv[1]), trust_remote_code=True)
run_operators(hub)
answer(origins=origins(hub), folders=hub._C.prebuilt_folders(), libraries=libraries())
"""
    version = gdn_cuda.__version__.partition(".")[0]
    seen = run(PREBUILT + code, tmp_path, version, KERNELS_CACHE=str(tmp_path / "kernels"))
    assert seen["origins"] == ["prebuilt"]
    folder = variant(snapshot) / "lib" / "prebuilt"
    assert seen["folders"] == [{"path": str(folder), "refusal": ""}]
    assert seen["messages"] == ""


@pytest.mark.parametrize("first", ["installed", "repository"])
def test_a_second_copy_in_a_process_is_the_first_one(repository: Path, tmp_path: Path, first: str) -> None:
    code = """
order = [lambda: importlib.import_module("gdn_cuda"), lambda: get_local_kernel(Path(sys.argv[1]))]
installed, hub = (order[0](), order[1]()) if sys.argv[2] == "installed" else (order[1](), order[0]())[::-1]
assert installed is not hub and installed.__name__ != hub.__name__
import gdn_cuda.nn.s4
from gdn_cuda.compat import hotdog
for package in (installed, hub):
    run_operators(package)
    assert package.compile is installed.compile
    assert all(getattr(package, name) == getattr(installed, name) for name in installed.__all__)
    for name in (".nn.s4", ".compat.hotdog", "._C", ".runtime", ".operators.registration"):
        assert importlib.import_module(name, package.__name__) is importlib.import_module(name, "gdn_cuda"), name
assert hub.nn.S4Kernel is gdn_cuda.nn.s4.S4Kernel
for package in (installed, hub):
    try:
        importlib.import_module(".nothing", package.__name__)
    except ModuleNotFoundError as error:
        assert package.__name__ + ".nothing" in str(error)
assert not hasattr(hub, "nothing")
answer(libraries=libraries(), origins=origins(hub) if sys.argv[2] == "repository" else None)
"""
    seen = run(PREBUILT + code, tmp_path, repository, first)
    [library] = seen["libraries"]
    assert library.startswith(str(repository)) == (first == "repository")
    assert seen["origins"] == (["prebuilt"] if first == "repository" else None)


@pytest.mark.parametrize("first", ["installed", "repository"])
def test_a_second_copy_of_another_version_is_refused(repository: Path, tmp_path: Path, first: str) -> None:
    code = """
order = [lambda: importlib.import_module("gdn_cuda"), lambda: get_local_kernel(Path(sys.argv[1]))]
if sys.argv[2] == "repository":
    order.reverse()
package = order[0]()
errors = []
for _ in range(2):
    try:
        order[1]()
    except ImportError as error:
        errors.append(str(error))
run_operators(package)
answer(errors=errors, libraries=len(libraries()))
"""
    other = other_version(repository, tmp_path)
    folders = {"installed": Path(gdn_cuda.__path__[0]), "repository": variant(other)}
    versions = {"installed": gdn_cuda.__version__, "repository": "99.0.0"}
    [second] = folders.keys() - {first}
    seen = run(code, tmp_path, other, first)
    expected = (
        f"gdn_cuda: {folders[second]}: expected version {versions[first]}, as {folders[first]} was imported before and a "
        f"process can register the operators only once, got {versions[second]}"
    )
    assert seen["errors"] == [expected] * 2
    assert seen["libraries"] == 1


def test_operators_that_another_library_registered_are_refused(repository: Path, tmp_path: Path) -> None:
    code = """
torch.ops.load_library(sys.argv[1])
try:
    import gdn_cuda
except ImportError as error:
    answer(error=str(error), libraries=libraries())
"""
    library = variant(repository) / "lib" / "libgdn_cuda.so"
    seen = run(code, tmp_path, library)
    assert "expected a process that has not its operators yet, got one in which another libgdn_cuda.so" in seen["error"]
    assert seen["libraries"] == [str(library)]
    assert seen["messages"] == ""


def test_a_repository_for_other_pythons_says_which(repository: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(repository, copy)
    [extension] = variant(copy).glob("_C.*.so")
    extension.rename(extension.with_name("_C.cpython-39-x86_64-linux-gnu.so"))
    code = """
hide_the_installed_package()
try:
    get_local_kernel(Path(sys.argv[1]))
except ImportError as error:
    answer(error=str(error))
"""
    error = run(code, tmp_path, copy)["error"]
    assert f"expected a _C for {sys.implementation.cache_tag}, got cpython-39-x86_64-linux-gnu." in error


def test_the_metadata_has_the_form_that_kernels_reads(unused: Path) -> None:
    from kernels._rust import Digest, DigestAlgorithm, Metadata
    from kernels.archs import _supports_cuda_capability
    from kernels.variants import parse_variant

    folder = variant(unused)
    parsed = parse_variant(folder.name)
    assert parsed.variant_str == folder.name
    assert re.fullmatch(r"torch-stable-abi210-cu\d+-x86_64-linux", folder.name)
    assert "TORCH_TARGET_VERSION=0x020a" in (ROOT / "cmake" / "GdnLibrary.cmake").read_text()  # 2.10
    read = Metadata.read_from_file(folder / "metadata.json")
    assert (str(read.name), read.name.python_name, read.version) == ("gdn-cuda", "gdn_cuda", 0)
    assert read.id.isidentifier() and read.python_depends == [] and read.license == "unknown"
    assert read.digest is not None
    read.digest.validate(Digest.hash_variant(DigestAlgorithm.SHA256, folder))
    supported = {each: _supports_cuda_capability(read.backend.archs, each) for each in [(7, 5), (8, 0), (9, 0), (12, 0)]}
    assert supported == {(7, 5): False, (8, 0): True, (9, 0): True, (12, 0): True}


def test_other_contents_have_another_name(unused: Path) -> None:
    hub = tool()
    folder = variant(unused)
    read = json.loads((folder / "metadata.json").read_text())
    assert hub.metadata(gdn_cuda, folder, [ARCH]) == read
    edited = folder / "edited.py"
    edited.write_text("")
    assert hub.metadata(gdn_cuda, folder, [ARCH])["id"] != read["id"]


def test_wheels_for_several_pythons_become_one_repository(tmp_path: Path) -> None:
    hub = tool()
    content = files()
    [extension] = [name for name in content if name.startswith("gdn_cuda/_C.") and name.endswith(".so")]
    other = {name: data for name, data in content.items() if name != extension}
    other |= {"gdn_cuda/_C.cpython-39-x86_64-linux-gnu.so": b"other", "gdn_cuda/lib/libgdn_cuda.so": b"other"}
    first, second = wheel(tmp_path, content=content), wheel(tmp_path, "cp39", other)
    merged = hub.merged([first, second])
    assert merged["_C.cpython-39-x86_64-linux-gnu.so"] == b"other"
    assert merged["lib/libgdn_cuda.so"] == content["gdn_cuda/lib/libgdn_cuda.so"]
    assert merged.keys() == {name.removeprefix("gdn_cuda/") for name in content} | {"_C.cpython-39-x86_64-linux-gnu.so"}

    with pytest.raises(SystemExit, match=r"expected a wheel for another Python than the other wheels', got _C\."):
        hub.merged([first, wheel(tmp_path, "cp40", content)])
    for changed in ("gdn_cuda/runtime.py", "gdn_cuda/include/gdn_cuda/api.hpp"):
        with pytest.raises(SystemExit, match=rf"{changed.removeprefix('gdn_cuda/')}: expected the file of {first}"):
            hub.merged([first, wheel(tmp_path, "cp41", other | {changed: b"edited"})])
    with pytest.raises(SystemExit, match=r"surplus\.py: expected the file of"):
        hub.merged([first, wheel(tmp_path, "cp42", other | {"gdn_cuda/surplus.py": b""})])
    with pytest.raises(SystemExit, match=r"expected a wheel of gdn_cuda alone, got gdn_cuda\.libs/libother\.so"):
        hub.merged([wheel(tmp_path, "cp43", other | {"gdn_cuda.libs/libother.so": b""})])
