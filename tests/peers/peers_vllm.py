"""vLLM's tests of packed decode, of mixed batches and drafts, of convolutions, and of the scan and steps of Mamba layers, with
the functions that `gdn_cuda.integrations.vllm` puts into the layers' modules.

The pack has vLLM's Triton kernels: the references of the tests, which the integration verifies and replaces, and which run the
calls that it declines. The layers' modules, and other modules that these import, are stand-ins. The references of convolutions,
scans and steps are in torch.
"""

from __future__ import annotations

import logging
import math
import random
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import peers_cpu
import peers_hosts as hosts
import peers_plugin
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

_COMPILED = "a test of vLLM's compiled scan of Mamba-1, which the integration does not replace"
EXCLUDED: dict[str, str] = {
    "test_selective_scan": _COMPILED,
    "test_selective_scan_varlen": _COMPILED,
    "test_chunk_scan_fwd_every_config_matches": "a test of one of vLLM's Triton kernels",
    "test_store_selects_the_checkpoint_from_all_chunk_states": "a test of one of vLLM's Triton kernels",
}
ONE_OF: dict[str, int] = {}
_LAYER = "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn"
_MAMBA = "vllm.model_executor.layers.mamba"
_OPS = "vllm.third_party.flash_linear_attention.ops"


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class _Norm:
    def forward_cuda(self, x, z=None):  # type: ignore[no-untyped-def]
        raise AssertionError("no test calls it")


class Mixer2RMSNormGated:
    def forward_cuda(self, x, gate):  # type: ignore[no-untyped-def]
        raise AssertionError("no test calls it")


def _host(data: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
    return data.to(device=device, dtype=dtype) if isinstance(data, torch.Tensor) else torch.tensor(data, dtype=dtype).to(device)


def stand_ins() -> None:
    """Of the modules that vLLM's kernels import."""
    platform = ModuleType("current_platform")
    for name in ("is_cuda", "is_cuda_alike"):
        setattr(platform, name, hosts.yes)
    for name in ("is_cpu", "is_rocm", "is_xpu", "is_arch_support_pdl"):
        setattr(platform, name, hosts.no)
    major, minor = peers_cpu.capability()
    platform.is_device_capability = lambda given: given == 10 * major + minor  # type: ignore[attr-defined]
    platform.is_device_capability_family = lambda given: given // 10 == major  # type: ignore[attr-defined]
    platform.device_type = peers_cpu.DEVICE  # type: ignore[attr-defined]
    hosts.module("vllm.platforms", current_platform=platform)
    hosts.module("vllm.triton_utils", triton=triton, tl=tl, tldevice=libdevice, HAS_TRITON=True)
    hosts.module("vllm.utils.math_utils", cdiv=triton.cdiv, next_power_of_2=triton.next_power_of_2, RCP_LN2=1 / math.log(2))
    hosts.module("vllm.utils.torch_utils", set_random_seed=_seed, async_tensor_h2d=_host)
    hosts.module("vllm.utils.platform_utils", get_device_name_as_file_name=lambda: "this GPU")
    hosts.module("vllm.utils.gpu_sync_debug", gpu_sync_allowed=nullcontext)
    hosts.module("vllm.envs")
    hosts.module("vllm.logger", init_logger=logging.getLogger)
    hosts.module("vllm._custom_ops")
    hosts.module("tests.kernels.utils", opcheck=hosts.yes)
    hosts.names_alone("vllm.v1.attention.backends.utils", NULL_BLOCK_ID=0, PAD_SLOT_ID=-1)
    for name in ("vllm.config", "vllm.config.mamba", "vllm.v1.kv_cache_interface"):
        hosts.names_alone(name)
    graphs = type("AttentionCGSupport", (), {"UNIFORM_BATCH": 0})
    hosts.names_alone("vllm.v1.attention.backend", AttentionCGSupport=graphs)
    hosts.module(f"{_OPS}.layernorm_guard", RMSNormGated=_Norm)
    hosts.module("vllm.model_executor.layers.layernorm", RMSNormGated=_Norm)


def _backend_of(kernel: Any, parameters: str) -> Any:
    """The class that has the step as a method, whose own runs vLLM's Triton kernel."""

    def step(self, state, x, dt, A, B, C, D, dt_bias, *rest, **named):  # type: ignore[no-untyped-def]
        kernel(state, x, dt, A, B, C, D, dt_bias, *rest, **named)

    names: dict[str, Any] = {"step": step}
    call = "".join(f", {name.partition('=')[0]}" for name in parameters.split(", ")[1:])
    exec(f"def __call__({parameters}):\n    return step(self{call})", names)
    return type("TritonSSUBackend", (), {"__call__": names["__call__"], "__module__": f"{_MAMBA}.ops.ssu_dispatch"})


def prepare() -> None:
    from gdn_cuda.integrations import vllm

    stand_ins()
    from vllm.model_executor.layers.mamba.ops import causal_conv1d as convolutions
    from vllm.model_executor.layers.mamba.ops import mamba_ssm, ssd_combined
    from vllm.third_party.flash_linear_attention import ops

    parameters, _ = vllm._TARGETS["fi_chunk_gated_delta_rule"]
    flashinfer = peers_plugin.declined("vllm.fi_chunk_gated_delta_rule")
    conv = {name: getattr(convolutions, name) for name in ("causal_conv1d_fn", "causal_conv1d_update")}
    hosts.module(
        _LAYER,
        fused_recurrent_gated_delta_rule_packed_decode=ops.fused_recurrent_gated_delta_rule_packed_decode,
        fused_sigmoid_gating_delta_rule_update=ops.fused_sigmoid_gating_delta_rule_update,
        fla_chunk_gated_delta_rule=ops.chunk_gated_delta_rule,
        fi_chunk_gated_delta_rule=hosts.function("fi_chunk_gated_delta_rule", parameters, flashinfer),
        **conv,
    )
    scan = ssd_combined.mamba_chunk_scan_combined_varlen
    hosts.module(vllm._MIXER, mamba_chunk_scan_combined_varlen=scan, Mixer2RMSNormGated=Mixer2RMSNormGated, **conv)
    backend = _backend_of(mamba_ssm.selective_state_update, vllm.HOST.targets[vllm._STEP])
    hosts.module(vllm._STEP_MODULE, TritonSSUBackend=backend)
    vllm.install()


def _step(
    *args: Any,
    enable_stochastic_rounding: bool = False,
    cache_philox_rounds: int = 0,
    D: Any = None,
    dt_bias: Any = None,
    **named: Any,
) -> Any:
    """vLLM's function of this name, by the class's method."""
    backend = sys.modules[f"{_MAMBA}.ops.ssu_dispatch"].TritonSSUBackend()
    backend._mamba_config = SimpleNamespace(enable_stochastic_rounding=enable_stochastic_rounding)
    return backend(*args, D=D, dt_bias=dt_bias, **named)


def adapt(module: ModuleType) -> None:
    """Gives the tests the functions of the layers' modules."""
    for layer in (_LAYER, f"{_MAMBA}.mamba_mixer2"):
        for name, function in vars(sys.modules[layer]).items():
            if callable(function) and name in vars(module):
                setattr(module, name, function)
    if hasattr(module, "selective_state_update"):
        module.selective_state_update = _step
