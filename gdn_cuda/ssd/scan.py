"""torch.ops.gdn_cuda.ssd_scan with its gradients, ssd_scan_pool and ssd_summary: Mamba-2's scan as kernels take it; what none
takes goes by selective_scan. Not public yet: without checkpoints, and pools on a GPU in bf16 and fp16 alone."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ..operators import Differentiable
from ..operators.autograd import needs_gradients
from ..operators.dtypes import state_dtype
from ..operators.examples import Arguments, call_operator, example, random
from ..operators.first_order import first_order
from ..operators.registration import register
from .expanded import expanded_scan
from .gradients import derivative, refuse_vmap, ssd_scan_backward_operator
from .reference import Scan, Steps, scan_spans
from .spans import sequences_of, spans_of


def _shapes(x: Any) -> tuple[Tensor, Tensor]:
    *_, heads, channels = x.x.shape
    sizes = (sequences_of(x), heads, channels, x.B.shape[-1])
    return x.x.new_empty(x.x.shape), x.x.new_empty(sizes, dtype=state_dtype(x.x))


def _scanned(x: Any, initial: Tensor | None) -> tuple[Tensor, Tensor]:
    if initial is not None and x.has_initial_state is not None:
        initial = torch.where(x.has_initial_state[:, None, None, None], initial, 0)
    scan = Scan(x.x, x.dt, x.A, x.B, x.C, x.D, x.z, x.dt_bias, initial)
    out, last = scan_spans(scan, Steps(x.dt_softplus, (x.dt_lowest, x.dt_highest)), spans_of(x), sequences_of(x))
    return out.to(x.x.dtype), last


def _forward(x: Any) -> tuple[Tensor, Tensor]:
    out, last = _scanned(x, x.initial_state)
    return out, last.to(state_dtype(x.x))


def _with_pool(x: Any) -> Tensor:
    """A sequence with a negative slot is not computed, and its output is 0; with one past the pool, NaN."""
    slots, count = x.state_indices.long(), x.state.shape[0]
    computed = (slots >= 0) & (slots < count)
    out, last = _scanned(x, x.state[torch.where(computed, slots, 0)] if count else None)
    for slot, span in zip(slots.tolist(), spans_of(x), strict=True):
        if not 0 <= slot < count:
            out[span.row, span.first : span.end] = 0 if slot < 0 else torch.nan
    if x.update_state:
        to = slots if x.write_indices is None else x.write_indices.long()
        written = computed & (to >= 0) & (to < count)
        x.state[to[written]] = last[written].to(x.state.dtype)
    return out


def _summary_shapes(x: Any) -> tuple[Tensor, Tensor]:
    *_, heads, channels = x.x.shape
    sizes = (sequences_of(x), heads)
    made = [x.x.new_empty(each, dtype=state_dtype(x.x)) for each in ((*sizes, channels, x.B.shape[-1]), sizes)]
    return made[0], made[1]


def _summary(x: Any) -> tuple[Tensor, Tensor]:
    absent = {"C": x.B, "D": None, "z": None, "has_initial_state": None}
    _, last = _scanned(SimpleNamespace(**vars(x) | absent), x.initial_state)
    steps = Steps(x.dt_softplus, (x.dt_lowest, x.dt_highest))(x.dt.double(), x.dt_bias) * x.A.double()
    decays = [steps[span.row, span.first : span.end].sum(0).exp() for span in spans_of(x)]
    decay = torch.stack(decays) if decays else steps.new_empty(0, x.x.shape[2])
    return last.to(state_dtype(x.x)), decay.to(state_dtype(x.x))


ssd_scan_operator: Differentiable = first_order(
    "ssd_scan", "ssd_scan", shapes=_shapes, cpu=_forward, backward=derivative, batched=refuse_vmap
)
_summary_schema = register("ssd_summary", shapes=_summary_shapes, cpu=_summary)
_pool_schema = register("ssd_scan_pool", shapes=lambda x: x.x.new_empty(x.x.shape), cpu=_with_pool)

_OPTIONAL: Arguments = dict.fromkeys(("D", "z", "dt_bias", "initial_state", "cu_seqlens", "seq_idx", "has_initial_state"))
_POOL: Arguments = {"write_indices": None, "update_state": True}
_STEPS: Arguments = {"dt_softplus": False, "dt_lowest": 0.0, "dt_highest": math.inf}


def _has_kernel(*tensors: Tensor | None) -> bool:
    """Whether ssd/prefill or ssd/prefill_mma runs, and ssd/backward, for Hopper, where gradients are needed; on a CPU the
    reference does."""
    x, _, _, B = (y for y in tensors[:4] if y is not None)
    if not x.is_cuda:
        return True
    gradients = needs_gradients(*tensors)
    most, capability = 128 if gradients else 256, torch.cuda.get_device_capability(x.device)
    fits_device = capability == (9, 0) if gradients else capability >= (8, 0)
    sizes_fit = x.shape[-1] % 8 == 0 and B.shape[-1] % 8 == 0 and B.shape[-1] <= most
    return sizes_fit and fits_device and x.dtype in (torch.bfloat16, torch.float16)


def ssd_scan(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, *, dt_limit: tuple[float, float] = (0.0, math.inf), **given: Any
) -> tuple[Tensor, Tensor]:
    """(out, last state). given: D, z, dt_bias, initial_state, cu_seqlens, seq_idx, has_initial_state and dt_softplus; or state,
    state_indices, write_indices and update_state in place of initial_state and seq_idx: the pool is returned, its slots
    written."""
    tensors = {"x": x, "dt": dt, "A": A, "B": B, "C": C}
    every = _OPTIONAL | _STEPS | _POOL | tensors | given | {"dt_lowest": dt_limit[0], "dt_highest": dt_limit[1]}
    if "state" in given:
        pooled: Tensor = _pool_schema.overload(*(every[name] for name in _pool_schema.arguments))
        return pooled, given["state"]
    names = ssd_scan_operator.schema.arguments
    if not _has_kernel(x, dt, A, B, C, *(every[name] for name in ("D", "z", "dt_bias", "initial_state"))):
        return expanded_scan(SimpleNamespace(**{name: every[name] for name in names}))
    out, last = ssd_scan_operator(*(every[name] for name in names))
    return out, last


def ssd_summary(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, *, dt_limit: tuple[float, float] = (0.0, math.inf), **given: Any
) -> tuple[Tensor, Tensor]:
    """The states after sequences, (sequences, H, P, N), and the decays over them, (sequences, H). given: dt_bias,
    initial_state, cu_seqlens and dt_softplus."""
    limits = {"dt_lowest": dt_limit[0], "dt_highest": dt_limit[1]}
    every = _OPTIONAL | _STEPS | {"x": x, "dt": dt, "A": A, "B": B} | given | limits
    last, decay = _summary_schema.overload(*(every[name] for name in _summary_schema.arguments))
    return last, decay


# ---- Examples


def _drawn(B: int, T: int, seed: int, heads: int = 3) -> Arguments:
    def rows(*sizes: int, seed: int) -> Tensor:
        return random(*sizes, seed=seed, dtype=torch.bfloat16)

    tensors = {
        "x": rows(B, T, heads, 64, seed=seed),
        "dt": rows(B, T, heads, seed=seed + 1),
        "A": -random(heads, seed=seed + 2).exp(),
        "B": rows(B, T, 1, 64, seed=seed + 3),
        "C": rows(B, T, 1, 64, seed=seed + 4),
        "dt_bias": random(heads, seed=seed + 5),
    }
    return _OPTIONAL | _STEPS | tensors | {"dt_softplus": True}


@example(call_operator("ssd_scan"))
def _example(B: int, T: int, seed: int) -> Arguments:
    x = _drawn(B, T, seed)
    more = {"D": random(3, 64, seed=seed + 6), "z": random(B, T, 3, 64, seed=seed + 7, dtype=torch.bfloat16)}
    return x | more | {"initial_state": random(B, 3, 64, 64, seed=seed + 8), "dt_highest": 0.5}


@example(call_operator("ssd_scan"), "ssd_scan_packed", packed=True)
def _example_packed(B: int, T: int, seed: int) -> Arguments:
    x = _drawn(1, 70, seed)
    return x | {"cu_seqlens": torch.tensor([0, 0, 65, 70]), "initial_state": random(3, 3, 64, 64, seed=seed + 8)}


@example(call_operator("ssd_scan"), "ssd_scan_of_numbered_sequences")
def _example_numbered(B: int, T: int, seed: int) -> Arguments:
    numbers = torch.arange(T).div(7, rounding_mode="floor").int() + torch.arange(B)[:, None].int()
    return _drawn(B, T, seed) | {"seq_idx": numbers, "initial_state": random(B, 3, 64, 64, seed=seed + 8)}


@example(call_operator("ssd_scan_pool"), "ssd_scan_pool", packed=True)
def _example_pool(B: int, T: int, seed: int) -> Arguments:
    x = _drawn(1, 70, seed) | _POOL
    del x["initial_state"], x["seq_idx"]
    pool = random(4, 3, 64, 64, seed=seed + 8, dtype=torch.bfloat16)
    slots = {"state": pool, "state_indices": torch.tensor([2, -1, 0]), "has_initial_state": torch.tensor([True, True, False])}
    return x | slots | {"cu_seqlens": torch.tensor([0, 0, 65, 70])}


def _summarized(x: Arguments) -> Arguments:
    return {name: x[name] for name in _summary_schema.arguments}


@example(call_operator("ssd_summary"))
def _example_summary(B: int, T: int, seed: int) -> Arguments:
    return _summarized(_example(B, T, seed))


@example(call_operator("ssd_summary"), "ssd_summary_packed", packed=True)
def _example_packed_summary(B: int, T: int, seed: int) -> Arguments:
    return _summarized(_example_packed(B, T, seed))


@example(call_operator("ssd_scan_backward"))
def _example_backward(B: int, T: int, seed: int) -> Arguments:
    x = _drawn(B, T, seed) | {"D": random(3, seed=seed + 6), "initial_state": random(B, 3, 64, 64, seed=seed + 8)}
    x |= {
        "out_gradient": random(B, T, 3, 64, seed=seed + 9, dtype=torch.bfloat16),
        "state_gradient": random(B, 3, 64, 64, seed=seed + 10),
    }
    return {name: x[name] for name in ssd_scan_backward_operator.schema.arguments}


@example(call_operator("ssd_scan_backward"), "ssd_scan_backward_packed", packed=True)
def _example_packed_backward(B: int, T: int, seed: int) -> Arguments:
    x = _example_packed(B, T, seed) | {"state_gradient": None, "D": None}
    x["out_gradient"] = random(*x["x"].shape, seed=seed + 9, dtype=torch.bfloat16)
    return {name: x[name] for name in ssd_scan_backward_operator.schema.arguments}
