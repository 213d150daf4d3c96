"""The reference with a gate for every channel of the key, which CPU tensors run, against the recurrence written out in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import rel_rms
from kda_cases import BETAS, GATES, KEYS, agrees, decays, drawn_keys, literal, log_decays, packed_literal
from torch import Tensor

import gdn_cuda
from gdn_cuda import reference

B, HK, HV, DK, DV = 2, 1, 2, 16, 8
BOUND = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 4e-3}
FORMS: dict[str, dict[str, Any]] = {
    "log decay": {},
    "linear": {"gate_is_linear": True},
    "softplus": {"A_log": True},
    "softplus, bias": {"A_log": True, "dt_bias": True},
    "bounded": {"A_log": True, "dt_bias": True, "lower_bound": -5.0},
    "bound alone": {"lower_bound": -2.0},
}


FUNCTIONS = [gdn_cuda.recurrent_forward, gdn_cuda.chunked_forward]


def inputs(
    tokens: int, rng: torch.Generator, gates: str = "init", keys: str = "random", beta: float = 1.0
) -> dict[str, Tensor]:
    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng)

    x = {"query": draw(B, tokens, HK, DK), "key": drawn_keys(keys, (B, tokens, HK, DK), rng), "value": draw(B, tokens, HV, DV)}
    betas = torch.rand(B, tokens, HV, generator=rng) if beta == 1 else torch.full((B, tokens, HV), beta)
    return x | {"state": draw(B, HV, DV, DK), "beta": betas, "gate": log_decays(gates, (B, tokens, HV, DK), rng)}


def cast(x: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    wide = torch.promote_types(dtype, torch.float32)
    return {name: y.to(dtype if name in ("query", "key", "value") else wide) for name, y in x.items()}


@pytest.mark.parametrize("tokens", [0, 1, 2, 63, 64, 65])
@pytest.mark.parametrize("gates", GATES)
def test_hostile_values(gates: str, tokens: int, rng: torch.Generator) -> None:
    for keys in KEYS:
        for beta in BETAS:
            for dtype in (torch.float64, torch.float32) if keys == "repeated" else (torch.float64,):
                x = cast(inputs(tokens, rng, gates, keys, beta), dtype)
                order = (x["query"], x["key"], x["value"], x["beta"], decays(x["gate"]), x["state"])
                expected, states = literal(*order, norm=True) if tokens else (None, None)
                for found in (
                    gdn_cuda.recurrent_forward(**x, is_qk_norm=True),
                    gdn_cuda.chunked_forward(**x, use_qk_l2norm=True),
                ):
                    output, last = found
                    assert output.shape == (B, tokens, HV, DV) and output.dtype == last.dtype == dtype
                    if states is None:
                        assert torch.equal(last, x["state"])
                        continue
                    assert agrees(output, expected, BOUND[dtype]) and agrees(last, states[:, -1], BOUND[dtype]), (keys, beta)


def drawn(
    form: dict[str, Any], rng: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype
) -> tuple[Tensor, dict[str, Any]]:
    """A gate of this form and the options that belong to it."""
    options = dict(form)
    if options.get("A_log"):
        options["A_log"] = torch.randn(HV, generator=rng, dtype=dtype)
    if options.get("dt_bias"):
        options["dt_bias"] = torch.randn(HV, DK, generator=rng, dtype=dtype)
    gate = torch.randn(shape, generator=rng, dtype=dtype)
    raw = "A_log" in form or "lower_bound" in form
    return gate if raw else gate.sigmoid() if "gate_is_linear" in form else -gate.abs(), options


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_forms_of_gates(form: str, dtype: torch.dtype, rng: torch.Generator) -> None:
    x = cast(inputs(9, rng), dtype)
    x["gate"], options = drawn(FORMS[form], rng, x["gate"].shape, x["gate"].dtype)
    alpha = decays(x["gate"], **options)
    expected, states = literal(x["query"], x["key"], x["value"], x["beta"], alpha, x["state"])
    for function in FUNCTIONS:
        output, last = function(**x, **options)
        assert rel_rms(output, expected) < BOUND[dtype] and rel_rms(last, states[:, -1]) < min(BOUND[dtype], 1e-5)
        if "dt_bias" in options:
            flat = function(**x, **(options | {"dt_bias": options["dt_bias"].flatten()}))
            assert torch.equal(flat[0], output)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("with_batch", [False, True])
def test_packed_sequences(with_batch: bool, function: Any, rng: torch.Generator) -> None:
    offsets = [0, 0, 5, 5, 14, 15]
    x = {name: y[0] for name, y in inputs(17, rng, "heavy").items() if name != "state"}
    state = torch.randn(5, HV, DV, DK, generator=rng)
    given = {name: y[None] if with_batch else y for name, y in x.items()}
    output, last = function(**given, state=state, cu_seqlens=torch.tensor(offsets))
    expected, states = packed_literal(x | {"decay": decays(x["gate"])}, offsets, state)
    output = output[0] if with_batch else output
    assert rel_rms(output, expected) < 1e-5 and rel_rms(last, states) < 1e-5 and not output[15:].any()


def test_checkpoints_and_states_before_blocks(rng: torch.Generator) -> None:
    x, tokens = inputs(200, rng, "bounded"), 200
    _, states = literal(*(x[name] for name in ("query", "key", "value", "beta")), decays(x["gate"]), x["state"])
    before = torch.full((9, HV, DV, DK), torch.nan)
    _, last, checkpoints = gdn_cuda.chunked_forward(**x, checkpoint_every=64, states_before=before)
    assert rel_rms(checkpoints, states[:, 63:tokens:64].flatten(0, 1)) < 1e-5 and rel_rms(last, states[:, -1]) < 1e-5
    expected = torch.cat([x["state"][:, None], states[:, 63:tokens:64]], 1).flatten(0, 1)
    assert rel_rms(before[:8], expected) < 1e-5 and not before[8].any()


def test_a_pool(rng: torch.Generator) -> None:
    offsets = [0, 70, 70, 73, 80]
    x = {name: y[0] for name, y in inputs(81, rng, "channel reset").items() if name != "state"}
    pool = torch.randn(6, HV, DV, DK, generator=rng)
    old = pool.clone()
    read, write = torch.tensor([4, 1, -1, 2]), torch.tensor([3, 0, 5, -1])
    has_state = torch.tensor([True, True, True, False])
    options = {"state": pool, "state_indices": read, "write_indices": write, "has_initial_state": has_state}
    output, _ = gdn_cuda.chunked_forward(**x, **options, cu_seqlens=torch.tensor(offsets))
    start = torch.where(has_state[:, None, None, None], old[read], 0)
    expected, last = packed_literal(x | {"decay": decays(x["gate"])}, offsets, start)
    expected[70:73] = 0
    assert rel_rms(output, expected) < 1e-5 and rel_rms(pool[[3, 0]], last[:2]) < 1e-5
    assert torch.equal(pool[[1, 2, 4, 5]], old[[1, 2, 4, 5]])


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_states_after_any_token(channels: bool, padded: bool, rng: torch.Generator) -> None:
    offsets, at = [0, 70, 70, 140], [17, 0, 70]
    x = {name: y[0] for name, y in inputs(140, rng, "channel reset").items() if name != "state"}
    gate = x["gate"] if channels else x["gate"][..., 0].contiguous()
    alpha = decays(x["gate"] if channels else x["gate"][..., :1].expand(x["gate"].shape))
    state = torch.randn(3, HV, DV, DK, generator=rng)
    given: dict[str, Any] = {**x, "gate": gate, "state": state, "cu_seqlens": torch.tensor(offsets)}
    if padded:
        offsets, at = [0, 70, 140], [17, 70]
        given = {name: y.unflatten(0, (2, 70)) for name, y in {**x, "gate": gate}.items()} | {"state": state[:2]}
    output, last, rows = gdn_cuda.chunked_forward(**given, checkpoint_offsets=torch.tensor(at, dtype=torch.int32))
    names = ("query", "key", "value", "beta")
    expected, states = packed_literal(x | {"decay": alpha}, offsets, state[: len(at)])
    assert rel_rms(output.view(expected.shape), expected) < 1e-5 and rel_rms(last, states) < 1e-5
    for n, count in enumerate(at):
        span = slice(offsets[n], offsets[n] + count)
        wanted = (
            literal(*(x[name][None, span] for name in names), alpha[None, span], state[n : n + 1])[1][0, -1] if count else 0
        )
        assert (rows[n] - wanted).norm() <= 1e-5 * max(states[n].norm(), 1)


def test_equal_channels_are_a_gate_for_each_head(rng: torch.Generator) -> None:
    x = inputs(9, rng, "heavy", "repeated")
    gate = x["gate"][..., 0].contiguous()
    found = gdn_cuda.recurrent_forward(**(x | {"gate": gate[..., None].expand_as(x["gate"])}))
    for each, expected in zip(found, gdn_cuda.recurrent_forward(**(x | {"gate": gate})), strict=True):
        assert torch.equal(each, expected)


@pytest.mark.parametrize("poison", [torch.inf, torch.nan])
def test_nothing_before_a_reset_shows_in_its_column(poison: float, rng: torch.Generator) -> None:
    x = inputs(3, rng)
    x["gate"][:, 0, :, 5] = -torch.inf
    clean = gdn_cuda.recurrent_forward(**x)
    x["state"][..., 5] = poison
    for each, expected in zip(gdn_cuda.recurrent_forward(**x), clean, strict=True):
        assert torch.equal(each, expected) and each.isfinite().all()
    x["gate"][:, 1] = -torch.inf
    x["value"][:, 0] = poison
    output, last = gdn_cuda.recurrent_forward(**x)
    assert not output[:, 0].isfinite().any() and output[:, 1:].isfinite().all() and last.isfinite().all()


# ---- Gradients of the reference


@pytest.mark.parametrize("form", FORMS)
def test_gradients(form: str, rng: torch.Generator) -> None:
    x = cast(inputs(3, rng), torch.float64)
    x["gate"], options = drawn(FORMS[form], rng, x["gate"].shape, torch.float64)
    leaves = {name: y.requires_grad_() for name, y in (x | options).items() if isinstance(y, Tensor)}
    others = {name: y for name, y in options.items() if not isinstance(y, Tensor)}

    def run(*given: Tensor) -> Any:
        return reference.recurrent_forward(**dict(zip(leaves, given, strict=True)), **others)

    assert torch.autograd.gradcheck(run, list(leaves.values()))


def test_no_gradient_passes_a_reset(rng: torch.Generator) -> None:
    x = cast(inputs(3, rng), torch.float64)
    x["gate"][:, 1, :, 4] = -torch.inf
    leaves = {name: y.requires_grad_() for name, y in x.items()}
    output, last = reference.recurrent_forward(**leaves)
    (output[:, 1:].sum() + last.sum()).backward()
    assert all(y.grad is not None and y.grad.isfinite().all() for y in leaves.values())
    assert not leaves["gate"].grad[:, 1, :, 4].any()
    _, states = literal(
        *(x[name].detach() for name in ("query", "key", "value", "beta")), decays(x["gate"]).detach(), x["state"]
    )
    assert rel_rms(last.detach(), states[:, -1].detach()) < 1e-12


def test_the_gates_alone(rng: torch.Generator) -> None:
    a, A_log, bias = (torch.randn(shape, generator=rng) for shape in ((5, HV, DK), (HV,), (HV, DK)))
    for lower_bound in (None, -5.0):
        expected = decays(a, A_log, bias, lower_bound).log()
        for given in (a, a[None]):
            found = gdn_cuda.fused_kda_gating(A_log, bias, given, lower_bound)
            assert found.dtype == torch.float32 and rel_rms(found.view(expected.shape), expected) < 1e-6
        wide = [y.double() for y in (A_log, bias, a)]
        assert rel_rms(gdn_cuda.fused_kda_gating(*wide, lower_bound), expected) < 1e-12
        leaves = [y.requires_grad_() for y in wide]
        assert torch.autograd.gradcheck(lambda *y: reference.fused_kda_gating(*y, lower_bound), leaves)  # noqa: B023
