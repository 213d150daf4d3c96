"""What all integrations have in common: their functions, entry points, lines in doctor, GDN_INTEGRATIONS."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

import processes
import pytest

from gdn_cuda import integrations
from gdn_cuda.cli import doctor
from gdn_cuda.integrations import counted, requested, verified

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
    assert isinstance(available, bool) and reason
    for targets in each.VERSIONS.values():
        assert targets and all(":" in target for target in targets)


def test_importing_all_of_them_imports_no_host() -> None:
    code = """
import sys, gdn_cuda, importlib
assert "gdn_cuda.integrations" not in sys.modules
from gdn_cuda import integrations
for name in integrations.NAMES:
    importlib.import_module(f"gdn_cuda.integrations.{name}").available()
print([name for name in integrations.NAMES if name in sys.modules], len(sys.meta_path))
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


def test_gdn_integrations_with_another_word_is_an_error() -> None:
    done = processes.run("-c", "from gdn_cuda.integrations.vllm import plugin; plugin()", GDN_INTEGRATIONS="vlm")
    assert 'GDN_INTEGRATIONS: expected vllm, sglang, or both with a comma between, got "vlm"' in done.stderr


def test_doctor_has_a_line_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requested._C, "env", lambda: {"integrations": "vllm"})
    monkeypatch.setattr(
        verified, "installed_version", lambda package, host: {"vllm": "0.33.1", "fla-core": "9"}.get(package, "0")
    )
    lines = {check.what: check for check in doctor._integrations()}
    assert set(lines) == {f"integration {name}" for name in integrations.NAMES}
    assert lines["integration vllm"].status == "ok" and lines["integration vllm"].found == "vllm 0.33.1; on by GDN_INTEGRATIONS"
    assert lines["integration fla"].found == "fla-core: expected version 0.6.*, got 9"
    assert {check.status for check in lines.values()} == {"ok", "note"}


def test_an_error_that_is_no_refusal_is_the_callers() -> None:
    def ours() -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        counted.counted("test.function", ours, lambda: None)()
    assert not integrations.calls("test")
