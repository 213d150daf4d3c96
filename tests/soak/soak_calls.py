"""What the calls of one sequence are: the same for the engine, which batches the calls of many, and for the oracle, which
repeats those of one alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from soak_pools import Pool

DRAFTS = 4  # tokens of a verify
TREE = 6  # tokens of a tree


@dataclass(frozen=True)
class Call:
    """A sequence's part in one call."""

    # "prompt", "plain", "layer", "ring", "chain", "slots", "tree", "replay", "ring verify", or between calls "fold": the state
    # gets the tokens that it lacks, "leave": back to plain steps, or "moved"
    op: str
    ids: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()  # the tokens that are accepted
    parents: tuple[int, ...] = ()
    fresh: bool = False  # a prompt that begins with zeros
    checkpoint: tuple[str, int] = ("", 0)  # how the call of a prompt reports states: ("every", 64) or ("offset", n)
    # The end of a prefix: the row of the checkpoints whose state goes on, −1 for the last state, and the tokens before it.
    taken: tuple[int, int] | None = None
    fold: bool = False  # a step that gives the state the tokens that it lacks
    to: int = 0  # the pool that a request is moved to, or begins in
    batch: str = field(default="", compare=False)  # the shapes of the engine's call

    def cut(self, row: int, token: int) -> Call:
        """This call as the end of a prefix."""
        return replace(self, taken=(row, token), kept=self.kept[:token])

    def __str__(self) -> str:
        if not self.ids:
            return f"{self.op} {self.batch}"
        tree = f", parents {list(self.parents)}" if self.parents else ""
        state = f", fresh {self.fresh}, checkpoint {self.checkpoint}" if self.op == "prompt" else ", fold" * self.fold
        return (
            f"{self.op} of {len(self.ids)} tokens, kept {len(self.kept)}{tree}{state}; in a call of {self.batch or 'its own'}"
        )


@dataclass
class Seat:
    """Where a sequence's states are."""

    pool: Pool
    slots: list[int]  # the first one is its home, which has the inputs of the convolution
    mode: str = "plain"
    accepted: int = 0  # of the last verify, where the next call applies them
    conv_accepted: int = DRAFTS  # which columns of the convolution's state count: the last ones


def tokens_of(op: str) -> int:
    return {"plain": 1, "ring": 1, "layer": 1, "tree": TREE}.get(op, DRAFTS)


def path_to(node: int, parents: tuple[int, ...]) -> list[int]:
    """The tokens from the root to a node."""
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path
