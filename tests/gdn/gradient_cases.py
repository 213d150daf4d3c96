"""Gradients of chunked_forward: inputs, and the oracle, which is autograd of the literal recurrence in fp64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from gdn_cuda import reference

LEAVES = ("query", "key", "value", "beta", "gate", "state", "A_log", "dt_bias")


@dataclass(frozen=True)
class GradientCase:
    """`lengths`: of sequences, packed if they differ. `gates`: the strongest, drawn from it to 0, by value head if a tuple.
    `keys`: random, repeated (four of them), near (1 % apart) or zero. `beta`: the largest, or "zeros", half of them 0."""

    lengths: tuple[int, ...] = (150,)
    heads: tuple[int, int] = (1, 2)
    dk: int = 64
    dv: int = 64
    gates: float | tuple[float, ...] = 1.0
    keys: str = "random"
    beta: float | str = 1.0
    resets: bool = False
    state: bool = True
    last: bool = True
    out: bool = True
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def packed(self) -> bool:
        return len(set(self.lengths)) > 1

    def __str__(self) -> str:
        parts = [
            "x".join(map(str, self.lengths)),
            "x".join(map(str, (*self.heads, self.dk, self.dv))),
            f"gates{self.gates}",
            self.keys,
            f"beta{self.beta}",
            *(name for name in ("resets", "state", "last", "out") if getattr(self, name)),
            *(f"{name}" for name in self.options),
        ]
        return "-".join(parts).replace(" ", "")


def inputs(case: GradientCase, seed: int, dtype: torch.dtype = torch.bfloat16) -> dict[str, Any]:
    """The arguments, as a model would have them: scalars of each token in fp32, or raw gates and logits in `dtype`."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    key_heads, heads = case.heads
    lead = (sum(case.lengths),) if case.packed else (len(case.lengths), case.lengths[0])
    sequences = len(case.lengths)
    query, key = (normal(*lead, key_heads, case.dk) for _ in range(2))
    if case.keys in ("repeated", "near"):
        key = normal(4, case.dk)[torch.randint(4, (*lead, key_heads), generator=rng)]
        key = key + (0.01 * normal(*lead, key_heads, case.dk) if case.keys == "near" else 0)
    if case.keys == "zero":
        key = torch.zeros_like(key)
    if not case.options.get("use_qk_l2norm"):
        query, key = normalize(query, dim=-1), normalize(key, dim=-1)
    strongest = torch.tensor(case.gates if isinstance(case.gates, tuple) else (case.gates,) * heads, dtype=torch.float64)
    gate = -strongest * torch.rand(*lead, heads, generator=rng, dtype=torch.float64)
    if case.resets:
        for at in (lead[-1] // 3, lead[-1] // 2):
            gate[..., at, :] = -torch.inf
    beta = torch.rand(*lead, heads, generator=rng, dtype=torch.float64) * (1.0 if case.beta == "zeros" else float(case.beta))
    if case.beta == "zeros":
        beta = beta * (torch.rand(*lead, heads, generator=rng) > 0.5)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x: dict[str, Any] = {
        name: y.to(dtype) for name, y in (("query", query), ("key", key), ("value", normal(*lead, heads, case.dv)))
    }
    x |= {"beta": beta.to(wide), "gate": gate.to(wide)}
    if case.options.get("beta_is_logit"):
        x["beta"] = normal(*lead, heads).to(dtype)
    if "A_log" in case.options:
        x["gate"] = normal(*lead, heads).to(dtype)
        x["A_log"], x["dt_bias"] = ((torch.rand(heads, generator=rng) * 16 + 0.01).log().to(wide), normal(heads).to(wide))
    if case.options.get("gate_is_linear"):
        x["gate"] = gate.exp().to(wide)
    if case.state:
        x["state"] = (normal(sequences, heads, case.dv, case.dk) / case.dk**0.5).to(wide)
    if case.packed:
        x["cu_seqlens"] = torch.tensor([0, *torch.tensor(case.lengths).cumsum(0).tolist()], dtype=torch.int32)
    return x | {name: y for name, y in case.options.items() if name != "A_log"}


def cotangents(case: GradientCase, seed: int, x: dict[str, Any]) -> tuple[Tensor | None, Tensor | None]:
    rng = torch.Generator().manual_seed(seed + 1)
    sequences, heads = len(case.lengths), x["value"].shape[-2]
    out = torch.randn(x["value"].shape, generator=rng, dtype=torch.float64).to(x["value"].dtype)
    wide = torch.float64 if out.dtype == torch.float64 else torch.float32
    last = (torch.randn(sequences, heads, case.dv, case.dk, generator=rng, dtype=torch.float64) / case.dk**0.5).to(wide)
    return (out if case.out else None), (last if case.last else None)


def gradients_of(function: Any, x: dict[str, Any], grads: tuple[Tensor | None, Tensor | None]) -> dict[str, Tensor]:
    """By argument, of `function(**x)`, which returns the output and the final state."""
    leaves = {name: x[name].detach().requires_grad_() for name in LEAVES if x.get(name) is not None}
    results = function(**(x | leaves))[:2]
    pairs = [(y, g) for y, g in zip(results, grads, strict=True) if g is not None]
    found = torch.autograd.grad(
        [y for y, _ in pairs], list(leaves.values()), [g.to(y.dtype) for y, g in pairs], allow_unused=True
    )
    return {name: torch.zeros_like(y) if g is None else g for (name, y), g in zip(leaves.items(), found, strict=True)}


def oracle(x: dict[str, Any], grads: tuple[Tensor | None, Tensor | None]) -> dict[str, Tensor]:
    wide = {name: y.double() if isinstance(y, Tensor) and y.is_floating_point() else y for name, y in x.items()}

    def literal(use_qk_l2norm: bool = False, state: Tensor | None = None, **given: Any) -> Any:
        return reference.recurrent_forward(**given, state=state, is_qk_norm=use_qk_l2norm)

    wide_grads = tuple(None if g is None else g.double() for g in grads)
    return gradients_of(literal, wide, wide_grads)  # type: ignore[arg-type]


def error(found: Tensor, wanted: Tensor, by_head: int | None = None) -> float:
    """Relative RMS, the largest of those of each head along `by_head`: one norm over all hides a head."""
    if by_head is not None:
        return max((error(f, w) for f, w in zip(found.unbind(by_head), wanted.unbind(by_head), strict=True)), default=0.0)
    if wanted.numel() == 0:
        return 0.0
    difference, size = (found.double() - wanted).square().mean().sqrt(), wanted.square().mean().sqrt()
    return float(difference / size) if size > 0 else float(difference)


# ---- Small calls, for what does not depend on sizes

CASE = GradientCase(lengths=(70, 70), heads=(2, 4), dk=16, dv=24)
PACKED = GradientCase(lengths=(70, 0, 1, 30), heads=(2, 4), dk=16, dv=24)
RAW = {"A_log": True, "beta_is_logit": True, "use_qk_l2norm": True}


def drawn(case: GradientCase, seed: int, dtype: torch.dtype = torch.float32) -> tuple[dict[str, Any], Any]:
    """The arguments, and the gradients of the results."""
    x = inputs(case, seed, dtype)
    return x, cotangents(case, seed, x)


def with_leaves(x: dict[str, Any], *names: str) -> dict[str, Any]:
    return x | {name: x[name].detach().clone().requires_grad_() for name in names}


def same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in found)
