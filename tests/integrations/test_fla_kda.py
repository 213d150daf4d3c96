"""gdn_cuda.compat.fla's functions of Kimi Delta Attention, compared with the recurrence written out; what they refuse."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from helpers import rel_rms
from torch import Tensor

from gdn_cuda.compat import fla

B, T, H, HV, K, V = 2, 9, 2, 4, 16, 24
OFFSETS = [0, 0, 5, 9]
SIGNATURES = {  # fla-core 0.6.0
    "chunk_kda": "q k v g beta scale initial_state output_final_state use_qk_l2norm_in_kernel use_gate_in_kernel "
    "use_beta_sigmoid_in_kernel allow_neg_eigval safe_gate lower_bound disable_recompute return_intermediate_states "
    "state_v_first cu_seqlens cu_seqlens_cpu cp_context use_graph max_num_seqs A_log dt_bias chunk_size",  # the last 3 in **kw
    "fused_recurrent_kda": "q k v g beta A_log dt_bias scale initial_state output_final_state use_qk_l2norm_in_kernel "
    "use_gate_in_kernel use_beta_sigmoid_in_kernel allow_neg_eigval lower_bound state_v_first cu_seqlens",
    "fused_kda_gate": "g A_log dt_bias lower_bound output_dtype",
    "naive_recurrent_kda": "q k v g beta scale initial_state output_final_state",
}


@pytest.fixture
def device() -> str:
    return "cpu"


def literal(x: dict[str, Any], v_first: bool = False) -> tuple[Tensor, Tensor]:
    """FLA's naive recurrence in fp64, with states (N, HV, K, V)."""
    q, k, v, g, beta, state = (x[name].double() for name in ("q", "k", "v", "g", "beta", "initial_state"))
    q, k = (y.repeat_interleave(HV // H, 2) for y in (q, k))
    outputs, state = [], state.mT if v_first else state
    for t in range(q.shape[1]):
        state = state * g[:, t, ..., None].exp()
        error = v[:, t] - (state * k[:, t, ..., None]).sum(-2)
        state = state + k[:, t, ..., None] * (beta[:, t, :, None] * error)[..., None, :]
        outputs.append(x.get("scale", K**-0.5) * (state * q[:, t, ..., None]).sum(-2))
    return torch.stack(outputs, 1), state.mT if v_first else state


def inputs(rng: torch.Generator, device: str, dtype: torch.dtype = torch.float32, rows: int = B) -> dict[str, Any]:
    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng)

    x = {"q": draw(B, T, H, K), "k": torch.nn.functional.normalize(draw(B, T, H, K), dim=-1), "v": draw(B, T, HV, V)}
    x = {name: y.to(dtype) for name, y in x.items()}
    x |= {"g": -draw(B, T, HV, K).exp(), "beta": torch.rand(B, T, HV, generator=rng), "initial_state": draw(rows, HV, K, V)}
    return {name: y.to(device) for name, y in x.items()}


def agree(found: tuple[Tensor, Tensor | None], expected: tuple[Tensor, Tensor], bound: float = 1e-5) -> bool:
    """Whether outputs and states are within rounding; a prefill on a GPU multiplies 16-bit factors where rows have 16 bits."""
    rounded = 5e-3 if found[0].is_cuda and bound > 1e-5 else 1e-5
    return found[1] is not None and rel_rms(found[0], expected[0]) < bound and rel_rms(found[1], expected[1]) < rounded


RULES = ["chunk_kda", "fused_recurrent_kda"]


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_are_those_of_fla(name: str) -> None:
    parameters = inspect.signature(getattr(fla, name)).parameters
    assert [p for p in parameters if parameters[p].kind is not inspect.Parameter.VAR_KEYWORD] == SIGNATURES[name].split()


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_recurrence(name: str, v_first: bool, dtype: torch.dtype, device: str, rng: torch.Generator) -> None:
    x = inputs(rng, device, dtype) | {"scale": 0.3}
    if v_first:
        x["initial_state"] = x["initial_state"].mT.contiguous()
    rule = getattr(fla, name)
    found = rule(**x, output_final_state=True, state_v_first=v_first)
    assert agree(found, literal(x, v_first), 1e-5 if dtype == torch.float32 else 5e-3)
    assert found[0].dtype == dtype and found[1].dtype == torch.float32
    assert rule(**x, state_v_first=v_first)[1] is None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again = rule(**x, output_final_state=True, transpose_state_layout=v_first)
    assert [each.category for each in caught] == [DeprecationWarning]
    assert all(torch.equal(*pair) for pair in zip(found, again, strict=True))


@pytest.mark.parametrize("name", RULES)
def test_packed_sequences(name: str, device: str, rng: torch.Generator) -> None:
    x = inputs(rng, device, rows=len(OFFSETS) - 1)
    packed = {name: y[:1] if name != "initial_state" else y for name, y in x.items()}
    offsets = torch.tensor(OFFSETS, device=device)
    output, state = getattr(fla, name)(**packed, cu_seqlens=offsets, output_final_state=True)
    assert torch.equal(state[0], x["initial_state"][0])
    for n, (first, end) in enumerate(pairwise(OFFSETS[1:]), 1):
        alone = {name: y[:1, first:end] for name, y in x.items()} | {"initial_state": x["initial_state"][n : n + 1]}
        assert agree((output[:, first:end], state[n : n + 1]), literal(alone))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("A_log, lower_bound", [(True, None), (True, -5.0), (False, -5.0)])
@pytest.mark.parametrize("bias", [True, False])
def test_gates_inside(name: str, A_log: bool, lower_bound: float | None, bias: bool, device: str, rng: torch.Generator) -> None:
    """A_log as models keep it, (1, 1, H, 1), and a flat bias; the gate alone is the gate inside."""
    x = inputs(rng, device)
    raw, logits = torch.randn(B, T, HV, K, generator=rng).to(device), torch.randn(B, T, HV, generator=rng).to(device)
    parameters = {
        "A_log": torch.randn(1, 1, HV, 1, generator=rng).to(device) if A_log else None,
        "dt_bias": torch.randn(HV * K, generator=rng).to(device) if bias else None,
        "lower_bound": lower_bound,
    }
    z = raw.double() + (parameters["dt_bias"].double().view(HV, K) if bias else 0)
    rate = parameters["A_log"].double().exp().view(HV, 1) if A_log else 1
    gate = -rate * torch.logaddexp(z, torch.zeros_like(z)) if lower_bound is None else lower_bound * (rate * z).sigmoid()
    assert rel_rms(fla.fused_kda_gate(raw, **parameters), gate) < 3e-6
    short = fla.fused_kda_gate(raw, **parameters, output_dtype=torch.bfloat16)
    assert short.dtype == torch.bfloat16 and rel_rms(short, gate) < 4e-3
    options = {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}
    found = getattr(fla, name)(**(x | {"g": raw, "beta": logits}), **parameters, **options, output_final_state=True)
    assert agree(found, literal(x | {"g": gate, "beta": 2 * logits.double().sigmoid()}))
    if A_log:  # without use_gate_in_kernel they are not read
        found = getattr(fla, name)(**x, **parameters, output_final_state=True)
        assert agree(found, literal(x))


@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("lengths", [None, [0, 70, 64, 1], [], [0]])
def test_states_between_chunks(lengths: list[int] | None, v_first: bool, device: str, rng: torch.Generator) -> None:
    """The states before every 64 tokens, of padded and of packed sequences, with the count from either copy of the offsets."""
    B, T = (2, 130) if lengths is None else (1, sum(lengths))
    spans = [(0, T)] * B if lengths is None else list(pairwise([0, *torch.tensor(lengths, dtype=int).cumsum(0).tolist()]))
    shapes = {"q": (B, T, H, K), "k": (B, T, H, K), "v": (B, T, HV, V), "g": (B, T, HV, K), "beta": (B, T, HV)}
    x = {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}
    x |= {"k": torch.nn.functional.normalize(x["k"], dim=-1), "g": -x["g"].exp(), "beta": x["beta"].sigmoid()}
    x["initial_state"] = torch.randn(len(spans), HV, K, V, generator=rng)
    x = {name: y.to(device) for name, y in x.items()}
    options: dict[str, Any] = {"output_final_state": True, "return_intermediate_states": True, "state_v_first": v_first}
    given = x | {"initial_state": x["initial_state"].mT.contiguous()} if v_first else x
    if lengths is not None:
        options["cu_seqlens"] = torch.tensor([0, *(end for _, end in spans)], device=device)
    output, state, between = fla.chunk_kda(**given, **options)
    rows = [-(-(end - first) // 64) for first, end in spans]
    assert between.shape == (B, rows[0] if lengths is None else sum(rows), HV, *((V, K) if v_first else (K, V)))
    assert between.dtype == x["k"].dtype
    flat = (between.mT if v_first else between).flatten(0, 1)
    for n, (first, _) in enumerate(spans):
        row = n if lengths is None else 0
        for c in range(rows[n]):
            part = {name: y[row : row + 1, first : first + 64 * c] for name, y in x.items() if name != "initial_state"}
            part["initial_state"] = x["initial_state"][n : n + 1]
            expected = literal(part)[1] if c else part["initial_state"]
            assert rel_rms(flat[sum(rows[:n]) + c][None], expected) < 1e-5
    if lengths is not None:
        again = fla.chunk_kda(**given, **options, cu_seqlens_cpu=options["cu_seqlens"].cpu())
        assert all(torch.equal(*pair) for pair in zip((output, state, between), again, strict=True))


def test_options_that_change_nothing(device: str, rng: torch.Generator) -> None:
    x = inputs(rng, device)
    expected = fla.chunk_kda(**x, output_final_state=True)
    options = {"safe_gate": True, "disable_recompute": True, "use_graph": True, "max_num_seqs": 7, "chunk_size": 32}
    found = fla.chunk_kda(**x, **options, output_final_state=True, another=None)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_the_gate_of_any_leading_dimensions(device: str, rng: torch.Generator) -> None:
    g, A_log = torch.randn(3, 1, 2, HV, K, generator=rng).to(device), torch.randn(HV, generator=rng).to(device)
    for given in (g, g[0, 0, 0], g[:0], g.transpose(0, 2)):
        found = fla.fused_kda_gate(given, A_log)
        assert found.shape == given.shape
        torch.testing.assert_close(found, -A_log.exp()[:, None] * torch.nn.functional.softplus(given), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("lower_bound", [None, -5.0])
def test_gradients_of_the_gate(lower_bound: float | None, device: str, rng: torch.Generator) -> None:
    shapes = ((2, 3, HV, K), (HV,), (HV, K))
    leaves = [torch.randn(shape, generator=rng, dtype=torch.float64).to(device).requires_grad_() for shape in shapes]
    assert torch.autograd.gradcheck(lambda *x: fla.fused_kda_gate(*x, lower_bound, torch.float64), leaves)
    narrow = [x.detach().float().requires_grad_() for x in leaves]
    (fla.fused_kda_gate(*narrow, lower_bound) ** 2).sum().backward()
    assert all(x.grad is not None and x.grad.dtype == torch.float32 for x in narrow)


def test_the_naive_recurrence_and_its_gradients(device: str, rng: torch.Generator) -> None:
    x = inputs(rng, device)
    found = fla.naive_recurrent_kda(**x, output_final_state=True)
    assert agree(found, literal(x))
    small = {name: y[:1, :3].double().requires_grad_() for name, y in x.items() if name != "initial_state"}
    assert torch.autograd.gradcheck(lambda *y: fla.naive_recurrent_kda(*y, output_final_state=True), list(small.values()))
    assert fla.naive_recurrent_kda(**inputs(rng, device, torch.bfloat16))[0].dtype == torch.bfloat16


def test_backward_of_the_recurrence_is_refused(device: str, rng: torch.Generator) -> None:
    x = inputs(rng, device)
    output, _ = fla.fused_recurrent_kda(**(x | {"q": x["q"].requires_grad_()}))
    with pytest.raises(RuntimeError, match="recurrent_forward"):
        output.sum().backward()


@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("raw, lower_bound", [(False, None), (True, None), (True, -5.0)])
def test_gradients_of_the_chunked_form(
    raw: bool, lower_bound: float | None, packed: bool, v_first: bool, device: str, rng: torch.Generator
) -> None:
    """Those of every tensor, compared with autograd's through the recurrence in fp64."""
    x = inputs(rng, device, rows=len(OFFSETS) - 1 if packed else B)
    if packed:
        x = {name: y[:1] if name != "initial_state" else y for name, y in x.items()}
    if raw:
        shapes = {"g": x["g"].shape, "beta": x["beta"].shape, "A_log": (1, 1, HV, 1), "dt_bias": (HV * K,)}
        x |= {name: torch.randn(shape, generator=rng).to(device) for name, shape in shapes.items()}
    if v_first:
        x["initial_state"] = x["initial_state"].mT.contiguous()
    weights = [torch.randn(x[name].shape, generator=rng).to(device) for name in ("v", "initial_state")]

    def gradients(x: dict[str, Tensor], run: Callable[[dict[str, Tensor]], tuple[Tensor, Tensor | None]]) -> dict[str, Tensor]:
        leaves = {name: y.detach().clone().requires_grad_() for name, y in x.items()}
        loss = sum((y * w).sum() for y, w in zip(run(leaves), weights, strict=True))
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    def exact(x: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        if raw:
            z, rate = x["g"] + x["dt_bias"].view(HV, K), x["A_log"].exp().view(HV, 1)
            gate = -rate * torch.nn.functional.softplus(z) if lower_bound is None else lower_bound * (rate * z).sigmoid()
            x = x | {"g": gate, "beta": 2 * x["beta"].sigmoid()}
        if not packed:
            return literal(x, v_first)
        outputs, states = [], [x["initial_state"][:1]]
        for n, (first, end) in enumerate(pairwise(OFFSETS[1:]), 1):
            alone = {name: x[name][:, first:end] for name in ("q", "k", "v", "g", "beta")}
            output, state = literal(alone | {"initial_state": x["initial_state"][n : n + 1]}, v_first)
            outputs.append(output)
            states.append(state)
        return torch.cat(outputs, 1), torch.cat(states)

    options: dict[str, Any] = {"output_final_state": True, "state_v_first": v_first, "lower_bound": lower_bound}
    if raw:
        options |= {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True}
    if packed:
        options["cu_seqlens"] = torch.tensor(OFFSETS, device=device)
    found = gradients(x, lambda x: fla.chunk_kda(**x, **options))
    expected = gradients({name: y.double() for name, y in x.items()}, exact)
    for name, gradient in expected.items():
        assert found[name].dtype == torch.float32 and rel_rms(found[name], gradient) < 1e-5, name


def test_a_bound_without_A_log_has_gradients(device: str, rng: torch.Generator) -> None:
    x = inputs(rng, device) | {"dt_bias": torch.randn(HV * K, generator=rng).to(device)}
    leaves = [x["g"].requires_grad_(), x["dt_bias"].requires_grad_()]
    gates = -5 * (x["g"].double() + x["dt_bias"].double().view(HV, K)).sigmoid()
    expected = torch.autograd.grad(literal(x | {"g": gates})[0].sum(), leaves)
    output, _ = fla.chunk_kda(**x, use_gate_in_kernel=True, lower_bound=-5.0)
    for found, wanted in zip(torch.autograd.grad(output.sum(), leaves), expected, strict=True):
        assert rel_rms(found, wanted) < 1e-5


def test_states_between_chunks_have_no_gradients(device: str, rng: torch.Generator) -> None:
    x = inputs(rng, device)
    given = x | {"q": x["q"].clone().requires_grad_()}
    with pytest.raises(ValueError, match=r"^chunk_kda: return_intermediate_states: expected False where an input requires a"):
        fla.chunk_kda(**given, return_intermediate_states=True)
    with torch.no_grad():
        fla.chunk_kda(**given, return_intermediate_states=True)


@pytest.mark.parametrize("name", RULES)
def test_refusals(name: str, device: str, rng: torch.Generator) -> None:
    x = inputs(rng, device)
    heads = torch.zeros(HV, device=device)
    for changes, argument in (
        ({"g": x["g"][..., 0]}, "g"),
        ({"g": x["g"][..., :1]}, "g"),
        ({"use_gate_in_kernel": True}, "A_log"),
        ({"use_gate_in_kernel": True, "A_log": heads, "dt_bias": heads}, "dt_bias"),
        ({"use_gate_in_kernel": True, "lower_bound": 1.0}, "lower_bound"),
        ({"allow_neg_eigval": True}, "allow_neg_eigval"),
        ({"head_first": False}, "head_first"),
        ({"initial_state": x["initial_state"].mT}, "initial_state"),
        ({"v": x["v"][:, :1]}, "v"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: {argument}: expected "):
            getattr(fla, name)(**(x | changes))
    for given in ((x["g"],), (x["g"], heads, heads), (x["g"], heads, None, 0.0)):
        with pytest.raises(ValueError, match=r"^fused_kda_gate: (A_log|dt_bias|lower_bound): expected "):
            fla.fused_kda_gate(*given)


def test_refusals_of_the_chunked_form(device: str, rng: torch.Generator) -> None:
    x, between = inputs(rng, device), {"return_intermediate_states": True}
    for changes, argument in (
        ({"cp_context": object()}, "cp_context"),
        ({"chunk_size": 16}, "chunk_size"),
        (between | {"chunk_size": 32}, "return_intermediate_states"),
        (between | {"use_graph": True}, "return_intermediate_states"),
    ):
        with pytest.raises(ValueError, match=f"^chunk_kda: {argument}: expected "):
            fla.chunk_kda(**(x | changes))
