"""No layer drops a gradient silently: every method of every module of `gdn_cuda.nn` that computes has a case here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from history import Call, lost
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import gdn_cuda
from gdn_cuda.nn.gated_delta_net import GatedDeltaNetState
from gdn_cuda.nn.hyena import HyenaState
from gdn_cuda.nn.mamba import MambaState
from gdn_cuda.nn.mamba2 import Mamba2State

COMPUTE_NOTHING = {"default_state", "extra_repr", "new_state", "reset_parameters", "reset_recurrence", "system"}
COMPUTE_NOTHING |= {"drawn", "recurrence"}
Made = tuple[nn.Module, dict[str, Tensor]]  # a layer, and the tensors that are passed to a method

HIDDEN = 32


def draws(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype)


def delta_net(tokens: int, dtype: torch.dtype = torch.float32) -> Made:
    layer = gdn_cuda.nn.GatedDeltaNet(HIDDEN, (1, 2), 64, 8, dtype=dtype)
    state = layer.new_state(3)
    pools = {"conv": draws(*state.conv.shape, dtype=dtype), "recurrent": draws(*state.recurrent.shape)}
    return layer, {"x": draws(2, tokens, HIDDEN, dtype=dtype)} | pools


def kimi(tokens: int, dtype: torch.dtype = torch.float32) -> Made:
    layer = gdn_cuda.nn.KimiDeltaAttention(HIDDEN, (1, 2), 64, 8, dtype=dtype)
    return layer, delta_net(tokens, dtype)[1]


def run_delta_net(layer: Any, x: Tensor, conv: Tensor, recurrent: Tensor, step: bool = False) -> Tensor:
    """Runs a GatedDeltaNet or KimiDeltaAttention, whose states have the same parts."""
    slots = torch.tensor([2, 0])
    found: Tensor = (layer.step if step else layer)(x, GatedDeltaNetState(conv, recurrent), state_indices=slots)
    return found


def hyena(taps: int | None, *tokens: int) -> Made:
    layer = gdn_cuda.nn.HyenaCascade(4, taps, hyena_filter_groups=2)
    state = layer.default_state(2)
    states = {"fir": torch.randn_like(state.fir), "inner": torch.randn_like(state.inner)}
    return layer, {"u": draws(2, *tokens, 12)} | states


def run_hyena(layer: Any, u: Tensor, fir: Tensor, inner: Tensor, step: bool = False) -> Any:
    if step:
        return layer.step(u, HyenaState(fir, inner))
    return layer(u, HyenaState(fir, inner), return_state=True)


def mamba(*tokens: int) -> Made:
    layer = gdn_cuda.nn.Mamba(8, 4)
    state = layer.default_state(2)
    return layer, {"u": draws(2, *tokens, 8), "conv": torch.randn_like(state.conv), "ssm": torch.randn_like(state.ssm)}


def run_mamba(layer: Any, u: Tensor, conv: Tensor, ssm: Tensor, step: bool = False) -> Any:
    return layer.step(u, MambaState(conv, ssm)) if step else layer(u, MambaState(conv, ssm), return_last_state=True)


def mamba2(*tokens: int) -> Made:
    layer = gdn_cuda.nn.Mamba2(4, 3, headdim=2, ngroups=2, d_ssm=4)
    state = layer.default_state(2)
    return layer, {"u": draws(2, *tokens, 4), "conv": torch.randn_like(state.conv), "ssm": torch.randn_like(state.ssm)}


def run_mamba2(layer: Any, u: Tensor, conv: Tensor, ssm: Tensor, step: bool = False) -> Any:
    return layer.step(u, Mamba2State(conv, ssm)) if step else layer(u, Mamba2State(conv, ssm), return_last_state=True)


def s4(diagonal: bool, tokens: int, mode: str = "dense") -> Made:
    H, N = 2, 4
    config: dict[str, Any] = {"N": N, "H": H, "channels": 1, "rank": 1, "repeat": 1, "disc": "zoh", "dt_transform": "exp"}
    config |= {"real_transform": "exp", "imag_transform": "none"}
    config |= {name: nn.Parameter(0.3 * draws(1, H, N, 2)) for name in ("B", "C", "P") if not (diagonal and name == "P")}
    config |= {
        "A_real": nn.Parameter(draws(H, N)),
        "A_imag": nn.Parameter(draws(H, N)),
        "inv_dt": nn.Parameter(draws(H, 1) - 3),
    }
    layer = (gdn_cuda.nn.S4DKernel if diagonal else gdn_cuda.nn.S4Kernel)(H, 16, 1, config)
    layer._setup_step(*(() if diagonal else (mode,)))
    inputs = {"u": draws(3, H, tokens) if tokens else draws(3, H), "state": torch.randn_like(layer.default_state(3))}
    return layer, inputs


def run_s4(layer: Any, u: Tensor, state: Tensor) -> Any:
    return layer(L=8, state=state)[0]


def holding(module: type[nn.Module], **tensors: Tensor) -> nn.Module:
    return module(**{name: nn.Parameter(x) for name, x in tensors.items()})


def toeplitz(module: type[nn.Module], **more: Any) -> Made:
    c = draws(5) + torch.tensor([9.0, 0, 0, 0, 0])
    return module(nn.Parameter(c), nn.Parameter(torch.cat([c[:1], draws(4)]))), {"x": draws(5)}  # type: ignore[call-arg]


def with_state(
    make: Callable[[], nn.Module], u: tuple[int, ...], state: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> Made:
    return make(), {"u": draws(*u), "state": draws(*state, dtype=dtype)}


def forward(layer: Any, u: Tensor, state: Tensor) -> Any:
    return layer(u, state, return_last_state=True)


def step(layer: Any, u: Tensor, state: Tensor) -> Any:
    return layer.step(u, state)


def plain(layer: Any, **x: Tensor) -> Any:
    return layer(**x)


nets = gdn_cuda.nn
c64 = torch.complex64
POOLS, RAISES, STEP = ("conv", "recurrent"), "GatedDeltaNet", {"step": True}
# By class, method and case: a function that makes the layer and its inputs, the call, the written tensors, the name in errors.
Case = tuple[Callable[[], Made], Callable[..., Any], tuple[str, ...], str | None]
CASES: dict[tuple[type[nn.Module], str, str], Case] = {
    (nets.CauchyKernel, "forward", ""): (
        lambda: (holding(nets.CauchyKernel, omega=draws(5), lambd=draws(4)), {"v": draws(4)}),
        plain,
        (),
        None,
    ),
    (nets.DisplacementMV, "forward", ""): (
        lambda: (holding(nets.DisplacementMV, G=draws(5, 2), H=draws(5, 2)), {"x": draws(5)}),
        plain,
        (),
        None,
    ),
    (nets.GatedDeltaNet, "forward", ""): (partial(delta_net, 3), run_delta_net, POOLS, RAISES),
    (nets.GatedDeltaNet, "forward", "without a state"): (
        lambda: (delta_net(3)[0], {"x": draws(2, 3, HIDDEN)}),
        plain,
        (),
        None,
    ),
    (nets.GatedDeltaNet, "step", "bf16"): (
        partial(delta_net, 1, torch.bfloat16),
        partial(run_delta_net, **STEP),
        POOLS,
        f"{RAISES}.step",
    ),
    (nets.GatedDeltaNet, "step", "fp32"): (partial(delta_net, 1), partial(run_delta_net, **STEP), POOLS, f"{RAISES}.step"),
    (nets.KimiDeltaAttention, "forward", ""): (partial(kimi, 3), run_delta_net, POOLS, "KimiDeltaAttention"),
    (nets.KimiDeltaAttention, "forward", "without a state"): (
        lambda: (kimi(3)[0], {"x": draws(2, 3, HIDDEN)}),
        plain,
        (),
        None,
    ),
    **{
        (nets.KimiDeltaAttention, "step", str(dtype)): (
            partial(kimi, 1, dtype),
            partial(run_delta_net, **STEP),
            POOLS,
            "KimiDeltaAttention.step",
        )
        for dtype in (torch.bfloat16, torch.float32)
    },
    **{(nets.HyenaCascade, "forward", str(taps)): (partial(hyena, taps, 5), run_hyena, (), None) for taps in (None, 7, 128)},
    **{
        (nets.HyenaCascade, "step", str(taps)): (
            partial(hyena, taps),
            partial(run_hyena, **STEP),
            ("fir", "inner"),
            "HyenaCascade.step",
        )
        for taps in (None, 7, 128)
    },
    (nets.LRU, "forward", ""): (lambda: with_state(lambda: nets.LRU(4, 3), (2, 5, 4), (2, 3), c64), forward, (), None),
    (nets.LRU, "step", ""): (lambda: with_state(lambda: nets.LRU(4, 3), (2, 4), (2, 3), c64), step, (), None),
    (nets.Mamba, "forward", ""): (partial(mamba, 5), run_mamba, (), None),
    (nets.Mamba, "step", ""): (mamba, partial(run_mamba, **STEP), ("conv", "ssm"), "Mamba.step"),
    (nets.Mamba2, "forward", ""): (partial(mamba2, 5), run_mamba2, (), None),
    (nets.Mamba2, "forward", "without states"): (
        lambda: (mamba2()[0], {"u": draws(2, 5, 4)}),
        lambda layer, u: layer(u),
        (),
        None,
    ),
    (nets.Mamba2, "step", ""): (mamba2, partial(run_mamba2, **STEP), ("conv", "ssm"), "Mamba2.step"),
    (nets.RGLRU, "forward", ""): (lambda: with_state(lambda: nets.RGLRU(6, 2), (2, 5, 6), (2, 6)), forward, (), None),
    (nets.RGLRU, "step", ""): (lambda: with_state(lambda: nets.RGLRU(6, 2), (2, 6), (2, 6)), step, (), None),
    **{
        (layer, method, ""): (
            lambda layer=layer, tokens=tokens: with_state(lambda: layer(4, 6), (2, *tokens, 4), (2, 4, 3), c64),
            forward if tokens else step,
            (),
            None,
        )
        for layer in (nets.S4, nets.S4D)
        for method, tokens in (("forward", (5,)), ("step", ()))
    },
    **{
        (nets.S4DKernel if diagonal else nets.S4Kernel, "read", ""): (
            lambda diagonal=diagonal: (s4(diagonal, 0)[0], {"state": draws(3, 2, 4, dtype=c64)}),
            lambda layer, state: layer.read(state),
            (),
            None,
        )
        for diagonal in (True, False)
    },
    (nets.S4DKernel, "forward", ""): (partial(s4, True, 5), run_s4, (), None),
    (nets.S4DKernel, "forward_state", ""): (
        partial(s4, True, 5),
        lambda layer, u, state: layer.forward_state(u, state),
        (),
        None,
    ),
    (nets.S4DKernel, "step", ""): (partial(s4, True, 0), step, (), "S4DKernel.step"),
    (nets.S4Kernel, "forward", ""): (partial(s4, False, 5), run_s4, (), None),
    **{
        (nets.S4Kernel, "forward_state", mode): (
            partial(s4, False, 5, mode),
            lambda layer, u, state: layer.forward_state(u, state),
            (),
            "S4Kernel.forward_state",
        )
        for mode in ("dense", "diagonal")
    },
    **{
        (nets.S4Kernel, "step", mode): (partial(s4, False, 0, mode), step, (), "S4Kernel.step")
        for mode in ("dense", "linear", "diagonal")
    },
    (nets.S5, "forward", ""): (lambda: with_state(lambda: nets.S5(4, 6), (2, 5, 4), (2, 3), c64), forward, (), None),
    (nets.S5, "step", ""): (lambda: with_state(lambda: nets.S5(4, 6), (2, 4), (2, 3), c64), step, (), None),
    (nets.S6, "forward", ""): (lambda: with_state(lambda: nets.S6(4, 3), (2, 5, 4), (2, 4, 3)), forward, (), None),
    (nets.S6, "step", ""): (lambda: with_state(lambda: nets.S6(4, 3), (2, 4), (2, 4, 3)), step, ("state",), "S6.step"),
    (nets.S7, "forward", ""): (lambda: with_state(lambda: nets.S7(4, 3), (2, 5, 4), (2, 3)), forward, (), None),
    (nets.S7, "step", ""): (lambda: with_state(lambda: nets.S7(4, 3), (2, 4), (2, 3)), step, (), None),
    (nets.ShortConv, "forward", ""): (
        lambda: with_state(lambda: nets.ShortConv(4, bias=True), (2, 5, 4), (2, 4, 2)),
        lambda layer, u, state: layer(u, state, return_state=True),
        (),
        None,
    ),
    (nets.ShortConv, "step", ""): (
        lambda: with_state(lambda: nets.ShortConv(4, bias=True), (2, 4), (2, 4, 2)),
        step,
        ("state",),
        "ShortConv.step",
    ),
    (nets.ToeplitzInverse, "forward", ""): (partial(toeplitz, nets.ToeplitzInverse), plain, (), None),
    (nets.ToeplitzMV, "forward", ""): (partial(toeplitz, nets.ToeplitzMV), plain, (), None),
    (nets.ToeplitzSolve, "forward", ""): (partial(toeplitz, nets.ToeplitzSolve), lambda layer, x: layer(x), (), None),
    (nets.ToeplitzSolve, "solve_ex", ""): (
        partial(toeplitz, nets.ToeplitzSolve),
        lambda layer, x: layer.solve_ex(x)[0],
        (),
        None,
    ),
}
NAMES = [f"{module.__name__}.{method}{f'-{case}' * bool(case)}" for module, method, case in CASES]
RAISING = {name: case for name, case in zip(NAMES, CASES.values(), strict=True) if case[2] or case[3] == RAISES}


def call_of(case: Case) -> Call:
    make, run, written, raises = case

    def made() -> Made:
        torch.manual_seed(5)
        return make()

    def leaves() -> dict[str, Tensor]:
        layer, inputs = made()
        parameters = {name: nn.Parameter(x.detach().clone()) for name, x in layer.named_parameters()}
        return parameters | {name: x.clone() for name, x in inputs.items()}

    def with_parameters(**tensors: Tensor) -> Any:
        layer, inputs = made()
        given = {name: tensors[name] for name in inputs}
        for name in dict(layer.named_parameters()):
            owner, _, last = name.rpartition(".")
            setattr(layer.get_submodule(owner), last, tensors[name])  # the tensor itself: gradients are computed for it
        if hasattr(layer, "_setup_step"):  # computes the step's matrices from these parameters
            layer._setup_step(*((layer._step_mode,) if hasattr(layer, "_step_mode") else ()))
        return run(layer, **given)

    return Call(leaves, with_parameters, written, raises)


@pytest.mark.parametrize("case", CASES.values(), ids=NAMES)
def test_methods(case: Case) -> None:
    assert not lost(call_of(case))


def test_every_method_that_computes_has_a_case() -> None:
    methods = set()
    for name in gdn_cuda.nn.__all__:
        module = getattr(gdn_cuda.nn, name)
        owners = [each for each in module.__mro__ if each.__module__.startswith("gdn_cuda.nn")]
        for method, function in {key: x for each in owners for key, x in vars(each).items()}.items():
            if inspect.isfunction(function) and not method.startswith("_") and method not in COMPUTE_NOTHING:
                methods.add((module, method))
    assert methods == {(module, method) for module, method, _ in CASES}


# ---- In every mode of differentiation


def a_call(case: Case) -> tuple[nn.Module, dict[str, Tensor], Callable[[], Any]]:
    torch.manual_seed(6)
    layer, inputs = case[0]()
    return layer, inputs, lambda: case[1](layer, **inputs)


def first(found: Any) -> Tensor:
    y: Tensor = found if isinstance(found, Tensor) else found[0]
    return y


@pytest.mark.parametrize("case", RAISING.values(), ids=RAISING)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_outside_grad_mode_nothing_has_a_history(case: Case, mode: Any) -> None:
    _, inputs, call = a_call(case)
    with mode():
        y = first(call())
    assert not y.requires_grad and not any(x.requires_grad for x in inputs.values())


@pytest.mark.parametrize("case", RAISING.values(), ids=RAISING)
def test_where_nothing_requires_a_gradient_nothing_has_a_history(case: Case) -> None:
    layer, inputs, call = a_call(case)
    layer.requires_grad_(False)
    assert not first(call()).requires_grad and not any(x.requires_grad for x in inputs.values())


@pytest.mark.parametrize("case", RAISING.values(), ids=RAISING)
def test_calls_go_on_from_states_with_a_history(case: Case) -> None:
    """A decoding loop in grad mode: the graph does not grow, and results are those of no_grad."""
    _, inputs, call = a_call(case)
    found = [first(call()).detach() for _ in range(3)]
    _, fresh, again = a_call(case)
    with torch.no_grad():
        expected = [first(again()) for _ in range(3)]
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert all(torch.equal(x.detach(), fresh[name]) for name, x in inputs.items())


@pytest.mark.parametrize("case", RAISING.values(), ids=RAISING)
def test_forward_mode_and_torch_func_are_refused(case: Case) -> None:
    _, inputs, call = a_call(case)
    argument = next(iter(inputs))
    before = {name: inputs[name].clone() for name in case[2]}
    x = inputs[argument]
    refused = pytest.raises(
        ValueError, match=rf"{case[3]}: {argument}: expected a tensor (without a tangent|outside torch.func)"
    )
    with forward_ad.dual_level(), refused:
        inputs[argument] = forward_ad.make_dual(x, torch.ones_like(x))
        call()

    def loss(y: Tensor) -> Tensor:
        inputs[argument] = y
        return first(call()).float().sum()

    refused = pytest.raises(ValueError, match=rf"{case[3]}: {argument}: expected a tensor outside torch.func")
    with refused:
        torch.func.grad(loss)(x)
    assert all(torch.equal(inputs[name], y) for name, y in before.items())


@pytest.mark.parametrize("case", RAISING.values(), ids=RAISING)
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpoints(case: Case, reentrant: bool) -> None:
    _, inputs, _ = a_call(case)
    layer = case[0]()[0]
    argument = next(iter(inputs))
    x = inputs[argument].requires_grad_()

    def block(y: Tensor) -> Tensor:
        return first(case[1](layer, **{name: z.detach().clone() for name, z in inputs.items()} | {argument: y}))

    y = checkpoint(block, x, use_reentrant=reentrant)
    assert isinstance(y, Tensor)
    with pytest.raises(RuntimeError, match=f"{case[3]}: no gradient is computed; for gradients use "):
        y.float().sum().backward()


@pytest.mark.parametrize("case", RAISING.values(), ids=RAISING)
def test_compiled_calls(case: Case) -> None:
    torch._dynamo.reset()
    _, fresh, call = a_call(case)
    with torch.no_grad():
        expected = first(call())
    layer, inputs, _ = a_call(case)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(inputs: dict[str, Tensor]) -> Any:
        return case[1](layer, **inputs)

    y = first(compiled(inputs))
    torch.testing.assert_close(y.detach(), expected)
    for name, x in inputs.items():
        torch.testing.assert_close(x.detach(), fresh[name])
    with pytest.raises(RuntimeError, match=f"{case[3]}: no gradient is computed; for gradients use "):
        y.float().sum().backward()
    torch._dynamo.reset()


def test_a_residual_around_a_layer_with_a_state() -> None:
    """Backward once passed here, with a wrong gradient for everything before the layer."""
    layer, before = delta_net(3)[0], nn.Linear(HIDDEN, HIDDEN)
    h = before(draws(2, 3, HIDDEN))
    with pytest.raises(RuntimeError, match=r"GatedDeltaNet: no gradient .*forward without a state"):
        (h + layer(h, layer.new_state(2))).sum().backward()
    assert before.weight.grad is None
