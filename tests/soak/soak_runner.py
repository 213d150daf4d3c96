"""Executes calls: packed prompts, and padded steps, which on a GPU are graph replays."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from soak_calls import DRAFTS, TREE, Call, Seat, path_to, tokens_of
from soak_layer import LATE, STEP_NAMES, WIDTH, Layer, Rows
from soak_pools import Pool, States, spoil
from torch import Tensor

WIDTHS = (4, 8, 16)  # sequences of a padded step
PAD = -1


class Result(NamedTuple):
    """A call's results for one sequence: those of accepted tokens, and the checkpoints' rows."""

    mixed: Tensor
    out: Tensor
    checkpoints: Tensor | None = None


class Runner:
    def __init__(self, layer: Layer, graphs: bool) -> None:
        self.layer, self.graphs = layer, graphs
        self.captured: dict[tuple[str, int, int], tuple[Rows, tuple[Tensor, ...], torch.cuda.CUDAGraph]] = {}
        self.memory = torch.cuda.graph_pool_handle() if graphs else None

    def tensor(self, values: Sequence, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.layer.device)

    # ---- Prompts

    def prompts(
        self,
        pool: Pool,
        seats: list[Seat],
        calls: list[Call],
        pads: Sequence[tuple[int, int]] = (),
        targets: list[int] | None = None,
    ) -> list[Result]:
        """`pads`: (place, tokens) of sequences with a negative slot; `targets`: slots that are written in place of those that
        are read. All calls report checkpoints in the same way."""
        kind, every = calls[0].checkpoint[0], calls[0].checkpoint[1] if calls[0].checkpoint[0] == "every" else 0
        homes = [seat.slots[0] for seat in seats]
        sequences = list(zip(calls, homes, targets or homes, strict=True))
        for place, tokens in pads:
            sequences.insert(place, (Call("prompt", (0,) * tokens, checkpoint=(kind, every)), PAD, PAD))
        ends = [0, *accumulate(len(call.ids) for call, _, _ in sequences)]
        options: Rows | dict[str, int] = {}
        if kind == "every":
            options = {"checkpoint_every": every}
        elif kind == "offset":
            options = {"checkpoint_offsets": self.tensor([call.checkpoint[1] for call, _, _ in sequences])}
        if targets:
            options["write_indices"] = self.tensor([target for _, _, target in sequences])
            pool.tensors["conv"][targets] = pool.tensors["conv"][homes]
        ids = self.tensor([token for call, _, _ in sequences for token in call.ids])
        slots = self.tensor([home for _, home, _ in sequences], torch.int32)
        fresh = self.tensor([call.fresh for call, _, _ in sequences], torch.bool)
        mixed, out, checkpoints = self.layer.prompt(pool, ids, slots, self.tensor(ends, torch.int32), fresh, **options)
        results, row = [], 0
        for (call, slot, _), (first, end) in zip(sequences, pairwise(ends), strict=True):
            rows = (end - first) // every if every else 1
            if slot != PAD:
                kept = slice(first, first + len(call.kept))
                own = None if checkpoints is None else checkpoints[row : row + rows].clone()
                results.append(Result(mixed[kept].clone(), out[kept].clone(), own))
            row += rows
        return results

    # ---- Steps

    def steps(self, op: str, pool: Pool, seats: list[Seat], calls: list[Call], width: int, places: list[int]) -> list[Result]:
        """Sequence i is row places[i] of a call of `width` rows, and row i's states go to row −i of step_states."""
        values = self.padding(op, width)
        for place, seat, call in zip(places, seats, calls, strict=True):
            values["ids"][place], values["homes"][place] = list(call.ids), seat.slots[0]
            values["conv_accepted"][place], values["accepted"][place] = seat.conv_accepted, seat.accepted
            values["step_slots"][place], values["folds"][place] = width - 1 - place, call.fold
            if op == "slots":
                values["states"][place] = list(seat.slots)
            if op == "tree":
                values["parents"][place] = list(call.parents)
                values["windows"][place] = [_window(path_to(node, call.parents)[:-1]) for node in range(TREE)]
        mixed, out, columns, stored = self.launch(op, pool, width, values)
        results = []
        for place, seat, call in zip(places, seats, calls, strict=True):
            kept = self.tensor(call.kept)
            results.append(Result(mixed[place, kept], out[place, kept]))
            _accept(op, seat, call)
        rows, homes = self.tensor(places), self.tensor([seat.slots[0] for seat in seats])
        last = self.tensor([call.kept[-1] for call in calls])
        for name, states in stored.items():
            pool.tensors[name][homes] = states[width - 1 - rows, last]
        if op == "tree":
            windows = self.tensor([_window(call.kept) for call in calls])[:, None].expand(-1, columns.shape[1], -1)
            pool.tensors["conv"][homes, :, 1 - WIDTH :] = columns[rows].gather(-1, windows)
        return results

    def padding(self, op: str, width: int) -> dict[str, list]:
        tokens, pad = tokens_of(op), PAD if self.layer.null_slot is None else self.layer.null_slot
        rows = {name: [value] * width for name, value in (("homes", pad), ("conv_accepted", 1), ("accepted", 2))}
        rows |= {
            "step_slots": [PAD] * width,
            "folds": [False] * width,
            "ids": [[0] * tokens] * width,
            "states": [[pad] * tokens] * width,
        }
        if op == "tree":
            rows |= {"parents": [[PAD] * TREE] * width, "windows": [[list(range(WIDTH - 1))] * TREE] * width}
        return rows

    def values(self, op: str, pool: Pool, width: int, given: dict[str, list]) -> Rows:
        values = {name: self.tensor(each, torch.bool if name == "folds" else torch.int64) for name, each in given.items()}
        return values | self.layer.steps(op, width, pool)

    def launch(self, op: str, pool: Pool, width: int, given: dict[str, list]) -> tuple[Tensor, Tensor, Tensor, States]:
        """(outputs of the convolution, outputs, a tree's inputs of the convolution, stored states)."""
        if not self.graphs:
            x = self.values(op, pool, width, given)
            mixed, out, columns = self.layer.step(op, pool, x)
        else:
            x, (mixed, out, columns), graph = self.captured[op, pool.number, width]
            for name, each in given.items():
                x[name].copy_(self.tensor(each, x[name].dtype))
            for name in STEP_NAMES.values():
                if name in x:
                    spoil(x[name])
            graph.replay()
        return mixed, out, columns, {name: x[step] for name, step in STEP_NAMES.items() if step in x}

    def capture(self, pools: list[Pool]) -> None:
        """As an engine does when it starts. The call before a capture, which compiles and loads kernels, is padding alone."""
        for op in self.layer.ops if self.graphs else ():
            for width in WIDTHS:
                for pool in pools:
                    x = self.values(op, pool, width, self.padding(op, width))
                    self.layer.step(op, pool, x)
                    torch.cuda.synchronize()
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph, pool=self.memory):
                        results = self.layer.step(op, pool, x)
                    self.captured[op, pool.number, width] = (x, results, graph)

    # ---- Between calls

    def leave(self, seat: Seat) -> None:
        """Back to plain steps: the state gets the tokens it lacks, and the convolution's last columns count."""
        pool, (home, *others), accepted = seat.pool, seat.slots, seat.accepted
        if seat.mode in LATE:
            self.fold(seat)
        if seat.mode == "slots" and accepted:
            pool.put([home], pool.states([seat.slots[accepted - 1]]))
        if others:
            pool.give_back(others)
        if seat.conv_accepted != DRAFTS:
            state, first = pool.tensors["conv"][home], seat.conv_accepted - 1
            state[:, 1 - WIDTH :] = state[:, first : first + WIDTH - 1].clone()
        seat.slots, seat.mode, seat.accepted, seat.conv_accepted = [home], "plain", 0, DRAFTS

    def fold(self, seat: Seat) -> None:
        """The state gets the tokens that it lacks, so that others may read it; steps go on."""
        counts = None if seat.mode == "ring" else self.tensor([seat.accepted], torch.int32)
        self.layer.commit(seat.mode, seat.pool, self.tensor(seat.slots[:1]), counts)
        seat.accepted = 0

    def enter(self, seat: Seat, mode: str) -> None:
        if mode == "slots":
            seat.slots += seat.pool.take(DRAFTS - 1)
        seat.mode = mode

    def run(self, seat: Seat, call: Call) -> Result | None:
        """One sequence's call by itself."""
        between = {"leave": self.leave, "fold": self.fold}.get(call.op)
        if between is not None:
            between(seat)
            return None
        if call.op == "prompt":
            return self.prompts(seat.pool, [seat], [call])[0]
        op = self.layer.instead.get(call.op, call.op)
        if seat.mode != op:
            self.enter(seat, op)
        return self.steps(op, seat.pool, [seat], [call], 1, [0])[0]


def _window(path: Sequence[int]) -> list[int]:
    """Which columns of a tree's inputs, after those of the state, are the last ones of a path."""
    return [*range(WIDTH - 1), *(WIDTH - 1 + node for node in path)][1 - WIDTH :]


def _accept(op: str, seat: Seat, call: Call) -> None:
    if op in ("chain", "slots", "replay", "ring verify"):
        seat.conv_accepted = len(call.kept)
    if op in ("slots", "replay", "ring verify"):
        seat.accepted = len(call.kept)


def shuffled_places(rng: random.Random, count: int) -> tuple[int, list[int]]:
    """The width of a padded step, and the rows of its sequences."""
    width = next(each for each in WIDTHS if each >= count)
    return width, rng.sample(range(width), count)
