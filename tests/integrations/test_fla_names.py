"""gdn_cuda.compat.fla: FLA's functions, with gradients, compared with the recurrence written out; what they accept and refuse;
and the calls of trainers, with exactly their arguments."""

from __future__ import annotations

import warnings
from typing import Any

import literal_fla
import pytest
import torch
import torch.nn.functional as F
from helpers import rel_rms
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gdn_cuda.compat import attention_gym
from gdn_cuda.compat import fla as names

H, HV, K, V = 2, 4, 16, 24
LEAVES = ("q", "k", "v", "g", "beta", "initial_state", "A_log", "dt_bias")
FUNCTIONS = [names.chunk_gated_delta_rule, names.fused_recurrent_gated_delta_rule]
RAW = {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "use_qk_l2norm_in_kernel": True}
each_function = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)


@pytest.fixture
def device() -> str:
    return "cpu"


def inputs(
    rng: torch.Generator, device: str, B: int = 2, T: int = 70, N: int | None = None, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """Normalised queries and keys, values, logarithms of decays and betas, and an initial state."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    q, k, v = (torch.randn(B, T, heads, size, generator=rng, dtype=torch.float64) for heads, size in ((H, K), (H, K), (HV, V)))
    x = {"q": F.normalize(q, dim=-1).to(dtype), "k": F.normalize(k, dim=-1).to(dtype), "v": v.to(dtype)}
    x |= {"g": -torch.rand(B, T, HV, generator=rng).to(wide), "beta": torch.rand(B, T, HV, generator=rng).to(wide)}
    x["initial_state"] = torch.randn(B if N is None else N, HV, K, V, generator=rng).to(wide)
    return {name: y.to(device) for name, y in x.items()}


def raw(x: dict[str, Any], rng: torch.Generator, bias: bool = True) -> dict[str, Any]:
    """The same with gates as a layer has them."""
    x = x | {name: torch.randn(x["g"].shape, generator=rng).to(x["v"]) for name in ("g", "beta")}
    x |= {"A_log": torch.randn(HV, generator=rng).to(x["initial_state"])}
    return x | RAW | ({"dt_bias": torch.randn(HV, generator=rng).to(x["initial_state"])} if bias else {})


def gradients(function: Any, x: dict[str, Any], positional: int = 0) -> tuple[tuple[Tensor, Tensor | None], dict[str, Tensor]]:
    """Results of `function(**x)`, the first arguments by position, and gradients of all its tensors."""
    leaves = {name: x[name].detach().clone().requires_grad_() for name in LEAVES if x.get(name) is not None}
    call = x | leaves
    first = [call.pop(name) for name in list(call)[:positional]]
    results = function(*first, **call)
    out, state = results
    cotangents = [torch.cos(torch.arange(y.numel(), device=y.device)).view(y.shape).to(y) for y in results if y is not None]
    torch.autograd.backward([y for y in results if y is not None], cotangents)
    return (out, state), {name: leaf.grad for name, leaf in leaves.items()}


def wide(x: dict[str, Any]) -> dict[str, Any]:
    return {name: y.double().cpu() if isinstance(y, Tensor) and y.is_floating_point() else y for name, y in x.items()}


def check(function: Any, x: dict[str, Any], tolerance: float = 0.0, positional: int = 0) -> None:
    """Results and gradients are those of the recurrence in fp64."""
    tolerance = tolerance or (1e-4 if x["v"].is_cuda else 1e-5)  # a GPU's exp and rsqrt are approximate
    known = {name: y for name, y in x.items() if name in literal_fla.gated_delta_rule.__annotations__}
    (out, state), found = gradients(function, x, positional)
    (expected, expected_state), wanted = gradients(literal_fla.gated_delta_rule, wide(known))
    assert out.dtype == x["v"].dtype and rel_rms(out, expected) < tolerance
    assert (state is None) == (expected_state is None)
    if state is not None:
        assert rel_rms(state, expected_state) < tolerance
    assert set(found) == set(wanted)
    for name, gradient in found.items():
        assert gradient.dtype == x[name].dtype and rel_rms(gradient, wanted[name]) < tolerance, name


# ---- Results and gradients


@each_function
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": 0.3, "output_final_state": True},
        {"use_qk_l2norm_in_kernel": True, "output_final_state": True},
        {"use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True},
    ],
    ids=str,
)
def test_gradients_of_every_input(function: Any, options: dict[str, Any], device: str, rng: torch.Generator) -> None:
    check(function, inputs(rng, device) | options)


@each_function
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("negative", [True, False])
def test_gates_and_norms_inside(function: Any, bias: bool, negative: bool, device: str, rng: torch.Generator) -> None:
    x = raw(inputs(rng, device), rng, bias) | {"allow_neg_eigval": negative, "output_final_state": True}
    check(function, x)


@each_function
@pytest.mark.parametrize("v_first", [False, True])
def test_packed_sequences(function: Any, v_first: bool, device: str, rng: torch.Generator) -> None:
    x = inputs(rng, device, 1, 100, N=3) | {"output_final_state": True, "state_v_first": v_first}
    if v_first:
        x["initial_state"] = x["initial_state"].mT.contiguous()
    x["cu_seqlens"] = torch.tensor([0, 37, 37, 100], device=device)
    check(function, x)


@each_function
def test_no_state_and_no_final_one(function: Any, device: str, rng: torch.Generator) -> None:
    x = inputs(rng, device)
    x["initial_state"] = None
    check(function, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype, device: str, rng: torch.Generator) -> None:
    x = raw(inputs(rng, device, dtype=dtype), rng) | {"output_final_state": True}
    check(names.chunk_gated_delta_rule, x, 15e-3 if device == "cuda" else 8e-3)


def test_betas_without_gates(device: str, rng: torch.Generator) -> None:
    x = inputs(rng, device)
    x.pop("g")
    check(names.fused_recurrent_gated_delta_rule, x)
    x.pop("beta")
    check(names.fused_recurrent_gated_delta_rule, x | {"use_beta_sigmoid_in_kernel": True})
    check(names.fused_recurrent_gated_delta_rule, x)


@each_function
def test_without_gradients_the_results_are_the_same(function: Any, device: str, rng: torch.Generator) -> None:
    x = raw(inputs(rng, device), rng) | {"output_final_state": True}
    expected, _ = gradients(function, x)
    with torch.no_grad():
        found = function(**x)
    assert all(rel_rms(a, b) < 1e-5 and a.dtype == b.dtype for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("state_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("packed", [False, True])
def test_by_token_gradients_change_no_bit(
    dtype: torch.dtype, state_dtype: torch.dtype, packed: bool, device: str, rng: torch.Generator
) -> None:
    """A policy is trained on the numbers that it was sampled with. Chunks have other bits, but a GPU computes fp32 tokens token
    by token in any case."""
    x = raw(inputs(rng, device, 1, 90, N=2 if packed else 1, dtype=dtype), rng) | {"output_final_state": True}
    x |= {"initial_state": x["initial_state"].to(state_dtype)}
    x |= {"cu_seqlens": torch.tensor([0, 33, 90], device=device) if packed else None}
    found, _ = gradients(names.fused_recurrent_gated_delta_rule, x)
    with torch.no_grad():
        expected = names.fused_recurrent_gated_delta_rule(**x)
        by_chunks = names.chunk_gated_delta_rule(**x)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, expected, strict=True))
    assert device == "cuda" or not torch.equal(found[1], by_chunks[1])


@each_function
def test_gradcheck(function: Any, rng: torch.Generator) -> None:
    x = raw(inputs(rng, "cpu", 1, 5, dtype=torch.float64), rng) | {"output_final_state": True}
    leaves = [x[name].requires_grad_() for name in LEAVES]

    def run(*tensors: Tensor) -> Any:
        return function(**x | dict(zip(LEAVES, tensors, strict=True)))

    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)


# ---- FLA's defaults


@each_function
def test_states_are_views_and_fp32(function: Any, device: str, rng: torch.Generator) -> None:
    x = inputs(rng, device, dtype=torch.bfloat16)
    assert function(**x)[1] is None
    for given in (x, x | {"initial_state": x["initial_state"].bfloat16()}, x | {"initial_state": None}):
        _, state = function(**given, output_final_state=True)
        assert state.dtype == torch.float32 and state.shape == (2, HV, K, V) and state.mT.is_contiguous()
        _, v_first = function(
            **given | {"initial_state": None if given["initial_state"] is None else given["initial_state"].mT},
            output_final_state=True,
            state_v_first=True,
        )
        assert v_first.is_contiguous() and torch.equal(v_first, state.mT)
    assert function(**x, output_final_state=None)[1] is None


def test_aliases() -> None:
    assert names.chunk_gdn is names.chunk_gated_delta_rule
    assert names.fused_recurrent_gdn is names.fused_recurrent_gated_delta_rule


def test_chunk_sizes_and_precomputed_offsets_change_nothing(device: str, rng: torch.Generator) -> None:
    x = inputs(rng, device, 1, 70)
    x["cu_seqlens"] = torch.tensor([0, 70], device=device)
    expected = names.chunk_gated_delta_rule(**x)[0]
    more = {"cu_seqlens_cpu": x["cu_seqlens"].cpu(), "chunk_indices": torch.tensor([[0, 0], [0, 1]], device=device)}
    for size in (16, 32, 64):
        assert torch.equal(names.chunk_gated_delta_rule(**x, **more, chunk_size=size, unknown=1)[0], expected)


@each_function
def test_the_old_name_of_the_layout_warns(function: Any, device: str, rng: torch.Generator) -> None:
    x = inputs(rng, device) | {"output_final_state": True}
    x["initial_state"] = x["initial_state"].mT
    with pytest.warns(DeprecationWarning, match="state_v_first") as caught:
        found = function(**x, transpose_state_layout=True)
    assert caught[0].filename == __file__
    assert torch.equal(found[1], function(**x, state_v_first=True)[1])


@each_function
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"head_first": False}, r"head_first: expected no value, .*, got False"),
        ({"transpose_state_layout": False, "state_v_first": True}, r"transpose_state_layout: expected no value beside"),
        ({"allow_neg_eigval": True}, r"allow_neg_eigval: expected False without use_beta_sigmoid_in_kernel, got True"),
        ({"use_gate_in_kernel": True}, r"A_log: expected a tensor \(HV,\) with use_gate_in_kernel, got None"),
        ({"k": torch.zeros(2, 69, H, K)}, r"k: expected"),
        ({"initial_state": torch.zeros(2, HV, V, K)}, r"initial_state: expected"),
        ({"g": torch.zeros(2, 70, H)}, r"g: expected"),
    ],
    ids=str,
)
def test_refusals(function: Any, change: dict[str, Any], error: str, rng: torch.Generator) -> None:
    for needs in (False, True):
        x = inputs(rng, "cpu") | change
        x["v"].requires_grad_(needs)
        with pytest.raises(ValueError, match=rf"^{function.__name__}: {error}"):
            function(**x)


@pytest.mark.parametrize(
    ("function", "change", "error"),
    [
        (FUNCTIONS[0], {"chunk_size": 48}, "chunk_size: expected 16, 32 or 64, got 48"),
        (
            FUNCTIONS[0],
            {"cp_context": object()},
            "cp_context: expected None, or what build_cp_context .*, got a object",
        ),
        (FUNCTIONS[1], {"gk": torch.zeros(1)}, "gk: expected None, .*, got a tensor"),
        (FUNCTIONS[1], {"gv": torch.zeros(1)}, "gv: expected None, .*, got a tensor"),
        (
            FUNCTIONS[1],
            {"g": None, "use_gate_in_kernel": True, "A_log": torch.zeros(HV)},
            "g: expected raw gates with use_gate_in_kernel, got None",
        ),
    ],
)
def test_refusals_of_one_function(function: Any, change: dict[str, Any], error: str, rng: torch.Generator) -> None:
    with pytest.raises(ValueError, match=rf"^{function.__name__}: {error}"):
        function(**inputs(rng, "cpu") | change)


# ---- Compiled and checkpointed


@each_function
def test_compiled(function: Any, rng: torch.Generator) -> None:
    x = raw(inputs(rng, "cpu"), rng) | {"output_final_state": True}
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    (out, state), found = gradients(compiled, x)
    (expected, last), wanted = gradients(function, x)
    assert torch.equal(out, expected) and torch.equal(state, last)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant: bool, device: str, rng: torch.Generator) -> None:
    x = raw(inputs(rng, device), rng)
    given = list(x)

    def run(**call: Any) -> Any:
        tensors = [call[name] for name in given]
        return checkpoint(lambda *y: FUNCTIONS[0](**dict(zip(given, y, strict=True))), *tensors, use_reentrant=reentrant)

    _, found = gradients(run, x)
    _, wanted = gradients(FUNCTIONS[0], x)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


# ---- The calls of trainers


def repeated(x: dict[str, Any]) -> dict[str, Any]:
    """Queries and keys with the heads of values."""
    return x | {name: x[name].repeat_interleave(HV // H, 2) for name in ("q", "k")}


def test_flas_layer(device: str, rng: torch.Generator) -> None:
    x = raw(inputs(rng, device), rng)
    x["initial_state"] = x["initial_state"].mT.contiguous()
    order = ("q", "k", "v", "g", "beta", "initial_state", "use_qk_l2norm_in_kernel", "use_beta_sigmoid_in_kernel")
    x |= {"output_final_state": True, "allow_neg_eigval": False, "state_v_first": True, "cu_seqlens": None}
    check(names.chunk_gated_delta_rule, {name: x[name] for name in order} | x)


def test_megatron_0_16(device: str, rng: torch.Generator) -> None:
    x = repeated(inputs(rng, device)) | {"initial_state": None, "output_final_state": False, "use_qk_l2norm_in_kernel": False}
    check(names.chunk_gated_delta_rule, x, positional=3)
    # Its deterministic mode calls a function in torch, as FLA's is not deterministic. This one is.
    first, second = (gradients(names.chunk_gated_delta_rule, x, 3)[1] for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("packed", [False, True])
def test_megatron_main(packed: bool, device: str, rng: torch.Generator) -> None:
    """What its `backend_slot("gated_delta_rule", variant="gdn")` returns is called with keywords alone."""
    x = repeated(inputs(rng, device, 1, 90)) | {"initial_state": None, "output_final_state": False}
    x |= {"use_qk_l2norm_in_kernel": False, "cu_seqlens": torch.tensor([0, 33, 90], device=device) if packed else None}
    check(names.chunk_gated_delta_rule, x)
    check(names.chunk_gated_delta_rule, x | {"scale": 0.25})


@pytest.mark.parametrize("packed", [False, True])
def test_torchtitan_0_3(packed: bool, device: str, rng: torch.Generator) -> None:
    x = repeated(inputs(rng, device, 1, 90))
    x.pop("initial_state")
    x |= {"use_qk_l2norm_in_kernel": True, "cu_seqlens": None}
    if packed:
        x |= {"cu_seqlens": torch.tensor([0, 33, 90], dtype=torch.int32, device=device)}
    by_token = x.copy()
    x |= {"cu_seqlens_cpu": None if x["cu_seqlens"] is None else x["cu_seqlens"].cpu()}
    check(names.chunk_gated_delta_rule, x, positional=5)
    call = {name: by_token[name] for name in ("q", "k", "v", "g")} | by_token
    check(names.fused_recurrent_gated_delta_rule, call, positional=4)


@pytest.mark.parametrize("state", [False, True])
def test_torchtitan_main(state: bool, device: str, rng: torch.Generator) -> None:
    """attention-gym's chunk_gdn: the state comes before the scale, and q and k are normalised by the caller."""
    x = inputs(rng, device, 1, 90, N=2)
    last = x.pop("initial_state")
    offsets = torch.tensor([0, 33, 90], dtype=torch.int32, device=device)
    options = {"cu_seqlens": offsets, "scale": 0.25, "output_final_state": state, "impl": "fused", "kernel_options": None}
    given = x | ({"initial_state": last} if state else {}) | options
    check(attention_gym.chunk_gdn, given, positional=6 if state else 5)
    if not state:  # as its layer calls it; FLA's name takes that call too
        check(names.chunk_gdn, given, positional=5)


def test_warnings_are_none_in_ordinary_calls(rng: torch.Generator) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for function in FUNCTIONS:
            gradients(function, inputs(rng, "cpu"))
