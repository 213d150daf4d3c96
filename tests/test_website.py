"""The pages that `./develop.sh docs` passes to Sphinx, and the checks of its HTML."""

from __future__ import annotations

import re
import sys
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

import gdn_cuda

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs/website"))

import built  # noqa: E402
import contents  # noqa: E402
import docstrings  # noqa: E402
import llms  # noqa: E402
import pages  # noqa: E402
from links import LINK  # noqa: E402
from python_pages import PYTHON_PAGES  # noqa: E402


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("site")
    pages.write_site(folder / "pages", folder / "plain")
    return folder / "pages", folder / "plain"


def markdown(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob("*.md"))}


def test_docstrings_and_contents_are_complete() -> None:
    assert not [*docstrings.faults(), *contents.faults()]


def test_every_public_name_has_a_page(site: tuple[Path, Path]) -> None:
    found = markdown(site[0])
    names = [name for family in docstrings.FAMILIES for name in family.__all__]
    assert names and not [name for name in names if f"# {name}\n" not in found[f"operators/{name}.md"]]
    assert "`x2`: Tensor" in found["operators/Projections.md"]  # a NamedTuple: its fields
    assert "`gdn_cuda.InferenceMode.SPEC_VERIFY` = 2" in found["operators/InferenceMode.md"]
    assert "- `beta`, `gate`: (…, Hv)" in found["operators/recurrent_forward.md"]


@pytest.mark.parametrize("form", [0, 1], ids=["pages", "plain"])
def test_links_lead_to_pages_and_files(site: tuple[Path, Path], form: int) -> None:
    folder = site[form]
    lost = [
        (page, target)
        for page, text in markdown(folder).items()
        for target, _ in LINK.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        if "://" not in target and not (folder / page).parent.joinpath(target).exists()
    ]
    assert not lost


def test_llms_txt_lists_every_page_once(site: tuple[Path, Path]) -> None:
    pages_of_site, plain = map(markdown, site)
    assert set(plain) == set(pages_of_site)
    listed = [target for target, _ in LINK.findall((site[1] / "llms.txt").read_text())]
    assert sorted(listed) == sorted(plain)
    assert not [page for page, text in plain.items() if "{toctree}" in text or not llms.title_of(text)]
    whole = (site[1] / "llms-full.txt").read_text()
    assert not [page for page, text in plain.items() if text not in whole]


@pytest.mark.parametrize("form", [0, 1], ids=["pages", "plain"])
def test_a_page_shows_a_plot_where_the_repositorys_has_a_comment(site: tuple[Path, Path], form: int) -> None:
    found = markdown(site[form])
    for path in (ROOT / "docs/benchmarks").glob("*.md"):
        text = found[f"docs/benchmarks/{path.name}"]
        for name in pages.PLOT.findall(path.read_text()):
            assert f"](../../plots/{name}.svg)" in text and f"<!-- plot: {name} -->" not in text
            assert "<svg" in (site[form] / f"plots/{name}.svg").read_text()
    assert "](plots/chunked_forward_lengths.svg)" in found["docs/benchmarks/prefill.md"], "the committed one"


# ---- Faults are found


class _Exotic:
    """A public type that is neither an enumeration nor a NamedTuple."""


@pytest.mark.parametrize("public", [_Exotic, 3, IntEnum("Undocumented", "ONE")], ids=["class", "number", "no docstring"])
def test_a_public_name_that_has_no_page_is_found(monkeypatch: pytest.MonkeyPatch, public: Any) -> None:
    if isinstance(public, type) and public is not _Exotic:
        public.__doc__ = None
    monkeypatch.setattr(gdn_cuda.scan, "Exotic", public, raising=False)
    monkeypatch.setattr(gdn_cuda.scan, "__all__", [*gdn_cuda.scan.__all__, "Exotic"])
    (found,) = docstrings.unknown_names()
    assert found.startswith("Exotic: expected a ")


@pytest.mark.parametrize("place", ["docs", "docs/kernels", "docs/new", "docs/website"])
def test_a_page_in_no_list_is_found(tmp_path: Path, place: str) -> None:
    for path in [*ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.md"), *ROOT.glob("docs/**/*.md")]:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text() if copy == tmp_path / contents.INDEX else "# Page\n")
    assert not list(contents.faults(tmp_path))
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / "new.md").write_text("# New\n")
    # An index of a folder has all of its pages; there is no other folder.
    expected = [] if place in contents.FOLDERS else [f"{place}/new.md: docs/README.md does not list it"]
    assert list(contents.faults(tmp_path)) == expected
    (tmp_path / "docs/jit.md").unlink()
    assert "docs/jit.md: docs/README.md lists it, and it does not exist" in list(contents.faults(tmp_path))


def test_generated_pages_are_in_sections_of_the_index(site: tuple[Path, Path]) -> None:
    generated = {page for pages_of_section in contents.GENERATED.values() for page in pages_of_section}
    assert set(contents.GENERATED) <= set(contents.sections())
    assert generated == {*PYTHON_PAGES}


GOOD = (
    '<h1 id="one">One</h1><a href="#one">1</a><a href="b/two.html#x%C3%A9">2</a><img src="p.svg"><a href="https://x.org/">x</a>'
)


@pytest.mark.parametrize(
    ("page", "style", "fault"),
    [
        (GOOD, "", None),
        ('<a href="nowhere.html">1</a>', "", "links to nowhere.html, and there is no such file"),
        ('<a href="b">1</a>', "", "links to b, and there is no such file"),
        ('<a href="b/two.html#y">1</a>', "", "links to b/two.html#y, and that page has no such anchor"),
        ('<a href="#two">1</a>', "", "links to #two, and that page has no such anchor"),
        ('<img src="lost.svg">', "", "links to lost.svg, and there is no such file"),
        ('<script src="https://cdn.org/x.js"></script>', "", "loads https://cdn.org/x.js, which is not in this folder"),
        ('<link href="//fonts.org/x.css" rel="stylesheet">', "", "loads //fonts.org/x.css, which is not in this folder"),
        (GOOD, "@import 'https://fonts.org/x.css';", "loads @import 'https://fonts.org/x.css, which is not in this folder"),
        (GOOD, "a { background: url(//x.org/a.png); }", "loads url(//x.org/a.png, which is not in this folder"),
        (GOOD, "a { background: url(p.svg); }", None),
    ],
)
def test_faults_of_html_are_found(tmp_path: Path, page: str, style: str, fault: str | None) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "index.html").write_text(page)
    (tmp_path / "b/two.html").write_text('<a id="xé" href="../index.html">back</a>')
    (tmp_path / "b/two.md").write_text("[back](../index.html) [elsewhere](https://x.org)\n\n```text\n[i](j)\n```\n")
    (tmp_path / "p.svg").write_text("")
    (tmp_path / "s.css").write_text(style)
    found = list(built.Website(tmp_path).faults())
    assert found == ([] if fault is None else [f"{'s.css' if 'url(' in fault or '@' in fault else 'index.html'}: {fault}"])


def test_a_lost_link_in_markdown_is_found(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("[lost](lost.md)\n")
    assert list(built.Website(tmp_path).faults()) == ["page.md: links to lost.md, and there is no such file"]
