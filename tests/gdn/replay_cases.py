"""A server that verifies by replay, and its expected results: the literal recurrence in fp64 over the accepted tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ring_server
import torch
from kda_cases import decays
from torch import Tensor

import gdn_cuda

OUTPUT_BOUND = {torch.bfloat16: 4e-3, torch.float16: 5e-4, torch.float64: 1e-13}
STATE_BOUND = {
    torch.float32: 1e-5,
    torch.bfloat16: 8e-3,
    torch.float16: 1e-3,
    torch.int8: 2e-2,
    torch.float64: 1e-13,
}


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


class Server(ring_server.Server):
    """`commit` checks the pool."""

    rows = "value"

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
        super().__init__(seed, io, index, device)
        self.Hk, self.Hv, self.dk, self.dv = Hk, Hv, dk, dv
        self.draw_pool(sequences, Hv, dv, dk, dtype=state)
        self.buffers = gdn_cuda.replay_buffers(self.pool, steps, Hk, dtype=io, channel_gates=channel_gates)
        for stored in self.buffers[:3]:
            stored.fill_(torch.nan)
        self.heads = {"A_log": self.draw(Hv) * pace, "dt_bias": self.draw(Hv, dtype=torch.bfloat16)}
        self.channel_gates = channel_gates
        if channel_gates:
            self.heads["dt_bias"] = self.draw(Hv, dk)
        self.options = options
        self.output_bound, self.state_bound = OUTPUT_BOUND[io], STATE_BOUND[state]

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
        return super().arguments(tokens) | self.options

    def literal(self, state: Tensor, token: dict[str, Tensor], heads: dict[str, Any]) -> tuple[Tensor, Tensor]:
        x = self.options
        scale, factor = x.get("scale") or self.dk**-0.5, 2 if x.get("allow_negative_eigenvalues") else 1
        return literal(state, token, heads, scale, x.get("use_qk_l2norm", True), factor, x.get("lower_bound"))

    def commit(self, commit: Callable[..., Tensor] = gdn_cuda.commit_replay) -> None:
        commit(self.pool, self.buffers, self.slots, self.accepted)
        self.check_committed()
