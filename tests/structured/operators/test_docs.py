"""The examples of docs/structured.md run, in order, and give what their comments say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "structured.md"
RESULT = re.compile(r"^(.+?)  # (tensor\(.*\)|torch\.Size\(.*\)|True)")


def test_the_examples_in_the_documentation_give_their_stated_results() -> None:
    if not PAGE.exists():
        pytest.skip("docs/structured.md is not in this tree")
    names: dict[str, Any] = {}
    compared = 0
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        if 'device="cuda"' in block:
            continue
        exec(block, names)
        for line in block.splitlines():
            found = RESULT.match(line)
            if found and not line.startswith(" ") and found[1].count("(") == found[1].count(")"):
                assert repr(eval(found[1], names)) == found[2], line
                compared += 1
    assert compared >= 8
