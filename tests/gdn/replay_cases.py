"""A server that verifies by replay, and its expected results: the literal recurrence in fp64 over the accepted tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from helpers import rel_rms
from kda_cases import decays
from torch import Tensor

import gdn_cuda

Decode = Callable[..., Tensor]
OUTPUT_BOUND = {torch.bfloat16: 4e-3, torch.float16: 5e-4, torch.float64: 1e-13}
STATE_BOUND = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float64: 1e-13}


def gates(a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """(beta, decay) of a token for every head, in fp64."""
    raised = a.double() + dt_bias.double()
    softplus = torch.where(raised > 20, raised, raised.clamp(max=20).exp().log1p())
    return torch.sigmoid(b.double()), torch.exp(-A_log.double().exp() * softplus)


def literal(
    state: Tensor,
    token: dict[str, Tensor],
    heads: dict[str, Tensor],
    scale: float,
    norm: bool,
    beta_factor: int,
    lower_bound: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The output (Hv, dv) and the state (Hv, dv, dk) after one token, in fp64. A reset also clears infinities and NaN."""
    if token["a"].dim() == 2:  # a gate for every channel
        beta, decay = torch.sigmoid(token["b"].double()), decays(token["a"], **heads, lower_bound=lower_bound)
    else:
        beta, decay = gates(token["a"], token["b"], **heads)
    output, after = torch.zeros_like(state[..., 0]), torch.zeros_like(state)
    for h in range(state.shape[0]):
        rows = (token[name].double() for name in ("query", "key", "value"))
        q, k, v = (x[h // (state.shape[0] // x.shape[0])] for x in rows)
        if norm:
            q, k = q / math.sqrt(float(q @ q) + 1e-6), k / math.sqrt(float(k @ k) + 1e-6)
        s = torch.where(decay[h].float() == 0, 0, decay[h] * state[h])
        s = s + torch.outer(beta_factor * beta[h] * (v - s @ k), k)
        output[h], after[h] = scale * (s @ q), s
    return output, after


class Server:
    """Sequences in slots of a pool: `verify` runs tokens and checks outputs, `accept` sets how many of them are accepted, and
    `commit` checks the pool."""

    def __init__(
        self,
        seed: int,
        *,
        sequences: int = 3,
        steps: int = 4,
        Hk: int = 1,
        Hv: int = 2,
        dk: int = 128,
        dv: int = 40,
        io: torch.dtype = torch.bfloat16,
        state: torch.dtype = torch.float32,
        index: torch.dtype = torch.int32,
        device: str = "cpu",
        pace: float = 1.0,
        channel_gates: bool = False,
        **options: Any,
    ) -> None:
        self.rng = torch.Generator().manual_seed(seed)
        self.Hk, self.Hv, self.dk, self.dv, self.io, self.device = Hk, Hv, dk, dv, io, device
        memory = self.draw(sequences + 2, Hv * dv * dk + 8, dtype=state)  # with a gap between slots
        self.pool = memory[:, : Hv * dv * dk].unflatten(-1, (Hv, dv, dk))
        self.buffers = gdn_cuda.replay_buffers(self.pool, steps, Hk, dtype=io, channel_gates=channel_gates)
        for stored in self.buffers[:3]:
            stored.fill_(torch.nan)
        slots = torch.randperm(sequences + 2, generator=self.rng)[:sequences]
        self.slots = slots.to(device=device, dtype=index)
        self.index = index
        self.states = self.pool.cpu().double()[slots]
        self.accepted = torch.zeros(sequences, dtype=index, device=device)
        self.heads: dict[str, Tensor | None] = {"A_log": self.draw(Hv) * pace, "dt_bias": self.draw(Hv, dtype=torch.bfloat16)}
        self.channel_gates = channel_gates
        if channel_gates:
            self.heads["dt_bias"] = self.draw(Hv, dk)
        self.options = options
        self.state_bound = STATE_BOUND.get(self.pool.dtype, 0.0)
        self.after: list[list[Tensor]] = []

    def draw(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=self.rng).to(device=self.device, dtype=dtype)

    def tokens(self, *lead: int) -> dict[str, Tensor]:
        """Strided views of one projection."""
        widths = [self.Hk * self.dk, self.Hk * self.dk, self.Hv * self.dv, self.Hv, self.Hv]
        parts = self.draw(*lead, sum(widths) + -sum(widths) % 8, dtype=self.io)[..., : sum(widths)].split(widths, dim=-1)
        query, key, value, a, b = parts
        if self.channel_gates:
            a = self.draw(*lead, self.Hv, self.dk, dtype=self.io)
        return {
            "query": query.unflatten(-1, (self.Hk, self.dk)),
            "key": key.unflatten(-1, (self.Hk, self.dk)),
            "value": value.unflatten(-1, (self.Hv, self.dv)),
            "a": a,
            "b": b,
        }

    def arguments(self, tokens: dict[str, Tensor]) -> dict[str, Any]:
        given = {"state_pool": self.pool, **self.buffers._asdict(), "state_indices": self.slots}
        return tokens | self.heads | given | {"num_accepted_tokens": self.accepted} | self.options

    def verify(self, decode: Decode, lengths: Sequence[int], packed: bool = False) -> Tensor:
        count = len(self.slots)
        tokens = self.tokens(sum(lengths) + 1) if packed else self.tokens(count, max(lengths, default=0))
        x = self.arguments(tokens)
        starts = [sum(lengths[:n]) for n in range(count + 1)]
        if packed:
            x["cu_seqlens"] = torch.tensor(starts, dtype=self.index, device=self.device)
        output = decode(**x, out=torch.full(x["value"].shape, torch.nan, dtype=self.io, device=self.device))
        here = {name: y.cpu() for name, y in tokens.items()}
        heads = {name: None if y is None else y.cpu() for name, y in self.heads.items()}
        expected = torch.zeros(output.shape, dtype=torch.float64)
        scale, norm = self.options.get("scale") or self.dk**-0.5, self.options.get("use_qk_l2norm", True)
        factor = 2 if self.options.get("allow_negative_eigenvalues") else 1
        self.after = [[state] for state in self.states]
        for n, length in enumerate(lengths):
            for t in range(length):
                at = (starts[n] + t,) if packed else (n, t)
                token = {name: y[at] for name, y in here.items()}
                bound = self.options.get("lower_bound")
                out, state = literal(self.after[n][-1], token, heads, scale, norm, factor, bound)
                expected[at] = out
                self.after[n].append(state)
        # With a pool in 16 bits, earlier states were rounded.
        error, bound = rel_rms(output, expected), max(OUTPUT_BOUND[self.io], self.state_bound)
        assert error <= bound, (error, bound)
        if packed:
            assert not output[-1].any()
        return output

    def accept(self, counts: Sequence[int]) -> None:
        self.states = torch.stack([after[count] for after, count in zip(self.after, counts, strict=True)])
        self.accepted.copy_(torch.tensor(counts))

    def accept_some(self) -> None:
        self.accept([int(torch.randint(len(after), (), generator=self.rng)) for after in self.after])

    def commit(self, commit: Callable[..., Tensor] = gdn_cuda.commit_replay) -> None:
        commit(self.pool, self.buffers, self.slots, self.accepted)
        error = rel_rms(self.pool[self.slots.long()], self.states)
        assert error <= self.state_bound, error
        self.accepted.zero_()
