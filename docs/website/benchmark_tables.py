"""Tables of docs/benchmarks, by operator."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import docstrings
from contents import ROOT, pages_of


def benchmark_tables(name: str) -> Iterator[tuple[Path, str, str]]:
    """(page, title, table) for every table of docs/benchmarks that is of this operator: the heading above it, or its rows, have
    the name in backticks. Of a table with several operators, the rows from this name to the next one."""
    for page in (ROOT / each for each in pages_of("docs/benchmarks")):
        title, lines = "", iter([*page.read_text().splitlines(), ""])
        table: list[str] = []
        for line in lines:
            if line.startswith("#"):
                title = line.lstrip("# ")
            if line.startswith("|"):
                table.append(line)
            elif table:
                head, rows = table[:2], _rows_of(name, title, table[2:])
                if rows:
                    yield page, title, "\n".join([*head, *rows])
                table = []


def _rows_of(name: str, title: str, rows: list[str]) -> list[str]:
    """A row without an operator's name belongs to the operators of the row before it, in the end of the title."""
    public = {each for family in docstrings.FAMILIES for each in docstrings.operators(family)}
    found, current = [], set(_named(title))
    for row in rows:
        current = public & set(_named(row)) or current
        if name in current:
            found.append(row)
    return found


def _named(text: str) -> list[str]:
    return re.findall(r"`(\w+)[^`]*`", text)
