"""Builds the emulator before the first test: all of it where all of tests/emulator runs, else what tests launch. Selected tests
launch the kernels that they are selected for, and test_configurations.py counts launches where it can."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import emulator_build
import pytest
from devices import Device
from emulated import EMULATOR, launched, library
from selection import SELECTED

HERE = Path(__file__).resolve().parent
EVERYTHING = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "counts_launches: needs all tests of tests/emulator in this process before it")
    asked = [(config.invocation_params.dir / argument).resolve() for argument in config.args]
    narrowed = any(config.getoption(option, None) for option in ("keyword", "markexpr", "deselect", "lf", "stepwise"))
    config.stash[EVERYTHING] = HERE in asked and not narrowed and not hasattr(config, "workerinput")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    counting = [item for item in items if item.get_closest_marker("counts_launches")]
    items[:] = [item for item in items if item not in counting] + counting
    if not config.stash[EVERYTHING]:
        for item in counting:
            item.add_marker(pytest.mark.skip(reason="counts the launches of a run of all of tests/emulator in one process"))


@pytest.fixture(scope="session", autouse=True)
def built(pytestconfig: pytest.Config) -> None:
    """A build that fails is not tried again: its error is that of every test."""
    if pytestconfig.stash[EVERYTHING]:
        emulator_build.build_all()
    library()


@pytest.fixture(autouse=True)
def launches_what_it_is_selected_for(request: pytest.FixtureRequest) -> Iterator[None]:
    first = library().emulator_launches()
    yield
    kernels = {name.partition("{")[0] for name in launched(first)}
    assert not set(SELECTED.get(f"{request.node.path.name}::{request.node.name}", ())) - kernels


@pytest.fixture
def device() -> Device:
    return EMULATOR
