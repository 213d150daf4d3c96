"""Every dotted name in documents and messages resolves after `import gdn_cuda` alone."""

from __future__ import annotations

import json
import pkgutil
import re
from pathlib import Path

import processes
import pytest
from test_types import errors

import gdn_cuda
from gdn_cuda import compat, integrations
from gdn_cuda.cli import doctor

ROOT = Path(__file__).resolve().parents[1]
DOTTED = re.compile(r"(?<![\w./-])gdn_cuda(?:\.[A-Za-z_]\w*)+")
INVENTED = re.compile(r"\b(row_norm|replacement)$")  # the operator that docs/architecture.md adds; a codec handler
RESOLVE = """
import json, sys
import gdn_cuda
unresolved = {}
for dotted in json.loads(sys.argv[1]):
    found = gdn_cuda
    try:
        for name in dotted.split(".")[1:]:
            found = getattr(found, name)
    except AttributeError as error:
        unresolved[dotted] = str(error)
hosts = ("transformers", "fla", "vllm", "sglang", "flashinfer", "mamba_ssm", "vortex")
print(json.dumps([unresolved, [name for name in hosts if name in sys.modules]]))
"""


def unresolved(names: set[str]) -> dict[str, str]:
    """The names that do not resolve in a new process that imports gdn_cuda alone, and no host."""
    done = processes.run("-c", RESOLVE, json.dumps(sorted(names)))
    assert done.returncode == 0, done.stderr
    found, hosts = json.loads(done.stdout)
    assert hosts == []
    return found


def names_in(text: str) -> set[str]:
    """Dotted names in a text, without names of files (gdn_cuda.so)."""
    return {name for name in DOTTED.findall(text) if not INVENTED.search(name)}


def names_in_documents() -> set[str]:
    documents = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
    names = set().union(*(names_in(document.read_text()) for document in documents))
    assert {"gdn_cuda.integrations.flashinfer", "gdn_cuda.compat.mamba_ssm.install", "gdn_cuda.nn.HyenaCascade"} <= names
    return names


def test_names_in_the_documents() -> None:
    assert not unresolved(names_in_documents())


def test_mypy_knows_the_names_in_the_documents(tmp_path: Path) -> None:
    """A package lists the modules that load on access for type checkers."""
    program = "import gdn_cuda\n" + "".join(f"print({name})\n" for name in sorted(names_in_documents()))
    assert errors(program, tmp_path) == ""


def test_names_that_doctor_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all libraries were installed."""
    from gdn_cuda.hosts import verified

    monkeypatch.setattr(verified.Host, "examine", lambda host: verified.Finding("verified", host.package))
    names = names_in(" ".join(f"{check.found} {check.fix}" for check in doctor._integrations()))
    assert {"gdn_cuda.integrations.fla.install", "gdn_cuda.compat.vortex.patch"} <= names
    assert not unresolved(names)


def test_names_in_our_own_docstrings_messages_and_calls() -> None:
    names = set().union(*(names_in(file.read_text()) for file in (ROOT / "gdn_cuda").rglob("*.py")))
    assert "gdn_cuda.integrations.Refused" in names and not unresolved(names)


def test_every_module_resolves_and_is_listed() -> None:
    names = {
        f"{package.__name__}.{each.name}"
        for package in (gdn_cuda, integrations, compat)
        for each in pkgutil.iter_modules(package.__path__)
        if not each.name.startswith("_")
    }
    assert not unresolved(names)
    for name in names:
        package, _, module = name.rpartition(".")
        assert module in dir({each.__name__: each for each in (gdn_cuda, integrations, compat)}[package])


@pytest.mark.parametrize("name", ["no_such", "integrations.no_such", "compat.no_such", "integrations._no_such"])
def test_other_names_are_attribute_errors(name: str) -> None:
    package, _, last = f"gdn_cuda.{name}".rpartition(".")
    assert unresolved({f"gdn_cuda.{name}"}) == {f"gdn_cuda.{name}": f"module {package!r} has no attribute {last!r}"}


@pytest.mark.parametrize("name", ["integrations.fla", "", "__main__", "_C.no_such", "1", "../conv"])
def test_an_invalid_module_name_is_an_attribute_error(name: str) -> None:
    assert not hasattr(gdn_cuda, name)


def test_from_import_of_an_unknown_name() -> None:
    done = processes.run("-c", "from gdn_cuda import no_such")
    assert "ImportError: cannot import name 'no_such' from 'gdn_cuda'" in done.stderr
