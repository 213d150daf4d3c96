"""A server that decodes by ssd_replay_decode, and its expected results: the literal recurrence in fp64, a loop over tokens and
heads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from helpers import rel_rms
from torch import Tensor

import gdn_cuda

Decode = Callable[..., Tensor]
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
OUTPUT_BOUND = {BF16: 4e-3, F16: 5e-4, F32: 1e-5, torch.float64: 1e-13}
STATE_BOUND = {F32: 1e-5, BF16: 4e-3, F16: 5e-4, torch.float64: 1e-13}


def step_size(dt: Tensor, bias: Tensor | None, limit: tuple[float, float], softplus: bool) -> Tensor:
    """δ in fp64."""
    raised = dt.double() if bias is None else dt.double() + bias.double()
    if softplus:
        raised = torch.where(raised > 20, raised, raised.clamp(max=20).exp().log1p())
    return raised.clamp(*limit)


def literal(state: Tensor, token: dict[str, Tensor], heads: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The output (H, P) and the state (H, P, N) after one token, in fp64. A reset also clears infinities and NaN."""
    delta = step_size(token["dt"], heads["dt_bias"], heads["dt_limit"], heads["dt_softplus"])
    x, B, C = (token[name].double() for name in ("x", "B", "C"))
    out, after = torch.zeros_like(x), torch.zeros_like(state)
    for h in range(state.shape[0]):
        g = h // (state.shape[0] // B.shape[0])
        decay = math.exp(min(float(delta[h] * heads["A"][h].double()), 700.0))
        kept = torch.zeros_like(state[h]) if decay < 1e-46 else decay * state[h]
        after[h] = kept + torch.outer(delta[h] * x[h], B[g])
        out[h] = after[h] @ C[g]
    if heads["D"] is not None:
        D = heads["D"].double()
        out = out + (D if D.dim() == 2 else D[:, None]) * x
    if "z" in token:
        z = token["z"].double()
        out = out * z / (1 + torch.exp(-z))
    return out, after


class Server:
    """Sequences in slots of a pool. `decode` runs tokens, and checks outputs and which states were written; with `verify`,
    `accept` then says how many of them are accepted. `commit` checks the pool."""

    def __init__(
        self,
        seed: int,
        *,
        sequences: int = 3,
        window: int = 4,
        H: int = 4,
        G: int = 2,
        P: int = 16,
        N: int = 32,
        io: torch.dtype = BF16,
        state: torch.dtype = F32,
        index: torch.dtype = torch.int32,
        device: str = "cpu",
        verify: bool = False,
        D: int = 1,
        z: bool = True,
        rate: float = 1.0,
        limit: tuple[float, float] = (0.0, math.inf),
        softplus: bool = True,
    ) -> None:
        self.rng = torch.Generator().manual_seed(seed)
        self.H, self.G, self.P, self.N, self.io, self.device, self.z = H, G, P, N, io, device, z
        self.window, self.verify, self.index = window, verify, index
        memory = self.draw(sequences + 2, H * P * N + 16, dtype=state)  # with a gap between slots
        self.pool = memory[:, : H * P * N].unflatten(-1, (H, P, N))
        self.buffers = gdn_cuda.ssd_replay_buffers(self.pool, window, G, dtype=io)
        for stored in self.buffers[:3]:
            stored.fill_(torch.nan)
        slots = torch.randperm(sequences + 2, generator=self.rng)[:sequences]
        self.slots = slots.to(device=device, dtype=index)
        self.states = list(self.pool.cpu().double()[slots])
        self.accepted = torch.zeros(sequences, dtype=index, device=device)
        self.pending = [0] * sequences  # as the ring should count
        self.heads: dict[str, Any] = {
            "A": -rate * (0.1 + torch.rand(H, generator=self.rng)).to(device),
            "dt_bias": self.draw(H, dtype=BF16 if io in (BF16, F16) else io) / 2,
            "D": (None, self.draw(H), self.draw(H, P))[D],
            "dt_limit": limit,
            "dt_softplus": softplus,
        }
        if io == torch.float64:
            self.heads = {name: y.double() if isinstance(y, Tensor) else y for name, y in self.heads.items()}
        self.after: list[list[Tensor]] = []

    def draw(self, *shape: int, dtype: torch.dtype = F32) -> Tensor:
        return torch.randn(*shape, generator=self.rng).to(device=self.device, dtype=dtype)

    def tokens(self, *lead: int) -> dict[str, Tensor]:
        """Strided views of one projection."""
        H, G, P, N = self.H, self.G, self.P, self.N
        widths = [H * P, G * N, G * N, H * P, H]
        parts = self.draw(*lead, sum(widths) + -sum(widths) % 8, dtype=self.io)[..., : sum(widths)].split(widths, dim=-1)
        found = {
            "x": parts[0].unflatten(-1, (H, P)),
            "B": parts[1].unflatten(-1, (G, N)),
            "C": parts[2].unflatten(-1, (G, N)),
            "dt": parts[4],
        }
        return found | ({"z": parts[3].unflatten(-1, (H, P))} if self.z else {})

    def arguments(self, tokens: dict[str, Tensor]) -> dict[str, Any]:
        given = {"state_pool": self.pool, **self.buffers._asdict(), "state_indices": self.slots}
        return tokens | self.heads | given | ({"num_accepted_tokens": self.accepted} if self.verify else {})

    def decode(
        self, decode: Decode, lengths: Sequence[int], packed: bool = False, fold: bool | Sequence[bool] = False
    ) -> Tensor:
        """`fold`: of all sequences, or of each."""
        count = len(self.slots)
        tokens = self.tokens(sum(lengths) + 1) if packed else self.tokens(count, max(lengths, default=0))
        x = self.arguments(tokens) | {"fold": fold is True}
        folds = [fold] * count if isinstance(fold, bool) else list(fold)
        if not isinstance(fold, bool):
            x["fold_mask"] = torch.tensor(folds, device=self.device)
        starts = [sum(lengths[:n]) for n in range(count + 1)]
        if packed:
            x["cu_seqlens"] = torch.tensor(starts, dtype=self.index, device=self.device)
        before = self.pool.clone()
        output = decode(**x, out=torch.full(x["x"].shape, torch.nan, dtype=self.io, device=self.device))
        here = {name: y.cpu() for name, y in tokens.items()}
        heads = {name: y.cpu() if isinstance(y, Tensor) else y for name, y in self.heads.items()}
        expected = torch.zeros(output.shape, dtype=torch.float64)
        self.after = [[state] for state in self.states]
        for n, length in enumerate(lengths):
            for t in range(length):
                at = (starts[n] + t,) if packed else (n, t)
                out, state = literal(self.after[n][-1], {name: y[at] for name, y in here.items()}, heads)
                expected[at] = out
                self.after[n].append(state)
        error, bound = rel_rms(output, expected), max(OUTPUT_BOUND[self.io], STATE_BOUND[self.pool.dtype])
        assert error <= bound, (error, bound)
        if packed:
            assert not output[-1].any()
        self._check_writes(before, lengths, folds)
        if not self.verify:
            self.states = [after[-1] for after in self.after]
        return output

    def _check_writes(self, before: Tensor, lengths: Sequence[int], asked: Sequence[bool]) -> None:
        """The slots that are written, and the counts of their rings."""
        written = set()
        for n, length in enumerate(lengths):
            slot, stored = int(self.slots[n]), self.pending[n] + (int(self.accepted[n]) if self.verify else 0)
            folds = asked[n] or stored + length > self.window
            if folds and (stored if self.verify else stored + length):
                written.add(slot)
            self.pending[n] = 0 if folds else stored if self.verify else stored + length
            assert int(self.buffers.pending[slot]) == self.pending[n], (slot, n)
        changed = {slot for slot in range(before.shape[0]) if not torch.equal(before[slot], self.pool[slot])}
        assert changed == written

    def accept(self, counts: Sequence[int]) -> None:
        self.states = [after[count] for after, count in zip(self.after, counts, strict=True)]
        self.accepted.copy_(torch.tensor(counts))

    def accept_some(self) -> None:
        self.accept([int(torch.randint(len(after), (), generator=self.rng)) for after in self.after])

    def commit(self, commit: Callable[..., Tensor] = gdn_cuda.ssd_commit_replay) -> None:
        found = commit(self.pool, self.buffers, self.heads["A"], self.slots, self.accepted if self.verify else None)
        assert found is self.pool
        error = rel_rms(self.pool[self.slots.long()], torch.stack(self.states))
        assert error <= STATE_BOUND[self.pool.dtype], error
        assert not self.buffers.pending[self.slots.long()].any()
        self.accepted.zero_()
        self.pending = [0] * len(self.pending)


def serve(server: Server, decode: Decode, commit: Callable[..., Tensor], tokens: int) -> None:
    """Padded and packed calls until the ring has been full more than once, some sequences without tokens."""
    count = len(server.slots)
    for n in range(2 * server.window // tokens + 3):
        server.decode(decode, [tokens - n % tokens] * count)
        if server.verify:
            server.accept_some()
    server.decode(decode, ([tokens, 0, max(tokens - 1, 1)] * count)[:count], packed=True)
    if server.verify:
        server.accept([len(after) - 1 for after in server.after])
    server.commit(commit)
    server.decode(decode, [tokens] * count, fold=[n % 2 == 0 for n in range(count)])
    if server.verify:
        server.accept_some()
    server.decode(decode, [tokens] * count, fold=True)
