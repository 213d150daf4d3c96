"""gdn_cuda.nn.S6 and Mamba on CPU tensors: the block and its scan against their definitions in fp64; steps, packing, errors."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import mamba_block as literal
import pytest
import torch
import torch.nn.functional as F
from helpers import rel_rms
from torch import Tensor

from gdn_cuda.nn import S6, Mamba, mamba

EVERY_DISCRETIZATION = pytest.mark.parametrize("discretization", mamba.DISCRETIZATIONS)
SHAPES: dict[str, dict[str, Any]] = {
    "usual": {},
    "biases": {"bias": True, "dt_rank": 3, "d_state": 7},
    "short": {"d_conv": 1, "conv_bias": False, "d_state": 1, "expand": 1},
}
EVERY_SHAPE = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
BATCH, L, WIDTH = 2, 11, 6


def make(seed: int, dtype: torch.dtype = torch.float64, **options: Any) -> Mamba:
    torch.manual_seed(seed)
    layer = Mamba(WIDTH, **options).to(dtype)
    with torch.no_grad():
        layer.dt_proj.bias.add_(2)  # δ about 0.1, so that states change within a few tokens
        layer.D.normal_()
    return layer


def draw(rng: torch.Generator, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.float64).to(dtype)


@EVERY_SHAPE
@EVERY_DISCRETIZATION
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_a_block_equals_its_definition(
    shape: dict[str, Any], discretization: str, dtype: torch.dtype, bound: float, seed: int, rng: torch.Generator
) -> None:
    layer, u = make(seed, dtype, discretization=discretization, **shape), draw(rng, BATCH, L, WIDTH, dtype=dtype)
    y, state = layer(u, return_last_state=True)
    expected, last = literal.block(layer, u)
    assert y.dtype == dtype and state.ssm.dtype == dtype
    assert rel_rms(y, expected) < bound
    assert rel_rms(state.ssm, last) < bound
    assert torch.equal(layer(u), y)


@EVERY_SHAPE
def test_gradients(shape: dict[str, Any], seed: int, rng: torch.Generator) -> None:
    layer, u = make(seed, **shape), draw(rng, BATCH, L, WIDTH).requires_grad_()
    leaves, weights = [u, *layer.parameters()], draw(rng, BATCH, L, WIDTH)

    def gradients(y: Tensor, last: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad((y * weights).sum() + last.square().sum(), leaves)

    y, state = layer(u, return_last_state=True)
    for ours, expected in zip(gradients(y, state.ssm), gradients(*literal.block(layer, u)), strict=True):
        assert rel_rms(ours, expected) < 1e-11


def test_gradients_flow_from_a_last_state_through_the_next_call(seed: int, rng: torch.Generator) -> None:
    layer, u, weights = make(seed), draw(rng, BATCH, L, WIDTH).requires_grad_(), draw(rng, BATCH, L, WIDTH)
    first, state = layer(u[:, :4], return_last_state=True)
    whole = torch.cat([first, layer(u[:, 4:], state)], 1)
    leaves = [u, *layer.parameters()]
    ours, expected = (torch.autograd.grad((y * weights).sum(), leaves) for y in (whole, layer(u)))
    assert rel_rms(whole, layer(u)) < 1e-13
    for a, b in zip(ours, expected, strict=True):
        assert rel_rms(a, b) < 1e-11


@EVERY_SHAPE
@EVERY_DISCRETIZATION
def test_steps_equal_forward(shape: dict[str, Any], discretization: str, seed: int, rng: torch.Generator) -> None:
    layer = make(seed, torch.float32, discretization=discretization, **shape)
    u = draw(rng, BATCH, L, WIDTH, dtype=torch.float32)
    y, last = layer(u, return_last_state=True)
    state = layer.default_state(BATCH)
    for t in range(L):
        step, same = layer.step(u[:, t], state)
        assert same is state
        assert rel_rms(step, y[:, t]) < 1e-5
    for a, b in zip(state, last, strict=True):
        assert rel_rms(a, b) < 1e-5


def test_a_prompt_then_steps_in_bf16(seed: int, rng: torch.Generator) -> None:
    layer, u = make(seed, torch.bfloat16), draw(rng, BATCH, L, WIDTH, dtype=torch.bfloat16)
    expected, _ = literal.block(layer, u)
    y, state = layer(u[:, :-1], return_last_state=True)
    assert y.dtype == torch.bfloat16 and state.conv.dtype == torch.bfloat16 and state.ssm.dtype == torch.float32
    last, _ = layer.step(u[:, -1], state)
    assert rel_rms(torch.cat([y, last[:, None]], 1), expected) < 2e-2  # a handful of roundings to 8 bits


@pytest.mark.parametrize("length", [0, 1])
def test_short_inputs(length: int, seed: int, rng: torch.Generator) -> None:
    layer, u = make(seed), draw(rng, BATCH, 5, WIDTH)
    _, state = layer(u, return_last_state=True)
    y, after = layer(u[:, :length], state, return_last_state=True)
    assert y.shape == (BATCH, length, WIDTH) and after.conv.shape == state.conv.shape
    if length == 0:
        assert all(torch.equal(a, b) for a, b in zip(after, state, strict=True))


def test_packed_sequences_equal_separate_calls(seed: int, rng: torch.Generator) -> None:
    layer, u = make(seed), draw(rng, 1, L, WIDTH)
    offsets = [0, 2, 2, 7, 8, L]
    packed = layer(u, cu_seqlens=torch.tensor(offsets))
    alone = torch.cat([layer(u[:, a:b]) for a, b in pairwise(offsets)], 1)
    assert rel_rms(packed, alone) < 1e-13
    u[0, 1] = torch.nan
    poisoned = layer(u, cu_seqlens=torch.tensor(offsets))
    assert poisoned[:, 1].isnan().all() and torch.equal(poisoned[:, 2:], packed[:, 2:])


@EVERY_DISCRETIZATION
def test_s6_alone(discretization: str, seed: int, rng: torch.Generator) -> None:
    torch.manual_seed(seed)
    layer = S6(WIDTH, d_state=5, discretization=discretization).double()
    u, z, start = draw(rng, BATCH, L, WIDTH), draw(rng, BATCH, L, WIDTH), draw(rng, BATCH, WIDTH, 5)
    y, state = layer(u, start, z=z, return_last_state=True)
    expected, last = literal.selective(layer, u, z, start)
    assert rel_rms(y, expected) < 1e-13 and rel_rms(state, last) < 1e-13
    layer, start = layer.float(), start.float()
    for t in range(L):
        step, start = layer.step(u[:, t].float(), start, z[:, t].float())
        assert rel_rms(step, y[:, t]) < 1e-5
    assert rel_rms(start, state) < 1e-5
    assert not layer.default_state(3).any() and layer.default_state(3).shape == (3, WIDTH, 5)


def test_the_scan_reads_and_writes_the_layout_of_linear_layers(
    monkeypatch: pytest.MonkeyPatch, seed: int, rng: torch.Generator
) -> None:
    layer, u = make(seed), draw(rng, BATCH, L, WIDTH)
    seen: dict[str, Tensor] = {}

    def watched(
        u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor, *rest: Any, **named: Any
    ) -> Any:
        out = watched_scan(u, delta, A, B, C, D, z, *rest, **named)
        seen.update(u=u, delta=delta, z=z, out=out, B=B, C=C)
        return out

    watched_scan = S6.scan
    monkeypatch.setattr(S6, "scan", staticmethod(watched))
    layer(u)
    assert all(x.stride(1) == 1 for x in seen.values()), {name: x.stride() for name, x in seen.items()}
    assert seen["B"].untyped_storage().data_ptr() == seen["C"].untyped_storage().data_ptr()  # both are views of x_proj's output


def test_initial_values_are_those_of_the_paper() -> None:
    torch.manual_seed(0)
    layer = Mamba(256, dt_min=0.01, dt_max=0.2, dt_init_floor=0.02)
    assert torch.allclose(-layer.A_log.exp(), -torch.arange(1.0, 17).expand(512, 16)) and bool((layer.D == 1).all())
    dt = F.softplus(layer.dt_proj.bias)
    assert dt.min().item() > 0.02 - 1e-6 and dt.max().item() < 0.2 + 1e-6
    above = dt[dt > 0.0201]  # log-uniform: as many below as above the geometric mean
    assert abs((above < (0.02 * 0.2) ** 0.5).double().mean().item() - 0.5) < 0.1
    bound = 16**-0.5
    assert layer.dt_rank == 16 and bound * 0.99 < layer.dt_proj.weight.abs().max() <= bound
    assert layer.A_log._no_weight_decay and layer.D._no_weight_decay and layer.dt_proj.bias._no_reinit


def test_parameters_have_the_names_and_shapes_of_mamba_ssm() -> None:
    names = {
        "A_log": (32, 16), "D": (32,), "in_proj.weight": (64, 16), "conv1d.weight": (32, 1, 4), "conv1d.bias": (32,),
        "x_proj.weight": (33, 32), "dt_proj.weight": (32, 1), "dt_proj.bias": (32,), "out_proj.weight": (16, 32),
    }  # fmt: skip
    assert {name: tuple(x.shape) for name, x in Mamba(16).state_dict().items()} == names
    half = Mamba(16, dtype=torch.bfloat16)
    assert half.A_log.dtype == half.D.dtype == torch.float32 and half.in_proj.weight.dtype == torch.bfloat16


def test_torch_compile(seed: int, rng: torch.Generator) -> None:
    layer, u = make(seed, torch.float32), draw(rng, BATCH, L, WIDTH, dtype=torch.float32)
    parameters = list(layer.parameters())
    loss = lambda: layer(u).square().sum()  # noqa: E731
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for ours, theirs in zip(*(torch.autograd.grad(f(), parameters) for f in (compiled, loss)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_autocast(seed: int, rng: torch.Generator) -> None:
    layer, u = make(seed, torch.float32), draw(rng, BATCH, L, WIDTH, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(u)
        alone = S6(WIDTH)(u)
    assert y.dtype == alone.dtype == torch.bfloat16
    assert rel_rms(y, layer(u)) < 3e-2


BAD: dict[str, tuple[Any, str]] = {
    "discretization": (
        lambda layer: Mamba(8, discretization="rglru"),
        r"discretization: expected one of \('mamba', 'zoh', 'bilinear', 'dirac'\), got 'rglru'",
    ),
    "u": (lambda layer: layer(torch.zeros(2, 5, 7)), r"u: expected real numbers \(B, L, 6\), got torch.float32 \(2, 5, 7\)"),
    "step": (
        lambda layer: layer.step(torch.zeros(2, 1, 6), layer.default_state(2)),
        r"u: expected real numbers \(B, 6\), got torch.float32 \(2, 1, 6\)",
    ),
    "packed": (
        lambda layer: layer(torch.zeros(1, 5, 6), cu_seqlens=torch.tensor([0, 5]), return_last_state=True),
        r"cu_seqlens: expected None where states are given or returned, got a tensor",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_name_argument_expected_and_got(name: str, seed: int) -> None:
    call, message = BAD[name]
    layer = make(seed, torch.float32)
    with pytest.raises(ValueError, match=f"^Mamba: {message}$"):
        call(layer)
