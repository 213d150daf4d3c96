"""Benchmark of training Kimi Delta Attention: forward and backward of `chunked_forward` with a gate for every channel of the
key, with gradients of everything, beside FLA."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from ..operators.measure import Call, Case, Inputs, Outcome, Peer, Work, bench, normal
from . import measure_peers as peers
from .channel_gradients import CHUNK
from .inputs import projections
from .measure_gates import gates

_DIFFERENTIATED = ("query", "key", "value", "beta", "gate", "state")
_KINDS = ("init", "fast")
_HEADS_AND_TOKENS = ((32, 8192), (32, 32768), (16, 8192), (64, 8192))
_D = 128


def _bytes(heads: int, tokens: int) -> int:
    """Query, key, value, output and its gradient twice, the gradients of the first three, and gates, betas and their gradients
    in fp32."""
    return (2 * 13 * _D + 4 * 3 * (_D + 1)) * heads * tokens


def _flops(heads: int, tokens: int) -> int:
    """Eleven products of tokens with states, three of them of the forward; of tokens with tokens eight with dk columns, seven
    with dv."""
    return 2 * (11 * _D * _D + 15 * CHUNK * _D) * heads * tokens


def channel_inputs(heads: int, tokens: int, kind: str, device: str) -> Inputs:
    x = projections(device, 1, tokens, key_heads=heads, value_heads=heads, key_dim=_D, value_dim=_D)
    by_head = gates(kind, (1, tokens), heads, device)
    return x | {
        "beta": torch.rand(1, tokens, heads, device=device),
        "gate": by_head[..., None] * (0.5 + torch.rand(1, tokens, heads, _D, device=device)),
        "state": normal(1, heads, _D, _D, device=device, dtype=torch.float32),
    }


def _leaves(x: Inputs) -> Inputs:
    return {name: x[name].detach().requires_grad_() for name in _DIFFERENTIATED}


def _step(forward: Any, leaves: Inputs) -> Outcome:
    """The output and all gradients, each divided by its mean size."""
    out, final_state = forward()
    weights = torch.cos(torch.arange(out.shape[-1], device=out.device)).to(out.dtype).expand(out.shape)
    grads = torch.autograd.grad(
        (out, final_state), tuple(leaves.values()), (weights.contiguous(), torch.zeros_like(final_state))
    )
    return out.detach(), torch.cat([(g / g.abs().mean()).flatten().float() for g in grads])


def _forward(x: Inputs) -> Outcome:
    from ..runtime import package as gdn_cuda

    out, final_state = gdn_cuda.chunked_forward(**x)[:2]
    assert final_state is not None
    return out, final_state


def _outcome(x: Inputs) -> Outcome:
    leaves = _leaves(x)
    return _step(partial(_forward, x | leaves), leaves)


def _call(forward: Any, leaves: Inputs) -> Call:
    out, final_state = forward()
    grads = torch.randn_like(out), torch.randn_like(final_state)

    def call() -> Any:
        return torch.autograd.grad(forward(), tuple(leaves.values()), grads)

    return call


def channel_training_work(heads: int, tokens: int, kind: str, device: str) -> Work:
    x = channel_inputs(heads, tokens, kind, device)
    leaves = _leaves(x)
    call = _call(partial(_forward, x | leaves), leaves)
    return Work(call, _bytes(heads, tokens), _flops(heads, tokens), x, _outcome, x | {"gate": x["gate"] / 64})


def fla(x: Inputs) -> Peer:
    def forward_of(leaves: Inputs) -> Any:
        peer = peers.fla_chunked_channels(x | leaves)
        return lambda: peer.read(peer.call())

    leaves = _leaves(x)

    def read(_: object) -> Outcome:
        again = _leaves(x)
        return _step(forward_of(again), again)

    return Peer(_call(forward_of(leaves), leaves), read)


@bench({"FLA": fla}, "gradients", operator="gated_delta_rule")
def _measured(device: str) -> Iterator[Case]:
    shapes = _HEADS_AND_TOKENS if device == "cuda" else ((2, 40),)
    for heads, tokens in shapes:
        for kind in _KINDS:
            name = f"1×{tokens} {heads}/{heads} a gate for every channel, {kind} gates, forward and backward"
            yield Case(name, partial(channel_training_work, heads, tokens, kind, device), kind=f"{kind} gates")
