"""conv_split_l2norm by its definition in fp64, token by token, and inputs for its tests on either device."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import conv_split_l2norm

GATES = ("a", "b", "A_log", "dt_bias")
BOUND = {torch.float64: 1e-12, torch.float32: 3e-6, torch.bfloat16: 3e-3, torch.float16: 4e-4}
# Gradients include the rounding of the convolution's output.
BACKWARD_BOUND = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}


@dataclass
class Inputs:
    x: Tensor
    weight: Tensor
    bias: Tensor | None
    heads: dict[str, int]
    options: dict[str, Any] = field(default_factory=dict)

    def call(self) -> tuple[Tensor, ...]:
        options: dict[str, Any] = {**self.heads, **self.options}
        return conv_split_l2norm(self.x, self.weight, self.bias, **options)


def inputs(
    B: int,
    L: int,
    heads: tuple[int, int, int, int],
    W: int,
    seed: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    channels_last: bool = True,
    bias: bool = True,
    packed: list[int] | None = None,
    **options: Any,
) -> Inputs:
    """heads: key_heads, value_heads, dk, dv."""
    named = dict(zip(("key_heads", "value_heads", "dk", "dv"), heads, strict=True))
    D = 2 * heads[0] * heads[2] + heads[1] * heads[3]
    rng = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x = drawn(B, L, D).to(device, dtype).mT
    if packed is not None:
        options["cu_seqlens"] = torch.tensor(packed, device=device)
    return Inputs(
        x if channels_last else x.contiguous(),
        drawn(D, W).to(device, wide),
        drawn(D).to(device, wide) if bias else None,
        named,
        options,
    )


def with_pool(given: Inputs, slots: list[int], count: int, seed: int, fresh: list[int], width: int = 0) -> Inputs:
    """States in a pool, channels last, with a slot per sequence; `fresh` sequences do not continue from their slot."""
    D, W = given.weight.shape
    states = torch.randn(count, W - 1 + width, D, generator=torch.Generator().manual_seed(seed + 9)).to(given.x.device)
    continues = torch.ones(len(slots), dtype=torch.bool)
    continues[fresh] = False
    given.options |= {
        "conv_state": states.mT,
        "state_indices": torch.tensor(slots, device=given.x.device),
        "has_initial_state": continues.to(given.x.device),
    }
    return given


def with_states(given: Inputs, seed: int, *, dtype: torch.dtype | None = None) -> Inputs:
    """A copy with initial states, channels last, of all sequences."""
    D, W = given.weight.shape
    states = torch.randn(
        len(_sequences(given)), W - 1, D, generator=torch.Generator().manual_seed(seed + 7), dtype=torch.float64
    )
    return replace(given, options=given.options | {"initial_states": states.to(given.x.device, dtype or given.x.dtype).mT})


def with_gates(given: Inputs, seed: int, *, dtype: torch.dtype | None = None, views: bool = False) -> Inputs:
    """A copy with a, b, A_log and dt_bias as models have them; with `views` a and b are alternating elements of one tensor."""
    B, _, L = given.x.shape
    heads, device = given.heads["value_heads"], given.x.device
    rng = torch.Generator().manual_seed(seed + 11)
    raw = (torch.randn(B, L, heads, 2, generator=rng, dtype=torch.float64) * 3).to(device, dtype or given.x.dtype)
    a, b = raw.unbind(-1)
    wide = torch.float64 if raw.dtype == torch.float64 else torch.float32
    gates = {
        "a": a if views else a.contiguous(),
        "b": b if views else b.contiguous(),
        "A_log": (torch.rand(heads, generator=rng, dtype=torch.float64) * 16).log().to(device, wide),
        "dt_bias": torch.randn(heads, generator=rng, dtype=torch.float64).to(device, wide),
    }
    return replace(given, options=given.options | gates)


def gates_oracle(x: Inputs) -> tuple[Tensor, Tensor]:
    """beta and gate in fp64 on the CPU, differentiable."""
    a, b, A_log, dt_bias = (x.options[name].cpu().double() for name in GATES)
    return 1 / (1 + torch.exp(-b)), -torch.exp(A_log) * torch.log1p(torch.exp(a + dt_bias))


def _sequences(x: Inputs) -> list[tuple[int, int, int]]:
    """(batch, first token, end)."""
    offsets = x.options.get("cu_seqlens")
    B, _, L = x.x.shape
    if offsets is None:
        return [(b, 0, L) for b in range(B)]
    found = offsets.tolist()
    return [(0, found[i], found[i + 1]) for i in range(len(found) - 1)]


def oracle(x: Inputs) -> tuple[list[Tensor], Tensor | None]:
    """q, k, v in fp64 on the CPU, differentiable, and the pool after the call."""
    eps, l2norm = x.options.get("eps", 1e-6), x.options.get("l2norm", True)
    rows, weight = x.x.cpu().double(), x.weight.cpu().double()
    B, D, L = rows.shape
    W = weight.shape[1]
    bias = torch.zeros(D, dtype=torch.float64) if x.bias is None else x.bias.cpu().double()
    y: dict[tuple[int, int], Tensor] = {}
    pool = x.options.get("conv_state")
    after = None if pool is None else pool.cpu().double().clone()
    for n, (b, first, end) in enumerate(_sequences(x)):
        slots, continues = x.options.get("state_indices"), x.options.get("has_initial_state")
        slot = n if slots is None else int(slots[n])
        initial = x.options.get("initial_states")
        state = torch.zeros(D, W - 1, dtype=torch.float64) if initial is None else initial[n].cpu().double()
        if after is not None:
            if slot < 0:
                continue
            state = torch.zeros_like(after[slot])
            if continues is None or bool(continues[n]):
                state = after[slot].clone()
        seen = torch.cat([state, rows[b, :, first:end]], 1)
        before = state.shape[1]
        for t in range(end - first):
            z = bias
            for k in range(W):
                z = z + weight[:, k] * seen[:, before + t - (W - 1) + k]
            y[b, first + t] = z * torch.sigmoid(z)
        if after is not None:
            after[slot] = seen[:, seen.shape[1] - before :].to(pool.dtype).double()
    zeros = torch.zeros(D, dtype=torch.float64)
    all_y = torch.stack([torch.stack([y.get((b, t), zeros) for t in range(L)]) for b in range(B)]) if B * L else rows.mT
    Hk, Hv, dk, dv = x.heads.values()
    found = []
    for output, (heads, size) in enumerate(((Hk, dk), (Hk, dk), (Hv, dv))):
        start = output * Hk * dk
        each = [all_y[..., start + h * size : start + (h + 1) * size] for h in range(heads)]
        if output < 2 and l2norm:
            each = [h / torch.sqrt((h * h).sum(-1, keepdim=True) + eps) for h in each]
        found.append(torch.stack(each, 2) if heads else all_y.new_zeros(B, L, 0, size))
    return found, after


def check(x: Inputs) -> None:
    """Checks the outputs and the pool."""
    expected, pool = oracle(x)
    found = x.call()
    if "a" in x.options:
        *found, beta, gate = found
        for mine, theirs, like in zip((beta, gate), gates_oracle(x), (x.options["b"], x.options["A_log"]), strict=True):
            assert mine.is_contiguous() and mine.dtype == like.dtype and mine.shape == theirs.shape
            if mine.numel():
                assert rel_rms(mine, theirs) < BOUND[mine.dtype]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.is_contiguous() and mine.dtype == x.x.dtype and mine.shape == theirs.shape
        if mine.numel():
            assert rel_rms(mine, theirs) < BOUND[mine.dtype]
    if pool is not None:
        assert rel_rms(x.options["conv_state"], pool) < 1e-7


def check_gradients(x: Inputs, seed: int) -> None:
    named = [name for name in (*GATES, "initial_states") if name in x.options]
    given = [x.x, x.weight, *([] if x.bias is None else [x.bias])]
    leaves = [y.detach().requires_grad_() for y in (*given, *(x.options[name] for name in named))]
    wide = [y.detach().cpu().double().requires_grad_() for y in leaves]

    def of(y: list[Tensor]) -> Inputs:
        options = x.options | dict(zip(named, y[len(given) :], strict=True))
        return Inputs(y[0], y[1], None if x.bias is None else y[2], x.heads, options)

    found, (expected, _) = of(leaves).call(), oracle(of(wide))
    if "a" in named:
        expected += gates_oracle(of(wide))
    rng = torch.Generator().manual_seed(seed + 5)
    grads = [torch.randn(y.shape, generator=rng, dtype=torch.float64).to(z.dtype) for y, z in zip(expected, found, strict=True)]
    mine = torch.autograd.grad(found, leaves, [g.to(x.x.device) for g in grads])
    others = torch.autograd.grad(expected, wide, [g.double() for g in grads])
    for a, b, like in zip(mine, others, leaves, strict=True):
        assert a.dtype == like.dtype
        assert rel_rms(a, b) < max(BACKWARD_BOUND[x.x.dtype], BACKWARD_BOUND[like.dtype])


# A_log and dt_bias of a head, and the a of its tokens.
_ENDS = (
    (0.5, 0.1, (0.3, torch.inf, -torch.inf, 2.0)),
    (torch.inf, 0.1, (0.3, 30.0, -30.0, 2.0)),
    (-torch.inf, 0.1, (0.3, 30.0, -torch.inf, 2.0)),
    (100.0, 0.0, (-101.0, 5.0, torch.inf, -120.0)),  # exp(A_log) is infinite in fp32, some gates are not
    (0.5, torch.inf, (0.3, 30.0, -30.0, torch.inf)),
    (0.5, -torch.inf, (0.3, 30.0, -30.0, -torch.inf)),
    (3.0, 0.0, (-95.0, -110.0, 3e38, 88.0)),  # softplus is subnormal or 0
)


def check_gates_at_the_ends(seed: int, device: str = "cpu") -> None:
    """Gradients of gates whose factors are infinite or 0: finite, equal to the limit, and zero for a gate of −∞."""
    A_log, dt_bias, a = (torch.tensor(y) for y in zip(*_ENDS, strict=True))
    x = inputs(1, 4, (1, len(_ENDS), 8, 8), 4, seed, device=device)
    grad = torch.randn(1, 4, len(_ENDS), generator=torch.Generator().manual_seed(seed))
    given = {"a": a.mT[None].contiguous(), "b": torch.zeros_like(grad), "A_log": A_log, "dt_bias": dt_bias}
    leaves = {name: y.to(device).requires_grad_() for name, y in given.items() if name != "b"}
    gate = replace(x, options=leaves | {"b": given["b"].to(device)}).call()[4]

    def gradients() -> dict[str, Tensor]:
        return dict(
            zip(leaves, torch.autograd.grad(gate, list(leaves.values()), grad.to(device), retain_graph=True), strict=True)
        )

    found = gradients()

    sum_of_a = (given["a"] + dt_bias).double()
    log_sigmoid = torch.where(sum_of_a < -700, sum_of_a, -torch.log1p(torch.exp(-sum_of_a)))
    is_reset = gate.detach().cpu() == -torch.inf
    assert is_reset.sum() == 1 + 4 + 0 + 2 + 4 + 0 + 1
    by_a = (-grad.double() * torch.exp(A_log.double() + log_sigmoid)).masked_fill(is_reset, 0)
    by_A_log = (grad.double() * gate.detach().cpu().double()).masked_fill(is_reset, 0)
    expected = {"a": by_a, "A_log": by_A_log.sum((0, 1)), "dt_bias": by_a.sum((0, 1))}
    for name, theirs in expected.items():
        torch.testing.assert_close(found[name].cpu().double(), theirs, rtol=1e-4, atol=1e-37, msg=name)

    grad[0, 1, 0] = torch.nan  # propagates, although the gate there is −∞
    assert all(bool(y.isnan().any()) for y in gradients().values())
