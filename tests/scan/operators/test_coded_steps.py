"""selective_state_update on int8 states of CPU tensors: everything of coded_steps_on_device, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from coded_steps_on_device import *  # noqa: F403
from coded_steps_on_device import drawn
from devices import Device
from step_cases import draws

import gdn_cuda


@pytest.fixture
def device() -> Device:
    return Device("cpu")


def refuses(argument: str, expected: str, call: dict[str, Any]) -> None:
    before = {name: y.clone() for name, y in call.items() if name in ("state", "state_scales") and y is not None}
    with pytest.raises(ValueError, match=rf"^selective_state_update: {argument}: expected .*{expected}.*, got .+"):
        gdn_cuda.selective_state_update(**call)
    assert all(call[name].is_meta or torch.equal(call[name], y) for name, y in before.items())


def test_scales_and_dtypes_belong_together(seed: int) -> None:
    x = drawn(seed, batch=3)
    scales = x["state_scales"]
    refuses("state_scales", "a tensor, as state is int8", x | {"state_scales": None})
    refuses("state_scales", "None, as state is float32", x | {"state": x["state"].float()})
    refuses("state_scales", "None, as state is bfloat16", x | {"state": x["state"].bfloat16()})
    refuses("state_scales", "float32", x | {"state_scales": scales.bfloat16()})
    refuses("state_scales", "float32", x | {"state_scales": scales.double()})
    refuses("state_scales", r"the shape of state .*N / 32", x | {"state_scales": scales[..., :1]})
    refuses("state_scales", "the shape", x | {"state_scales": scales[:-1]})
    refuses("state_scales", "the shape", x | {"state_scales": scales.flatten(-2)})
    refuses("state_scales", "contiguous states", x | {"state_scales": scales.mT.contiguous().mT})
    refuses("state", "contiguous states", x | {"state": x["state"].mT.contiguous().mT})
    refuses("state_scales", "cpu", x | {"state_scales": scales.to("meta")})
    refuses("state_scales", "memory of its own", x | {"state_scales": scales[:1].expand(3, -1, -1, -1)})
    refuses("state", "float32", x | {"state": x["state"].view(torch.uint8)})
    memory = torch.zeros(x["state"].numel() + 1, dtype=torch.int8)
    refuses("state", "16 bytes", x | {"state": memory[1:].view(x["state"].shape)})


def test_only_a_token_of_mamba_2(seed: int) -> None:
    x = drawn(seed, batch=3)
    mamba_1 = draws(seed, N=16)
    codes = {"state": mamba_1["state"].to(torch.int8), "state_scales": torch.zeros(3, 5, 1)}
    refuses("state", r"\(B, heads, dim, N\), as it is int8", mamba_1 | codes)
    refuses("A", "one value for all states of a channel", x | {"A": -torch.rand(4, 20, 64)})
    refuses("discretization", "'mamba' or 'dirac'", x | {"discretization": "zoh"})
    for N in (16, 32, 96, 192):
        other = draws(seed, N=N, heads=4, groups=2)
        other |= {"state": other["state"].to(torch.int8), "state_scales": torch.zeros(3, 4, 5, -(-N // 32)), "A": x["A"]}
        refuses("state", "64, 128 or 256 states", other)
    tokens = {name: torch.stack([x[name]] * 2, 1) for name in ("x", "dt", "z", "B", "C")}
    refuses("x", "one token of each sequence", x | tokens)
    one = {name: x[name][:, None] for name in tokens}
    refuses(
        "state_batch_indices", r"\(B,\), as state is int8", x | one | {"state_batch_indices": torch.tensor([[0], [1], [2]])}
    )
    verify = {"num_accepted_tokens": torch.ones(3, dtype=torch.int32)}
    refuses("num_accepted_tokens", "None, as state is int8", x | one | verify)
    steps = {"step_states": torch.zeros(3, 1, 4, 20, 64, dtype=torch.int8), "step_slots": torch.arange(3)}
    refuses("step_states", "None, as state is int8", x | one | steps)
    refuses("parents", "None, as state is int8", x | one | {"parents": torch.full((3, 1), -1)})
    refuses("cu_seqlens", "None, as state is int8", x | {"cu_seqlens": torch.tensor([0, 1, 2, 3])})


def test_one_token_with_a_dimension_for_it(seed: int) -> None:
    x = drawn(seed, batch=3)
    pools = [{name: x[name].clone() for name in ("state", "state_scales")} for _ in range(2)]
    one = {name: x[name][:, None] for name in ("x", "dt", "z", "B", "C")}
    found = [gdn_cuda.selective_state_update(**x | pools[0]), gdn_cuda.selective_state_update(**x | one | pools[1])[:, 0]]
    assert torch.equal(*found) and all(torch.equal(pools[0][name], pools[1][name]) for name in pools[0])


def test_nothing_shares_memory_with_scales(seed: int) -> None:
    x = drawn(seed, batch=3)
    scales = x["state_scales"]
    refuses(".*", "", x | {"A": scales.flatten()[:4]})
    refuses(".*", "", x | {"D": scales.flatten()[:4]})
    memory = torch.zeros(x["state"].numel(), dtype=torch.int8)
    overlapping = memory[: 4 * scales.numel()].view(torch.float32).view(scales.shape)
    refuses(".*", "", x | {"state": memory.view(x["state"].shape), "state_scales": overlapping})
    wide = scales.flatten()[: 3 * 4 * 20].view(3, 4, 20)
    refuses(".*", "", x | {"out": wide})


def test_slots_past_the_pool(seed: int) -> None:
    x = drawn(seed, batch=3)
    with pytest.raises(IndexError, match="selective_state_update: state_batch_indices: expected < 3, got 7"):
        gdn_cuda.selective_state_update(**x | {"state_batch_indices": torch.tensor([0, 7, 1])})


# ---- Errors


@pytest.mark.parametrize("silu, most", [(False, 4.0), (True, 5.0)])
def test_error_over_1024_tokens_beside_bfloat16(silu: bool, most: float, seed: int) -> None:
    """In place at every token, with gates as a layer initialises them, in multiples of the error of bf16 states."""
    rng = torch.Generator().manual_seed(seed)
    T, heads, dim, N = 1024, 4, 8, 64
    A = -torch.empty(heads).uniform_(1, 16, generator=rng)
    steps = torch.exp(torch.empty(heads).uniform_(generator=rng) * 4.6 - 6.9)  # 0.001 to 0.1
    bias = steps + torch.log(-torch.expm1(-steps))
    dt, x = torch.randn(T, 1, heads, generator=rng), torch.randn(T, 1, heads, dim, generator=rng)
    B, C = (torch.randn(T, 1, heads, N, generator=rng) for _ in "BC")
    if silu:
        B, C = torch.nn.functional.silu(B), torch.nn.functional.silu(C)
    state, exact = torch.zeros(heads, dim, N, dtype=torch.float64), []
    for t in range(T):
        d = torch.nn.functional.softplus(dt[t, 0] + bias).double()[:, None, None]
        state = torch.exp(d * A.double()[:, None, None]) * state + d * x[t, 0].double()[..., None] * B[t, 0].double()[:, None]
        exact.append((state * C[t, 0].double()[:, None]).sum(-1))
    wanted, errors, options = torch.stack(exact), {}, {"dt_bias": bias, "dt_softplus": True}
    for dtype in (torch.bfloat16, torch.int8):
        pool, scales = gdn_cuda.convert_states(torch.zeros(1, heads, dim, N), dtype)
        tokens = [
            gdn_cuda.selective_state_update(pool, x[t], dt[t], A, B[t], C[t], state_scales=scales, **options)[0].double()
            for t in range(T)
        ]
        errors[dtype] = float((torch.stack(tokens) - wanted)[T // 2 :].norm() / wanted[T // 2 :].norm())
    assert 0 < errors[torch.int8] < most * errors[torch.bfloat16], errors
