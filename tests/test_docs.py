"""The documents agree with the code: variables, operators and kernels."""

from __future__ import annotations

import doctest
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import gdn_cuda
from gdn_cuda import _C
from gdn_cuda.operators import measure

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs/website"))

import docstrings  # noqa: E402
from benchmark_tables import benchmark_tables  # noqa: E402
from links import LINK  # noqa: E402

DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md", "examples/*.md")
    for path in ROOT.glob(pattern)
)
SOURCES = ("benchmarks", "cmake", "csrc", "docs", "examples", "gdn_cuda", "include", "tests", "tools")

EXAMPLE_HEAD = """\
# Every environment variable that gdn_cuda reads, with its default. Read once, at first use; a malformed value is an error.
# Copy what you need into your shell: a variable left empty is one that is not set. A path may begin with ~ or ~user.
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


def test_the_list_of_operators_is_complete() -> None:
    rows = re.findall(r"^\| (`.*?) \|", document("docs/operators.md"), re.MULTILINE)
    listed = re.findall(r"`(\w+)`", "\n".join(rows))
    assert sorted(listed) == sorted(name for family in docstrings.FAMILIES for name in family.__all__)


def test_tables_of_the_readme_name_operators_that_exist() -> None:
    _, _, families = document("README.md").partition("\n## Families\n")
    named = re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| .*", families.partition("\n## ")[0], re.MULTILINE)))
    assert named
    assert not [name for name in named if name not in gdn_cuda.__all__]


# The beginning of a row's first cell in README.md; the page that the row is from; and the row of that page.
FIGURES = {
    "GDN prefill, one sequence of 8192 tokens": ("prefill", "1×8192 16/32"),
    "GDN prefill, 8 sequences of 4096 tokens": ("prefill", "8×4096 16/32"),
    "GDN decode, 64 sequences, states in bf16": ("decode", "16/32 B=64"),
    "Mamba's scan, backward, 8×5120×2048": ("scan", "8×5120×2048 backward"),
}


def test_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    section = document("README.md").partition("\n## Four figures\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ") and "ours" not in line]
    found = {name: [re.sub(r"[^\d.]", "", cell) for cell in cells] for name, *cells in rows}
    assert len(found) == len(FIGURES)
    for start, (page, row) in FIGURES.items():
        (figures,) = [cells for name, cells in found.items() if name.startswith(start)]
        lines = [line for line in document(f"docs/benchmarks/{page}.md").splitlines() if line.startswith(f"| {row} |")]
        assert any(set(figures) <= set(re.findall(r"\d+\.\d+", line)) for line in lines), (start, figures, lines)


def test_the_table_of_kernels_names_kernels_that_exist() -> None:
    """The complete list is `python -m gdn_cuda kernels`."""
    registered = {f"{entry['family']}/{entry['name']}" for entry in _C.kernels()}
    families = "|".join({entry["family"] for entry in _C.kernels()})
    kernels = re.findall(rf"`((?:{families})/\w+)`", document("docs/architecture.md"))
    assert kernels
    assert not set(kernels) - registered


def test_every_public_name_is_documented() -> None:
    undocumented = [name for name in gdn_cuda.__all__ if name != "__version__" and not getattr(gdn_cuda, name).__doc__]
    assert not undocumented


def test_every_registered_kernel_can_be_sanitized() -> None:
    names = [entry["name"] for entry in _C.kernels()]
    wanted = {name if names.count(name) == 1 else f"{e['family']}/{name}" for name, e in zip(names, _C.kernels(), strict=True)}
    assert set(measure.load().sanitized) == wanted


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_in_the_documents_exist(name: str) -> None:
    from gdn_cuda.cli import parser

    known = set(parser()._subparsers._group_actions[0].choices)
    assert not set(re.findall(r"(?:python3? -m gdn_cuda|gdn-cuda) ([a-z]+)", document(name))) - known


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name != "CHANGELOG.md"])
def test_files_that_the_documents_name_exist(name: str) -> None:
    """A path in backticks may be shortened from the left: `common/tma.cuh`."""
    named = re.findall(r"`([\w./-]+\.(?:py|cpp|hpp|cu|cuh|md|sh|txt|toml|cmake|json))`", document(name))
    files = [f"/{path.relative_to(ROOT)}" for folder in SOURCES for path in (ROOT / folder).rglob("*.*")]
    files += [f"/{path.name}" for path in ROOT.iterdir()]
    assert not [each for each in named if not any(path.endswith(f"/{each.removeprefix('./')}") for path in files)]


IMPORTS = sorted({line for name in DOCUMENTS for line in re.findall(r"`(from gdn_cuda[\w.]* import [^`]+)`", document(name))})


@pytest.mark.parametrize("line", IMPORTS)
def test_imports_in_the_documents_work(line: str) -> None:
    exec(line, {})


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_in_the_documents_lead_to_files(name: str) -> None:
    links = [target for target, _ in LINK.findall(document(name)) if "://" not in target]
    assert not [target for target in links if not ((ROOT / name).parent / target).exists()]


# ---- Public docstrings: their sections make the pages of `./develop.sh docs`


def test_docstrings_of_operators_and_modules_have_every_section() -> None:
    assert not list(docstrings.missing_sections())


def test_docstrings_explain_every_parameter() -> None:
    """Parameters of every public function and of every module's constructor."""
    assert not list(docstrings.unexplained_parameters())


def test_a_docstring_without_an_example_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = inspect.getdoc(gdn_cuda.fused_decode).split("Example:")[0]
    monkeypatch.setattr(gdn_cuda.gdn.fused_decode, "__doc__", text)
    assert list(docstrings.missing_sections()) == ["fused_decode: its docstring lacks the section 'Example:'"]


def test_a_parameter_that_is_mentioned_and_not_explained_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = inspect.getdoc(gdn_cuda.fused_decode)
    assert text.count("    null_slot: ") == 1 and "equal to `null_slot`" in text
    monkeypatch.setattr(gdn_cuda.gdn.fused_decode, "__doc__", text.replace("    null_slot: ", "    by null_slot: "))
    found = list(docstrings.unexplained_parameters())
    lacks = "lacks an item 'null_slot: …'"
    says = f"its docstring says that null_slot is as in fused_decode, which {lacks}"
    own = f"fused_decode: its docstring {lacks} in Shapes or Parameters"
    assert found == [own, f"replay_decode: {says}", f"ring_decode: {says}"]


DOCUMENTED = docstrings.called()


@pytest.mark.parametrize("name", DOCUMENTED)
def test_examples_in_docstrings_run(name: str) -> None:
    names: dict[str, Any] = {"torch": torch, "gdn_cuda": gdn_cuda}
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(DOCUMENTED[name]), names, name, None, 0)
    said: list[str] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        failed = doctest.DocTestRunner().run(example, out=said.append).failed
    assert not failed, "".join(said)


def test_every_benchmark_table_is_on_the_page_of_an_operator() -> None:
    """A table whose heading and rows name no operator in backticks would be on no page; those of state_formats are of none."""
    on_pages = {line for name in DOCUMENTED for *_, table in benchmark_tables(name) for line in table.splitlines()}
    pages = [path for path in (ROOT / "docs/benchmarks").glob("*.md") if path.stem != "state_formats"]
    rows = {line for path in pages for line in path.read_text().splitlines() if "|" in line[:1]}
    assert not [row for row in rows - on_pages if not row.startswith("| torch.add")]


if __name__ == "__main__":
    (ROOT / ".example_env").write_text(example_env())
