"""For all tests: `helpers` can be imported, gdn_cuda comes from this tree where it is not installed, seeds differ per test."""

import importlib.util
import sys
import zlib
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS))
if importlib.util.find_spec("gdn_cuda") is None:
    sys.path.insert(0, str(TESTS.parent))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The same in every run, another one for every test and every set of parameters."""
    return zlib.crc32(request.node.nodeid.encode())


@pytest.fixture
def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
