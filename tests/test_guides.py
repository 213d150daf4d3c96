"""The Python examples of README.md and docs run on a CPU, in the order of their page, with the results in their comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gdn_cuda

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
RESULT = re.compile(r"^(.+?)  # (tensor\(.*\)|torch\.Size\(.*\)|True|\(.*(?:True|False|\]\))\))$")
# Blocks with these need a GPU, or the package `kernels` and a published repository.
NOT_HERE = ('device="cuda"', "get_kernel(")
# The least number of results to compare. The page that is left out shows parts of a new operator's files.
RESULTS = {
    "README.md": 1,
    "docs/conv.md": 7,
    "docs/hub.md": 0,
    "docs/integrations.md": 0,
    "docs/jit.md": 0,
    "docs/kernels/gdn_prefill.md": 0,
    "docs/parallel.md": 1,
    "docs/performance.md": 0,
    "docs/recipes.md": 4,
    "docs/scan.md": 8,
    "docs/start.md": 3,
    "docs/structured.md": 8,
    "docs/training.md": 2,
}
LEFT_OUT = {"docs/architecture.md"}


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Collects the kernels that examples would load on a GPU, without loading them; tensors are on the CPU."""
    found: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gdn_cuda, "warmup", lambda *names, **fields: found.extend(gdn_cuda.runtime.select(*names, **fields)))
    yield found
    torch.set_default_device(None)


def test_every_page_with_examples_is_run() -> None:
    pages = {path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]}
    assert {page for page in pages if BLOCK.search((ROOT / page).read_text())} == {*RESULTS, *LEFT_OUT}


@pytest.mark.parametrize("page", RESULTS)
def test_the_examples_of_a_page_give_their_stated_results(page: str, chosen: list[Any]) -> None:
    if not (ROOT / page).exists():
        pytest.skip(f"{page} is not in this tree")
    said: list[str] = []
    names: dict[str, Any] = {"print": lambda text: said.append(str(text)), "serve": lambda: None}
    compared = 0
    for block in BLOCK.findall((ROOT / page).read_text()):
        if any(marker in block for marker in NOT_HERE):
            continue
        exec(block, names)
        for line in block.splitlines():
            found = RESULT.match(line)
            if found and not line.startswith(" ") and found[1].count("(") == found[1].count(")"):
                assert repr(eval(found[1], names)) == found[2], line
                compared += 1
        assert chosen or "warmup(" not in block
    assert compared >= RESULTS[page]
    if page == "docs/start.md":
        assert "gdn/prefill" in said[0]
