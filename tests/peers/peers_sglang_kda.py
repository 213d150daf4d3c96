"""SGLang's tests of the kernels of Kimi Delta Attention, with the class of `gdn_cuda.integrations.sglang`.

The pack has SGLang's kernel class with its Triton kernels; install() verifies it and replaces it by ours. `chunk_kda` and
`fused_recurrent_kda_packed_decode` are our class's `extend` and `packed_decode`. The references are in torch, or SGLang's
Triton kernel of tokens.
"""

from __future__ import annotations

import importlib
import sys
import unittest
from types import ModuleType
from typing import Any

import peers_cpu
import peers_hosts as hosts
import torch
from peers_sglang import stand_ins

COUNTED_AS = "sglang"
_OWN = "a test of kernels of SGLang's that the integration leaves alone"
_GATES = ("varlen_with_bias", "varlen_no_bias", "fixed_len_with_bias", "single_seq_long", "small_head_dim")
EXCLUDED = {f"TestKDAGateChunkCumsum.test_{name}": _OWN for name in _GATES} | {
    "test_kda_fused_sigmoid_gating_recurrent": "compares two kernels of SGLang's to the last digits of fp32",
}
ONE_OF: dict[str, int] = {}
_MODULE = "sglang.srt.layers.attention.linear.kernels.kda_triton"
_OPS = "sglang.kernels.ops.attention"


def prepare() -> None:
    from gdn_cuda.integrations import sglang

    stand_ins()
    hosts.module("sglang.srt.utils.common", get_device=lambda: peers_cpu.DEVICE)
    hosts.module("sglang.test.test_utils", CustomTestCase=unittest.TestCase)
    from sglang.kernels.ops.attention.linear.fused_sigmoid_gating_recurrent import fused_sigmoid_gating_delta_rule_update

    older = f"{_OPS}.fla.fused_sigmoid_gating_recurrent"  # where the function was when the test was written
    hosts.module(older, fused_sigmoid_gating_delta_rule_update=fused_sigmoid_gating_delta_rule_update)
    hosts.names_alone(f"{_OPS}.fla.fused_norm_gate")  # the norm, which no test calls
    importlib.import_module(_MODULE)
    sglang.uninstall()  # another suite may have installed it without this module
    sglang.install()


def _kernel() -> Any:
    return sys.modules[_MODULE].TritonKDAKernel()  # type: ignore[attr-defined]


def _chunk(*, initial_state: Any, initial_state_indices: Any, cu_seqlens: Any, A_log: Any, dt_bias: Any, **rows: Any) -> Any:
    """`extend` with the arguments of SGLang's function of this name. Its keys are normalized already."""
    if cu_seqlens is None:
        tokens = rows["q"].shape[1]
        cu_seqlens = torch.tensor([0, tokens], dtype=torch.int32, device=rows["q"].device)
    slots = {"ssm_states": initial_state, "cache_indices": initial_state_indices, "query_start_loc": cu_seqlens}
    return _kernel().extend(**rows, **slots, A_log=A_log, dt_bias=dt_bias)


def _packed_decode(
    *, initial_state: Any, ssm_state_indices: Any, out: Any, use_qk_l2norm_in_kernel: bool, **given: Any
) -> None:
    assert use_qk_l2norm_in_kernel
    sizes = {"num_v_heads": out.shape[2], "head_v_dim": out.shape[3]}
    found = _kernel().packed_decode(**given, ssm_states=initial_state, cache_indices=ssm_state_indices, **sizes)
    out.copy_(found.transpose(0, 1))


def adapt(module: ModuleType) -> None:
    module.chunk_kda = _chunk  # type: ignore[attr-defined]
    module.fused_recurrent_kda_packed_decode = _packed_decode  # type: ignore[attr-defined]
