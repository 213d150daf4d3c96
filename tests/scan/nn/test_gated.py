"""RGLRU and S7: initial parameters, steps and two calls against a sequence, gradients, errors."""

from __future__ import annotations

import pytest
import torch
from helpers import rel_rms
from torch import nn

from gdn_cuda.nn import RGLRU, S7


@pytest.fixture(params=["RGLRU", "S7"])
def layer(request: pytest.FixtureRequest, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return (RGLRU(6, 2) if request.param == "RGLRU" else S7(6, 3)).double()


def test_steps_equal_a_sequence(layer: nn.Module, rng: torch.Generator) -> None:
    u = torch.randn(2, 7, 6, generator=rng, dtype=torch.float64)
    y, last = layer(u, return_last_state=True)
    assert torch.equal(layer(u), y)
    state, steps = None, []
    for t in range(7):
        out, state = layer.step(u[:, t], state)
        steps.append(out)
    assert rel_rms(torch.stack(steps, 1), y) < 1e-6 and rel_rms(state, last) < 1e-6


def test_a_sequence_in_two_calls_equals_one_call(layer: nn.Module, rng: torch.Generator) -> None:
    u = torch.randn(2, 7, 6, generator=rng, dtype=torch.float64)
    y, last = layer(u, return_last_state=True)
    first, state = layer(u[:, :3], return_last_state=True)
    second, end = layer(u[:, 3:], state, return_last_state=True)
    assert rel_rms(torch.cat([first, second], 1), y) < 1e-6 and rel_rms(end, last) < 1e-6
    _, same = layer(u[:, :0], state, return_last_state=True)
    assert torch.equal(same, state)
    start = layer.default_state(2)
    assert start.shape == last.shape and start.dtype == last.dtype and not start.any()
    assert not layer(u[:, :0], start, return_last_state=True)[1].any()


def test_every_parameter_gets_a_gradient(layer: nn.Module, rng: torch.Generator) -> None:
    y, last = layer(torch.randn(2, 7, 6, generator=rng, dtype=torch.float64), return_last_state=True)
    (y.square().sum() + last.sum()).backward()
    assert all(p.grad is not None and bool(p.grad.any()) and bool(p.grad.isfinite().all()) for p in layer.parameters())


def test_initial_decays_are_those_of_the_papers() -> None:
    a = torch.sigmoid(RGLRU(4096, 4).Lambda.detach().double()) ** 8
    decay = 1 - 1 / (S7(2, 4096).bias.detach()[:4096] ** 2 + 0.5)
    for x in (a, decay):
        assert 0.8999 < x.min() < 0.902 and 0.997 < x.max() < 0.9991
        assert abs(x.mean().item() - 0.9495) < 0.003  # the mean of a uniform distribution


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rglrus_default_state_equals_none(dtype: torch.dtype, rng: torch.Generator) -> None:
    """Alone, with continued sequences, with resets, and after calls without tokens. Other zeros continue a sequence."""
    layer, u = RGLRU(6, 2, dtype=dtype), torch.randn(3, 7, 6, generator=rng).to(dtype)
    expected, end = layer(u, return_last_state=True)
    start = layer.default_state(3)
    for begun in (start, layer(u[:, :0], return_last_state=True)[1], layer(u[:, :0], start, return_last_state=True)[1]):
        y, last = layer(u, begun, return_last_state=True)
        assert torch.equal(y, expected) and torch.equal(last, end)
    assert torch.equal(layer.step(u[:, 0], start)[0], layer.step(u[:, 0])[0])
    _, continued = layer(u, return_last_state=True)
    mixed = torch.stack([continued[0], start[1], continued[2]])
    reset = torch.arange(7).expand(3, 7) == 4
    y = layer(u, mixed, reset=reset)
    assert torch.equal(y[1], layer(u, reset=reset)[1]) and torch.equal(y[[0, 2]], layer(u, continued, reset=reset)[[0, 2]])
    assert not torch.equal(y[0, :4], layer(u, reset=reset)[0, :4])
    silent = torch.cat([-torch.zeros_like(u[:, :2]), u], 1)
    _, zeros = layer(silent[:, :2], return_last_state=True)
    assert not zeros.any() and not torch.equal(layer(u, zeros), expected)
    assert rel_rms(layer(u, zeros), layer(silent)[:, 2:]) < {torch.bfloat16: 2e-2}.get(dtype, 1e-6)


def test_decays_of_s7_near_one_survive_16_bits(rng: torch.Generator) -> None:
    """0.999 is 1 in bf16: steps and continued sequences decay as a sequence does."""
    layer, u = S7(4, 3, dtype=torch.bfloat16), torch.zeros(1, 600, 4, dtype=torch.bfloat16)
    start = torch.ones(1, 3)
    decay = 1 - 1 / (layer.bias[:3].double() ** 2 + 0.5)
    state = start
    for t in range(600):
        _, state = layer.step(u[:, t], state)
    assert rel_rms(state, decay[None] ** 600) < 1e-3
    _, last = layer(u[:, :300], start, return_last_state=True)
    _, last = layer(u[:, 300:], last, return_last_state=True)
    assert rel_rms(last, decay[None] ** 600) < 1e-5


def test_a_reset_begins_a_sequence(rng: torch.Generator) -> None:
    layer, u = RGLRU(6, 2), torch.randn(1, 7, 6, generator=rng)
    y, last = layer(u, reset=torch.arange(7)[None] == 3, return_last_state=True)
    alone, end = layer(u[:, 3:], return_last_state=True)
    assert rel_rms(y[:, 3:], alone) < 1e-6 and rel_rms(last, end) < 1e-6  # products of other shapes round differently


def test_errors_name_argument_expected_and_got() -> None:
    with pytest.raises(ValueError, match=r"^RGLRU: num_blocks: expected a divisor of width=6, got 4$"):
        RGLRU(6, 4)
    with pytest.raises(ValueError, match=r"^RGLRU: u: expected \(B, L, width=6\), got \(2, 6\)$"):
        RGLRU(6, 2)(torch.ones(2, 6))
    with pytest.raises(ValueError, match=r"^RGLRU: u: expected \(B, width=6\), got \(2, 1, 6\)$"):
        RGLRU(6, 2).step(torch.ones(2, 1, 6))
    with pytest.raises(
        ValueError, match=r"^RGLRU: state: expected real numbers \(B, width\) = \(2, 6\), got torch.float32 \(3, 6\)"
    ):
        RGLRU(6, 2)(torch.ones(2, 1, 6), torch.ones(3, 6))
    with pytest.raises(ValueError, match=r"^S7: d_model, d_state: expected positive sizes, got 0 and 3$"):
        S7(0, 3)
    with pytest.raises(ValueError, match=r"^S7: u: expected \(batch, L, d_model=2\), got \(2, 3\)$"):
        S7(2, 3)(torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"^S7: u: expected \(batch, d_model=2\), got \(3,\)$"):
        S7(2, 3).step(torch.ones(3))
