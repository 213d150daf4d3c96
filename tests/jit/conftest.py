"""Fixtures of the JIT's tests, built on jit_helpers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jit_helpers import Child, Gate, Start, copy_cuda_home, temporary_open_to_all


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The cache folder of the children; they make it."""
    return tmp_path / "cache"


@pytest.fixture
def start(tmp_path: Path, cache: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts children, with the cache `cache` by default; they end with the test."""
    children: list[Child] = []

    def start_one(
        *,
        hook: str | dict[str, str] | None = "wheels",
        user: int | None = None,
        before: str = "",
        folder: Path | None = None,
        package: Path | None = None,
        **variables: Any,
    ) -> Child:
        if user is not None and hook == "wheels":
            hook = request.getfixturevalue("toolchain_for_all")
        child = Child(folder or tmp_path / "run", {"GDN_JIT_CACHE_DIR": cache} | variables, hook, user, before, package)
        children.append(child)
        return child

    yield start_one
    for child in children:
        child.end()


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of headers and compilers of this environment, as children find them."""
    child = Child(tmp_path_factory.mktemp("wheels"), {})
    found = child.call("found_in_wheels")
    child.end()
    return {name: Path(path) for name, path in found.items()}


@pytest.fixture
def library(tmp_path: Path, wheels: dict[str, Path]) -> Path:
    """A copy of our header tree, to edit."""
    folder = tmp_path / "library"
    shutil.copytree(wheels["library_root"] / "gdn_cuda", folder / "gdn_cuda")
    return folder


@pytest.fixture(scope="session")
def toolchain_for_all(wheels: dict[str, Path]) -> Iterator[dict[str, str]]:
    """Copies that every user may read: the tree and its environment may be below a home that only its owner may enter."""
    folders = temporary_open_to_all()
    folder = next(folders)
    home = copy_cuda_home(wheels, folder / "cuda")
    shutil.copytree(wheels["library_root"] / "gdn_cuda", folder / "library" / "gdn_cuda")
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield {
        "library_root": str(folder / "library"),
        "cuda_include": str(home / "include"),
        "nvrtc": str(home / "lib" / wheels["nvrtc"].name),
    }
    next(folders, None)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path / "gate")
    yield made
    made.open()


open_folder = pytest.fixture(temporary_open_to_all)
