"""S4DKernel on CPU tensors: kernel, steps and states against the oracle in fp64; checkpoints, gradients, errors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers import rel_rms
from s4_cases import convolution, make_param_config
from torch import Tensor, nn

from gdn_cuda.nn import S4DKernel
from gdn_cuda.reference import s4, s4d

TENSORS = ("A_real", "A_imag", "B", "C", "inv_dt")
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "shared": {"H": 4, "repeat": 2, "dt_per_state": True, "transform": "softplus", "dt_fast": True},
    "one": {"N": 1, "H": 1, "channels": 1},
}
EVERY_SHAPE = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
EVERY_DISC = pytest.mark.parametrize("disc", s4d.DISCRETIZATIONS)
# fp32: log Ā is rounded once, and up to 25 rad of it times L = 24 give phases of 600 rad, each with an error of 6e-8.
BOUNDS = {torch.float64: 1e-12, torch.float32: 4e-5}


def config_of(rng: torch.Generator, dtype: torch.dtype = torch.float64, disc: str = "zoh", **shape: Any) -> dict[str, Any]:
    config = make_param_config(rng, dtype=dtype, **shape) | {"P": None, "disc": disc}
    return config | {name: nn.Parameter(config[name]) for name in TENSORS}


def kernel_of(config: dict[str, Any], l_max: int | None = 24) -> S4DKernel:
    return S4DKernel(config["H"], l_max, config["channels"], config)


def discrete_of(config: dict[str, Any], rate: float = 1.0) -> tuple[s4d.Discrete, Tensor]:
    system = s4.system_of(config, rate)
    return s4d.discretized(system, config["disc"]), system.C


@EVERY_SHAPE
@EVERY_DISC
@pytest.mark.parametrize("dtype", BOUNDS)
def test_kernel_steps_convolution_and_recurrence_agree(
    shape: dict[str, Any], disc: str, dtype: torch.dtype, rng: torch.Generator
) -> None:
    config, L = config_of(rng, dtype, disc, **shape), 24
    H, N = config["H"], config["N"]
    u = torch.randn(2, H, L, generator=rng, dtype=torch.float64).to(dtype)
    state = torch.randn(2, H, N, generator=rng, dtype=torch.complex128).to(
        torch.complex64 if dtype == torch.float32 else torch.complex128
    )
    kernel, bound = kernel_of(config), BOUNDS[dtype]
    expected, expected_state = s4d.kernel_by_recurrence(*discrete_of(config), L, state.to(torch.complex128))
    K, K_state = kernel(state=state)
    assert K.dtype == dtype
    assert rel_rms(K, expected) < bound
    assert rel_rms(K_state, expected_state) < bound
    outputs = convolution(u.double(), expected) + expected_state
    assert rel_rms(convolution(u, K) + K_state, outputs) < bound
    last = state
    for t in range(L):
        y, last = kernel.step(u[..., t], last)
        assert y.dtype == dtype and y.shape == outputs.shape[:-1]
        assert rel_rms(y, outputs[..., t]) < 20 * bound
    assert rel_rms(kernel.forward_state(u, state), last) < 2 * bound
    nothing = kernel.forward_state(u[..., :0], state[0].to(torch.complex128))
    assert torch.equal(nothing, state[:1].expand_as(nothing)) and nothing.shape == state.shape and nothing.dtype == state.dtype
    for ours, theirs in zip(
        kernel.step(u[..., 0].double(), state.to(torch.complex128)), kernel.step(u[..., 0], state), strict=True
    ):
        assert torch.equal(ours, theirs) and ours.dtype == theirs.dtype
    assert kernel.default_state(2, 5).shape == (2, 5, H, N) and kernel.default_state().dtype == state.dtype


@pytest.mark.parametrize("batch", [(), (2, 3), (0,)])
def test_states_with_any_batch(batch: tuple[int, ...], rng: torch.Generator) -> None:
    config = config_of(rng)
    state = torch.randn(*batch, 3, 4, generator=rng, dtype=torch.complex128)
    rows = kernel_of(config, 6)(state=state.reshape(-1, 3, 4) if state.numel() else state)[1]
    assert torch.equal(kernel_of(config, 6)(state=state)[1], rows.reshape(*batch, 2, 3, 6))


def test_pairs_may_be_in_any_memory(rng: torch.Generator) -> None:
    """Odd strides and offsets of fp64 parameters, which torch.view_as_complex refuses."""
    config = config_of(rng)
    expected, _ = kernel_of(config)()
    for name in ("B", "C"):
        pairs = config[name].detach()
        padded = torch.cat([pairs, pairs[..., :1]], -1).flatten(-2)
        memory = torch.cat([padded.new_zeros(*padded.shape[:-1], 1), padded], -1)
        config[name] = memory[..., 1:].unflatten(-1, (-1, 3))[..., :2]
        assert config[name].stride(-2) % 2 or config[name].storage_offset() % 2
    assert torch.equal(kernel_of(config)()[0], expected)


@pytest.mark.parametrize("rate", [0.5, 2.0])
def test_rate_and_length(rate: float, rng: torch.Generator) -> None:
    config = config_of(rng)
    K, none = kernel_of(config, 10)(rate=rate)
    assert none is None and K.shape[-1] == round(10 / rate)
    assert rel_rms(K, s4d.kernel_by_recurrence(*discrete_of(config, rate), K.shape[-1])[0]) < 1e-12
    assert kernel_of(config)(L=0)[0].shape == (2, 3, 0)


def test_bilinear_at_minus_two_has_no_memory(rng: torch.Generator) -> None:
    config = config_of(rng, disc="bilinear", N=1, H=1, channels=1, transform="none")
    with torch.no_grad():
        config["A_real"].fill_(4), config["A_imag"].zero_(), config["inv_dt"].fill_(0.5)
    kernel = kernel_of(config)
    K, _ = kernel(L=5)
    assert K[..., 0].all() and not K[..., 1:].any()
    state = kernel.forward_state(torch.ones(1, 3, dtype=torch.float64), torch.ones(1, 1, dtype=torch.complex128))
    assert rel_rms(state, kernel.step(torch.ones(1, dtype=torch.float64), state)[1]) < 1e-15


def test_state_dict_round_trip_and_copies(rng: torch.Generator) -> None:
    config, other = config_of(rng), config_of(rng)
    kernel, loaded = kernel_of(config), kernel_of(other)
    u = torch.randn(3, generator=rng, dtype=torch.float64)
    before, _ = loaded.step(u, loaded.default_state())
    loaded.load_state_dict(kernel.state_dict())
    assert set(kernel.state_dict()) == set(TENSORS)
    assert torch.equal(loaded()[0], kernel()[0])
    after, _ = loaded.step(u, loaded.default_state())  # after a change of its parameters
    assert torch.equal(after, kernel.step(u, kernel.default_state())[0]) and not torch.equal(after, before)
    assert torch.equal(copy.deepcopy(kernel)()[0], kernel()[0])


@EVERY_SHAPE
@EVERY_DISC
def test_gradients(shape: dict[str, Any], disc: str, rng: torch.Generator) -> None:
    config, L = config_of(rng, disc=disc, **shape), 9
    state = torch.randn(2, config["H"], config["N"], generator=rng, dtype=torch.complex128).requires_grad_()
    u = torch.randn(2, config["H"], L, generator=rng, dtype=torch.float64).requires_grad_()
    leaves = [state, u, *(config[name] for name in TENSORS)]
    kernel = kernel_of(config)

    def gradients(K: Tensor, K_state: Tensor, last: Tensor) -> tuple[Tensor, ...]:
        loss = K.square().sum() + K_state.square().sum() + torch.view_as_real(last).square().sum()
        return torch.autograd.grad(loss, leaves)

    ours = gradients(*kernel(L=L, state=state), kernel.forward_state(u, state))
    discrete, C = discrete_of(config)
    theirs = gradients(*s4d.kernel_by_powers(discrete, C, L, state), s4d.forward_state(discrete, u, state))
    for a, b in zip(ours, theirs, strict=True):
        assert rel_rms(a, b) < 1e-11


def test_torch_compile(rng: torch.Generator) -> None:
    config = config_of(rng, torch.float32)
    kernel = kernel_of(config)
    parameters = [config[name] for name in TENSORS]
    loss = lambda: kernel()[0].square().sum()  # noqa: E731
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for ours, theirs in zip(*(torch.autograd.grad(f(), parameters) for f in (compiled, loss)), strict=True):
        torch.testing.assert_close(ours, theirs)


BAD: dict[str, tuple[Any, str]] = {
    "disc": (lambda c: kernel_of(c | {"disc": "dss"}), r"disc: expected one of \('zoh', 'bilinear'\), got 'dss'"),
    "no length": (lambda c: kernel_of(c, None)(), r"L: expected a length, as l_max is None, got None"),
    "L": (lambda c: kernel_of(c)(L=-3), r"L: expected an integer >= 0, got -3"),
    "rate": (lambda c: kernel_of(c)(rate=-1.0), r"rate: expected a positive number, got -1.0"),
    "state": (lambda c: kernel_of(c)(state=torch.zeros(2, 3, 8)), r"state: expected \(…, 3, 4\), got \(2, 3, 8\)"),
    "u": (
        lambda c: kernel_of(c).step(torch.zeros(4), torch.zeros(3, 4)),
        r"u: expected real numbers \(…, 3\), got torch.float32 \(4,\)",
    ),
    "batches": (
        lambda c: kernel_of(c).step(torch.zeros(3, 3), torch.zeros(2, 3, 4)),
        r"state: expected \(…, 3, 4\) with leading dimensions that broadcast with \(3,\) of u, got \(2, 3, 4\)",
    ),
    "missing": (lambda c: kernel_of(c | {"C": None}), r"param_config: expected C too, got .*"),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_say_what_is_wrong(name: str, rng: torch.Generator) -> None:
    call, message = BAD[name]
    with pytest.raises(ValueError, match=f"^S4DKernel: {message}$"):
        call(config_of(rng))
