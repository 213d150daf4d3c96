"""The step of a layer of Kimi Delta Attention as vLLM and FlashInfer call it, compared with its parts in fp64."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import fake_hosts
import pytest
import torch
from engine_calls import OUTPUT, STATE, channel_gates, l2norm, poison, recurrence, untouched
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import integrations
from gdn_cuda.integrations import flashinfer, vllm, vllm_kda

H, K, W = 2, 64, 4
D = H * K
SLOTS = [4, 0, 1, -1, 6]
EPS = 1e-5


@pytest.fixture
def device() -> str:
    return "cpu"


@pytest.fixture
def ops(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A fake of vLLM's module of operators, with gdn_cuda installed."""
    modules = fake_hosts.make(monkeypatch, vllm.HOST)
    integrations.reset_calls()
    vllm.install()
    yield modules[vllm_kda.OPS]
    vllm.uninstall()


def inputs(rng: torch.Generator, device: str, channels_first: bool, state: torch.dtype = torch.float32) -> dict[str, Any]:
    """FlashInfer's arguments. Rows of x are slices of a projection, pools have gaps between slots, and what no call may read is
    NaN."""
    B = len(SLOTS)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng).to(device)

    pool = draw(8, 3 * D + 16, W - 1) if channels_first else draw(8, W, 3 * D)[:, : W - 1].mT
    x: dict[str, Any] = {"x": draw(B, 3 * D + 32).bfloat16()[:, : 3 * D], "weight": draw(3, W, D) / 2}
    x |= {"conv_state": pool.bfloat16()[:, : 3 * D], "raw_gate": draw(1, B, H, K).bfloat16()}
    x |= {"raw_beta": draw(1, B, 40).bfloat16()[..., :H], "A_log": draw(H) / 4, "dt_bias": draw(D)}
    x |= {
        "state_indices": torch.tensor(SLOTS, dtype=torch.int32, device=device),
        "state": draw(8, H + 1, K, K)[:, :H].to(state),
    }
    x |= {"output_gate": draw(B, H, K).bfloat16(), "norm_weight": draw(K)}
    for name in ("conv_state", "state"):
        poison(x[name], [slot for slot in SLOTS if slot > 0])
    return x


def check(x: dict[str, Any], before: dict[str, Tensor], bound: float | None, output: Tensor, has_norm: bool = True) -> None:
    """Compares each row with its parts, and the pools."""
    assert output.shape == (1, len(SLOTS), H, K) and output.dtype == torch.bfloat16
    used = [slot for slot in SLOTS if slot > 0]
    assert all(untouched(before[name], x[name], used) for name in before)
    taps = x["weight"].double().mT.reshape(3 * D, W)
    g = channel_gates(x["raw_gate"][0], x["A_log"], x["dt_bias"], bound)
    beta = x["raw_beta"][0].double().sigmoid()
    for n, slot in enumerate(SLOTS):
        if slot <= 0:
            assert not output[0, n].any()
            continue
        window = torch.cat([before["conv_state"][slot], x["x"][n, :, None]], 1)
        assert torch.equal(x["conv_state"][slot], window[:, 1:])
        y = torch.nn.functional.silu((window.double() * taps).sum(1))
        q, k, v = (part.view(1, H, K) for part in y.split(D))
        row = slice(n, n + 1)
        expected, states = recurrence(l2norm(q), l2norm(k), v, g[row], beta[row], before["state"][slot])
        if has_norm:
            expected = expected / (expected.square().mean(-1, keepdim=True) + EPS).sqrt() * x["norm_weight"].double()
            expected = expected * x["output_gate"][row].double().sigmoid()
        assert rel_rms(output[0, row], expected) < 2 * OUTPUT  # the convolution's output is rounded, too
        assert rel_rms(x["state"][slot], states[-1]) < max(STATE[x["state"].dtype], 4e-3)


def pools(x: dict[str, Any]) -> dict[str, Tensor]:
    return {name: x[name].clone() for name in ("conv_state", "state")}


@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("bound", [None, -5.0])
@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
def test_flashinfers(channels_first: bool, bound: float | None, state: torch.dtype, device: str, rng: torch.Generator) -> None:
    x = inputs(rng, device, channels_first, state)
    before = pools(x)
    output = flashinfer.fused_kda_decode(**x, lower_bound=bound, norm_eps=EPS)
    check(x, before, bound, output)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("has_norm", [False, True])
def test_vllms(given: bool, has_norm: bool, ops: Any, device: str, rng: torch.Generator) -> None:
    x = inputs(rng, device, False)
    before = pools(x)
    buffer = torch.full((1, len(SLOTS) + 2, H, K), float("nan"), dtype=torch.bfloat16, device=device)
    call = {name: y for name, y in x.items() if has_norm or name not in ("output_gate", "norm_weight")}
    call |= {"raw_g": call.pop("raw_gate"), "bias": None, "lower_bound": -5.0, "norm_eps": EPS}
    out = buffer[:, : len(SLOTS)] if given else None
    output = ops.fused_kda_decode(**call, out=out)
    assert integrations.calls() == {"vllm.fused_kda_decode": {"gdn_cuda": 1}}
    assert out is None or (output is out and buffer[:, len(SLOTS) :].isnan().all())
    check(x, before, -5.0, output, has_norm)


def test_both_have_the_same_bits(ops: Any, device: str, rng: torch.Generator) -> None:
    x = inputs(rng, device, False)
    again = x | pools(x)
    expected = flashinfer.fused_kda_decode(**x, state_indices_mode="unique_or_null")
    call = again | {"raw_g": again["raw_gate"], "bias": None, "lower_bound": -5.0}
    del call["raw_gate"]
    assert torch.equal(ops.fused_kda_decode(**call), expected) and torch.equal(again["state"][4], x["state"][4])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"weight": torch.zeros(2, W, D)}, "kda_decode_layer: conv_weight: expected"),
        ({"raw_beta": torch.zeros(len(SLOTS), H)}, "gates that are not (1, B, H, K), or betas"),
        ({"out": torch.empty(1, len(SLOTS), H, 2 * K).bfloat16()[..., :K]}, "an output with gaps"),
        ({"A_log": torch.zeros(H + 1)}, "kda_decode_layer: A_log: expected"),
        ({"norm_weight": None}, "kda_decode_layer: "),
    ],
)
def test_declined_calls_reach_vllms_kernel(change: dict[str, Any], reason: str, ops: Any, rng: torch.Generator) -> None:
    x = inputs(rng, "cpu", False)
    call = x | {"raw_g": x["raw_gate"], "bias": None} | change
    del call["raw_gate"]
    before = pools(x)
    theirs = sys.modules[vllm_kda.OPS].fused_kda_decode.__wrapped__
    assert ops.fused_kda_decode(**call) == "host" and theirs.reached == ["fused_kda_decode"]
    (found,) = integrations.calls()["vllm.fused_kda_decode"]
    assert found.startswith(reason) and all(untouched(before[name], x[name], []) for name in before)


def test_a_build_without_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = fake_hosts.make(monkeypatch, vllm.HOST)
    del modules[vllm_kda.OPS].fused_kda_decode
    replaced = vllm.install()
    vllm.uninstall()
    assert len(replaced) == len(vllm.HOST.targets) - 1 and f"{vllm_kda.K3}._flashkda_prefill" in replaced
