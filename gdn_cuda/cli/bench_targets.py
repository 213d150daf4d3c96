"""The targets that the rows of a report are compared with, from benchmarks/targets.json: times to reach, set before a row was
measured, and published times of other libraries, all on one device. A wheel lacks the file, and its reports these columns."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

Row = dict[str, Any]

FILE = Path(__file__).resolve().parents[2] / "benchmarks/targets.json"


class Targets:
    """The targets of an operator on a device. A figure is taken from the first rule that has it and whose `row` matches; it may
    depend on the kind of the row.

    A time to reach is `reach_us`; or `reach_of`, [text, other, factor]: the time of the row of the same kind with `other` in
    place of `text`, times the factor; or `reach_share` of the roof, plus a launch. `roof_us` is the roof of a row that
    neither bytes nor products bound.
    """

    def __init__(self, operator: str, device: str):
        known = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
        self.rules: list[Row] = known["targets"].get(operator, []) if known.get("device") == device else []
        self.launch_us: float = known.get("launch_us", 0)

    def roof_us(self, row: str, kind: str) -> float | None:
        return _by_kind(self._of(row, "roof_us"), kind)

    def peers_us(self, row: str, kind: str) -> dict[str, float]:
        peers: Row = self._of(row, "peers_us") or {}
        return {name: us for name, given in peers.items() if (us := _by_kind(given, kind)) is not None}

    def reach_us(self, row: str, kind: str, roof_us: float, before: list[Row]) -> float | None:
        """`before`: the rows that were measured before this one."""
        if reach_of := self._of(row, "reach_of"):
            text, other, factor = reach_of
            like = (row.replace(text, other), kind)
            return next((factor * each["time_us"] for each in before if (each["row"], each["kind"]) == like), None)
        if share := self._of(row, "reach_share"):
            return float(roof_us / share + self.launch_us)
        return _by_kind(self._of(row, "reach_us"), kind)

    def _of(self, row: str, figure: str) -> Any:
        return next((rule[figure] for rule in self.rules if figure in rule and fnmatchcase(row, rule["row"])), None)


def _by_kind(given: Any, kind: str) -> float | None:
    return given.get(kind) if isinstance(given, dict) else given
