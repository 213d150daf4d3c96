"""Output of the commands, tables by rich and JSON, within the character set and the width of the terminal."""

from __future__ import annotations

import codecs
import functools
import json
import os
import sys
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Column, Table

# Characters, enough for names of kernels; on a terminal, longer words, such as paths, are folded in a column.
READABLE_WIDTH = 40
PIPED_WIDTH = 100
COLUMN_GAP = 3  # rich's gap between columns

# ---- Characters

IN_ASCII = {"µ": "u", "×": "x", "÷": "/", "…": "..."}


def _replacement(error: UnicodeError) -> tuple[str | bytes, int]:
    """A codec error handler: one character in ASCII; undecodable bytes of file names are written unchanged."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character, after = error.object[error.start], error.start + 1
    if "\udc80" <= character <= "\udcff":
        return bytes([ord(character) - 0xDC00]), after
    return IN_ASCII.get(character, ascii(character)[1:-1]), after


def print_in_any_encoding() -> None:
    """Replaces characters that the output's encoding lacks, where Python would raise UnicodeEncodeError."""
    codecs.register_error("gdn_cuda.replacement", _replacement)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="gdn_cuda.replacement")


_indented = functools.partial(json.dumps, indent=2)


def print_json(value: Any, dumps: Callable[..., str] = _indented) -> None:
    text = dumps(value, ensure_ascii=False)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:  # replacing characters would change the data
        text = dumps(value, ensure_ascii=True)
    print(text)


# ---- Tables


def console() -> Console:
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise  # rich would exit with 1

    terminal = Terminal(highlight=False, markup=False)
    return terminal if terminal.is_terminal else Terminal(highlight=False, markup=False, width=_piped_width())


def _piped_width() -> int:
    """A log or a pipe has no width of its own; shells tell it to programs only where COLUMNS is exported."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) > 0 else PIPED_WIDTH


def wrap(terminal: Console, text: str, indent: int) -> str:
    """Lines of at most the terminal's width where words allow it; the first has `indent` spaces, the others four more.
    `name = value` stays together."""
    together = text.replace(" = ", "\xa0=\xa0")  # textwrap does not break at these
    first, others = " " * indent, " " * (indent + 4)
    lines = textwrap.wrap(
        together, terminal.width, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines).replace("\xa0", " ")


def table(*columns: str, title: str | None = None) -> Table:
    """A table; columns whose name begins with ">" are right-aligned."""
    from rich import box
    from rich.table import Table

    result = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        result.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    return result


def show(terminal: Console, rendered: Table) -> None:
    longest = READABLE_WIDTH if terminal.is_terminal else None  # in a file words stay whole, so that they can be searched for
    widths = _widths(rendered.columns, terminal.width, longest)
    if widths is None:
        _show_as_records(terminal, rendered)
        return
    for column, width in zip(rendered.columns, widths, strict=True):
        column.width = width
    if terminal.is_terminal:
        terminal.print(rendered)
        return
    with terminal.capture() as captured:
        terminal.print(rendered)
    lines = captured.get().strip("\n").splitlines()
    print("\n".join(line.rstrip() for line in lines))  # rich pads lines to the table's width


def _widths(columns: list[Column], available: int, longest: int | None) -> list[int] | None:
    """Widths of the columns that split no number and no word of up to `longest` characters; None if they do not fit."""
    texts = [[str(column.header), *map(str, column.cells)] for column in columns]
    wanted = [max(map(len, cells)) for cells in texts]
    widths = []
    for column, (header, *cells) in zip(columns, texts, strict=True):
        words = [word for text in ([header] if column.justify == "right" else [header, *cells]) for word in text.split()]
        least = max([1, *(min(len(word), longest or len(word)) for word in words)])
        widths.append(max([least, *map(len, cells)]) if column.justify == "right" else least)
    room = available - sum(widths) - COLUMN_GAP * (len(columns) - 1)
    if room < 0:
        return None
    for _ in range(room):
        lacks = [want - width for want, width in zip(wanted, widths, strict=True)]
        if max(lacks) <= 0:
            break
        widths[lacks.index(max(lacks))] += 1
    return widths


def _show_as_records(terminal: Console, rendered: Table) -> None:
    """Prints each row as a paragraph: its unnamed cells and its first named cell, then a line for each other cell."""
    from rich.text import Text

    if rendered.title:
        terminal.print(rendered.title, soft_wrap=True)
    headers = [str(column.header) for column in rendered.columns]
    named = next(i for i, header in enumerate(headers) if header)
    for row in zip(*(column.cells for column in rendered.columns), strict=True):
        cells = [cell if isinstance(cell, Text) else Text(str(cell)) for cell in row]
        terminal.print(Text(" ").join(cells[: named + 1]), soft_wrap=True)
        for header, cell in zip(headers[named + 1 :], cells[named + 1 :], strict=True):
            if cell:
                terminal.print(Text.assemble("  ", f"{header}: " if header else "", cell), soft_wrap=True)


# ---- Quantities


def human_bytes(count: float) -> str:
    for unit in ("B", "KB", "MB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GB"


def human_age(seconds: float) -> str:
    seconds = max(seconds, 0)  # a clock may have been ahead
    for limit, size, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"
