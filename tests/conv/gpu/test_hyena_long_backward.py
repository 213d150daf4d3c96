"""The kernels of hyena_long's gradients on the GPU; many channels against few, bits of two calls, memory."""

from __future__ import annotations

from typing import Any

import torch
from helpers import rel_rms
from hyena_cases import gated_inputs, modal_parameters
from hyena_long_backward_on_device import *  # noqa: F403
from hyena_long_gradients import NAMES

from gdn_cuda import hyena_long


def leaves_of(B: int, D: int, L: int, S: int, seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    given = [x.to("cuda", dtype) for x in gated_inputs(B, D, L, seed)]
    given += [x.float().cuda() for x in modal_parameters(D, D, S, seed)]
    return dict(zip(NAMES, (x.requires_grad_() for x in given), strict=True))


def gradients(leaves: dict[str, torch.Tensor], **options: Any) -> tuple[torch.Tensor, ...]:
    y = hyena_long(**leaves, **options)
    weights = torch.cos(torch.arange(y.shape[-1], device="cuda")).to(y.dtype).expand(y.shape).contiguous()
    return torch.autograd.grad(y, list(leaves.values()), weights)


def test_split_and_unsplit_channels_agree(seed: int) -> None:
    """Few channels, each split among warps, and many channels with a warp each."""
    many = leaves_of(1, 1024, 65536, 16, seed, torch.float32)
    few = {name: (x[:, :3] if x.dim() == 3 else x[:3]).detach().requires_grad_() for name, x in many.items()}
    for name, mine, theirs in zip(NAMES, gradients(many), gradients(few), strict=True):
        assert rel_rms(theirs, mine[:, :3] if mine.dim() == 3 else mine[:3]) < 1e-4, name


def test_two_runs_give_the_same_bits(seed: int) -> None:
    for D in (8, 1024):
        leaves = leaves_of(1, D, 8192, 16, seed, torch.bfloat16)
        assert all(torch.equal(x, y) for x, y in zip(gradients(leaves), gradients(leaves), strict=True))


def test_memory_is_that_of_the_gradients() -> None:
    """Apart from them, S values for every 512 tokens of a channel, and at most 4 MiB."""
    D, L, S = 1024, 65536, 16
    leaves = leaves_of(1, D, L, S, 0, torch.bfloat16)
    y = hyena_long(**leaves)
    grad = torch.ones_like(y)
    torch.autograd.grad(y, list(leaves.values()), grad, retain_graph=True)  # compiles
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = torch.autograd.grad(y, list(leaves.values()), grad)
    state_bytes = 4 * D * S * (L // 512)
    assert torch.cuda.max_memory_allocated() - before < sum(x.nbytes for x in found) + state_bytes + (4 << 20)
