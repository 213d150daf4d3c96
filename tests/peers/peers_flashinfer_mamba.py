"""FlashInfer's tests of the step of Mamba layers, with gdn_cuda.selective_state_update under FlashInfer's name.

The references are FlashInfer's own in Triton, beside its tests. A call that gdn_cuda does not take skips its test.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import peers_cpu
import peers_hosts as hosts
import peers_plugin
import pytest
import torch

import gdn_cuda
from gdn_cuda.integrations import counted

_MESSAGES = "a test of what FlashInfer refuses"
EXCLUDED = {
    "TestSelectiveStateUpdateMTPPadSlots.test_output_correctness": "outputs of padding are 0 here",
    "test_d_f32_dt_bf16_should_fail": _MESSAGES,
    "test_state_batch_idx_and_intermediate_idx_dtype_mismatch_should_fail": _MESSAGES,
}
ONE_OF: dict[str, int] = {}
_NAME = "flashinfer_mamba.selective_state_update"


def _step(
    state: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor,
    z: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: torch.Tensor | None = None,
    pad_slot_id: int = -1,
    state_scale: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    disable_state_update: bool = False,
    intermediate_states_buffer: torch.Tensor | None = None,
    intermediate_state_indices: torch.Tensor | None = None,
    intermediate_state_scales: torch.Tensor | None = None,
    rand_seed: torch.Tensor | None = None,
    philox_rounds: int = 10,
    cache_steps: int = 0,
    algorithm: str = "auto",
    dst_state_batch_indices: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    backend: str = "auto",
) -> torch.Tensor:
    if state_scale is not None or intermediate_state_scales is not None:
        raise counted.Declined("states in int16")
    if rand_seed is not None:
        raise counted.Declined("stochastic rounding")
    by_token = num_accepted_tokens is not None
    first = [x if x is None or by_token or x.dim() == 1 else x[:, 0] for x in (state_batch_indices, dst_state_batch_indices)]
    slots, written = first
    options: dict[str, Any] = {"write_indices": written, "cu_seqlens": cu_seqlens, "num_accepted_tokens": num_accepted_tokens}
    if intermediate_states_buffer is None:
        options["update_state"] = not disable_state_update
    else:
        rows = slots if intermediate_state_indices is None else intermediate_state_indices
        options |= {"step_states": intermediate_states_buffer, "step_slots": rows}
        options["write_indices"] = None if disable_state_update else slots
    options["null_slot"] = None if pad_slot_id < 0 or slots is None else pad_slot_id
    given = (state, x, dt, A, B, C, D, z, dt_bias, dt_softplus)
    return gdn_cuda.selective_state_update(*given, state_batch_indices=slots, out=out, **options)


def prepare() -> None:
    def sm(*majors: int) -> Any:
        return lambda device=None: peers_cpu.capability()[0] in majors

    hosts.module(
        "flashinfer.utils",
        get_compute_capability=lambda device=None: peers_cpu.capability(),
        is_cvt_rs_supported=sm(10),
        is_sm100a_supported=sm(10),
    )
    host = peers_plugin.declined(_NAME)
    hosts.module("flashinfer.mamba", selective_state_update=lambda *args, **more: counted.run(_NAME, _step, host, args, more))


def adapt(module: ModuleType) -> None:
    pass


def is_repeat(item: pytest.Function) -> bool:
    """Whether the case repeats another one: FlashInfer has several kernels."""
    return item.callspec.params.get("algorithm") in ("vertical", "horizontal")
