"""What engines' Mamba-2 layers call beside the scan, against the definition in fp64: norms; convolution and scan together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_calls import OUTPUT
from helpers import rel_rms
from literal_mamba2 import prompts
from mamba_mixers import SGLANG, VLLM, close, mixer_of
from torch import Tensor

from gdn_cuda import integrations
from gdn_cuda.integrations import sglang, vllm


@pytest.fixture
def device() -> str:
    return "cpu"


@pytest.fixture
def vllm_mixer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from mixer_of(vllm, monkeypatch)


@pytest.fixture
def sglang_mixer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from mixer_of(sglang, monkeypatch)


def norm_of(mixer: Any, weight: Tensor, groups: int, ranks: int = 1, **more: Any) -> Any:
    norm = mixer.Mixer2RMSNormGated()
    columns = weight.shape[0] * ranks // groups
    vars(norm).update(weight=weight, variance_epsilon=1e-5, group_size=columns, n_groups=groups, tp_size=ranks)
    vars(norm).update({"use_rms_norm": True} | more)
    return norm


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("groups, ranks", [(1, 1), (4, 1), (4, 2)])
def test_norm(groups: int, ranks: int, engine: str, request: pytest.FixtureRequest, device: str, rng: torch.Generator) -> None:
    mixer = request.getfixturevalue(f"{engine}_mixer")
    x = torch.randn(3, 64, generator=rng).bfloat16().to(device)
    gate = torch.randn(3, 100, generator=rng).bfloat16().to(device)[:, 5:69]
    norm = norm_of(mixer, torch.randn(64, generator=rng).bfloat16().to(device), groups, ranks)
    found = norm.forward_cuda(x, gate)
    h = (x.double() * F.silu(gate.double())).unflatten(-1, (-1, norm.group_size))
    h = (h * (h.square().mean(-1, keepdim=True) + 1e-5).rsqrt()).flatten(-2)
    assert integrations.calls() == {f"{engine}.rms_norm_gated": {"gdn_cuda": 1}}
    assert found.dtype == x.dtype and rel_rms(found, h * norm.weight.double()) < OUTPUT


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(
    "more, reason",
    [
        ({"groups": 1, "ranks": 2}, "groups that several GPUs share"),
        ({"groups": 1, "use_rms_norm": False}, "a gate without a norm"),
        ({"groups": 1, "weight": torch.ones(64).double()}, "a weight of another dtype"),
    ],
)
def test_norms_of_the_host(more: dict[str, Any], reason: str, engine: str, request: pytest.FixtureRequest) -> None:
    mixer = request.getfixturevalue(f"{engine}_mixer")
    x = torch.randn(3, 64).bfloat16()
    assert norm_of(mixer, **{"weight": torch.ones(64).bfloat16()} | more).forward_cuda(x, x) == "host"
    assert integrations.calls() == {f"{engine}.rms_norm_gated": {reason: 1}}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_prompt_in_two_calls(engine: str, request: pytest.FixtureRequest, device: str, rng: torch.Generator) -> None:
    """Convolution and scan as the layer calls them, with views of one projection: the second half of prompts continues from the
    slots that the first has written. Expected: both halves at once."""
    mixer = request.getfixturevalue(f"{engine}_mixer")
    H, P, G, N, lengths = 4, 16, 2, 24, [(40, 30), (5, 64)]
    D, conv = H * P, H * P + 2 * G * N
    whole = [torch.randn(sum(each), D + conv + H, generator=rng).bfloat16().to(device) for each in lengths]
    weight, bias = torch.randn(conv, 4, generator=rng).bfloat16().to(device), torch.randn(conv, generator=rng).to(device)
    A, rest = -torch.rand(H, generator=rng).to(device), torch.randn(2, H, generator=rng).bfloat16().to(device)
    windows = torch.zeros(4, 3, conv, dtype=torch.bfloat16, device=device).transpose(1, 2)
    pool, slots = torch.full((4, H, P, N), float("nan"), device=device), torch.tensor([3, 1], device=device).int()
    found: list[list[Tensor]] = [[], []]
    for part in (0, 1):
        rows = torch.cat([each[: n[0]] if part == 0 else each[n[0] :] for each, n in zip(whole, lengths, strict=True)])
        counts = [n[part] for n in lengths]
        offsets = torch.tensor([0, counts[0], sum(counts)], device=device).int()
        has = torch.tensor([part > 0] * 2, device=device)
        mixed, dt = rows[:, D:].split([conv, H], 1)
        options = {"conv_states": windows, "has_initial_state": has, "cache_indices": slots, "query_start_loc": offsets}
        options |= {"metadata": None} if engine == "vllm" else {"seq_lens_cpu": counts}
        name = "causal_conv1d_fn" if engine == "vllm" else "causal_conv1d_fn_triton"
        mixed = getattr(mixer, name)(mixed.T, weight, bias.bfloat16(), activation="silu", **options).T
        x, B, C = mixed.split([D, G * N, G * N], 1)
        initial = torch.where(has[:, None, None, None], pool[slots.long()], 0) if part else None
        out = torch.empty(len(rows), D, dtype=torch.bfloat16, device=device)
        lead = () if engine == "vllm" else (1,)
        given = {"x": x.view(*lead, len(rows), H, P), "dt": dt.view(*lead, len(rows), H), "A": A}
        given |= {name: y.view(*lead, len(rows), G, -1) for name, y in (("B", B), ("C", C))}
        given |= {"chunk_size": 64, "D": rest[0], "dt_bias": rest[1], "dt_softplus": True, "state_dtype": pool.dtype}
        given |= {"out": out.view(*lead, len(rows), H, P), "cu_seqlens": offsets, "initial_states": initial}
        if engine == "vllm":
            absent = dict.fromkeys(("cu_chunk_seqlens", "last_chunk_indices", "seq_idx"), offsets)
            assert getattr(mixer, VLLM)(**given, **absent, final_states_out=pool, final_state_indices=slots) is None
        else:
            numbers = {"seq_idx": torch.zeros(1, len(rows), device=device).int(), "return_varlen_states": True}
            _, pool[slots.long()], _ = getattr(mixer, SGLANG)(**given, **numbers, return_track_states=True)
        for n, (start, end) in enumerate(pairwise(offsets.tolist())):
            found[n].append(out[start:end].view(-1, H, P))
    scan = VLLM if engine == "vllm" else SGLANG
    assert integrations.calls() == {f"{engine}.{name}": {"gdn_cuda": 2} for name in ("causal_conv1d_fn", scan)}
    for n, rows in enumerate(whole):
        inputs = F.pad(rows[:, D : D + conv].T.double(), (3, 0)).unfold(1, 4, 1)
        mixed = F.silu((inputs * weight.double()[:, None]).sum(2) + bias.bfloat16().double()[:, None]).T
        x, B, C = mixed.bfloat16().split([D, G * N, G * N], 1)
        given = {
            "x": x.unflatten(1, (H, P)),
            "B": B.unflatten(1, (G, N)),
            "C": C.unflatten(1, (G, N)),
            "dt": rows[:, D + conv :],
        }
        given |= {"A": A, "D": rest[0], "dt_bias": rest[1], "dt_softplus": True, "cu_seqlens": torch.tensor([0, len(rows)])}
        outputs, states = prompts(given)
        assert rel_rms(torch.cat(found[n]), outputs) < 2 * OUTPUT
        close(pool[slots[n]], states[0][-1], "cuda")  # of outputs of the convolution that are rounded
