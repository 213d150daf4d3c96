"""SGLang's tests of its chunked prefill and of FlashQLA's kernel class, with the class of `gdn_cuda.integrations.sglang`.

The pack has SGLang's kernel class with its Triton kernels; install() verifies it and replaces it by ours. In the first test
`chunk_gated_delta_rule` is our class's `extend`, and the reference is SGLang's Triton kernel, token by token. In the second,
our class stands in for FlashQLA's, and the reference is SGLang's own class.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import peers_cpu
import peers_hosts as hosts
import peers_plugin
import pytest
import torch

_FALLBACK = "a test of when FlashQLA's kernel leaves a call to Triton"
EXCLUDED = {
    "test_flashqla_falls_back_below_threshold": _FALLBACK,
    "test_flashqla_falls_back_on_unsupported_dtype": _FALLBACK,
}
ONE_OF: dict[str, int] = {}
_KERNELS = "sglang.srt.layers.attention.linear.kernels"
_theirs: Any = None


def stand_ins() -> None:
    """Of the modules that SGLang's kernels and their tests import."""
    hosts.module(
        "sglang.srt.utils",
        get_device=lambda: peers_cpu.DEVICE,
        get_device_sm=lambda: 10 * peers_cpu.capability()[0],
        is_cpu=hosts.no,
        is_cuda=hosts.yes,
        is_gfx95_supported=hosts.no,
        is_hip=hosts.no,
        is_npu=hosts.no,
        is_sm90_supported=lambda: peers_cpu.capability()[0] == 9,
        is_sm100_supported=lambda: peers_cpu.capability()[0] == 10,
        is_xpu=hosts.no,
    )
    release = tuple(int(part) for part in torch.__version__.partition("+")[0].split(".")[:2])
    hosts.module("sglang.srt.utils.common", torch_release=release, is_hip=hosts.no)
    hosts.names_alone("sglang.kernels.jit.utils", is_arch_support_pdl=hosts.no)
    registers = ("register_amd_ci", "register_cuda_ci", "register_xpu_ci")
    hosts.module("sglang.test.ci.ci_register", **dict.fromkeys(registers, hosts.no))


def prepare() -> None:
    global _theirs
    from gdn_cuda.integrations import sglang

    stand_ins()
    from sglang.srt.layers.attention.linear.kernels import gdn_triton

    _theirs = gdn_triton.TritonGDNKernel
    names = sglang._CONVOLUTIONS  # functions of the layer, which is not in the pack
    parameters = {name: sglang.HOST.targets[f"{sglang._LAYER}:{name}"] for name in names}
    layer = {name: hosts.function(name, parameters[name], peers_plugin.declined(f"sglang.{name}")) for name in names}
    hosts.module(sglang._LAYER, **layer)
    sglang.install()
    ours = gdn_triton.TritonGDNKernel
    qla = {"_FLASHQLA_MIN_TOTAL_TOKENS": 0, "FlashQLAGDNKernel": lambda min_total_tokens=0: ours()}
    hosts.module(f"{_KERNELS}.gdn_flashqla", **qla)


@contextmanager
def importing() -> Iterator[None]:
    """The second test needs FlashQLA to be found; FLA's test looks for it too, and must not find it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "flash_qla", ModuleType("flash_qla"))
        yield


def _chunk(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    initial_state: Any,
    initial_state_indices: Any,
    cu_seqlens: Any,
    head_first: bool,
    use_qk_l2norm_in_kernel: bool,
) -> Any:
    """Calls `extend` with the arguments of SGLang's function of this name."""
    assert use_qk_l2norm_in_kernel and not head_first
    kernel = sys.modules[f"{_KERNELS}.gdn_triton"].TritonGDNKernel()
    slots = {"ssm_states": initial_state, "cache_indices": initial_state_indices, "query_start_loc": cu_seqlens}
    return kernel.extend(q, k, v, g, beta, **slots)


def adapt(module: ModuleType) -> None:
    if hasattr(module, "chunk_gated_delta_rule"):
        module.chunk_gated_delta_rule = _chunk
    if hasattr(module, "TritonGDNKernel"):
        module.TritonGDNKernel = _theirs
