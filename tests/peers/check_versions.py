"""Compares releases of the libraries that gdn_cuda replaces functions of with the parameters that were verified.

    python tests/peers/check_versions.py                 # the newest release of each
    python tests/peers/check_versions.py vllm==0.33.0    # these
    python tests/peers/check_versions.py --downloads FOLDER    # keeps downloads there, and reuses them

pip downloads them (vLLM: 340 MB), without dependencies; their source is read, and nothing is imported. The exit code is 1 if
parameters differ, or if the source does not show them. The rows are those of docs/integrations.md. Add a release without
differences to VERSIONS of the module that is named, as "compared" until the integration's tests have run with it.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pack import files_of

import gdn_cuda
from gdn_cuda.hosts import source, verified

# For the setup.py of a library without wheels, which pip runs at a download: it imports these, and would look for nvcc.
_SETUP_NEEDS = ("setuptools", "wheel", "packaging", "ninja")
_SETUP = {"MAMBA_SKIP_CUDA_BUILD": "TRUE", "CAUSAL_CONV1D_SKIP_CUDA_BUILD": "TRUE"}


def modules() -> dict[str, Any]:
    """Our modules that replace functions, by package."""
    integrations = [getattr(gdn_cuda.integrations, name) for name in gdn_cuda.integrations.NAMES]
    compat = [getattr(gdn_cuda.compat, name) for name in gdn_cuda.compat.INSTALLS]
    return {each.HOST.package: each for each in (*integrations, *compat)}


def _pip(*arguments: str | Path, **variables: str) -> str:
    """Runs pip; returns its errors, or ""."""
    command = [sys.executable, "-m", "pip", *map(str, arguments), "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
    return done.stderr if done.returncode else ""


def download(requirement: str, folder: Path) -> Path:
    """The wheel, or the sdist of a release without one. Raises SystemExit with pip's words."""
    package, _, version = requirement.partition("==")
    if version and (found := _downloaded(package, version, folder)):
        return found
    with tempfile.TemporaryDirectory(dir=folder) as made:
        to = Path(made)
        options = ("download", "--no-deps", "--dest", to / "release", requirement)
        if errors := _pip(*options, "--only-binary", ":all:"):
            _pip("install", "--no-deps", "--target", to / "needs", *_SETUP_NEEDS)
            path = os.pathsep.join([str(to / "needs"), os.environ.get("PYTHONPATH", "")])
            errors = _pip(*options, "--no-binary", ":all:", "--no-build-isolation", PYTHONPATH=path, **_SETUP)
        if errors:
            raise SystemExit(f"check_versions.py: {requirement}: pip finds no such release, or cannot read it:\n{errors}")
        (found,) = (to / "release").iterdir()
        return found.rename(folder / found.name)


def _downloaded(package: str, version: str, folder: Path) -> Path | None:
    return next((file for file in folder.iterdir() if release_of(file) == (_normalized(package), version)), None)


def release_of(file: Path) -> tuple[str, str]:
    """The package and the version in the name of a wheel or sdist."""
    stem = file.name.removesuffix(".tar.gz").removesuffix(".zip")
    package, _, rest = stem.partition("-")
    return _normalized(package), rest.split("-")[0]


def _normalized(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def source_of(host: verified.Host, file: Path) -> source.Source:
    files: dict[str, Callable[[], bytes]] = files_of(file)

    @functools.cache
    def find(path: str) -> source.Module | None:
        return source.read(files[path](), path.endswith("/__init__.py")) if path in files else None

    return source.Source(host.module, find)


def differences(host: verified.Host, files: source.Source) -> list[str]:
    """A sentence for each target whose parameters differ from the verified ones, or cannot be read."""
    found = []
    for target, expected in host.targets.items():
        optional = target in host.optional
        if difference := verified.source_difference(files, target, expected, optional):
            found.append(difference)
            continue
        try:
            parameters, unreadable = files.parameters(target)
        except source.Missing:
            continue  # it is optional
        except source.Unreadable as error:
            parameters, unreadable = frozenset(), str(error)
        if expected not in parameters:
            found.append(f"{target}: expected ({expected}), and its source does not tell: {unreadable}")
    return found


def main(arguments: list[str] | None = None) -> int:
    known = modules()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("requirements", nargs="*", default=[*known], help=f"{', '.join(known)}, each with ==VERSION or without")
    parser.add_argument("--downloads", type=Path, help="a folder that keeps them (default: a temporary one)")
    given = parser.parse_args(arguments)
    for requirement in given.requirements:
        if requirement.partition("==")[0] not in known:
            parser.error(f"expected {', '.join(known)}, each with ==VERSION or without, got {requirement}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.downloads or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        print("| library | release | functions replaced | parameters | run |\n| --- | --- | --- | --- | --- |", flush=True)
        return max(
            [
                _report(known[requirement.partition("==")[0]], download(requirement, folder))
                for requirement in given.requirements
            ]
        )


def _report(module: Any, file: Path) -> int:
    host, version = module.HOST, release_of(file)[1]
    found = differences(host, source_of(host, file))
    how = host.versions.get(version)
    same = f"{len(found)} differ" if found else "the same"
    print(f"| {host.package} | {version} | {len(host.targets)} | {same} | {'yes' if how == 'run' else 'no'} |", flush=True)
    for each in found:
        print(f"  {each}", flush=True)
    if not found and how is None:
        print(f'  {module.__name__}.VERSIONS lacks "{version}": "compared"', flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
