"""How the commands print: tables through rich, JSON for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def console() -> Console:
    from rich.console import Console

    terminal = Console(highlight=False, markup=False)
    # Without a terminal, rich assumes 80 columns and folds what is longer; a log or a pipe has no width.
    return terminal if terminal.is_terminal else Console(highlight=False, markup=False, width=10_000)


def show(terminal: Console, rendered: Table) -> None:
    if terminal.is_terminal:
        terminal.print(rendered)
        return
    with terminal.capture() as captured:
        terminal.print(rendered)
    print("\n".join(line.rstrip() for line in captured.get().strip("\n").splitlines()))  # rich pads lines to the table's width


def table(*columns: str, title: str | None = None) -> Table:
    """Columns whose name begins with ">" are set flush right."""
    from rich import box
    from rich.table import Table

    result = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        result.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    return result


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


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
