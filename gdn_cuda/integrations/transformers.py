"""transformers: GDN and KDA layers, short convolutions, gated norms and Mamba's scans of its models.

    transformers.install()

replaces, by name, the functions that transformers' modeling files call, in files imported before or later. It works
before and after `from_pretrained`, on a GPU and on a CPU, in training and in inference. torch.export, and steps of
convolutions and scans that need gradients, run transformers' own functions.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .. import conv, gdn, layers
from ..compat import causal_conv1d as conv_functions
from ..compat import mamba_ssm
from ..gdn.by_token import by_token
from ..hosts import verified
from ..hosts.replaced import AfterImport, Replaced
from ..operators.autograd import needs_gradients
from ..operators.schema import refuse
from .counted import Declined, counted, decline_export, decline_gradients

# ---- The replacements


def _chunk(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = 64,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Prefill; states are (B, Hv, dk, dv) in transformers. g is (B, T, Hv), or in KDA (B, T, Hv, dk), whose layers pass
    cu_seq_lens_q on under that name."""
    decline_export()
    cu_seqlens = cu_seq_lens_q if cu_seqlens is None else cu_seqlens
    state = None if initial_state is None else initial_state.mT
    options: dict[str, Any] = {"use_qk_l2norm": use_qk_l2norm_in_kernel, "output_final_state": output_final_state}
    output, state = gdn.chunked_forward(query, key, value, beta, g, state, cu_seqlens, **options)
    return output, None if state is None else state.mT


def _by_token(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Steps, token by token in the bits of decode also where they need gradients; g as in `_chunk`."""
    decline_export()
    cu_seqlens = cu_seq_lens_q if cu_seqlens is None else cu_seqlens
    state = None if initial_state is None else initial_state.mT
    call: dict[str, Any] = {"beta": beta, "gate": g, "state": state, "cu_seqlens": cu_seqlens}
    options: dict[str, Any] = {"use_qk_l2norm": use_qk_l2norm_in_kernel, "output_final_state": output_final_state}
    output, after = by_token(query, key, value, **call, **options)
    return output, None if after is None else after.mT


def _conv(
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    seq_idx: Tensor | None = None,
    **others: Any,
) -> Tensor:
    decline_export()
    return conv.causal_conv1d(hidden_states, weight, bias, seq_idx, activation=activation)


def _conv_update(
    hidden_states: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> Tensor:
    decline_export()
    if needs_gradients(hidden_states, conv_state, weight, bias):
        columns, before = conv_state.shape[-1], weight.shape[-1] - 1
        if columns < before:
            raise Declined("conv_state has fewer columns than the convolution has taps before a token")
        state = conv_state[..., columns - before :].clone()
        out = conv.causal_conv1d(hidden_states, weight, bias, None, state, activation=activation)
        conv_state.copy_(torch.cat([conv_state, hidden_states], -1)[..., -columns:])
        return out
    return conv_functions.causal_conv1d_update(hidden_states, conv_state, weight, bias, activation)


def _scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **others: Any,
) -> Any:
    decline_export()
    return mamba_ssm.selective_scan_fn(hidden_states, dt, A, B, C, D, z, delta_bias, delta_softplus, return_last_state)


def _scan_update(
    state: Tensor,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    z: Tensor | None = None,
    **others: Any,
) -> Tensor:
    decline_export()
    decline_gradients(state, hidden_states, dt, A, B, C, D, z, dt_bias)
    return mamba_ssm.selective_state_update(state, hidden_states, dt, A, B, C, D, z, dt_bias, dt_softplus)


def _chunk_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    return_final_states: bool = False,
    z: Tensor | None = None,
    seq_idx: Tensor | None = None,
    **others: Any,
) -> Any:
    """Mamba-2's scan."""
    decline_export()
    rest: dict[str, Any] = {"dt_softplus": dt_softplus, "dt_limit": dt_limit, "return_final_states": return_final_states}
    return mamba_ssm.mamba_chunk_scan_combined(
        hidden_states, dt, A, B, C, chunk_size, D, z, dt_bias, initial_states, seq_idx, **rest
    )


_ARGUMENTS = frozenset(inspect.signature(mamba_ssm.mamba_split_conv1d_scan_combined).parameters)


def _split_chunk_scan(*given: Any, **options: Any) -> Any:
    """Mamba-2's layer after its first projection."""
    decline_export()
    options = {name: x for name, x in options.items() if name in _ARGUMENTS}
    return mamba_ssm.mamba_split_conv1d_scan_combined(*given, **options)


def _packed_only(call: Callable[..., Any]) -> Callable[..., Any]:
    """`call` for packed sequences, which have no padding. Otherwise None, for which a layer runs its parts: it masks padding
    between them."""

    @functools.wraps(call)
    def packed(*given: Any, seq_idx: Tensor | None = None, **options: Any) -> Any:
        return None if seq_idx is None else call(*given, seq_idx=seq_idx, **options)

    return packed


def _never(*given: Any, **options: Any) -> None:
    """FalconH1's layers pass norm_before_gate=False to this call, whatever their norm has: their parts run."""


def _norm_of_heads(norm: Any, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
    """Normalizes each row, then applies the gate."""
    decline_export()
    return layers.rms_norm_gated(hidden_states, gate, norm.weight, norm.variance_epsilon, norm.activation)


def _norm_of_groups(norm: Any, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
    """Mamba-2's norm: applies the gate, then normalizes each group of columns."""
    decline_export()
    options = {"norm_before_gate": False, "group_size": norm.group_size}
    return layers.rms_norm_gated(hidden_states, gate, norm.weight, norm.variance_epsilon, **options)


def _norm_of_falcon(norm: Any, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
    """FalconH1's norm: the same with a given number of groups, in either order."""
    decline_export()
    options = {"norm_before_gate": norm.norm_before_gate, "group_size": hidden_states.shape[-1] // norm.n_groups}
    return layers.rms_norm_gated(hidden_states, gate, norm.weight, norm.variance_epsilon, **options)


# ---- What was verified: by kind of function, its parameters and ours; by model, the kinds and their names in its modeling file

_Kind = tuple[str, Callable[..., Any]]
_GDN = "query, key, value, g, beta, {}initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, **kwargs"
_KDA_STEP = "query, key, value, g, beta, initial_state, output_final_state, use_qk_l2norm_in_kernel=False, **kwargs"
_STATE_UPDATE = "state, hidden_states, dt, A, B, C, D=None, dt_bias=None, dt_softplus=False, z=None, **kwargs"
_SPLIT = (
    "zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, chunk_size, initial_states=None, dt_limit=(0.0, inf), "
    "return_final_states=False, activation='silu', rmsnorm_weight=None, rmsnorm_eps=1e-06, outproj_weight=None, "
    "outproj_bias=None, headdim=None, ngroups=1, norm_before_gate=True, **kwargs"
)
_KINDS: dict[str, _Kind] = {
    "chunk_gated_delta_rule": (_GDN.format("chunk_size=64, "), _chunk),
    "fused_recurrent_gated_delta_rule": (_GDN.format(""), _by_token),
    "chunk_kda": (_GDN.format("chunk_size=64, "), _chunk),
    "fused_recurrent_kda": (_KDA_STEP, _by_token),
    "causal_conv1d_fn": ("hidden_states, weight, bias=None, activation=None, **kwargs", _conv),
    "causal_conv1d_update": ("hidden_states, conv_state, weight, bias=None, activation=None", _conv_update),
    "selective_scan_fn": (
        "hidden_states, dt, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False, "
        "use_mambapy=False, use_associative_scan=False, **kwargs",
        _scan,
    ),
    "selective_state_update": (_STATE_UPDATE, _scan_update),
    "mamba_chunk_scan_combined": (
        "hidden_states, dt, A, B, C, chunk_size, D=None, dt_bias=None, initial_states=None, dt_softplus=False, "
        "dt_limit=(0.0, inf), return_final_states=False, **kwargs",
        _chunk_scan,
    ),
    "mamba_split_conv1d_scan_combined": (_SPLIT, _split_chunk_scan),
    "mamba_split_conv1d_scan_never": (_SPLIT, _never),
    "rms_norm_gated": ("self, hidden_states, gate", _norm_of_heads),
    "rms_norm_gated_or_not": ("self, hidden_states, gate=None", _norm_of_heads),
    "rms_norm_of_groups": ("self, hidden_states, gate=None", _norm_of_groups),
    "rms_norm_of_falcon": ("self, hidden_states, gate=None", _norm_of_falcon),
}
_CONV = {"causal_conv1d_fn": "causal_conv1d_fn", "causal_conv1d_update": "causal_conv1d_update"}
_DELTA_RULE = {
    "torch_chunk_gated_delta_rule": "chunk_gated_delta_rule",
    "torch_recurrent_gated_delta_rule": "fused_recurrent_gated_delta_rule",
}
_KDA = {"chunk_kimi_delta_attention": "chunk_kda", "recurrent_kimi_delta_attention": "fused_recurrent_kda"}
_MAMBA = {"mamba_selective_scan": "selective_scan_fn", "mamba_selective_state_update": "selective_state_update"}
_MAMBA2 = {
    "mamba2_selective_state_update": "selective_state_update",
    "mamba2_chunk_scan": "mamba_chunk_scan_combined",
    "mamba2_split_conv1d_scan_combined": "mamba_split_conv1d_scan_combined",
}


def _gdn(norm: str) -> dict[str, str]:
    return _CONV | _DELTA_RULE | {f"{norm}.forward": "rms_norm_gated"}


def _kda(norm: str) -> dict[str, str]:
    return _CONV | _KDA | {f"{norm}.forward": "rms_norm_gated_or_not"}


def _mamba2(norm: str, kind: str = "rms_norm_of_groups") -> dict[str, str]:
    return _CONV | _MAMBA2 | {f"{norm}.forward": kind}


# By model: the kind of every attribute that is replaced. mamba_inner_fn is not replaced: it takes no mask, so padding before a
# sequence would change what a model computes. Its callers run the convolution and the scan themselves.
MODELS: dict[str, dict[str, str]] = {
    "qwen3_next": _gdn("Qwen3NextRMSNormGated"),
    "qwen3_5": _gdn("Qwen3_5RMSNormGated"),
    "qwen3_5_moe": _gdn("Qwen3_5MoeRMSNormGated"),
    "qwen4_exp": _gdn("Qwen4ExpTextRMSNormGated"),
    "olmo_hybrid": _gdn("OlmoHybridRMSNormGated"),
    "kimi_linear": _kda("KimiLinearRMSNormGated"),
    "bailing_hybrid": _kda("BailingHybridRMSNormGated"),
    "glm5_next": _kda("Glm5NextTextRMSNormGated"),
    "mamba": _CONV | _MAMBA,
    "falcon_mamba": _CONV | _MAMBA,
    "jamba": _CONV | _MAMBA,
    "zamba": _CONV | _MAMBA,
    "mamba2": _mamba2("MambaRMSNormGated"),
    "bamba": _mamba2("BambaRMSNormGated"),
    "nemotron_h": _mamba2("NemotronHRMSNormGated"),
    "zamba2": _mamba2("Zamba2RMSNormGated"),
    "granitemoehybrid": _mamba2("GraniteMoeHybridRMSNormGated"),
    "falcon_h1": _mamba2("FalconH1RMSNormGated", "rms_norm_of_falcon")
    | {"mamba2_split_conv1d_scan_combined": "mamba_split_conv1d_scan_never"},
    "lfm2": _CONV,
    "lfm2_moe": _CONV,
    "inkling": _CONV,
    "inkling2": _CONV,
}


def _module(model: str) -> str:
    return f"transformers.models.{model}.modeling_{model}"


_MODEL_OF = {_module(model): model for model in MODELS}


def _targets(model: str) -> dict[str, str]:
    return {f"{_module(model)}:{attribute}": _KINDS[kind][0] for attribute, kind in MODELS[model].items()}


VERSIONS: verified.Versions = {"5.23.0": "run", "5.24.0": "run"}
HOST = verified.Host("transformers", "transformers", VERSIONS, {model: _targets(model) for model in MODELS})

# ---- install and uninstall

_replaced = Replaced()
_installed: set[str] = set()


def available() -> tuple[bool, str]:
    """Whether the functions to replace in an installed transformers have the verified parameters; its version, or why not."""
    return HOST.available()


@_replaced.whole()
def install(model: Any = None) -> tuple[str, ...]:
    """Replaces the functions of every known model, or of `model`, a model or a name such as "qwen3_next": now if its modeling
    file is imported, otherwise when it is. Returns the names of everything replaced so far. A second call changes nothing.

    Raises `Refused`, with nothing replaced, if an imported file differs from what was verified, or if every requested file
    does. A file that differs when it is imported later keeps its own functions, which is logged.
    """
    wanted = [name for name in (MODELS if model is None else [_name_of(model)]) if name not in _installed]
    if wanted:
        HOST.require(wanted)
        for name in wanted:
            if _module(name) in sys.modules:
                _replace(name)
        _replaced.change(lambda: _installed.update(wanted), lambda: _installed.difference_update(wanted))
    if _later not in sys.meta_path:
        _replaced.change(_later.install, _later.uninstall)
    return _replaced.names()


def uninstall() -> None:
    """Undoes `install`."""
    _replaced.undo()


def _name_of(model: Any) -> str:
    name = model if isinstance(model, str) else _MODEL_OF.get(type(model).__module__)
    if name not in MODELS:
        refuse("install", "model", f"a model of {', '.join(MODELS)}, or its name", repr(name or type(model).__name__))
    return name


def _when_imported(module: ModuleType) -> None:
    model = _MODEL_OF[module.__name__]
    if model in _installed:
        _replace(model)


@_replaced.whole()
def _replace(model: str) -> None:
    module = importlib.import_module(_module(model))
    verified.check(_targets(model))
    for attribute, kind in MODELS[model].items():
        owner, name = verified.owner_of(f"{module.__name__}:{attribute}")
        _replaced.put(owner, name, _replacement(kind, getattr(owner, name)))


_later = AfterImport("transformers", _MODEL_OF, _when_imported)


def _replacement(kind: str, host: Any) -> Any:
    ours = _KINDS[kind][1]
    if ours is _never:
        return functools.wraps(host)(lambda *given, **options: None)
    call = counted(f"transformers.{_counted_as(kind)}", ours, host)
    return _packed_only(call) if ours is _split_chunk_scan else call


def _counted_as(kind: str) -> str:
    return "rms_norm_gated" if kind.startswith("rms_norm") else kind
