"""Other libraries' Gated Delta Net: FLA, FlashInfer and FlashQLA, each where it can be imported.

An adapter returns a call and a function that converts its results, or raises Absent. The adapter does the casts, transposes and
whatever else a library needs before its call, so that only the library's own work is timed.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from ..operators.measure import Absent, Inputs, Outcome, Peer, import_peer


def _require_heads_of_128(x: Inputs) -> None:
    if x["query"].shape[-1] != 128 or x["value"].shape[-1] != 128:
        raise Absent("its head dimensions are 128")


def _norms(x: Inputs) -> dict[str, bool]:
    return {"use_qk_l2norm_in_kernel": True} if x.get("use_qk_l2norm") else {}


def _transposed(state: Tensor) -> Tensor:
    return state.transpose(-1, -2).contiguous()


# ---- FLA 0.6: Triton. States are (dk, dv)


def _fla(name: str, module: str = "gated_delta_rule") -> Any:
    # By default FLA calls FlashQLA, if it is installed, for chunk_gated_delta_rule: the table would have one library twice.
    os.environ["FLA_DISABLE_BACKEND_DISPATCH"] = "1"
    return import_peer(f"fla.ops.{module}", name)


def _require_gate_per_head(x: Inputs) -> None:
    if x["a"].dim() > x["b"].dim():
        raise Absent("it takes a gate for each head")


def fla_decode(x: Inputs) -> Peer:
    """Its kernel computes l2 norm, gates and sigmoid; every call writes a new state."""
    if x["state_indices"].dim() == 2:
        raise Absent("its verify has another operator")
    _require_gate_per_head(x)
    if x["state_pool"].dtype != torch.float32:
        raise Absent("the states it writes are fp32")
    recurrent = _fla("fused_recurrent_gated_delta_rule")
    state = _transposed(x["state_pool"][x["state_indices"]])  # it has no slots

    def call() -> Any:
        return recurrent(
            q=x["query"],
            k=x["key"],
            v=x["value"],
            g=x["a"],
            beta=x["b"],
            A_log=x["A_log"],
            dt_bias=x["dt_bias"],
            initial_state=state,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
        )

    return Peer(call, lambda returned: (returned[0], _transposed(returned[1])))


def fla_recurrent(x: Inputs) -> Peer:
    if x["gate"].dim() == x["value"].dim():  # a gate for every channel
        return _chunked_or_recurrent(_fla("fused_recurrent_kda", "kda"), x)
    return _chunked_or_recurrent(_fla("fused_recurrent_gated_delta_rule"), x)


def fla_chunked(x: Inputs) -> Peer:
    return _chunked_or_recurrent(_fla("chunk_gated_delta_rule"), x)


def fla_chunked_channels(x: Inputs) -> Peer:
    return _chunked_or_recurrent(_fla("chunk_kda", "kda"), x)


def _chunked_or_recurrent(forward: Any, x: Inputs) -> Peer:
    """FLA's signature of these operators, which FlashQLA has too. Packed sequences are a batch of one."""
    packed = x.get("cu_seqlens") is not None
    inputs = {
        name: x[ours].unsqueeze(0) if packed else x[ours]
        for name, ours in {"q": "query", "k": "key", "v": "value", "g": "gate", "beta": "beta"}.items()
    }
    if packed:
        inputs["cu_seqlens"] = x["cu_seqlens"].long()
    inputs |= _norms(x)
    state = _transposed(x["state"])

    def read(returned: Any) -> Outcome:
        out, final_state = returned
        return out.squeeze(0) if packed else out, _transposed(final_state)

    return Peer(lambda: forward(**inputs, initial_state=state, output_final_state=True), read)


# ---- FlashQLA 0.1: TileLang. States are (dk, dv)


def flashqla_chunked(x: Inputs) -> Peer:
    _require_heads_of_128(x)
    return _chunked_or_recurrent(import_peer("flash_qla", "chunk_gated_delta_rule"), x)


# ---- FlashInfer 0.7: CuTe DSL. States are (dv, dk), like ours


def flashinfer_decode(x: Inputs) -> Peer:
    """With several tokens, it writes states to a buffer instead of slots."""
    _require_gate_per_head(x)
    if x["state_pool"].dtype == torch.int8:
        raise Absent("it has no int8 states")
    verifies = x["state_indices"].dim() == 2
    pool, slots = x["state_pool"].clone(), x["state_indices"]
    arguments: dict[str, Any] = {
        "q": x["query"],
        "k": x["key"],
        "v": x["value"],
        "A_log": x["A_log"],
        "a": x["a"],
        "dt_bias": x["dt_bias"],
        "b": x["b"],
        "output": torch.empty_like(x["value"]),  # otherwise it allocates and clears one
        "use_qk_l2norm": True,
        "initial_state": pool,
        "initial_state_indices": slots[:, 0].contiguous() if verifies else slots,
    }
    name = "gated_delta_rule_decode_pretranspose"
    if verifies and pool.dtype == torch.float32:
        name = "gated_delta_rule_mtp"
    else:
        arguments["state"] = None
    decode = import_peer("flashinfer.gdn_decode", name)
    if not verifies:
        return Peer(lambda: decode(**arguments), lambda returned: (returned[0], returned[1][slots]))
    states = pool.new_empty(*slots.shape, *pool.shape[1:])
    arguments |= {"intermediate_states_buffer": states, "disable_state_update": True}
    return Peer(lambda: decode(**arguments), lambda returned: (returned[0], states))


def flashinfer_chunked(x: Inputs) -> Peer:
    """Its sequences are packed, its gate is the decay and not a logarithm, and its caller allocates the outputs."""
    _require_heads_of_128(x)
    forward = import_peer("flashinfer.gdn_prefill", "chunk_gated_delta_rule")
    leading = x["value"].shape[:-2]
    tokens = {name: x[name].flatten(0, -3) for name in ("query", "key", "value")}
    decay, beta = (values.float().flatten(0, -2).contiguous() for values in (x["gate"].exp(), x["beta"]))
    offsets = x.get("cu_seqlens")
    if offsets is None:
        batch, length = leading
        offsets = torch.arange(0, (batch + 1) * length, length, dtype=torch.int32, device=decay.device)
    longest = int(offsets.diff().max())  # with which it launches smaller grids
    output, final_state = torch.empty_like(tokens["value"]), torch.empty_like(x["state"])

    def call() -> Any:
        return forward(
            tokens["query"],
            tokens["key"],
            tokens["value"],
            g=decay,
            beta=beta,
            initial_state=x["state"],
            output_final_state=True,
            cu_seqlens=offsets,
            output=output,
            output_state=final_state,
            max_seqlen=longest,
            **_norms(x),
        )

    return Peer(call, lambda returned: (returned[0].unflatten(0, leading), returned[1]))
