"""gdn_cuda.compat.causal_conv1d: names, arguments and results of causal-conv1d 1.7."""

from __future__ import annotations

import inspect
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from helpers import rel_rms
from step_conv_oracle import close, draws, update
from torch import Tensor

from gdn_cuda.compat import causal_conv1d as compat

# The parameters in the peer's source.
STATES = "return_final_states final_states_out activation"
STEP = "x conv_state weight bias activation cache_seqlens"
SIGNATURES = {
    "causal_conv1d_fn": f"x weight bias seq_idx initial_states {STATES}",
    "causal_conv1d_ref": f"x weight bias initial_states {STATES} seq_idx",
    "causal_conv1d_update": f"{STEP} conv_state_indices",
    "causal_conv1d_update_ref": STEP,
    "causal_conv1d_varlen_states": "x cu_seqlens state_len",
    "causal_conv1d_varlen_states_ref": "x cu_seqlens state_len",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_have_the_peers_names_and_order(name: str) -> None:
    assert name in compat.__all__
    assert list(inspect.signature(getattr(compat, name)).parameters) == SIGNATURES[name].split()


def draw(rng: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng)


def silu_conv(x: Tensor, weight: Tensor, bias: Tensor, before: Tensor) -> Tensor:
    """The convolution by torch, in fp64."""
    return F.silu(F.conv1d(torch.cat([before, x], 2).double(), weight.double()[:, None], bias.double(), groups=len(weight)))


@pytest.mark.parametrize("rows", [False, True])
def test_the_convolution_and_its_states(rows: bool, rng: torch.Generator) -> None:
    x, weight, bias, before = draw(rng, 2, 5, 9), draw(rng, 5, 4), draw(rng, 5), draw(rng, 2, 5, 3)
    x = x.mT.contiguous().mT if rows else x
    expected = silu_conv(x, weight, bias, before)
    given = torch.full((2, 3, 5), torch.nan).mT
    for out, states in (
        compat.causal_conv1d_fn(x, weight, bias, None, before, True, None, "silu"),
        compat.causal_conv1d_fn(x, weight, bias, None, before, True, given, "swish"),
        compat.causal_conv1d_ref(x, weight, bias, before, True, None, "silu", None),
    ):
        assert rel_rms(out, expected) < 1e-6 and torch.equal(states, x[..., -3:]) and out.stride() == x.stride()
    assert torch.equal(given, x[..., -3:])
    assert rel_rms(compat.causal_conv1d_fn(x, weight, bias, None, before, activation="silu"), expected) < 1e-6


def test_final_states_have_the_dtype_of_x_and_a_gradient(rng: torch.Generator) -> None:
    x, weight = draw(rng, 2, 5, 9).bfloat16().requires_grad_(), draw(rng, 5, 4)
    _, states = compat.causal_conv1d_fn(x, weight, return_final_states=True)
    assert states.dtype == torch.bfloat16
    states.float().sum().backward()
    assert torch.equal(x.grad, F.pad(torch.ones(2, 5, 3), (6, 0)).bfloat16())
    given = torch.zeros(2, 5, 3)
    compat.causal_conv1d_fn(x, weight, return_final_states=True, final_states_out=given)[1].sum().backward()
    assert torch.equal(x.grad, F.pad(torch.full((2, 5, 3), 2), (6, 0)).bfloat16())


def test_sequences_by_their_index(rng: torch.Generator) -> None:
    x, weight, bias, before = draw(rng, 1, 5, 9), draw(rng, 5, 4), draw(rng, 5), draw(rng, 1, 5, 3)
    index = torch.tensor([[0, 0, 0, 0, 1, 1, -1, -1, 2]], dtype=torch.int32)
    out = compat.causal_conv1d_fn(x, weight, bias, index, before, activation="silu")
    zeros = torch.zeros_like(before)
    parts = [(slice(0, 4), before), (slice(4, 6), zeros), (slice(8, 9), zeros)]
    for part, start in parts:
        assert rel_rms(out[..., part], silu_conv(x[..., part], weight, bias, start)) < 1e-6
    assert not out[..., 6:8].any()


def test_steps(seed: int) -> None:
    more = {"cache_seqlens": torch.tensor([3, 0, 1024], dtype=torch.int32)}
    for given, extra in (({}, {}), (more, {}), (more, {"conv_state_indices": torch.tensor([2, -1, 0], dtype=torch.int32)})):
        x = draws(seed, columns=5, tokens=2) | given | extra
        expected, state = update(x)
        order = [x.get(name) for name in SIGNATURES["causal_conv1d_update"].split()]
        close(compat.causal_conv1d_update(*order), expected, 2e-6)
        close(x["conv_state"], state, 0.0)
        if not extra:
            again = draws(seed, columns=5, tokens=2) | given
            order = [again.get(name) for name in STEP.split()]
            close(compat.causal_conv1d_update_ref(*order), expected, 2e-6)
            close(again["conv_state"], state, 0.0)


@pytest.mark.parametrize("state_len", [1, 4, 20])
def test_states_of_packed_sequences(state_len: int, rng: torch.Generator) -> None:
    x, offsets = draw(rng, 23, 5), [0, 1, 1, 9, 20, 23]
    states = compat.causal_conv1d_varlen_states(x, torch.tensor(offsets, dtype=torch.int32), state_len)
    for n, (start, end) in enumerate(pairwise(offsets)):
        expected = F.pad(x[start:end].T, (max(state_len - end + start, 0), 0))
        assert torch.equal(states[n], expected[:, expected.shape[1] - state_len :])
    none = compat.causal_conv1d_varlen_states(x[:0], torch.tensor([0, 0]), state_len)
    assert torch.equal(none, torch.zeros(1, 5, state_len))
