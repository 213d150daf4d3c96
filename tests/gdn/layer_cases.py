"""A Gated Delta Net layer as its definition has it, in plain torch in fp64, token by token, differentiable; and layers with
random parameters for tests of their gradients."""

from __future__ import annotations

from typing import Any

import torch
from helpers import rel_rms
from torch import Tensor

from gdn_cuda.nn import GatedDeltaNet

HIDDEN = 24
# Relative RMS errors of results and gradients: some ten roundings to 16 bits in sequence (projections, convolution, recurrence,
# norm, and their backwards), and fp32 through the inverses of chunks.
BOUND = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 10 * 2.0**-8, torch.float16: 10 * 2.0**-11}


def layer(
    seed: int, heads: tuple[int, int] = (2, 4), dk: int = 16, dv: int = 8, *, device: str = "cpu", **options: Any
) -> GatedDeltaNet:
    """Parameters of such size that every part of the layer matters: gates from slow to fast, a norm's weight that is not 1.

    norm_eps is 1e-3 unless given: a norm multiplies the rounding of a row by the row's inverse, and with 1e-6 the few rows of
    the recurrence's output that are almost 0 decide the error of all gradients (0.02 to 0.3 in bf16).
    """
    options.setdefault("norm_eps", 1e-3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = GatedDeltaNet(HIDDEN, heads, dk, dv, **options)
        with torch.no_grad():
            for name, p in made.named_parameters():
                if p.dim() > 1:
                    p.normal_(std=0.4)
                elif name in ("norm.weight", "conv1d.bias"):
                    p.add_(0.3 * torch.randn_like(p))
            made.dt_bias.uniform_(-4, 1)
    return made.to(device)


def _parts(made: GatedDeltaNet, qkvz: Tensor, ba: Tensor) -> list[Tensor]:
    """q, k (T, Hk, dk), v, z (T, Hv, dv), b and a (T, Hv) of one sequence's projections."""
    (Hk, Hv), dk, dv = made.heads, made.head_k_dim, made.head_v_dim
    r = Hv // Hk
    if made.layout == "qwen3_5":
        q, k, v, z = qkvz.split([Hk * dk, Hk * dk, Hv * dv, Hv * dv], -1)
        b, a = ba.split([Hv, Hv], -1)
    else:
        groups, scalars = qkvz.chunk(Hk, -1), ba.chunk(Hk, -1)
        rows = zip(*(each.split([dk, dk, r * dv, r * dv], -1) for each in groups), strict=True)
        q, k, v, z = (torch.cat(parts, -1) for parts in rows)
        b, a = (torch.cat(parts, -1) for parts in zip(*(each.split([r, r], -1) for each in scalars), strict=True))
    heads = [q.unflatten(-1, (Hk, dk)), k.unflatten(-1, (Hk, dk)), v.unflatten(-1, (Hv, dv)), z.unflatten(-1, (Hv, dv))]
    return [*heads, b, a]


def _sequence(made: GatedDeltaNet, p: dict[str, Tensor], x: Tensor) -> Tensor:
    """One sequence (T, D)."""
    (Hk, Hv), dk, dv = made.heads, made.head_k_dim, made.head_v_dim
    q, k, v, z, b, a = _parts(made, x @ p["in_proj_qkvz.weight"].mT, x @ p["in_proj_ba.weight"].mT)
    mixed = torch.cat([q.flatten(1), k.flatten(1), v.flatten(1)], -1)
    padded = torch.cat([mixed.new_zeros(3, mixed.shape[1]), mixed])
    y = p.get("conv1d.bias", mixed.new_zeros(mixed.shape[1]))
    for tap in range(4):
        y = y + p["conv1d.weight"][:, 0, tap] * padded[tap : tap + x.shape[0]]
    q, k, v = (y * torch.sigmoid(y)).split([Hk * dk, Hk * dk, Hv * dv], -1)
    q, k, v = q.unflatten(-1, (Hk, dk)), k.unflatten(-1, (Hk, dk)), v.unflatten(-1, (Hv, dv))
    q, k = (h / torch.sqrt((h * h).sum(-1, keepdim=True) + 1e-6) for h in (q, k))
    q, k = (h.repeat_interleave(Hv // Hk, 1) for h in (q, k))
    beta = torch.sigmoid(b) * (2 if made.allow_negative_eigenvalues else 1)
    decay = torch.exp(-torch.exp(p["A_log"]) * torch.log1p(torch.exp(a + p["dt_bias"])))
    S, rows = x.new_zeros(Hv, dv, dk), []
    for t in range(x.shape[0]):
        S = decay[t, :, None, None] * S
        error = v[t] - torch.einsum("hvk,hk->hv", S, k[t])
        S = S + torch.einsum("hv,hk->hvk", beta[t, :, None] * error, k[t])
        rows.append(torch.einsum("hvk,hk->hv", S, q[t]) * dk**-0.5)
    o = torch.stack(rows) if rows else v
    o = o / torch.sqrt((o * o).mean(-1, keepdim=True) + made.norm_eps) * p["norm.weight"]
    return (o * z * torch.sigmoid(z)).flatten(1) @ p["out_proj.weight"].mT


def oracle(made: GatedDeltaNet, x: Tensor, lengths: list[int] | None = None) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The result, and its inputs: x and the parameters in fp64 on the CPU, which require gradients. `lengths`: of packed
    sequences; tokens after them are of no sequence."""
    wide = x.detach().cpu().double().requires_grad_()
    p = {name: y.detach().cpu().double().requires_grad_() for name, y in made.named_parameters()}
    if lengths is None:
        return torch.stack([_sequence(made, p, row) for row in wide]), wide, p
    rows = wide[0].split([*lengths, wide.shape[1] - sum(lengths)])
    return torch.cat([*(_sequence(made, p, row) for row in rows[:-1]), torch.zeros_like(rows[-1])])[None], wide, p


def gradients(made: GatedDeltaNet, x: Tensor, grad: Tensor, **options: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The layer's result, and gradients by name, "x" among them."""
    leaf = x.detach().requires_grad_()
    named = {"x": leaf, **dict(made.named_parameters())}
    y = made(leaf, **options)
    found = torch.autograd.grad(y, list(named.values()), grad.to(y))
    for gradient, like in zip(found, named.values(), strict=True):
        assert gradient.dtype == like.dtype and gradient.shape == like.shape
    return y.detach(), dict(zip(named, found, strict=True))


def check(made: GatedDeltaNet, x: Tensor, seed: int, lengths: list[int] | None = None, bound: float | None = None) -> None:
    """Compares result and gradients with the definition."""
    options = {} if lengths is None else {"cu_seqlens": torch.tensor([0, *lengths], device=x.device).cumsum(0)}
    expected, wide, p = oracle(made, x, lengths)
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    y, found = gradients(made, x, grad, **options)
    wanted = torch.autograd.grad(expected, [wide, *p.values()], grad.to(x.dtype).double())
    bound = bound or BOUND[x.dtype]
    assert rel_rms(y, expected) < bound
    for (name, mine), theirs in zip(found.items(), wanted, strict=True):
        # A sum over tokens of terms of both signs may be a fraction of their size.
        assert rel_rms(mine, theirs) < bound * (3 if name in ("A_log", "dt_bias") else 1), name
