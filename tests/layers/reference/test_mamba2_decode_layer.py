"""mamba2_decode_layer on CPU tensors against its definition, and against the layers that it is a step of."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from devices import Device
from mamba2_layer_on_device import test_a_norm_after_states_of_codes, test_states_of_codes  # noqa: F401
from mamba2_oracle import check, draws

from gdn_cuda import causal_conv1d, mamba2_decode_layer, rms_norm_gated, ssd_scan
from gdn_cuda.layers.mamba2_decode_layer import by_operators


@pytest.fixture
def device() -> Device:
    return Device("cpu")


FORMS: dict[str, dict[str, Any]] = {
    "as drawn": {},
    "many states": {"N": 256, "groups": 1, "heads": 1, "state": torch.bfloat16},
    "fp16": {"io": torch.float16, "state": torch.float16, "columns": 5},
    "fp32": {"io": torch.float32, "dim": 1},
}


@pytest.mark.parametrize("form", FORMS)
def test_the_definition(form: str, seed: int) -> None:
    check(draws(seed, **FORMS[form]), mamba2_decode_layer)
    x = draws(seed, **FORMS[form])
    x |= {"z": None, "D": None, "conv_bias": None, "dt_limit": (0.1, 0.5), "activation": None}
    x |= {"state_indices": torch.tensor([4, -1, 2]), "null_slot": 2}
    check(x, mamba2_decode_layer)


@pytest.mark.parametrize("limit", [(0.0, float("inf")), (0.05, 0.4)])
def test_the_operators_one_by_one(limit: tuple[float, float], seed: int) -> None:
    for softplus in (True, False):
        x = draws(seed) | {"dt_softplus": softplus, "dt_limit": limit}
        y = x | {name: x[name].clone(memory_format=torch.preserve_format) for name in ("conv_pool", "state_pool")}
        torch.testing.assert_close(mamba2_decode_layer(**x), by_operators(**y))
        torch.testing.assert_close(x["state_pool"], y["state_pool"], rtol=1e-5, atol=1e-6)
        assert torch.equal(x["conv_pool"], y["conv_pool"])


@pytest.mark.parametrize("gated", [True, False])
def test_a_norm(gated: bool, seed: int) -> None:
    for options in ({}, {"norm_group_size": 8, "norm_before_gate": True, "norm_eps": 0.1}):
        x, weight = draws(seed), torch.linspace(0.5, 2, 32)
        y = x | {name: x[name].clone(memory_format=torch.preserve_format) for name in ("conv_pool", "state_pool")}
        z = x["z"] if gated else None
        found = mamba2_decode_layer(**x | {"z": z}, norm_weight=weight, **options)
        norm = {name.removeprefix("norm_"): value for name, value in options.items() if name != "norm_before_gate"}
        norm["norm_before_gate"] = options.get("norm_before_gate", False)
        expected = rms_norm_gated(mamba2_decode_layer(**y | {"z": None}), z, weight, **{"group_size": 16} | norm)
        assert torch.equal(found, expected) and torch.equal(x["state_pool"], y["state_pool"])


def test_steps_are_those_of_a_sequence(seed: int) -> None:
    """Against the convolution and the scan of all tokens."""
    tokens, H, P, G, N = 7, 4, 8, 2, 64
    x = draws(seed, batch=tokens, io=torch.float32, slots=1) | {"state_indices": None}
    x["conv_pool"], x["state_pool"] = torch.zeros(1, x["xBC"].shape[1], 3), torch.zeros(1, H, P, N)
    rows, _ = causal_conv1d(x["xBC"].T[None], x["conv_weight"], x["conv_bias"], return_final_states=True, activation="silu")
    u, B, C = rows[0].T[None].split([H * P, G * N, G * N], -1)
    y, last = ssd_scan(
        u.unflatten(-1, (H, P)), x["dt"][None], x["A"], B.unflatten(-1, (G, N)), C.unflatten(-1, (G, N)), x["D"],
        z=x["z"][None].unflatten(-1, (H, P)), dt_bias=x["dt_bias"], dt_softplus=True, return_last_state=True,
    )  # fmt: skip
    steps = []
    for t in range(tokens):
        token = {name: x[name][t : t + 1] for name in ("xBC", "dt", "z")}
        steps.append(mamba2_decode_layer(**x | token))
    torch.testing.assert_close(torch.cat(steps), y[0].flatten(-2), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(x["state_pool"], last, rtol=1e-4, atol=1e-5)
