"""Layers of Gated Delta Net and of Kimi Delta Attention."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from soak_calls import DRAFTS
from soak_layer import BF16, F32, Layer, Rows
from soak_pools import Pool, States
from torch import Tensor

import gdn_cuda
from gdn_cuda import ReplayBuffers, RingBuffers

WINDOW = 8  # tokens of a ring
_RING, _REPLAY = RingBuffers._fields, tuple(f"replay_{name}" for name in ReplayBuffers._fields)


class GatedDeltaNet(Layer):
    name = "gdn"
    operators = "`chunked_forward`, `fused_decode`, `replay_decode`, `ring_decode`, `gdn_decode_layer`"
    ops = (*Layer.ops, "replay", "ring", "ring verify", "layer")
    instead: ClassVar[dict[str, str]] = {"layer": "plain"}
    channel_gates = False
    lower_bound: float | None = None

    def __init__(self, device: str, heads: tuple[int, int], dk: int, dv: int) -> None:
        self.Hk, self.Hv = heads
        self.dk, self.dv = dk, dv
        per_gate = (self.Hv, dk) if self.channel_gates else (self.Hv,)
        channels = 2 * self.Hk * dk + self.Hv * dv
        super().__init__(device, channels, {"a": per_gate, "b": (self.Hv,)}, (self.Hv, dv, dk))
        # As layers begin: exp(A_log) of 1 to 16, softplus(dt_bias) of 0.001 to 0.1.
        self.A_log = self.uniform(1, 16, self.Hv).log()
        delta = self.uniform(-6.9, -2.3, *per_gate).exp()
        self.dt_bias = delta + torch.log(-torch.expm1(-delta))

    def buffers(self, state: Tensor) -> Rows:
        found: Rows = {}
        if "replay" in self.ops:
            replay = gdn_cuda.replay_buffers(state, DRAFTS, self.Hk, dtype=BF16, channel_gates=self.channel_gates)
            found |= zip(_REPLAY, replay, strict=True)
        if "ring" in self.ops:
            found |= gdn_cuda.ring_buffers(state, WINDOW, self.Hk, dtype=BF16)._asdict()
        return found

    def split(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keys = self.Hk * self.dk
        q, k, v = mixed.split([keys, keys, self.Hv * self.dv], -1)
        return q.unflatten(-1, (self.Hk, -1)), k.unflatten(-1, (self.Hk, -1)), v.unflatten(-1, (self.Hv, -1))

    def gates(self) -> dict[str, Any]:
        return {"A_log": self.A_log, "dt_bias": self.dt_bias, "lower_bound": self.lower_bound}

    def states(self, pool: Pool) -> States:
        """The pool's arguments besides the pool."""
        return {"state_scales": pool.tensors["scales"]} if "scales" in pool.tensors else {}

    def scan(self, pool: Pool, mixed: Tensor, rows: Rows, **call: Any) -> tuple[Tensor, Tensor | None]:
        options = {"use_qk_l2norm": True, "beta_is_logit": True, "deterministic": True, **self.gates(), **self.states(pool)}
        given = (*self.split(mixed), rows["b"], rows["a"], pool.tensors["state"])
        found = gdn_cuda.chunked_forward(*given, **options, **call)
        return found[0], found[2] if len(found) > 2 else None

    def update(self, pool: Pool, mixed: Tensor, rows: Rows, slots: Tensor, **call: Any) -> Tensor:
        gates = self.gates() | self.states(pool)
        weights = (gates.pop("A_log"), gates.pop("dt_bias"))
        given = (*self.split(mixed), rows["a"], rows["b"], *weights, pool.tensors["state"], slots)
        return gdn_cuda.fused_decode(*given, null_slot=self.null_slot, **gates, **call)

    def replay(
        self, op: str, pool: Pool, mixed: Tensor, rows: Rows, slots: Tensor, accepted: Tensor | None, folds: Tensor
    ) -> Tensor:
        if op == "replay":  # its next call, or commit_replay, folds
            buffers = ReplayBuffers(*(pool.tensors[name] for name in _REPLAY))
            return self.update(pool, mixed, rows, slots, replay=buffers, num_accepted_tokens=accepted)
        gates = self.gates() | self.states(pool)
        weights = (gates.pop("A_log"), gates.pop("dt_bias"))
        given = (*self.split(mixed), rows["a"], rows["b"], *weights, pool.tensors["state"])
        buffers, options = (pool.tensors[name] for name in _RING), {"null_slot": self.null_slot, "fold_mask": folds}
        return gdn_cuda.ring_decode(*given, *buffers, slots, num_accepted_tokens=accepted, **options, **gates)

    def commit(self, op: str, pool: Pool, slots: Tensor, accepted: Tensor | None) -> None:
        kind, names = (ReplayBuffers, _REPLAY) if op == "replay" else (RingBuffers, _RING)
        buffers = kind(*(pool.tensors[name] for name in names))
        gdn_cuda.commit_replay(pool.tensors["state"], buffers, slots, accepted, **self.states(pool))

    def one_launch(self, pool: Pool, raw: Tensor, rows: Rows, slots: Tensor) -> Tensor:
        """The norm divides by the root of 2^40, beside which squares of outputs vanish: outputs are those without a norm."""
        gates = self.gates()
        norm = {"norm_weight": torch.full((self.dv,), 2.0**20, device=raw.device), "norm_eps": 2.0**40}
        z = torch.full((len(raw), 1, self.Hv * self.dv), 64, device=raw.device, dtype=BF16)  # its sigmoid is 1
        out = gdn_cuda.gdn_decode_layer(
            raw[:, None],
            rows["b"][:, None],
            a=rows["a"][:, None],
            z=z,
            gate_activation="sigmoid",
            **norm,
            conv_weight=self.weight,
            conv_bias=self.bias,
            A_log=gates["A_log"],
            dt_bias=gates["dt_bias"],
            conv_pool=pool.tensors["conv"],
            state_pool=pool.tensors["state"],
            state_indices=slots,
            heads=(self.Hk, self.Hv),
            dk=self.dk,
            dv=self.dv,
            layout="split",
            null_slot=self.null_slot,
            **self.states(pool),
        )
        return out.view(-1, 1, self.Hv, self.dv)

    def decays(self, a: Tensor) -> Tensor:
        a, A = a + self.dt_bias.double(), self.A_log.double().exp()
        A = A[:, None] if self.channel_gates else A
        if self.lower_bound is not None:
            return (self.lower_bound * torch.sigmoid(A * a)).exp()
        return (-A * torch.nn.functional.softplus(a)).exp()

    def literal(self, mixed: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        query, key, value = self.split(mixed)
        query, key = (y * (y.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for y in (query, key))
        query, key = (y.repeat_interleave(self.Hv // self.Hk, -2) for y in (query * self.dk**-0.5, key))
        beta, decay = torch.sigmoid(rows["b"]), self.decays(rows["a"])
        decay = decay[:, :, None] if self.channel_gates else decay[..., None, None]
        state, out = mixed.new_zeros(self.state_shape), torch.empty_like(value)
        for t in range(len(mixed)):
            state = state * decay[t]
            update = beta[t, :, None] * (value[t] - (state * key[t, :, None]).sum(-1))
            state = state + update[..., None] * key[t, :, None]
            out[t] = (state * query[t, :, None]).sum(-1)
        return out, state


class SixteenBitStates(GatedDeltaNet):
    """Every call rounds the state that it writes, and the errors of hundreds of calls add up."""

    name = "gdn, bf16 states"
    bounds = (1.5e-2, 1.5e-2)
    null_slot = 0

    def __init__(self, *sizes: Any) -> None:
        super().__init__(*sizes)
        self.state_dtypes = [BF16]


class EightBitStates(GatedDeltaNet):
    """A call rounds to steps of 1/127 of the largest of 32 columns, which has at most 4 times the error of bf16. On a CPU sums
    in another order change a code now and then, and with it all later ones."""

    name = "gdn, int8 states"
    operators = "`chunked_forward`, `fused_decode`, `ring_decode`, `gdn_decode_layer`"
    ops = (*Layer.ops, "ring", "ring verify", "layer")
    bounds = (6e-2, 6e-2)
    apart = 1e-2

    def __init__(self, *sizes: Any) -> None:
        super().__init__(*sizes)
        self.state_dtypes = [torch.int8]


class MixedStates(EightBitStates):
    """Requests move between a pool of int8 and one of bf16, and with them their rings."""

    name = "gdn, int8 and bf16 states"
    operators = f"{EightBitStates.operators}, `convert_states`"
    null_slot = 0

    def __init__(self, *sizes: Any) -> None:
        super().__init__(*sizes)
        self.state_dtypes = [torch.int8, BF16]


class KimiDeltaAttention(GatedDeltaNet):
    name = "kda"
    operators = "`chunked_forward`, `fused_decode`, `replay_decode` with a gate for every channel, `kda_decode_layer`"
    ops = (*Layer.ops, "replay", "layer")
    channel_gates = True

    def one_launch(self, pool: Pool, raw: Tensor, rows: Rows, slots: Tensor) -> Tensor:
        weights = {"conv_weight": self.weight, "conv_bias": self.bias, **self.gates()}
        pools = {"conv_pool": pool.tensors["conv"], "state_pool": pool.tensors["state"], "state_indices": slots}
        pools |= self.states(pool)
        out = gdn_cuda.kda_decode_layer(raw, rows["a"], rows["b"], null_slot=self.null_slot, **weights, **pools)
        return out.view(-1, 1, self.Hv, self.dv)


class BoundedGates(KimiDeltaAttention):
    name = "kda, bounded gates"
    lower_bound = -5.0
    null_slot = 0


class EightBitChannels(KimiDeltaAttention):
    """Pools of int8 and of fp32, between which requests move."""

    name = "kda, int8 and fp32 states"
    operators = "`chunked_forward`, `fused_decode` with a gate for every channel, `kda_decode_layer`, `convert_states`"
    ops = (*Layer.ops, "layer")
    bounds, apart = EightBitStates.bounds, EightBitStates.apart

    def __init__(self, *sizes: Any) -> None:
        super().__init__(*sizes)
        self.state_dtypes = [torch.int8, F32]
