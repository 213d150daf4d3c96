"""Runs tests of mamba_ssm, lrnnx or causal_conv1d on our functions: `python tests/peer_scans.py CHECKOUT [pytest arguments]`.

CHECKOUT is a clone of state-spaces/mamba or Dao-AILab/causal-conv1d, or the unpacked source package of lrnnx (`pip download
--no-deps lrnnx`) or causal-conv1d. einops and triton have to be installed, their extensions do not. Their tests compare a
function with its reference in plain torch: the functions become those of gdn_cuda.compat, the references stay theirs; only the
convolution within mamba_ssm's reference of a block is ours. Where there is no GPU, the tests run on CPU tensors.

Left out, unless `-k` is given: lrnnx's functions that contain a convolution, and its bilinear step of a selective scan, whose
reference has e^{δA} in place of (1 + ½δA) / (1 − ½δA); causal_conv1d's 10,000 repetitions of a call, and its test that
gradients of two runs differ.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest
import torch

from gdn_cuda import compat

EXTENSIONS = ("selective_scan_cuda", "simplified_scan_cuda", "causal_conv1d_cuda")
# The peers' modules and tests; packages are loaded without their __init__, which imports every model.
PEERS = {
    "mamba_ssm": (
        ("ops.selective_scan_interface", "ops.triton.selective_state_update"),
        ("tests/ops/test_selective_scan.py", "tests/ops/triton/test_selective_state_update.py"),
    ),
    "lrnnx": (
        (
            *("ops.selective_scan", "ops.simplified_scan", "ops.s7_scan", "ops.rglru_scan"),
            *("ops.triton.selective_state_update", "ops.triton.simplified_state_update"),
        ),
        ("tests/ops/mamba/*.py", "tests/ops/s5/*.py", "tests/ops/s7/*.py", "tests/ops/rglru/*.py"),
    ),
    "causal_conv1d": (("causal_conv1d_interface", "causal_conv1d_varlen"), ("tests/test_causal_conv1d.py",)),
}
LEFT_OUT = {
    "mamba_ssm": "",
    "lrnnx": "not mamba_inner and not test_inner and not (selective_state_update and bilinear)",
    "causal_conv1d": "not race_condition and not is_not_reproducible",
}


def _missing(function: str, *_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError(f"gdn_cuda.compat has no {function}")


def replace_functions(checkout: Path, peer: str, modules: tuple[str, ...]) -> None:
    for name in EXTENSIONS:
        sys.modules.setdefault(name, ModuleType(name))
    for folder in ("", ".ops", ".ops.triton", ".utils"):
        package = ModuleType(peer + folder)
        package.__path__ = [str(checkout / peer / folder.replace(".", "/").lstrip("/"))]
        sys.modules[package.__name__] = package
    ours = importlib.import_module(f"{compat.__name__}.{peer}")
    for name in modules:
        module = importlib.import_module(f"{peer}.{name}")
        for function in [name for name in vars(module) if f"{name.removesuffix('_fn')}_ref" in vars(module)]:
            setattr(module, function, getattr(ours, function, partial(_missing, function)))
        if peer == "mamba_ssm" and hasattr(module, "causal_conv1d_fn"):
            module.causal_conv1d_fn = importlib.import_module(f"{compat.__name__}.causal_conv1d").causal_conv1d_fn


def main(checkout: Path, arguments: list[str]) -> int:
    peer = next((name for name in PEERS if (checkout / name).is_dir()), None)
    if peer is None:
        raise SystemExit(f"peer_scans: {checkout}: expected a folder with one of {', '.join(PEERS)}, got none")
    modules, tests = PEERS[peer]
    replace_functions(checkout, peer, modules)
    with tempfile.TemporaryDirectory() as folder:
        for test in [found for pattern in tests for found in checkout.glob(pattern)]:
            text = test.read_text()
            Path(folder, test.name).write_text(text if torch.cuda.is_available() else text.replace("cuda", "cpu"))
        options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-k", LEFT_OUT[peer]]
        return int(pytest.main([*options, f"--rootdir={folder}", *arguments, folder]))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
