"""For all tests: gdn_cuda comes from this tree where it is not installed, seeds differ per test, no test sets the number of
threads, folders named gpu are left out where there is no GPU, and tests/emulator where it is not named. The GPU suite is
`pytest tests/gpu tests/*/gpu`."""

import importlib.util
import sys
import zlib
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).resolve().parent
EMULATOR = TESTS / "emulator"
if importlib.util.find_spec("gdn_cuda") is None:
    sys.path.insert(0, str(TESTS.parent))


def _refused(threads: int) -> None:
    """torch's makes MKL keep its number of threads inside parallel regions, where its LU factorization of a batch then waits
    forever for threads that do not exist: any later test would hang."""
    raise AssertionError(f"torch.set_num_threads: expected to be called in processes of their own, got {threads} in a test")


torch.set_num_threads = _refused


def needs_gpu(path: Path) -> bool:
    return path.is_relative_to(TESTS) and "gpu" in path.relative_to(TESTS).parts


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """pytest does not ask about paths named on the command line: `pytest tests/gpu` collects, and skips with the reason."""
    if collection_path == EMULATOR:
        return True
    return True if collection_path.name == "gpu" and needs_gpu(collection_path) and not torch.cuda.is_available() else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if needs_gpu(item.path):
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
    # Compiling takes as long as all the rest: half of it for each of two workers, which begin with a half of the list each.
    compiling = [item for item in items if item.path.parent.name == "compile"]
    others = [item for item in items if item.path.parent.name != "compile"]
    middle = len(others) // 2
    items[:] = compiling[::2] + others[:middle] + compiling[1::2] + others[middle:]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    asked = [(config.invocation_params.dir / argument.split("::")[0]).resolve() for argument in config.args]
    named = any(needs_gpu(path) for path in asked)
    left_out = any(folder.is_relative_to(path) for path in asked for folder in TESTS.rglob("gpu"))
    if left_out and not named and not torch.cuda.is_available():
        terminalreporter.write_line("tests/gpu and tests/*/gpu: not collected: they need an NVIDIA GPU, and there is none here")
    if any(path != EMULATOR and EMULATOR.is_relative_to(path) for path in asked) and EMULATOR not in asked:
        terminalreporter.write_line("tests/emulator: not collected: it takes minutes, so it runs only where it is named")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The same in every run, another one for every test and every set of parameters."""
    return zlib.crc32(request.node.nodeid.encode())


@pytest.fixture
def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
