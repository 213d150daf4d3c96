"""The selective scan: the operator, its backward, and the public function."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor

from ..operators import Differentiable
from ..operators.calls import typical_call
from ..operators.examples import Arguments, call_operator, draw, example, random
from ..operators.first_order import first_order
from ..operators.gradients import under_transforms
from ..operators.layout import empty_rows
from ..operators.mapped import Mapped
from . import reference_selective as reference


def _shapes(x: Any) -> tuple[Tensor, Tensor, Tensor]:
    states = reference.chunk_count(x) if x.keep_states else 0
    return (
        empty_rows(x.u, reference.results_are_channels_last(x)),
        x.A.new_empty(reference.sequence_count(x), *x.A.shape),
        x.A.new_empty(states, *x.A.shape),
    )


def _backward_shapes(x: Any) -> tuple[Tensor, ...]:
    channels_last = reference.results_are_channels_last(x)

    def rows(given: Tensor | None) -> Tensor:
        return x.u.new_empty(0) if given is None else empty_rows(given, channels_last)

    def dense(given: Tensor | None) -> Tensor:
        return x.u.new_empty(0) if given is None else given.new_empty(given.shape)

    return (
        rows(x.u),
        rows(x.delta),
        dense(x.A),
        dense(x.B),
        dense(x.C),
        dense(x.D),
        rows(x.z),
        dense(x.delta_bias),
        rows(x.delta_a),
        dense(x.initial_state),
    )


_GRADIENTS = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "delta_a", "initial_state")


def _gradients(x: Any, needs: Any, grad_out: Tensor | None, grad_last_state: Tensor | None, _: Any) -> dict[str, Any]:
    (states,) = x.results
    if grad_out is None:
        grad_out = torch.zeros_like(x.u)
    found = _backward(grad_out, grad_last_state, *(getattr(x, argument) for argument in _scan.schema.arguments[:-1]), states)
    return {argument: grad for argument, grad in zip(_GRADIENTS, found, strict=True) if getattr(needs, argument)}


# ---- torch.vmap: the mapped dimension becomes more channels, and more groups of B and C


def _channels_at(rank: int) -> int:
    """The dimension of channels or groups in (D, …), (B or sequences or chunks, D, …) and (B, G, N, L)."""
    return 0 if rank < 3 else 1


def _with_more_channels(operator: Differentiable, x: Any, dims: Any) -> tuple[Mapped, Any]:
    """The operator's results, with channels of its own for each element of the mapped dimension."""
    mapped = Mapped(x, dims)
    if mapped.is_over("cu_seqlens"):
        raise RuntimeError(f"{_NAME}: torch.vmap over cu_seqlens is not supported")

    def more(name: str) -> Any:
        given = getattr(x, name)
        if not isinstance(given, Tensor) or name == "cu_seqlens":
            return given
        rank = mapped.rank(name)
        is_one_group = name in ("B", "C") and rank == 3
        return (mapped.inserted if is_one_group else mapped.widened)(name, _channels_at(rank))

    return mapped, operator(*(more(name) for name in operator.schema.arguments))


def _batched(x: Any, dims: Any) -> Any:
    mapped, results = _with_more_channels(_scan, x, dims)
    return tuple(zip(*(mapped.split(y, 1) for y in results), strict=True))


def _batched_backward(x: Any, dims: Any) -> Any:
    mapped, results = _with_more_channels(_backward, x, dims)

    def split(argument: str, grad: Tensor) -> tuple[Tensor, int | None]:
        if getattr(x, argument) is None:
            return grad, None
        if argument in ("B", "C") and mapped.rank(argument) == 3:
            return grad, 1
        return mapped.split(grad, _channels_at(mapped.rank(argument)))

    return tuple(zip(*(split(*each) for each in zip(_GRADIENTS, results, strict=True)), strict=True))


_NAME = "selective_scan"
_backward = first_order(
    _NAME, "selective_scan_backward", shapes=_backward_shapes, cpu=reference.backward, batched=_batched_backward
)
_scan = first_order(_NAME, _NAME, shapes=_shapes, cpu=reference.forward, backward=_gradients, backward_only=1, batched=_batched)


def _no_derivatives(tensors: tuple[Tensor | None, ...]) -> bool:
    """Every call asks this, so it has to be fast."""
    if torch.compiler.is_compiling() or under_transforms():
        return False
    if torch.is_grad_enabled():
        for x in tensors:
            if x is not None and x.requires_grad:
                return False
    return True


@overload
def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = ...,
    z: Tensor | None = ...,
    delta_bias: Tensor | None = ...,
    delta_a: Tensor | None = ...,
    delta_softplus: bool = ...,
    return_last_state: Literal[False] = ...,
    discretization: str = ...,
    *,
    initial_state: Tensor | None = ...,
    cu_seqlens: Tensor | None = ...,
) -> Tensor: ...
@overload
def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = ...,
    z: Tensor | None = ...,
    delta_bias: Tensor | None = ...,
    delta_a: Tensor | None = ...,
    delta_softplus: bool = ...,
    *,
    return_last_state: Literal[True],
    discretization: str = ...,
    initial_state: Tensor | None = ...,
    cu_seqlens: Tensor | None = ...,
) -> tuple[Tensor, Tensor]: ...
@overload
def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = ...,
    z: Tensor | None = ...,
    delta_bias: Tensor | None = ...,
    delta_a: Tensor | None = ...,
    delta_softplus: bool = ...,
    return_last_state: bool = ...,
    discretization: str = ...,
    *,
    initial_state: Tensor | None = ...,
    cu_seqlens: Tensor | None = ...,
) -> Tensor | tuple[Tensor, Tensor]: ...
def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_a: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    discretization: str = "mamba",
    *,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """A linear recurrence of N states per channel, with coefficients that vary in time: the core of Mamba, S6, S7 and RG-LRU.

    Formula:
        δ = delta (+ delta_bias), then softplus(δ) if delta_softplus;  δ_A = delta_a, or δ if None
        x_t = Ā_t x_{t−1} + (B̄u)_t
        out_t = (Σ_n C_t x_t + D u_t) · silu(z_t), with 2·Re Σ_n if A is complex
        mamba:     Ā = e^{δ_A A},                    (B̄u)_t = δ B u
        zoh:       Ā = e^{δ_A A},                    (B̄u)_t = (e^{δA} − 1) / A · B u
        bilinear:  Ā = (1 + ½δ_A A) / (1 − ½δ_A A),  (B̄u)_t = δ / (1 − ½δA) · B u
        dirac:     Ā = e^{δ_A A},                    (B̄u)_t = B u
        s7:        Ā = 1 − 1 / (δ² + ½),             (B̄u)_t = B u
        rglru:     Ā = A^δ,                          (B̄u)_t = √(1 − Ā²) · u

    Shapes:
        u, delta, z, delta_a: (B, D, L), fp32, bf16 or fp16, on the CPU fp64 too
        A: (D, N), fp32 or complex64; N from 1 to 256
        B, C: each (D, N) as A, or (B, N, L) or (B, G, N, L) in u's dtype or fp32; channel d reads group d // (D/G). With a
            complex A, complex64, or real with a last dimension of 2L that holds (real, imaginary) pairs
        D, delta_bias: (D,), fp32
        initial_state, last state: (B, D, N) in A's dtype; (sequences, D, N) with `cu_seqlens`
        cu_seqlens: (sequences + 1,), int32 or int64: offsets of sequences packed along L, with B = 1
        out: as u

    Parameters:
        delta_softplus: whether δ is the softplus of delta + delta_bias
        return_last_state: whether (out, last state) is returned, and not out alone
        discretization: "mamba", "zoh", "bilinear", "dirac", "s7" or "rglru", see above

    u, delta, z and delta_a may be contiguous or transposed views of (B, L, D) tensors. out has the layout of most of them, and
    tensors in the other layout are copied; u decides a tie.

    Edge cases:
        The last state of a sequence without tokens is its initial state, or zeros.
        Gradients flow to every floating-point input, from out and from the last state. Second derivatives, forward mode and
        torch.vmap over cu_seqlens are refused.
        'rglru' ignores a varying B, and multiplies the output by a constant B; at δ = 0 the root's derivative is infinite and
        counts as 0. 's7' ignores A. Both are real, and refuse delta_a.
        Tokens after the last sequence have the output 0.
        'bilinear' has a pole at ½δA = 1 or ½δ_A A = 1, where results and gradients are undefined.
        Ā = 0 does not erase an infinity or NaN in the state: 0·∞ is NaN.

    Example:
        >>> one = torch.ones(1, 1, 3)
        >>> gdn_cuda.selective_scan(one, one, torch.zeros(1, 1), one, one, return_last_state=True)
        (tensor([[[1., 2., 3.]]]), tensor([[[3.]]]))
    """
    tensors = (u, delta, A, B, C, D, z, delta_bias, delta_a, initial_state, cu_seqlens)
    try:
        if _no_derivatives(tensors):
            out, last_state, _ = _scan.below_autograd(*tensors, delta_softplus, discretization, False)
        else:
            out, last_state, _ = _scan(*tensors, delta_softplus, discretization, torch.is_grad_enabled())
    except Exception:
        _scan.schema.check_types((*tensors, delta_softplus, discretization, False))
        raise
    return (out, last_state) if return_last_state else out


# ---- Examples


def _drawn(B: int, T: int, seed: int, dtype: torch.dtype, D: int = 4) -> Arguments:
    tensors = {name: random(B, D, T, seed=seed + i, dtype=dtype) for i, name in enumerate(("u", "delta", "z"))}
    return tensors | {"D": random(D, seed=seed + 3), "delta_bias": random(D, seed=seed + 4), "delta_softplus": True}


@example(selective_scan)
def _mamba_example(B: int, T: int, seed: int) -> Arguments:
    coefficients = {name: random(B, 3, T, seed=seed + i, dtype=torch.bfloat16) for i, name in enumerate("BC")}
    return _drawn(B, T, seed, torch.bfloat16) | coefficients | {"A": -random(4, 3, seed=seed).exp()}


@example(selective_scan, "selective_scan_complex")
def _complex_example(B: int, T: int, seed: int) -> Arguments:
    rows = {name: random(B, T, 4, seed=seed + i).abs().mT for i, name in enumerate(("u", "delta", "delta_a"))}
    A = torch.complex(-random(4, 3, seed=seed).exp(), random(4, 3, seed=seed + 1))
    B_in_pairs = {"B": random(B, 2, 3, 2 * T, seed=seed + 2), "C": draw(4, 3, seed=seed + 3, dtype=torch.complex64)}
    start = {"initial_state": draw(B, 4, 3, seed=seed + 4, dtype=torch.complex64)}
    return rows | B_in_pairs | start | {"A": A, "discretization": "zoh"}


def _packed(seed: int) -> Arguments:
    x = _mamba_example(1, 70, seed)
    return x | {"cu_seqlens": torch.tensor([0, 0, 65, 70]), "initial_state": random(3, 4, 3, seed=seed + 5)}


@example(selective_scan, "selective_scan_packed", packed=True)
def _packed_example(B: int, T: int, seed: int) -> Arguments:
    return _packed(seed)


def _for_backward(given: Arguments, chunks: int, sequences: int, seed: int) -> Arguments:
    absent: Arguments = dict.fromkeys(("z", "D", "delta_bias", "delta_a", "initial_state", "cu_seqlens"))
    x = absent | {"delta_softplus": False, "discretization": "mamba"} | given
    dtype = x["A"].dtype
    results = {
        "grad_out": random(*x["u"].shape, seed=seed + 6, dtype=x["u"].dtype),
        "grad_last_state": draw(sequences, 4, 3, seed=seed + 7, dtype=dtype),
        "states": draw(chunks, 4, 3, seed=seed + 8, dtype=dtype),
    }
    return results | x


@example(call_operator("selective_scan_backward"))
def _backward_of_mamba(B: int, T: int, seed: int) -> Arguments:
    return _for_backward(_mamba_example(B, T, seed), B * -(-T // reference.STATE_CHUNK), B, seed)


@example(call_operator("selective_scan_backward"), "selective_scan_backward_complex")
def _backward_of_complex_numbers(B: int, T: int, seed: int) -> Arguments:
    return _for_backward(_complex_example(B, T, seed), B * -(-T // reference.STATE_CHUNK), B, seed)


@example(call_operator("selective_scan_backward"), "selective_scan_backward_packed", packed=True)
def _backward_of_packed_sequences(B: int, T: int, seed: int) -> Arguments:
    return _for_backward(_packed(seed), 4, 3, seed)


typical_call(
    selective_scan,
    {"batch": 8, "dim": 5120, "tokens": 2048, "states": 16, "groups": 1},
    "u, delta, z: batch dim tokens; A: dim states f32; B, C: batch states tokens; D: dim f32; delta_softplus = true",
    "u, delta, z: batch dim tokens; A: dim states f32; B, C: batch groups states tokens; delta_softplus = true",
)
