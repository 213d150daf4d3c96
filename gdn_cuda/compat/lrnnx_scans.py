"""The scans and steps of lrnnx.ops under their names and with their arguments; delta_a is called deltaA.

CPU and CUDA, gradients for every input of a scan, from the last state too; an unknown discretization raises ValueError. Where
lrnnx's results are wrong, these are right, and the docstring says so.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import scan
from ..operators.caller import in_words_of_caller

_WITHOUT_DELTA_A = ("s7", "rglru")


@in_words_of_caller(delta_a="deltaA")
def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    deltaA: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    discretization: str = "mamba",
) -> Tensor | tuple[Tensor, Tensor]:
    """`selective_scan`. A transposed (B, L, D) is not copied. With "rglru" a constant B multiplies the output, not the
    state. As in lrnnx, "s7" and "rglru" do not read deltaA."""
    deltaA = None if discretization in _WITHOUT_DELTA_A else deltaA
    return scan.selective_scan(u, delta, A, B, C, D, z, delta_bias, deltaA, delta_softplus, return_last_state, discretization)


@in_words_of_caller(delta_a="deltaA")
def simplified_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    deltaA: Tensor | None = None,
    return_last_state: bool = False,
    discretization: str = "bilinear",
) -> Tensor | tuple[Tensor, Tensor]:
    """`simplified_scan`. The last state is (batch, P); lrnnx returns outputs, in another shape."""
    return scan.simplified_scan(u, delta, A, B, C, deltaA, return_last_state, discretization)


@in_words_of_caller(delta_a="deltaA")
def s5_inner_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    deltaA: Tensor | None = None,
    discretization: str = "bilinear",
    conj_sym: bool = True,
) -> Tensor:
    """`s5_inner`."""
    return scan.s5_inner(u, delta, A, B, C, D, deltaA, discretization, conj_sym)


@in_words_of_caller()
def s7_scan_fn(
    u: Tensor, A: Tensor, B: Tensor, C: Tensor, bias: Tensor | None = None, return_last_state: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """`s7_scan`. With return_last_state there are gradients; lrnnx raises an error."""
    return scan.s7_scan(u, A, B, C, bias, return_last_state)


@in_words_of_caller(u="hidden_states", A="x_proj_weight", B="x_proj_weight", C="x_proj_weight", bias="x_proj_weight")
def s7_inner_fn(
    hidden_states: Tensor,
    in_proj_weight: Tensor,
    x_proj_weight: Tensor,
    gate_proj_weight: Tensor,
    d_state: int,
    base_params: Tensor,
) -> Tensor:
    """The S7 layer: projections, the scan with A + base_params, D·u, the gate σ(gate_proj(gelu(y))) and the residual."""
    width = hidden_states.shape[-1]
    u = F.linear(hidden_states, in_proj_weight)
    sizes = [d_state, width * d_state, width * d_state, width, d_state]
    A, B, C, D, bias = F.linear(u, x_proj_weight).split(sizes, -1)
    B = B.unflatten(-1, (width, d_state)).permute(0, 3, 2, 1)
    C = C.unflatten(-1, (width, d_state)).permute(0, 2, 3, 1)
    y = scan.s7_scan(*(x.contiguous() for x in (u.mT, (A + base_params).mT, B, C, bias.mT))).mT + D * u
    return torch.sigmoid(F.linear(F.gelu(y), gate_proj_weight)) * y + hidden_states


@in_words_of_caller()
def rglru_scan_fn(u: Tensor, delta: Tensor, A: Tensor, return_last_state: bool = False) -> Tensor | tuple[Tensor, Tensor]:
    """`rglru_scan`. √(1 − Ā²) does not cancel where Ā is near 1, and its gradient is finite at δ = 0."""
    return scan.rglru_scan(u, delta, A, return_last_state)


@in_words_of_caller(delta_a="deltaA")
def selective_state_update(
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
    deltaA: Tensor | None = None,
    state_batch_indices: Tensor | None = None,
    discretization: str = "mamba",
) -> Tensor:
    """`gdn_cuda.selective_state_update`: a step of the scan. In lrnnx, "bilinear" decays by e^{δA}, "rglru" multiplies by a
    varying B, "zoh" cancels where δA is small, an unknown name is "mamba", and a negative index writes outside the states."""
    deltaA = None if discretization in _WITHOUT_DELTA_A else deltaA
    return scan.selective_state_update(
        state, x, dt, A, B, C, D, z, dt_bias, dt_softplus, deltaA, state_batch_indices, discretization
    )


@in_words_of_caller(delta_a="deltaA")
def simplified_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    deltaA: Tensor | None = None,
    discretization: str = "bilinear",
    conj_sym: bool = True,
) -> Tensor:
    """`gdn_cuda.simplified_state_update`. D is (H, H) or (H,); "zoh" does not cancel where δA is small."""
    return scan.simplified_state_update(state, x, dt, A, B, C, D, deltaA, discretization, conj_sym)


# lrnnx's names for the same functions in plain torch.
selective_scan_ref, simplified_scan_ref, s5_inner_ref = selective_scan_fn, simplified_scan_fn, s5_inner_fn
s7_scan_ref, s7_inner_ref, rglru_scan_ref = s7_scan_fn, s7_inner_fn, rglru_scan_fn
simplified_state_update_ref = simplified_state_update


@in_words_of_caller()
def selective_state_update_ref(
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
    deltaA: Tensor | None = None,
    discretization: str = "mamba",
) -> Tensor:
    """`selective_state_update` without slots."""
    return selective_state_update(state, x, dt, A, B, C, D, z, dt_bias, dt_softplus, deltaA, None, discretization)
