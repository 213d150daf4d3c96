"""States of int8 codes on CPU tensors: everything of state_codes_on_device, what is refused, and the error over many tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from devices import Device
from helpers import rel_rms
from kda_cases import literal
from state_codes_on_device import *  # noqa: F403
from state_codes_on_device import coded, drawn, read, recurrence, with_steps

import gdn_cuda


@pytest.fixture
def device() -> Device:
    return Device("cpu")


# ---- What is refused


def of_decode(rng: torch.Generator) -> dict[str, Any]:
    return drawn(rng, 2, 1, dk=64)


def refuses(argument: str, expected: str, call: dict[str, Any], function: Any = gdn_cuda.fused_decode) -> None:
    before = {name: y.clone() for name, y in call.items() if isinstance(y, torch.Tensor) and not y.is_floating_point()}
    with pytest.raises(ValueError, match=rf"^{function.__name__}: {argument}: expected .*{expected}.*, got .+"):
        function(**call)
    assert all(torch.equal(call[name], y) for name, y in before.items())


def test_scales_and_dtypes_belong_together(rng: torch.Generator) -> None:
    x = of_decode(rng)
    refuses("state_scales", "a tensor, as state_pool is int8", x | {"state_scales": None})
    refuses("state_scales", "None, as state_pool is float32", x | {"state_pool": x["state_pool"].float()})
    refuses("state_scales", "None, as state_pool is bfloat16", x | {"state_pool": x["state_pool"].bfloat16()})
    refuses("state_scales", "float32", x | {"state_scales": x["state_scales"].bfloat16()})
    refuses("state_scales", r"the shape of state_pool .*dk / 32", x | {"state_scales": x["state_scales"][..., :1]})
    refuses("state_scales", "the shape", x | {"state_scales": x["state_scales"][:-1]})
    refuses("state_scales", "the shape", x | {"state_scales": x["state_scales"].flatten(-2)})
    refuses("state_scales", "contiguous states", x | {"state_scales": x["state_scales"].mT.contiguous().mT})
    refuses("state_pool", "contiguous states", x | {"state_pool": x["state_pool"].mT.contiguous().mT})
    refuses("state_scales", "cpu", x | {"state_scales": x["state_scales"].to("meta")})
    refuses("state_scales", "memory of its own", x | {"state_scales": x["state_scales"][:1].expand(4, -1, -1, -1)})
    refuses("state_pool", "float32", x | {"state_pool": x["state_pool"].view(torch.uint8)})
    small = drawn(rng, 2, 1, dk=64)
    small |= {name: small[name][..., :48] for name in ("query", "key")} | {
        "state_pool": small["state_pool"][..., :48].contiguous()
    }
    refuses("state_pool", "multiple of 32", small)


def test_steps_are_of_the_pools_dtype(rng: torch.Generator) -> None:
    x = with_steps(of_decode(rng), 3, 1, Device("cpu"))
    refuses("step_scales", "a tensor, as step_states is int8", x | {"step_scales": None})
    refuses("step_states", "int8", x | {"step_states": x["step_states"].float(), "step_scales": None})
    refuses("step_scales", "the shape of step_states", x | {"step_scales": x["step_scales"][:, :0]})
    refuses("step_scales", "None, as step_states is", of_decode(rng) | {"step_scales": x["step_scales"]})


def test_nothing_shares_memory_with_scales(rng: torch.Generator) -> None:
    x = with_steps(of_decode(rng), 4, 1, Device("cpu"))
    refuses(".*", "", x | {"step_scales": x["state_scales"][:, None]})
    memory = torch.zeros(x["state_pool"].numel(), dtype=torch.int8)
    pool = memory.view(x["state_pool"].shape)
    scales = memory[: 4 * x["state_scales"].numel()].view(torch.float32).view(x["state_scales"].shape)
    refuses(".*", "", x | {"state_pool": pool, "state_scales": scales})
    refuses(".*", "", x | {"A_log": x["state_scales"].flatten()[:2]})


def test_other_operators_refuse_codes(rng: torch.Generator) -> None:
    x = of_decode(rng)
    rows = {name: x[name] for name in ("query", "key", "value")} | {"beta": x["b"], "gate": x["a"]}
    slots = {"state": x["state_pool"], "state_indices": x["state_indices"]}
    refuses("state_scales", "a tensor", rows | slots, gdn_cuda.chunked_forward)
    refuses("state_scales", "None", rows | {"state_scales": x["state_scales"]}, gdn_cuda.chunked_forward)
    wide = slots | {"state": x["state_pool"].float(), "state_scales": x["state_scales"]}
    refuses("state_scales", "None, as state is float32", rows | wide, gdn_cuda.chunked_forward)
    refuses("state", "float32", rows | {"state": x["state_pool"][:2]}, gdn_cuda.chunked_forward)
    leaf = rows | {"query": rows["query"].clone().requires_grad_(), "state_scales": x["state_scales"]}
    refuses("state_scales", "None", leaf, gdn_cuda.chunked_forward)
    buffers = gdn_cuda.replay_buffers(x["state_pool"], 1, 1)
    refuses("state_scales", "None with ReplayBuffers", x | {"replay": buffers})


def test_the_recurrence_refuses_codes_without_scales(rng: torch.Generator) -> None:
    recurrent = gdn_cuda.recurrent_forward
    x = recurrence(drawn(rng, 2, 3))
    codes, scales = x["state"], x["state_scales"]
    last = {"final_state": torch.full_like(codes, 7), "final_scales": torch.full_like(scales, 7.0)}
    refuses("state_scales", "a tensor, as state is int8", x | {"state_scales": None}, recurrent)
    refuses("state_scales", "None, as state is float32", x | {"state": codes.float()}, recurrent)
    refuses("state_scales", "None, as state is", x | {"state": None}, recurrent)
    refuses("state_scales", "dk / 32", x | {"state_scales": scales[..., :1]}, recurrent)
    refuses("state_scales", "float32", x | {"state_scales": scales.half()}, recurrent)
    refuses("state_scales", "contiguous states", x | {"state_scales": scales.mT.contiguous().mT}, recurrent)
    refuses("state", "contiguous states", x | {"state": codes.mT.contiguous().mT}, recurrent)
    refuses("state", "float32", x | {"state": codes.view(torch.uint8)}, recurrent)
    refuses("final_scales", "a tensor, as final_state is int8", x | last | {"final_scales": None}, recurrent)
    refuses("final_scales", "None, as final_state is float32", x | last | {"final_state": codes.float()}, recurrent)
    refuses("final_scales", "None, as final_state is", x | last | {"final_state": None}, recurrent)
    refuses("final_scales", "dk / 32", x | last | {"final_scales": scales[:1].clone()}, recurrent)
    shared = last["final_scales"][:1].expand_as(scales)
    refuses("final_scales", "memory of its own", x | last | {"final_scales": shared}, recurrent)
    refuses("final_state", "contiguous states", x | last | {"final_state": codes.mT.contiguous().mT}, recurrent)
    refuses("final_state|state", "overlap", x | {"final_state": codes, "final_scales": last["final_scales"]}, recurrent)
    refuses("final_scales|state_scales", "overlap", x | last | {"final_scales": scales}, recurrent)
    refuses("final_scales|gate", "overlap", x | last | {"gate": last["final_scales"].flatten()[:12].view(2, 3, 2)}, recurrent)
    verify = {"inference_mode": gdn_cuda.InferenceMode.SPEC_VERIFY}
    refuses("final_state", "None with SPEC_VERIFY", x | last | verify, recurrent)
    steps = {"state": codes[:, None], "state_scales": scales[:, None]}
    refuses("state_scales", "the shape of state", x | steps | verify | {"state_scales": scales}, recurrent)
    refuses("state", "rank 4", x | steps, recurrent)
    narrow = {name: x[name][..., :48] for name in ("query", "key")} | {"state": codes[..., :48].contiguous()}
    refuses("state", "multiple of 32", x | narrow, recurrent)
    refuses("final_state", "multiple of 32", x | narrow | last | {"state": None, "state_scales": None,
                                             "final_state": codes[..., :48].contiguous()}, recurrent)  # fmt: skip


def test_conversions_that_are_refused(rng: torch.Generator) -> None:
    states = torch.randn(3, 2, 4, 64, generator=rng)
    codes, scales = coded(states)
    convert = gdn_cuda.convert_states
    refuses("scales", "a tensor, as states is int8", {"states": codes, "dtype": torch.float32}, convert)
    refuses("scales", "None, as states is float32", {"states": states, "dtype": torch.int8, "scales": scales}, convert)
    refuses("states", "multiple of 32", {"states": states[..., :40], "dtype": torch.int8}, convert)
    refuses("states", "rank 4", {"states": states[0], "dtype": torch.int8}, convert)
    refuses("states", "int8", {"states": codes.int(), "dtype": torch.int8}, convert)
    refuses("dtype", "int8", {"states": states, "dtype": torch.uint8}, convert)
    refuses("dtype", "", {"states": states, "dtype": None}, convert)
    into = {"states": states, "dtype": torch.int8, "out": codes, "out_scales": scales}
    refuses("out_scales", "a tensor, as out is int8", into | {"out_scales": None}, convert)
    refuses("out_scales", "None, as out is", {"states": states, "dtype": torch.int8, "out_scales": scales}, convert)
    refuses("out_scales", "None, as out is bfloat16", into | {"dtype": torch.bfloat16, "out": states.bfloat16()}, convert)
    refuses("out", "int8", into | {"out": states.clone(), "out_scales": None}, convert)
    refuses("out", "", into | {"out": codes[:2]}, convert)
    refuses("out", "", {"states": states, "dtype": torch.float32, "out": states}, convert)
    refuses(
        "write_indices", "None without out", {"states": states, "dtype": torch.int8, "write_indices": torch.arange(3)}, convert
    )
    refuses("state_indices", "int32 or int64", into | {"state_indices": torch.zeros(3)}, convert)
    refuses("states", "2 of them", into | {"write_indices": torch.arange(2)}, convert)
    with pytest.raises(IndexError, match="convert_states: state_indices: expected < 3, got 3"):
        convert(states, torch.int8, state_indices=torch.tensor([3]))
    with pytest.raises(IndexError, match="convert_states: write_indices: expected < 3, got 7"):
        convert(**into, write_indices=torch.tensor([0, 7, 1]))


# ---- Errors


def test_float64_states(rng: torch.Generator) -> None:
    states = torch.randn(2, 1, 4, 32, generator=rng, dtype=torch.float64)
    codes, scales = gdn_cuda.convert_states(states, torch.int8)
    back, _ = gdn_cuda.convert_states(codes, torch.float64, scales)
    assert back.dtype == torch.float64 and torch.equal(back, read(codes, scales))


def test_error_over_1024_tokens_beside_bfloat16(seed: int) -> None:
    """In place at every token, with gates as a layer initialises them: at most 4 times the error of bf16 states."""
    rng = torch.Generator().manual_seed(seed)
    B, T, heads, d = 1, 1024, 4, 64
    rows = {name: torch.randn(B, T, heads, d, generator=rng) for name in ("query", "key", "value")}
    rows |= {"a": torch.randn(B, T, heads, generator=rng), "b": torch.randn(B, T, heads, generator=rng)}
    rates = torch.empty(heads).uniform_(1, 16, generator=rng).log()
    steps = torch.exp(torch.empty(heads).uniform_(generator=rng) * 4.6 - 6.9)  # 0.001 to 0.1
    gates = {"A_log": rates, "dt_bias": steps + torch.log(-torch.expm1(-steps))}
    decay = (-rates.exp() * torch.nn.functional.softplus(rows["a"] + gates["dt_bias"])).double().exp()
    decay = decay[..., None].expand(B, T, heads, d)
    exact, _ = literal(rows["query"], rows["key"], rows["value"], rows["b"].double().sigmoid(), decay, norm=True)
    errors = {}
    for dtype in (torch.bfloat16, torch.int8):
        pool, scales = gdn_cuda.convert_states(torch.zeros(B, heads, d, d), dtype)
        outputs = [
            gdn_cuda.fused_decode(
                **{name: x[:, t : t + 1] for name, x in rows.items()}, **gates, state_pool=pool, state_scales=scales
            )
            for t in range(T)
        ]
        errors[dtype] = rel_rms(torch.cat(outputs, 1)[:, T // 2 :], exact[:, T // 2 :])
    assert 0 < errors[torch.int8] < 4 * errors[torch.bfloat16], errors
