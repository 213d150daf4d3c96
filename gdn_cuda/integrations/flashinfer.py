"""FlashInfer's functions `chunk_gated_delta_rule`, `gated_delta_rule_decode`, `gated_delta_rule_decode_pretranspose`,
`gated_delta_rule_mtp`, `recurrent_kda` and `fused_kda_decode`, with its parameters, for programs that call them; `install`
replaces FlashInfer's by these.

FlashInfer's gates are decays, alpha = exp(gate): 0 is a reset. An alpha above 1 is not a decay: CPU tensors with one are
refused; on a GPU the state grows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..hosts import verified
from ..hosts.replaced import Replaced
from ..runtime import package as gdn_cuda
from . import flashinfer_kda
from .counted import Declined, counted
from .flashinfer_kda import fused_kda_decode, recurrent_kda

__all__ = [
    "chunk_gated_delta_rule",
    "fused_kda_decode",
    "gated_delta_rule_decode",
    "gated_delta_rule_decode_pretranspose",
    "gated_delta_rule_mtp",
    "recurrent_kda",
]
_OURS = ("auto", "flashinfer")  # backends


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    output: Tensor | None = None,
    output_state: Tensor | None = None,
    state_checkpoints: Tensor | None = None,
    checkpoint_cu_starts: Tensor | None = None,
    checkpoint_every_n_tokens: int = 0,
    use_cp: Any = "auto",
    state_indices: Tensor | None = None,
    _cp_chunk_len: int | None = None,
    backend: str = "auto",
    max_seqlen: int | None = None,
) -> Any:
    """Prefill of packed sequences: output, or with output_final_state (output, final state)."""
    if backend not in _OURS:
        raise Declined(f"backend {backend}")
    if cu_seqlens is None:
        raise Declined("no cu_seqlens")
    in_place = output_final_state and initial_state is not None and output_state is initial_state
    if in_place and state_indices is None:
        state_indices = torch.arange(cu_seqlens.shape[0] - 1, device=cu_seqlens.device)
    from_pool = state_indices is not None and initial_state is not None
    if from_pool and output_final_state and not in_place:
        raise Declined("another pool to write to")
    _check_decays(g)
    options: dict[str, Any] = {"scale": scale or None, "use_qk_l2norm": use_qk_l2norm_in_kernel, "out": output}
    options |= {
        "gate_is_linear": g is not None,
        "checkpoint_every": checkpoint_every_n_tokens,
        "checkpoints": state_checkpoints,
    }
    if from_pool:
        options |= {"state_indices": state_indices, "update_state": output_final_state}
    elif output_final_state and output_state is None:
        options["state_dtype"] = torch.float32
    elif output_final_state:
        options["final_state"] = output_state
    else:
        options["output_final_state"] = False
    output, state, *_ = gdn_cuda.chunked_forward(q, k, v, beta, g, initial_state, cu_seqlens, **options)
    return (output, state) if output_final_state else output


def _check_decays(alpha: Tensor | None) -> None:
    if alpha is not None and alpha.device.type == "cpu" and bool((alpha > 1).any()):
        raise ValueError(f"chunk_gated_delta_rule: g: expected decays of at most 1, got {float(alpha.max())}")


def gated_delta_rule_decode_pretranspose(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor | None,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None = None,
    output: Tensor | None = None,
    use_qk_l2norm: bool = True,
    initial_state: Tensor | None = None,
    initial_state_indices: Tensor | None = None,
    output_state_indices: Tensor | None = None,
    intermediate_states_buffer: Tensor | None = None,
    disable_state_update: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Tokens of a batch from states in place, or from a pool: (output, states)."""
    pool = state if initial_state is None else initial_state
    if backend not in _OURS:
        raise Declined(f"backend {backend}")
    if pool is None:
        raise Declined("neither state nor initial_state is given")
    options: dict[str, Any] = {"scale": scale, "use_qk_l2norm": use_qk_l2norm, "out": output}
    slots = (initial_state_indices, output_state_indices)
    options |= _destination(intermediate_states_buffer, disable_state_update, q, *slots)
    return gdn_cuda.fused_decode(q, k, v, a, b, A_log, dt_bias, pool, **options), pool


def gated_delta_rule_decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None = None,
    output: Tensor | None = None,
    use_qk_l2norm: bool = True,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """A token of a batch from states (B, HV, K, V) in place: (output, states)."""
    more: dict[str, Any] = {"scale": scale, "output": output, "use_qk_l2norm": use_qk_l2norm, "backend": backend}
    output, _ = gated_delta_rule_decode_pretranspose(q, k, v, state.mT, A_log, a, dt_bias, b, **more)
    return output, state


def gated_delta_rule_mtp(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial_state: Tensor,
    initial_state_indices: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None = None,
    output: Tensor | None = None,
    intermediate_states_buffer: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    disable_state_update: bool | None = None,
    use_qk_l2norm: bool = True,
    output_state_indices: Tensor | None = None,
    cache_replayssm: bool = False,
    replayssm_rawv: Tensor | None = None,
    replayssm_rawk: Tensor | None = None,
    replayssm_g: Tensor | None = None,
    replayssm_beta: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Several tokens of a batch: (output, pool). With disable_state_update=None the pool is unchanged, as in FlashInfer 0.7."""
    if ssm_state_indices is not None:
        raise Declined("ssm_state_indices is given")
    if cache_replayssm:
        raise Declined("ReplaySSM")
    frozen = disable_state_update is None or disable_state_update
    options: dict[str, Any] = {"scale": scale, "use_qk_l2norm": use_qk_l2norm, "out": output}
    slots = (initial_state_indices, output_state_indices)
    options |= _destination(intermediate_states_buffer, frozen, q, *slots)
    output = gdn_cuda.fused_decode(q, k, v, a, b, A_log, dt_bias, initial_state, **options)
    return output, initial_state


def _destination(
    buffer: Tensor | None, frozen: bool, q: Tensor, slots: Tensor | None, written: Tensor | None
) -> dict[str, Any]:
    """The arguments that say where states are read and written: the last state goes to the pool, unless that is frozen, and the
    state after every token to its sequence's row of the buffer."""
    if buffer is None:
        return {"state_indices": slots, "write_indices": None if frozen else written, "update_state": not frozen}
    rows = torch.arange(q.shape[0], device=q.device)
    slots = rows if slots is None else slots
    to_pool = slots if written is None else written
    to_buffer = {"state_indices": slots, "step_states": buffer, "step_slots": rows}
    return to_buffer if frozen else to_buffer | {"write_indices": to_pool}


# ---- What was verified

_TARGETS: dict[str, tuple[str, Callable[..., Any]]] = {
    "flashinfer.gdn_prefill:chunk_gated_delta_rule": (
        "q, k, v, g=None, beta=None, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None, "
        "use_qk_l2norm_in_kernel=False, output=None, output_state=None, state_checkpoints=None, checkpoint_cu_starts=None, "
        "checkpoint_every_n_tokens=0, use_cp='auto', state_indices=None, _cp_chunk_len=None, backend='auto', max_seqlen=None",
        chunk_gated_delta_rule,
    ),
    "flashinfer.gdn_decode:gated_delta_rule_decode_pretranspose": (
        "q, k, v, state, A_log, a, dt_bias, b, scale=None, output=None, use_qk_l2norm=True, initial_state=None, "
        "initial_state_indices=None, output_state_indices=None, intermediate_states_buffer=None, disable_state_update=False, "
        "backend='auto'",
        gated_delta_rule_decode_pretranspose,
    ),
    "flashinfer.gdn_decode:gated_delta_rule_decode": (
        "q, k, v, state, A_log, a, dt_bias, b, scale=None, output=None, use_qk_l2norm=True, backend='auto'",
        gated_delta_rule_decode,
    ),
    "flashinfer.gdn_decode:gated_delta_rule_mtp": (
        "q, k, v, initial_state, initial_state_indices, A_log, a, dt_bias, b, scale=None, output=None, "
        "intermediate_states_buffer=None, ssm_state_indices=None, disable_state_update=None, use_qk_l2norm=True, "
        "output_state_indices=None, cache_replayssm=False, replayssm_rawv=None, replayssm_rawk=None, replayssm_g=None, "
        "replayssm_beta=None",
        gated_delta_rule_mtp,
    ),
    "flashinfer.kda:recurrent_kda": (flashinfer_kda.PARAMETERS, recurrent_kda),
    "flashinfer.kda_decode:recurrent_kda": (flashinfer_kda.DECODE_PARAMETERS, flashinfer_kda.recurrent_kda_of_decode),
    "flashinfer.kda_decode:fused_kda_decode": (flashinfer_kda.LAYER_PARAMETERS, fused_kda_decode),
}
VERSIONS: verified.Versions = {"0.7.2": "run", "0.7.2.post1": "compared"}
HOST = verified.Host(
    "flashinfer-python", "flashinfer", VERSIONS, {"": {target: expected for target, (expected, _) in _TARGETS.items()}}
)

# ---- install and uninstall

_replaced = Replaced()


def available() -> tuple[bool, str]:
    """Whether the functions to replace in an installed FlashInfer have the verified parameters; and its version, or why not."""
    return HOST.available()


@_replaced.whole()
def install() -> tuple[str, ...]:
    """Imports FlashInfer's modules of both rules and replaces the functions wherever FlashInfer has them. A program that
    imported them by name before keeps FlashInfer's. Returns the names of the replaced functions. A second call changes nothing.
    Raises `Refused`, with nothing replaced, if FlashInfer differs from what was verified."""
    if not _replaced:
        HOST.require_imported()
        for target, (_, ours) in _TARGETS.items():
            theirs = getattr(*verified.owner_of(target))
            for owner, name in verified.names_of(theirs, "flashinfer"):
                _replaced.put(owner, name, counted(f"flashinfer.{name}", ours, theirs))
    return _replaced.names()


def uninstall() -> None:
    """Undoes `install`."""
    _replaced.undo()
