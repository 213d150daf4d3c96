"""RMS norm of rows with a gate: the operator, its gradients, reference, examples, benchmark and sanitizer call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..operators import Differentiable
from ..operators.calls import typical_call
from ..operators.examples import Arguments, call_operator, example, random
from ..operators.first_order import first_order
from ..operators.measure import Case, Inputs, Outcome, Peer, Work, bench, draw, import_peer, normal, sanitizes, size

_NAME = "rms_norm_gated"

# ---- CPU tensors: the definition in fp64


def _columns(x: Any) -> Any:
    """Number of columns per group."""
    return x.x.shape[-1] if x.group_size is None else x.group_size


def _grouped(y: Tensor, x: Any) -> Tensor:
    """y as (…, groups, columns per group)."""
    columns = _columns(x)
    return y.unflatten(-1, (-1, columns)) if columns else y.unsqueeze(-2)


def _gate(x: Any) -> tuple[Tensor, Tensor]:
    """a(gate) and its derivative."""
    if x.gate is None:
        return torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    gate = x.gate.double()
    s = gate.sigmoid()
    if x.activation == "sigmoid":
        return s, s * (1 - s)
    return gate * s, s * (1 + gate * (1 - s))


def _inverse_rms(h: Tensor, x: Any) -> Tensor:
    """1 / rms of every group, expanded to its columns."""
    squares = _grouped(h, x).square().mean(-1, keepdim=True)
    return (squares + x.eps).rsqrt().expand(_grouped(h, x).shape).flatten(-2)


def _forward(x: Any) -> Tensor:
    a, _ = _gate(x)
    y = x.x.double()
    h = y if x.norm_before_gate else y * a
    out = h * _inverse_rms(h, x)
    if x.weight is not None:
        out = out * x.weight.double()
    return (out * a if x.norm_before_gate else out).to(x.x.dtype).contiguous()


def _backward_on_cpu(x: Any) -> tuple[Tensor, Tensor, Tensor]:
    a, slope = _gate(x)
    y, grad = x.x.double(), x.grad.double()
    weight = 1.0 if x.weight is None else x.weight.double()
    h = y if x.norm_before_gate else y * a
    inverse = _inverse_rms(h, x)
    n = h * inverse
    dn = grad * weight * a if x.norm_before_gate else grad * weight
    mean = _grouped(dn * n, x).mean(-1, keepdim=True).expand(_grouped(h, x).shape).flatten(-2)
    # With one column rounding would cancel the difference, so it is computed directly.
    dh = inverse * (dn * (x.eps * inverse.square()) + 0 * n if _columns(x) == 1 else dn - n * mean)
    dx = dh if x.norm_before_gate else dh * a
    dgate = slope * (grad * weight * n if x.norm_before_gate else dh * y)
    dweight = grad * n * a if x.norm_before_gate else grad * n
    if y.dim() > 1:
        dweight = dweight.flatten(0, -2).sum(0)
    none = x.x.new_empty(0)
    return (
        dx.to(x.x.dtype).contiguous(),
        none if x.gate is None else dgate.to(x.gate.dtype).contiguous(),
        x.x.new_empty(0, dtype=torch.float32) if x.weight is None else dweight.to(_sum_dtype(x)),
    )


def _sum_dtype(x: Any) -> torch.dtype:
    """The dtype in which the weight's gradient is summed."""
    return torch.float64 if x.weight is not None and x.weight.dtype == torch.float64 else torch.float32


# ---- The operator and its gradients


def _backward_shapes(x: Any) -> tuple[Tensor, Tensor, Tensor]:
    dgate = x.x.new_empty(0) if x.gate is None else x.gate.new_empty(x.gate.shape)
    dweight = x.x.new_empty((0,) if x.weight is None else x.weight.shape, dtype=_sum_dtype(x))
    return x.x.new_empty(x.x.shape), dgate, dweight


def _gradients(x: Any, needs: Any, grad: Tensor) -> dict[str, Any]:
    dx, dgate, dweight = _backward(grad, x.x, x.gate, x.weight, x.eps, x.activation, x.norm_before_gate, x.group_size)
    return {
        "x": dx,
        "gate": dgate if needs.gate else None,
        "weight": dweight.to(x.weight.dtype) if needs.weight else None,
    }


def _mapped(operator: Differentiable, x: Any, dims: Any) -> Any:
    """For torch.vmap: the mapped dimension becomes a leading one; with a mapped weight, or a gradient of the weight, each index
    is a call of its own."""
    names = [name for name in operator.schema.arguments if isinstance(getattr(x, name), Tensor)]
    count = next(getattr(x, name).shape[d] for name, d in vars(dims).items() if d is not None)
    first = {
        name: getattr(x, name).expand(count, *getattr(x, name).shape)
        if getattr(dims, name) is None
        else getattr(x, name).movedim(getattr(dims, name), 0)
        for name in names
    }
    given = [first.get(name, getattr(x, name)) for name in operator.schema.arguments]
    if "grad" not in names and getattr(dims, "weight", None) is None:
        return operator(
            *(x.weight if name == "weight" else y for name, y in zip(operator.schema.arguments, given, strict=True))
        ), 0
    each = [
        operator(*(y[i] if name in names else y for name, y in zip(operator.schema.arguments, given, strict=True)))
        for i in range(count)
    ]
    if isinstance(each[0], Tensor):
        return torch.stack(each), 0
    return tuple(torch.stack(of) for of in zip(*each, strict=True)), (0,) * len(each[0])


_norm: Differentiable = first_order(
    _NAME,
    _NAME,
    shapes=lambda x: x.x.new_empty(x.x.shape),
    cpu=_forward,
    backward=_gradients,
    batched=lambda x, dims: _mapped(_norm, x, dims),
)
_backward: Differentiable = first_order(
    _NAME,
    "rms_norm_gated_backward",
    shapes=_backward_shapes,
    cpu=_backward_on_cpu,
    batched=lambda x, dims: _mapped(_backward, x, dims),
)


def rms_norm_gated(
    x: Tensor,
    gate: Tensor | None,
    weight: Tensor | None,
    eps: float = 1e-5,
    activation: str = "silu",
    norm_before_gate: bool = True,
    *,
    group_size: int | None = None,
) -> Tensor:
    """RMS norm of rows, times a weight and a gate, with gradients: the end of a GDN, KDA or Mamba-2 layer.

    Formula:
        norm(h) = h / √(mean(h²) + eps) · weight
        out = norm(x) · a(gate), or norm(x · a(gate)) where not norm_before_gate; a(g) = g σ(g) for silu and σ(g) for sigmoid

    Shapes:
        x, gate: (…, D), bf16, fp16 or fp32, independently; out is contiguous, of x's dtype
        weight: (D,), bf16, fp16 or fp32, or None for ones

    Parameters:
        eps: added to the mean square
        activation: "silu", "swish" (another name of silu) or "sigmoid"
        norm_before_gate: whether x is normalised; otherwise x · a(gate)
        group_size: number of columns that are normalised together, a divisor of D; None: D

    Rows may have any strides, for example as views of a wider projection, and are not copied. Without a gate this is the plain
    RMS norm. CPU tensors may also be fp64.

    Edge cases:
        Squares outside fp32's range are handled: a row of 1e30 has the result of a row of 1.
        A row of zeros with eps = 0 is NaN, as in the formula. NaN stays in its row, and in the gradient of the weight.
        A gate of −∞ gives 0 with sigmoid, and NaN with silu.
        Gradients of gradients and forward mode raise RuntimeError.

    Example:
        >>> gdn_cuda.rms_norm_gated(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2), torch.ones(2), activation="sigmoid")
        tensor([[0.4243, 0.5657]])
    """
    return _norm(x, gate, weight, eps, activation, norm_before_gate, group_size)


# ---- Examples


def _given(B: int, T: int, seed: int, D: int = 24) -> Arguments:
    """The gate is a view of a wider projection."""
    wide = random(B, T, 2 * D, seed=seed + 1, dtype=torch.bfloat16)
    return {"x": random(B, T, D, seed=seed, dtype=torch.bfloat16), "gate": wide[..., D:], "weight": random(D, seed=seed + 2)}


@example(rms_norm_gated)
def _example(B: int, T: int, seed: int) -> Arguments:
    return _given(B, T, seed) | {"eps": 1e-6}


@example(rms_norm_gated, "rms_norm_gated, the gate first, in groups")
def _example_gate_first(B: int, T: int, seed: int) -> Arguments:
    return _given(B, T, seed) | {"norm_before_gate": False, "group_size": 8}


@example(rms_norm_gated, "rms_norm_gated, sigmoid, mixed dtypes")
def _example_mixed(B: int, T: int, seed: int) -> Arguments:
    given = _given(B, T, seed, 5)
    return given | {"gate": given["gate"].float(), "activation": "sigmoid", "weight": given["weight"].half()}


@example(rms_norm_gated, "rms_norm_gated, neither gate nor weight")
def _example_plain(B: int, T: int, seed: int) -> Arguments:
    return _given(B, T, seed) | {"gate": None, "weight": None}


@example(call_operator("rms_norm_gated_backward"))
def _example_backward(B: int, T: int, seed: int) -> Arguments:
    given = _given(B, T, seed) | {"grad": random(B, T, 24, seed=seed + 3, dtype=torch.bfloat16), "eps": 1e-5}
    return given | {"activation": "silu", "norm_before_gate": True, "group_size": None}


# ---- Measurements

# Prefill and decode of 32 heads, and whole rows as Mamba-2 has them.
GPU_SHAPES = ((32768, 32, 128), *((B, 32, 128) for B in (1, 16, 256)), (32768, 4096), (16, 4096))
CPU_SHAPES = ((2, 3, 16),)


def _work(device: str, shape: tuple[int, ...], dtype: torch.dtype, backward: bool) -> Work:
    x, gate = (normal(*shape, device=device, dtype=dtype) for _ in range(2))
    weight = 1 + normal(shape[-1], device=device, dtype=dtype) / 8
    inputs = {"x": x, "gate": gate, "weight": weight}
    if not backward:
        return Work(partial(rms_norm_gated, x, gate, weight), 3 * size(x), 0, inputs=inputs, outcome=_outcome, checked=inputs)
    inputs["grad"] = torch.empty_like(x).normal_()
    return Work(_backward_of(rms_norm_gated, inputs), 5 * size(x), 0, inputs=inputs, outcome=_gradients_of, checked=inputs)


def _backward_of(norm: Callable[..., Tensor], x: Inputs) -> Callable[[], tuple[Tensor, ...]]:
    leaves = [x[name].detach().requires_grad_() for name in ("x", "gate", "weight")]
    return partial(torch.autograd.grad, norm(*leaves), leaves, x["grad"], retain_graph=True)


def _outcome(x: Inputs) -> Outcome:
    out = rms_norm_gated(x["x"], x["gate"], x["weight"])
    return out, out.new_zeros(1)


def _gradients_of(x: Inputs) -> Outcome:
    found = _backward_of(rms_norm_gated, x)()
    return found[0], found[1]


def _fla(x: Inputs) -> Peer:
    theirs = import_peer("fla.modules.fused_norm_gate", "rms_norm_gated")

    def norm(*given: Tensor) -> Tensor:
        out: Tensor = theirs(*given, None, activation="swish", eps=1e-5)
        return out

    if "grad" in x:
        return Peer(_backward_of(norm, x), lambda found: found[:2])
    return Peer(partial(norm, x["x"], x["gate"], x["weight"]), lambda out: (out, None))


@bench(operator="rms_norm_gated", peers={"fla": _fla})
def _measured(device: str) -> Iterator[Case]:
    for shape in GPU_SHAPES if device == "cuda" else CPU_SHAPES:
        for dtype in (torch.bfloat16, torch.float32):
            for backward in (False, True):
                kind = str(dtype).removeprefix("torch.")
                name = f"{'×'.join(map(str, shape))} {kind}"
                yield Case(name + ", backward" * backward, partial(_work, device, shape, dtype, backward), kind=kind)


typical_call(rms_norm_gated, {"B": 1, "T": 8192, "Hv": 32, "dv": 128}, "x, gate: B T Hv dv; weight: dv f32")


@sanitizes("rms_norm", "rms_norm_backward")
def _sanitized() -> None:
    """Every division of a row among threads, with vectors and with single elements."""
    for dtype in (torch.bfloat16, torch.float32):
        for D in (1, 64, 70, 128, 250, 256, 1024, 1030, 4096, 8200):
            x, wide = draw(37, D, dtype=dtype), draw(37, 2 * D, dtype=dtype)
            for gate in (wide[:, D:], None):
                leaves = [y.detach().requires_grad_() for y in (x, gate, draw(D)) if y is not None]
                out = rms_norm_gated(leaves[0], gate if gate is None else leaves[1], leaves[-1], norm_before_gate=D > 128)
                torch.autograd.grad(out, leaves, torch.ones_like(out))
