"""A layer's step between its projections: the operator, its reference, examples, benchmark and sanitizer calls."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..conv.causal_conv1d_update import causal_conv1d_update
from ..gdn import reference as gdn
from ..gdn.operators import fused_decode
from ..gdn.reference_operators import beta_factor, decode_slots
from ..gdn.reference_operators import fused_gdn_gating as reference_gates
from ..operators import verify
from ..operators.autograd import keep_autograd_out, with_autograd
from ..operators.caller import in_words_of_caller
from ..operators.calls import typical_call
from ..operators.composed import composed, on_cpu, result_in
from ..operators.examples import Arguments, example, random
from ..operators.hostile import hostile_indices
from ..operators.measure import Case, Inputs, Outcome, Peer, Work, bench, draw, normal, size
from ..operators.registration import check_call, register
from ..operators.schema import not_a_tensor, refuse, require_tensor, require_tensors
from ..operators.state_slots import accepted_column, check_slots, gather_states, is_slot
from .layer_parts import DIFFERENTIABLE, check_heads, check_parts, is_silu, layer_parts, split_heads
from .rms_norm_gated import rms_norm_gated

_NAME = "gdn_decode_layer"
TAPS = 4  # of the convolution
MOST_TOKENS = 16  # of a sequence in one call
_WEIGHTS = ("conv_weight", "conv_bias", "A_log", "dt_bias", "norm_weight")
_READ = ("qkvz", "ba", *_WEIGHTS, "state_indices", "z", "a", "num_accepted_tokens")


# ---- The reference, in fp64 whatever the inputs; query, key and value are rounded to their dtype after the convolution


class _Slots:
    """Slots and columns of a call on CPU tensors; raises IndexError for values that the C++ checks cannot read."""

    def __init__(self, x: Any):
        sequences, slots = x.qkvz.shape[0], x.state_pool.shape[0]
        given = torch.arange(sequences) if x.state_indices is None else x.state_indices.to(torch.int64)
        check_slots(_NAME, "state_indices", given, slots, x.null_slot)
        self.by_token = given.dim() == 2
        self.token_slots = given
        self.state = self.conv = given
        self.first = torch.full((sequences,), x.conv_pool.shape[2] - (TAPS - 1))
        if self.by_token:
            columns = min(given.shape[1], x.conv_pool.shape[2] - (TAPS - 2))
            self.first = accepted_column(_NAME, x, sequences, columns, given.device)
            self.state, self.conv = given[torch.arange(sequences), self.first], given[:, 0]
        self.runs = torch.ones(sequences, dtype=torch.bool)
        if x.state_indices is not None:
            self.runs = is_slot(self.state, x.null_slot) & is_slot(self.conv, x.null_slot)
        if x.step_slots is not None:
            check_slots(_NAME, "step_slots", x.step_slots, x.step_states.shape[0])


def _convolved(x: Any, mixed: Tensor, slots: _Slots) -> Tensor:
    """The convolution of (B, T, C); writes its states."""
    weight, out = x.conv_weight.double(), torch.zeros(mixed.shape, dtype=torch.float64)
    tokens = mixed.shape[1]
    for n in slots.runs.nonzero()[:, 0].tolist() if tokens else []:
        state, first = x.conv_pool[int(slots.conv[n])], int(slots.first[n])
        inputs = torch.cat([state[:, first : first + TAPS - 1].double(), mixed[n].T.double()], 1)
        y = (inputs.unfold(1, TAPS, 1) * weight[:, None]).sum(2)
        y = y if x.conv_bias is None else y + x.conv_bias.double()[:, None]
        out[n] = (F.silu(y) if x.silu else y).T
        if x.step_slots is not None:
            if (row := int(x.step_slots[n])) >= 0:
                x.step_conv[row, :tokens] = inputs[:, 1:].unfold(1, TAPS - 1, 1).transpose(0, 1).to(x.step_conv.dtype)
        elif slots.by_token:
            state[:, : TAPS - 2 + tokens] = inputs[:, 1:].to(state.dtype)
        else:
            state.copy_(torch.cat([state, mixed[n].T.to(state.dtype)], 1)[:, tokens:])
    return out.to(mixed.dtype)


def _store_states(x: Any, slots: _Slots, states: Tensor) -> None:
    """Stores the states after every token (B, T, Hv, dv, dk) of the sequences that run."""
    for n, t in product(slots.runs.nonzero()[:, 0].tolist(), range(states.shape[1])):
        if x.step_slots is not None:
            if (row := int(x.step_slots[n])) >= 0:
                x.step_states[row, t] = states[n, t].to(x.step_states.dtype)
        elif slots.by_token:
            if is_slot(slots.token_slots[n, t], x.null_slot):
                x.state_pool[slots.token_slots[n, t]] = states[n, t].to(x.state_pool.dtype)
        elif t + 1 == states.shape[1]:
            x.state_pool[slots.state[n]] = states[n, t].to(x.state_pool.dtype)


@torch.no_grad()
def _reference(x: Any) -> Tensor:
    heads = x.heads_k, x.heads_v
    mixed, z, b, a = layer_parts(x.qkvz, x.ba, x.z, x.a, heads, x.dk, x.dv, x.layout)
    slots = _Slots(x)
    query, key, value = split_heads(_convolved(x, mixed, slots), heads, x.dk, x.dv)
    gates = {"A_log": x.A_log, "dt_bias": x.dt_bias, "a": a, "b": b}
    beta, gate = reference_gates(SimpleNamespace(**{name: y.double() for name, y in gates.items()}))
    beta = beta * beta_factor(x)
    start = gather_states(x.state_pool, slots.state, slots.runs).double()
    options = {"scale": x.scale, "use_qk_l2norm": True, "keep_steps": True, "compute_dtype": torch.float64}
    output, _, states = gdn.recurrent(query, key, value, beta, gate, start, **options)
    assert states is not None
    _store_states(x, slots, states)
    activated = z.double().sigmoid() if x.gate_activation == "sigmoid" else F.silu(z.double())
    norm = output / (output.square().mean(-1, keepdim=True) + x.norm_eps).sqrt() * x.norm_weight.double()
    out = (norm * activated).flatten(-2)
    return torch.where(slots.runs[:, None, None], out, 0).to(x.qkvz.dtype)


_layer = register(_NAME, reference=_reference, defaults={"activation": "silu"}, differentiable=DIFFERENTIABLE)
keep_autograd_out(_layer)


def gdn_decode_layer(
    qkvz: Tensor,
    ba: Tensor,
    *,
    conv_weight: Tensor,
    conv_bias: Tensor | None = None,
    A_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    norm_eps: float = 1e-6,
    conv_pool: Tensor,
    state_pool: Tensor,
    state_indices: Tensor | None = None,
    heads: tuple[int, int],
    dk: int,
    dv: int,
    layout: str = "qwen3_next",
    activation: str | None = "silu",
    gate_activation: str = "silu",
    allow_negative_eigenvalues: bool = False,
    num_accepted_tokens: Tensor | None = None,
    null_slot: int | None = None,
    step_conv: Tensor | None = None,
    step_states: Tensor | None = None,
    step_slots: Tensor | None = None,
    scale: float | None = None,
    state_scales: Tensor | None = None,
    z: Tensor | None = None,
    a: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """A layer's step without its projections, in one launch. Returns the input of the output projection.

    Formula:
        q, k, v = activation(convolution of 4 taps of q, k, v);  q, k each divided by √(Σ x² + 1e-6)
        beta = sigmoid(b), twice that with allow_negative_eigenvalues;  gate = −exp(A_log) · softplus(a + dt_bias)
        S ← exp(gate)·S        v' = beta·(v − S k)        S ← S + v' kᵀ        o = scale · S q
        out = o / √(mean(o²) + norm_eps) · norm_weight · gate_activation(z)

    Shapes:
        qkvz: (B, T, 2 Hk dk + 2 Hv dv), ba: (B, T, 2 Hv), B sequences of T ≤ 16 tokens. By `layout`
          "qwen3_next": for every key head its q, k, and v and z of all its value heads; its b, then its a
          "qwen3_5": all q, k, v, then z; all b, then a
          "split": qkvz has q, k, v alone, ba has b (B, T, Hv), and z (B, T, Hv dv) and a (B, T, Hv) are arguments
        qkvz, z: bf16 or fp16, last dimension contiguous; ba, a: bf16, fp16 or fp32, any strides; on the CPU all may be fp64
        heads: (Hk, Hv), Hv a multiple of Hk; dk: 64, 96, 128, 192 or 256; dv: a multiple of 8 up to 256
        conv_weight: (C, 4); conv_bias: (C,), or None for 0, with the channels of q, k, v in this order, C = 2 Hk dk + Hv dv
        A_log, dt_bias: (Hv,); norm_weight: (dv,); all weights fp32, bf16 or fp16
        conv_pool: (slots, C, 3 or more), fp32, bf16 or fp16, any strides: a pool (slots, columns, C) is passed transposed
        state_pool: (slots, Hv, dv, dk), fp32 or bf16: each slot contiguous from 16 bytes on, any stride between slots; or int8
        state_scales: (slots, Hv, dv, dk / 32), fp32, if the pool is int8, as in `fused_decode`; it takes the launches of the
          three operators then
        state_indices: (B,), or (B, T) for speculative verify; int32 or int64; None: sequence n has slot n
        num_accepted_tokens, step_slots: (B,), int32 or int64
        step_states: (rows, S, Hv, dv, dk), the pool's dtype; step_conv: (rows, S, C, 3); S at least T
        out: (B, T, Hv dv), the dtype of qkvz

    Parameters:
        layout: "qwen3_next", "qwen3_5" or "split", see above
        activation: "silu" or "swish", which is the same, or None
        gate_activation: "silu", "swish" or "sigmoid"
        norm_eps: added to the mean square of an output row
        allow_negative_eigenvalues: whether beta is twice the sigmoid
        scale: dk^-0.5 if None
        null_slot: a slot number for padding; None: only negative slots are padding

    Both pools are updated in place, bitwise as by a sequence of `causal_conv1d_update`, `fused_decode` and `rms_norm_gated`;
    only the output of the recurrence is not rounded in between. For speculative verify, with `state_indices` (B, T), the state
    is read from slot state_indices[n, max(accepted, 1) − 1], and the state after token t is written to slot
    state_indices[n, t]. The previous inputs of the convolution are the 3 columns from max(accepted, 1) − 1 on of slot
    state_indices[n, 0]; its first T + 2 columns then become the last 2 of these and the tokens. With `step_states`, `step_conv`
    and `step_slots`, the states after token t go to row step_slots[n], step t, of both, and no slot is written.

    With int8 states the call is that sequence of operators, and has no step states.

    A call does not synchronize and allocates only out, so it can be part of a CUDA graph. Within a graph the three operators
    are faster for one sequence and for 64 and more (docs/benchmarks/decode.md).

    Edge cases:
        A slot that is negative or null_slot, of the state or of the convolution's inputs, skips the sequence: zero output,
          nothing touched. State written to a negative slot or null_slot is dropped.
        A slot past the pool touches nothing: on CPU tensors it raises IndexError; on a GPU the output of the sequence is NaN.
        A gate of −∞ is an exact reset. More accepted tokens than there are columns raise on CPU tensors; on a GPU they
          count as the maximum. Two sequences on one slot race.

    Example:
        >>> Hk, Hv, dk, dv = 1, 2, 64, 8
        >>> qkvz, ba = torch.randn(1, 1, 2 * Hk * dk + 2 * Hv * dv).bfloat16(), torch.randn(1, 1, 2 * Hv)
        >>> weights = {"conv_weight": torch.randn(2 * Hk * dk + Hv * dv, 4), "norm_weight": torch.ones(dv)}
        >>> weights |= {"A_log": torch.zeros(Hv), "dt_bias": torch.zeros(Hv)}
        >>> pools = {"conv_pool": torch.zeros(3, 2 * Hk * dk + Hv * dv, 3), "state_pool": torch.zeros(3, Hv, dv, dk)}
        >>> slots = torch.tensor([2])
        >>> out = gdn_cuda.gdn_decode_layer(qkvz, ba, **weights, **pools, state_indices=slots, heads=(Hk, Hv), dk=dk, dv=dv)
        >>> out.shape, [bool(pool[2].any()) for pool in pools.values()], [bool(pool[:2].any()) for pool in pools.values()]
        (torch.Size([1, 1, 16]), [True, True], [False, False])
    """
    silu = is_silu(_NAME, activation)
    heads_k, heads_v = check_heads(_NAME, heads)
    if state_scales is not None or (isinstance(state_pool, Tensor) and state_pool.dtype == torch.int8):
        for name, steps in (("step_conv", step_conv), ("step_states", step_states), ("step_slots", step_slots)):
            if steps is not None:
                refuse(_NAME, name, "None with int8 states", type(steps).__name__)
        require_tensors(_NAME, qkvz=qkvz, ba=ba, dt_bias=dt_bias)
        given: dict[str, Any] = {
            "conv_weight": conv_weight,
            "conv_bias": conv_bias,
            "A_log": A_log,
            "dt_bias": dt_bias,
            "heads": heads,
        }
        given |= {"norm_weight": norm_weight, "norm_eps": norm_eps, "conv_pool": conv_pool, "state_pool": state_pool}
        given |= {"dk": dk, "dv": dv, "layout": layout, "activation": activation, "gate_activation": gate_activation}
        given |= {"state_indices": state_indices, "num_accepted_tokens": num_accepted_tokens, "null_slot": null_slot}
        given |= {"scale": scale, "state_scales": state_scales, "z": z, "a": a, "qkvz": qkvz, "ba": ba}
        given["allow_negative_eigenvalues"] = allow_negative_eigenvalues
        shape = (*qkvz.shape[:2], heads_v * dv)
        return result_in(_NAME, out, shape, qkvz, given, lambda: _named_by_operators(**given))
    if out is None:
        require_tensor(_NAME, "qkvz", qkvz)
        out = qkvz.new_empty(*qkvz.shape[:2], heads_v * dv)
    required = (qkvz, ba, conv_weight, A_log, dt_bias, norm_weight, conv_pool, state_pool)
    sizes = (heads_k, heads_v, dk, dv, layout, norm_eps, gate_activation)
    others = (conv_bias, allow_negative_eigenvalues, state_indices, z, a, silu)
    slots = (num_accepted_tokens, null_slot, step_conv, step_states, step_slots)
    with_autograd(_layer, (*required, *sizes, out, *others, *slots, scale))
    return out


def by_operators(**x: Any) -> Tensor:
    """The same by a sequence of causal_conv1d_update, fused_decode and rms_norm_gated, without step states."""
    sizes = heads, _, dv = check_heads(_NAME, x["heads"]), x["dk"], x["dv"]
    qkvz, ba, layout, slots = x["qkvz"], x["ba"], x.get("layout", "qwen3_next"), x.get("state_indices")
    check_parts(_NAME, qkvz, ba, x.get("z"), x.get("a"), *sizes, layout)
    mixed, z, b, a = layer_parts(qkvz, ba, x.get("z"), x.get("a"), *sizes, layout)
    read = {name: x.get(name) for name in _READ}
    if not isinstance(x["norm_weight"], Tensor):
        raise ValueError(not_a_tensor(_NAME, "norm_weight", x["norm_weight"]))
    for name in ("state_indices", "num_accepted_tokens"):
        if not isinstance(read[name], (Tensor, type(None))):
            raise ValueError(not_a_tensor(_NAME, name, read[name], optional=True))
    accepted, conv_slots = read["num_accepted_tokens"], slots
    if slots is not None and slots.dim() == 2:
        accepted = slots.new_ones(slots.shape[0]) if accepted is None else accepted
        conv_slots = slots[:, :1].squeeze(1).contiguous()
    null_slot = x.get("null_slot")
    conv = (x["conv_pool"], x["conv_weight"], x.get("conv_bias"), x.get("activation", "silu"))
    indices = {"conv_state_indices": conv_slots, "num_accepted_tokens": accepted, "null_slot": null_slot}
    o = qkvz.new_empty(*qkvz.shape[:2], heads[1], dv)
    step = {"a": a, "b": b, "A_log": x["A_log"], "dt_bias": x["dt_bias"], "state_pool": x["state_pool"], "state_indices": slots}
    step |= {"num_accepted_tokens": accepted, "null_slot": null_slot, "scale": x.get("scale"), "out": o}
    step["state_scales"] = x.get("state_scales")
    written = {name: x.get(name) for name in ("conv_pool", "state_pool")}
    if x.get("state_scales") is not None:
        written["state_scales"] = x["state_scales"]
    step["allow_negative_eigenvalues"] = x.get("allow_negative_eigenvalues", False)
    norm = {"gate": z, "weight": x["norm_weight"], "eps": x.get("norm_eps", 1e-6)}
    norm["activation"] = x.get("gate_activation", "silu")

    def checks() -> None:
        """Checks the operators that run after the convolution has written its states; shapes of results are those of inputs."""
        rows = dict(zip(("query", "key", "value"), split_heads(mixed, *sizes), strict=True))
        check_call("fused_decode", **rows, **step, update_state=True, use_qk_l2norm=True)
        if on_cpu(mixed):
            more = dict.fromkeys(("cu_seqlens", "step_states", "step_slots", "write_indices"))
            decode_slots(SimpleNamespace(**rows, **step, **more))
        check_call("rms_norm_gated", x=o, norm_before_gate=True, **norm)

    def run() -> Tensor:
        convolved = causal_conv1d_update(mixed.mT, *conv, **indices).mT
        fused_decode(*split_heads(convolved, *sizes), **step)
        return rms_norm_gated(o, **norm).flatten(-2)

    return composed(_NAME, DIFFERENTIABLE, written, read, run, checks)


_WORDS = {"query": "qkvz", "key": "qkvz", "value": "qkvz", "x": "qkvz", "gate": "qkvz", "b": "ba", "conv_state": "conv_pool"}
_WORDS |= {"conv_state_indices": "state_indices", "causal_conv1d_update.weight": "conv_weight", "bias": "conv_bias"}
_named_by_operators = in_words_of_caller(_NAME, **_WORDS, **{"rms_norm_gated.weight": "norm_weight"})(by_operators)


# ---- Examples

_HEADS, _DK, _DV = (1, 2), 64, 8


def layer_arguments(
    B: int,
    T: int,
    seed: int,
    layout: str = "qwen3_next",
    heads: tuple[int, int] = _HEADS,
    dk: int = _DK,
    dv: int = _DV,
    columns: int = TAPS - 1,
    slots: int = 0,
    io: torch.dtype = torch.bfloat16,
    state: torch.dtype = torch.float32,
    conv_state: torch.dtype | None = None,
) -> Arguments:
    """A layer with random weights; the convolution's pool is (slots, columns, C) in memory, as engines keep it."""
    (Hk, Hv), T = heads, min(T, MOST_TOKENS)
    channels, slots = 2 * Hk * dk + Hv * dv, slots or B + 2
    split = layout == "split"
    x: Arguments = {
        "qkvz": random(B, T, channels + (0 if split else Hv * dv), seed=seed, dtype=io),
        "ba": random(B, T, Hv * (1 if split else 2), seed=seed + 1, dtype=io),
        "conv_weight": random(channels, TAPS, seed=seed + 2, dtype=io),
        "conv_bias": random(channels, seed=seed + 3, dtype=io),
        "A_log": random(Hv, seed=seed + 4),
        "dt_bias": random(Hv, seed=seed + 5),
        "norm_weight": random(dv, seed=seed + 6, dtype=io),
        "conv_pool": random(slots, columns, channels, seed=seed + 7, dtype=conv_state or io).mT,
        "state_pool": random(slots, 2, Hv, dv, dk, seed=seed + 8, dtype=state)[:, 0],
        "heads": heads,
        "dk": dk,
        "dv": dv,
        "layout": layout,
    }
    if split:
        x |= {"z": random(B, T, Hv * dv, seed=seed + 9, dtype=io), "a": random(B, T, Hv, seed=seed + 10)}
    return x


@example(gdn_decode_layer)
def _one_token(B: int, T: int, seed: int) -> Arguments:
    slots = torch.arange(B, dtype=torch.int32).flip(0) + 1
    slots[1:2] = -1  # a padding row
    return layer_arguments(B, 1, seed, slots=B + 3) | {"state_indices": slots, "null_slot": 0}


@example(gdn_decode_layer, "gdn_decode_layer-tokens")
def _tokens(B: int, T: int, seed: int) -> Arguments:
    return layer_arguments(B, T, seed, "qwen3_5", columns=5) | {"norm_eps": 1e-5, "activation": None}


@example(gdn_decode_layer, "gdn_decode_layer-verify")
def _verify(B: int, T: int, seed: int) -> Arguments:
    T = min(T, MOST_TOKENS)
    width = max(T, 1)
    x = layer_arguments(B, T, seed, "split", slots=B * width + 1, columns=T + 3, state=torch.bfloat16)
    return x | verify.slots_and_counts(B, width) | {"allow_negative_eigenvalues": True}


@example(gdn_decode_layer, "gdn_decode_layer-step-states")
def _step_states(B: int, T: int, seed: int) -> Arguments:
    x = layer_arguments(B, T, seed, "qwen3_5", slots=B + 1) | {"gate_activation": "sigmoid", "scale": 0.5}
    rows, channels = (B + 1, T + 1), x["conv_weight"].shape[0]
    return x | {
        "step_states": random(*rows, _HEADS[1], _DV, _DK, seed=seed + 11),
        "step_conv": random(*rows, channels, TAPS - 1, seed=seed + 12, dtype=torch.bfloat16),
        "step_slots": torch.arange(B).flip(0),
    }


# Defaults of `python -m gdn_cuda explain gdn_decode_layer B=64`: Qwen3-Next in a server.
typical_call(
    gdn_decode_layer,
    {"B": 64, "T": 1, "Q": 12288, "C": 8192, "W": 4, "S": 3, "Hk": 16, "Hv": 32, "G": 64, "dk": 128, "dv": 128, "slots": 1024},
    "qkvz: B T Q; ba: B T G; conv_weight: C W; A_log, dt_bias: Hv f32; norm_weight: dv; conv_pool: slots C S mn; "
    "state_pool: slots Hv dv dk f32; state_indices: B i32; heads = (Hk Hv); dk = dk; dv = dv",
)


# ---- Benchmarks, with the sequence of operators as peer


def _operators(x: Inputs) -> Peer:
    pools = {name: x[name].clone(memory_format=torch.preserve_format) for name in ("conv_pool", "state_pool")}
    given = {name: y for name, y in x.items() if name != "out"} | pools
    return Peer(partial(by_operators, **given), lambda returned: (returned, pools["state_pool"]))


_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}


@bench({"operators": _operators}, operator=_NAME)
def _measured(device: str) -> Iterator[Case]:
    on_gpu = device == "cuda"
    for batch, state in product((1, 4, 16, 64, 256) if on_gpu else (1, 4), _NAMES):
        kind = f"{_NAMES[state]} state"
        yield Case(f"16/32 B={batch} {kind}", partial(layer_work, device, batch, 1, state), kind=kind)
    for batch, state in product((1, 16, 64) if on_gpu else (1,), _NAMES):
        kind = f"{_NAMES[state]} state"
        yield Case(f"16/32 B={batch} T=4 {kind}, every state kept", partial(layer_work, device, batch, 4, state), kind=kind)


def layer_work(device: str, batch: int, tokens: int, state: torch.dtype) -> Work:
    Hk, Hv, dk, dv = 16, 32, 128, 128
    channels, slots = 2 * Hk * dk + Hv * dv, batch * (tokens if tokens > 1 else 1)
    fp32 = partial(normal, device=device, dtype=torch.float32)
    x: Inputs = {
        "qkvz": normal(batch, tokens, channels + Hv * dv, device=device),
        "ba": normal(batch, tokens, 2 * Hv, device=device),
        "conv_weight": normal(channels, TAPS, device=device),
        "A_log": fp32(Hv),
        "dt_bias": fp32(Hv),
        "norm_weight": normal(dv, device=device),
        "conv_pool": normal(slots, TAPS - 2 + tokens, channels, device=device).mT,
        "state_pool": normal(slots, Hv, dv, dk, device=device, dtype=state),
        "heads": (Hk, Hv),
        "dk": dk,
        "dv": dv,
        "layout": "qwen3_5",
        "out": torch.empty(batch, tokens, Hv * dv, device=device, dtype=torch.bfloat16),
    }
    if tokens > 1:
        x |= verify.measured(device, batch, tokens)
    else:
        x["state_indices"] = torch.randperm(slots, device=device, dtype=torch.int32)

    def outcome(inputs: Inputs) -> Outcome:
        pools = {name: inputs[name].clone(memory_format=torch.preserve_format) for name in ("conv_pool", "state_pool")}
        return gdn_decode_layer(**inputs | pools | {"out": None}), pools["state_pool"]

    one_state = size(x["state_pool"]) // slots
    states = batch * (1 + tokens) * one_state
    conv_bytes = batch * channels * (TAPS - 1 + TAPS - 2 + tokens) * 2
    moved = states + conv_bytes + size(x["qkvz"], x["ba"], x["out"], x["conv_weight"])
    return Work(partial(gdn_decode_layer, **x), moved, 0, x, outcome, x)


# ---- compute-sanitizer


def sanitized_calls() -> None:
    """Calls that run layers/decode_layer: this operator's and kda_decode_layer's."""
    for state, (dk, dv), T in product(_NAMES, ((128, 128), (96, 192), (64, 40)), (1, 3, 16)):
        for heads, layout in (((2, 4), "qwen3_next"), ((1, 9), "qwen3_5")):
            _sanitized_call(state, dk, dv, T, heads, layout)


def _sanitized_call(state: torch.dtype, dk: int, dv: int, T: int, heads: tuple[int, int], layout: str) -> None:
    batch, (Hk, Hv) = 5, heads
    channels = 2 * Hk * dk + Hv * dv
    slots = hostile_indices(batch)
    given: Inputs = {
        "qkvz": draw(batch, T, channels + Hv * dv, dtype=torch.bfloat16),
        "ba": draw(batch, T, 2 * Hv, dtype=torch.bfloat16),
        "conv_weight": draw(channels, TAPS, dtype=torch.bfloat16),
        "A_log": draw(Hv),
        "dt_bias": draw(Hv),
        "norm_weight": draw(dv),
        "conv_pool": draw(6, TAPS - 2 + T, channels, dtype=torch.bfloat16).mT,
        "state_pool": draw(6, Hv, dv, dk, dtype=state),
        "heads": heads,
        "dk": dk,
        "dv": dv,
        "layout": layout,
    }
    steps: Inputs = {"step_states": draw(4, T, Hv, dv, dk, dtype=state), "step_conv": draw(4, T, channels, TAPS - 1)}
    gdn_decode_layer(**given, state_indices=slots)
    gdn_decode_layer(**given, **verify.hostile(batch, T))
    gdn_decode_layer(**given, state_indices=slots, **steps, step_slots=slots)
