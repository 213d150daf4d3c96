"""vLLM: replaces, by name, the functions that the Gated Delta Net layer of Qwen3-Next, Qwen3.5 and Qwen4 calls: prefill with
and without checkpoints, packed decode, mixed batches and drafts, and the convolutions; and the gated norm. Of layers of Kimi
Delta Attention prefill, decode and drafts. Of Mamba-1 and Mamba-2 layers the step, which decodes and verifies drafts; of
Mamba-2 layers the scan of prompts, the convolutions and the gated norm too.

`plugin` is the entry point: it installs in every process of a server, where GDN_INTEGRATIONS names vllm. It imports nothing of
vLLM: modules, which touch the GPU, are changed when vLLM imports them. vLLM still chooses its prefill backend; both
flashinfer and triton then call gdn_cuda.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import Tensor

from ..hosts import verified
from ..hosts.replaced import AfterImport, Replaced
from ..runtime import package as gdn_cuda
from . import vllm_kda
from .counted import Declined, counted
from .mixer2_norm import mixer2_norm
from .packed import split_qkv
from .requested import install_if_requested
from .vllm_conv import FUNCTIONS as CONVOLUTIONS
from .vllm_conv import NULL_BLOCK
from .vllm_mamba import chunk_scan, selective_step

_MODULE = "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn"
_STEP_MODULE = "vllm.model_executor.layers.mamba.ops.ssu_dispatch"
_STEP_CLASS = "TritonSSUBackend"
_MIXER = "vllm.model_executor.layers.mamba.mamba_mixer2"


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
    slots: dict[str, Any] = {"state_indices": ssm_state_indices, "null_slot": NULL_BLOCK}
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
    and counts may have more rows than there are requests. With `is_kda` a has a gate for every channel."""
    if not inplace_final_state or initial_state is None:
        raise Declined("no pool to write to")
    if (beta, threshold) != (1.0, 20.0):
        raise Declined("another softplus")
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    shape = v.shape
    a, b = a.reshape(*shape[:3], -1) if is_kda else a.reshape(*shape[:2], -1), b.reshape(*shape[:2], -1)
    if is_kda:
        A_log, dt_bias = A_log.reshape(-1), dt_bias.reshape(-1)
    if cu_seqlens is not None:
        q, k, v, a, b = (x.squeeze(0) for x in (q, k, v, a, b))
    slots: dict[str, Any] = {
        "state_indices": None if ssm_state_indices is None else ssm_state_indices[:sequences],
        "num_accepted_tokens": None if num_accepted_tokens is None else num_accepted_tokens[:sequences],
        "null_slot": NULL_BLOCK,
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


# ---- The norm


def _norm(norm: Any, x: Tensor, z: Tensor | None = None) -> Tensor:
    options = {"norm_before_gate": norm.norm_before_gate, "group_size": norm.group_size}
    return gdn_cuda.rms_norm_gated(x, z, norm.weight, norm.eps, norm.activation, **options)


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
    **CONVOLUTIONS,
}
_NORM = "vllm.model_executor.layers.layernorm:RMSNormGated.forward_cuda"  # called where the norm is not compiled into a graph
_STEP = f"{_STEP_MODULE}:{_STEP_CLASS}.__call__"
_MIXER_TARGETS: dict[str, tuple[str, Callable[..., Any]]] = {
    "mamba_chunk_scan_combined_varlen": (
        "x, dt, A, B, C, chunk_size, cu_seqlens, cu_chunk_seqlens, last_chunk_indices, seq_idx, out, D=None, z=None, "
        "dt_bias=None, initial_states=None, dt_softplus=False, dt_limit=(0.0, inf), return_intermediate_states=False, "
        "state_dtype=None, final_states_out=None, final_state_indices=None",
        chunk_scan,
    ),
    **CONVOLUTIONS,
}
_MIXER_NORM = f"{_MIXER}:Mixer2RMSNormGated.forward_cuda"  # as _NORM
VERSIONS: verified.Versions = {"0.33.0": "run"}
_PARTS: dict[str, verified.Targets] = {
    "gdn": {f"{_MODULE}:{name}": expected for name, (expected, _) in _TARGETS.items()} | {_NORM: "self, x, z=None"},
    "mamba": {
        _STEP: "self, state, x, dt, A, B, C, D, dt_bias, z=None, dt_softplus=False, state_batch_indices=None, "
        "dst_state_batch_indices=None, null_block_id=0, out=None, num_accepted_tokens=None, cu_seqlens=None, is_blackwell=False"
    },
    "mamba2": {f"{_MIXER}:{name}": expected for name, (expected, _) in _MIXER_TARGETS.items()} | {_MIXER_NORM: "self, x, gate"},
    **vllm_kda.TARGETS,
}
HOST = verified.Host("vllm", "vllm", VERSIONS, _PARTS, vllm_kda.OPTIONAL)

# ---- install and uninstall

_replaced = Replaced()


def available() -> tuple[bool, str]:
    """Whether the functions to replace in an installed vLLM have the verified parameters; and its version, or why not."""
    return HOST.available()


@_replaced.whole()
def install() -> tuple[str, ...]:
    """Replaces the functions now, or when vLLM imports their modules. Returns the names of what is replaced now. A second call
    changes nothing.

    Raises `Refused`, with nothing replaced, if vLLM's imported modules, or the source of all others, differ from what was
    verified. If a module differs when it is imported later, vLLM keeps its own kernels there, which is logged.
    """
    if _later not in sys.meta_path:
        HOST.require()
        for module in _REPLACE:
            if module in sys.modules:
                _replace(sys.modules[module])
        _replaced.change(_later.install, _later.uninstall)
    return _replaced.names()


def uninstall() -> None:
    """Undoes `install`; the next call of a layer runs vLLM's own kernels, except for the norms of existing layers."""
    _replaced.undo()


def plugin() -> None:
    """The entry point of the group vllm.general_plugins, which every process of vLLM calls, some of them twice."""
    install_if_requested("vllm", install)


def _replace_functions(module: ModuleType, targets: dict[str, tuple[str, Callable[..., Any]]]) -> None:
    for name, (_, ours) in targets.items():
        _replaced.put(module, name, counted(f"vllm.{name.lstrip('_')}", ours, getattr(module, name)))


def _replace_target(target: str, counted_as: str, ours: Callable[..., Any]) -> None:
    owner, name = verified.owner_of(target)
    _replaced.put(owner, name, counted(f"vllm.{counted_as}", ours, getattr(owner, name)))


def _replace_layer(module: ModuleType) -> None:
    verified.check(HOST.parts["gdn"])
    _replace_functions(module, _TARGETS)
    _replace_target(_NORM, "rms_norm_gated", _norm)


def _replace_step(module: ModuleType) -> None:
    verified.check(HOST.parts["mamba"])
    _replace_target(_STEP, "selective_state_update", selective_step)


def _replace_mixer(module: ModuleType) -> None:
    verified.check(HOST.parts["mamba2"])
    _replace_functions(module, _MIXER_TARGETS)
    _replace_target(_MIXER_NORM, "rms_norm_gated", mixer2_norm)


def _replace_kda(module: ModuleType) -> None:
    name = module.__name__
    verified.check(HOST.parts[vllm_kda.PARTS[name]], HOST.optional)
    _replace_functions(module, vllm_kda.FUNCTIONS[name])
    if name == vllm_kda.GLM:
        _replace_target(vllm_kda.GLM_PREFILL, "flashkda_prefill", vllm_kda.flashkda_prefill_of_layer)
    if name == vllm_kda.K3 and hasattr(*verified.owner_of(vllm_kda.DECODE)):
        _replace_target(vllm_kda.DECODE, "fused_kda_decode", vllm_kda.decode_layer)


_REPLACE = {
    _MODULE: _replace_layer,
    _STEP_MODULE: _replace_step,
    _MIXER: _replace_mixer,
    **dict.fromkeys(vllm_kda.FUNCTIONS, _replace_kda),
}


@_replaced.whole()
def _replace(module: ModuleType) -> None:
    _REPLACE[module.__name__](module)


_later = AfterImport("vllm", _REPLACE, _replace)
