"""One compiler for all tests of a session: starting it takes longer than most kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from compile_helpers import Child, Compiler


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiler]:
    mine = tmp_path_factory.mktemp("compiler")
    base = tmp_path_factory.getbasetemp()
    records = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"  # workers have folders side by side
    records.mkdir(exist_ok=True)
    with Child(mine) as child:
        yield Compiler(child, records)
