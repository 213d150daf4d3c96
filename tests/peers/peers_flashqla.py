"""FlashQLA's tests/test_gdr_unit.py, with `gdn_cuda.compat.fla.chunk_gated_delta_rule` in place of its kernels.

The tests call FlashQLA's forward and backward, not its autograd function. Here forward is a call without gradients, and
backward a call and its gradients, from the gates that forward has returned: cumulated ones in FlashQLA, the caller's own here.
The reference is FlashQLA's, in torch and fp64. How FlashQLA splits sequences (auto_cp, cp_cache) has no meaning here.

The pack has FlashQLA's helpers in torch; neither its kernels nor tilelang are needed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import peers_cpu
import peers_hosts as hosts
import peers_plugin
import pytest
import torch
from torch import Tensor

import gdn_cuda
from gdn_cuda.compat.fla import chunk_gated_delta_rule
from gdn_cuda.integrations import counted

_SAME_CALL = "a test that compares two calls which are the same here"
EXCLUDED = {"test_fwd_cp_cache": _SAME_CALL, "test_bwd_cp_cache": _SAME_CALL}
ONE_OF: dict[str, int] = {}
_CHUNK, _REPEATS = 64, 100  # the tests would repeat a call 1000 times


def prepare() -> None:
    capability = ".".join(map(str, peers_cpu.capability()))
    hosts.module("tilelang.contrib.nvcc", get_target_compute_version=lambda: capability)
    import flash_qla.utils  # the rest of the package is not in the pack

    if peers_cpu.ON_CPU:
        torch._dynamo.config.disable = True  # helpers are compiled, and compiled code would name the GPU
        for helpers in ("index", "contiguous"):
            peers_cpu.adapt(sys.modules[f"flash_qla.utils.{helpers}"])
    flash_qla.chunk_gated_delta_rule_fwd = _forward
    flash_qla.chunk_gated_delta_rule_bwd = _backward


def adapt(module: ModuleType) -> None:
    module.DETERMINISM_ITERS = _REPEATS  # type: ignore[attr-defined]
    module._assert_relative = _counted(module._assert_relative)  # type: ignore[attr-defined]


def is_repeat(item: pytest.Function) -> bool:
    return bool(item.callspec.params.get("fwd_cp") or item.callspec.params.get("bwd_cp"))


def _counted(compare: Callable[..., None]) -> Callable[..., None]:
    def call(actual: Tensor, expected: Tensor, name: str) -> None:
        compare(actual, expected, name)
        peers_plugin.note_comparison("flashqla", re.match("(case1_)?d", name) is not None)

    return call


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    output_final_state: bool = True,
    output_h: bool = False,
    auto_cp: bool = True,
    state_v_first: bool = False,
) -> tuple[Tensor, None, Tensor, Tensor | None, Tensor | None, None]:
    """Gates, None for the triangular matrices, output, states before chunks, final state, and None for the cache."""
    options: dict[str, Any] = {"state_v_first": state_v_first, "cu_seqlens": cu_seqlens, "scale": scale}
    output, state = chunk_gated_delta_rule(
        q, k, v, g, beta, initial_state=initial_state, output_final_state=output_final_state, **options
    )
    counted.count("flashqla.chunk_gated_delta_rule_fwd")
    states = _states_before(q, k, v, g, beta, initial_state, **options) if output_h else None
    return g, None, output, states, state, None


def _states_before(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None,
    state_v_first: bool,
    cu_seqlens: Tensor | None,
    scale: float,
) -> Tensor:
    """(B, chunks, Hv, dk, dv) or, with state_v_first, (B, chunks, Hv, dv, dk); packed, B is 1."""
    lengths = [q.shape[1]] * q.shape[0] if cu_seqlens is None else cu_seqlens.diff().tolist()
    chunks = sum(-(-length // _CHUNK) for length in lengths)
    states = torch.full((chunks, v.shape[2], v.shape[3], k.shape[3]), torch.nan, device=v.device)
    start = initial_state if initial_state is None or state_v_first else initial_state.mT
    options: dict[str, Any] = {"scale": scale, "checkpoint_every": _CHUNK, "states_before": states}
    gdn_cuda.chunked_forward(q, k, v, beta, g, start, cu_seqlens, **options)
    states = states.unflatten(0, (q.shape[0], -1))
    return states if state_v_first else states.mT


def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A: None,
    do: Tensor,
    dht: Tensor | None,
    scale: float,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    state_v_first: bool,
    auto_cp: bool,
) -> tuple[Tensor | None, ...]:
    """Gradients of q, k, v, beta, g and the initial state."""
    given = {"q": q, "k": k, "v": v, "beta": beta, "g": g, "initial_state": initial_state}
    leaves = {name: x.detach().requires_grad_() for name, x in given.items() if x is not None}
    options: dict[str, Any] = {"state_v_first": state_v_first, "cu_seqlens": cu_seqlens, "scale": scale}
    results = chunk_gated_delta_rule(**given | leaves, output_final_state=dht is not None, **options)
    pairs = [pair for pair in zip(results, (do, dht), strict=True) if pair[1] is not None]
    gradients = torch.autograd.grad([y for y, _ in pairs], list(leaves.values()), [dy for _, dy in pairs])
    found = dict(zip(leaves, gradients, strict=True))
    counted.count("flashqla.chunk_gated_delta_rule_bwd")
    return tuple(found.get(name) for name in given)
