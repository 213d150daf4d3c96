"""Common properties of all integrations: their functions, entry points, lines in doctor, GDN_INTEGRATIONS."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import fake_hosts
import processes
import pytest

from gdn_cuda import compat, integrations
from gdn_cuda.cli import doctor
from gdn_cuda.hosts import verified
from gdn_cuda.integrations import counted, requested, vllm_kda

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]


def module(name: str) -> Any:
    return importlib.import_module(f"gdn_cuda.integrations.{name}")


@pytest.mark.parametrize("name", integrations.NAMES)
def test_every_integration_has_the_same_functions(name: str) -> None:
    each = module(name)
    assert all(inspect.getdoc(getattr(each, function)) for function in ("available", "install", "uninstall"))
    available, reason = each.available()
    assert isinstance(available, bool) and reason == each.HOST.examine().text


def test_importing_all_of_them_imports_no_host() -> None:
    code = """
import sys, gdn_cuda
assert not [name for name in sys.modules if name.startswith(("gdn_cuda.integrations", "gdn_cuda.compat", "gdn_cuda.cli"))]
hosts = [getattr(gdn_cuda.integrations, name).HOST for name in gdn_cuda.integrations.NAMES]
hosts += [getattr(gdn_cuda.compat, name).HOST for name in gdn_cuda.compat.INSTALLS]
for host in hosts:
    host.available()
print([host.module for host in hosts if host.module in sys.modules], len(sys.meta_path))
"""
    done = processes.run("-c", code)
    assert done.stdout.startswith("[] "), done.stdout + done.stderr


def test_entry_points_name_the_plugins() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert set(groups) == {"vllm.general_plugins", "sglang.srt.plugins"}
    for group, entries in groups.items():
        path, _, function = entries["gdn_cuda"].partition(":")
        assert path == f"gdn_cuda.integrations.{group.partition('.')[0]}"
        assert not inspect.signature(getattr(importlib.import_module(path), function)).parameters


@pytest.mark.parametrize(
    ("given", "expected"),
    [("", []), ("vllm", ["vllm"]), ("SGLang, vllm", ["vllm", "sglang"]), ("sglang,", ["sglang"])],
)
def test_gdn_integrations(given: str, expected: list[str]) -> None:
    code = "from gdn_cuda.integrations.requested import *; print([name for name in PLUGINS if requested(name)])"
    assert processes.run("-c", code, GDN_INTEGRATIONS=given).stdout.strip() == str(expected)


@pytest.mark.parametrize("name", requested.PLUGINS)
@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("GDN_JIT_DISABLE", "maybe", 'GDN_JIT_DISABLE: expected 0 or 1 (also true/false, on/off, yes/no), got "maybe"'),
        ("GDN_NVTX", "perhaps", "GDN_NVTX: expected 0 or 1"),
        ("GDN_INTEGRATIONS", "vlm", 'GDN_INTEGRATIONS: expected vllm, sglang, or both with a comma between, got "vlm"'),
    ],
)
def test_a_plugin_lets_an_engine_start_where_a_variable_is_malformed(
    name: str, variable: str, value: str, expected: str
) -> None:
    code = f"from gdn_cuda.integrations.{name} import plugin; plugin(); print('went on')"
    done = processes.run("-c", code, **{variable: value})
    assert done.returncode == 0 and done.stdout == "went on\n", done.stderr
    assert f"the plugin of gdn_cuda does nothing in {name}: {expected}" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("name", requested.PLUGINS)
def test_a_plugin_lets_an_engine_start_whatever_an_installation_raises(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(requested._C, "requested_integrations", lambda: ["sglang", "vllm"])
    each = module(name)
    for error in (ImportError("no GPU"), verified.Refused("other parameters")):
        caplog.clear()
        monkeypatch.setattr(each.HOST.__class__, "require", lambda host, error=error: (_ for _ in ()).throw(error))
        each.plugin()
        assert f"{name} keeps its own kernels: {error}" in caplog.text and not each._replaced
        assert ("Traceback" in caplog.text) == isinstance(error, ImportError)


def test_the_guide_lists_all_releases() -> None:
    """The table has the newest release first, and "no" for releases that were not run."""
    text = (ROOT / "docs/integrations.md").read_text()
    rows = re.findall(r"^\| ([\w-]+)(?: \(`[^`]*`\))? \| ([\w.]+) \| (\d+)[^|]* \| the same \| (.*) \|$", text, re.MULTILINE)
    hosts = [getattr(integrations, name).HOST for name in integrations.NAMES]
    hosts += [getattr(compat, name).HOST for name in compat.INSTALLS]
    expected = {(host.package, version, how): len(host.targets) for host in hosts for version, how in host.versions.items()}
    found = {
        (package, version, "compared" if run.startswith("no") else "run"): int(count) for package, version, count, run in rows
    }
    assert found == expected
    newest: dict[str, str] = {}
    for package, version, _, _ in rows:
        newest.setdefault(package, version)
    assert newest == {host.package: host.newest for host in hosts}
    assert f"100, of {len(module('transformers').MODELS)} models" in text


# ---- doctor


def doctors_lines() -> dict[str, doctor.Check]:
    lines = {check.what: check for check in doctor._integrations()}
    assert [*lines] == [f"integration {name}" for name in integrations.NAMES] + [f"compat {name}" for name in compat.INSTALLS]
    return lines


def test_doctor_has_a_line_for_each_that_says_what_was_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requested._C, "requested_integrations", lambda: ["vllm"])
    hosts = {f"integration {name}": (getattr(integrations, name), name) for name in integrations.NAMES}
    hosts |= {f"compat {name}": (getattr(compat, name), name) for name in compat.INSTALLS}
    for each, _ in hosts.values():
        fake_hosts.make(monkeypatch, each.HOST, "77.0")
    switches = {
        "integration vllm": "on by GDN_INTEGRATIONS",
        "integration sglang": "off; GDN_INTEGRATIONS=sglang switches it on",
    }
    for what, check in doctors_lines().items():
        each, name = hosts[what]
        family = "integrations" if what.startswith("integration") else "compat"
        call = "patch" if name == "vortex" else "install"
        switch = switches.get(what, f"on: gdn_cuda.{family}.{name}.{call}()")
        count = len(each.HOST.targets)
        compared = f"was not run: {count} functions that are replaced have the parameters of {each.HOST.newest}"
        assert (check.status, check.found) == ("ok", f"{each.HOST.package} 77.0 {compared}; {switch}")


def test_doctor_has_all_lines_where_a_variable_is_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    def malformed() -> None:
        raise RuntimeError("GDN_NVTX: expected 0 or 1")

    monkeypatch.setattr(requested._C, "requested_integrations", malformed)
    assert doctors_lines()


def test_doctor_counts_a_refusal_as_a_problem_and_an_absent_library_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requested._C, "requested_integrations", lambda: ["sglang"])
    monkeypatch.setitem(sys.modules, "sglang", None)  # as if it were not installed
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    modules = fake_hosts.make(monkeypatch, module("vllm").HOST, "0.34.0")
    modules[module("vllm")._MODULE].causal_conv1d_fn = fake_hosts.function("causal_conv1d_fn", "x")
    modules[module("vllm")._MODULE].causal_conv1d_update = fake_hosts.function("causal_conv1d_update", "x")
    lines = doctors_lines()
    assert lines["integration vllm"].status == "note" and "left as they are: gdn: " in lines["integration vllm"].found
    step = modules[module("vllm")._STEP_MODULE].TritonSSUBackend
    monkeypatch.setattr(step, "__call__", fake_hosts.function("__call__", "self, x"))
    modules[module("vllm")._MIXER].causal_conv1d_fn = fake_hosts.function("causal_conv1d_fn", "x")
    for kda, functions in vllm_kda.FUNCTIONS.items():
        setattr(modules[kda], next(iter(functions)), fake_hosts.function("f", "x"))
    lines = doctors_lines()
    assert (lines["integration flashinfer"].status, lines["integration flashinfer"].found) == (
        *("note", "flashinfer-python is not installed"),
    )
    assert lines["integration sglang"].status == "note"
    assert lines["integration sglang"].found == "sglang is not installed; on by GDN_INTEGRATIONS"
    refused = lines["integration vllm"]
    assert refused.status == "problem" and refused.found.startswith(
        "vllm 0.34.0 is refused: vllm.model_executor.layers.mamba.gdn"
    )
    assert refused.found.endswith("got (x); and 7 more") and "expected (x, weight, bias, conv_states" in refused.found
    assert refused.fix == "pip install 'vllm==0.33.0'; with this version vllm runs its own kernels"


def test_a_model_of_transformers_that_differs_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = fake_hosts.make(monkeypatch, module("transformers").HOST, "5.99.0")
    modules["transformers.models.jamba.modeling_jamba"].causal_conv1d_fn = fake_hosts.function("causal_conv1d_fn", "x")
    check = doctors_lines()["integration transformers"]
    assert check.status == "note" and "99 functions that are replaced have the parameters" in check.found
    assert "left as they are: jamba: transformers.models.jamba.modeling_jamba:causal_conv1d_fn: expected (hidden" in check.found


def test_an_error_that_is_no_refusal_is_the_callers() -> None:
    def ours() -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        counted.counted("test.function", ours, lambda: None)()
    assert not integrations.calls("test")
