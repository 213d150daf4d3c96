"""Other libraries' operators on the same inputs. Each adapter gives a call, or raises with the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .bench_timing import Call


class Absent(Exception):
    """Why a peer is not measured."""


def _import(module: str, name: str) -> Any:
    import importlib

    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # a peer may fail to import in any way; it is only left out
        raise Absent(f"{module}.{name}: {type(error).__name__}: {error}") from error


def flashinfer_decode(x: dict[str, Any]) -> Call:
    """Reads and writes the states in the order of the batch: it is spared the slot indices."""
    decode = _import("flashinfer.gdn_decode", "gated_delta_rule_decode_pretranspose")
    state = x["state_pool"].clone()
    names = ("a", "b", "A_log", "dt_bias")
    return lambda: decode(
        q=x["query"], k=x["key"], v=x["value"], state=state, use_qk_l2norm=True, **{name: x[name] for name in names}
    )


def fla_decode(x: dict[str, Any]) -> Call:
    """Without the gating, which FLA computes in a launch of its own, and with a new state for each call."""
    if x["state_pool"].dtype != torch.float32:
        raise Absent("its states are fp32")
    recurrent = _import("fla.ops.gated_delta_rule", "fused_recurrent_gated_delta_rule")
    gate = -x["A_log"].exp() * torch.nn.functional.softplus(x["a"].float() + x["dt_bias"].float())
    beta = x["b"].sigmoid()
    state = x["state_pool"].transpose(-1, -2).contiguous()  # FLA keeps (dk, dv)
    return lambda: recurrent(
        x["query"],
        x["key"],
        x["value"],
        g=gate,
        beta=beta,
        initial_state=state,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )


def fla_recurrent(x: dict[str, Any]) -> Call:
    return _fla("fused_recurrent_gated_delta_rule", x)


def fla_chunked(x: dict[str, Any]) -> Call:
    return _fla("chunk_gated_delta_rule", x)


def _fla(name: str, x: dict[str, Any]) -> Call:
    forward = _import("fla.ops.gated_delta_rule", name)
    state = x["state"].transpose(-1, -2).contiguous()
    return lambda: forward(
        x["query"], x["key"], x["value"], g=x["gate"], beta=x["beta"], initial_state=state, output_final_state=True
    )


PEERS: dict[str, dict[str, Callable[[dict[str, Any]], Call]]] = {
    "fused_decode": {"FlashInfer": flashinfer_decode, "FLA": fla_decode},
    "recurrent_forward": {"FLA": fla_recurrent},
    "fused_gdn_gating": {},
    "chunked_forward": {"FLA": fla_chunked},
}
