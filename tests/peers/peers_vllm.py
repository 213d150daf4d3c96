"""vLLM's tests of packed decode, of mixed batches and drafts, and of convolutions, with the functions that
`gdn_cuda.integrations.vllm` puts into the layer's module.

The pack has vLLM's Triton kernels: the references of the tests, which the integration verifies and replaces, and which run the
calls that it declines. The layer's module, and other modules that these import, are stand-ins. The convolutions' references are
in torch.
"""

from __future__ import annotations

import random
import sys
from contextlib import nullcontext
from types import ModuleType

import numpy as np
import peers_cpu
import peers_hosts as hosts
import peers_plugin
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

EXCLUDED: dict[str, str] = {}
ONE_OF: dict[str, int] = {}
_LAYER = "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn"
_OPS = "vllm.third_party.flash_linear_attention.ops"


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class _Norm:
    def forward_cuda(self, x, z=None):  # type: ignore[no-untyped-def]
        raise AssertionError("no test calls it")


def prepare() -> None:
    from gdn_cuda.integrations import vllm

    platform = ModuleType("current_platform")
    for name in ("is_cuda", "is_cuda_alike"):
        setattr(platform, name, hosts.yes)
    for name in ("is_cpu", "is_rocm", "is_xpu", "is_arch_support_pdl", "is_device_capability_family"):
        setattr(platform, name, hosts.no)
    platform.device_type = peers_cpu.DEVICE  # type: ignore[attr-defined]
    hosts.module("vllm.platforms", current_platform=platform)
    hosts.module("vllm.triton_utils", triton=triton, tl=tl, tldevice=libdevice)
    hosts.module("vllm.utils.math_utils", cdiv=triton.cdiv, next_power_of_2=triton.next_power_of_2)
    hosts.module("vllm.utils.torch_utils", set_random_seed=_seed, async_tensor_h2d=lambda x, **to: x.to(**to))
    hosts.module("vllm.utils.gpu_sync_debug", gpu_sync_allowed=nullcontext)
    hosts.module("vllm.v1.attention.backends.utils", NULL_BLOCK_ID=0, PAD_SLOT_ID=-1)
    hosts.module(f"{_OPS}.layernorm_guard", RMSNormGated=_Norm)
    hosts.module("vllm.model_executor.layers.layernorm", RMSNormGated=_Norm)
    from vllm.model_executor.layers.mamba.ops import causal_conv1d as convolutions
    from vllm.third_party.flash_linear_attention import ops

    parameters, _ = vllm._TARGETS["fi_chunk_gated_delta_rule"]
    flashinfer = peers_plugin.declined("vllm.fi_chunk_gated_delta_rule")
    hosts.module(
        _LAYER,
        fused_recurrent_gated_delta_rule_packed_decode=ops.fused_recurrent_gated_delta_rule_packed_decode,
        fused_sigmoid_gating_delta_rule_update=ops.fused_sigmoid_gating_delta_rule_update,
        fla_chunk_gated_delta_rule=ops.chunk_gated_delta_rule,
        fi_chunk_gated_delta_rule=hosts.function("fi_chunk_gated_delta_rule", parameters, flashinfer),
        causal_conv1d_fn=convolutions.causal_conv1d_fn,
        causal_conv1d_update=convolutions.causal_conv1d_update,
    )
    vllm.install()


def adapt(module: ModuleType) -> None:
    """Gives the tests the functions of the layer's module."""
    for name, function in vars(sys.modules[_LAYER]).items():
        if name in vars(module):
            setattr(module, name, function)
