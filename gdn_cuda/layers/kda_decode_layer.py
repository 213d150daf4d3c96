"""A Kimi Delta Attention layer's step between its projections: the operator, its reference, examples, benchmark and sanitizer
calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..conv.causal_conv1d_update import _reference as convolved
from ..conv.causal_conv1d_update import causal_conv1d_update
from ..gdn import reference as gdn
from ..gdn.operators import fused_decode
from ..gdn.reference_operators import decode_slots, raw_gates_of_call
from ..operators.autograd import keep_autograd_out, with_autograd
from ..operators.caller import in_words_of_caller
from ..operators.calls import typical_call
from ..operators.composed import composed, on_cpu, result_in
from ..operators.examples import Arguments, example, random
from ..operators.hostile import hostile_indices
from ..operators.measure import Case, Inputs, Outcome, Peer, Work, bench, draw, normal, sanitizes, size
from ..operators.registration import check_call, register
from ..operators.schema import not_a_tensor, refuse, require_tensor
from ..operators.state_slots import check_slots, gather_states, is_slot
from .decode_layer import sanitized_calls as gdn_sanitized_calls
from .layer_parts import is_silu, split_heads
from .rms_norm_gated import rms_norm_gated

_NAME = "kda_decode_layer"
TAPS = 4  # the longest convolution
POOLS = ("conv_pool", "key_conv_pool", "value_conv_pool", "state_pool")
_READ = ("qkv", "a", "b", "conv_weight", "conv_bias", "A_log", "dt_bias", "z", "norm_weight", "state_indices")
_DIFFERENTIABLE = "kda_prefill_layer without pools"


def _heads(qkv: Tensor, state_pool: Tensor) -> tuple[tuple[int, int], int, int]:
    """((Hk, Hv), dk, dv) of a call whose shapes were checked."""
    heads_v, dv, dk = state_pool.shape[1:]
    return ((qkv.shape[-1] - heads_v * dv) // (2 * dk), heads_v), dk, dv


def _conv_parts(x: Mapping[str, Any], widths: list[int]) -> list[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
    """(inputs, pool, weight, bias) of the convolution: all channels, or those of query, key and value with pools of their
    own."""
    qkv, weight, bias = x["qkv"], x["conv_weight"], x["conv_bias"]
    if weight.dim() == 3:
        weight = weight.mT.flatten(0, 1)
    if x["key_conv_pool"] is None:
        return [(qkv, x["conv_pool"], weight, bias)]
    biases = (None, None, None) if bias is None else bias.split(widths)
    pools = [x[name] for name in POOLS[:3]]
    return list(zip(qkv.split(widths, -1), pools, weight.split(widths), biases, strict=True))


def _widths(heads: tuple[int, int], dk: int, dv: int) -> list[int]:
    return [heads[0] * dk, heads[0] * dk, heads[1] * dv]


# ---- The reference: that of causal_conv1d_update, then the recurrence and the norm in fp64


@torch.no_grad()
def _reference(x: Any) -> Tensor:
    sizes = heads, _, dv = _heads(x.qkv, x.state_pool)
    given = torch.arange(x.qkv.shape[0]) if x.state_indices is None else x.state_indices.to(torch.int64)
    check_slots(_NAME, "state_indices", given, x.state_pool.shape[0], x.null_slot)
    runs = torch.ones(len(given), dtype=torch.bool) if x.state_indices is None else is_slot(given, x.null_slot)
    options: dict[str, Any] = {"silu": x.silu, "conv_state_indices": x.state_indices, "null_slot": x.null_slot}
    options |= dict.fromkeys(("cache_seqlens", "num_accepted_tokens", "cu_seqlens"))
    parts = [
        convolved(SimpleNamespace(x=inputs, conv_state=pool, weight=weight, bias=bias, **options))
        for inputs, pool, weight, bias in _conv_parts(vars(x), _widths(*sizes))
    ]
    query, key, value = (rows[:, None] for rows in split_heads(torch.cat(parts, -1), *sizes))
    wide = {name: y.double() for name in ("a", "b", "A_log", "dt_bias") if (y := getattr(x, name)) is not None}
    gates = SimpleNamespace(**(vars(x) | wide))
    beta, gate = raw_gates_of_call(gates)
    start = gather_states(x.state_pool, given, runs).double()
    call = {"scale": x.scale, "use_qk_l2norm": True, "keep_steps": False, "compute_dtype": torch.float64}
    output, state, _ = gdn.recurrent(query, key, value, beta[:, None], gate[:, None], start, **call)
    for n in runs.nonzero()[:, 0].tolist():
        x.state_pool[given[n]] = state[n].to(x.state_pool.dtype)
    out = output[:, 0]
    if x.z is not None:
        z = x.z.unflatten(-1, (heads[1], dv)).double()
        activated = z.sigmoid() if x.gate_activation == "sigmoid" else F.silu(z)
        out = out / (out.square().mean(-1, keepdim=True) + x.norm_eps).sqrt() * x.norm_weight.double() * activated
    return torch.where(runs[:, None], out.flatten(-2), 0).to(x.qkv.dtype)


_layer = register(_NAME, reference=_reference, defaults={"activation": "silu"}, differentiable=_DIFFERENTIABLE)
keep_autograd_out(_layer)


def kda_decode_layer(
    qkv: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    conv_weight: Tensor,
    conv_bias: Tensor | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float | None = None,
    z: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_eps: float = 1e-5,
    conv_pool: Tensor,
    key_conv_pool: Tensor | None = None,
    value_conv_pool: Tensor | None = None,
    state_pool: Tensor,
    state_indices: Tensor | None = None,
    activation: str | None = "silu",
    gate_activation: str = "sigmoid",
    allow_negative_eigenvalues: bool = False,
    null_slot: int | None = None,
    scale: float | None = None,
    state_scales: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """A Kimi Delta Attention layer's step without its projections, in one launch. Returns the input of the output projection.

    Formula:
        q, k, v = activation(convolution of W taps of q, k, v);  q, k each divided by √(Σ x² + 1e-6)
        beta = sigmoid(b), twice that with allow_negative_eigenvalues
        g = −exp(A_log) · softplus(a + dt_bias), with lower_bound lower_bound · sigmoid(exp(A_log) · (a + dt_bias))
        S ← S · diag(exp(g))        v' = beta·(v − S k)        S ← S + v' kᵀ        o = scale · S q
        out = o / √(mean(o²) + norm_eps) · norm_weight · gate_activation(z)

    Shapes:
        qkv: (B, C), C = 2 Hk dk + Hv dv, q, k and v of all heads: one token of B sequences
        a: (B, Hv, dk); b: (B, Hv); a and b bf16, fp16 or fp32, any strides
        z: (B, Hv dv), as qkv bf16 or fp16, the last dimension contiguous; on the CPU all may be fp64
        conv_weight: (C, W), W 2 to 4, or where keys are as wide as values (3, W, C / 3); conv_bias: (C,), or None for 0
        A_log: (Hv,); dt_bias: (Hv, dk), or flat; norm_weight: (dv,); all weights fp32, bf16 or fp16
        conv_pool: (slots, C, W − 1 or more), fp32, bf16 or fp16, any strides: a pool (slots, columns, C) is passed transposed.
          Beside the other two, it has the channels of q alone
        key_conv_pool: (slots, Hk dk, columns); value_conv_pool: (slots, Hv dv, columns); dtype and columns as conv_pool
        state_pool: (slots, Hv, dv, dk), fp32 or bf16: each slot contiguous from 16 bytes on, any stride between slots; Hv is a
          multiple of Hk, dk 64, 96, 128, 192 or 256, dv a multiple of 8 up to 256; or int8, with any dk that is a multiple of
          32
        state_scales: (slots, Hv, dv, dk / 32), fp32, if the pool is int8, as in `fused_decode`; it takes the launches of the
          three operators then
        state_indices: (B,), int32 or int64: a sequence's slot in all pools; None: sequence n has slot n
        out: (B, Hv dv), the dtype of qkv

    Parameters:
        A_log, dt_bias, lower_bound: as in `fused_kda_gating`; without A_log and lower_bound, a is g itself
        activation: "silu" or "swish", which is the same, or None
        gate_activation: "silu", "swish" or "sigmoid"
        z, norm_weight: both None: no norm, out is o
        norm_eps: added to the mean square of an output row
        allow_negative_eigenvalues: whether beta is twice the sigmoid
        scale: dk^-0.5 if None
        null_slot: a slot number for padding; None: only negative slots are padding

    All pools are updated in place, bitwise as by a sequence of `causal_conv1d_update`, `fused_decode` and `rms_norm_gated`;
    only the output of the recurrence is not rounded in between. The convolution is read fastest where conv_bias and the pools
    have the dtype of qkv and conv_weight has it or is fp32, W is 4 and pools have three columns. `kda_prefill_layer` computes
    prompts.

    A call does not synchronize and allocates only out, so it can be part of a CUDA graph. vLLM's and FlashInfer's
    `fused_kda_decode` is this call with null_slot=0.

    Edge cases:
        A slot that is negative or null_slot skips the sequence: zero output, nothing touched.
        A slot past the pool touches nothing: on CPU tensors it raises IndexError; on a GPU the output of the sequence is NaN.
        A decay of 0 in one channel is an exact reset of its column of the state, infinities and NaN included. Two sequences on
          one slot race.

    Example:
        >>> Hk, Hv, dk, dv = 1, 2, 64, 8
        >>> qkv, z = torch.randn(1, 2 * Hk * dk + Hv * dv).bfloat16(), torch.randn(1, Hv * dv).bfloat16()
        >>> a, b = torch.randn(1, Hv, dk), torch.randn(1, Hv)
        >>> weights = {"conv_weight": torch.randn(2 * Hk * dk + Hv * dv, 4), "norm_weight": torch.ones(dv)}
        >>> weights |= {"A_log": torch.zeros(Hv), "dt_bias": torch.zeros(Hv, dk), "lower_bound": -5.0}
        >>> pools = {"conv_pool": torch.zeros(3, 2 * Hk * dk + Hv * dv, 3), "state_pool": torch.zeros(3, Hv, dv, dk)}
        >>> out = gdn_cuda.kda_decode_layer(qkv, a, b, z=z, **weights, **pools, state_indices=torch.tensor([2]))
        >>> out.shape, [bool(pool[2].any()) for pool in pools.values()], [bool(pool[:2].any()) for pool in pools.values()]
        (torch.Size([1, 16]), [True, True], [False, False])
    """
    silu = is_silu(_NAME, activation)
    coded = state_scales is not None or (isinstance(state_pool, Tensor) and state_pool.dtype == torch.int8)
    if out is None or coded:
        require_tensor(_NAME, "qkv", qkv)
        require_tensor(_NAME, "state_pool", state_pool)
        if qkv.dim() != 2:
            refuse(_NAME, "qkv", "(B, C)", str(tuple(qkv.shape)))
        if state_pool.dim() != 4:
            refuse(_NAME, "state_pool", "(slots, Hv, dv, dk)", str(tuple(state_pool.shape)))
    if coded:
        given: dict[str, Any] = {"a": a, "b": b, "conv_weight": conv_weight, "conv_bias": conv_bias, "A_log": A_log}
        given |= {"dt_bias": dt_bias, "lower_bound": lower_bound, "z": z, "norm_weight": norm_weight, "norm_eps": norm_eps}
        given |= {"conv_pool": conv_pool, "key_conv_pool": key_conv_pool, "value_conv_pool": value_conv_pool}
        given |= {"state_pool": state_pool, "state_scales": state_scales, "state_indices": state_indices, "scale": scale}
        given |= {"activation": activation, "gate_activation": gate_activation, "null_slot": null_slot, "qkv": qkv}
        given["allow_negative_eigenvalues"] = allow_negative_eigenvalues
        shape = (qkv.shape[0], state_pool.shape[1] * state_pool.shape[2])
        return result_in(_NAME, out, shape, qkv, given, lambda: _named_by_operators(**given))
    if out is None:
        out = qkv.new_empty(qkv.shape[0], state_pool.shape[1] * state_pool.shape[2])
    gates = (A_log, dt_bias, allow_negative_eigenvalues, lower_bound)
    others = (z, norm_weight, key_conv_pool, value_conv_pool, state_indices, silu, null_slot, scale)
    call = (qkv, a, b, conv_weight, conv_pool, state_pool, norm_eps, gate_activation, out, conv_bias, *gates, *others)
    with_autograd(_layer, call)
    return out


def by_operators(qkv: Tensor, a: Tensor, b: Tensor, **x: Any) -> Tensor:
    """The same by a sequence of causal_conv1d_update, fused_decode and rms_norm_gated, for any taps, dk, dv and dtypes."""
    optional = ["conv_bias", "A_log", "dt_bias", "z", "norm_weight", "key_conv_pool", "value_conv_pool", "state_indices"]
    optional.append("state_scales")
    x = dict.fromkeys((*optional, "lower_bound", "null_slot", "scale")) | x | {"qkv": qkv, "a": a, "b": b}
    for name in (*_READ, *POOLS, "state_scales"):
        if not isinstance(x[name], (Tensor, type(None)) if name in optional else Tensor):
            raise ValueError(not_a_tensor(_NAME, name, x[name], optional=name in optional))
    read = {name: x[name] for name in _READ}
    z, conv_weight, state_pool = x["z"], x["conv_weight"], x["state_pool"]
    for name, rank, layout in (("qkv", 2, "(B, C)"), ("state_pool", 4, "(slots, Hv, dv, dk)"), ("a", 3, "(B, Hv, dk)")):
        if x[name].dim() != rank:
            refuse(_NAME, name, layout, str(tuple(x[name].shape)))
    if b.dim() != 2:
        refuse(_NAME, "b", "(B, Hv)", str(tuple(b.shape)))
    if (z is None) != (x["norm_weight"] is None):
        refuse(_NAME, "z" if z is None else "norm_weight", "z with norm_weight, or neither", "None")
    if (x["key_conv_pool"] is None) != (x["value_conv_pool"] is None):
        missing = "key_conv_pool" if x["key_conv_pool"] is None else "value_conv_pool"
        refuse(_NAME, missing, "key_conv_pool with value_conv_pool, or neither", "None")
    sizes = heads, dk, dv = _heads(qkv, state_pool)
    widths = _widths(*sizes)
    if heads[0] < 1 or heads[1] % heads[0] or sum(widths) != qkv.shape[1]:
        expected = f"(B, 2 Hk {dk} + {heads[1]} {dv}) with Hk a divisor of the {heads[1]} value heads"
        refuse(_NAME, "qkv", expected, str(tuple(qkv.shape)))
    by_parts = (3, *conv_weight.shape[1:2], widths[0]) if widths[0] == widths[2] else ()
    if conv_weight.shape != (qkv.shape[1], *conv_weight.shape[1:2]) and conv_weight.shape != by_parts:
        refuse(_NAME, "conv_weight", f"(C={qkv.shape[1]}, W), or (3, W, C / 3)", str(tuple(conv_weight.shape)))
    for name in POOLS[:3]:
        if x[name] is not None and (x[name].dim() != 3 or x[name].shape[0] != state_pool.shape[0]):
            refuse(_NAME, name, f"({state_pool.shape[0]} slots, channels, columns)", str(tuple(x[name].shape)))
    slots, null_slot = x["state_indices"], x["null_slot"]
    o = qkv.new_empty(qkv.shape[0], 1, heads[1], dv)
    step = {name: x[name] for name in ("A_log", "dt_bias", "lower_bound", "state_pool", "state_indices", "null_slot", "scale")}
    step |= {"a": a[:, None], "b": b[:, None], "state_scales": x["state_scales"], "out": o}
    step["allow_negative_eigenvalues"] = x.get("allow_negative_eigenvalues", False)
    norm = {"gate": None if z is None else z.unflatten(-1, (heads[1], dv))[:, None], "weight": x["norm_weight"]}
    norm |= {"eps": x.get("norm_eps", 1e-5), "activation": x.get("gate_activation", "sigmoid")}
    activation = x.get("activation", "silu")
    conv = _conv_parts(x, widths)

    def checks() -> None:
        """Checks the operators that run after a convolution has written its states; shapes of results are those of inputs."""
        for inputs, pool, weight, bias in conv[1:]:
            more: dict[str, Any] = dict.fromkeys(("cache_seqlens", "num_accepted_tokens", "cu_seqlens"))
            given = {"x": inputs, "conv_state": pool, "weight": weight, "bias": bias, "silu": is_silu(_NAME, activation)}
            more |= {"conv_state_indices": slots, "null_slot": null_slot, "out": torch.empty_like(inputs)}
            check_call("causal_conv1d_update", **given, **more)
        rows = {name: y[:, None] for name, y in zip(("query", "key", "value"), split_heads(qkv, *sizes), strict=True)}
        check_call("fused_decode", **rows, **step, update_state=True, use_qk_l2norm=True)
        if on_cpu(qkv):
            more = dict.fromkeys(("cu_seqlens", "num_accepted_tokens", "step_states", "step_slots", "write_indices"))
            decode_slots(SimpleNamespace(**rows, **step, **more))
        if z is not None:
            check_call("rms_norm_gated", x=o, norm_before_gate=True, **norm)

    def run() -> Tensor:
        parts = [
            causal_conv1d_update(inputs, pool, weight, bias, activation, conv_state_indices=slots, null_slot=null_slot)
            for inputs, pool, weight, bias in conv
        ]
        rows = split_heads(parts[0] if len(parts) == 1 else torch.cat(parts, -1), *sizes)
        fused_decode(*(y[:, None] for y in rows), **step)
        return (o if z is None else rms_norm_gated(o, **norm)).flatten(1)

    written = {name: x[name] for name in (*POOLS, "state_scales") if x[name] is not None}
    return composed(_NAME, _DIFFERENTIABLE, written, read, run, checks)


_WORDS = {"query": "qkv", "key": "qkv", "value": "qkv", "x": "qkv", "gate": "z", "conv_state": "conv_pool", "bias": "conv_bias"}
_WORDS |= {"conv_state_indices": "state_indices", "causal_conv1d_update.weight": "conv_weight"}
_named_by_operators = in_words_of_caller(_NAME, **_WORDS, **{"rms_norm_gated.weight": "norm_weight"})(by_operators)


# ---- Examples


def layer_arguments(
    B: int,
    seed: int,
    heads: tuple[int, int] = (1, 2),
    dk: int = 64,
    dv: int = 8,
    taps: int = TAPS,
    columns: int = 0,
    slots: int = 0,
    io: torch.dtype = torch.bfloat16,
    state: torch.dtype = torch.float32,
    conv_state: torch.dtype | None = None,
    separate: bool = False,
) -> Arguments:
    """A layer with random weights; convolutions' pools are (slots, columns, C) in memory, as engines keep them. `separate`:
    three of them."""
    (Hk, Hv), columns, slots = heads, columns or taps - 1, slots or B + 2
    channels = 2 * Hk * dk + Hv * dv

    def pool(channels: int, seed: int) -> Tensor:
        return random(slots, columns, channels, seed=seed, dtype=conv_state or io).mT

    x: Arguments = {
        "qkv": random(B, channels, seed=seed, dtype=io),
        "a": random(B, Hv, dk, seed=seed + 1, dtype=io),
        "b": random(B, Hv, seed=seed + 2, dtype=io),
        "conv_weight": random(channels, taps, seed=seed + 3, dtype=io),
        "conv_bias": random(channels, seed=seed + 4, dtype=io),
        "A_log": random(Hv, seed=seed + 5),
        "dt_bias": random(Hv, dk, seed=seed + 6),
        "z": random(B, Hv * dv, seed=seed + 7, dtype=io),
        "norm_weight": random(dv, seed=seed + 8, dtype=io),
        "conv_pool": pool(Hk * dk if separate else channels, seed + 9),
        "state_pool": random(slots, 2, Hv, dv, dk, seed=seed + 10, dtype=state)[:, 0],
    }
    if separate:
        x |= {"key_conv_pool": pool(Hk * dk, seed + 11), "value_conv_pool": pool(Hv * dv, seed + 12)}
    return x


@example(kda_decode_layer)
def _one_token(B: int, T: int, seed: int) -> Arguments:
    slots = torch.arange(B, dtype=torch.int32).flip(0) + 1
    slots[1:2] = -1  # a padding row
    return layer_arguments(B, seed, slots=B + 3) | {"state_indices": slots, "null_slot": 0, "lower_bound": -5.0}


@example(kda_decode_layer, "kda_decode_layer-separate")
def _separate(B: int, T: int, seed: int) -> Arguments:
    x = layer_arguments(B, seed, (2, 4), state=torch.bfloat16, io=torch.float16, separate=True)
    return x | {"allow_negative_eigenvalues": True, "conv_bias": None, "scale": 0.5, "dt_bias": x["dt_bias"].flatten()}


@example(kda_decode_layer, "kda_decode_layer-bare")
def _bare(B: int, T: int, seed: int) -> Arguments:
    """Without a norm, and with decays' logarithms."""
    x = layer_arguments(B, seed, taps=3, columns=4)
    x |= dict.fromkeys(("A_log", "dt_bias", "z", "norm_weight"))
    return x | {"a": -x["a"].float().abs(), "activation": None}


# Defaults of `python -m gdn_cuda explain kda_decode_layer B=64`: Kimi-Linear in a server.
typical_call(
    kda_decode_layer,
    {"B": 64, "C": 12288, "Hv": 32, "R": 4096, "dk": 128, "dv": 128, "W": 4, "S": 3, "slots": 1024},
    "qkv: B C; a: B Hv dk; b: B Hv; conv_weight: C W; A_log: Hv f32; dt_bias: Hv dk f32; z: B R; norm_weight: dv; "
    "conv_pool: slots C S mn; state_pool: slots Hv dv dk f32; state_indices: B i32",
)


# ---- Benchmarks, with the sequence of operators as peer


def _copied(x: Inputs) -> Inputs:
    return {name: x[name].clone(memory_format=torch.preserve_format) for name in ("conv_pool", "state_pool")}


def _operators(x: Inputs) -> Peer:
    """Their weight was transposed before."""
    pools = _copied(x) | {"conv_weight": x["conv_weight"].mT.flatten(0, 1)}
    given = {name: y for name, y in x.items() if name != "out"} | pools
    return Peer(partial(by_operators, **given), lambda returned: (returned, pools["state_pool"]))


_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}


@bench({"operators": _operators}, operator=_NAME)
def _measured(device: str) -> Iterator[Case]:
    on_gpu = device == "cuda"
    for heads in (32, 12, 96) if on_gpu else (4,):
        for batch, state in product((1, 4, 16, 64, 256) if on_gpu else (1, 4), _NAMES):
            kind = f"{_NAMES[state]} state"
            yield Case(f"{heads} B={batch} {kind}", partial(layer_work, device, batch, heads, state), kind=kind)


def layer_work(device: str, batch: int, heads: int, state: torch.dtype, dim: int = 128) -> Work:
    channels, rows = 3 * heads * dim, heads * dim
    fp32 = partial(normal, device=device, dtype=torch.float32)
    x: Inputs = {
        "qkv": normal(batch, channels, device=device),
        "a": normal(batch, heads, dim, device=device),
        "b": normal(batch, heads, device=device),
        "conv_weight": fp32(3, TAPS, rows),  # as engines keep it
        "A_log": fp32(heads),
        "dt_bias": fp32(heads, dim),
        "lower_bound": -5.0,
        "z": normal(batch, rows, device=device),
        "norm_weight": normal(dim, device=device),
        "conv_pool": normal(batch, TAPS - 1, channels, device=device).mT,
        "state_pool": normal(batch, heads, dim, dim, device=device, dtype=state),
        "state_indices": torch.randperm(batch, device=device, dtype=torch.int32),
        "out": torch.empty(batch, rows, device=device, dtype=torch.bfloat16),
    }

    def outcome(inputs: Inputs) -> Outcome:
        pools = _copied(inputs)
        return kda_decode_layer(**inputs | pools | {"out": None}), pools["state_pool"]

    moved = 2 * size(x["conv_pool"], x["state_pool"]) + size(
        *(x[name] for name in ("qkv", "a", "b", "z", "out", "conv_weight"))
    )
    return Work(partial(kda_decode_layer, **x), moved, 0, x, outcome, x)


# ---- compute-sanitizer


@sanitizes("decode_layer")
def _sanitized() -> None:
    gdn_sanitized_calls()
    dims = ((128, 128), (96, 192), (64, 40))
    for state, (dk, dv), heads in product(_NAMES, dims, ((2, 4), (1, 9))):
        _sanitized_call(state, dk, dv, heads, separate=dk == 96)
    _sanitized_call(torch.float32, 64, 40, (1, 1), taps=2)


def _sanitized_call(
    state: torch.dtype, dk: int, dv: int, heads: tuple[int, int], separate: bool = False, taps: int = TAPS
) -> None:
    batch, (Hk, Hv) = 5, heads
    keys, rows, bf16 = Hk * dk, Hv * dv, torch.bfloat16
    channels = 2 * keys + rows

    def pool(channels: int) -> Tensor:
        return draw(6, taps - 1, channels, dtype=bf16).mT

    given: Inputs = {
        "qkv": draw(batch, channels, dtype=bf16),
        "a": draw(batch, Hv, dk, dtype=bf16),
        "b": draw(batch, Hv, dtype=bf16),
        "conv_weight": draw(channels, taps, dtype=bf16),
        "A_log": draw(Hv),
        "dt_bias": draw(Hv, dk),
        "conv_pool": pool(keys if separate else channels),
        "state_pool": draw(6, Hv, dv, dk, dtype=state),
        "state_indices": hostile_indices(batch),
    }
    if separate:
        given |= {"key_conv_pool": pool(keys), "value_conv_pool": pool(rows)}
    kda_decode_layer(**given)
    kda_decode_layer(**given, z=draw(batch, rows, dtype=bf16), norm_weight=draw(dv), lower_bound=-5.0)
