"""The examples of the guides to families run, in order, and give what their comments say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
RESULT = re.compile(r"^(.+?)  # (tensor\(.*\)|torch\.Size\(.*\)|True|\(.*(?:True|\]\))\))$")


@pytest.mark.parametrize(("guide", "results"), [("structured", 8), ("scan", 5), ("conv", 7), ("recipes", 4)])
def test_the_examples_of_a_guide_give_their_stated_results(guide: str, results: int) -> None:
    page = DOCS / f"{guide}.md"
    if not page.exists():
        pytest.skip(f"docs/{guide}.md is not in this tree")
    names: dict[str, Any] = {}
    compared = 0
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        if 'device="cuda"' in block:
            continue
        exec(block, names)
        for line in block.splitlines():
            found = RESULT.match(line)
            if found and not line.startswith(" ") and found[1].count("(") == found[1].count(")"):
                assert repr(eval(found[1], names)) == found[2], line
                compared += 1
    assert compared >= results
