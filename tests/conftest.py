"""For all tests: gdn_cuda comes from this tree if it is not installed, seeds differ per test, and no test sets the number of
threads. Folders named gpu are skipped without a GPU. Unless tests/emulator is named, only those of its tests run that
selection.py lists. The GPU suite is `pytest tests/gpu tests/*/gpu`, the emulator's `pytest tests/emulator`."""

import importlib.util
import os
import sys
import zlib
from pathlib import Path

import pytest
import torch
from devices import GPU, Device
from selection import SELECTED

if int(os.environ.get("GPUS", 1)) > 1:  # workers of pytest-xdist take them in turn
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.environ["CUDA_VISIBLE_DEVICES"] = str(worker % int(os.environ["GPUS"]))

TESTS = Path(__file__).resolve().parent
EMULATOR = TESTS / "emulator"
if importlib.util.find_spec("gdn_cuda") is None:
    sys.path.insert(0, str(TESTS.parent))


def _refused(threads: int) -> None:
    """Replaces torch.set_num_threads, which makes MKL keep its number of threads inside parallel regions. Its LU factorization
    of a batch then waits forever for threads that do not exist: any later test would hang."""
    raise AssertionError(f"torch.set_num_threads: expected to be called in processes of their own, got {threads} in a test")


torch.set_num_threads = _refused
pytest.register_assert_rewrite(*(path.stem for path in TESTS.glob("*/*_on_device.py")))


def needs_gpu(path: Path) -> bool:
    return path.is_relative_to(TESTS) and "gpu" in path.relative_to(TESTS).parts


def _asked(config: pytest.Config) -> list[Path]:
    return [(config.invocation_params.dir / argument.split("::")[0]).resolve() for argument in config.args]


def _is_selecting(config: pytest.Config) -> bool:
    """Whether tests/emulator is collected without being named."""
    asked = _asked(config)
    return not any(path.is_relative_to(EMULATOR) for path in asked) and any(EMULATOR.is_relative_to(path) for path in asked)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """pytest does not call this for paths named on the command line: `pytest tests/gpu` collects, and skips with the reason."""
    if collection_path.parent == EMULATOR and collection_path.name.startswith("test_") and _is_selecting(config):
        return True if collection_path.name not in {name.split("::")[0] for name in SELECTED} else None
    return True if collection_path.name == "gpu" and needs_gpu(collection_path) and not torch.cuda.is_available() else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _is_selecting(config):
        _select(config, items)
    if not torch.cuda.is_available():
        for item in items:
            if needs_gpu(item.path):
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
    # Compiling takes as long as all other tests: give each of two workers, which begin with half of the list each, half of it.
    compiling = [item for item in items if item.path.parent.name == "compile"]
    others = [item for item in items if item.path.parent.name != "compile"]
    middle = len(others) // 2
    items[:] = compiling[::2] + others[:middle] + compiling[1::2] + others[middle:]


def _select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests of tests/emulator that selection.py does not name."""
    emulated = {f"{item.path.name}::{item.name}": item for item in items if item.path.parent == EMULATOR}
    files = {item.path.name for item in emulated.values()}  # --ignore leaves some out
    if missing := [name for name in SELECTED if name.split("::")[0] in files and name not in emulated]:
        raise pytest.UsageError(f"tests/emulator/selection.py names tests that do not exist: {', '.join(missing)}")
    config.hook.pytest_deselected(items=[item for name, item in emulated.items() if name not in SELECTED])
    items[:] = [item for item in items if item.path.parent != EMULATOR or f"{item.path.name}::{item.name}" in SELECTED]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    asked = _asked(config)
    named = any(needs_gpu(path) for path in asked)
    left_out = any(folder.is_relative_to(path) for path in asked for folder in TESTS.rglob("gpu"))
    if left_out and not named and not torch.cuda.is_available():
        terminalreporter.write_line("tests/gpu and tests/*/gpu: not collected: they need an NVIDIA GPU, and there is none here")
    if _is_selecting(config):
        terminalreporter.write_line("tests/emulator: one test or more of each kernel; `pytest tests/emulator` runs all")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed that is the same in every run, and differs between tests and sets of parameters."""
    return zlib.crc32(request.node.nodeid.encode())


@pytest.fixture
def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def device() -> Device:
    return GPU
