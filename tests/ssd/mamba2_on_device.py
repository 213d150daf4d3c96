"""gdn_cuda.nn.Mamba2 by its kernels: against the definition in fp64, with gradients and steps. Views of the projection begin at
multiples of 16 bytes or not."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import mamba2_layer as literal
import pytest
import torch
from devices import Device
from helpers import rel_rms

from gdn_cuda.nn import Mamba2, mamba2

SHAPES: dict[str, dict[str, Any]] = {
    "usual": {"d_model": 64, "headdim": 64, "d_state": 64},
    "three heads": {"d_model": 96, "headdim": 64, "d_state": 64, "rmsnorm": False, "D_has_hdim": True},
}


def make(device: Device, seed: int, **options: Any) -> tuple[Mamba2, Mamba2]:
    """On the device in bf16, and in fp64 on the CPU."""
    torch.manual_seed(seed)
    exact = Mamba2(**options).to(torch.bfloat16)
    with torch.no_grad():
        exact.dt_bias.add_(2)
    return copy.deepcopy(exact).to(device.name), exact.double()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_layer_and_its_gradients(shape: dict[str, Any], device: Device, seed: int) -> None:
    ours, exact = make(device, seed, **shape)
    T = device.size(70, 300)
    u, weights = torch.randn(2, T, shape["d_model"]).bfloat16(), torch.randn(2, T, shape["d_model"]).bfloat16()
    leaf, same = u.to(device.name).requires_grad_(), u.double().requires_grad_()
    with device.kernels() as launched:
        y = ours(leaf)
        found = torch.autograd.grad((y * weights.to(device.name)).sum(), [leaf, *ours.parameters()])
    expected, _ = literal.layer(exact, same)
    wanted = torch.autograd.grad((expected * weights).sum(), [same, *exact.parameters()])
    if device.emulate:
        assert {"ssd/prefill", "ssd/backward"} <= {name.partition("{")[0] for name in launched()}
    assert rel_rms(y, expected) < 2e-2
    for a, b in zip(found, wanted, strict=True):
        assert rel_rms(a, b) < 4e-2


@torch.no_grad()
def test_packed_prompts_and_steps(device: Device, seed: int) -> None:
    ours, exact = make(device, seed, **SHAPES["usual"])
    offsets = [0, 20, 20, 70]
    u, tokens = torch.randn(1, 70, 64).bfloat16(), torch.randn(3, 64).bfloat16()
    with device.kernels():
        y, state = ours(u.to(device.name), cu_seqlens=torch.tensor(offsets, device=device.name), return_last_state=True)
        step, _ = ours.step(tokens.to(device.name), state)
    for n, (start, end) in enumerate(pairwise(offsets)):
        expected, last = literal.sequence(exact, torch.cat([u[0, start:end], tokens[n : n + 1]]))
        assert start == end or rel_rms(y[0, start:end], expected[:-1]) < 2e-2
        assert rel_rms(step[n], expected[-1]) < 2e-2 and rel_rms(state.ssm[n], last) < 2e-2


@torch.no_grad()
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_steps_in_one_launch(shape: dict[str, Any], device: Device, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mamba2, "_FEWEST_GROUPS", 1)
    monkeypatch.setattr(mamba2, "_MOST_SEQUENCES", 100)
    ours, exact = make(device, seed, **shape)
    batch = device.size(8, 70)
    tokens, state = torch.randn(batch, 3, shape["d_model"]).bfloat16(), ours.default_state(batch)
    with device.kernels() as launched:
        steps = [ours.step(tokens[:, t].to(device.name), state)[0] for t in range(3)]
    if device.emulate:
        assert "layers/mamba2_decode_layer" in {name.partition("{")[0] for name in launched()}
    for n in (0, batch - 1):
        expected, last = literal.sequence(exact, tokens[n])
        assert rel_rms(torch.stack([y[n] for y in steps]), expected) < 2e-2 and rel_rms(state.ssm[n], last) < 2e-2
