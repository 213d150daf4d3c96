"""Finds kernel headers, CUDA headers and compilers in wheels, conda environments and toolkits.

cuda.pathfinder is imported only if the wheels beside torch lack something. The core caches the answer on disk, until
`search_inputs()` changes.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent.resolve()  # in download caches __file__ itself is a link into a folder of contents

logger = logging.getLogger("gdn_cuda")


def find_paths() -> dict[str, str]:
    """The path hook. The core prefers the arguments of init() and environment variables.

    The core itself looks for nvcc beside these paths: pathfinder would search all of site-packages, which takes too long.
    """
    beside = _wheels_beside_torch()
    found: dict[str, Path | None] = {
        "library_root": library_root(),
        "cutlass_include": _cutlass_include(),
        "cuda_include": _holding(beside.get("cuda_include"), "cuda_bf16.h") or _headers("cudart"),
        "cccl_include": _holding(beside.get("cccl_include"), "cuda/std") or _headers("cccl"),
        "nvrtc": _nvrtc_in(beside.get("nvrtc")) or _nvrtc(),
    }
    return {name: str(path) for name, path in found.items() if path is not None}


def search_inputs() -> tuple[str, list[str]]:
    """The inputs of `find_paths`: a text of settings, and the folders whose changes may change its answer."""
    torch: Any = sys.modules.get("torch")
    variables = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "LD_LIBRARY_PATH")]
    # Only entries of sys.path with relevant packages, so that a script in another folder uses the same answer.
    entries = [Path(entry).absolute() for entry in sys.path if isinstance(entry, str)]  # an importer skips others too
    roots = [entry for entry in entries if any(_exists(entry / name) for name in _WANTED)]
    settings = [PACKAGE, sys.prefix, torch and torch.__file__, torch and torch.version.cuda, *variables, *roots]
    folders = [PACKAGE, PACKAGE.parent, Path("/usr/local"), Path("/usr/local/cuda"), *map(Path, filter(None, variables[:3]))]
    folders += [*roots, *(root / "nvidia" for root in roots), *_wheels_beside_torch().values()]
    return "\n".join(map(str, settings)), [str(folder) for folder in folders]


_WANTED = ("cutlass_library", "nvidia", "cuda")  # top-level packages: CUTLASS, CUDA's wheels, cuda-pathfinder


def _exists(path: Path) -> bool:
    """Whether the path exists; False if this user may not read it, as importers skip it too."""
    try:
        return path.exists()
    except (OSError, ValueError):  # a null character is a ValueError
        return False


def _wheels_beside_torch() -> dict[str, Path]:
    """Folders of the CUDA wheels that this torch was installed with, even if wheels of another CUDA are installed too.

    This avoids the import of pathfinder, 15 of the 20 ms of a first call.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.version.cuda:
        return {}
    wheels = Path(torch.__file__).parents[1] / "nvidia"
    major = torch.version.cuda.partition(".")[0]
    if major == "12":
        names = {"cuda_include": "cuda_runtime/include", "cccl_include": "cuda_cccl/include", "nvrtc": "cuda_nvrtc/lib"}
    else:
        names = {"cuda_include": f"cu{major}/include", "cccl_include": f"cu{major}/include/cccl", "nvrtc": f"cu{major}/lib"}
    return {name: wheels / below for name, below in names.items()}


def _holding(folder: Path | None, marker: str) -> Path | None:
    return folder if folder and _may_exist(folder / marker) else None


def _may_exist(path: Path) -> bool:
    """Whether the path may exist. True for an unreadable folder: the core reports it, and another CUDA's files are not used."""
    try:
        path.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def _nvrtc_in(folder: Path | None) -> Path | None:
    if folder is None:
        return None
    try:
        libraries = sorted(path for path in folder.iterdir() if re.fullmatch(r"libnvrtc\.so\.\d+", path.name))
    except PermissionError:
        return folder / "libnvrtc.so"  # as above
    except OSError:
        return None
    return libraries[-1] if libraries else None


def library_root() -> Path | None:
    """The folder that holds gdn_cuda/kernels: inside the package when installed, beside it in a source checkout."""
    for root in (PACKAGE / "include", PACKAGE.parent / "include"):
        if _may_exist(root / "gdn_cuda" / "kernels"):
            return root
    return None


def _cutlass_include() -> Path | None:
    try:
        spec = importlib.util.find_spec("cutlass_library")  # nvidia-cutlass; finding it does not import it
    except Exception as error:  # an importer that fails for some entry of sys.path
        logger.debug("importlib found no CUTLASS headers: %s", error)
        return None
    if spec is None or spec.origin is None:
        return None
    include = Path(spec.origin).parent / "source" / "include"
    return include if _may_exist(include) else None


def _headers(component: str) -> Path | None:
    try:
        from cuda import pathfinder

        found = pathfinder.find_nvidia_header_directory(component)
    except Exception as error:  # without pathfinder the search goes on; the core's error lists what is missing
        logger.debug("cuda.pathfinder found no %s headers: %s", component, error)
        return None
    return Path(found) if found else None


def _nvrtc() -> Path | None:
    include = _headers("nvrtc")
    if include is not None:  # in wheels, conda and toolkits the library is beside its headers: found without loading it
        for folder in (include.parent / "lib", include.parent / "lib64", include.parent.parent / "lib"):
            if library := _nvrtc_in(folder):
                return library
    try:
        from cuda import pathfinder

        path = pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path
    except Exception as error:
        logger.debug("cuda.pathfinder found no NVRTC: %s", error)
        return None
    return Path(path) if path else None
