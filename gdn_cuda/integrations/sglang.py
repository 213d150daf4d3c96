"""SGLang: replaces the Triton kernel class of its Gated Delta Net layers, and their convolutions; and the step of its Mamba-1
and Mamba-2 layers, which decodes and verifies drafts.

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
import torch.nn.functional as F
from torch import Tensor

from ..hosts import verified
from ..hosts.replaced import AfterImport, Replaced
from ..runtime import package as gdn_cuda
from .counted import Declined, counted, run
from .packed import split_qkv
from .requested import install_if_requested

_MODULE = "sglang.srt.layers.attention.linear.kernels.gdn_triton"
_CLASS = "TritonGDNKernel"
_LAYER = "sglang.srt.layers.attention.linear.gdn_backend"  # calls the class and the convolutions
_STEP_MODULE = "sglang.kernels.ops.mamba.triton_ops.ssu_dispatch"
_STEP = f"{_STEP_MODULE}:TritonSSUBackend.__call__"
_DECODE = "A_log, dt_bias, ssm_states, cache_indices, query_start_loc, **kwargs"
VERSIONS: verified.Versions = {"0.5.23": "run"}
_TARGETS: dict[str, verified.Targets] = {
    _MODULE: {
        f"{_MODULE}:{_CLASS}.decode": f"self, q, k, v, a, b, *, {_DECODE}",
        f"{_MODULE}:{_CLASS}.packed_decode": "self, mixed_qkv, a, b, *, A_log, dt_bias, scale, ssm_states, cache_indices, "
        "num_v_heads, head_v_dim, **kwargs",
        f"{_MODULE}:{_CLASS}.extend": "self, q, k, v, g, beta, *, ssm_states, cache_indices, query_start_loc, "
        "inplace_update=True, **kwargs",
        f"{_MODULE}:{_CLASS}.target_verify": "self, A_log, dt_bias, q, k, v, a, b, *, ssm_states, cache_indices, "
        "query_start_loc, intermediate_states_buffer, intermediate_state_indices, cache_steps, retrieve_parent_token, **kwargs",
    },
    _LAYER: {
        f"{_LAYER}:causal_conv1d_fn": "x, weight, bias=None, query_start_loc=None, cache_indices=None, has_initial_state=None, "
        "conv_states=None, activation='silu', pad_slot_id=-1, **kwargs",
        f"{_LAYER}:causal_conv1d_update": "x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, "
        "conv_state_indices=None, num_accept_tokens=None, intermediate_conv_window=None, intermediate_state_indices=None, "
        "retrieve_next_token=None, retrieve_next_sibling=None, retrieve_parent_token=None, pad_slot_id=-1, metadata=None, "
        "validate_data=False",
    },
    _STEP_MODULE: {
        _STEP: "self, state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, state_batch_indices=None, "
        "pad_slot_id=-1, out=None, disable_state_update=False, intermediate_states_buffer=None, cache_steps=None, "
        "retrieve_parent_token=None, intermediate_state_indices=None",
    },
}
_PARTS = {"gdn": {**_TARGETS[_MODULE], **_TARGETS[_LAYER]}, "mamba": _TARGETS[_STEP_MODULE]}
HOST = verified.Host("sglang", "sglang", VERSIONS, _PARTS)
_CHUNK = 64  # tokens between the states that SGLang's own prefill returns

# ---- The calls. A slot below 0 is padding; slot 0 is an ordinary slot.


def _decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    A_log: Tensor,
    dt_bias: Tensor,
    ssm_states: Tensor,
    cache_indices: Tensor,
    query_start_loc: Tensor,
    **others: Any,
) -> Tensor:
    """Decode of one token per sequence: (1, B, …)."""
    batch = cache_indices.shape[0]
    if q.shape[1] != batch:
        raise Declined("more than one token a sequence")
    a, b = (x.reshape(batch, 1, -1) for x in (a, b))
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    return gdn_cuda.fused_decode(q, k, v, a, b, A_log, dt_bias, ssm_states, cache_indices).transpose(0, 1)


def _packed_decode(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    A_log: Tensor,
    dt_bias: Tensor,
    scale: float,
    ssm_states: Tensor,
    cache_indices: Tensor,
    num_v_heads: int,
    head_v_dim: int,
    **others: Any,
) -> Tensor:
    if any(name.startswith("replayssm_") and x is not None for name, x in others.items()):
        raise Declined("ReplaySSM")
    q, k, v = split_qkv(mixed_qkv, ssm_states)
    a, b = (x.unsqueeze(1) for x in (a, b))
    return gdn_cuda.fused_decode(q, k, v, a, b, A_log, dt_bias, ssm_states, cache_indices, scale=scale).transpose(0, 1)


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
    options["deterministic"] = _deterministic()
    states = None
    if num_state_checkpoints > 0:
        states = torch.empty(num_state_checkpoints, *ssm_states.shape[1:], dtype=torch.float32, device=ssm_states.device)
        options |= {"checkpoint_every": state_checkpoint_every_n_tokens, "checkpoints": states}
    found = gdn_cuda.chunked_forward(q, k, v, beta, g, ssm_states, query_start_loc, out=output, **options)
    return found[0], None, None if states is None else states[None]


def _deterministic() -> bool:
    """--enable-deterministic-inference: the results of a sequence do not depend on the rest of the batch."""
    context = sys.modules.get("sglang.srt.runtime_context")
    return context is not None and bool(context.get_exec().deterministic.enable_deterministic_inference)


def _target_verify(
    A_log: Tensor,
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    ssm_states: Tensor,
    cache_indices: Tensor,
    query_start_loc: Tensor,
    intermediate_states_buffer: Tensor,
    intermediate_state_indices: Tensor,
    cache_steps: int,
    retrieve_parent_token: Tensor | None,
    **others: Any,
) -> Tensor:
    """Drafts: the pool is unchanged, and the state after every token goes to a row of the buffer. In a tree, token t continues
    from the state after token retrieve_parent_token[n, t]; the first token continues from the slot, whatever its parent is."""
    shape, sequences, tokens = v.shape, query_start_loc.shape[0] - 1, q.shape[1]
    q, k, v = (x.squeeze(0) for x in (q, k, v))
    a, b = (x.reshape(tokens, -1) for x in (a, b))
    uniform = tokens == sequences * cache_steps  # every sequence has as many drafts, padding rows too
    if uniform:
        q, k, v, a, b = (x.unflatten(0, (sequences, cache_steps)) for x in (q, k, v, a, b))
    parents = None
    if retrieve_parent_token is not None:
        if not uniform:
            raise Declined("a tree of drafts in sequences of several lengths")
        parents = _parents(retrieve_parent_token[:sequences])
    options: dict[str, Any] = {
        "parents": parents,
        "cu_seqlens": None if uniform else query_start_loc,
        "step_states": intermediate_states_buffer,
        "step_slots": intermediate_state_indices[:sequences],
    }
    output = gdn_cuda.fused_decode(q, k, v, a, b, A_log, dt_bias, ssm_states, cache_indices[:sequences], **options)
    return output.reshape(shape)


def _parents(retrieve_parent_token: Tensor) -> Tensor:
    return F.pad(retrieve_parent_token[:, 1:], (1, 0), value=-1)


# ---- Steps of Mamba layers


def _selective_step(
    backend: Any,
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
    pad_slot_id: int = -1,
    out: Tensor | None = None,
    disable_state_update: bool = False,
    intermediate_states_buffer: Tensor | None = None,
    cache_steps: int | None = None,
    retrieve_parent_token: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
) -> None:
    """One token per request, or drafts (B, T, …), as in `_target_verify`."""
    if backend._enable_stochastic_rounding and not disable_state_update:
        raise Declined("stochastic rounding")
    if pad_slot_id < -1:
        raise Declined("another slot of padding")
    options: dict[str, Any] = {"null_slot": None if pad_slot_id < 0 else pad_slot_id, "out": out}
    if intermediate_states_buffer is None:
        options["update_state"] = not disable_state_update
    else:
        rows = state_batch_indices if intermediate_state_indices is None else intermediate_state_indices
        if rows is None or cache_steps != intermediate_states_buffer.shape[1]:
            raise Declined("no rows for states of drafts, or a buffer of another number of drafts")
        options |= {"step_states": intermediate_states_buffer, "step_slots": rows[: x.shape[0]]}
        options["write_indices"] = None if disable_state_update else state_batch_indices
        if retrieve_parent_token is not None:
            options["parents"] = _parents(retrieve_parent_token[: x.shape[0]])
    given = (state, x, dt, A, B, C, D, z, dt_bias, dt_softplus)
    gdn_cuda.selective_state_update(*given, state_batch_indices=state_batch_indices, **options)


# ---- Convolutions


def _conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    query_start_loc: Tensor | None = None,
    cache_indices: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    conv_states: Tensor | None = None,
    activation: str | None = "silu",
    pad_slot_id: int = -1,
    **others: Any,
) -> Tensor:
    """The convolution of prompts (channels, tokens)."""
    if query_start_loc is None or conv_states is None or pad_slot_id != -1:
        raise Declined("neither packed prompts nor a pool, or another slot of padding")
    options = {"state_indices": cache_indices, "has_initial_state": has_initial_state, "cu_seqlens": query_start_loc}
    pool = conv_states[..., : weight.shape[1] - 1]
    return gdn_cuda.causal_conv1d(x[None], weight, bias, activation=activation, conv_state=pool, **options)[0]


def _conv_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | bool | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
    num_accept_tokens: Tensor | None = None,
    intermediate_conv_window: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    retrieve_next_token: Tensor | None = None,
    retrieve_next_sibling: Tensor | None = None,
    retrieve_parent_token: Tensor | None = None,
    pad_slot_id: int = -1,
    metadata: Any = None,
    validate_data: bool = False,
) -> Tensor:
    """The convolution of one token per request. Drafts, whose windows SGLang stores, run SGLang's own."""
    drafts = (num_accept_tokens, intermediate_conv_window, retrieve_next_token, retrieve_parent_token)
    if any(given is not None for given in drafts) or cache_seqlens is not None or pad_slot_id != -1:
        raise Declined("drafts, a circular state, or another slot of padding")
    silu = "silu" if activation is True else activation or None
    pool = conv_state[..., : weight.shape[1] - 1]
    return gdn_cuda.causal_conv1d_update(x, pool, weight, bias, silu, conv_state_indices=conv_state_indices)


_CONVOLUTIONS: dict[str, Callable[..., Any]] = {"causal_conv1d_fn": _conv, "causal_conv1d_update": _conv_update}

# ---- The class


def kernel_class(host: type[Any]) -> type[Any]:
    """A subclass of SGLang's class that runs our calls, and SGLang's own where we decline."""

    def method(name: str, ours: Any, own: Any) -> Any:
        counted_as = f"sglang.{name}"

        @functools.wraps(own)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            return run(counted_as, ours, functools.partial(own, self), args, kwargs)

        return call

    def own_extend(self: Any, *args: Any, **kwargs: Any) -> Any:
        output, last, before = host.extend(self, *args, **kwargs)
        return output, last, _states_after(before, **kwargs)

    members = {
        "__doc__": "Gated Delta Net on gdn_cuda, and on the class that it takes the place of where gdn_cuda declines.",
        "__module__": __name__,
        "uses_state_checkpoints": True,
        "supports_packed_decode": True,
        "supports_strided_target_verify_qkv": True,
        "decode": method("decode", _decode, host.decode),
        "packed_decode": method("packed_decode", _packed_decode, host.packed_decode),
        "extend": method("extend", _extend, own_extend),
        "target_verify": method("target_verify", _target_verify, host.target_verify),
    }
    return type("GdnCudaKernel", (host,), members)


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
    """Replaces the class, the layer's convolutions and the step now, or when SGLang imports their modules. Returns the names of
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


def _replace_class() -> None:
    theirs = getattr(sys.modules[_MODULE], _CLASS)
    ours = kernel_class(theirs)
    for module, name in verified.names_of(theirs, "sglang"):
        _replaced.put(module, name, ours)


def _replace_convolutions() -> None:
    module = sys.modules[_LAYER]
    for name, ours in _CONVOLUTIONS.items():
        _replaced.put(module, name, counted(f"sglang.{name}", ours, getattr(module, name)))


def _replace_step() -> None:
    owner, name = verified.owner_of(_STEP)
    _replaced.put(owner, name, counted("sglang.selective_state_update", _selective_step, getattr(owner, name)))


_REPLACE = {_MODULE: _replace_class, _LAYER: _replace_convolutions, _STEP_MODULE: _replace_step}


@_replaced.whole()
def _replace(module: ModuleType) -> None:
    verified.check(_TARGETS[module.__name__])
    _REPLACE[module.__name__]()


_later = AfterImport("sglang", _REPLACE, _replace)
