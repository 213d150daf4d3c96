"""A small engine: it draws requests and every decision of a scheduler from a seed, and batches what is to be computed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from soak_calls import DRAFTS, TREE, Call, Seat, path_to, tokens_of
from soak_counts import Counts
from soak_layer import LATE, VOCABULARY, Layer
from soak_pools import Pool, States
from soak_runner import WIDTHS, Result, Runner, shuffled_places
from soak_streams import Streams
from torch import Tensor


@dataclass(frozen=True)
class Load:
    prompt: int  # tokens of the longest prompt
    generated: int  # and of the longest answer
    budget: int  # tokens of prompts in a call
    slots: int  # of each of two pools
    arrivals: float = 0.6  # requests in a step
    steps: int = 40  # with arrivals; then running requests end


@dataclass(frozen=True)
class Prefix:
    """A state of the prefix cache, and the calls that it is from."""

    ids: tuple[int, ...]
    calls: tuple[Call, ...]
    states: States


@dataclass
class Request:
    number: int
    ids: list[int]  # of the prompt and of all that will be generated
    prompt: int
    prefix: Prefix | None = None
    done: int = 0  # tokens
    calls: list[Call] = field(default_factory=list)
    results: list[Result | None] = field(default_factory=list)
    seat: Seat | None = None
    saved: tuple[dict[str, Tensor], Seat] | None = None  # of a preempted request


class Engine:
    def __init__(self, layer: Layer, load: Load, graphs: bool) -> None:
        self.layer, self.load, self.counts = layer, load, Counts()
        self.runner = Runner(layer, graphs)
        self.pools = [layer.pool(load.slots, number) for number in range(2)]
        self.runner.capture(self.pools)
        self.reset(0)

    def reset(self, seed: int) -> None:
        self.rng = random.Random(f"{seed} {self.layer.name}")
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.cache: list[Prefix] = []
        self.left: list[tuple[Pool, list[int]]] = []  # slots that a call of this step has read and not written
        self.number = self.now = 0
        for pool in self.pools:
            pool.reset()

    @property
    def idle(self) -> bool:
        return self.now >= self.load.steps and not self.running and not self.waiting

    def close(self) -> None:
        """Without requests no memory is kept, and no call has written to slots without a sequence."""
        self.cache.clear()
        self.free_left()
        for pool in self.pools:
            pool.check_unused()

    def free_left(self) -> None:
        for pool, slots in self.left:
            pool.give_back(slots)
        self.left.clear()

    def step(self, streams: Streams) -> list[Request]:
        """The requests that have ended. Their seats are still theirs: `end` frees them."""
        self.free_left()
        self.arrive()
        self.preempt()
        self.admit()
        self.move()
        prompts = [r for r in self.running if r.done < r.prompt]
        others = [r for r in self.running if r.done >= r.prompt]
        with streams.both():
            with streams.on(0):
                self.read_prompts(prompts)
            with streams.on(1):
                self.generate(others)
        self.now += 1
        self.counts.steps += 1
        return [r for r in self.running if r.done == len(r.ids)]

    # ---- Requests come and go

    def drawn_ids(self, count: int) -> list[int]:
        return [self.rng.randrange(VOCABULARY) for _ in range(count)]

    def length(self, most: int) -> int:
        """From 1 to `most`: most are drawn on a scale of logarithms, so that every order of magnitude is as frequent."""
        return self.rng.randint(1, most) if self.rng.random() < 0.3 else max(1, round(most ** self.rng.random()))

    def arrive(self) -> None:
        if self.now >= self.load.steps or self.rng.random() > self.load.arrivals or len(self.waiting) > 8:
            return
        prefix = self.rng.choice(self.cache) if self.cache and self.rng.random() < 0.5 else None
        ids = list(prefix.ids) if prefix else []
        ids += self.drawn_ids(self.length(self.load.prompt))
        request = Request(self.number, ids + self.drawn_ids(self.length(self.load.generated)), len(ids), prefix)
        if prefix:
            request.done, request.calls, request.results = len(prefix.ids), list(prefix.calls), [None] * len(prefix.calls)
            self.counts.prefixes += 1
        self.number += 1
        self.waiting.append(request)

    def admit(self) -> None:
        """A new, prefixed or resumed request gets slots in any pool that has them, and its states."""
        for request in list(self.waiting):
            needed = len(request.saved[1].slots) if request.saved else 1
            pools = [pool for pool in self.pools if len(pool.free) >= needed]
            if not pools or len(self.running) >= WIDTHS[-1]:
                return
            pool = self.rng.choice(pools)
            slots = pool.take(needed)
            request.seat = Seat(pool, slots)
            if request.saved:
                request.seat = replace(request.saved[1], pool=pool, slots=slots)
                pool.load(slots, request.saved[0])
            elif request.prefix:
                start(self.layer, request.seat, request.prefix.ids, request.prefix.states)
            self.note(request, "moved")
            request.saved = None
            self.waiting.remove(request)
            self.running.append(request)

    def preempt(self) -> None:
        if not self.running or self.rng.random() > 0.15:
            return
        request = self.rng.choice(self.running)
        seat = request.seat
        assert seat is not None
        self.maybe_fold(request)
        request.saved, request.seat = (seat.pool.save(seat.slots), seat), None
        seat.pool.give_back(seat.slots)
        self.running.remove(request)
        self.waiting.insert(self.rng.randint(0, len(self.waiting)), request)
        self.counts.preemptions += 1

    def move(self) -> None:
        """A running request's states go to other slots, of the same pool or the other."""
        if not self.running or self.rng.random() > 0.15:
            return
        request, pool = self.rng.choice(self.running), self.rng.choice(self.pools)
        seat = request.seat
        assert seat is not None
        if len(pool.free) < len(seat.slots):
            return
        self.maybe_fold(request)
        slots = pool.take(len(seat.slots))
        pool.load(slots, seat.pool.save(seat.slots))
        seat.pool.give_back(seat.slots)
        seat.pool, seat.slots = pool, slots
        self.note(request, "moved")
        self.counts.moves += 1

    def maybe_fold(self, request: Request) -> None:
        """Before states are copied. Otherwise what they lack is copied with them."""
        assert request.seat is not None
        if request.seat.mode in LATE and self.rng.random() < 0.5:
            self.runner.fold(request.seat)
            self.note(request, "fold")

    def end(self, request: Request) -> None:
        assert request.seat is not None
        request.seat.pool.give_back(request.seat.slots)
        self.running.remove(request)

    # ---- Prompts

    def read_prompts(self, requests: list[Request]) -> None:
        """One call for each pool, over the next tokens of some prompts, which end at any token."""
        for pool in self.pools:
            mine = [r for r in requests if r.seat is not None and r.seat.pool is pool and self.rng.random() < 0.8]
            self.rng.shuffle(mine)
            left, chosen, calls = self.load.budget, [], []
            every = self.rng.choice(("", "every", "offset")) if self.layer.reports else ""
            for request in mine[: 1 + left // 8]:
                rest = request.prompt - request.done
                count = min(left, rest if self.rng.random() < 0.4 else self.rng.randint(1, rest))
                if count > 0:
                    left -= count
                    chosen.append(request)
                    calls.append(self.prompt_call(request, count, every))
            if chosen:
                self.call_prompts(pool, chosen, calls)

    def prompt_call(self, request: Request, count: int, kind: str) -> Call:
        value = {"every": 64, "offset": self.rng.randint(0, count)}.get(kind, 0)
        ids = tuple(request.ids[request.done : request.done + count])
        return Call("prompt", ids, tuple(range(count)), fresh=request.done == 0, checkpoint=(kind, value))

    def call_prompts(self, pool: Pool, requests: list[Request], calls: list[Call]) -> None:
        pads = []
        if self.layer.reports and self.rng.random() < 0.5:
            pads = [(self.rng.randint(0, len(calls)), self.rng.randint(0, 3))]
        seats = [r.seat for r in requests if r.seat is not None]
        targets = None
        if self.layer.reports and self.rng.random() < 0.3 and len(pool.free) >= len(calls):
            targets = pool.take(len(calls))
        shapes = f"{len(calls)} prompts of {[len(c.ids) for c in calls]}, slots {[s.slots[0] for s in seats]} of pool"
        calls = [replace(c, batch=f"{shapes} {pool.number}, to {targets or 'the same'}, padding {pads}") for c in calls]
        results = self.runner.prompts(pool, seats, calls, pads, targets)
        for seat, target in zip(seats, targets or (), strict=False):
            self.left.append((pool, seat.slots))
            seat.slots = [target]
        for request, call, result in zip(requests, calls, results, strict=True):
            self.accept(request, call, result)
            self.counts.prompt_tokens += len(call.ids)
            if self.rng.random() < (0.6 if call.checkpoint[0] == "every" and len(call.ids) >= 64 else 0.2):
                self.keep(request, call, result)

    def keep(self, request: Request, call: Call, result: Result) -> None:
        """A checkpoint of the call, or the state at its end, goes to the prefix cache."""
        kind, value = call.checkpoint
        rows = {"every": len(call.ids) // 64, "offset": 1}.get(kind, 0)
        row, token = -1, len(call.ids)
        if rows and not (kind == "offset" and value == 0):
            row = self.rng.randrange(rows)
            token = value if kind == "offset" else 64 * (row + 1)
        assert request.seat is not None
        states = request.seat.pool.states(request.seat.slots[:1])
        if row >= 0:
            assert result.checkpoints is not None
            states = {"state": result.checkpoints[row : row + 1]}
        ids = tuple(request.ids[: request.done - len(call.ids) + token])
        if len(ids) <= 2 * self.load.prompt:
            self.cache = [*self.cache, Prefix(ids, (*request.calls[:-1], call.cut(row, token)), states)][-6:]
            self.counts.kept += 1

    # ---- Steps

    def generate(self, requests: list[Request]) -> None:
        for request in requests:
            self.choose_mode(request)
        for op in self.layer.ops:
            for pool in self.pools:
                chosen = [r for r in requests if r.seat is not None and r.seat.mode == op and r.seat.pool is pool]
                if chosen:
                    self.call_steps(op, pool, chosen)

    def choose_mode(self, request: Request) -> None:
        if self.rng.random() > 0.35:
            return
        mode = self.rng.choice(self.layer.ops)
        seat = request.seat
        assert seat is not None
        if seat.mode != "plain":
            self.leave(request)
        if mode != "slots" or len(seat.pool.free) >= DRAFTS - 1:
            self.runner.enter(seat, mode)

    def leave(self, request: Request) -> None:
        assert request.seat is not None
        self.runner.leave(request.seat)
        self.note(request, "leave")

    def note(self, request: Request, op: str) -> None:
        """What happens between calls, for the oracle or its message."""
        assert request.seat is not None
        at = f"{'to' if op == 'moved' else 'in'} slots {request.seat.slots} of pool {request.seat.pool.number}"
        request.calls.append(Call(op, to=request.seat.pool.number, batch=at))
        request.results.append(None)

    def call_steps(self, op: str, pool: Pool, requests: list[Request]) -> None:
        self.rng.shuffle(requests)
        width, places = shuffled_places(self.rng, len(requests))
        seats = [r.seat for r in requests if r.seat is not None]
        batch = f"{width} rows, rows {places}, slots {[s.slots[0] for s in seats]} of pool {pool.number}"
        calls = [replace(self.step_call(op, r), batch=batch) for r in requests]
        results = self.runner.steps(op, pool, seats, calls, width, places)
        for request, call, result in zip(requests, calls, results, strict=True):
            self.accept(request, call, result)
            self.counts.step_tokens += len(call.kept)
            self.counts.rejected += len(call.ids) - len(call.kept)
        self.counts.calls[op] += 1

    def step_call(self, op: str, request: Request) -> Call:
        """Drafts of which a random number is accepted: these are the request's next tokens."""
        next_ids = request.ids[request.done :]
        fold = op in LATE and self.rng.random() < 0.1
        if op != "tree":
            tokens = tokens_of(op)
            accepted = self.rng.randint(1, min(tokens, len(next_ids)))
            ids = (*next_ids[:accepted], *self.drawn_ids(tokens - accepted))
            return Call(op, ids, tuple(range(accepted)), fold=fold)
        parents = (-1, *(self.rng.randrange(node) for node in range(1, TREE)))
        path = path_to(self.rng.randrange(TREE), parents)[: len(next_ids)]
        ids = self.drawn_ids(TREE)
        for token, node in zip(next_ids, path, strict=False):
            ids[node] = token
        return Call(op, tuple(ids), tuple(path), parents)

    def accept(self, request: Request, call: Call, result: Result) -> None:
        request.calls.append(call)
        request.results.append(result)
        request.done += len(call.kept)


def start(layer: Layer, seat: Seat, ids: tuple[int, ...], states: States) -> None:
    """A slot begins with a prefix's state."""
    home = seat.slots[0]
    seat.pool.put([home], states)
    seat.pool.tensors["conv"][home, :, -layer.weight.shape[1] + 1 :] = layer.window(ids)
