"""gdn_cuda.compat.fla's functions of Kimi Delta Attention, compared with the recurrence written out; what they refuse."""

from __future__ import annotations

import inspect
import warnings
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
    return found[1] is not None and rel_rms(found[0], expected[0]) < bound and rel_rms(found[1], expected[1]) < 1e-5


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_are_those_of_fla(name: str) -> None:
    parameters = inspect.signature(getattr(fla, name)).parameters
    assert [p for p in parameters if parameters[p].kind is not inspect.Parameter.VAR_KEYWORD] == SIGNATURES[name].split()


@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_recurrence(v_first: bool, dtype: torch.dtype, device: str, rng: torch.Generator) -> None:
    x = inputs(rng, device, dtype) | {"scale": 0.3}
    if v_first:
        x["initial_state"] = x["initial_state"].mT.contiguous()
    found = fla.fused_recurrent_kda(**x, output_final_state=True, state_v_first=v_first)
    assert agree(found, literal(x, v_first), 1e-5 if dtype == torch.float32 else 4e-3)
    assert found[0].dtype == dtype and found[1].dtype == torch.float32
    assert fla.fused_recurrent_kda(**x, state_v_first=v_first)[1] is None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again = fla.fused_recurrent_kda(**x, output_final_state=True, transpose_state_layout=v_first)
    assert [each.category for each in caught] == [DeprecationWarning]
    assert all(torch.equal(*pair) for pair in zip(found, again, strict=True))


def test_packed_sequences(device: str, rng: torch.Generator) -> None:
    x = inputs(rng, device, rows=len(OFFSETS) - 1)
    packed = {name: y[:1] if name != "initial_state" else y for name, y in x.items()}
    offsets = torch.tensor(OFFSETS, device=device)
    output, state = fla.fused_recurrent_kda(**packed, cu_seqlens=offsets, output_final_state=True)
    assert torch.equal(state[0], x["initial_state"][0])
    for n, (first, end) in enumerate(pairwise(OFFSETS[1:]), 1):
        alone = {name: y[:1, first:end] for name, y in x.items()} | {"initial_state": x["initial_state"][n : n + 1]}
        assert agree((output[:, first:end], state[n : n + 1]), literal(alone))


@pytest.mark.parametrize("A_log, lower_bound", [(True, None), (True, -5.0), (False, -5.0)])
@pytest.mark.parametrize("bias", [True, False])
def test_gates_inside(A_log: bool, lower_bound: float | None, bias: bool, device: str, rng: torch.Generator) -> None:
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
    found = fla.fused_recurrent_kda(**(x | {"g": raw, "beta": logits}), **parameters, **options, output_final_state=True)
    assert agree(found, literal(x | {"g": gate, "beta": 2 * logits.double().sigmoid()}))
    if A_log:  # without use_gate_in_kernel they are not read
        found = fla.fused_recurrent_kda(**x, **parameters, output_final_state=True)
        assert agree(found, literal(x))


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


def test_refusals(device: str, rng: torch.Generator) -> None:
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
        with pytest.raises(ValueError, match=f"^fused_recurrent_kda: {argument}: expected "):
            fla.fused_recurrent_kda(**(x | changes))
    for given in ((x["g"],), (x["g"], heads, heads), (x["g"], heads, None, 0.0)):
        with pytest.raises(ValueError, match=r"^fused_kda_gate: (A_log|dt_bias|lower_bound): expected "):
            fla.fused_kda_gate(*given)
