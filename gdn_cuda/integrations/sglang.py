"""SGLang: replaces the Triton kernel classes of its layers of Gated Delta Net and of Kimi Delta Attention, and their
convolutions; the step of its Mamba-1 and Mamba-2 layers, which decodes and verifies drafts; and of Mamba-2 layers the scan of
prompts, the convolutions and the norm.

`plugin` is the entry point: it installs in every process of a server, where GDN_INTEGRATIONS names sglang. Decoding with
ReplaySSM runs SGLang's own kernels. On Hopper SGLang chooses FlashInfer for prefill by default:
`--linear-attn-prefill-backend triton` gives it to the replaced class.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..hosts import verified
from ..hosts.replaced import AfterImport, Replaced
from ..runtime import package as gdn_cuda
from . import sglang_kda
from .counted import Declined, counted, run
from .mixer2_norm import mixer2_norm
from .requested import install_if_requested
from .sglang_conv import conv_drafts, conv_prompts, conv_prompts_triton, conv_tokens
from .sglang_mamba import chunk_scan, selective_step
from .sglang_plan import deterministic
from .sglang_steps import decode, packed_decode, target_verify

_MODULE = "sglang.srt.layers.attention.linear.kernels.gdn_triton"
_CLASS = "TritonGDNKernel"
_LAYER = "sglang.srt.layers.attention.linear.gdn_backend"  # calls the class and the convolutions
_KDA_MODULE = "sglang.srt.layers.attention.linear.kernels.kda_triton"
_KDA_CLASS = "TritonKDAKernel"
_KDA_LAYER = "sglang.srt.layers.attention.linear.kda_backend"
_STEP_MODULE = "sglang.kernels.ops.mamba.triton_ops.ssu_dispatch"
_STEP = f"{_STEP_MODULE}:TritonSSUBackend.__call__"
_MIXER = "sglang.srt.layers.attention.mamba.mamba"
_MIXER_NORM = f"{_MIXER}:Mixer2RMSNormGated.forward_cuda"
_CLASSES = {_MODULE: _CLASS, _KDA_MODULE: _KDA_CLASS}
_DECODE = "A_log, dt_bias, ssm_states, cache_indices, query_start_loc, **kwargs"
VERSIONS: verified.Versions = {"0.5.23": "run"}
_CONV_UPDATE = (
    "x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, conv_state_indices=None, num_accept_tokens=None, "
    "intermediate_conv_window=None, intermediate_state_indices=None, retrieve_next_token=None, retrieve_next_sibling=None, "
    "retrieve_parent_token=None, pad_slot_id=-1, metadata=None, validate_data=False"
)
_CONV = (
    "x, weight, bias=None, query_start_loc=None, cache_indices=None, has_initial_state=None, conv_states=None, "
    "activation='silu', pad_slot_id=-1, **kwargs"
)
_CONV_TRITON = (
    "x, weight, bias, conv_states, query_start_loc, seq_lens_cpu, cache_indices=None, has_initial_state=None, "
    "activation='silu', pad_slot_id=-1, validate_data=False, block_table=None, **kwargs"
)
_PACKED = "self, mixed_qkv, a, b, *, A_log, dt_bias, scale, ssm_states, cache_indices, num_v_heads, head_v_dim"
_VERIFY = (
    "self, A_log, dt_bias, q, k, v, a, b, *, ssm_states, cache_indices, query_start_loc, intermediate_states_buffer, "
    "intermediate_state_indices, cache_steps, retrieve_parent_token"
)
_TARGETS: dict[str, verified.Targets] = {
    _MODULE: {
        f"{_MODULE}:{_CLASS}.decode": f"self, q, k, v, a, b, *, {_DECODE}",
        f"{_MODULE}:{_CLASS}.packed_decode": f"{_PACKED}, **kwargs",
        f"{_MODULE}:{_CLASS}.extend": "self, q, k, v, g, beta, *, ssm_states, cache_indices, query_start_loc, "
        "inplace_update=True, **kwargs",
        f"{_MODULE}:{_CLASS}.target_verify": f"{_VERIFY}, **kwargs",
    },
    _LAYER: {
        f"{_LAYER}:causal_conv1d_fn": _CONV,
        f"{_LAYER}:causal_conv1d_update": _CONV_UPDATE,
    },
    _KDA_MODULE: {
        f"{_KDA_MODULE}:{_KDA_CLASS}.decode": "self, q, k, v, a, b, *, A_log, dt_bias, ssm_states, cache_indices, "
        "query_start_loc, lower_bound=None, **kwargs",
        f"{_KDA_MODULE}:{_KDA_CLASS}.packed_decode": f"{_PACKED}, lower_bound=None, **kwargs",
        f"{_KDA_MODULE}:{_KDA_CLASS}.extend": "self, q, k, v, g, beta, *, ssm_states, cache_indices, query_start_loc, "
        "A_log=None, dt_bias=None, lower_bound=None, beta_is_raw=False, return_intermediate_states=False, **kwargs",
        f"{_KDA_MODULE}:{_KDA_CLASS}.target_verify": f"{_VERIFY}, lower_bound=None, cache_ring=False, replayssm_rawv=None, "
        "replayssm_rawk=None, replayssm_g=None, replayssm_beta=None, **kwargs",
    },
    _KDA_LAYER: {
        f"{_KDA_LAYER}:causal_conv1d_fn": _CONV_TRITON,
        f"{_KDA_LAYER}:causal_conv1d_update": _CONV_UPDATE,
    },
    _STEP_MODULE: {
        _STEP: "self, state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, state_batch_indices=None, "
        "pad_slot_id=-1, out=None, disable_state_update=False, intermediate_states_buffer=None, cache_steps=None, "
        "retrieve_parent_token=None, intermediate_state_indices=None",
    },
    _MIXER: {
        f"{_MIXER}:mamba_chunk_scan_combined": "x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, initial_states=None, "
        "seq_idx=None, chunk_indices=None, chunk_offsets=None, cu_seqlens=None, dt_softplus=False, dt_limit=(0.0, inf), "
        "out=None, return_final_states=False, return_varlen_states=False, return_intermediate_states=False, "
        "state_dtype=None, return_track_states=False, track_seq_idx=None, track_end_locs=None",
        f"{_MIXER}:causal_conv1d_fn": _CONV,
        f"{_MIXER}:causal_conv1d_update": "x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, "
        "conv_state_indices=None, pad_slot_id=-1",
        f"{_MIXER}:causal_conv1d_fn_triton": _CONV_TRITON,
        f"{_MIXER}:causal_conv1d_update_triton": _CONV_UPDATE,
        _MIXER_NORM: "self, x, gate",
    },
}
_PARTS = {
    "gdn": {**_TARGETS[_MODULE], **_TARGETS[_LAYER]},
    "kda": {**_TARGETS[_KDA_MODULE], **_TARGETS[_KDA_LAYER]},
    "mamba": _TARGETS[_STEP_MODULE],
    "mamba2": _TARGETS[_MIXER],
}
HOST = verified.Host("sglang", "sglang", VERSIONS, _PARTS)
_CHUNK = 64  # tokens between the states that SGLang's own prefill returns

# ---- The calls. A slot below 0 is padding; slot 0 is an ordinary slot.


def _extend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    ssm_states: Tensor,
    cache_indices: Tensor,
    query_start_loc: Tensor,
    inplace_update: bool = True,
    num_state_checkpoints: int = 0,
    state_checkpoint_every_n_tokens: int = 0,
    output: Tensor | None = None,
    track_state: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None, Tensor | None]:
    """A prefill that reads and writes slots. Returns the output, and the states after every n tokens if some are requested,
    which SGLang orders as our packed checkpoints."""
    if track_state is not None:
        raise Declined("track_state is given")
    options: dict[str, Any] = {"state_indices": cache_indices, "update_state": inplace_update, "use_qk_l2norm": True}
    options["deterministic"] = deterministic()
    states = None
    if num_state_checkpoints > 0:
        states = torch.empty(num_state_checkpoints, *ssm_states.shape[1:], dtype=torch.float32, device=ssm_states.device)
        options |= {"checkpoint_every": state_checkpoint_every_n_tokens, "checkpoints": states}
    found = gdn_cuda.chunked_forward(q, k, v, beta, g, ssm_states, query_start_loc, out=output, **options)
    return found[0], None, None if states is None else states[None]


_CONVOLUTIONS: dict[str, Callable[..., Any]] = {"causal_conv1d_fn": conv_prompts, "causal_conv1d_update": conv_drafts}
_KDA_CONVOLUTIONS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": conv_prompts_triton,
    "causal_conv1d_update": conv_drafts,
}
_MIXER_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "mamba_chunk_scan_combined": chunk_scan,
    "causal_conv1d_fn": conv_prompts,
    "causal_conv1d_update": conv_tokens,
    "causal_conv1d_fn_triton": conv_prompts_triton,
    "causal_conv1d_update_triton": conv_drafts,
}

# ---- The classes

_STEPS: dict[str, Callable[..., Any]] = {
    "decode": decode,
    "packed_decode": packed_decode,
    "target_verify": target_verify,
}


def _subclass(host: type[Any], name: str, prefix: str, extend: Any, own_extend: Any, **flags: bool) -> type[Any]:
    """A subclass of SGLang's class that runs our calls, and SGLang's own where we decline. Calls are counted with a prefix."""

    def method(call: str, ours: Any, own: Any) -> Any:
        counted_as = f"sglang.{prefix}{call}"

        @functools.wraps(own)
        def counted_call(self: Any, *args: Any, **kwargs: Any) -> Any:
            return run(counted_as, ours, functools.partial(own, self), args, kwargs)

        return counted_call

    members = {
        "__doc__": f"{host.__name__} on gdn_cuda, and its own calls where gdn_cuda declines.",
        "__module__": __name__,
        **flags,
        **{call: method(call, ours, getattr(host, call)) for call, ours in _STEPS.items()},
        "extend": method("extend", extend, own_extend),
    }
    return type(name, (host,), members)


def kernel_class(host: type[Any]) -> type[Any]:
    """What replaces SGLang's kernel class of Gated Delta Net."""

    def own_extend(self: Any, *args: Any, **kwargs: Any) -> Any:
        output, last, before = host.extend(self, *args, **kwargs)
        return output, last, _states_after(before, **kwargs)

    flags = {"supports_packed_decode": True, "supports_strided_target_verify_qkv": True, "uses_state_checkpoints": True}
    return _subclass(host, "GdnCudaKernel", "", _extend, own_extend, **flags)


def kda_kernel_class(host: type[Any]) -> type[Any]:
    """What replaces that of Kimi Delta Attention. Its packed decode takes gates with a bound, too."""
    flags = {"supports_packed_decode": True, "supports_packed_decode_safe_gate": True}
    flags |= {"supports_strided_target_verify_qkv": True, "supports_track_state_snapshot": True}
    return _subclass(host, "GdnCudaKDAKernel", "kda_", sglang_kda.extend, host.extend, **flags)


def _states_after(
    before: Tensor,
    *,
    ssm_states: Tensor,
    cache_indices: Tensor,
    query_start_loc: Tensor,
    state_checkpoint_cu_starts: Tensor | None = None,
    num_state_checkpoints: int = 0,
    state_checkpoint_every_n_tokens: int = 0,
    **others: Any,
) -> Tensor | None:
    """Selects the states that the plan requests from the states before each chunk, which SGLang's own prefill returns:
    (1, rows, HV, V, K) with ⌈length / 64⌉ rows per sequence. The state after the last chunk is the one in the slot."""
    if num_state_checkpoints == 0 or state_checkpoint_cu_starts is None:
        return None
    starts = state_checkpoint_cu_starts
    row = torch.arange(num_state_checkpoints, device=starts.device)
    sequence = torch.searchsorted(starts, row, right=True) - 1
    tokens = (row - starts[sequence] + 1) * state_checkpoint_every_n_tokens
    lengths = query_start_loc.diff()
    chunks = (lengths + _CHUNK - 1) // _CHUNK
    chunk = (chunks.cumsum(0) - chunks)[sequence] + tokens // _CHUNK
    inside = (tokens < lengths[sequence])[:, None, None, None]
    last = ssm_states[cache_indices[sequence].clamp(min=0).long()].to(before.dtype)
    return torch.where(inside, before[0][chunk.clamp(max=before.shape[1] - 1)], last)[None]


# ---- install and uninstall

_replaced = Replaced()


def available() -> tuple[bool, str]:
    """Whether the functions to replace in an installed SGLang have the verified parameters; and its version, or why not."""
    return HOST.available()


@_replaced.whole()
def install() -> tuple[str, ...]:
    """Replaces the class, the layers' functions and the step now, or when SGLang imports their modules. Returns the names of
    what is replaced now. A second call changes nothing.

    Raises `Refused`, with nothing replaced, if SGLang's imported modules, or the source of all others, differ from what was
    verified. If a module differs when it is imported later, SGLang keeps its own kernels there, which is logged.
    """
    if _later not in sys.meta_path:
        HOST.require()
        for module in _REPLACE:
            if module in sys.modules:
                _replace(sys.modules[module])
        _replaced.change(_later.install, _later.uninstall)
    return _replaced.names()


def uninstall() -> None:
    """Undoes `install` for layers that are made afterwards; existing layers keep their kernel."""
    _replaced.undo()


def plugin() -> None:
    """The entry point of the group sglang.srt.plugins, which every process of SGLang calls."""
    install_if_requested("sglang", install)


def _replace_class(module: str, made_by: Callable[[type[Any]], type[Any]]) -> None:
    theirs = getattr(sys.modules[module], _CLASSES[module])
    ours = made_by(theirs)
    for user, name in verified.names_of(theirs, "sglang"):
        _replaced.put(user, name, ours)


def _replace_functions(module: str, functions: dict[str, Callable[..., Any]]) -> None:
    for name, ours in functions.items():
        counted_as = f"sglang.{name.removesuffix('_triton')}"
        _replaced.put(sys.modules[module], name, counted(counted_as, ours, getattr(sys.modules[module], name)))


def _replace_method(target: str, counted_as: str, ours: Callable[..., Any]) -> None:
    owner, name = verified.owner_of(target)
    _replaced.put(owner, name, counted(f"sglang.{counted_as}", ours, getattr(owner, name)))


def _replace_mixer() -> None:
    _replace_functions(_MIXER, _MIXER_FUNCTIONS)
    _replace_method(_MIXER_NORM, "rms_norm_gated", mixer2_norm)


_REPLACE: dict[str, Callable[[], None]] = {
    _MODULE: lambda: _replace_class(_MODULE, kernel_class),
    _KDA_MODULE: lambda: _replace_class(_KDA_MODULE, kda_kernel_class),
    _KDA_LAYER: lambda: _replace_functions(_KDA_LAYER, _KDA_CONVOLUTIONS),
    _LAYER: lambda: _replace_functions(_LAYER, _CONVOLUTIONS),
    _STEP_MODULE: lambda: _replace_method(_STEP, "selective_state_update", selective_step),
    _MIXER: _replace_mixer,
}


@_replaced.whole()
def _replace(module: ModuleType) -> None:
    verified.check(_TARGETS[module.__name__])
    _REPLACE[module.__name__]()


_later = AfterImport("sglang", _REPLACE, _replace)
