"""recurrent_forward with a gate for every channel of the key, by gdn/recurrent_any, against the recurrence in fp64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from devices import Device
from helpers import rel_rms
from kda_cases import BETAS, GATES, KEYS, agrees, decays, drawn_keys, literal, log_decays, packed_literal
from torch import Tensor

import gdn_cuda

OUTPUT_BOUND = {torch.float32: 1e-5, torch.bfloat16: 3e-3, torch.float16: 4e-4}
STATE_BOUND = 1e-5


def recurrent(device: Device, *tensors: Tensor | None, **options: Any) -> tuple[Tensor, Tensor]:
    there = [None if x is None else x.to(device.name) for x in tensors]
    options = {name: x.to(device.name) if isinstance(x, Tensor) else x for name, x in options.items()}
    with device.only("gdn/recurrent_any", "gdn/decode", "gdn/verify", "gdn/recurrent"):
        output, state = gdn_cuda.recurrent_forward(*there, **options)
    return output.cpu(), state.cpu()


# ---- A channel's decay: with beta 0, the state diag(1) becomes diag(decay)


def decays_of(device: Device, gate: Tensor, **options: Any) -> Tensor:
    """gate (H, dk) → its decays as the kernel computes them."""
    heads, dk = gate.shape
    rows = torch.zeros(1, 1, 1, dk)
    value, beta, state = torch.zeros(1, 1, heads, dk), torch.zeros(1, 1, heads), torch.eye(dk).expand(1, heads, dk, dk)
    _, after = recurrent(device, rows, rows, value, state, beta, gate[None, None], **options)
    off_diagonal = ~torch.eye(dk, dtype=torch.bool).expand_as(after)
    assert not after[off_diagonal].nan_to_num().any()
    return after[0].diagonal(dim1=-2, dim2=-1)


def near(found: Tensor, expected: Tensor, gate: Tensor) -> bool:
    """Decays are within rounding of their logarithms, and of 1."""
    error = (found.double() - expected).abs()
    return bool((error <= expected * (3e-7 + 1e-5 * expected.clamp(min=1e-40).log().abs()) + 2e-38).all())


RAW = [
    -torch.inf,
    -200.0,
    -90.0,
    -87.0,
    -20.0,
    -17.0,
    -12.0,
    -7.0,
    -3.0,
    -1.0,
    -1e-3,
    0.0,
    1e-6,
    1.0,
    5.0,
    19.9,
    20.1,
    88.0,
    1e4,
    torch.inf,
]


RATES = [-torch.inf, -10.0, 0.0, math.log(16), math.log(201), 50.0, 70.0, 100.0]
BOUNDS = [-5.0, -0.1, -200.0]


@pytest.mark.parametrize(
    "lower_bound, A_log",
    [*((bound, rate) for bound in (None, *BOUNDS) for rate in RATES), *((bound, None) for bound in BOUNDS)],
)
def test_decays_of_raw_gates(lower_bound: float | None, A_log: float | None, device: Device) -> None:
    # 0 · ∞ is not defined, and exp(100) is finite in fp64 alone.
    only_finite = A_log == -torch.inf or (A_log == 100.0 and lower_bound is not None)
    raw = torch.tensor([x for x in RAW if not only_finite or math.isfinite(x)])[None]
    options = {"lower_bound": lower_bound, "A_log": None if A_log is None else torch.tensor([A_log])}
    assert near(decays_of(device, raw, **options), decays(raw, **options), raw)


def test_logarithms_and_linear_decays(device: Device) -> None:
    gate = torch.tensor([[0.0, -1e-6, -1e-3, -1.0, -5.0, -50.0, -86.0, -104.0, -2661.0, -1e8, -torch.inf]])
    found = decays_of(device, gate)
    assert near(found, decays(gate), gate) and not found[0, 7:].any() and found[0, 0] == 1
    linear = torch.tensor([[0.0, 2e-38, 0.25, 1.0]])
    assert torch.equal(decays_of(device, linear, gate_is_linear=True), linear)


@pytest.mark.parametrize("lower_bound", [None, -5.0])
def test_biases_and_rates(lower_bound: float | None, device: Device, rng: torch.Generator) -> None:
    """For each head and channel; flat, a view of other heads' rows, of every dtype."""
    raw, rates, bias = (torch.randn(*shape, generator=rng) for shape in ((3, 20), (3,), (3, 40)))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        options = {"A_log": rates.to(dtype), "dt_bias": bias.to(dtype)[:, :20], "lower_bound": lower_bound}
        expected = decays(raw.to(dtype), **options)
        for given in (options["dt_bias"], options["dt_bias"].flatten()):
            assert near(decays_of(device, raw.to(dtype), **(options | {"dt_bias": given})), expected, raw)


@pytest.mark.parametrize(
    "options", [{}, {"gate_is_linear": True}, {"A_log": torch.zeros(2)}, {"lower_bound": -5.0}], ids=lambda x: "-".join(x)
)
def test_nan_stays_in_its_head(options: dict[str, Any], device: Device) -> None:
    found = decays_of(device, torch.tensor([[torch.nan, 1.0], [0.5, 1.0]]), **options)
    assert torch.equal(found.isnan(), torch.tensor([[True, True], [False, False]]))


# ---- The recurrence


def inputs(
    lengths: tuple[int, int], heads: tuple[int, int], dk: int, dv: int, rng: torch.Generator, gates: str, keys: str, beta: float
) -> list[Tensor]:
    """query, key, value, state, beta, gate of a padded batch (B, T)."""
    (B, T), (Hk, Hv) = lengths, heads
    query, value = torch.randn(B, T, Hk, dk, generator=rng), torch.randn(B, T, Hv, dv, generator=rng)
    key, gate = drawn_keys(keys, (B, T, Hk, dk), rng), log_decays(gates, (B, T, Hv, dk), rng)
    betas = beta * torch.rand(B, T, Hv, generator=rng) if beta == 1 else torch.full((B, T, Hv), beta)
    return [query, key, value, torch.randn(B, Hv, dv, dk, generator=rng), betas, gate]


def check(device: Device, x: list[Tensor], io: torch.dtype = torch.float32) -> None:
    query, key, value = (y.to(io) for y in x[:3])
    state, beta, gate = x[3:]
    output, last = recurrent(device, query, key, value, state, beta, gate, is_qk_norm=True)
    if value.shape[1] == 0:
        assert torch.equal(last, state)
        return
    expected, states = literal(query, key, value, beta, decays(gate), state, norm=True)
    assert agrees(output, expected, OUTPUT_BOUND[io]) and agrees(last, states[:, -1], STATE_BOUND)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("gates", GATES)
def test_hostile_values(gates: str, keys: str, beta: float, device: Device, rng: torch.Generator) -> None:
    lengths = device.size((1, 17), (2, 65))
    check(device, inputs(lengths, (1, 2), 24, 16, rng, gates, keys, beta))


@pytest.mark.parametrize("tokens", [0, 1, 2, 63, 64, 65])
def test_lengths(tokens: int, device: Device, rng: torch.Generator) -> None:
    for gates in ("init", "heavy", "channel reset"):
        check(device, inputs((1, tokens), (1, 1), 16, 8, rng, gates, "random", 1.0))


@pytest.mark.parametrize("io", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dk, dv", [(1, 1), (7, 33), (64, 16), (128, 128), (129, 8), (256, 24)])
def test_sizes(dk: int, dv: int, io: torch.dtype, device: Device, rng: torch.Generator) -> None:
    device.skip_above(4000, dk * dv)
    check(device, inputs((2, 3), (1, 3), dk, dv, rng, "bounded", "random", 1.0), io)


def test_nothing_before_a_reset_shows_in_its_column(device: Device, rng: torch.Generator) -> None:
    """Infinities and NaN of the state that a sequence starts from."""
    for poison in (torch.inf, torch.nan):
        x = inputs((1, 3), (1, 2), 24, 16, rng, "init", "random", 1.0)
        x[5][0, 0, :, 5] = -torch.inf
        clean = x[3].clone()
        x[3][..., 5] = poison
        found = recurrent(device, *x, is_qk_norm=True)
        assert all(
            torch.equal(*pair) for pair in zip(found, recurrent(device, *x[:3], clean, *x[4:], is_qk_norm=True), strict=True)
        )
        assert found[1].isfinite().all()


@pytest.mark.parametrize("io", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("at", [3, 30])
def test_nothing_before_a_reset_of_all_channels_shows(at: int, io: torch.dtype, device: Device, rng: torch.Generator) -> None:
    """Kernels for bf16 have columns past dk, in which infinity times 0 is NaN."""
    x = inputs((1, at + 3), (1, 2), 24, 16, rng, "init", "random", 1.0)
    x[:3] = (y.to(io) for y in x[:3])
    x[5][0, at] = -torch.inf
    other = [y.clone() for y in x]
    x[2][0, 1], x[3][:] = torch.inf, torch.nan
    found, expected = recurrent(device, *x, is_qk_norm=True), recurrent(device, *other, is_qk_norm=True)
    assert torch.equal(found[0][:, at:], expected[0][:, at:]) and torch.equal(found[1], expected[1])
    assert found[1].isfinite().all()


def test_equal_channels_are_a_gate_for_each_head(device: Device, rng: torch.Generator) -> None:
    x = inputs((2, 9), (1, 2), 64, 24, rng, "heavy", "repeated", 1.0)
    gate = x[5][..., 0].contiguous()
    found = recurrent(device, *x[:5], gate[..., None].expand_as(x[5]), is_qk_norm=True)
    for each, expected in zip(found, recurrent(device, *x[:5], gate, is_qk_norm=True), strict=True):
        assert rel_rms(each, expected) < 1e-6


# ---- Everything else that recurrent_forward takes


OFFSETS = [0, 0, 5, 5, 14, 15]
TOKENS = 17  # the last two belong to no sequence


def packed(rng: torch.Generator, dk: int = 24, dv: int = 16) -> tuple[dict[str, Tensor], Tensor]:
    query, key, value, _, beta, gate = (x[0] for x in inputs((1, TOKENS), (1, 2), dk, dv, rng, "heavy", "random", 1.0))
    state = torch.randn(len(OFFSETS) - 1, 2, dv, dk, generator=rng)
    return {"query": query, "key": key, "value": value, "beta": beta, "gate": gate}, state


@pytest.mark.parametrize("with_batch", [False, True])
def test_packed_sequences(with_batch: bool, device: Device, rng: torch.Generator) -> None:
    """Sequences of no tokens among them, in the bits that each has alone; tokens after the last have outputs of 0."""
    x, state = packed(rng)
    order = ("query", "key", "value", "beta", "gate")
    q, k, v, beta, gate = (x[name][None] if with_batch else x[name] for name in order)
    out = torch.full_like(v, torch.nan).to(device.name)
    found, last = recurrent(device, q, k, v, state, beta, gate, cu_seqlens=torch.tensor(OFFSETS), is_qk_norm=True, out=out)
    expected, states = packed_literal(x | {"decay": decays(x["gate"])}, OFFSETS, state, norm=True)
    assert rel_rms(found.view(expected.shape), expected) < OUTPUT_BOUND[torch.float32] and not found.flatten()[-64:].any()
    assert rel_rms(last, states) < STATE_BOUND and torch.equal(last[0], state[0])
    first, end = OFFSETS[3:5]
    alone = [x[name][None, first:end] for name in order]
    output, after = recurrent(device, *alone[:3], state[3:4], *alone[3:], is_qk_norm=True)
    assert torch.equal(output[0], found.view(expected.shape)[first:end]) and torch.equal(after[0], last[3])


def strided(x: Tensor) -> Tensor:
    """The same values with another dimension contiguous, and gaps."""
    wide = torch.stack([x.transpose(-1, -2)] * 2, -1)
    return wide.contiguous()[..., 0].transpose(-1, -2)


def test_strides_and_dtypes(device: Device, rng: torch.Generator) -> None:
    """Views of any strides, gates of every dtype, states in [K, V], and a last state in a view of fp16."""
    x = inputs((2, 4), (2, 4), 24, 16, rng, "bounded", "random", 1.0)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x[5] = x[5].to(dtype)
        last = strided(torch.full_like(x[3], torch.nan, dtype=torch.float16).to(device.name))
        views = [strided(y.to(device.name)) for y in x]
        assert views[5].stride(-1) != 1
        found = recurrent(device, *views, is_qk_norm=True, final_state=last)
        expected = recurrent(device, *x, is_qk_norm=True)
        assert torch.equal(found[0], expected[0]) and torch.equal(last.cpu(), expected[1].half())


def test_states_after_every_token(device: Device, rng: torch.Generator) -> None:
    """A verify, and the next one from the states that were accepted; sequences without a state start from zeros."""
    x = inputs((3, 4), (1, 2), 24, 16, rng, "channel reset", "random", 1.0)
    starts = torch.tensor([True, False, True])
    mode = gdn_cuda.InferenceMode.SPEC_VERIFY
    output, steps = recurrent(device, *x, is_qk_norm=True, inference_mode=mode, has_initial_state=starts)
    state = x[3] * starts[:, None, None, None]
    expected, states = literal(*x[:3], x[4], decays(x[5]), state, norm=True)
    assert rel_rms(output, expected) < OUTPUT_BOUND[torch.float32] and rel_rms(steps, states) < STATE_BOUND
    accepted = torch.tensor([0, 2, 4])
    more = {"is_qk_norm": True, "inference_mode": mode, "num_accepted_tokens": accepted}
    output, after = recurrent(device, *x[:3], steps, *x[4:], **more)
    chosen = steps[torch.arange(3), accepted.clamp(min=1) - 1]
    again = recurrent(device, *x[:3], chosen, *x[4:], is_qk_norm=True)
    assert torch.equal(output, again[0]) and torch.equal(after[:, -1], again[1])


def test_more_heads_of_query(device: Device, rng: torch.Generator) -> None:
    query, _, _, state, beta, gate = inputs((1, 5), (4, 4), 24, 16, rng, "bounded", "random", 1.0)
    _, key, value, *_ = inputs((1, 5), (2, 2), 24, 16, rng, "none", "random", 1.0)
    output, last = recurrent(device, query, key, value, state, beta, gate, is_qk_norm=True)
    expected, states = literal(query, key, value.repeat_interleave(2, -2), beta, decays(gate), state, norm=True)
    assert rel_rms(output, expected) < OUTPUT_BOUND[torch.float32] and rel_rms(last, states[:, -1]) < STATE_BOUND


@pytest.mark.parametrize("lower_bound", [None, -5.0])
def test_gates_of_a_layer(lower_bound: float | None, device: Device, rng: torch.Generator) -> None:
    """Raw gates in bf16 beside rows in bf16, and logits of betas up to 2."""
    query, key, value, state, logits, gate = inputs((2, 9), (2, 2), 64, 24, rng, "none", "random", 0.0)
    gate, logits = torch.randn(gate.shape, generator=rng).bfloat16(), torch.randn(logits.shape, generator=rng).bfloat16()
    raw = {"A_log": torch.randn(2, generator=rng), "dt_bias": torch.randn(2, 64, generator=rng), "lower_bound": lower_bound}
    rows = [y.bfloat16() for y in (query, key, value)]
    more = {"beta_is_logit": True, "allow_negative_eigenvalues": True, "is_qk_norm": True}
    output, last = recurrent(device, *rows, state, logits, gate, **raw, **more)
    expected, states = literal(*rows, 2 * logits.double().sigmoid(), decays(gate, **raw), state, norm=True)
    assert rel_rms(output, expected) < OUTPUT_BOUND[torch.bfloat16] and rel_rms(last, states[:, -1]) < STATE_BOUND
