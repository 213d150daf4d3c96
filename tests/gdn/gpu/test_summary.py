"""chunked_summary on the GPU against the recurrence in fp64, by every kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gdn_inputs import to_double
from helpers import rel_rms
from other_kernels import CHOSEN, check_with
from torch import Tensor

import gdn_cuda
from gdn_cuda.gdn.inputs import KEY_MODES, make_gdn_inputs, make_packed_gdn_inputs
from gdn_cuda.operators.explain import explained
from gdn_cuda.reference import recurrent

BOUND = 5e-3  # of L, of the state that a part ends with, and of M beside the identity that it begins as


def inputs(T: int, **options: Any) -> dict[str, Tensor]:
    given = {"dk": 128, "dv": 128, "dtype": torch.bfloat16, "device": "cuda", "gate_range": (-0.01, 0.0), **options}
    return make_gdn_inputs(T=T, **given)


def of_part(x: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t for name, t in x.items() if name not in ("query", "state")}


def check(x: dict[str, Tensor], bound: float = BOUND, **options: Any) -> Tensor:
    """The state after the part as well, which is what summaries are for."""
    dv, dk = x["value"].shape[-1], x["key"].shape[-1]
    heads = x["value"].shape[-2]
    sequences = len(x["cu_seqlens"]) - 1 if "cu_seqlens" in x else x["value"].shape[0]
    out = torch.full((sequences, heads, dv + dk, dk), torch.nan, device="cuda")
    found = gdn_cuda.chunked_summary(**of_part(x), **options, out=out)
    assert found is out
    exact = to_double(x)
    identity = torch.eye(dk, dtype=torch.float64, device="cuda").expand(sequences, heads, dk, dk)
    norm = {"use_qk_l2norm": options.get("use_qk_l2norm", False)}
    none = torch.zeros(*x["value"].shape[:-1], dk, dtype=torch.float64, device="cuda")
    addition = recurrent(**exact | {"state": None}, **norm)[1]
    transition = recurrent(**exact | {"value": none, "state": identity}, **norm)[1]
    state = exact["state"]
    got = found.double().split([dv, dk], dim=-2)
    assert rel_rms(got[0], addition) < bound
    assert rel_rms(got[1] + identity, transition + identity) < bound
    if (
        transition.norm() > 0.3 * identity.norm()
    ):  # M gets no fresh values: as it decays, the roundings of all chunks stay in it
        assert rel_rms(got[1], transition) < 2 * bound
    assert rel_rms(state @ got[1] + got[0], state @ transition + addition) < bound
    return found


def kernels(x: dict[str, Tensor]) -> list[str]:
    steps = explained(gdn_cuda.chunked_summary, **of_part(x)).steps
    return [step["kernel"] for step in steps if step["kernel"].startswith("gdn/")]


@pytest.mark.parametrize("key_mode", KEY_MODES)
@pytest.mark.parametrize("gates", [(-100.0, 0.0), (-0.2, 0.0), (0.0, 0.0)])
@pytest.mark.parametrize("heads", [2, 32])
def test_hostile_inputs(key_mode: str, gates: tuple[float, float], heads: int, seed: int) -> None:
    x = inputs(300, Hk=heads // 2, Hv=heads, seed=seed, gate_range=gates, beta_max=2.0, key_mode=key_mode)
    check(x, use_qk_l2norm=key_mode == "unnormalized")


@pytest.mark.parametrize(
    "dk,dv", [(64, 64), (96, 192), (64, 256), (128, 40), (40, 72), (8, 8), (192, 128), (256, 256), (21, 19)]
)
@pytest.mark.parametrize("T", [1, 63, 65, 200])
def test_dimensions_and_lengths(dk: int, dv: int, T: int, seed: int) -> None:
    check(inputs(T, Hk=2, Hv=6, dk=dk, dv=dv, seed=seed))


@pytest.mark.parametrize("dtype,bound", [(torch.float16, 1e-3), (torch.float32, 1e-5)])
def test_dtypes(dtype: torch.dtype, bound: float, seed: int) -> None:
    check(inputs(200, Hk=2, Hv=4, dtype=dtype, seed=seed), bound=bound)


@pytest.mark.parametrize("T,heads", [(5000, 4), (6000, 32)])
def test_long_parts(T: int, heads: int, seed: int) -> None:
    x = inputs(T, B=1, Hk=heads // 2, Hv=heads, seed=seed, gate_range=(-1e-3, 0.0), beta_max=2.0)
    if CHOSEN == "auto":
        assert kernels(x)[-1] == "gdn/summary_fold"
    found = check(x)
    for _ in range(5):
        assert torch.equal(gdn_cuda.chunked_summary(**of_part(x)), found)
    batch = {
        name: t.expand(7, *t.shape[1:]).contiguous() for name, t in of_part(x).items()
    }  # by the other kernel, if there are two
    assert torch.equal(gdn_cuda.chunked_summary(**batch)[3:4], found)


# Three heads of 96/192 have 14 segments, so that maps are multiplied in groups, and blocks in which one value warpgroup has no
# rows.
@pytest.mark.parametrize("dk,dv,heads", [(128, 128, 4), (96, 192, 4), (96, 192, 3), (64, 64, 4)])
def test_segments(dk: int, dv: int, heads: int, seed: int) -> None:
    """Long parts with few heads, some of slow and some of fast decay."""
    lengths = [20000, 300, 0, 6000]
    options: dict[str, Any] = {"Hk": 1, "Hv": heads, "dk": dk, "dv": dv, "dtype": torch.bfloat16, "device": "cuda"}
    x = make_packed_gdn_inputs(lengths, seed=seed, gate_range=(-2.0, -1.0), **options)
    x["gate"][..., 1:] *= 1e-5
    found = check(x)
    for i in (0, 3):
        first = sum(lengths[:i])
        alone = {name: t[None, first : first + lengths[i]] for name, t in of_part(x).items() if name != "cu_seqlens"}
        assert torch.equal(gdn_cuda.chunked_summary(**alone)[0], found[i])


@pytest.mark.parametrize("heads", [2, 32])
def test_packed_sequences(heads: int, seed: int) -> None:
    options: dict[str, Any] = {"Hk": heads // 2, "Hv": heads, "dk": 128, "dv": 128, "dtype": torch.bfloat16, "device": "cuda"}
    x = make_packed_gdn_inputs([1500, 0, 70, 1, 64], seed=seed, gate_range=(-0.01, 0.0), **options)
    found = check(x)
    whole = torch.cat([torch.zeros(128, 128), torch.eye(128)]).cuda().expand(heads, -1, -1)
    assert torch.equal(found[1], whole)


@pytest.mark.parametrize("T", [300, 4000])
def test_after_a_reset_nothing_is_left_of_the_state(T: int, seed: int) -> None:
    x = inputs(T, B=1, seed=seed)
    x["gate"][:, T // 2] = -torch.inf
    x["value"][:, T // 3] = torch.nan
    found = gdn_cuda.chunked_summary(**of_part(x))
    assert not found[..., 128:, :].any()
    after = {name: t[:, T // 2 :].double() for name, t in of_part(x).items()}
    assert rel_rms(found[..., :128, :], recurrent(after["key"], **after)[1]) < BOUND


def test_gates_of_a_layer(seed: int) -> None:
    x = of_part(inputs(300, Hk=2, Hv=4, seed=seed))
    raw = {"A_log": torch.randn(4, device="cuda"), "dt_bias": torch.randn(4, device="cuda"), "beta_is_logit": True}
    found = gdn_cuda.chunked_summary(**x, **raw)
    beta, gate = gdn_cuda.fused_gdn_gating(raw["A_log"], raw["dt_bias"], x["gate"], x["beta"])
    assert rel_rms(found, gdn_cuda.chunked_summary(**x | {"beta": beta, "gate": gate})) < 1e-5


@pytest.mark.parametrize("parts", [2, 5])
def test_prefill_in_parts_is_prefill(parts: int, seed: int) -> None:
    x = inputs(5000, B=1, Hk=4, Hv=8, seed=seed, gate_range=(-1e-3, 0.0))
    expected, expected_state, _ = recurrent(**to_double(x))
    start = x.pop("state")
    each = [dict(zip(x, pieces, strict=True)) for pieces in zip(*(t.chunk(parts, 1) for t in x.values()), strict=True)]
    state, outputs = start, []
    for part in each:
        outputs.append(gdn_cuda.chunked_forward(**part, state=state)[0])
        summary = gdn_cuda.chunked_summary(**of_part(part))
        state = state @ summary[..., 128:, :] + summary[..., :128, :]
    assert rel_rms(torch.cat(outputs, 1), expected) < BOUND and rel_rms(state, expected_state) < BOUND


@pytest.mark.skipif(CHOSEN != "auto", reason="this is the child")
@pytest.mark.parametrize("kernels", ["mma", "recurrent"])
def test_all_tests_of_this_file_pass_with_the_other_kernels(kernels: str) -> None:
    """Hopper's own would be chosen for most of it here."""
    check_with(kernels, __file__)
