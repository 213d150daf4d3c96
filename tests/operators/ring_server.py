"""Servers that decode from states which lack the last tokens, and their expected results: a literal recurrence in fp64."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from guarded import bits
from helpers import rel_rms
from torch import Tensor

Decode = Callable[..., Tensor]
I8 = torch.int8
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


class Server(ABC):
    """Sequences in slots of a pool. `verify` runs tokens and checks outputs, `accept` sets how many of them are accepted."""

    rows: ClassVar[str]  # the argument whose shape is the output's

    rng: torch.Generator
    pool: Tensor
    scales: Tensor | None = None  # of a pool of int8
    buffers: Any
    slots: Tensor
    states: Tensor  # of the sequences, expected
    accepted: Tensor
    heads: dict[str, Any]
    output_bound: float
    state_bound: float
    after: list[list[Tensor]]  # the states before and after each token of the last call

    def __init__(self, seed: int, io: torch.dtype, index: torch.dtype, device: str) -> None:
        self.rng = torch.Generator().manual_seed(seed)
        self.io, self.index, self.device = io, index, device

    def draw(self, *shape: int, dtype: torch.dtype = F32) -> Tensor:
        return torch.randn(*shape, generator=self.rng).to(device=self.device, dtype=dtype)

    def draw_pool(self, sequences: int, *shape: int, dtype: torch.dtype) -> None:
        """A pool with two slots more and a gap between slots, and slots of sequences in any order."""
        slots, size = sequences + 2, torch.Size(shape).numel()
        if dtype == I8:
            codes = torch.randint(-127, 128, (slots, size + 32), generator=self.rng, dtype=I8)
            memory = codes.to(self.device)
            scales = self.draw(slots, size // 32 + 4)[:, :-4].unflatten(-1, (*shape[:-1], shape[-1] // 32))
            self.scales = scales.abs_().div_(100)
        else:
            memory = self.draw(slots, size + 16, dtype=dtype)
        self.pool = memory[:, :size].unflatten(-1, shape)
        order = torch.randperm(slots, generator=self.rng)[:sequences]
        self.slots = order.to(device=self.device, dtype=self.index)
        self.states = self.read()
        self.accepted = torch.zeros(sequences, dtype=self.index, device=self.device)

    def read(self) -> Tensor:
        """States of the sequences' slots, in fp64."""
        pool = self.pool.cpu().double()
        if self.scales is not None:
            pool *= self.scales.cpu().double().repeat_interleave(32, -1)
        return pool[self.slots.cpu().long()]

    @abstractmethod
    def tokens(self, *lead: int) -> dict[str, Tensor]: ...

    @abstractmethod
    def literal(self, state: Tensor, token: dict[str, Tensor], heads: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """A token's output, and the state after it, in fp64 on the CPU. A reset also clears infinities and NaN."""

    def arguments(self, tokens: dict[str, Tensor]) -> dict[str, Any]:
        given = {"state_pool": self.pool, **self.buffers._asdict(), "state_indices": self.slots}
        return tokens | self.heads | given | {"num_accepted_tokens": self.accepted}

    def verify(self, decode: Decode, lengths: Sequence[int], packed: bool = False) -> Tensor:
        count = len(self.slots)
        tokens = self.tokens(sum(lengths) + 1) if packed else self.tokens(count, max(lengths, default=0))
        x = self.arguments(tokens)
        starts = [sum(lengths[:n]) for n in range(count + 1)]
        if packed:
            x["cu_seqlens"] = torch.tensor(starts, dtype=self.index, device=self.device)
        output = decode(**x, out=torch.full(x[self.rows].shape, torch.nan, dtype=self.io, device=self.device))
        here = {name: y.cpu() for name, y in tokens.items()}
        heads = {name: y.cpu() if isinstance(y, Tensor) else y for name, y in self.heads.items()}
        expected = torch.zeros(output.shape, dtype=torch.float64)
        self.after = [[state] for state in self.states]
        for n, length in enumerate(lengths):
            for t in range(length):
                at = (starts[n] + t,) if packed else (n, t)
                expected[at], state = self.literal(self.after[n][-1], {name: y[at] for name, y in here.items()}, heads)
                self.after[n].append(state)
        # Earlier states were rounded.
        error, bound = rel_rms(output, expected), max(self.output_bound, self.state_bound)
        assert error <= bound, (error, bound)
        if packed:
            assert not output[-1].any()
        return output

    def accept(self, counts: Sequence[int]) -> None:
        self.states = torch.stack([after[count] for after, count in zip(self.after, counts, strict=True)])
        self.accepted.copy_(torch.tensor(counts))

    def accept_some(self) -> None:
        self.accept([int(torch.randint(len(after), (), generator=self.rng)) for after in self.after])

    def check_committed(self) -> None:
        error = rel_rms(self.read(), self.states)
        assert error <= self.state_bound, error
        self.accepted.zero_()


class RingServer(Server):
    """`decode` runs tokens, and checks outputs and which states were written; with `verifies`, `accept` then says how many of
    them are accepted. `commit` checks the pool."""

    window: int
    verifies: bool

    def begin(self, buffers: Any, window: int, verifies: bool) -> None:
        self.buffers, self.window, self.verifies = buffers, window, verifies
        for stored in self.buffers[:3]:
            stored.fill_(torch.nan)
        self.pending = [0] * len(self.slots)  # as the ring should count
        self.now: dict[str, Any] = {}

    def arguments(self, tokens: dict[str, Tensor]) -> dict[str, Any]:
        x = super().arguments(tokens) | self.now | {"state_scales": self.scales}
        return x if self.verifies else x | {"num_accepted_tokens": None}

    def decode(
        self, decode: Decode, lengths: Sequence[int], packed: bool = False, fold: bool | Sequence[bool] = False
    ) -> Tensor:
        """`fold`: of all sequences, or of each."""
        folds = [fold] * len(self.slots) if isinstance(fold, bool) else list(fold)
        self.now = {"fold": fold is True}
        if not isinstance(fold, bool):
            self.now["fold_mask"] = torch.tensor(folds, device=self.device)
        before = self.pool.clone()
        output = self.verify(decode, lengths, packed)
        self.now = {}
        written = set()
        for n, length in enumerate(lengths):
            slot, stored = int(self.slots[n]), self.pending[n] + (int(self.accepted[n]) if self.verifies else 0)
            writes = folds[n] or stored + length > self.window
            if writes and (stored if self.verifies else stored + length):
                written.add(slot)
            self.pending[n] = 0 if writes else stored if self.verifies else stored + length
            assert int(self.buffers.pending[slot]) == self.pending[n], (slot, n)
        changed = {slot for slot in range(before.shape[0]) if not torch.equal(bits(before[slot]), bits(self.pool[slot]))}
        assert changed == written, (changed, written)
        if not self.verifies:
            self.states = torch.stack([after[-1] for after in self.after])
        return output

    def check_committed(self) -> None:
        super().check_committed()
        assert not self.buffers.pending[self.slots.long()].any()
        self.pending = [0] * len(self.pending)

    @abstractmethod
    def commit_only(self, commit: Callable[..., Tensor]) -> Tensor:
        """Without a check of the pool."""

    def commit(self, commit: Callable[..., Tensor]) -> None:
        assert self.commit_only(commit) is self.pool
        self.check_committed()


def serve(server: RingServer, decode: Decode, commit: Callable[..., Tensor], tokens: int) -> None:
    """Padded and packed calls until the ring has been full more than once, some sequences without tokens."""
    count = len(server.slots)
    for n in range(2 * server.window // tokens + 3):
        server.decode(decode, [tokens - n % tokens] * count)
        if server.verifies:
            server.accept_some()
    server.decode(decode, ([tokens, 0, max(tokens - 1, 1)] * count)[:count], packed=True)
    if server.verifies:
        server.accept([len(after) - 1 for after in server.after])
    server.commit(commit)
    server.decode(decode, [tokens] * count, fold=[n % 2 == 0 for n in range(count)])
    if server.verifies:
        server.accept_some()
    server.decode(decode, [tokens] * count, fold=True)
