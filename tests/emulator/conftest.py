"""The emulator is built once, before the first test. test_configurations.py runs last, and only where it can count."""

from __future__ import annotations

from pathlib import Path

import pytest
from emulated import library

HERE = Path(__file__).resolve().parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "counts_launches: needs all tests of tests/emulator in this process before it")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    counting = [item for item in items if item.get_closest_marker("counts_launches")]
    items[:] = [item for item in items if item not in counting] + counting
    asked = [(config.invocation_params.dir / argument).resolve() for argument in config.args]
    narrowed = any(config.getoption(option, None) for option in ("keyword", "markexpr", "deselect", "lf", "stepwise"))
    if narrowed or hasattr(config, "workerinput") or not any(HERE.is_relative_to(path) for path in asked):
        for item in counting:
            item.add_marker(pytest.mark.skip(reason="counts the launches of a run of all of tests/emulator in one process"))


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    """Its error is that of all tests, without another try."""
    library()
