"""An installation that is interrupted, at any line of ours or at any attribute of the host, leaves nothing replaced; the next
one succeeds."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import fake_hosts
import pytest
from interrupts import Interrupt, steps

from gdn_cuda import compat, integrations
from gdn_cuda.hosts import replaced, verified

NAMES = [*(f"integrations.{name}" for name in integrations.NAMES), *(f"compat.{name}" for name in compat.INSTALLS)]


class Installation:
    """An integration with a fake host: how to install it, and the state that this may change."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch):
        # Cached: this is most of the time of hundreds of installations, and the host's functions stay the same.
        monkeypatch.setattr(inspect, "signature", functools.cache(inspect.signature))
        self.module = importlib.import_module(f"gdn_cuda.{name}")
        self.modules = fake_hosts.make(monkeypatch, self.module.HOST)
        self.replaced = self.module._stand_in.replaced if hasattr(self.module, "_stand_in") else self.module._replaced
        self.install = self.module.patch if name == "compat.vortex" else self.module.install
        self.uninstall = self.module.unpatch if name == "compat.vortex" else self.module.uninstall
        getattr(self, name.replace(".", "_"), lambda monkeypatch: None)(monkeypatch)

    def integrations_fla(self, monkeypatch: pytest.MonkeyPatch) -> None:
        backends = self.modules["fla.backends"]

        def register(entry_point, *, backend=None, verifier=None, env_var=None):  # type: ignore[no-untyped-def]
            return lambda made: made()

        backends.register = register
        monkeypatch.setattr(self.module, "_backend", lambda: object)

    def state(self) -> list[Any]:
        """Everything that an installation changes."""
        owners: list[Any] = list(self.modules.values())
        owners += [value for owner in self.modules.values() for value in vars(owner).values() if isinstance(value, type)]
        found: list[Any] = [dict(vars(owner)) for owner in owners]
        module = self.module.HOST.module
        return [*found, list(sys.meta_path), sys.modules.get(module), self.replaced.names(), bool(self.replaced)]


@pytest.fixture(params=NAMES)
def installation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    each = Installation(request.param, monkeypatch)
    each.uninstall()
    yield each
    each.uninstall()


def test_an_installation_that_is_interrupted_at_any_line_is_undone(installation: Installation) -> None:
    installation.install()  # what is imported at its first use is, so that all runs have the same lines
    installation.uninstall()
    before = installation.state()
    all_steps = steps(installation.install)
    after = installation.state()
    assert after != before and len(all_steps) > 20
    installation.uninstall()
    assert installation.state() == before
    for n in all_steps:
        with pytest.raises(KeyboardInterrupt):
            Interrupt(n).run(installation.install)
        assert installation.state() == before, n
    installation.install()
    assert [*map(len, installation.state()[:-3])] == [*map(len, after[:-3])] and installation.state()[-2:] == after[-2:]
    installation.uninstall()
    assert installation.state() == before


def test_a_host_that_refuses_an_attribute_is_as_it_was(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host raises at each attribute in turn, before or after it is set."""
    monkeypatch.setattr(verified, "parameters", functools.cache(verified.parameters))
    before = installation.state()
    installation.install()
    count = len(installation.replaced.names())
    installation.uninstall()
    assert count > 1
    for n in range(1, count + 1):
        for is_set in (False, True):
            done: Counter[str] = Counter()

            def refuse(owner: Any, name: str, value: Any, n: int = n, is_set: bool = is_set, done: Any = done) -> None:
                done["sets"] += 1
                if done["sets"] != n:
                    return setattr(owner, name, value)
                if is_set:
                    setattr(owner, name, value)
                raise OSError(f"set {n}")

            monkeypatch.setattr(replaced, "setattr", refuse, raising=False)
            with pytest.raises(OSError, match=f"set {n}"):
                installation.install()
            assert installation.state() == before and done["sets"] >= n
            monkeypatch.delattr(replaced, "setattr")
    installation.install()
    assert len(installation.replaced.names()) == count
    installation.uninstall()
    assert installation.state() == before


def test_an_interrupted_uninstall_goes_on_where_it_stopped(installation: Installation) -> None:
    before = installation.state()
    installation.install()
    for n in steps(installation.uninstall):
        assert installation.state() == before
        installation.install()
        with pytest.raises(KeyboardInterrupt):
            Interrupt(n).run(installation.uninstall)
        installation.uninstall()
    assert installation.state() == before


def test_a_second_installation_that_fails_leaves_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers is installed a model at a time."""
    each = Installation("integrations.transformers", monkeypatch)
    each.uninstall()
    before = each.state()
    each.install("mamba")
    first = each.state()
    module = each.modules["transformers.models.lfm2.modeling_lfm2"]
    for n in steps(lambda: each.install("lfm2")):
        each.uninstall()
        each.install("mamba")
        with pytest.raises(KeyboardInterrupt):
            Interrupt(n).run(lambda: each.install("lfm2"))
        assert len(each.replaced.names()) == 4 and not hasattr(module.causal_conv1d_fn, "__wrapped__")
    assert len(each.state()) == len(first) and each.module._installed == {"mamba"}
    each.uninstall()
    assert each.state() == before and not each.module._installed


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_later_import_that_fails_half_way_is_undone(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error is logged, and the host's module is imported with its own functions; Ctrl-C ends the import."""
    from gdn_cuda.integrations import vllm

    fake_hosts.forget(monkeypatch, "vllm")
    fake_hosts.write(tmp_path, vllm.HOST.targets)
    monkeypatch.syspath_prepend(str(tmp_path))
    vllm.install()

    put = replaced.Replaced.put

    def third(changes: Any, owner: Any, name: str, new: Any) -> None:
        if len(changes.names()) == 2:
            raise error("third")
        put(changes, owner, name, new)

    monkeypatch.setattr(replaced.Replaced, "put", third)
    try:
        if error is OSError:
            module = importlib.import_module(vllm._MODULE)
            assert not [name for name, each in vars(module).items() if hasattr(each, "__wrapped__")]
            assert "vllm keeps its own kernels: third" in caplog.text
        else:
            with pytest.raises(KeyboardInterrupt):
                importlib.import_module(vllm._MODULE)
        assert not vllm._replaced.names()
        monkeypatch.setattr(replaced.Replaced, "put", put)
        fake_hosts.forget(monkeypatch, "vllm")
        importlib.import_module(vllm._MODULE)
        assert len(vllm._replaced.names()) == len(vllm.HOST.parts["gdn"])
    finally:
        vllm.uninstall()
        fake_hosts.forget(monkeypatch, "vllm")


@pytest.mark.parametrize("name", ["fla", "flashinfer"])
def test_a_host_whose_import_raises(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The import raises any error, as in libraries that look for a GPU when they are imported."""
    each = Installation(f"integrations.{name}", monkeypatch)
    each.uninstall()
    before = each.state()
    target = [*each.module.HOST.targets][-1].partition(":")[0]
    module = sys.modules[target]
    monkeypatch.delitem(sys.modules, target)

    class Raises:
        @staticmethod
        def find_spec(fullname: str, path: Any, target_module: ModuleType | None = None) -> None:
            if fullname == target:
                raise OSError("no GPU")

    with monkeypatch.context() as patch:
        patch.setattr(sys, "meta_path", [Raises, *sys.meta_path])
        with pytest.raises(OSError, match="no GPU"):
            each.install()
    assert each.state() == before
    monkeypatch.setitem(sys.modules, target, module)
    assert each.install()
    each.uninstall()
    assert each.state() == before
