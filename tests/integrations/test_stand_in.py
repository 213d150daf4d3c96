"""install() of gdn_cuda.compat keeps the other functions of a package that is installed; uninstall gives it all back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import fake_hosts
import pytest

from gdn_cuda.compat import causal_conv1d, mamba_ssm


@pytest.fixture(params=[causal_conv1d, mamba_ssm])
def ours(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield request.param
    # While a package of these tests was there, transformers found its functions.
    request.param._stand_in._look_up_again()


@pytest.fixture
def package(ours: Any, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType(ours._stand_in.package)
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def test_an_installed_package_keeps_its_other_functions(ours: Any, package: ModuleType) -> None:
    theirs, absent = ours._stand_in.looked_up
    package.other = other = lambda: "another"
    before = fake_hosts.function(theirs, ours.HOST.targets[f"{package.__name__}:{theirs}"])
    setattr(package, theirs, before)
    with ours.install():
        assert getattr(package, theirs) is getattr(ours, theirs) and getattr(package, absent) is getattr(ours, absent)
        assert package.other is other
    assert getattr(package, theirs) is before and not hasattr(package, absent) and package.other is other
    assert sys.modules[package.__name__] is package
