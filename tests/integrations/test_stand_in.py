"""install() of gdn_cuda.compat keeps the other functions of an installed package; uninstall restores everything."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import fake_hosts
import pytest
from interrupts import Interrupt, steps

from gdn_cuda.compat import causal_conv1d, mamba_ssm
from gdn_cuda.integrations import Refused


@pytest.fixture(params=[causal_conv1d, mamba_ssm])
def ours(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield request.param
    # transformers found the functions of a package that these tests made.
    request.param._stand_in._look_up_again()


@pytest.fixture
def package(ours: Any, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType(ours._stand_in.package)
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def test_an_installed_package_keeps_its_other_functions(ours: Any, package: ModuleType) -> None:
    theirs, *absent = ours._stand_in.looked_up
    package.other = other = lambda: "another"
    before = fake_hosts.function(theirs, ours.HOST.targets[f"{package.__name__}:{theirs}"])
    setattr(package, theirs, before)
    with ours.install():
        assert getattr(package, theirs) is getattr(ours, theirs)
        assert all(getattr(package, each) is getattr(ours, each) for each in absent)
        assert package.other is other
    assert getattr(package, theirs) is before and package.other is other
    assert sys.modules[package.__name__] is package and not any(hasattr(package, each) for each in absent)


def test_a_package_whose_function_has_other_parameters_is_refused(ours: Any, package: ModuleType) -> None:
    theirs, *absent = ours._stand_in.looked_up
    setattr(package, theirs, changed := fake_hosts.function(theirs, "x, weight"))
    with pytest.raises(Refused, match=rf"{package.__name__}:{theirs}: expected \(.*=None.*\), got \(x, weight\)"):
        ours.install()
    assert getattr(package, theirs) is changed and not ours._stand_in.replaced
    assert not any(hasattr(package, each) for each in absent)


# ---- Without the package, where models of transformers look functions up

MODELING = "transformers.models.fake.modeling_fake"


@pytest.fixture
def model(ours: Any, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A modeling file whose functions a decorator looks up, as in transformers 5; the package is not installed."""
    for name in [name for name in sys.modules if name.startswith("transformers.models.")]:
        monkeypatch.delitem(sys.modules, name)

    def look_up(name: str, package: str) -> Callable[[Any], Any]:
        def decorate(own: Any) -> Any:
            found = getattr(sys.modules.get(package), name, own)

            @functools.wraps(own)
            def call(*args: Any, **kwargs: Any) -> Any:
                return found(*args, **kwargs)

            call.found = found  # type: ignore[attr-defined]
            return call

        return decorate

    kernels = ModuleType("transformers.integrations.hub_kernels")
    kernels.use_kernel_func_from_hub_with_fallback = look_up  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, kernels.__name__, kernels)
    monkeypatch.setitem(sys.modules, ours._stand_in.package, None)  # type: ignore[arg-type]
    made = ModuleType(MODELING)
    for name, end in ours._stand_in.looked_up.items():
        function = fake_hosts.function(f"torch_{end}", "x")
        function.__module__ = MODELING
        setattr(made, f"torch_{end}", look_up(name, ours._stand_in.package)(function))
    monkeypatch.setitem(sys.modules, MODELING, made)
    return made


def found_by(model: ModuleType) -> list[Any]:
    return [each.found for each in vars(model).values() if hasattr(each, "found")]


def test_an_interrupted_installation_leaves_models_unchanged(ours: Any, model: ModuleType) -> None:
    own = found_by(model)
    name = ours._stand_in.package
    with ours.install():
        assert found_by(model) == [getattr(ours, each) for each in ours._stand_in.looked_up] and name in sys.modules
    all_steps = steps(ours.install)
    ours.uninstall()
    assert len(all_steps) > 20
    for n in all_steps:
        with pytest.raises(KeyboardInterrupt):
            Interrupt(n).run(ours.install)
        assert found_by(model) == own and sys.modules.get(name) is None and not ours._stand_in.replaced, n
    with ours.install():
        assert found_by(model) != own
    assert found_by(model) == own


def test_a_model_that_cannot_look_up_again_undoes_the_installation(
    ours: Any, model: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    """If the package `kernels` is installed, transformers' decorator cannot look functions up again."""
    own = found_by(model)
    last = f"torch_{[*ours._stand_in.looked_up.values()][-1]}"
    decorated = getattr(model, last)
    bare = fake_hosts.function(last, "x")
    bare.__module__ = MODELING
    setattr(model, last, bare)
    with pytest.raises(RuntimeError, match="expected a call before its import where the package kernels is installed"):
        ours.install()
    assert found_by(model) == own[:-1] and getattr(model, last) is bare
    assert sys.modules.get(ours._stand_in.package) is None and not ours._stand_in.replaced
    assert f"uninstall: {MODELING}.{last} stays as it is" in caplog.text
    setattr(model, last, decorated)
    with ours.install():
        assert found_by(model) != own
    assert found_by(model) == own
