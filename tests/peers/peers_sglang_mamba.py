"""SGLang's tests of the scan and of the step of Mamba layers, with what `gdn_cuda.integrations.sglang` puts in their places.

The pack has SGLang's Triton kernels, which the integration verifies and replaces, and which run the calls that it declines. The
layer's module is a stand-in. The references are in torch.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import peers_hosts as hosts
import peers_plugin
from peers_sglang import stand_ins

COUNTED_AS = "sglang"
EXCLUDED: dict[str, str] = {}
ONE_OF = {
    "test_mamba_chunk_scan_single_example": 2,
    "test_selective_state_update_with_heads_with_batch_indices": 4,
}


class Mixer2RMSNormGated:
    def forward_cuda(self, x, gate):  # type: ignore[no-untyped-def]
        raise AssertionError("no test calls it")


def prepare() -> None:
    from gdn_cuda.integrations import sglang

    stand_ins()
    # Tests that get another device skip themselves; peers_cpu makes CPU tensors of this one.
    hosts.module("sglang.srt.utils", get_device=lambda: "cuda")
    hosts.module("sglang.utils", is_in_ci=hosts.no)
    hosts.names_alone("sglang.srt.model_executor.forward_batch_info")
    from sglang.kernels.ops.mamba.triton_ops import mamba_chunk_scan_combined

    targets = [target.rpartition(":") for target in sglang.HOST.parts["mamba2"]]
    names = [name for module, _, name in targets if module == sglang._MIXER and "conv1d" in name]
    layer: dict[str, Any] = {name: _convolution(sglang, name) for name in names}
    layer |= {"mamba_chunk_scan_combined": mamba_chunk_scan_combined, "Mixer2RMSNormGated": Mixer2RMSNormGated}
    hosts.module(sglang._MIXER, **layer)
    older = ("sglang.srt.layers.attention.mamba.ops", "sglang.srt.layers.attention.mamba.ops.mamba_ssm")
    for name in older:  # where the functions were when the tests were written
        hosts.names_alone(name)
    sglang.uninstall()  # another suite may have installed it without these modules
    sglang.install()


def _convolution(sglang: ModuleType, name: str) -> Any:
    parameters = sglang.HOST.targets[f"{sglang._MIXER}:{name}"]
    return hosts.function(name, parameters, peers_plugin.declined(f"sglang.{name.removesuffix('_triton')}"))


def _step(*args: Any, enable_stochastic_rounding: bool = False, cache_philox_rounds: int = 0, **named: Any) -> Any:
    """SGLang's function of this name, by the class's method."""
    from sglang.kernels.ops.mamba.triton_ops.ssu_dispatch import TritonSSUBackend

    options = {"enable_stochastic_rounding": enable_stochastic_rounding, "cache_philox_rounds": cache_philox_rounds}
    return TritonSSUBackend(**options)(*args, **named)


def adapt(module: Any) -> None:
    from sglang.srt.layers.attention.mamba import mamba

    if hasattr(module, "mamba_chunk_scan_combined"):
        module.mamba_chunk_scan_combined = mamba.mamba_chunk_scan_combined
    if hasattr(module, "selective_state_update"):
        module.selective_state_update = _step
