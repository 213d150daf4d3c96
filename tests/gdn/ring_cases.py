"""A server that decodes by a ring, and its expected results: the literal recurrence in fp64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import replay_cases
import torch
from guarded import bits
from helpers import rel_rms
from replay_cases import Decode
from torch import Tensor

import gdn_cuda

I8 = torch.int8
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
STATE_BOUND = {F32: 1e-5, BF16: 8e-3, F16: 1e-3, I8: 2e-2, torch.float64: 1e-13}
UPDATE_BOUND = {BF16: 8e-3, F16: 1e-3}


class Server(replay_cases.Server):
    """Sequences in slots of a pool. `decode` runs tokens, and checks outputs and which states were written; with `verifies`,
    `accept` then says how many of them are accepted. `commit` checks the pool."""

    def __init__(self, seed: int, *, window: int = 4, verifies: bool = False, state: torch.dtype = F32, **options: Any) -> None:
        super().__init__(seed, state=F32 if state == I8 else state, **options)
        self.scales = None
        if state == I8:
            slots, groups = self.pool.shape[0], (self.Hv, self.dv, self.dk // 32)
            self.scales = self.draw(slots, self.Hv * self.dv * self.dk // 32 + 4)[:, :-4].unflatten(-1, groups).abs_()
            memory = torch.randint(-127, 128, (slots, self.Hv * self.dv * self.dk + 32), generator=self.rng, dtype=I8)
            self.pool = memory.to(self.device)[:, :-32].unflatten(-1, (self.Hv, self.dv, self.dk))
            self.scales /= 100
            self.states = self.read()
        self.window, self.verifies = window, verifies
        self.buffers = gdn_cuda.ring_buffers(self.pool, window, self.Hk, dtype=self.io)  # type: ignore[assignment]
        for stored in self.buffers[:3]:
            stored.fill_(torch.nan)
        self.pending = [0] * len(self.slots)  # as the ring should count
        self.now: dict[str, Any] = {}
        # A pool in 16 bits, whose updates are too.
        rounded = UPDATE_BOUND.get(self.io, 0.0) if self.pool.dtype != F32 else 0.0
        self.state_bound = max(STATE_BOUND[self.pool.dtype], rounded)

    def read(self) -> Tensor:
        """States of the sequences' slots, in fp64."""
        pool = self.pool.cpu().double()
        if self.scales is not None:
            pool *= self.scales.cpu().double().repeat_interleave(32, -1)
        return pool[self.slots.cpu().long()]

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
            assert int(self.buffers.pending[slot]) == self.pending[n], (slot, n)  # type: ignore[attr-defined]
        changed = {slot for slot in range(before.shape[0]) if not torch.equal(bits(before[slot]), bits(self.pool[slot]))}
        assert changed == written, (changed, written)
        if not self.verifies:
            self.states = torch.stack([after[-1] for after in self.after])
        return output

    def commit(self, commit: Callable[..., Tensor] = gdn_cuda.commit_replay) -> None:
        accepted = self.accepted if self.verifies else None
        found = commit(self.pool, self.buffers, self.slots, accepted, state_scales=self.scales)
        assert found is self.pool
        error = rel_rms(self.read(), self.states)
        assert error <= self.state_bound, error
        assert not self.buffers.pending[self.slots.long()].any()  # type: ignore[attr-defined]
        self.accepted.zero_()
        self.pending = [0] * len(self.pending)


def serve(server: Server, decode: Decode, commit: Callable[..., Tensor], tokens: int) -> None:
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
