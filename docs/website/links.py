"""Links between pages, which are named by their path from the site's root: "operators/fused_decode.md"."""

from __future__ import annotations

import os
import re
from pathlib import Path

import docstrings

LINK = re.compile(r"\]\(([^)#\s]+)((?:#[^)\s]+)?)\)")


def targets() -> dict[str, str]:
    """Pages of names in backticks, relative to the site's root."""
    found = {f"gdn_cuda.{name}": f"api/{name}.md" for name in ("nn", "compat", "reference")}
    for family in docstrings.FAMILIES:
        for name in (*docstrings.operators(family), *docstrings.types(family)):
            found[name] = found[f"gdn_cuda.{name}"] = f"operators/{name}.md"
    for name in docstrings.modules():
        found[name] = found[f"gdn_cuda.nn.{name}"] = f"api/nn.md#{name.lower()}"
    for name in docstrings.runtime_functions():
        found[f"gdn_cuda.{name}"] = f"api/runtime.md#{name}"
    return found


def linked(text: str, page: str) -> str:
    """With links at the names of operators and of pages, outside of code and headings."""
    known = targets()

    def to_name(match: re.Match[str]) -> str:
        target = known.get(match[1])
        return f"[`{match[1]}`]({relative(target, page)})" if target and target.split("#")[0] != page else match[0]

    def to_page(match: re.Match[str]) -> str:
        return f"[{match[0]}]({relative(match[0], page)})"

    lines, fenced = [], False
    for line in text.split("\n"):
        fenced ^= line.lstrip().startswith("```")
        if not fenced and not line.startswith(("#", "    ", "```")):
            line = re.sub(r"(?<![\w\[/])(?<!\]\()docs/[\w/]+\.md(?![\w\]`])", to_page, line)
            line = re.sub(r"(?<!\[)`([\w.]+)`(?!\])", to_name, line)
        lines.append(line)
    return "\n".join(lines)


def relative(target: str, page: str) -> str:
    path, _, anchor = target.partition("#")
    relative = os.path.relpath(path, Path(page).parent)
    return f"{relative}#{anchor}" if anchor else relative
