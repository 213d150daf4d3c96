"""One compiler for all tests of a session: starting it takes longer than most kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from compile_helpers import Child, KeepingChild


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """A child that compiles with the NVRTC of this environment."""
    with KeepingChild(tmp_path_factory.mktemp("compiler")) as child:
        yield child
