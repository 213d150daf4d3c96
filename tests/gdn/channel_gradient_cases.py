"""Gradients with a gate for every channel of the key: inputs for `gradient_cases`, whose oracle takes them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from gradient_cases import GradientCase, cotangents, inputs
from kda_cases import log_decays
from torch import Tensor


@dataclass(frozen=True)
class ChannelCase:
    """`gates`: a kind of `log_decays`, or raw: softplus, bounded, or bounded without A_log ("bound"); or "linear"."""

    shape: GradientCase = field(default_factory=GradientCase)
    gates: str = "init"

    def __str__(self) -> str:
        return f"{self.gates}-{self.shape}".replace(" ", "_")


RAW: dict[str, dict[str, Any]] = {"softplus": {}, "bounded raw": {"lower_bound": -5.0}, "bound": {"lower_bound": -5.0}}


def channel_inputs(case: ChannelCase, seed: int, dtype: torch.dtype = torch.bfloat16) -> dict[str, Any]:
    """Gates in fp32 (fp64 with fp64), but raw ones in `dtype`."""
    x = inputs(case.shape, seed, dtype)
    rng = torch.Generator().manual_seed(seed + 2)
    shape, wide = (*x["gate"].shape, case.shape.dk), x["gate"].dtype
    heads = case.shape.heads[1]
    if case.gates not in RAW:
        if case.gates == "linear":
            gate = log_decays("channel reset", shape, rng).exp()
            return x | {"gate": gate.to(wide), "gate_is_linear": True}
        return x | {"gate": log_decays(case.gates, shape, rng).to(wide)}
    x["gate"] = torch.randn(shape, generator=rng).to(dtype)
    x["dt_bias"] = torch.randn(heads, case.shape.dk, generator=rng).to(wide)
    if case.gates != "bound":
        x["A_log"] = (torch.rand(heads, generator=rng) * 4 + 0.01).log().to(wide)
    return x | RAW[case.gates]


def drawn(case: ChannelCase, seed: int, dtype: torch.dtype) -> tuple[dict[str, Any], tuple[Tensor | None, Tensor | None]]:
    x = channel_inputs(case, seed, dtype)
    return x, cotangents(case.shape, seed, x)


def smallest_errors(found: Tensor, wanted: Tensor, below: float = 1e-4) -> float:
    """The median relative error of the entries that are small beside the largest, though not lost to fp32."""
    size = wanted.abs()
    small = (size < below * size.max()) & (size > 1e-30)
    return float(((found.double() - wanted).abs() / size)[small].median()) if small.any() else 0.0


SHAPE = GradientCase(lengths=(70,), heads=(1, 2), dk=24, dv=16)
CASES = [
    *(ChannelCase(replace(SHAPE, lengths=(length,))) for length in (1, 15, 16, 17, 63, 64, 65, 300)),
    *(ChannelCase(SHAPE, gates) for gates in ("none", "edge", "bounded", "heavy", "strong", "channel reset", "token reset")),
    ChannelCase(replace(SHAPE, lengths=(70, 0, 1, 40), heads=(2, 4)), "heavy"),
    ChannelCase(replace(SHAPE, lengths=(33, 33), heads=(2, 6)), "bounded"),
    *(ChannelCase(replace(SHAPE, keys=keys, beta=2.0)) for keys in ("repeated", "near", "zero")),
    ChannelCase(replace(SHAPE, beta="zeros"), "channel reset"),
    ChannelCase(replace(SHAPE, state=False, last=False), "heavy"),
    ChannelCase(replace(SHAPE, out=False)),
    ChannelCase(replace(SHAPE, options={"use_qk_l2norm": True, "scale": -0.3}), "linear"),
    *(ChannelCase(replace(SHAPE, options={"use_qk_l2norm": True, "beta_is_logit": True}), gates) for gates in RAW),
    ChannelCase(
        replace(SHAPE, lengths=(20, 33), options={"allow_negative_eigenvalues": True, "beta_is_logit": True}), "softplus"
    ),
]
