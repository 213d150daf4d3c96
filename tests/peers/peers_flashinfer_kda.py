"""FlashInfer's tests/kda of decode, with the functions of `gdn_cuda.integrations.flashinfer` under FlashInfer's names.

As in peers_flashinfer, FlashInfer is not installed, and its functions are stand-ins. The references are those of the tests.
"""

from __future__ import annotations

from types import ModuleType

import peers_flashinfer
import peers_hosts as hosts

COUNTED_AS = "flashinfer"
_MESSAGES = "a test of the words in which FlashInfer refuses"
_KERNELS = "a test of one of FlashInfer's kernels"
EXCLUDED = {
    "test_fused_kda_decode_cache_key_distinguishes_state_and_gate": _KERNELS,
    "test_fused_kda_decode_requires_matching_cache_slots": _MESSAGES,
    "test_kernel_schedule": _KERNELS,
    "test_recurrent_kda_vs_fla": "FLA's recurrence is gdn_cuda's where its integration is installed",
    "test_spec_decode_cu_seqlens_validation": _MESSAGES,
    "test_spec_decode_shape_validation": _MESSAGES,
    "test_spec_decode_separate_source_and_beta_logits": "initial_state_source, which the integration leaves to FlashInfer",
    "test_spec_decode_validate_slots_collision": _MESSAGES,
}
ONE_OF: dict[str, int] = {}


def prepare() -> None:
    from gdn_cuda.integrations import flashinfer

    flashinfer.uninstall()  # another suite may have installed it
    peers_flashinfer.prepare()
    available = {"_RECURRENT_KDA_AVAILABLE": True, "_FUSED_KDA_DECODE_AVAILABLE": True}
    hosts.module("flashinfer.kda_decode", **available)
    hosts.names_alone("flashinfer.kda_kernels.recurrent_kda")


def adapt(module: ModuleType) -> None:
    module.is_sm100a_supported = hosts.yes
