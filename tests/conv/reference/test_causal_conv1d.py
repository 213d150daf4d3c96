"""causal_conv1d on CPU tensors against its definition, token by token: values, states, gradients, pools."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import causal_cases
import conv_oracle as oracle
import pytest
import torch
from causal_cases import CASES, LAYOUTS, Inputs, for_oracle, inputs, leaves
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import causal_conv1d
from gdn_cuda.conv import reference_causal

BOUND = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 6e-4}


def check(x: Inputs) -> None:
    """Compares results and gradients; states only if the call can return them."""
    given = leaves(x)
    ours = {name: y.detach().requires_grad_() for name, y in given.items()}
    exact = {name: y.detach().double().requires_grad_() for name, y in given.items()}
    expected = oracle.causal_conv1d(**for_oracle(x) | exact)
    found = causal_conv1d(**x | ours, return_final_states=True)
    assert found[0].dtype == x["x"].dtype and found[1].dtype == torch.promote_types(x["x"].dtype, torch.float32)
    rng = torch.Generator().manual_seed(1)
    grads = [torch.randn(y.shape, generator=rng, dtype=torch.float64).to(y.dtype) for y in found]
    gradients = torch.autograd.grad(found, list(ours.values()), grads)
    pairs = [(y, g.double()) for y, g in zip(expected, grads, strict=True) if y.requires_grad]
    wanted = torch.autograd.grad(
        [y for y, _ in pairs], list(exact.values()), [g for _, g in pairs], allow_unused=True, materialize_grads=True
    )
    for mine, theirs in zip((*found, *gradients), (*expected, *wanted), strict=True):
        assert mine.shape == theirs.shape and rel_rms(mine, theirs) < BOUND[mine.dtype]


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("W", [1, 2, 4, 9])
@pytest.mark.parametrize("case", CASES)
def test_every_case(case: str, W: int, dtype: torch.dtype, seed: int) -> None:
    check(inputs(1, 3, 200, W, seed, dtype=dtype, **CASES[case]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("B, D, L, W", [(1, 1, 1, 1), (2, 3, 0, 4), (0, 3, 5, 4), (2, 0, 5, 4), (2, 3, 1, 4), (3, 2, 2, 32)])
def test_sizes(B: int, D: int, L: int, W: int, layout: str, seed: int) -> None:
    check(inputs(B, D, L, W, seed, layout=layout, states=True, bias=True, activation="silu"))


def test_seq_idx_of_a_batch(seed: int) -> None:
    x = inputs(3, 2, 20, 4, seed, states=True, activation="silu")
    x["seq_idx"] = torch.randint(-1, 3, (3, 20), generator=torch.Generator().manual_seed(seed)).sort(1)[0]
    check(x)


def test_weights_of_another_dtype(seed: int) -> None:
    x = inputs(2, 3, 20, 4, seed, dtype=torch.bfloat16, weight_dtype=torch.float32, bias=True)
    check(x)


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_autograd(case: str, seed: int) -> None:
    """The reference's forward is plain torch, which autograd differentiates."""
    x = inputs(
        1, 2, 40, 4, seed, dtype=torch.float64, **{**CASES[case], "packed": [0, 2, 30, 40]} if "packed" in case else CASES[case]
    )
    given = {name: y.requires_grad_() for name, y in leaves(x).items()}
    found = causal_conv1d(**x | given)
    missing = dict.fromkeys(("bias", "seq_idx", "initial_states", "cu_seqlens"))
    plain = SimpleNamespace(**missing | x | given, silu=x["activation"] is not None)
    wanted = reference_causal.forward(plain, reference_causal.states_of(plain))[0]
    assert torch.equal(found, wanted)
    grad = torch.randn(found.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    pairs = zip(*(torch.autograd.grad(y, list(given.values()), grad) for y in (found, wanted)), strict=True)
    assert all(rel_rms(mine, theirs) < 1e-12 for mine, theirs in pairs)


# ---- Pools


def pool_case(seed: int, width: int, **form: Any) -> tuple[Inputs, Inputs]:
    """Inputs with a pool, in which one slot is untouched and one sequence is skipped."""
    x = inputs(1, 3, 30, 4, seed, packed=[0, 1, 3, 3, 13, 28], activation="silu", **form)
    pool = torch.randn(7, 3, width, generator=torch.Generator().manual_seed(seed))
    state_indices, has_initial = torch.tensor([4, 0, 6, -1, 2]), torch.tensor([True, True, False, True, False])
    return x, {"conv_state": pool, "state_indices": state_indices, "has_initial_state": has_initial}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [3, 4, 9])
def test_pools(width: int, layout: str, seed: int) -> None:
    x, pool = pool_case(seed, width, layout=layout)
    given = for_oracle(x)
    expected, after = oracle.into_pool(
        given["x"], given["weight"], given["bias"], pool["conv_state"], pool["state_indices"], pool["has_initial_state"],
        True, given["cu_seqlens"],
    )  # fmt: skip
    out = causal_conv1d(**x, **pool)
    assert rel_rms(out, expected) < 1e-6 and rel_rms(pool["conv_state"], after) < 1e-6
    assert not out[..., 3:13].any() and bool(out[..., 13:28].any()) and not out[..., 28:].any()


def test_consecutive_prompts_equal_one_prompt(seed: int) -> None:
    """Prompts of 2, 0, 1 and 5 tokens into one slot are one prompt of 8."""
    x = inputs(1, 3, 8, 5, seed, bias=True, activation="silu")
    whole, states = causal_conv1d(**x, return_final_states=True)
    pool = torch.full((2, 3, 4), 7.0)
    parts, at = [], 0
    for i, count in enumerate((2, 0, 1, 5)):
        part = x | {"x": x["x"][..., at : at + count]}
        parts.append(
            causal_conv1d(**part, conv_state=pool, state_indices=torch.tensor([1]), has_initial_state=torch.tensor([i > 0]))
        )
        at += count
    assert torch.equal(torch.cat(parts, 2), whole) and torch.equal(pool[1:], states) and bool((pool[0] == 7).all())


def test_pools_have_no_gradients(seed: int) -> None:
    x, pool = pool_case(seed, 3)
    x["weight"].requires_grad_()
    out = causal_conv1d(**x, **pool)
    with pytest.raises(RuntimeError, match=r"^causal_conv1d: no gradient is computed"):
        out.sum().backward()


def test_sequences_do_not_affect_each_other(seed: int) -> None:
    for case in ("packed, states", "seq_idx"):
        x = inputs(1, 2, 200, 4, seed, **CASES[case])
        clean = causal_conv1d(**x)
        spoilt = x["x"].clone()
        first, last = (8, 128) if "cu_seqlens" in x else (9, 69)
        spoilt[..., :first] = torch.nan
        spoilt[..., last:] = torch.inf
        assert torch.equal(causal_conv1d(**x | {"x": spoilt})[..., first:last], clean[..., first:last]), case


def test_cases(seed: int) -> None:
    assert causal_cases.ids([(0, 2), (1, 1)], 1, 4).tolist() == [[0, 0, 1, 1]]
    x = inputs(1, 2, 5, 3, seed)
    for layout in LAYOUTS:
        y: Tensor = causal_cases.laid_out(x["x"], layout)
        assert torch.equal(y, x["x"]) and (layout == "tokens") == y.is_contiguous()
