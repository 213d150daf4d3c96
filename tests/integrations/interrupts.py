"""Interrupts our modules at any line, as Ctrl-C does, without a clock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import gdn_cuda

OURS = str(Path(gdn_cuda.__file__).parent)


class Interrupt:
    """Counts the lines that our modules run, and raises at the n-th, as Ctrl-C does."""

    def __init__(self, line: int = 0):
        self.line, self.lines = line, []

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line":
            self.lines.append((frame.f_code.co_filename, frame.f_lineno))
            if len(self.lines) == self.line:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._trace

    def run(self, install: Callable[[], object]) -> None:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            install()
        finally:
            sys.settrace(before)


def steps(install: Callable[[], object]) -> list[int]:
    """For every line that `install` runs, the indices of its first and its last execution."""
    watched = Interrupt()
    watched.run(install)
    first = {line: n for n, line in reversed([*enumerate(watched.lines, 1)])}
    last = {line: n for n, line in enumerate(watched.lines, 1)}
    return sorted({*first.values(), *last.values()})
