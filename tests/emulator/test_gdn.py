"""The kernels of Gated Delta Net's recurrence in the emulator, against the recurrence in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from calls_by_engines import Call
from emulated import emulated
from engine_indices import DESTINATIONS, check_drafts
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import fused_decode, recurrent_forward, reference
from gdn_cuda.gdn import InferenceMode

OUTPUT_BOUND = 5e-3
STATE_BOUND = {torch.float32: 1e-5, torch.bfloat16: 2.0**-8}


def draws(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def in_double(x: dict[str, Any]) -> dict[str, Any]:
    return {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in x.items()}


def a_step(B: int, T: int, heads: tuple[int, int], dk: int, dv: int, state: torch.dtype) -> dict[str, Any]:
    Hk, Hv = heads
    return {
        "query": draws(1, B, T, Hk, dk).bfloat16(),
        "key": draws(2, B, T, Hk, dk).bfloat16(),
        "value": draws(3, B, T, Hv, dv).bfloat16(),
        "a": draws(4, B, T, Hv).bfloat16(),
        "b": draws(5, B, T, Hv).bfloat16(),
        "A_log": draws(6, Hv),
        "dt_bias": draws(7, Hv),
        "state_pool": draws(8, B + 2, Hv, dv, dk).to(state),
        "state_indices": torch.arange(B, 0, -1).int(),
    }


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "tokens,dk,dv,kernel",
    [(1, 64, 40, "decode"), (1, 128, 128, "decode"), (3, 64, 64, "verify"), (3, 72, 40, "recurrent"), (1, 24, 8, "recurrent")],
)
def test_a_step(tokens: int, dk: int, dv: int, kernel: str, state: torch.dtype) -> None:
    x = a_step(2, tokens, (2, 4), dk, dv, state)
    double = in_double(x)
    expected = reference.fused_decode(**double)
    with emulated(multiprocessors=1 if kernel == "verify" else 132) as launched:  # gdn/verify fills a device
        output = fused_decode(**x)
        assert [name for name in launched() if name.startswith(f"gdn/{kernel}{{")]
    assert rel_rms(output, expected) < OUTPUT_BOUND
    assert rel_rms(x["state_pool"], double["state_pool"]) < STATE_BOUND[state]


@pytest.mark.parametrize("multiprocessors", [1, 132])
@pytest.mark.parametrize(
    "dk, dv, T, state", [(64, 200, 3, torch.float32), (96, 40, 9, torch.float32), (192, 72, 3, torch.bfloat16)]
)
def test_verify_equals_single_steps(dk: int, dv: int, T: int, state: torch.dtype, multiprocessors: int) -> None:
    """The same bits, with few rows per block and with several row steps."""
    x = a_step(2, T, (1, 2), dk, dv, state)
    kept = torch.zeros(2, T, 2, dv, dk, dtype=state)
    with emulated(multiprocessors) as launched:
        together = fused_decode(**x, step_states=kept, step_slots=torch.arange(2))
        (kernel,) = launched()
    assert kernel.startswith("gdn/verify{") and ("rows_per_thread = 1" in kernel) == (multiprocessors == 132)
    with emulated():
        for t in range(T if state == torch.float32 else 1):  # a bf16 state is rounded between calls
            token = {name: y[:, t : t + 1] if name in ("query", "key", "value", "a", "b") else y for name, y in x.items()}
            assert torch.equal(fused_decode(**token), together[:, t : t + 1])
            assert torch.equal(x["state_pool"][x["state_indices"].long()], kept[:, t])


@pytest.mark.parametrize("to", DESTINATIONS)
def test_verify_of_drafts(to: str) -> None:
    with emulated(multiprocessors=1) as launched:
        check_drafts(Call((3,) * 4, dk=64, dv=40, io=torch.bfloat16), "contiguous", to, "cpu", gaps=False)
        assert [name for name in launched() if name.startswith("gdn/verify{")]


@pytest.mark.parametrize("mode", InferenceMode)
def test_recurrent_forward(mode: InferenceMode) -> None:
    x = {
        "query": draws(1, 9, 2, 64).half(),
        "key": draws(2, 9, 2, 64).half() / 8,
        "value": draws(3, 9, 4, 24).half(),
        "state": draws(4, 3, 4, 24, 64),
        "beta": draws(5, 9, 4).sigmoid(),
        "gate": -draws(6, 9, 4).abs(),
        "cu_seqlens": torch.tensor([0, 4, 4, 7]),
        "inference_mode": mode,
    }
    expected, states = reference.recurrent_forward(**in_double(x))
    with emulated():
        output, found = recurrent_forward(**x)
    spans = slice(0, 7) if mode == InferenceMode.SPEC_VERIFY else slice(None)
    assert rel_rms(output, expected) < OUTPUT_BOUND
    assert rel_rms(found[spans], states[spans]) < STATE_BOUND[torch.float32]
