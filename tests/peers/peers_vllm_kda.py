"""vLLM's tests of the kernels of Kimi Delta Attention, tests/models/kimi_k3/test_kda.py and glm5next/test_kda_recurrent.py,
with the functions that `gdn_cuda.integrations.vllm` puts into the layers' modules.

The pack has vLLM's Triton kernels: references of some tests, which the integration verifies and replaces, and which run the
calls that it declines. The layers' modules are stand-ins, FlashKDA and vLLM's compiled step too: gdn_cuda stands in for them.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import peers_hosts as hosts
import peers_plugin
import pytest
import torch
from peers_vllm import stand_ins

COUNTED_AS = "vllm"
_OWN = "a test of a kernel of vLLM's that the integration leaves alone"
_LAYER = "a test of vLLM's layer, of which the pack has the kernels alone"
EXCLUDED = {
    "test_chunk_kda": _OWN,
    "test_chunk_kda_fused_gate_cumsum_matches_unfused": "compares two kernels of vLLM's within the rounding of one",
    "test_flashinfer_fused_kda_spec_decode_integration": _LAYER,
    "test_flashinfer_kda_prefill_breakable_graph_cross_stream": _LAYER,
    "test_fused_kda_decode_rejects_speculative_conv_state": _LAYER,
    "test_fused_recurrent_kda_rejects_unaddressable_layouts": "a test of what vLLM refuses",
    "test_gather_initial_states_correctness": _OWN,
    "test_kda_recoverssm_config_state_layout": _LAYER,
    "test_kda_recoverssm_verify_and_group_commit": _OWN,
    "test_kda_warmup_skips_missing_metadata": _LAYER,
    "test_prefill_checkpoint_resumes_suffix": _LAYER,
    "test_resolve_kda_spec_decode_backend": _LAYER,
}
ONE_OF: dict[str, int] = {}
_MODELS = "vllm.models"


class Glm5NextLinearAttention:
    def _flashkda_prefill(  # type: ignore[no-untyped-def]
        self,
        q,
        k,
        v,
        g,
        beta,
        initial_state,
        cu_seqlens,
        out,
        checkpoint=None,
        raw_qkv=None,
        conv_state=None,
        recurrent_state=None,
    ):
        raise AssertionError("no test calls it")


def _stand_in(module: str, names: dict[str, Any], counted: dict[str, str]) -> None:
    """A module with vLLM's functions, and with those that are not in the pack: calls that gdn_cuda declines skip their test."""
    from gdn_cuda.integrations import vllm

    made = {
        name: hosts.function(name, vllm.HOST.targets[f"{module}:{name}"], peers_plugin.declined(f"vllm.{counted_as}"))
        for name, counted_as in counted.items()
    }
    hosts.names_alone(module, **names, **made)


def prepare() -> None:
    from gdn_cuda.integrations import vllm, vllm_kda

    vllm.uninstall()  # another suite may have installed it without these modules
    stand_ins()
    for module in (
        "vllm.compilation.breakable_cudagraph",
        "vllm.model_executor.layers.mamba.mamba_utils",
        "vllm.utils.flashinfer",
        f"{_MODELS}.kimi_k3.nvidia.kda_metadata",
        f"{_MODELS}.kimi_k3.nvidia.model",
        f"{_MODELS}.kimi_k3.nvidia.ops.recoverssm",
    ):
        hosts.names_alone(module)
    hosts.module("vllm._flashkda_C")
    torch.ops._flashkda_C = SimpleNamespace(get_workspace_size=lambda *sizes: 0)  # type: ignore[attr-defined]
    from vllm.model_executor.layers.mamba.ops import causal_conv1d

    conv = {name: getattr(causal_conv1d, name) for name in ("causal_conv1d_fn", "causal_conv1d_update")}
    supported = ("is_flashkda_supported", "is_fused_kda_decode_supported")
    flashinfer = ("fused_kda_decode", "fused_kda_spec_decode", "recurrent_kda_prefill")
    asked = dict.fromkeys(supported, hosts.yes) | {f"is_flashinfer_{name}_supported": hosts.no for name in flashinfer}
    _stand_in(vllm_kda.K3, conv | asked, {"_flashkda_prefill": "flashkda_prefill"})
    _stand_in(vllm_kda.OPS, {}, {"fused_kda_decode": "fused_kda_decode"})
    _stand_in(vllm_kda.LINEAR, conv, {})
    from vllm.models.glm5next.nvidia.ops.third_party import kda as glm
    from vllm.models.kimi_k3.nvidia.ops.third_party import kda as kimi

    hosts.module(f"{_MODELS}.kimi_k3.amd.ops.third_party.kda", **{name: getattr(kimi, name) for name in kimi.__all__})
    hosts.module(vllm_kda.GLM, **conv, **{name: getattr(glm, name) for name in glm.__all__})
    Glm5NextLinearAttention.__module__ = vllm_kda.GLM
    sys.modules[vllm_kda.GLM].Glm5NextLinearAttention = Glm5NextLinearAttention  # type: ignore[attr-defined]
    vllm.install()


def adapt(module: ModuleType) -> None:
    """GLM's test imports the kernel, which its layer imports by name."""
    from gdn_cuda.integrations import vllm_kda

    if "run_kernel" in vars(module):
        module.fused_recurrent_kda = sys.modules[vllm_kda.GLM].fused_recurrent_kda


def is_repeat(item: pytest.Function) -> bool:
    """Whether the case is one of AMD's kernels."""
    return item.callspec.params.get("impl") == "amd"
