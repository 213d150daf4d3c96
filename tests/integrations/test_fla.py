"""FLA's dispatch with gdn_cuda.integrations.fla: counted calls, compared with FLA's own definition of the recurrence."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import literal_fla
import pytest
import torch
import torch.nn.functional as F
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import integrations
from gdn_cuda.integrations import Refused
from gdn_cuda.integrations import fla as integration

if not integration.available()[0]:
    pytest.skip(integration.available()[1], allow_module_level=True)

import fla.modules.causal_conv1d.ops as conv_ops
import fla.ops.gated_delta_rule as theirs
import fla.ops.gated_delta_rule.chunk as chunk_module
import fla.ops.gated_delta_rule.fused_recurrent as recurrent_module
from fla.modules import FusedRMSNormGated, ShortConvolution
from fla.ops.gated_delta_rule import naive_recurrent_gated_delta_rule

H, HV, K, V = 2, 4, 64, 64
BF16 = 5e-3


@pytest.fixture
def device() -> str:
    return "cpu"


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    integration.install(cpu=True)
    integrations.reset_calls()
    yield
    integration.uninstall()


def counts() -> dict[str, dict[str, int]]:
    return {name.partition(".")[2]: count for name, count in integrations.calls("fla").items()}


def inputs(
    rng: torch.Generator, B: int, T: int, N: int | None = None, dtype: torch.dtype = torch.bfloat16, device: str = "cpu"
) -> dict[str, Tensor]:
    q, k, v = (torch.randn(B, T, heads, size, generator=rng).to(dtype) for heads, size in ((H, K), (H, K), (HV, V)))
    g, beta = -torch.rand(B, T, HV, generator=rng), torch.rand(B, T, HV, generator=rng)
    x = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "initial_state": torch.randn(N or B, HV, K, V, generator=rng)}
    return {name: y.to(device) for name, y in x.items()}


def naive(x: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    q, k = (F.normalize(x[name].double(), dim=-1, eps=1e-6).repeat_interleave(HV // H, 2) for name in ("q", "k"))
    return naive_recurrent_gated_delta_rule(q, k, x["v"], x["beta"], x["g"], None, x["initial_state"], True)


def check(name: str, found: Any, expected: Any, dtype: torch.dtype = torch.bfloat16) -> None:
    """Compares within the error of the dtype; on a GPU a prefill's tensor cores multiply 16-bit factors."""
    rounded = found[0].is_cuda and name == "chunk_gated_delta_rule" and dtype != torch.float32
    assert rel_rms(found[0], expected[0]) < (1e-5 if dtype == torch.float32 else BF16)
    assert found[1].dtype == torch.float32 and rel_rms(found[1], expected[1]) < (BF16 if rounded else 1e-5)


OPTIONS = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
FUNCTIONS = ["chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_batch(name: str, dtype: torch.dtype, device: str, rng: torch.Generator) -> None:
    x = inputs(rng, 2, 70, dtype=dtype, device=device)
    found = getattr(theirs, name)(**x, **OPTIONS)
    assert found[0].dtype == dtype and counts() == {name: {"gdn_cuda": 1}}
    check(name, found, naive(x), dtype)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("v_first", [False, True])
def test_packed_sequences(name: str, v_first: bool, device: str, rng: torch.Generator) -> None:
    x, offsets = inputs(rng, 1, 100, N=2, device=device), [0, 37, 100]
    given = x | {"initial_state": x["initial_state"].mT.contiguous()} if v_first else x
    output, state = getattr(theirs, name)(
        **given, **OPTIONS, cu_seqlens=torch.tensor(offsets, device=device), state_v_first=v_first
    )
    assert counts() == {name: {"gdn_cuda": 1}} and output.shape == (1, 100, HV, V)
    for n, (start, end) in enumerate(pairwise(offsets)):
        alone = {key: y[n : n + 1] if key == "initial_state" else y[:, start:end] for key, y in x.items()}
        after = state[n : n + 1].mT if v_first else state[n : n + 1]
        check(name, (output[:, start:end], after), naive(alone))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_old_name_of_the_layout(name: str, device: str, rng: torch.Generator) -> None:
    x = inputs(rng, 1, 20, device=device)
    expected = getattr(theirs, name)(**x, **OPTIONS)
    x["initial_state"] = x["initial_state"].mT.contiguous()
    with pytest.warns(DeprecationWarning, match="transpose_state_layout"):
        found = getattr(theirs, name)(**x, **OPTIONS, transpose_state_layout=True)
    assert counts() == {name: {"gdn_cuda": 2}}
    assert rel_rms(found[0], expected[0]) < BF16 and rel_rms(found[1], expected[1].mT) < BF16


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("negative", [False, True])
def test_raw_gates(name: str, negative: bool, device: str, rng: torch.Generator) -> None:
    x = inputs(rng, 1, 20, device=device)
    A_log, dt_bias = torch.rand(HV, generator=rng).to(device), torch.randn(HV, generator=rng).to(device)
    raw = x | {name: torch.randn(1, 20, HV, generator=rng).to(device) for name in ("g", "beta")}
    flags = {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": negative}
    found = getattr(theirs, name)(**raw, **OPTIONS, **flags, A_log=A_log, dt_bias=dt_bias)
    assert counts() == {name: {"gdn_cuda": 1}}
    x["g"] = -A_log.exp() * F.softplus(raw["g"] + dt_bias)
    x["beta"] = raw["beta"].sigmoid() * (2 if negative else 1)
    check(name, found, naive(x))


def test_no_gate_no_beta_and_a_scale(device: str, rng: torch.Generator) -> None:
    x = inputs(rng, 1, 5, device=device)
    q, k, v = x["q"], F.normalize(x["k"], dim=-1), x["v"]
    output, state = theirs.fused_recurrent_gated_delta_rule(q, k, v, scale=0.5)
    assert state is None and counts() == {"fused_recurrent_gated_delta_rule": {"gdn_cuda": 1}}
    one, zero = torch.ones_like(x["beta"]), torch.zeros_like(x["g"])
    q, k = (y.repeat_interleave(HV // H, 2) for y in (q, k))
    assert rel_rms(output, naive_recurrent_gated_delta_rule(q, k, v, one, zero, 0.5)[0]) < BF16


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("packed", [False, True])
def test_gradients(name: str, packed: bool, device: str, rng: torch.Generator) -> None:
    """The call of FLA's layer, with gradients of all inputs, compared with the recurrence written out in fp64."""
    x = inputs(rng, 1, 70, N=2 if packed else 1, dtype=torch.float32, device=device)
    x |= {name: torch.randn(1, 70, HV, generator=rng).to(device) for name in ("g", "beta")}
    x |= {"A_log": torch.randn(HV, generator=rng).to(device), "dt_bias": torch.randn(HV, generator=rng).to(device)}
    flags = {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}
    options = OPTIONS | flags | {"cu_seqlens": torch.tensor([0, 33, 70], device=device) if packed else None}

    def run(function: Any, x: dict[str, Tensor]) -> tuple[Any, tuple[Tensor, ...]]:
        leaves = {name: y.detach().clone().requires_grad_() for name, y in x.items()}
        results = function(**leaves, **options)
        cotangents = [torch.cos(torch.arange(y.numel(), device=y.device)).view(y.shape).to(y) for y in results]
        return results, torch.autograd.grad(results, list(leaves.values()), cotangents)

    results, found = run(getattr(theirs, name), x)
    assert counts() == {name: {"gdn_cuda": 1}}
    expected, wanted = run(literal_fla.gated_delta_rule, {name: y.double() for name, y in x.items()})
    for a, b in zip((*results, *found), (*expected, *wanted), strict=True):
        assert a.dtype == torch.float32 and rel_rms(a, b) < 1e-4


def test_by_token_gradients_change_no_bit(device: str, rng: torch.Generator) -> None:
    """FLA's own function has no backward."""
    x = inputs(rng, 2, 70, device=device)
    expected = theirs.fused_recurrent_gated_delta_rule(**x, **OPTIONS)
    found = theirs.fused_recurrent_gated_delta_rule(**x | {"v": x["v"].clone().requires_grad_()}, **OPTIONS)
    assert counts() == {"fused_recurrent_gated_delta_rule": {"gdn_cuda": 2}}
    assert all(a.requires_grad and torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("trainer", ["Megatron 0.16", "Megatron main", "torchtitan 0.3"])
def test_calls_of_trainers_that_use_fla(trainer: str, device: str, rng: torch.Generator) -> None:
    """Exactly their arguments, with gradients, through FLA's dispatch."""
    x = inputs(rng, 1, 70, dtype=torch.float32, device=device)
    x.pop("initial_state")
    x |= {name: F.normalize(x[name], dim=-1).repeat_interleave(HV // H, 2) for name in ("q", "k")}
    leaves = {name: y.requires_grad_() for name, y in x.items()}
    none = {"initial_state": None, "output_final_state": False, "use_qk_l2norm_in_kernel": False}
    offsets = torch.tensor([0, 33, 70], dtype=torch.int32, device=device)
    packed = {"use_qk_l2norm_in_kernel": True, "cu_seqlens": offsets}
    if trainer == "Megatron 0.16":
        found = theirs.chunk_gated_delta_rule(x["q"], x["k"], x["v"], g=x["g"], beta=x["beta"], **none)
        wanted = literal_fla.gated_delta_rule(**x)
    elif trainer == "Megatron main":
        found = theirs.chunk_gated_delta_rule(**x, **none, cu_seqlens=offsets)
        wanted = literal_fla.gated_delta_rule(**x, cu_seqlens=offsets)
    else:
        found = theirs.chunk_gated_delta_rule(*x.values(), **packed, cu_seqlens_cpu=offsets.cpu())
        wanted = literal_fla.gated_delta_rule(**x, **packed)
    assert counts() == {"chunk_gated_delta_rule": {"gdn_cuda": 1}}
    assert rel_rms(found[0], wanted[0]) < 1e-5
    pairs = zip(*(torch.autograd.grad(y[0].square().sum(), list(leaves.values())) for y in (found, wanted)), strict=True)
    assert all(rel_rms(a, b) < 1e-4 for a, b in pairs)


# ---- Convolutions and norms


def test_short_convolution_with_states(device: str, rng: torch.Generator) -> None:
    """FLA's module: a prompt, then two packed ones, then single tokens, compared with torch's convolution."""
    torch.manual_seed(0)
    layer = ShortConvolution(24, 4, bias=True, activation="silu", backend="triton").to(device)
    whole = torch.randn(2, 20, 24, generator=rng).to(device)
    exact = F.conv1d(F.pad(whole.double().mT, (3, 0)), layer.weight.double(), layer.bias.double(), groups=24)
    expected = F.silu(exact).mT
    with torch.no_grad():
        first, cache = layer(whole[:, :9], output_final_state=True)
        packed = whole[:, 9:15].reshape(1, 12, 24)
        offsets = torch.tensor([0, 6, 12], device=device)
        rest, cache = layer(packed, cache=cache, output_final_state=True, cu_seqlens=offsets)
        steps = []
        for t in range(15, 20):
            step, cache = layer(whole[:, t : t + 1], cache=cache, output_final_state=True)
            steps.append(step)
        found = torch.cat([first, rest.view(2, 6, 24), *steps], 1)
    assert counts() == {"causal_conv1d": {"gdn_cuda": 2}, "causal_conv1d_update": {"gdn_cuda": 5}}
    assert rel_rms(found, expected) < 1e-6 and torch.equal(cache, whole[:, -4:].mT)


def test_gradients_of_convolution_and_norm(device: str, rng: torch.Generator) -> None:
    torch.manual_seed(0)
    conv, norm = ShortConvolution(24, 4, activation="silu").to(device), FusedRMSNormGated(24, eps=1e-6).to(device)
    x, g = (torch.randn(2, 9, 24, generator=rng).to(device).requires_grad_() for _ in range(2))
    found = torch.autograd.grad(norm(conv(x)[0], g).square().sum(), [x, g, conv.weight, norm.weight])
    assert counts() == {"causal_conv1d": {"gdn_cuda": 1}, "rms_norm_gated": {"gdn_cuda": 1}}

    wide = [y.detach().double().requires_grad_() for y in (x, g, conv.weight, norm.weight)]
    y = F.silu(F.conv1d(F.pad(wide[0].mT, (3, 0)), wide[2], groups=24).mT)
    y = y * (y.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * wide[3] * F.silu(wide[1])
    for gradient, expected in zip(found, torch.autograd.grad(y.square().sum(), wide), strict=True):
        assert rel_rms(gradient, expected) < 1e-5


def test_gradients_of_a_convolution_with_states(device: str, rng: torch.Generator) -> None:
    """A prompt and its continuation, then packed ones, of which two are shorter than the convolution."""
    torch.manual_seed(0)
    layer = ShortConvolution(24, 4, bias=True, activation="silu").to(device)
    x = torch.randn(2, 20, 24, generator=rng).to(device).requires_grad_()
    offsets = torch.tensor([0, 2, 19, 20], device=device)

    def run(convolve: Any, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        more = {"activation": "silu", "output_final_state": True}
        first, state = convolve(x[:, :9], weight, bias, **more)
        second, state = convolve(x[:, 9:], weight, bias, initial_state=state, **more)
        packed, states = convolve(x[:1], weight, bias, initial_state=state[[0, 1, 0]], cu_seqlens=offsets, **more)
        results = first, second, packed, state, states
        cotangents = [torch.cos(torch.arange(y.numel(), device=y.device)).view(y.shape).to(y) for y in results]
        return *results, *torch.autograd.grad(results, [x, weight, bias], cotangents)

    weight = layer.weight[:, 0].detach().requires_grad_()
    found = run(conv_ops.causal_conv1d, x, weight, layer.bias)
    assert counts() == {"causal_conv1d": {"gdn_cuda": 3}}
    wide = [y.detach().double().requires_grad_() for y in (x, weight, layer.bias)]
    for a, b in zip(found, run(literal_fla.causal_conv1d, *wide), strict=True):
        assert a.dtype == torch.float32 and rel_rms(a, b) < 1e-5


# ---- Calls that FLA's own kernels run


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of FLA's own functions that were called, which need a GPU."""
    names: list[str] = []
    for module, function in (
        (chunk_module, "ChunkGatedDeltaRuleFunction"),
        (recurrent_module, "FusedRecurrentFunction"),
    ):
        fake = type("Fake", (), {"apply": staticmethod(lambda *args, of=function: (names.append(of), None))})
        monkeypatch.setattr(module, function, fake)
    return names


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cp_context": object()}, "cp_context is given"),
        ({"use_gate_in_kernel": True}, "use_gate_in_kernel is given without A_log"),
        ({"head_first": False}, "chunk_gated_delta_rule: head_first: expected no value, as tensors are (B, T, H, ...)"),
    ],
)
def test_declined_calls_reach_triton(
    change: dict[str, Any], reason: str, reached: list[str], rng: torch.Generator, recwarn: pytest.WarningsRecorder
) -> None:
    x = inputs(rng, 1, 5) | change
    try:
        theirs.chunk_gated_delta_rule(**x)
    except (AssertionError, AttributeError, DeprecationWarning):  # FLA's own function raises it about its arguments
        reached.append("ChunkGatedDeltaRuleFunction")
    assert reached == ["ChunkGatedDeltaRuleFunction"]
    assert counts() == {"chunk_gated_delta_rule": {reason: 1}}


def test_a_call_that_our_operator_refuses_reaches_triton(reached: list[str], rng: torch.Generator) -> None:
    x = inputs(rng, 1, 5)
    x["k"] = x["k"].half()
    theirs.chunk_gated_delta_rule(**x)
    assert reached == ["ChunkGatedDeltaRuleFunction"]
    (reason,) = counts()["chunk_gated_delta_rule"]
    assert reason.startswith("chunk_gated_delta_rule: k: expected")


def test_gates_of_columns_reach_triton(reached: list[str], rng: torch.Generator) -> None:
    x = inputs(rng, 1, 5)
    x.pop("initial_state")
    theirs.fused_recurrent_gated_delta_rule(**x, gk=torch.zeros(1, 5, HV, K))
    assert reached == ["FusedRecurrentFunction"]
    reason = "fused_recurrent_gated_delta_rule: gk: expected None, as a head has one gate for all columns"
    assert counts() == {"fused_recurrent_gated_delta_rule": {reason: 1}}


def test_cpu_tensors_are_taken_only_when_asked(reached: list[str], rng: torch.Generator) -> None:
    integration.install()
    theirs.chunk_gated_delta_rule(**inputs(rng, 1, 5))
    assert reached == ["ChunkGatedDeltaRuleFunction"] and counts() == {"chunk_gated_delta_rule": {"tensors are on cpu": 1}}


# ---- install


def test_a_second_install_changes_nothing_and_uninstall_undoes_everything(reached: list[str], rng: torch.Generator) -> None:
    replaced = integration.install(cpu=True)
    assert "fla.ops.gated_delta_rule.fused_recurrent_gated_delta_rule" in replaced and replaced == integration.install(cpu=True)
    theirs.chunk_gated_delta_rule(**inputs(rng, 1, 5))
    assert counts() == {"chunk_gated_delta_rule": {"gdn_cuda": 1}}
    integration.uninstall()
    theirs.chunk_gated_delta_rule(**inputs(rng, 1, 5))
    assert reached == ["ChunkGatedDeltaRuleFunction"] and counts() == {"chunk_gated_delta_rule": {"gdn_cuda": 1}}
    assert theirs.fused_recurrent_gated_delta_rule.__module__ == recurrent_module.__name__
    assert not hasattr(theirs.fused_recurrent_gated_delta_rule, "__wrapped__")


def test_flas_switch(monkeypatch: pytest.MonkeyPatch, reached: list[str], rng: torch.Generator) -> None:
    monkeypatch.setenv("FLA_GDN_CUDA", "0")
    theirs.chunk_gated_delta_rule(**inputs(rng, 1, 5))
    assert reached == ["ChunkGatedDeltaRuleFunction"] and not counts()


def test_a_changed_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    integration.uninstall()
    monkeypatch.setattr(chunk_module, "chunk_gated_delta_rule", lambda q, k: None)
    with pytest.raises(Refused, match=r"chunk_gated_delta_rule: expected \(q, k, v, .*\), got \(q, k\)"):
        integration.install()
    assert not integration._replaced.names()
