"""Inputs of the Gated Delta Net: random ones that are numerically hard for a delta rule, and those that benchmarks share."""

from __future__ import annotations

import torch
from torch import Tensor

from ..operators.examples import random
from ..operators.measure import Inputs, normal

KEY_MODES = ("random", "repeated", "zero", "parallel", "unnormalized")


def make_gdn_inputs(
    B: int = 2,
    T: int = 64,
    Hk: int = 2,
    Hv: int = 4,
    dk: int = 64,
    dv: int = 64,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    seed: int = 0,
    gate_range: tuple[float, float] = (-100.0, 0.0),
    beta_max: float = 1.0,
    key_mode: str = "random",
) -> dict[str, Tensor]:
    """query, key, value, beta, gate and state, named as the operators name them.

    query, key and value have `dtype`; beta, gate and state have it if it is fp64, else fp32. All are drawn on the CPU in fp64,
    so that a seed gives the same values in every dtype and on every device, up to rounding.

    Gates are in gate_range = (strongest, weakest), distributed logarithmically over four decades; a tenth of them is at one end
    of the range. beta is uniform in [0, beta_max), and a tenth is beta_max. Keys are unit vectors: random, all equal
    ("repeated"), random with every third one zero ("zero"), or different by about one percent ("parallel"); "unnormalized" keys
    need l2norm.
    """
    if key_mode not in KEY_MODES:
        raise ValueError(f"make_gdn_inputs: key_mode: expected one of {KEY_MODES}, got {key_mode!r}")
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=rng, dtype=torch.float64)

    query, value, state = normal(B, T, Hk, dk), normal(B, T, Hv, dv), normal(B, Hv, dv, dk)
    key = normal(B, T, Hk, dk)
    if key_mode == "repeated":
        key = key[:, :1].expand(B, T, Hk, dk).clone()
    elif key_mode == "parallel":
        key = normal(B, 1, Hk, dk) + 0.01 * key
    if key_mode != "unnormalized":
        key = key / key.norm(dim=-1, keepdim=True)
        query = query / query.norm(dim=-1, keepdim=True)
    if key_mode == "zero":
        key[:, ::3] = 0

    strongest, weakest = gate_range
    gate = weakest + (strongest - weakest) * 10 ** (-4 * uniform(B, T, Hv))
    end, pick = torch.where(uniform(B, T, Hv) < 0.5, strongest, weakest), uniform(B, T, Hv)
    gate = torch.where(pick < 0.1, end.to(gate.dtype), gate)
    beta = torch.where(uniform(B, T, Hv) < 0.1, 1.0, uniform(B, T, Hv)) * beta_max

    wide = torch.float64 if dtype == torch.float64 else torch.float32
    inputs = {"query": query, "key": key, "value": value, "beta": beta, "gate": gate, "state": state}
    return {name: x.to(device=device, dtype=dtype if name in ("query", "key", "value") else wide) for name, x in inputs.items()}


def make_packed_gdn_inputs(
    lengths: list[int], *, cu_dtype: torch.dtype = torch.int32, device: torch.device | str = "cpu", **options: object
) -> dict[str, Tensor]:
    """The same for packed sequences of these lengths, with cu_seqlens and one state each."""
    tokens = make_gdn_inputs(B=1, T=sum(lengths), device=device, **options)  # type: ignore[arg-type]
    state = make_gdn_inputs(B=len(lengths), T=0, device=device, **options)["state"]  # type: ignore[arg-type]
    packed = {name: x[0] for name, x in tokens.items() if name != "state"}
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(device=device, dtype=cu_dtype)
    return packed | {"state": state, "cu_seqlens": offsets}


def with_raw_gates(inputs: Inputs, seed: int) -> Inputs:
    """The call with its gates read as a layer's projections: raw gates, and logits of beta."""
    heads = inputs["value"].shape[-2]
    rates = {"A_log": random(heads, seed=seed + 2), "dt_bias": random(heads, seed=seed + 3, dtype=torch.bfloat16)}
    return inputs | rates | {"beta_is_logit": True, "allow_negative_eigenvalues": True}


def projections(
    device: str, *leading: int, key_heads: int, value_heads: int, key_dim: int = 128, value_dim: int = 128
) -> Inputs:
    """Query and key, both of unit length, and value."""

    def unit() -> Tensor:
        drawn = torch.randn(*leading, key_heads, key_dim, device=device)
        return torch.nn.functional.normalize(drawn, dim=-1).bfloat16()

    return {"query": unit(), "key": unit(), "value": normal(*leading, value_heads, value_dim, device=device)}
