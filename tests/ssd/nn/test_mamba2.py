"""gdn_cuda.nn.Mamba2 on CPU tensors: against its definition in fp64; parameters, packed sequences, steps, memory, errors."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import mamba2_layer as literal
import pytest
import torch
import torch.nn.functional as F
from helpers import rel_rms
from torch import Tensor

from gdn_cuda.nn import Mamba2

WIDTH, BATCH, L = 6, 2, 11
SHAPES: dict[str, dict[str, Any]] = {
    "usual": {},
    "norm first": {"norm_before_gate": True, "ngroups": 3, "d_conv": 2, "bias": True},
    "no norm": {"rmsnorm": False, "D_has_hdim": True, "conv_bias": False},
    "MLP": {"d_ssm": 8, "ngroups": 2, "dt_limit": (0.05, 0.3), "expand": 3},
    "MLP, no norm": {"d_ssm": 4, "rmsnorm": False, "d_conv": 1},
}
EVERY_SHAPE = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())


def make(seed: int, dtype: torch.dtype = torch.float64, **options: Any) -> Mamba2:
    torch.manual_seed(seed)
    layer = Mamba2(WIDTH, **{"d_state": 5, "headdim": 4, **options}).to(dtype)
    with torch.no_grad():
        layer.dt_bias.add_(2)  # δ about 0.1, so that states change within a few tokens
        layer.D.normal_()
    return layer


def draw(rng: torch.Generator, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.float64).to(dtype)


@EVERY_SHAPE
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_a_layer_equals_its_definition(
    shape: dict[str, Any], dtype: torch.dtype, bound: float, seed: int, rng: torch.Generator
) -> None:
    layer, u = make(seed, dtype, **shape), draw(rng, BATCH, L, WIDTH, dtype=dtype)
    y, state = layer(u, return_last_state=True)
    expected, last = literal.layer(layer, u)
    assert y.dtype == dtype and state.ssm.dtype == dtype
    assert rel_rms(y, expected) < bound and rel_rms(state.ssm, last) < bound
    assert rel_rms(layer(u), expected) < bound


@EVERY_SHAPE
def test_gradients(shape: dict[str, Any], seed: int, rng: torch.Generator) -> None:
    """With a last state, and without states, where the convolution is computed again in backward."""
    layer, u = make(seed, **shape), draw(rng, BATCH, L, WIDTH).requires_grad_()
    leaves, weights = [u, *layer.parameters()], draw(rng, BATCH, L, WIDTH)
    y, state = layer(u, return_last_state=True)
    expected, last = literal.layer(layer, u)
    ours = torch.autograd.grad((y * weights).sum() + state.ssm.square().sum(), leaves)
    theirs = torch.autograd.grad((expected * weights).sum() + last.square().sum(), leaves, retain_graph=True)
    for a, b in zip(ours, theirs, strict=True):
        assert rel_rms(a, b) < 1e-11
    theirs = torch.autograd.grad((expected * weights).sum(), leaves)
    for a, b in zip(torch.autograd.grad((layer(u) * weights).sum(), leaves), theirs, strict=True):
        assert rel_rms(a, b) < 1e-11


@pytest.mark.parametrize("frozen", ["u", "conv1d.weight", "A_log", "in_proj.weight"])
def test_gradients_of_some_parameters(frozen: str, seed: int, rng: torch.Generator) -> None:
    layer, u = make(seed), draw(rng, BATCH, L, WIDTH).requires_grad_()
    named = {"u": u} | dict(layer.named_parameters())
    expected = dict(zip(named, torch.autograd.grad(layer(u).square().sum(), list(named.values())), strict=True))
    named.pop(frozen).requires_grad_(False)
    found = torch.autograd.grad(layer(u).square().sum(), list(named.values()))
    for name, gradient in zip(named, found, strict=True):
        assert torch.equal(gradient, expected[name]), name


def test_a_graph_without_states_keeps_no_output_of_the_convolution(seed: int, rng: torch.Generator) -> None:
    layer, u = make(seed, torch.float32), draw(rng, BATCH, 64, WIDTH, dtype=torch.float32)

    def kept(**options: Any) -> int:
        storages: dict[int, int] = {}

        def pack(x: Tensor) -> Tensor:
            storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            result = layer(u, **options)
        (result if isinstance(result, Tensor) else result[0]).sum().backward()
        return sum(storages.values())

    convolved = BATCH * 64 * layer.conv_dim * 4
    assert kept() <= kept(return_last_state=True) - convolved


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
def test_steps_equal_forward(shape: dict[str, Any], seed: int, rng: torch.Generator) -> None:
    layer = make(seed, torch.float32, **shape)
    u = draw(rng, BATCH, L, WIDTH, dtype=torch.float32)
    y, last = layer(u, return_last_state=True)
    state = layer.default_state(BATCH)
    for t in range(L):
        step, same = layer.step(u[:, t], state)
        assert same is state
        assert rel_rms(step, y[:, t]) < 1e-5
    for a, b in zip(state, last, strict=True):
        assert a.numel() == 0 or rel_rms(a, b) < 1e-5


def test_a_prompt_then_steps_in_bf16(seed: int, rng: torch.Generator) -> None:
    layer, u = make(seed, torch.bfloat16), draw(rng, BATCH, L, WIDTH, dtype=torch.bfloat16)
    expected, _ = literal.layer(layer, u)
    y, state = layer(u[:, :-1], return_last_state=True)
    assert y.dtype == torch.bfloat16 and state.conv.dtype == torch.bfloat16 and state.ssm.dtype == torch.float32
    last, _ = layer.step(u[:, -1], state)
    assert rel_rms(torch.cat([y, last[:, None]], 1), expected) < 2e-2  # a handful of roundings to 8 bits


@EVERY_SHAPE
def test_packed_sequences(shape: dict[str, Any], seed: int, rng: torch.Generator) -> None:
    """By offsets, with states; and by numbers."""
    layer, u, offsets = make(seed, **shape), draw(rng, 1, L, WIDTH), [0, 2, 2, 7, L]
    before, parts = layer(draw(rng, 4, 3, WIDTH), return_last_state=True)[1], []
    for n, (start, end) in enumerate(pairwise(offsets)):
        parts.append(layer(u[:, start:end], type(before)(*(x[n : n + 1] for x in before)), return_last_state=True))
    y, after = layer(u, before, cu_seqlens=torch.tensor(offsets), return_last_state=True)
    assert rel_rms(y, torch.cat([part for part, _ in parts], 1)) < 1e-13
    for i, x in enumerate(after):
        assert (
            torch.equal(x, torch.cat([state[i] for _, state in parts]))
            or rel_rms(x, torch.cat([state[i] for _, state in parts])) < 1e-13
        )
    alone = torch.cat([layer(u[:, start:end]) for start, end in pairwise(offsets) if end > start], 1)
    numbers = torch.repeat_interleave(torch.arange(4), torch.tensor(offsets).diff())[None]
    assert rel_rms(layer(u, cu_seqlens=torch.tensor(offsets)), alone) < 1e-13
    assert rel_rms(layer(u, seq_idx=numbers), alone) < 1e-13
    both, last = layer(u, seq_idx=numbers.int(), return_last_state=True)
    assert rel_rms(both, alone) < 1e-13 and rel_rms(last.ssm, layer(u[:, 7:], return_last_state=True)[1].ssm) < 1e-13


def test_the_scan_reads_views(monkeypatch: pytest.MonkeyPatch, seed: int, rng: torch.Generator) -> None:
    """x, B and C are one tensor, and z and dt are of the projection."""
    from gdn_cuda.layers import conv_scan

    seen: list[Tensor] = []
    scan = conv_scan.ssd_scan

    def watched(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Any, z: Tensor, *more: Any, **named: Any) -> Any:
        seen.extend((x, B, C, z, dt))
        return scan(x, dt, A, B, C, D, z, *more, **named)

    monkeypatch.setattr(conv_scan, "ssd_scan", watched)
    make(seed, rmsnorm=False)(draw(rng, BATCH, L, WIDTH))
    storages = [x.untyped_storage().data_ptr() for x in seen]
    assert len({*storages[:3]}) == 1 and len({*storages[3:]}) == 1


def test_initial_values_are_those_of_mamba_ssm() -> None:
    torch.manual_seed(0)
    layer = Mamba2(512, headdim=1, dt_min=0.01, dt_max=0.2, dt_init_floor=0.02, A_init_range=(2, 5), conv_init=0.125)
    A = layer.A_log.exp()
    assert 2 <= A.min() < 2.1 and 4.9 < A.max() <= 5.001 and abs(A.mean().item() - 3.5) < 0.1
    assert bool((layer.D == 1).all()) and layer.conv1d.weight.abs().max() <= 0.125
    dt = F.softplus(layer.dt_bias)
    assert dt.min().item() > 0.02 - 1e-6 and dt.max().item() < 0.2 + 1e-6
    above = dt[dt > 0.0201]  # log-uniform: as many below as above the geometric mean
    assert abs((above < (0.02 * 0.2) ** 0.5).double().mean().item() - 0.5) < 0.1
    assert layer.A_log._no_weight_decay and layer.D._no_weight_decay and layer.dt_bias._no_weight_decay


# Names and shapes in mamba_ssm 2.3.2's Mamba2 with d_model 64, d_state 16, headdim 32, and the options.
CHECKPOINTS: list[tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = [
    ({}, {"D": (4,), "in_proj.weight": (292, 64), "conv1d.weight": (160, 1, 4), "norm.weight": (128,)}),
    (
        {"D_has_hdim": True, "rmsnorm": False, "bias": True, "ngroups": 2},
        {
            "D": (128,),
            "in_proj.weight": (324, 64),
            "in_proj.bias": (324,),
            "conv1d.weight": (192, 1, 4),
            "out_proj.bias": (64,),
        },
    ),
    ({"d_ssm": 64}, {"D": (2,), "in_proj.weight": (290, 64), "conv1d.weight": (96, 1, 4), "norm.weight": (64,)}),
]


@pytest.mark.parametrize(("options", "shapes"), CHECKPOINTS)
def test_checkpoints_of_mamba_ssm_load(options: dict[str, Any], shapes: dict[str, tuple[int, ...]], seed: int) -> None:
    heads, channels = shapes["D"] if "D_has_hdim" not in options else (4,), shapes["conv1d.weight"][:1]
    shapes = shapes | {"A_log": heads, "dt_bias": heads, "conv1d.bias": channels, "out_proj.weight": (64, 128)}
    layer = Mamba2(64, d_state=16, headdim=32, **options)
    assert {name: tuple(x.shape) for name, x in layer.state_dict().items()} == shapes
    torch.manual_seed(seed)
    checkpoint = {name: torch.randn(shape).bfloat16() for name, shape in shapes.items()}
    layer.load_state_dict(checkpoint, strict=True)
    assert all(torch.equal(x, checkpoint[name].float()) for name, x in layer.state_dict().items())
    half = Mamba2(64, d_state=16, headdim=32, dtype=torch.bfloat16, **options)
    assert half.A_log.dtype == half.D.dtype == half.dt_bias.dtype == torch.float32
    assert half.in_proj.weight.dtype == torch.bfloat16


def test_torch_compile(seed: int, rng: torch.Generator) -> None:
    layer, u = make(seed, torch.float32), draw(rng, BATCH, L, WIDTH, dtype=torch.float32)
    parameters = list(layer.parameters())
    loss = lambda: layer(u).square().sum()  # noqa: E731
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for ours, theirs in zip(*(torch.autograd.grad(f(), parameters) for f in (compiled, loss)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_activation_checkpointing(seed: int, rng: torch.Generator) -> None:
    layer, u = make(seed), draw(rng, BATCH, L, WIDTH).requires_grad_()
    leaves = [u, *layer.parameters()]
    again = torch.utils.checkpoint.checkpoint(layer, u, use_reentrant=False)
    ours, theirs = (torch.autograd.grad(y.square().sum(), leaves) for y in (again, layer(u)))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


BAD: dict[str, tuple[Any, str]] = {
    "d_ssm": (lambda layer: Mamba2(8, headdim=3), r"d_ssm: expected a multiple of headdim 3, at most 16, got 16"),
    "more": (lambda layer: Mamba2(8, headdim=8, d_ssm=32), r"d_ssm: expected a multiple of headdim 8, at most 16, got 32"),
    "groups": (lambda layer: Mamba2(8, headdim=4, ngroups=3), r"ngroups: expected a divisor of the 4 heads, got 3"),
    "range": (
        lambda layer: Mamba2(8, headdim=4, A_init_range=(0, 1)),
        r"A_init_range: expected \(lowest, highest\) above 0, got \(0, 1\)",
    ),
    "u": (lambda layer: layer(torch.zeros(2, 5, 7)), r"u: expected real numbers \(B, L, 6\), got torch.float32 \(2, 5, 7\)"),
    "step": (
        lambda layer: layer.step(torch.zeros(2, 1, 6), layer.default_state(2)),
        r"u: expected real numbers \(B, 6\), got torch.float32 \(2, 1, 6\)",
    ),
    "state.conv": (
        lambda layer: layer.step(torch.zeros(2, 6), layer.default_state(3)),
        r"state.conv: expected \(2, 3, 22\) on cpu, real numbers, got \(3, 3, 22\) on cpu, torch.float32",
    ),
    "state.ssm": (
        lambda layer: layer(torch.zeros(2, 4, 6), layer.default_state(2)._replace(ssm=torch.zeros(2, 3, 4, 6))),
        r"state.ssm: expected \(2, 3, 4, 5\) on cpu, real numbers, got \(2, 3, 4, 6\) on cpu, torch.float32",
    ),
    "numbers and state": (
        lambda layer: layer(torch.zeros(1, 5, 6), layer.default_state(1), seq_idx=torch.zeros(1, 5)),
        r"seq_idx: expected None with a state, got a tensor",
    ),
    "numbers and offsets": (
        lambda layer: layer(torch.zeros(1, 5, 6), seq_idx=torch.zeros(1, 5), cu_seqlens=torch.tensor([0, 5])),
        r"seq_idx: expected None with cu_seqlens, got a tensor",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_name_argument_expected_and_got(name: str, seed: int) -> None:
    call, message = BAD[name]
    layer = make(seed, torch.float32)
    with pytest.raises(ValueError, match=f"^Mamba2: {message}$"):
        call(layer)


def test_a_refused_step_writes_nothing(seed: int) -> None:
    layer = make(seed, torch.float32)
    state = layer.default_state(2)
    wrong = state._replace(ssm=state.ssm.mT.contiguous().mT)
    before = [x.clone() for x in wrong]
    with pytest.raises(ValueError, match=r"^Mamba2"):
        layer.step(torch.ones(2, WIDTH), wrong)
    assert all(torch.equal(a, b) for a, b in zip(wrong, before, strict=True))
