"""Hosts are accepted by the parameters of the functions to replace, whatever their version, and refused with the difference."""

from __future__ import annotations

import importlib
import logging
import re
import sys
from pathlib import Path
from typing import Any

import fake_hosts
import pytest

from gdn_cuda import compat, integrations
from gdn_cuda.hosts import replaced, verified
from gdn_cuda.integrations import Refused

HOSTS: dict[str, Any] = {f"integrations.{name}": getattr(integrations, name) for name in integrations.NAMES}
HOSTS |= {f"compat.{name}": getattr(compat, name) for name in compat.INSTALLS}
PACKAGE = "gdn_cuda_test_host"
TARGETS = {f"{PACKAGE}.a:f": "x, y=1", f"{PACKAGE}.b:C.g": "self, z", f"{PACKAGE}.b:h": "x"}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A library of two parts in files, with one optional function; it is not imported."""
    fake_hosts.write(tmp_path, TARGETS)
    (tmp_path / "a_host-2.1.0.dist-info").mkdir()
    (tmp_path / "a_host-2.1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: a-host\nVersion: 2.1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    fake_hosts.forget(monkeypatch, PACKAGE)
    a, b, h = TARGETS
    parts = {"first": {a: TARGETS[a]}, "second": {b: TARGETS[b], h: TARGETS[h]}}
    yield verified.Host("a-host", PACKAGE, {"2.0.0": "run", "2.1.0": "compared"}, parts, frozenset([h]))
    fake_hosts.forget(monkeypatch, PACKAGE)


def rewrite(tmp_path: Path, module: str, before: str, after: str) -> None:
    file = tmp_path / PACKAGE / f"{module}.py"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    importlib.invalidate_caches()


def set_version(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(verified.importlib.metadata, "version", lambda package: version)


# ---- Any version with these parameters


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("version", ["0.0.1", "999.0", "2.0.dev1"])
def test_an_untested_version_is_accepted_by_its_parameters(name: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    each = HOSTS[name].HOST
    fake_hosts.make(monkeypatch, each, version)
    count = len(each.targets)
    text = f"{each.package} {version} was not run: {count} functions that are replaced have the parameters of {each.newest}"
    assert each.examine() == verified.Finding("verified", text) and each.available() == (True, text)
    each.require()
    each.require_imported()


@pytest.mark.parametrize("name", HOSTS)
def test_every_table_has_exact_versions(name: str) -> None:
    each = HOSTS[name]
    assert each.HOST.versions is each.VERSIONS and set(each.VERSIONS.values()) <= {"run", "compared"}
    assert all(re.fullmatch(r"\d+\.\d+(\.\d+)?(\.post\d+)?", version) for version in each.VERSIONS)
    assert all(":" in target for target in each.HOST.targets) and each.HOST.optional <= set(each.HOST.targets)
    assert {target.partition(".")[0].partition(":")[0] for target in each.HOST.targets} == {each.HOST.module}


@pytest.mark.parametrize(
    ("version", "was_run", "level"),
    [("2.0.0", True, None), ("2.0.0+cu129", True, None), ("2.1.0", False, "INFO"), ("2.2.0", False, "WARNING")],
)
def test_a_version_changes_only_the_messages(
    version: str, was_run: bool, level: str | None, host: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    set_version(monkeypatch, version)
    with caplog.at_level(logging.INFO, "gdn_cuda"):
        host.require()
    assert host.examine().text.partition(":")[0] == f"a-host {version.partition('+')[0]} was{'' if was_run else ' not'} run"
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    expected = f"a-host {version} was not run with gdn_cuda; its parameters are those of 2.1.0"
    assert said == ([] if level is None else [(level, expected)])


@pytest.mark.parametrize("has_metadata", [False, True])
def test_a_library_without_a_version_is_accepted_by_its_parameters(has_metadata: bool, host: Any, tmp_path: Path) -> None:
    metadata = tmp_path / "a_host-2.1.0.dist-info/METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: a-host\n")
    if not has_metadata:
        metadata.unlink()
        metadata.parent.rmdir()
    host.require()
    assert host.examine().status == "verified"
    assert host.examine().text.startswith("a-host (its metadata has no version) was not run")


def test_nothing_is_imported(host: Any) -> None:
    host.require()
    assert host.examine() == verified.Finding(
        "verified", "a-host 2.1.0 was not run: 3 functions that are replaced have the parameters of 2.1.0"
    )
    assert not [name for name in sys.modules if name.startswith(PACKAGE)]


# ---- Differences


@pytest.mark.parametrize("is_imported", [False, True])
def test_a_moved_parameter_is_refused_with_the_difference(is_imported: bool, host: Any, tmp_path: Path) -> None:
    rewrite(tmp_path, "a", "x, y=1", "y, x=1")
    rewrite(tmp_path, "b", "self, z", "self")
    if is_imported:
        importlib.import_module(f"{PACKAGE}.a")
    a, b, _ = TARGETS
    first, second = f"{a}: expected (x, y=1), got (y, x=1)", f"{b}: expected (self, z), got (self)"
    with pytest.raises(Refused) as refused:
        host.require()
    assert str(refused.value) == (first if is_imported else f"{first}; {second}")
    assert host.examine() == verified.Finding("refused", f"a-host 2.1.0 is refused: {first}; and 1 more")
    assert host.available()[0] is False
    with pytest.raises(Refused, match=re.escape(f"{first}; {second}")):
        host.require_imported()


def test_a_part_that_differs_leaves_the_others(host: Any, tmp_path: Path) -> None:
    rewrite(tmp_path, "a", "x, y=1", "x")
    host.require()
    host.require(["second"])
    with pytest.raises(Refused, match=re.escape("expected (x, y=1), got (x)")):
        host.require(["first"])
    finding = host.examine()
    assert finding.status == "partial" and host.available()[0]
    assert finding.text.startswith(
        "a-host 2.1.0 was not run: 2 functions that are replaced have the parameters of 2.1.0; left as"
    )
    assert finding.text.endswith(f": first: {PACKAGE}.a:f: expected (x, y=1), got (x)")


def test_an_optional_target_may_be_absent_and_may_not_differ(host: Any, tmp_path: Path) -> None:
    rewrite(tmp_path, "b", "def h(x): pass", "h = None")
    host.require(["second"])
    host.require_imported()
    rewrite(tmp_path, "b", "h = None", "def h(y): pass")
    fake = sys.modules[f"{PACKAGE}.b"]
    fake.h = lambda y: None  # type: ignore[attr-defined]
    with pytest.raises(Refused, match=re.escape("h: expected (x), got (y)")):
        host.require(["second"])


def test_a_module_that_moved_is_refused_before_anything_waits_for_it(host: Any, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / PACKAGE / f"{name}.py").rename(tmp_path / PACKAGE / f"{name}_moved.py")
    with pytest.raises(Refused, match=rf"{PACKAGE}.a:f: expected \(x, y=1\), got none: there is no module {PACKAGE}.a"):
        host.require()
    with pytest.raises(Refused, match=f"got none: No module named '{PACKAGE}.a'"):
        host.require_imported()


def test_a_host_that_cannot_be_imported_is_refused(host: Any, tmp_path: Path) -> None:
    rewrite(tmp_path, "a", "def f", "import gdn_cuda_no_such_module\ndef f")
    host.require()  # its source has the parameters
    with pytest.raises(Refused, match="got none: No module named 'gdn_cuda_no_such_module'"):
        host.require_imported()


def test_a_library_that_is_not_installed_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = verified.Host("a-host", "gdn_cuda_no_such_module", {"1.0": "run"}, {"": {"gdn_cuda_no_such_module:f": "x"}})
    assert absent.examine() == verified.Finding("absent", "a-host is not installed")
    assert absent.available() == (False, "a-host is not installed")
    for call in (absent.require, absent.require_imported):
        with pytest.raises(verified.NotInstalled):
            call()
    monkeypatch.setitem(sys.modules, "gdn_cuda_no_such_module", None)
    with pytest.raises(verified.NotInstalled):
        absent.require()


# ---- Later imports


def test_an_import_goes_on_whatever_an_installation_raises(
    host: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(module: Any) -> None:
        raise RuntimeError("half-way")

    hook = replaced.AfterImport("a-host", [f"{PACKAGE}.a"], fail)
    monkeypatch.setattr(sys, "meta_path", [hook, *sys.meta_path])
    assert importlib.import_module(f"{PACKAGE}.a").f(1) is None
    assert "a-host keeps its own kernels: half-way" in caplog.text
