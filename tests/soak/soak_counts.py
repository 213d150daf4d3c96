"""What a soak counts, and the table of docs/benchmarks/soak.md."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Counts:
    steps: int = 0
    requests: int = 0
    prompt_tokens: int = 0
    step_tokens: int = 0
    rejected: int = 0
    preemptions: int = 0
    moves: int = 0
    prefixes: int = 0
    kept: int = 0
    calls: Counter = field(default_factory=Counter)
    compared: int = 0  # results of calls, and last states
    different: int = 0  # those that have other bits than alone
    literal: int = 0  # requests compared with the recurrence in fp64
    worst: dict[str, float] = field(default_factory=dict)  # relative RMS errors, or of differences where bits are not promised

    def error(self, name: str, value: float) -> None:
        self.worst[name] = max(value, self.worst.get(name, 0.0))


HEADER = (
    "| layer | steps | requests | tokens of prompts | of steps | rejected | preempted | moved | from prefixes "
    "| compared | other bits | in fp64 | error, output | state |"
)


def row(name: str, counts: Counts) -> str:
    worst = [f"{counts.worst[key]:.1e}" if key in counts.worst else "" for key in ("out", "state")]
    numbers = (counts.steps, counts.requests, counts.prompt_tokens, counts.step_tokens, counts.rejected, counts.preemptions)
    more = (counts.moves, counts.prefixes, counts.compared, counts.different, counts.literal)
    return "| " + " | ".join([name, *(f"{n:,}" for n in (*numbers, *more)), *worst]) + " |"


def table(rows: dict[str, Counts]) -> str:
    line = "|" + "---|" * HEADER.count(" | ") + "---|"
    return "\n".join([HEADER, line, *(row(name, counts) for name, counts in rows.items())])
