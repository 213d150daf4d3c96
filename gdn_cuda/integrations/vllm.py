"""vLLM: replaces, by name, the functions that the Gated Delta Net layer of Qwen3-Next, Qwen3.5 and Qwen4 calls: prefill with
and without checkpoints, packed decode, mixed batches and drafts, and the convolutions; and the gated norm.

`plugin` is the entry point: it installs in every process of a server, where GDN_INTEGRATIONS names vllm. It imports nothing of
vLLM: the layer's module, which touches the GPU, is changed when vLLM imports it. vLLM still chooses its prefill backend; both
flashinfer and triton then call gdn_cuda.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..hosts import verified
from ..hosts.replaced import AfterImport, Replaced
from ..runtime import package as gdn_cuda
from .counted import Declined, counted
from .packed import split_qkv
from .requested import install_if_requested

_MODULE = "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn"
_NULL_BLOCK = 0  # the slot of padding rows; negative slots are padding too


# ---- Decode


def _packed_decode(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    scale: float,
    initial_state: Tensor,
    out: Tensor,
    ssm_state_indices: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Tensor, Tensor]:
    """Decode of one token per request, (B, 2·H·K + HV·V); the output of a padding row is zero."""
    q, k, v = split_qkv(mixed_qkv, initial_state)
    slots: dict[str, Any] = {"state_indices": ssm_state_indices, "null_slot": _NULL_BLOCK}
    options: dict[str, Any] = {"scale": scale, "use_qk_l2norm": use_qk_l2norm_in_kernel, "out": out}
    gdn_cuda.fused_decode(q, k, v, a.unsqueeze(1), b.unsqueeze(1), A_log, dt_bias, initial_state, **slots, **options)
    return out, initial_state


def _update(
    A_log: Tensor,
    a: Tensor,
    b: Tensor,
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: float = 1.0,
    threshold: float = 20.0,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    inplace_final_state: bool = True,
    cu_seqlens: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    is_kda: bool = False,
) -> tuple[Tensor, Tensor]:
    """The decodes of a mixed batch, and drafts, which have slots (N, S), one for the state after each token. Tables of slots
    and counts may have more rows than there are requests."""
    if is_kda:
        raise Declined("KDA")
    if not inplace_final_state or initial_state is None:
        raise Declined("no pool to write to")
    if (beta, threshold) != (1.0, 20.0):
        raise Declined("another softplus")
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    shape = v.shape
    a, b = (x.reshape(*shape[:2], -1) for x in (a, b))
    if cu_seqlens is not None:
        q, k, v, a, b = (x.squeeze(0) for x in (q, k, v, a, b))
    slots: dict[str, Any] = {
        "state_indices": None if ssm_state_indices is None else ssm_state_indices[:sequences],
        "num_accepted_tokens": None if num_accepted_tokens is None else num_accepted_tokens[:sequences],
        "null_slot": _NULL_BLOCK,
    }
    options: dict[str, Any] = {"cu_seqlens": cu_seqlens, "scale": scale, "use_qk_l2norm": use_qk_l2norm_in_kernel}
    output = gdn_cuda.fused_decode(q, k, v, a, b, A_log, dt_bias, initial_state, **slots, **options)
    return output.reshape(shape), initial_state


# ---- Prefill: the caller gathers and scatters the states


def _chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    chunk_offsets: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    core_attn_out: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    options: dict[str, Any] = {"scale": scale, "use_qk_l2norm": use_qk_l2norm_in_kernel}
    options["output_final_state"] = output_final_state
    output, state = gdn_cuda.chunked_forward(q, k, v, beta, g, initial_state, cu_seqlens, **options)
    if core_attn_out is not None:
        core_attn_out.view(-1)[: output.numel()].copy_(output.view(-1))
    return output, state


def _chunk_with_checkpoints(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    output_final_state: bool,
    cu_seqlens: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = True,
    state_checkpoints: Tensor | None = None,
    checkpoint_cu_starts: Tensor | None = None,
    checkpoint_every_n_tokens: int = 0,
    use_cp: Any = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Sequence i owns the rows from checkpoint_cu_starts[i] on, one for every n tokens, like our packed checkpoints."""
    more: dict[str, Any] = {"use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel, "cu_seqlens": cu_seqlens}
    if state_checkpoints is None or checkpoint_every_n_tokens == 0:
        return _chunk(q, k, v, g, beta, None, initial_state, output_final_state, **more)
    output, state, _ = gdn_cuda.chunked_forward(
        q,
        k,
        v,
        beta,
        g,
        initial_state,
        cu_seqlens,
        use_qk_l2norm=use_qk_l2norm_in_kernel,
        output_final_state=output_final_state,
        checkpoint_every=checkpoint_every_n_tokens,
        checkpoints=state_checkpoints,
    )
    return output, state


# ---- Convolutions. A pool for drafts has more columns; other calls use its first W − 1.


def _conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_states: Tensor,
    query_start_loc: Tensor,
    cache_indices: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    activation: str | bool | None = "silu",
    pad_slot_id: int = -1,
    null_block_id: int | None = _NULL_BLOCK,
    metadata: Any = None,
    validate_data: bool = False,
) -> Tensor:
    """The convolution of prompts x (channels, tokens). Tables of slots and flags may have more rows than there are prompts."""
    sequences = query_start_loc.shape[0] - 1
    if cache_indices is not None:
        cache_indices = cache_indices[:sequences]
        if null_block_id is not None:
            cache_indices = torch.where(cache_indices == null_block_id, -1, cache_indices)
    return gdn_cuda.causal_conv1d(
        x.unsqueeze(0),
        weight,
        bias,
        activation=_activation(activation),
        cu_seqlens=query_start_loc,
        conv_state=conv_states[..., : weight.shape[1] - 1],
        state_indices=cache_indices,
        has_initial_state=None if has_initial_state is None else has_initial_state[:sequences],
    ).squeeze(0)


def _conv_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | bool | None = None,
    conv_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    query_start_loc: Tensor | None = None,
    max_query_len: int = -1,
    null_block_id: int | None = _NULL_BLOCK,
    validate_data: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """The convolution of decodes and drafts; overwrites x if no output is given."""
    return gdn_cuda.causal_conv1d_update(
        x,
        conv_state if num_accepted_tokens is not None else conv_state[..., : weight.shape[1] - 1],
        weight,
        bias,
        _activation(activation),
        conv_state_indices=conv_state_indices,
        num_accepted_tokens=num_accepted_tokens,
        cu_seqlens=query_start_loc,
        null_slot=null_block_id,
        out=x if out is None else out,
    )


def _norm(norm: Any, x: Tensor, z: Tensor | None = None) -> Tensor:
    options = {"norm_before_gate": norm.norm_before_gate, "group_size": norm.group_size}
    return gdn_cuda.rms_norm_gated(x, z, norm.weight, norm.eps, norm.activation, **options)


def _activation(given: str | bool | None) -> str | None:
    return given if isinstance(given, str) else "silu" if given else None


# ---- What was verified

_TARGETS: dict[str, tuple[str, Callable[..., Any]]] = {
    "fused_recurrent_gated_delta_rule_packed_decode": (
        "mixed_qkv, a, b, A_log, dt_bias, scale, initial_state, out, ssm_state_indices, use_qk_l2norm_in_kernel=False",
        _packed_decode,
    ),
    "fused_sigmoid_gating_delta_rule_update": (
        "A_log, a, b, dt_bias, q, k, v, beta=1.0, threshold=20.0, scale=None, initial_state=None, inplace_final_state=True, "
        "cu_seqlens=None, ssm_state_indices=None, num_accepted_tokens=None, use_qk_l2norm_in_kernel=False, is_kda=False",
        _update,
    ),
    "fla_chunk_gated_delta_rule": (
        "q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None, chunk_indices=None, "
        "chunk_offsets=None, use_qk_l2norm_in_kernel=False, core_attn_out=None",
        _chunk,
    ),
    "fi_chunk_gated_delta_rule": (
        "q, k, v, g, beta, initial_state, output_final_state, cu_seqlens=None, use_qk_l2norm_in_kernel=True, "
        "state_checkpoints=None, checkpoint_cu_starts=None, checkpoint_every_n_tokens=0, use_cp='auto'",
        _chunk_with_checkpoints,
    ),
    "causal_conv1d_fn": (
        "x, weight, bias, conv_states, query_start_loc, cache_indices=None, has_initial_state=None, activation='silu', "
        "pad_slot_id=-1, null_block_id=0, metadata=None, validate_data=False",
        _conv,
    ),
    "causal_conv1d_update": (
        "x, conv_state, weight, bias=None, activation=None, conv_state_indices=None, num_accepted_tokens=None, "
        "query_start_loc=None, max_query_len=-1, null_block_id=0, validate_data=False, out=None",
        _conv_update,
    ),
}
_NORM = "vllm.model_executor.layers.layernorm:RMSNormGated.forward_cuda"  # called where the norm is not compiled into a graph
VERSIONS: verified.Versions = {"0.33.0": "run"}
HOST = verified.Host(
    *("vllm", "vllm", VERSIONS),
    {"": {f"{_MODULE}:{name}": expected for name, (expected, _) in _TARGETS.items()} | {_NORM: "self, x, z=None"}},
)

# ---- install and uninstall

_replaced = Replaced()


def available() -> tuple[bool, str]:
    """Whether the functions to replace in an installed vLLM have the verified parameters; and its version, or why not."""
    return HOST.available()


@_replaced.whole()
def install() -> tuple[str, ...]:
    """Replaces the functions now, or when vLLM imports the layer's module. Returns the names of what is replaced now. A second
    call changes nothing.

    Raises `Refused`, with nothing replaced, if vLLM's imported modules, or the source of the others, differ from what was
    verified. If the module differs when it is imported later, vLLM keeps its own kernels, which is logged.
    """
    if _later not in sys.meta_path:
        HOST.require()
        if _MODULE in sys.modules:
            _replace(sys.modules[_MODULE])
        _replaced.change(_later.install, _later.uninstall)
    return _replaced.names()


def uninstall() -> None:
    """Undoes `install`; the next call of a layer runs vLLM's own kernels, except for the norms of existing layers."""
    _replaced.undo()


def plugin() -> None:
    """The entry point of the group vllm.general_plugins, which every process of vLLM calls, some of them twice."""
    install_if_requested("vllm", install)


@_replaced.whole()
def _replace(module: ModuleType) -> None:
    verified.check(HOST.targets)
    for name, (_, ours) in _TARGETS.items():
        _replaced.put(module, name, counted(f"vllm.{name}", ours, getattr(module, name)))
    owner, name = verified.owner_of(_NORM)
    _replaced.put(owner, name, counted("vllm.rms_norm_gated", _norm, getattr(owner, name)))


_later = AfterImport("vllm", [_MODULE], _replace)
