"""chunked_summary on CPU tensors against products of matrices, token by token; prefill from summaries of parts."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from gdn_inputs import to_double
from helpers import rel_rms
from torch import Tensor

import gdn_cuda
from gdn_cuda.gdn.inputs import KEY_MODES, make_gdn_inputs, make_packed_gdn_inputs

ROWS = ("key", "value", "beta", "gate")


def summary_arguments(x: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t for name, t in x.items() if name in (*ROWS, "cu_seqlens")}


def literal(x: dict[str, Tensor]) -> Tensor:
    """L above M for padded fp64 inputs, from S ← S exp(g)(I − β k kᵀ) + β v kᵀ for each token."""
    B, T, Hk, dk = x["key"].shape
    Hv, dv = x["value"].shape[2:]
    found = torch.empty(B, Hv, dv + dk, dk, dtype=torch.float64)
    for n in range(B):
        for h in range(Hv):
            addition, transition = torch.zeros(dv, dk, dtype=torch.float64), torch.eye(dk, dtype=torch.float64)
            for t in range(T):
                k, v = x["key"][n, t, h * Hk // Hv], x["value"][n, t, h]
                beta = x["beta"][n, t, h]
                step = x["gate"][n, t, h].exp() * (torch.eye(dk, dtype=torch.float64) - beta * torch.outer(k, k))
                addition, transition = addition @ step + beta * torch.outer(v, k), transition @ step
            found[n, h] = torch.cat([addition, transition])
    return found


@pytest.mark.parametrize("key_mode", KEY_MODES)
@pytest.mark.parametrize("gates", [(0.0, 0.0), (-0.1, 0.0), (-5.0, 0.0)])
def test_a_summary_is_the_product_of_the_tokens_matrices(key_mode: str, gates: tuple[float, float], seed: int) -> None:
    beta_max = 0.05 if key_mode == "unnormalized" else 2.0
    x = make_gdn_inputs(2, 70, 2, 4, 6, 5, seed=seed, gate_range=gates, beta_max=beta_max, key_mode=key_mode)
    assert rel_rms(gdn_cuda.reference.chunked_summary(**summary_arguments(x)), literal(x)) < 1e-11
    single = {name: t.float() for name, t in x.items()}
    assert rel_rms(gdn_cuda.chunked_summary(**summary_arguments(single)), literal(to_double(single))) < 1e-5


@pytest.mark.parametrize("T", [0, 1])
def test_a_part_of_no_token_or_one(T: int, seed: int) -> None:
    x = make_gdn_inputs(1, T, 1, 2, 4, 3, torch.float32, seed=seed, gate_range=(-1.0, 0.0))
    found = gdn_cuda.chunked_summary(**summary_arguments(x))
    assert rel_rms(found, literal(to_double(x))) < 1e-6
    if T == 0:
        assert torch.equal(found, torch.cat([torch.zeros(3, 4), torch.eye(4)]).expand(1, 2, 7, 4))


def test_a_reset_leaves_nothing_of_the_state(seed: int) -> None:
    x = make_gdn_inputs(1, 80, 1, 2, 4, 3, torch.float32, seed=seed, gate_range=(-0.1, 0.0))
    x["gate"][:, 50] = -torch.inf
    x["value"][:, 20] = torch.inf
    found = gdn_cuda.chunked_summary(**summary_arguments(x))
    assert not found[..., 3:, :].any()
    after = {name: t[:, 50:] for name, t in summary_arguments(x).items()}
    assert rel_rms(found[..., :3, :], gdn_cuda.chunked_forward(after["key"], **after)[1]) < 1e-6


def test_packed_sequences_equal_each_sequence_alone(seed: int) -> None:
    lengths = [70, 0, 1, 9]
    x = make_packed_gdn_inputs(lengths, Hk=1, Hv=2, dk=8, dv=4, dtype=torch.float32, seed=seed, gate_range=(-0.1, 0.0))
    found = gdn_cuda.chunked_summary(**summary_arguments(x))
    bounds = x["cu_seqlens"].tolist()
    for n, (first, last) in enumerate(pairwise(bounds)):
        alone = gdn_cuda.chunked_summary(**{name: x[name][None, first:last] for name in ROWS})
        assert torch.allclose(found[n], alone[0], rtol=1e-5, atol=1e-7)


def test_prefill_from_summaries_of_parts(seed: int) -> None:
    """As on several GPUs that each have a part of a sequence and gather the summaries."""
    parts = 4
    x = make_gdn_inputs(1, 64 * parts + 40, 2, 4, 16, 8, seed=seed, gate_range=(-0.05, 0.0))
    whole, last = gdn_cuda.reference.chunked_forward(**x)[:2]
    rows = ("query", *ROWS)
    each = [dict(zip(rows, tensors, strict=True)) for tensors in zip(*(x[name].chunk(parts, 1) for name in rows), strict=True)]
    summaries = [gdn_cuda.reference.chunked_summary(**summary_arguments(part)) for part in each]
    state, outputs = x["state"], []
    for part, summary in zip(each, summaries, strict=True):
        outputs.append(gdn_cuda.reference.chunked_forward(**part, state=state)[0])
        state = state @ summary[..., 8:, :] + summary[..., :8, :]
    assert rel_rms(torch.cat(outputs, 1), whole) < 1e-11 and rel_rms(state, last) < 1e-11
