"""For all tests: `helpers` can be imported, gdn_cuda comes from this tree where it is not installed, seeds differ per test, and
tests/gpu is left out where there is no GPU."""

import importlib.util
import sys
import zlib
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).resolve().parent
GPU_TESTS = TESTS / "gpu"
sys.path.insert(0, str(TESTS))
if importlib.util.find_spec("gdn_cuda") is None:
    sys.path.insert(0, str(TESTS.parent))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Not asked about what the command line names, so `pytest tests/gpu` collects, and skips with the reason."""
    return True if collection_path == GPU_TESTS and not torch.cuda.is_available() else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    asked = [(config.invocation_params.dir / argument.split("::")[0]).resolve() for argument in config.args]
    named = any(GPU_TESTS in (path, *path.parents) for path in asked)
    if not named and any(path in GPU_TESTS.parents for path in asked) and not torch.cuda.is_available():
        terminalreporter.write_line("tests/gpu: not collected, because they need an NVIDIA GPU and there is none here")


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The same in every run, another one for every test and every set of parameters."""
    return zlib.crc32(request.node.nodeid.encode())


@pytest.fixture
def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
