"""nn.S4 and nn.S4D: against the literal recurrence, in both directions, in segments, and as documented."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import rel_rms
from torch import Tensor

from gdn_cuda.nn import S4, S4D, hippo
from gdn_cuda.reference import s4, s4d

H = 4
LAYERS: dict[str, tuple[type, dict[str, Any]]] = {
    "legs": (S4, {}),
    "fout": (S4, {"init": "fout"}),
    "lin": (S4D, {}),
    "inv, bilinear": (S4D, {"init": "inv", "disc": "bilinear"}),
    "diagonal legs": (S4D, {"init": "legs"}),
    "real": (S4D, {"init": "real"}),
}
EVERY = pytest.mark.parametrize("name", LAYERS)


def layer_of(name: str, seed: int, **more: Any) -> Any:
    make, options = LAYERS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(H, 12, **options, **more)


def convolved(layer: Any, u: Tensor) -> Tensor:
    """y (B, channels, H, L) by the recurrence over tokens in fp64; call it before C is converted."""
    names = ("A_real", "A_imag", "B", "C", "P", "inv_dt")
    config = {name: None if (x := getattr(layer.kernel, name)) is None else x.detach().clone() for name in names}
    config |= {"repeat": 1, "real_transform": "exp", "imag_transform": "none", "dt_transform": "exp", "dt_fast": False}
    system = s4.system_of(config | {"is_real": layer.init == "real"})
    if isinstance(layer, S4):
        discrete: Any = s4.discretized(system)
        state, step = torch.zeros(len(u), H, 2 * system.A.shape[-1], dtype=torch.complex128), s4.step_dense
    else:
        discrete = s4d.discretized(system, layer.disc)
        state, step = torch.zeros(len(u), H, system.A.shape[-1], dtype=torch.complex128), s4d.step
    found = []
    for t in range(u.shape[1]):
        y, state = step(discrete, system.C, u[:, t].double(), state)
        found.append(y)
    return torch.stack(found, -1)


def finished(layer: Any, y: Tensor, u: Tensor) -> Tensor:
    y = y.mT + layer.D.double() * u.double()
    y = F.gelu(y) if layer.activation else y
    if layer.output is None:
        return y
    y = F.linear(y, layer.out_proj.weight.double(), layer.out_proj.bias.double())
    return F.glu(y) if layer.output == "glu" else y


@EVERY
@pytest.mark.parametrize(
    "options", [{}, {"output": "linear"}, {"activation": None, "output": None}], ids=["glu", "linear", "ssm"]
)
def test_a_layer_is_its_recurrence(name: str, options: dict[str, Any], seed: int) -> None:
    layer, u = layer_of(name, seed, **options), torch.randn(2, 50, H)
    expected = finished(layer, convolved(layer, u)[:, 0], u)
    assert rel_rms(layer(u), expected) < 3e-6
    assert rel_rms(layer(u[:, :20]), expected[:, :20]) < 3e-6
    longer = torch.cat([u, torch.randn(2, 70, H)], 1)  # than the length of C̃
    assert rel_rms(layer(longer)[:, :50], expected) < 3e-6


@EVERY
def test_both_directions(name: str, seed: int) -> None:
    layer, u = layer_of(name, seed, bidirectional=True), torch.randn(2, 30, H)
    past, future = convolved(layer, u)[:, 0], convolved(layer, u.flip(1))[:, 1].flip(-1)
    both = past + F.pad(future, (0, 1))[..., 1:]  # from the next token on
    assert rel_rms(layer(u), finished(layer, both, u)) < 3e-6


@EVERY
def test_segments_and_steps_equal_one_call(name: str, seed: int) -> None:
    layer, u = layer_of(name, seed), torch.randn(2, 40, H)
    whole, last = layer(u, return_last_state=True)
    first, state = layer(u[:, :13], return_last_state=True)
    second, state = layer(u[:, 13:30], state, return_last_state=True)
    parts = [first, second]
    for t in range(30, 40):
        y, state = layer.step(u[:, t], state)
        parts.append(y[:, None])
    assert rel_rms(torch.cat(parts, 1), whole) < 1e-5 and rel_rms(state, last) < 1e-5
    assert layer.default_state(2).shape == last.shape and not layer.default_state(2).any()


@EVERY
def test_parameters_begin_as_documented(name: str) -> None:
    torch.manual_seed(0)
    make, options = LAYERS[name]
    layer = make(512, 8, dt_min=0.01, dt_max=0.5, dtype=torch.float64, **options)
    kernel, init = layer.kernel, layer.init
    modes = {"legs": hippo.legs, "fout": hippo.fout}[init](8) if make is S4 else hippo.diagonal(init, 8)
    log_dt = kernel.inv_dt
    assert log_dt.shape == (512, 1) and math.log(0.01) <= log_dt.min() < -4.5 and -0.8 < log_dt.max() <= math.log(0.5)
    assert abs(log_dt.mean() - math.log(0.005) / 2) < 0.15  # uniform
    expected = modes.eigenvalues.real if init != "fout" else torch.full((4,), -1e-4, dtype=torch.float64)
    assert torch.allclose(-kernel.A_real.exp(), expected.expand(512, -1), rtol=1e-14)
    if init == "real":
        assert kernel.A_imag is None and kernel.B.shape == (1, 512, 8)
    else:
        assert torch.equal(-kernel.A_imag, modes.eigenvalues.imag.expand(512, -1))
        assert torch.equal(torch.view_as_complex(kernel.B.detach()), modes.B.expand(1, 512, -1))
    if make is S4:
        assert torch.equal(torch.view_as_complex(kernel.P.detach()), modes.P.expand(1, 512, -1))
    size = kernel.C.square().mean()
    assert 0.45 < size < 0.55  # of real and imaginary parts, or of real values
    assert abs(layer.D.square().mean() - 1) < 0.2


@EVERY
def test_reset_parameters_and_seeds(name: str, seed: int) -> None:
    layer, other = layer_of(name, seed), layer_of(name, seed + 1)
    u = torch.randn(1, 20, H)
    expected = layer(u)  # converts C of S4
    assert not torch.equal(other(u), expected)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        other.reset_parameters()
    assert torch.equal(other(u), expected)


@EVERY
def test_a_layer_learns(name: str, seed: int) -> None:
    """A delay by 3 tokens, in 60 steps of Adam."""
    layer, generator = layer_of(name, seed, output="linear", dt_min=0.05, dt_max=0.5), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(layer.parameters(), 0.02)
    losses = []
    for _ in range(60):
        u = torch.randn(8, 24, H, generator=generator)
        loss = (layer(u)[:, 3:] - u[:, :-3]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_conversion_to_16_bits_keeps_the_system(seed: int) -> None:
    for name in LAYERS:
        layer, u = layer_of(name, seed), torch.randn(1, 60, H)
        expected = layer(u)
        expected.sum().backward()
        for dtype in (torch.bfloat16, torch.float16):
            assert rel_rms(layer.to(dtype)(u.to(dtype)), expected) < 2e-2
        assert {x.dtype for p in layer.kernel.parameters() for x in (p, p.grad)} == {torch.float32}
        assert layer.D.dtype == layer.D.grad.dtype == torch.float16


BAD: list[tuple[Any, str]] = [
    (lambda: S4(0), r"S4: d_model: expected a positive integer, got 0"),
    (lambda: S4(2, 4.0), r"S4: d_state: expected a positive integer, got 4.0"),
    (lambda: S4D(2, 5), r"S4D: d_state: expected an even number, of conjugate pairs, got 5"),
    (lambda: S4(2, init="lin"), r"S4: init: expected one of \('legs', 'fout'\), got 'lin'"),
    (lambda: S4D(2, init="fout"), r"S4D: init: expected one of \('legs', 'inv', 'lin', 'real'\), got 'fout'"),
    (lambda: S4D(2, disc="dirac"), r"S4D: disc: expected one of \('zoh', 'bilinear'\), got 'dirac'"),
    (lambda: S4(2, dt_min=0.2), r"S4: dt_min, dt_max: expected 0 < dt_min ≤ dt_max, got 0.2 and 0.1"),
    (lambda: S4(2, activation="relu"), r"S4: activation: expected 'gelu' or None, got 'relu'"),
    (lambda: S4(2, output="mlp"), r"S4: output: expected 'glu', 'linear' or None, got 'mlp'"),
    (lambda: S4(2)(torch.ones(3, 2)), r"S4: u: expected real numbers \(B, L, 2\), got torch.float32 \(3, 2\)"),
    (
        lambda: S4(2).step(torch.ones(1, 3, 2), torch.zeros(1, 2, 32, dtype=torch.complex64)),
        r"S4: u: expected real numbers \(B, 2\), got torch.float32 \(1, 3, 2\)",
    ),
    (
        lambda: S4(2, bidirectional=True)(torch.ones(1, 3, 2), return_last_state=True),
        r"S4: return_last_state: expected none for a bidirectional layer, which has no states, got one",
    ),
    (
        lambda: S4D(2, bidirectional=True).step(torch.ones(1, 2), torch.zeros(1, 2, 32)),
        r"S4D: bidirectional: expected False for steps, got True",
    ),
    (lambda: S4(2, l_max=-1), r"S4Kernel: l_max: expected None or a length, got -1"),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_errors_say_what_is_wrong(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        make()
