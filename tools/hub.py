"""Makes a kernel repository for the Hugging Face Hub, in the layout that kernels.get_kernel loads, from wheels of gdn_cuda:

    python tools/hub.py --out build/hub dist/gdn_cuda-0.1.0-*.whl    # ./develop.sh hub does this, after making the wheel

The wheels have the same version, one for each Python; only their libraries may differ. --arch names the architectures whose
kernels are compiled into the repository; those in the cache are taken from there. docs/hub.md says how it is published.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import importlib.util
import json
import platform
import re
import shutil
import sys
import zipfile
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

PACKAGE = "gdn_cuda"
STABLE_ABI = "210"  # TORCH_TARGET_VERSION in cmake/GdnLibrary.cmake
ROOT = Path(__file__).resolve().parents[1]


def contents(wheel: Path) -> dict[str, bytes]:
    """The files of the package, by their names below it."""
    found = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            top, *below = PurePosixPath(name).parts
            if top == PACKAGE and below and not name.endswith("/"):
                found["/".join(below)] = archive.read(name)
            elif top != PACKAGE and not top.endswith(".dist-info"):
                raise SystemExit(f"{wheel}: expected a wheel of {PACKAGE} alone, got {name}")
    return found


def merged(wheels: list[Path]) -> dict[str, bytes]:
    """The files of all wheels. libgdn_cuda.so is the first one's, as it does not depend on Python."""
    first = contents(wheels[0])
    result = dict(first)
    for wheel in wheels[1:]:
        other = contents(wheel)
        for name in sorted(first.keys() | other.keys()):
            if not name.endswith(".so") and first.get(name) != other.get(name):
                raise SystemExit(f"{wheel}: {name}: expected the file of {wheels[0]}: make both wheels from the same sources")
        extensions = {name: content for name, content in other.items() if re.fullmatch(r"_C\..*\.so", name)}
        if twice := extensions.keys() & result.keys():
            raise SystemExit(f"{wheel}: expected a wheel for another Python than the other wheels', got {', '.join(twice)}")
        result |= extensions
    return result


def load(folder: Path) -> ModuleType:
    """The package in `folder`, under a name of its own, as `kernels` imports it."""
    spec = importlib.util.spec_from_file_location("_gdn_cuda_of_the_repository", folder / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def digests(folder: Path) -> dict[str, str]:
    """Digests by file, without metadata.json, which contains them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / "metadata.json")
    return {
        path.relative_to(folder).as_posix(): base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()
        for path in files
    }


def metadata(package: ModuleType, folder: Path, arches: list[str]) -> dict[str, Any]:
    files = digests(folder)
    unique = hashlib.sha256(json.dumps(files).encode()).hexdigest()[:10]
    lowest = min(entry["min_capability"] for entry in package._C.kernels())
    licence = re.search(r'^license = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    return {
        "name": PACKAGE.replace("_", "-"),
        "id": f"_{PACKAGE}_cuda_{unique}",
        "version": int(package.__version__.partition(".")[0]),
        "license": licence[1] if licence else "unknown",  # the field is required; this is the Hub's word for it
        "python-depends": [],
        # Where no kernels were compiled for a device, they are compiled at first use, as PTX would be.
        "backend": {
            "type": "cuda",
            "archs": [f"{lowest // 10}.{lowest % 10}+PTX", *(re.sub(r"sm_(\d+)(\d)", r"\1.\2", arch) for arch in arches)],
        },
        "digest": {"algorithm": "sha256", "files": files},
    }


def make(wheels: list[Path], out: Path, arches: list[str], kernels: list[str] | None = None) -> Path:
    """Returns the folder of the build variant, which was emptied first."""
    import torch

    cuda = str(torch.version.cuda).replace(".", "")
    folder = out / "build" / f"torch-stable-abi{STABLE_ABI}-cu{cuda}-{platform.machine()}-{platform.system().lower()}"
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in merged(wheels).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    sys.dont_write_bytecode = True
    package = load(folder)
    for kernel in kernels or [None]:
        package.compile(
            kernel=kernel,
            arch=arches,
            out=folder / "lib" / "prebuilt",
            progress=lambda done, total, result: print(f"[{done}/{total}] {result.kernel} for {result.arch}: {result.origin}"),
        )
    (folder / "metadata.json").write_text(json.dumps(metadata(package, folder, arches), indent=1) + "\n")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("wheels", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "hub")
    parser.add_argument("--arch", action="append", help="default: sm_90a; may be repeated")
    parser.add_argument("--kernel", action="append", help="compile this kernel only; may be repeated")
    given = parser.parse_args()
    folder = make(given.wheels, given.out, given.arch or ["sm_90a"], given.kernel)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    pythons = sorted(path.name.split(".")[1] for path in folder.glob("_C.*.so"))
    entries = len(list((folder / "lib" / "prebuilt").iterdir()))
    print(f"{folder}: {size / 2**20:.0f} MiB, {entries} compiled kernels, for {', '.join(pythons)}")


if __name__ == "__main__":
    main()
