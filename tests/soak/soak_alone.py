"""The oracles of a request: its own calls alone, one after the other in a pool of its own, and the recurrence in fp64."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from soak_calls import DRAFTS, Call, Seat
from soak_counts import Counts
from soak_engine import Request, start
from soak_layer import WIDTH, Layer
from soak_pools import Pool, decoded
from soak_runner import Result, Runner
from torch import Tensor

CONV = 4e-3  # the bound of a convolution in bf16, docs/numerics.md
FEW = 32  # with fewer tokens errors scatter, up to twice as large
# Relative RMS differences from the request alone, where bits are not promised: of what is rounded to 16 bits, in which some
# values are rounded to the other side, and of fp32 states.
ROUNDED, EXACT = 4e-3, 1e-5


class Alone(NamedTuple):
    results: list[Result | None]
    states: dict[str, Tensor]


class Oracle:
    def __init__(self, layer: Layer, by_kernels: bool) -> None:
        self.layer, self.by_kernels = layer, by_kernels
        self.runner = Runner(layer, graphs=False)
        self.pools: list[Pool] = [layer.pool(1 + DRAFTS, number) for number in range(len(layer.state_dtypes))]

    def pool(self, number: int = 0) -> Pool:
        """One of the dtype of that pool."""
        return self.pools[number % len(self.pools)]

    def reset(self) -> None:
        for pool in self.pools:
            pool.reset()

    def moved(self, seat: Seat, to: Pool) -> None:
        """States of another dtype. Slots of the same pool are as good as any."""
        if seat.pool is not to:
            slots = to.take(len(seat.slots))
            to.load(slots, seat.pool.save(seat.slots))
            seat.pool.give_back(seat.slots)
            seat.pool, seat.slots = to, slots

    def alone(self, request: Request) -> Alone:
        self.reset()
        seat, results, seen, prefix = None, [], 0, None
        for call in request.calls:
            result = None
            if call.op == "moved" and seat is None:
                pool = self.pool(call.to)
                seat = Seat(pool, pool.take())
                if prefix:
                    start(self.layer, seat, tuple(request.ids[:seen]), prefix)
            elif call.op == "moved":
                self.moved(seat, self.pool(call.to))
            else:
                result = self.runner.run(seat, call)
                seen += len(call.kept)
            results.append(result)
            if call.taken:
                row = call.taken[0]
                prefix = seat.pool.states(seat.slots[:1]) if row < 0 else {"state": result.checkpoints[row : row + 1]}
                seat.pool.give_back(seat.slots)
                seat = None
        return Alone(results, states(seat))

    def check(self, request: Request, with_literal: bool, counts: Counts) -> None:
        """The request has ended, and left its mode."""
        alone = self.alone(request)
        self.compare(request, alone, counts)
        if with_literal:
            self.compare_literal(request, alone, counts)
            if self.layer.joins:
                self.compare_joined(request, counts)
        counts.requests += 1

    # ---- Bits

    def compare(self, request: Request, alone: Alone, counts: Counts) -> None:
        assert request.seat is not None
        pairs = []
        for n, (mine, other) in enumerate(zip(request.results, alone.results, strict=True)):
            if mine is not None and other is not None:
                pairs += [(n, name, getattr(mine, name), getattr(other, name)) for name in ("mixed", "out")]
        last = states(request.seat)
        pairs += [(-1, name, tensor, alone.states[name]) for name, tensor in last.items()]
        for n, name, mine, other in pairs:
            counts.compared += 1
            if torch.equal(mine, other):
                continue
            counts.different += 1
            error = relative_error(mine, other)
            counts.error(f"{name}, alone", error)
            bound = self.bound(name, mine)
            expected = f"a difference below {bound:.0e} from" if bound else "the bits of"
            assert error <= bound, self.failure(request, n, f"{name}: expected {expected} the request alone, got {error:.1e}")

    def compare_joined(self, request: Request, counts: Counts) -> None:
        """The parts of the prompt, a call each, and one call."""
        calls = [call for call in request.calls if call.op == "prompt"]
        ends = [0, *accumulate(len(call.kept) for call in calls)]
        self.reset()
        pool = self.pool()
        parts, joined = (Seat(pool, pool.take()) for _ in range(2))
        outs = []
        for first, end in pairwise(ends):
            ids = tuple(request.ids[first:end])
            outs.append(self.runner.run(parts, Call("prompt", ids, tuple(range(len(ids))), fresh=first == 0)).out)
        tensor = self.runner.tensor
        given = (tensor(request.ids[: ends[-1]]), tensor(joined.slots), tensor([0, ends[-1]]), tensor([True], torch.bool))
        _, out, _ = self.layer.prompt(pool, *given, boundaries=tensor(ends))
        pairs = {"out": (torch.cat(outs), out), "state": (states(parts)["state"], states(joined)["state"])}
        for name, (mine, other) in pairs.items():
            counts.compared += 1
            counts.different += not torch.equal(mine, other)
            error = 0.0 if torch.equal(mine, other) else relative_error(mine, other)
            expected = f"{name}: expected parts of {ends} to have the bits of one call, got a difference of {error:.1e}"
            assert error <= self.bound(name, mine), self.failure(request, -1, expected)

    def bound(self, name: str, got: Tensor) -> float:
        """0 where the bits are promised: of kernels, docs/numerics.md, and of convolutions on CPU tensors too, docs/conv.md."""
        if name in ("mixed", "conv_state") or (self.layer.promised and self.by_kernels):
            return 0.0
        return self.layer.apart or (EXACT if got.dtype == torch.float32 else ROUNDED)

    # ---- fp64

    def compare_literal(self, request: Request, alone: Alone, counts: Counts) -> None:
        results = [mine if mine is not None else other for mine, other in zip(request.results, alone.results, strict=True)]
        mixed = torch.cat([each.mixed for each in results if each is not None])
        out = torch.cat([each.out for each in results if each is not None])
        ids = torch.tensor(request.ids, device=mixed.device)
        rows = {name: table[ids].double() for name, table in self.layer.tables.items() if name != "mixed"}
        expected, state = self.layer.literal(mixed.double(), rows)
        assert request.seat is not None
        mine = states(request.seat)
        if not torch.equal(mine["conv_state"], self.layer.window(request.ids)):
            raise AssertionError(self.failure(request, -1, "conv_state: expected the last inputs"))
        checks = {
            "mixed": (mixed, self.layer.literal_conv(ids), CONV),
            "out": (out, expected, self.layer.bounds[0]),
            "state": (mine["state"], state, self.layer.bounds[1]),
        }
        for name, (got, wanted, bound) in checks.items():
            error = relative_error(got, wanted)
            counts.error(name, error)
            bound *= 2 if len(ids) < FEW else 1
            assert error <= bound, self.failure(
                request, -1, f"{name}: expected an error below {bound:.0e} of fp64's, got {error:.1e}"
            )
        counts.literal += 1

    def failure(self, request: Request, n: int, what: str) -> str:
        own = len(request.prefix.calls) if request.prefix else 0
        lines = [f"request {request.number}, {request.prompt} tokens and {len(request.ids) - request.prompt} generated: {what}"]
        lines += [
            f"{'→' if i == n else ' '} {i}{' (prefix)' if i < own else ''}: {call}" for i, call in enumerate(request.calls)
        ]
        return "\n".join(lines)


def relative_error(got: Tensor, wanted: Tensor) -> float:
    """As helpers.rel_rms, on the device."""
    if got.shape != wanted.shape or not bool(got.isfinite().all()):
        return float("inf")
    difference, size = ((got.double() - wanted.double()).norm().item(), wanted.double().norm().item())
    return difference / size if size else difference


def states(seat: Seat) -> dict[str, Tensor]:
    """The state, the scales that it is from, and the convolution's last inputs."""
    found, home = seat.pool.states(seat.slots[0]), seat.slots[0]
    return found | {"state": decoded(found), "conv_state": seat.pool.tensors["conv"][home, :, 1 - WIDTH :].clone()}
