"""The C++ API of Gated Delta Net on CPU tensors, for which it calls the implementations that Python registers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cpp_api
import pytest
import torch
from torch import Tensor

import gdn_cuda
from gdn_cuda.layers.decode_layer import layer_arguments

SOURCE = Path(__file__).resolve().parents[1] / "gdn_api.cpp"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cpp_api.load(SOURCE, tmp_path_factory.mktemp("gdn_api"))


@pytest.fixture
def rows(seed: int) -> tuple[Tensor, ...]:
    """query, key, value, beta, gate of two sequences of 130 tokens."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(2, 130, *shape, generator=generator)

    query, key = (torch.nn.functional.normalize(draw(2, 16), dim=-1).bfloat16() for _ in range(2))
    return query, key, draw(4, 24).bfloat16(), draw(4).sigmoid(), -draw(4).abs()


def test_gating(api: Any) -> None:
    rates, x = torch.randn(4), torch.randn(2, 3, 4)
    for ours, expected in zip(
        api.fused_gdn_gating(rates, rates, x, x), gdn_cuda.fused_gdn_gating(rates, rates, x, x), strict=True
    ):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("with_out", [False, True])
def test_decode(api: Any, rows: tuple[Tensor, ...], with_out: bool) -> None:
    query, key, value, a, b = (x[:, :1] for x in rows)
    pools = [torch.ones(3, 4, 24, 16) for _ in range(2)]
    slots = torch.tensor([2, 0], dtype=torch.int32)
    out = torch.full_like(value.contiguous(), torch.nan) if with_out else None
    ours = api.fused_decode(query, key, value, a, b, a[0, 0], b[0, 0], pools[0], slots, out)
    expected = gdn_cuda.fused_decode(query, key, value, a, b, a[0, 0], b[0, 0], pools[1], slots)
    assert torch.equal(ours, expected)
    assert torch.equal(*pools)
    assert not with_out or ours.data_ptr() == out.data_ptr()


@pytest.mark.parametrize("lower_bound", [None, -5.0])
def test_decode_with_a_gate_for_every_channel(api: Any, rows: tuple[Tensor, ...], lower_bound: float | None) -> None:
    query, key, value, _, b = (x[:, :1] for x in rows)
    a, bias = torch.randn(*b.shape, key.shape[-1]), torch.randn(b.shape[-1], key.shape[-1])
    pools, slots = [torch.ones(3, 4, 24, 16) for _ in range(2)], torch.tensor([2, 0])
    A_log = None if lower_bound else b[0, 0]
    ours = api.fused_decode(query, key, value, a, b, A_log, bias, pools[0], slots, None, lower_bound)
    expected = gdn_cuda.fused_decode(query, key, value, a, b, A_log, bias, pools[1], slots, lower_bound=lower_bound)
    assert torch.equal(ours, expected) and torch.equal(*pools)


def test_a_layers_step(api: Any, seed: int) -> None:
    given = [layer_arguments(2, 3, seed, "split") | {"conv_bias": None} for _ in range(2)]
    names = ("qkvz", "ba", "z", "a", "conv_weight", "A_log", "dt_bias", "norm_weight", "conv_pool", "state_pool")
    ours = api.gdn_decode_layer(*(given[0][name] for name in names), *given[0]["heads"], given[0]["dk"], given[0]["dv"])
    assert torch.equal(ours, gdn_cuda.gdn_decode_layer(**given[1]))
    assert all(torch.equal(given[0][name], given[1][name]) for name in ("conv_pool", "state_pool"))


def test_replay(api: Any, rows: tuple[Tensor, ...]) -> None:
    query, key, value, a, b = (x[:, :3] for x in rows)
    results = []
    for function, counts in ((api.replay_decode, "accepted"), (gdn_cuda.replay_decode, "num_accepted_tokens")):
        pool = torch.ones(2, 4, 24, 16)
        buffers = gdn_cuda.replay_buffers(pool, 3, 2)
        given = (query, key, value, a, b, a[0, 0], b[0, 0], pool, *buffers)
        outs = [function(*given, **{counts: torch.tensor(accepted)}) for accepted in ([0, 0], [2, 3])]
        results.append([*outs, pool, *buffers])
    for ours, expected in zip(*results, strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("every_state", [False, True])
def test_recurrence(api: Any, rows: tuple[Tensor, ...], every_state: bool) -> None:
    query, key, value, beta, gate = (x[:, :3] for x in rows)
    mode = gdn_cuda.InferenceMode.SPEC_VERIFY if every_state else gdn_cuda.InferenceMode.PREFILL
    expected = by_token(query, key, value, beta, gate, mode)
    for ours, each in zip(api.recurrent_forward(query, key, value, beta, gate, every_state), expected, strict=True):
        assert torch.equal(ours, each)


def by_token(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    gate: Tensor,
    mode: gdn_cuda.InferenceMode = gdn_cuda.InferenceMode.PREFILL,
) -> tuple[Tensor, Tensor]:
    """recurrent_forward with the options that gdn_api.cpp passes."""
    return gdn_cuda.recurrent_forward(query, key, value, None, beta, gate, inference_mode=mode, is_qk_norm=True, scale=0.5)


def test_prefill(api: Any, rows: tuple[Tensor, ...]) -> None:
    state = torch.randn(2, 4, 24, 16)
    ours = api.chunked_forward(*rows, state, None, 64)
    for each, expected in zip(ours, gdn_cuda.chunked_forward(*rows, state, checkpoint_every=64), strict=True):
        assert torch.equal(each, expected)


def test_prefill_from_a_pool(api: Any, rows: tuple[Tensor, ...]) -> None:
    pools = [torch.ones(3, 4, 24, 16) for _ in range(2)]
    slots = torch.tensor([2, 0], dtype=torch.int32)
    output, final_state, _ = api.chunked_forward(*rows, pools[0], slots)
    expected, _ = gdn_cuda.chunked_forward(*rows, pools[1], state_indices=slots)
    assert torch.equal(output, expected)
    assert torch.equal(*pools)
    assert final_state.data_ptr() == pools[0].data_ptr()


def test_summary(api: Any, rows: tuple[Tensor, ...]) -> None:
    _, *given = rows
    assert torch.equal(api.chunked_summary(*given), gdn_cuda.chunked_summary(*given))
    packed, offsets = [x[0] for x in given], torch.tensor([0, 5, 5, given[0].shape[1]], dtype=torch.int32)
    assert torch.equal(api.chunked_summary(*packed, offsets), gdn_cuda.chunked_summary(*packed, offsets))


@pytest.mark.parametrize("reverse", [False, True])
def test_states_through_summaries(api: Any, reverse: bool) -> None:
    given = torch.randn(2, 3, 5, 4), torch.randn(6, 2, 3, 5, 4), torch.randn(6, 2, 3, 4, 4)
    assert torch.equal(api.fold_states(*given, reverse), gdn_cuda.fold_states(*given, reverse=reverse))


def test_raw_gates(api: Any, rows: tuple[Tensor, ...]) -> None:
    A_log, dt_bias, slots = torch.randn(4), torch.randn(4), torch.tensor([2, 0])
    pools = [torch.ones(3, 4, 24, 16) for _ in range(2)]
    gates = {"A_log": A_log, "dt_bias": dt_bias, "beta_is_logit": True, "allow_negative_eigenvalues": True}
    query, key, value, beta, gate = rows
    by_token, from_pool, summary = api.raw_gates(*rows, A_log, dt_bias, pools[0], slots)
    assert torch.equal(by_token, gdn_cuda.recurrent_forward(query, key, value, None, beta, gate, **gates)[0])
    assert torch.equal(from_pool, gdn_cuda.chunked_forward(*rows, pools[1], state_indices=slots, **gates)[0])
    assert torch.equal(*pools)
    assert torch.equal(summary, gdn_cuda.chunked_summary(key, value, beta, gate, **gates))


def test_gates_of_channels(api: Any, rows: tuple[Tensor, ...]) -> None:
    query, key, value, beta, _ = (x[:, :3] for x in rows)
    gate, A_log, dt_bias = torch.randn(2, 3, 4, 16).bfloat16(), torch.randn(4), torch.randn(4, 16)
    raw = {"A_log": A_log, "dt_bias": dt_bias, "lower_bound": -5.0}
    output, by_chunk, summary, gates = api.gates_of_channels(query, key, value, beta, gate, A_log, dt_bias, -5.0)
    assert torch.equal(by_chunk, gdn_cuda.chunked_forward(query, key, value, beta, gate, **raw)[0])
    assert torch.equal(output, gdn_cuda.recurrent_forward(query, key, value, None, beta, gate, **raw)[0])
    assert torch.equal(summary, gdn_cuda.chunked_summary(key, value, beta, gate, **raw))
    assert torch.equal(gates, gdn_cuda.fused_kda_gating(a=gate, **raw))


def test_more_heads_of_query_than_of_value(api: Any, rows: tuple[Tensor, ...]) -> None:
    query, key, value, beta, gate = (x[:, :66] for x in rows)
    given = query.repeat(1, 1, 2, 1), key, value[:, :, :2], beta, gate
    for ours, expected in zip(api.recurrent_forward(*given, False), by_token(*given), strict=True):
        assert torch.equal(ours, expected)
    ours = api.chunked_forward(*given, None, None, 64)
    for each, expected in zip(ours, gdn_cuda.chunked_forward(*given, checkpoint_every=64), strict=True):
        assert torch.equal(each, expected)
    pools = [torch.ones(2, 4, 24, 16) for _ in range(2)]
    step = query[:, :1].repeat(1, 1, 2, 1), key[:, :1], value[:, :1, :2], beta[:, :1], gate[:, :1], beta[0, 0], gate[0, 0]
    output = api.fused_decode(*step, pools[0], torch.arange(2), None)
    assert torch.equal(output, gdn_cuda.fused_decode(*step, pools[1])) and torch.equal(*pools)


def test_a_missing_required_tensor_is_refused_by_name(api: Any) -> None:
    with pytest.raises(ValueError, match=r"^fused_decode: state_pool: expected a tensor, got none$"):
        api.decode_without_pool(torch.zeros(1))
