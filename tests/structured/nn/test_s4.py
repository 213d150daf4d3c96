"""S4Kernel on CPU tensors: kernel, steps and states against the oracle in fp64; lengths, checkpoints, gradients, errors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers import rel_rms
from s4_cases import convolution, make_param_config
from torch import Tensor, nn

from gdn_cuda.nn import S4Kernel
from gdn_cuda.reference import s4

TENSORS = ("A_real", "A_imag", "B", "C", "P", "inv_dt")
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "rank 0": {"rank": 0},
    "rank 2": {"rank": 2},
    "shared": {"H": 4, "repeat": 2, "dt_per_state": True, "transform": "softplus", "dt_fast": True},
    "one": {"N": 1, "H": 1, "channels": 1},
}
EVERY_SHAPE = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
# fp32: C̃, z and the sums are rounded. C is recovered from C̃ by (I − Ā^L)⁻¹, which makes steps less exact.
BOUNDS = {torch.float64: 1e-11, torch.float32: 1e-5}


def config_of(rng: torch.Generator, dtype: torch.dtype = torch.float64, **shape: Any) -> dict[str, Any]:
    """With nn.Parameters, as in a parent module."""
    config = make_param_config(rng, dtype=dtype, **shape)
    return config | {name: nn.Parameter(config[name]) for name in TENSORS}


def kernel_of(config: dict[str, Any], l_max: int | None = None) -> S4Kernel:
    return S4Kernel(config["H"], l_max, config["channels"], config)


def oracle(config: dict[str, Any], L: int, state: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Uses the current C of `config`, so call it before the module."""
    system = s4.system_of({name: x.detach().clone() if isinstance(x, Tensor) else x for name, x in config.items()})
    return s4.kernel_by_recurrence(s4.discretized(system), system.C, L, state)


def draw(rng: torch.Generator, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=rng, dtype=dtype)


@EVERY_SHAPE
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("L", [1, 2, 15, 64])
def test_the_kernel_and_state_equal_the_oracle(shape: dict[str, Any], dtype: torch.dtype, L: int, rng: torch.Generator) -> None:
    config = config_of(rng, dtype, **shape)
    H, N = config["H"], config["N"]
    state = draw(rng, 2, H, N, dtype=torch.complex128)
    expected, expected_state = oracle(config, L, state)
    kernel = kernel_of(config)
    for given in (state, s4.with_conjugates(state)):
        k, k_state = kernel(state=given, L=L)
        assert k.dtype == dtype and k.shape == expected.shape
        assert rel_rms(k, expected) < BOUNDS[dtype]
        assert rel_rms(k_state, expected_state) < BOUNDS[dtype]
    assert kernel(L=L)[1] is None


@pytest.mark.parametrize("dtype", BOUNDS)
def test_long_kernels_equal_the_oracle(dtype: torch.dtype, rng: torch.Generator) -> None:
    """Points close to ω = −1, where z is large, and slow decays."""
    config = config_of(rng, dtype, H=2, channels=1)
    with torch.no_grad():
        config["inv_dt"].sub_(3)
    expected, _ = oracle(config, 1000)
    assert rel_rms(kernel_of(config, 1024)(L=1000)[0], expected) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("mode", s4.STEP_MODES)
@EVERY_SHAPE
def test_steps_convolution_and_recurrence_agree(
    shape: dict[str, Any], mode: str, dtype: torch.dtype, rng: torch.Generator
) -> None:
    config, L = config_of(rng, dtype, **shape), 24
    u = draw(rng, 2, config["H"], L).to(dtype)
    expected = convolution(u.double(), oracle(config, L)[0])
    kernel = kernel_of(config, 16)
    k, _ = kernel(L=L)
    bound = 10 * BOUNDS[dtype]
    assert rel_rms(convolution(u, k), expected) < bound
    kernel._setup_step(mode)
    state = kernel.default_state(2)
    assert state.dtype == (torch.complex64 if dtype == torch.float32 else torch.complex128)
    assert state.shape == (2, config["H"], config["N"] * (1 if mode == "linear" else 2))
    middle_state = None
    for t in range(L):
        if t == 10:
            middle_state = state
        y, state = kernel.step(u[..., t], state)
        assert y.dtype == dtype and y.shape == expected.shape[:-1]
        assert rel_rms(y, expected[..., t]) < 20 * bound
    assert rel_rms(kernel.forward_state(u, kernel.default_state(2)), state) < bound
    assert middle_state is not None
    assert rel_rms(kernel.forward_state(u[..., 10:], middle_state), state) < bound
    unmoved = kernel.forward_state(u[..., :0], middle_state[0].to(torch.complex128))
    assert (
        torch.equal(unmoved, middle_state[:1].expand_as(unmoved))
        and unmoved.shape == state.shape
        and unmoved.dtype == state.dtype
    )


def test_a_kernel_continues_from_a_state(rng: torch.Generator) -> None:
    config, L = config_of(rng), 20
    u = draw(rng, 2, config["H"], L)
    whole = convolution(u, oracle(config, L)[0])
    kernel = kernel_of(config)
    state = kernel.forward_state(u[..., :12], kernel.default_state(2))
    k, k_state = kernel(state=state, L=L - 12)
    assert rel_rms(convolution(u[..., 12:], k) + k_state, whole[..., 12:]) < 1e-11


@pytest.mark.parametrize("batch", [(), (2, 3), (0,)])
def test_states_with_any_batch(batch: tuple[int, ...], rng: torch.Generator) -> None:
    config = config_of(rng)
    state = draw(rng, *batch, 3, 8, dtype=torch.complex128)
    rows = kernel_of(config, 6)(state=state.reshape(-1, 3, 8) if state.numel() else state)[1]
    assert torch.equal(kernel_of(config, 6)(state=state)[1], rows.reshape(*batch, 2, 3, 6))


@pytest.mark.parametrize("mode", s4.STEP_MODES)
def test_steps_convert_inputs_to_the_dtype_of_the_kernel(mode: str, rng: torch.Generator) -> None:
    kernel, u = kernel_of(config_of(rng, torch.float32)), draw(rng, 2, 3)
    kernel._setup_step(mode)
    state = torch.randn_like(kernel.default_state(2))
    expected = kernel.step(u.float(), state)
    for ours, theirs in zip(kernel.step(u, state.to(torch.complex128)), expected, strict=True):
        assert torch.equal(ours, theirs) and ours.dtype == theirs.dtype
    for ours, theirs in zip(kernel.step(u, state.real), kernel.step(u, state.real + 0j), strict=True):
        assert torch.equal(ours, theirs)


def test_steps_work_on_inference_tensors(rng: torch.Generator) -> None:
    config = config_of(rng)
    expected = kernel_of(config).step(torch.ones(3), torch.zeros(3, 8))[0]
    with torch.inference_mode():
        kernel = kernel_of({name: x.clone() if isinstance(x, Tensor) else x for name, x in config.items()})
        for _ in range(2):
            assert torch.equal(kernel.step(torch.ones(3), torch.zeros(3, 8))[0], expected)


def test_steps_are_set_up_at_first_use_and_after_parameters_change(rng: torch.Generator) -> None:
    config = config_of(rng)
    kernel, u = kernel_of(config), draw(rng, 3, config["H"])
    first, _ = kernel.step(u, kernel.default_state(3))
    assert kernel._step_mode == "dense"
    with torch.no_grad():
        config["inv_dt"].add_(0.5)
    changed, _ = kernel.step(u, kernel.default_state(3))
    fresh, _ = kernel_of(config).step(u, kernel.default_state(3))
    assert torch.equal(changed, fresh)
    assert rel_rms(changed, first) > 1e-3
    config["inv_dt"].data.add_(0.5)  # not detectable
    kernel._setup_step()
    assert torch.equal(kernel.step(u, kernel.default_state(3))[0], kernel_of(config).step(u, kernel.default_state(3))[0])


def test_steps_notice_a_new_parameter_at_the_address_of_an_old_one(rng: torch.Generator) -> None:
    config = config_of(rng)
    kernel, u = kernel_of(config), draw(rng, 3)
    kernel.step(u, kernel.default_state())
    place = config.pop("B").data_ptr()
    kernel.B = nn.Parameter(draw(rng, 1, 3, 4, 2))  # the first B is freed
    tries = [draw(rng, 1, 3, 4, 2)]
    while tries[-1].data_ptr() != place and len(tries) < 1000:
        tries.append(torch.randn_like(tries[-1]))
    kernel.B = nn.Parameter(tries[-1])
    fresh = kernel_of(config | {"B": kernel.B}).step(u, kernel.default_state())[0]
    assert torch.equal(kernel.step(u, kernel.default_state())[0], fresh)


@pytest.mark.parametrize("mode", s4.STEP_MODES)
def test_steps_work_after_the_module_changes_its_dtype(mode: str, rng: torch.Generator) -> None:
    """The matrices of steps are not buffers: they are computed again in the new precision, in the same mode."""
    config = config_of(rng)
    kernel, u = kernel_of(config), draw(rng, 3, config["H"], 5)
    kernel._setup_step(mode)
    expected, _ = kernel.step(u[..., 4], kernel.forward_state(u[..., :4], kernel.default_state(3)))
    kernel.float()
    y, state = kernel.step(u[..., 4].float(), kernel.forward_state(u[..., :4].float(), kernel.default_state(3)))
    assert state.dtype == torch.complex64 and kernel._step_mode == mode
    assert rel_rms(y, expected) < 1e-4


# ---- Lengths, checkpoints, sharing


def test_the_stored_length_doubles_until_it_suffices(rng: torch.Generator) -> None:
    config = config_of(rng)
    expected, _ = oracle(config, 100)
    kernel = kernel_of(config, 7)
    for L, length in ((3, 7), (7, 7), (7, 7), (8, 14), (100, 112), (5, 112)):
        assert rel_rms(kernel(L=L)[0], expected[..., :L]) < 1e-10
        assert kernel.l_kernel.item() == length
    assert kernel()[0].shape[-1] == 112


@pytest.mark.parametrize("l_max", [None, 16])
def test_kernels_with_shared_parameters_convert_them_once(l_max: int | None, rng: torch.Generator) -> None:
    config = config_of(rng)
    expected, _ = oracle(config, 40)
    one, two = kernel_of(config, l_max), kernel_of(config, l_max)
    for kernel, L in ((one, 10), (two, 10), (two, 40), (one, 40), (kernel_of(config), 40)):
        assert rel_rms(kernel(L=L)[0], expected[..., :L]) < 1e-11
    assert one.state_dict()["l_kernel"] == two.state_dict()["l_kernel"] == (64 if l_max else 40)
    two._setup_step()
    u = draw(rng, config["H"])
    assert rel_rms(two.step(u, two.default_state())[0], expected[..., 0] * u) < 1e-11


@pytest.mark.parametrize("assign", [False, True])
def test_state_dict_round_trip(assign: bool, rng: torch.Generator) -> None:
    config, other = config_of(rng), config_of(rng)
    expected, _ = oracle(config, 50)
    kernel, loaded = kernel_of(config), kernel_of(other)
    before = copy.deepcopy(kernel.state_dict())
    kernel(L=20)
    loaded(L=9)
    loaded.load_state_dict(kernel.state_dict(), assign=assign)
    assert torch.equal(loaded(L=20)[0], kernel(L=20)[0])
    assert rel_rms(loaded(L=50)[0], expected) < 1e-10
    loaded.load_state_dict(before, assign=assign)  # C before its first use
    assert rel_rms(loaded(L=50)[0], expected) < 1e-11
    assert set(before) == {*TENSORS, "l_kernel"}


def test_a_copy_does_not_change_the_original(rng: torch.Generator) -> None:
    config = config_of(rng)
    expected, _ = oracle(config, 30)
    kernel = kernel_of(config)
    kernel(L=10)
    kernel.step(draw(rng, config["H"]), kernel.default_state())
    twin = copy.deepcopy(kernel)
    assert rel_rms(twin(L=30)[0], expected) < 1e-11
    assert kernel.l_kernel.item() == 10
    assert rel_rms(kernel(L=10)[0], expected[..., :10]) < 1e-11


def test_gradients_under_activation_checkpointing(rng: torch.Generator) -> None:
    config = config_of(rng)
    twin = {name: nn.Parameter(x.detach().clone()) if isinstance(x, Tensor) else x for name, x in config.items()}
    weights = draw(rng, 12)
    (kernel_of(config)(L=12)[0] * weights).sum().backward()
    kernel = kernel_of(twin)
    recomputed = torch.utils.checkpoint.checkpoint(lambda: kernel(L=12)[0], use_reentrant=False)
    (recomputed * weights).sum().backward()
    for name in TENSORS:
        torch.testing.assert_close(config[name].grad, twin[name].grad)


@pytest.mark.parametrize("rate", [0.5, 2.0, 0.3])
def test_rate(rate: float, rng: torch.Generator) -> None:
    """The oracle's closed form at that rate, from the same C̃; the requested length is exact despite rounding."""
    config, length = config_of(rng, rank=2), 40
    kernel = kernel_of(config, length)
    k, _ = kernel(rate=rate)
    samples = round(length / rate)
    assert k.shape[-1] == samples
    system = s4.system_of(config, rate)
    expected, _ = s4.kernel_by_resolvent(system, samples)
    assert rel_rms(k, expected) < 1e-11
    for L in (1, 5, 7):
        assert kernel_of(config_of(rng))(rate=rate, L=L)[0].shape[-1] == L


# ---- Which tensor a length belongs to


@pytest.mark.parametrize("make", [nn.Parameter, torch.Tensor.clone], ids=["parameter", "buffer"])
def test_a_new_c_resets_the_stored_length(make: Any, rng: torch.Generator) -> None:
    config = config_of(rng)
    new = config["C"].detach() + 1
    expected, _ = oracle(config | {"C": new}, 20)
    kernel = kernel_of(config | {"C": make(config["C"].detach())})
    kernel(L=20)
    kernel.C = make(new)
    assert kernel.state_dict()["l_kernel"] == 0
    assert rel_rms(kernel(L=20)[0], expected) < 1e-11


@pytest.mark.parametrize("first", [0, 10], ids=["before the first call", "after it"])
def test_tensors_of_functional_call_are_not_modified(first: int, rng: torch.Generator) -> None:
    config = config_of(rng)
    expected, _ = oracle(config, 20)
    kernel, twin = kernel_of(config), kernel_of(config)
    twin(L=first)
    lent = {name: x.detach().clone() for name, x in kernel.named_parameters()}
    before = lent["C"].clone().requires_grad_()

    def lend(C: Tensor, L: int) -> Tensor:
        return torch.func.functional_call(kernel, lent | {"C": C}, (), {"L": L})[0]

    for L in (20, 10):
        assert rel_rms(lend(lent["C"], L), expected[..., :L]) < 1e-11
    assert torch.equal(lent["C"], before) and kernel.state_dict()["l_kernel"] == first
    assert torch.autograd.gradcheck(lambda C: lend(C, 4 + first), before)
    assert rel_rms(kernel(L=20)[0], expected) < 1e-11


def test_buffers_that_are_no_longer_shared_have_separate_lengths(rng: torch.Generator) -> None:
    config = make_param_config(rng, dtype=torch.float32)
    expected, _ = oracle(config, 40)
    kernels = nn.ModuleList([kernel_of(config), kernel_of(config)])
    kernels[0](L=10)
    kernels.double()
    for kernel, L in zip((*kernels, *kernels), (40, 10, 20, 40), strict=True):
        assert rel_rms(kernel(L=L)[0], expected[..., :L]) < 1e-5
    assert [kernel.l_kernel.item() for kernel in kernels] == [40, 40]


@pytest.mark.parametrize("swap", [False, True])
def test_the_stored_length_survives_a_conversion_of_the_module(swap: bool, rng: torch.Generator) -> None:
    config = config_of(rng, torch.float32)
    kernel = kernel_of(config)
    expected = kernel(L=10)[0]
    torch.__future__.set_swap_module_params_on_conversion(swap)
    try:
        kernel.double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert rel_rms(kernel(L=10)[0], expected) < 1e-5


def test_a_kernel_with_the_c_of_a_copy_has_its_stored_length(rng: torch.Generator) -> None:
    config = config_of(rng)
    expected, _ = oracle(config, 20)
    kernel = kernel_of(config)
    kernel(L=10)
    twin = copy.deepcopy(kernel)
    third = kernel_of(config | dict(twin.named_parameters()))
    for each in (third, twin, kernel):
        assert rel_rms(each(L=20)[0], expected) < 1e-11


# ---- Gradients, tracing, dtypes


@EVERY_SHAPE
def test_gradients(shape: dict[str, Any], rng: torch.Generator) -> None:
    config, L = config_of(rng, **shape), 10
    state = draw(rng, 2, config["H"], config["N"], dtype=torch.complex128).requires_grad_()
    kernel = kernel_of(config, L)
    k, k_state = kernel(state=state)
    weights, state_weights = draw(rng, *k.shape), draw(rng, *k_state.shape)
    leaves = [state, *(config[name] for name in TENSORS if config[name].numel())]
    ours = torch.autograd.grad((k * weights).sum() + (k_state * state_weights).sum(), leaves)
    system = s4.system_of(config)
    k, k_state = s4.kernel_by_resolvent(system, L, state=state)
    theirs = torch.autograd.grad((k * weights).sum() + (k_state * state_weights).sum(), leaves)
    for a, b in zip(ours, theirs, strict=True):
        assert rel_rms(a, b) < 1e-10


@pytest.mark.parametrize("mode", s4.STEP_MODES)
def test_gradients_through_steps_and_states(mode: str, rng: torch.Generator) -> None:
    config = config_of(rng, H=2, N=2)
    kernel = kernel_of(config, 8)
    kernel._setup_step(mode)
    u = draw(rng, 2, 5).requires_grad_()
    state = torch.randn_like(kernel.default_state()).requires_grad_()
    assert torch.autograd.gradcheck(lambda u, s: kernel.step(u[:, 0], s), (u, state))
    assert torch.autograd.gradcheck(kernel.forward_state, (u, state))


def test_torch_compile(rng: torch.Generator) -> None:
    config = config_of(rng, torch.float32)
    kernel = kernel_of(config, 32)
    kernel(L=1)

    def loss(L: int) -> Tensor:
        return kernel(L=L)[0].square().sum()

    parameters = [config[name] for name in TENSORS]
    expected = torch.autograd.grad(loss(30), parameters)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for ours, theirs in zip(torch.autograd.grad(compiled(30), parameters), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    kernel._setup_step("linear")
    u, state = draw(rng, config["H"]).float(), kernel.default_state()
    step = torch.compile(kernel.step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(step(u, state), kernel.step(u, state))
    with torch.no_grad():
        config["B"].add_(1)
    kernel._setup_step("linear")
    torch.testing.assert_close(step(u, state), kernel.step(u, state))


def test_half_precision_parameters_are_computed_in_fp32(rng: torch.Generator) -> None:
    config = config_of(rng, torch.bfloat16)
    kernel = kernel_of(config, 16)
    k, _ = kernel()
    assert k.dtype == torch.float32
    system = s4.system_of(config)
    assert rel_rms(k, s4.kernel_by_resolvent(system, 16)[0]) < 1e-5


def test_real_systems(rng: torch.Generator) -> None:
    config = config_of(rng) | {"is_real": True, "A_imag": None}
    for name in ("B", "C", "P"):
        config[name] = nn.Parameter(config[name].detach()[..., 0].clone())
    expected, _ = oracle(config, 30)
    kernel = kernel_of(config, 16)
    assert rel_rms(kernel(L=30)[0], expected) < 1e-11
    assert config["C"].shape == (2, 3, 4)


def test_kernels_of_length_zero(rng: torch.Generator) -> None:
    config = config_of(rng)
    kernel = kernel_of(config)
    k, k_state = kernel(L=0, state=draw(rng, 2, 3, 4, dtype=torch.complex128))
    assert k.shape == (2, 3, 0) and k_state.shape == (2, 2, 3, 0) and kernel.l_kernel == 0
    with pytest.raises(ValueError, match=r"^S4Kernel: L: expected a length, as l_max is None and no call had one, got None$"):
        kernel()
    assert kernel(L=4)[0].shape == (2, 3, 4)
    assert kernel(L=0)[0].shape == (2, 3, 0)
    bounded = kernel_of(config_of(rng), 64)
    assert bounded(L=0)[0].shape == (2, 3, 0) and bounded.l_kernel == 0


def steps(config: dict[str, Any], u: Tensor, state: Tensor) -> Any:
    return kernel_of(config).step(u, state)


BAD: dict[str, tuple[Any, str]] = {
    "channels": (lambda c: S4Kernel(3, 8, 1, c), r"channels: expected 2 as param_config has, got 1"),
    "d_model": (lambda c: S4Kernel(4, 8, 2, c), r"d_model: expected 3 as param_config has, got 4"),
    "l_max": (lambda c: S4Kernel(3, -1, 2, c), r"l_max: expected None or a length, got -1"),
    "missing": (lambda c: kernel_of(c | {"B": None}), r"param_config: expected B too, got A_real, .*"),
    "shape": (lambda c: kernel_of(c | {"B": c["B"][:, :2]}), r"B: expected real numbers \(1, 3, 4, 2\), got .* \(1, 2, 4, 2\)"),
    "transform": (lambda c: kernel_of(c | {"dt_transform": "tanh"}), r"dt_transform: expected one of \(.*\), got 'tanh'"),
    "repeat": (lambda c: kernel_of(c | {"repeat": 2}), r"repeat: expected a divisor of H=3, got 2"),
    "no P": (lambda c: kernel_of(c | {"P": None}), r"P: expected \(rank=1, …\), got None"),
    "rate": (lambda c: kernel_of(c)(L=3, rate=0.0), r"rate: expected a positive number, got 0.0"),
    "L": (lambda c: kernel_of(c)(L=-1), r"L: expected an integer >= 0, got -1"),
    "length": (lambda c: kernel_of(c, 16.5), r"l_max: expected None or a length, got 16.5"),
    "float L": (lambda c: kernel_of(c)(L=8.0), r"L: expected an integer >= 0, got 8.0"),
    "text L": (lambda c: kernel_of(c)(L="8"), r"L: expected an integer >= 0, got '8'"),
    "batches": (
        lambda c: steps(c, torch.zeros(3, 3), torch.zeros(4, 2, 3, 8)),
        r"state: expected \(…, 3, 8\) with leading dimensions that broadcast with \(3,\) of u, got \(4, 2, 3, 8\)",
    ),
    "batches of many": (
        lambda c: kernel_of(c).forward_state(torch.zeros(3, 3, 0), torch.zeros(2, 3, 4)),
        r"state: expected \(…, 3, 4\) or \(…, 3, 8\) with leading .* \(3,\) of u, got \(2, 3, 4\)",
    ),
    "complex u": (
        lambda c: steps(c, torch.zeros(3) + 0j, torch.zeros(3, 8)),
        r"u: expected real numbers \(…, 3\), got torch.complex64 \(3,\)",
    ),
    "state": (lambda c: kernel_of(c)(L=2, state=torch.zeros(2, 3, 5)), r"state: expected .* or .*, 3, 8\), got \(2, 3, 5\)"),
    "mode": (lambda c: kernel_of(c)._setup_step("fast"), r"mode: expected one of \(.*\), got 'fast'"),
    "u": (
        lambda c: steps(c, torch.zeros(2), torch.zeros(3, 8)),
        r"u: expected real numbers \(…, 3\), got torch.float32 \(2,\)",
    ),
    "step": (lambda c: steps(c, torch.zeros(3), torch.zeros(3, 4)), r"state: expected \(…, 3, 8\), got \(3, 4\)"),
    "u of many": (
        lambda c: kernel_of(c).forward_state(torch.zeros(5), torch.zeros(3, 8)),
        r"u: expected real numbers \(…, 3, L\), got .*",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_say_what_is_wrong(name: str, rng: torch.Generator) -> None:
    call, message = BAD[name]
    with pytest.raises(ValueError, match=f"^S4Kernel: {message}$"):
        call(config_of(rng))
