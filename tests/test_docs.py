"""What is written for people agrees with the code: variables, operators and kernels."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import gdn_cuda
from gdn_cuda import _C
from gdn_cuda.operators import measure

ROOT = Path(__file__).resolve().parents[1]

EXAMPLE_HEAD = """\
# Every environment variable that gdn_cuda reads, with its default. Read once, at first use; a malformed value is an error.
# Copy what you need into your shell: a variable left empty is one that is not set.
"""


def example_env() -> str:
    entries = [f"\n# {variable['meaning']}\n{variable['name']}={variable['default']}\n" for variable in _C.variables()]
    return EXAMPLE_HEAD + "".join(entries)


def test_example_env_is_the_table_in_the_code() -> None:
    assert (ROOT / ".example_env").read_text() == example_env(), "rewrite it: python tests/test_docs.py"


def document(name: str) -> str:
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"{name} is not in this tree")
    return path.read_text()


def test_jit_guide_names_every_variable_and_no_other() -> None:
    named = set(re.findall(r"\bGDN_[A-Z_]+[A-Z]\b", document("docs/jit.md")))
    read = {variable["name"] for variable in _C.variables()}
    assert not read - named, "docs/jit.md leaves these out"
    assert not {name for name in named - read if name.startswith(("GDN_JIT_", "GDN_LOG_"))}, "nothing reads these"


def test_readme_names_every_operator_in_its_table() -> None:
    rows = "\n".join(line for line in document("README.md").splitlines() if line.startswith("|"))
    public = (*gdn_cuda.gdn.__all__, *gdn_cuda.structured.__all__)
    operators = {name for name in public if inspect.isfunction(getattr(gdn_cuda, name))}
    assert not {name for name in operators if f"`{name}`" not in rows and f"`{name}(" not in rows}


def test_every_public_name_is_documented() -> None:
    undocumented = [name for name in gdn_cuda.__all__ if name != "__version__" and not getattr(gdn_cuda, name).__doc__]
    assert not undocumented


def test_docs_name_every_registered_kernel() -> None:
    text = document("docs/architecture.md")
    assert not [entry["name"] for entry in _C.kernels() if f"`{entry['family']}/{entry['name']}`" not in text]


def test_every_registered_kernel_can_be_sanitized() -> None:
    assert set(measure.load().sanitized) == {entry["name"] for entry in _C.kernels()}


def test_commands_in_the_documents_exist() -> None:
    from gdn_cuda.cli import parser

    known = set(parser()._subparsers._group_actions[0].choices)
    for name in ("README.md", "docs/jit.md", "docs/architecture.md"):
        path = ROOT / name
        used = set(re.findall(r"python3? -m gdn_cuda ([a-z]+)", path.read_text() if path.exists() else ""))
        assert not used - known, name


if __name__ == "__main__":
    (ROOT / ".example_env").write_text(example_env())
