"""Benchmark of training: the backward alone of `chunked_forward`, with gradients of everything, beside FlashQLA and FLA."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..operators.measure import Call, Case, Inputs, Outcome, Peer, Work, bench
from . import measure_peers as peers
from .measure_gates import KINDS
from .measure_prefill import CPU_SHAPES, PLAIN, Shape, prefill_work
from .reference import CHUNK

GPU_SHAPES = (
    *(PLAIN[name] for name in ("1×8192 16/32", "1×32768 16/32", "8×4096 16/32", "1×8192 8/16", "1×32768 8/16")),
    *(PLAIN[name] for name in ("1×8192 4/8", "1×32768 4/8", "1×8192 2/4", "1×32768 2/4", "1×8192 16/64", "8×2048 16/16")),
    Shape(16, 32, 8 * (1024,)),
    PLAIN["packed 24, 51721 16/32"],
    Shape(30, 30, (8192,), key_dim=96, value_dim=192),
)
_DIFFERENTIATED = ("query", "key", "value", "beta", "gate", "state")


def backward_bytes(shape: Shape) -> int:
    """Bytes of the inputs and of the output's gradient, read once, and of all gradients; states are not counted."""
    rows = 4 * shape.key_heads * shape.key_dim + 3 * shape.value_heads * shape.value_dim
    return (2 * rows + 16 * shape.value_heads) * shape.tokens


def backward_flops(shape: Shape) -> int:
    """Operations of the chunked form: 29.4 million for each chunk and value head when dk = dv = 128.

    Eight products of tokens with states: k Eᵀ, dOᵀ q, dVᵀ k, k Sᵀ, V'ᵀ k, dO S, dV S and R E. Of tokens with tokens, seven have
    dk columns and five dv. Triangles count as full squares.
    """
    over_chunk = CHUNK * (7 * shape.key_dim + 5 * shape.value_dim)
    return 2 * (over_chunk + 8 * shape.key_dim * shape.value_dim) * shape.tokens * shape.value_heads


def _leaves(x: Inputs) -> Inputs:
    return {name: x[name].detach().requires_grad_() for name in _DIFFERENTIATED}


def _forward(x: Inputs) -> Outcome:
    from ..runtime import package as gdn_cuda

    out, final_state = gdn_cuda.chunked_forward(**x)[:2]
    assert final_state is not None
    return out, final_state


def _backward_of(results: Any, leaves: Inputs) -> Call:
    out, final_state = results
    grads = torch.randn_like(out), torch.randn_like(final_state)
    return partial(torch.autograd.grad, (out, final_state), tuple(leaves.values()), grads, retain_graph=True)


def _with_gradients(results: Any, leaves: Inputs) -> Outcome:
    """The output and all gradients, each divided by its mean size."""
    out, final_state = results
    weights = torch.cos(torch.arange(out.shape[-1], device=out.device)).to(out.dtype).expand(out.shape)
    grads = weights.contiguous(), torch.zeros_like(final_state)
    found = torch.autograd.grad((out, final_state), tuple(leaves.values()), grads)
    return out.detach(), torch.cat([(g / g.abs().mean()).flatten().float() for g in found])


def _outcome(x: Inputs) -> Outcome:
    leaves = _leaves(x)
    return _with_gradients(_forward(x | leaves), leaves)


def training_work(shape: Shape, device: str) -> Work:
    forward = prefill_work(shape, device)
    leaves = _leaves(forward.inputs)
    call = _backward_of(_forward(forward.inputs | leaves), leaves)
    return Work(call, backward_bytes(shape), backward_flops(shape), forward.inputs, _outcome, forward.checked)


def _peer(make: Any, x: Inputs) -> Peer:
    """`make`: the adapter of the library's forward."""
    leaves = _leaves(x)
    forward = make(x | leaves)
    call = _backward_of(forward.read(forward.call()), leaves)

    def read(_: object) -> Outcome:
        again = _leaves(x)
        other = make(x | again)
        return _with_gradients(other.read(other.call()), again)

    return Peer(call, read)


def training_peers() -> dict[str, Callable[[Inputs], Peer]]:
    return {"FlashQLA": partial(_peer, peers.flashqla_chunked), "FLA": partial(_peer, peers.fla_chunked)}


@bench(
    training_peers(),
    "gradients",
    operator="gated_delta_rule_backward",
)
def _measured(device: str) -> Iterator[Case]:
    on_gpu = (replace(shape, gates=kind) for shape in GPU_SHAPES for kind in KINDS)
    for shape in on_gpu if device == "cuda" else CPU_SHAPES:
        yield Case(shape.name, partial(training_work, shape, device), kind=shape.kind)
