"""A Mamba-2 layer's step between its projections: the operator, its reference, examples, benchmark and sanitizer calls."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..conv.causal_conv1d_update import _reference as convolved
from ..conv.causal_conv1d_update import causal_conv1d_update
from ..gdn.convert_states import convert_states
from ..gdn.state_codes import encode
from ..operators.autograd import keep_autograd_out, with_autograd
from ..operators.calls import typical_call
from ..operators.composed import composed
from ..operators.examples import Arguments, example, random
from ..operators.hostile import hostile_indices
from ..operators.measure import Case, Inputs, Outcome, Peer, Work, bench, draw, normal, sanitizes, size
from ..operators.registration import check_call, register
from ..operators.schema import refuse, require_tensor
from ..operators.state_slots import check_slots
from ..scan.selective_step import _reference as advanced
from ..scan.selective_step import selective_state_update
from .layer_parts import is_silu
from .rms_norm_gated import rms_norm_gated

_NAME = "mamba2_decode_layer"
TAPS = 4  # of the convolution
STATES = (64, 128, 256)  # of a channel
NO_LIMIT = (0.0, math.inf)
_READ = ("xBC", "dt", "conv_weight", "conv_bias", "A", "D", "dt_bias", "z", "state_indices")


# ---- The reference: those of causal_conv1d_update and selective_state_update


def _split(xBC: Tensor, heads: int, dim: int, groups: int, states: int) -> tuple[Tensor, Tensor, Tensor]:
    x, B, C = xBC.split([heads * dim, groups * states, groups * states], -1)
    return x.unflatten(-1, (heads, dim)), B.unflatten(-1, (groups, states)), C.unflatten(-1, (groups, states))


def _reference(x: Any) -> Tensor:
    slots, heads, dim, states = x.state_pool.shape
    given = torch.arange(x.xBC.shape[0]) if x.state_indices is None else x.state_indices.to(torch.int64)
    check_slots(_NAME, "state_indices", given, slots, x.null_slot)
    conv = {"x": x.xBC, "conv_state": x.conv_pool, "weight": x.conv_weight, "bias": x.conv_bias, "silu": x.silu}
    conv |= dict.fromkeys(("cache_seqlens", "num_accepted_tokens", "cu_seqlens"))
    conv |= {"conv_state_indices": x.state_indices, "null_slot": x.null_slot}
    rows, B, C = _split(convolved(SimpleNamespace(**conv)), heads, dim, x.groups, states)
    delta = x.dt.double() if x.dt_bias is None else x.dt.double() + x.dt_bias.double()
    delta = (F.softplus(delta, threshold=20) if x.dt_softplus else delta).clamp(x.dt_lowest, x.dt_highest)
    z = None if x.z is None else x.z.unflatten(-1, (heads, dim))
    step = {"state": x.state_pool, "x": rows, "dt": delta, "A": x.A, "B": B, "C": C, "D": x.D, "z": z, "dt_bias": None}
    step |= dict.fromkeys(
        ("delta_a", "cu_seqlens", "num_accepted_tokens", "step_states", "step_slots", "parents", "write_indices")
    )
    step |= {"state_batch_indices": x.state_indices, "null_slot": x.null_slot, "update_state": True}
    step["state_scales"] = x.state_scales
    return advanced(SimpleNamespace(**step, dt_softplus=False, discretization="mamba")).flatten(-2)


_DEFAULTS: dict[str, Any] = {"activation": "silu", "dt_limit": NO_LIMIT}
_DEFAULTS |= {"norm_weight": None, "norm_eps": 1e-5, "norm_group_size": None, "norm_before_gate": False}
_DIFFERENTIABLE = "causal_conv1d and ssd_scan"
_layer = register(_NAME, reference=_reference, defaults=_DEFAULTS, differentiable=_DIFFERENTIABLE)
keep_autograd_out(_layer)


def _new_output(xBC: Tensor, state_pool: Tensor) -> Tensor:
    try:
        return xBC.new_empty((xBC.size(0), state_pool.size(1) * state_pool.size(2)))
    except (AttributeError, IndexError, TypeError, RuntimeError):
        require_tensor(_NAME, "xBC", xBC)
        require_tensor(_NAME, "state_pool", state_pool)
        raise


def mamba2_decode_layer(
    xBC: Tensor,
    dt: Tensor,
    *,
    conv_weight: Tensor,
    conv_bias: Tensor | None = None,
    A: Tensor,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    z: Tensor | None = None,
    conv_pool: Tensor,
    state_pool: Tensor,
    state_indices: Tensor | None = None,
    groups: int = 1,
    activation: str | None = "silu",
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = NO_LIMIT,
    null_slot: int | None = None,
    norm_weight: Tensor | None = None,
    norm_eps: float = 1e-5,
    norm_group_size: int | None = None,
    norm_before_gate: bool = False,
    state_scales: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """A Mamba-2 layer's step without its projections: convolution and scan in one launch, then the norm. Returns the output.

    Formula:
        x, B, C = activation(convolution of 4 taps of xBC)
        δ = dt + dt_bias, then softplus(δ) if dt_softplus, then clamped to dt_limit
        S ← e^{δA} S + δ x Bᵀ        y = S C + D ⊙ x
        out = y · silu(z), or rms_norm_gated(y, z, norm_weight, …)

    Shapes:
        xBC: (B, C), C = H P + 2 groups N: x of all heads, then B and C of all groups; fp32, bf16 or fp16, any strides
        dt: (B, H); z, out: (B, H P); z and dt fp32, bf16 or fp16, out as xBC, any strides
        conv_weight: (C, 4); conv_bias: (C,); A, dt_bias: (H,); D: (H,) or (H, P); norm_weight: (H P,); all fp32, bf16 or fp16
        conv_pool: (slots, C, 3 or more), fp32, bf16 or fp16, any strides: a pool (slots, columns, C) is passed transposed
        state_pool: (slots, H, P, N), N 64, 128 or 256, fp32, bf16, fp16 or int8: each slot contiguous from 16 bytes on, any
          stride between slots
        state_scales: (slots, H, P, N / 32), fp32, if the pool is int8, as in `selective_state_update`
        state_indices: (B,), int32 or int64: a sequence's slot in both pools; None: sequence n has slot n

    Parameters:
        groups: of heads that share B and C; divides H
        activation: "silu" or "swish", which is the same, or None
        dt_softplus, dt_limit: as in `ssd_scan`
        null_slot: a slot number for padding; None: only negative slots are padding
        norm_weight: None: no norm; `out` is for calls without one
        norm_eps: added to the mean square
        norm_before_gate: norm(y) · silu(z), and not norm(y · silu(z))
        norm_group_size: columns that are normalised together; None: those of a group, H P / groups

    Both pools are updated in place, as by `causal_conv1d_update` and `selective_state_update` in sequence. With norm_weight,
    `rms_norm_gated` follows in a launch of its own, after y was rounded. A call does not synchronize and allocates only its
    outputs, so it can be part of a CUDA graph.

    Edge cases:
        A slot that is negative or null_slot skips the sequence: zero output, nothing touched.
        A slot past the pool touches nothing: on CPU tensors it raises IndexError; on a GPU the output of the sequence is NaN.
        δA below −104 is an exact reset. Two sequences on one slot race.

    Example:
        >>> H, P, N = 2, 4, 64
        >>> xBC, dt = torch.randn(1, H * P + 2 * N), torch.randn(1, H)
        >>> weights = {"conv_weight": torch.randn(H * P + 2 * N, 4), "A": -torch.ones(H)}
        >>> pools = {"conv_pool": torch.zeros(3, H * P + 2 * N, 3), "state_pool": torch.zeros(3, H, P, N)}
        >>> slots = torch.tensor([2])
        >>> out = gdn_cuda.mamba2_decode_layer(xBC, dt, **weights, **pools, state_indices=slots, dt_softplus=True)
        >>> out.shape, [bool(pool[2].any()) for pool in pools.values()], [bool(pool[:2].any()) for pool in pools.values()]
        (torch.Size([1, 8]), [True, True], [False, False])
    """
    silu = is_silu(_NAME, activation)
    if out is None:
        out = _new_output(xBC, state_pool)
    elif norm_weight is not None:
        refuse(_NAME, "out", "None with norm_weight", "a tensor")
    gate = z
    if norm_weight is not None:
        z = None
    required = (xBC, dt, conv_weight, A, conv_pool, state_pool, groups, float(dt_limit[0]), float(dt_limit[1]), out)
    call = (*required, conv_bias, dt_softplus, D, dt_bias, z, state_indices, state_scales, silu, null_slot)
    if norm_weight is None:
        with_autograd(_layer, call)
        return out
    y = out
    group_size = norm_group_size if norm_group_size is not None else y.shape[-1] // max(groups, 1)
    norm = {
        "gate": gate,
        "weight": norm_weight,
        "eps": norm_eps,
        "norm_before_gate": norm_before_gate,
        "group_size": group_size,
    }

    def checks() -> None:
        """Checks the norm, which follows the first write."""
        check_call("rms_norm_gated", x=y, activation="silu", **norm)

    def run() -> Tensor:
        with_autograd(_layer, call)
        return rms_norm_gated(y, **norm)

    read = dict(zip(_READ, (xBC, dt, conv_weight, conv_bias, A, D, dt_bias, gate, state_indices), strict=True))
    written = {"conv_pool": conv_pool, "state_pool": state_pool}
    if state_scales is not None:
        written["state_scales"] = state_scales
    return composed(_NAME, _DIFFERENTIABLE, written, read | {"norm_weight": norm_weight}, run, checks)


def by_operators(
    xBC: Tensor,
    dt: Tensor,
    *,
    conv_weight: Tensor,
    conv_bias: Tensor | None = None,
    A: Tensor,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    z: Tensor | None = None,
    conv_pool: Tensor,
    state_pool: Tensor,
    state_indices: Tensor | None = None,
    groups: int = 1,
    activation: str | None = "silu",
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = NO_LIMIT,
    null_slot: int | None = None,
    state_scales: Tensor | None = None,
) -> Tensor:
    """The same by causal_conv1d_update and selective_state_update, for any numbers of taps and states."""
    heads, dim, states = state_pool.shape[1:]
    if dt_limit != NO_LIMIT or not dt_softplus:
        dt = dt.float() if dt_bias is None else dt.float() + dt_bias.float()
        dt, dt_bias = (F.softplus(dt) if dt_softplus else dt).clamp(*dt_limit), None
        dt_softplus = False

    def step(rows: Tensor) -> dict[str, Any]:
        x, B, C = _split(rows, heads, dim, groups, states)
        gate = None if z is None else z.unflatten(-1, (heads, dim))
        values = {"x": x, "dt": dt, "A": A.float(), "B": B, "C": C, "D": D, "z": gate, "dt_bias": dt_bias}
        options = {"dt_softplus": dt_softplus, "state_batch_indices": state_indices, "discretization": "mamba"}
        return {"state": state_pool, **values, **options, "null_slot": null_slot, "state_scales": state_scales}

    def checks() -> None:
        """Checks the operator that runs after the convolution has written its states."""
        given = step(xBC)
        check_call("selective_state_update", **given, update_state=True, out=torch.empty_like(given["x"]))

    def run() -> Tensor:
        conv = causal_conv1d_update(
            xBC, conv_pool, conv_weight, conv_bias, activation, conv_state_indices=state_indices, null_slot=null_slot
        )
        return selective_state_update(**step(conv)).flatten(-2)

    read = dict(zip(_READ, (xBC, dt, conv_weight, conv_bias, A, D, dt_bias, z, state_indices), strict=True))
    written = {"conv_pool": conv_pool, "state_pool": state_pool}
    if state_scales is not None:
        written["state_scales"] = state_scales
    return composed(_NAME, _DIFFERENTIABLE, written, read, run, checks)


# ---- Examples


def layer_arguments(
    B: int,
    seed: int,
    heads: int = 2,
    dim: int = 4,
    groups: int = 1,
    states: int = 64,
    columns: int = TAPS - 1,
    slots: int = 0,
    io: torch.dtype = torch.bfloat16,
    state: torch.dtype = torch.float32,
    conv_state: torch.dtype | None = None,
) -> Arguments:
    """A layer with random weights; xBC, z and dt are views of one projection, and the convolution's pool is (slots, columns,
    C) in memory, as engines keep it."""
    rows, slots = heads * dim, slots or B + 2
    channels = rows + 2 * groups * states
    projected = random(B, rows + channels + heads, seed=seed, dtype=io)
    z, xBC, dt = projected.split([rows, channels, heads], -1)
    return {
        "xBC": xBC,
        "dt": dt,
        "conv_weight": random(channels, TAPS, seed=seed + 1, dtype=io),
        "conv_bias": random(channels, seed=seed + 2, dtype=io),
        "A": -random(heads, seed=seed + 3).abs(),
        "D": random(heads, seed=seed + 4),
        "dt_bias": random(heads, seed=seed + 5),
        "z": z,
        "conv_pool": random(slots, columns, channels, seed=seed + 6, dtype=conv_state or io).mT,
        "state_pool": random(slots, 2, heads, dim, states, seed=seed + 7, dtype=state)[:, 0],
        "groups": groups,
        "dt_softplus": True,
    }


@example(mamba2_decode_layer)
def _one_token(B: int, T: int, seed: int) -> Arguments:
    slots = torch.arange(B, dtype=torch.int32).flip(0) + 1
    slots[1:2] = -1  # a padding row
    return layer_arguments(B, seed, slots=B + 3) | {"state_indices": slots, "null_slot": 0}


@example(mamba2_decode_layer, "mamba2_decode_layer-groups")
def _groups(B: int, T: int, seed: int) -> Arguments:
    x = layer_arguments(B, seed, heads=4, groups=2, columns=5, state=torch.bfloat16, io=torch.float16)
    more = {"D": random(4, 4, seed=seed + 8), "z": None, "activation": None, "dt_limit": (0.01, 0.5)}
    return x | more


@example(mamba2_decode_layer, "mamba2_decode_layer-int8")
def _coded(B: int, T: int, seed: int) -> Arguments:
    x = layer_arguments(B, seed, heads=4, groups=2)
    x["state_pool"], x["state_scales"] = encode(x["state_pool"])
    return x


# Defaults of `python -m gdn_cuda explain mamba2_decode_layer B=64`: Nemotron-H-8B in a server.
typical_call(
    mamba2_decode_layer,
    {"B": 64, "C": 10240, "H": 128, "R": 8192, "P": 64, "N": 128, "W": 4, "S": 3, "G": 8, "slots": 1024},
    "xBC: B C; dt: B H; conv_weight: C W; conv_bias: C; A, D, dt_bias: H f32; conv_pool: slots C S mn; "
    "state_pool: slots H P N f32; state_indices: B i32; groups = G; dt_softplus = true",
)


# ---- Benchmarks, with the two operators as peer


_POOLS = ("conv_pool", "state_pool", "state_scales")


def _copied(x: Inputs) -> Inputs:
    return {name: x[name].clone(memory_format=torch.preserve_format) for name in _POOLS if name in x}


def _operators(x: Inputs) -> Peer:
    pools = _copied(x)
    given = {name: y for name, y in x.items() if name != "out"} | pools
    return Peer(partial(by_operators, **given), lambda returned: (returned, pools["state_pool"]))


_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int8: "int8"}


@bench({"operators": _operators}, operator=_NAME)
def _measured(device: str) -> Iterator[Case]:
    on_gpu = device == "cuda"
    for heads, groups in ((64, 8), (128, 8), (128, 1)) if on_gpu else ((8, 2),):
        for batch, state in product((1, 4, 16, 64, 256) if on_gpu else (1, 4), _NAMES):
            kind = f"{_NAMES[state]} state"
            shape = f"{heads}×64 N=128 G={groups} B={batch} {kind}"
            yield Case(shape, partial(layer_work, device, batch, heads, groups, state), kind=kind)


def layer_work(device: str, batch: int, heads: int, groups: int, state: torch.dtype, dim: int = 64, states: int = 128) -> Work:
    rows = heads * dim
    channels = rows + 2 * groups * states
    fp32 = partial(normal, device=device, dtype=torch.float32)
    z, xBC, dt = normal(batch, rows + channels + heads, device=device).split([rows, channels, heads], -1)
    x: Inputs = {
        "xBC": xBC,
        "dt": dt,
        "conv_weight": normal(channels, TAPS, device=device),
        "conv_bias": normal(channels, device=device),
        "A": -fp32(heads).abs(),
        "D": fp32(heads),
        "dt_bias": fp32(heads),
        "z": z,
        "conv_pool": normal(batch, TAPS - 1, channels, device=device).mT,
        "state_pool": normal(batch, heads, dim, states, device=device, dtype=torch.float32 if state == torch.int8 else state),
        "state_indices": torch.randperm(batch, device=device, dtype=torch.int32),
        "groups": groups,
        "dt_softplus": True,
        "out": torch.empty(batch, rows, device=device, dtype=torch.bfloat16),
    }
    if state == torch.int8:
        x["state_pool"], x["state_scales"] = convert_states(x["state_pool"], state)

    def outcome(inputs: Inputs) -> Outcome:
        pools = _copied(inputs)
        return mamba2_decode_layer(**inputs | pools | {"out": None}), pools["state_pool"]

    moved = 2 * size(*(x[name] for name in _POOLS if name in x)) + size(xBC, z, dt, x["out"], x["conv_weight"])
    return Work(partial(mamba2_decode_layer, **x), moved, 0, x, outcome, x)


# ---- compute-sanitizer


@sanitizes("mamba2_decode_layer")
def _sanitized() -> None:
    for state, N, (heads, dim, groups) in product(
        (torch.float32, torch.bfloat16, torch.float16, torch.int8), STATES, ((4, 37, 2), (3, 64, 1), (2, 5, 2))
    ):
        channels = heads * dim + 2 * groups * N
        pool, scales = convert_states(draw(6, heads, dim, N), state)
        mamba2_decode_layer(
            draw(5, channels, dtype=torch.bfloat16),
            draw(5, heads),
            conv_weight=draw(channels, TAPS, dtype=torch.bfloat16),
            A=-draw(heads).abs(),
            D=draw(heads, dim),
            z=draw(5, heads * dim),
            conv_pool=draw(6, TAPS, channels, dtype=torch.bfloat16).mT,
            state_pool=pool,
            state_scales=scales,
            state_indices=hostile_indices(5),
            groups=groups,
            dt_softplus=True,
        )
