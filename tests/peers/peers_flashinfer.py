"""FlashInfer's tests/gdn, with the functions of `gdn_cuda.integrations.flashinfer` under FlashInfer's names.

FlashInfer itself is not installed, because its kernels need CuTe DSL. Modules of its name have functions with the parameters
that the integration has verified, install() replaces them, and a call that the integration declines skips its test. The
references are those of the tests, in torch.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import peers_cpu
import peers_hosts as hosts
import peers_plugin
import pytest

_BY_NAME = "a test of one of FlashInfer's kernels by that kernel's own name, which the integration has not"
_MESSAGES = "a test of the words in which FlashInfer refuses"
_CACHES = "a test of FlashInfer's cache of compiled kernels"
EXCLUDED = {
    "test_verify_kernel_mtp_reuses_compile_across_cache_modes": _CACHES,
    "test_gdn_decode_mtp_non_bf16_output_preserves_padding_slots": "FlashInfer's verify leaves the output of a padding row as "
    "it was; gdn_cuda writes zeros, as FlashInfer's decode does",
    "test_gdn_decode_fp16_inputs_are_converted_not_reinterpreted": "asks for the bits of FlashInfer's conversion of fp16 "
    "to bf16; gdn_cuda computes with fp16",
    "test_gdn_decode_fp32_state_fla_scatter_vs_dense": "states after every token to slots of the pool (ssm_state_indices), "
    "which the integration leaves to FlashInfer",
    "test_prefill_zero_length_sequence_state_untouched": "FlashInfer leaves the final state of a sequence without tokens as "
    "it was; gdn_cuda writes the state that it starts from",
    **dict.fromkeys(
        (
            "test_checkpoint_alignment_error",
            "test_checkpoint_negative_interval",
            "test_checkpoint_missing_tensors",
            "test_checkpoint_spurious_tensors",
            "test_checkpoint_wrong_dtype",
            "test_checkpoint_wrong_cu_starts_size",
            "test_prefill_state_indices_requires_output_state_pool",
        ),
        _MESSAGES,
    ),
    **dict.fromkeys(
        (
            "test_gdn_decode_bf16_state_fla_scatter_padded_pool",
            "test_gdn_decode_bf16_state_fla_scatter_random_slots",
            "test_gdn_decode_bf16_state_fla_scatter_state_only",
            "test_gdn_decode_bf16_state_fla_scatter_validation",
            "test_gdn_decode_bf16_state_fla_scatter_vs_dense",
            "test_gdn_decode_bf16_state_fla_scatter_with_accepted_steps",
            "test_gdn_decode_bf16_state_fused_per_request_k",
            "test_gdn_decode_bf16_state_fused_recovery_decode",
            "test_gdn_decode_bf16_state_kernel",
            "test_gdn_decode_bf16_state_mtp_kernel",
            "test_gdn_decode_bf16_state_mtp_pool_larger_than_batch",
            "test_gdn_decode_bf16_state_mtp_split_pool",
            "test_gdn_decode_bf16_state_recovery_per_request_k",
            "test_gdn_decode_bf16_state_t1_kernel",
            "test_gdn_decode_bf16_state_wide_vec_mtp_kernel",
            "test_gdn_decode_bf16_wy_output_only_mtp_kernel",
            "test_gdn_decode_wy_output_only_fp16_inputs_are_converted",
            "test_decode_kernel_bf16_padding_indices",
            "test_pretranspose_api_uses_gdn_decode_bf16_state",
        ),
        _BY_NAME,
    ),
}
ONE_OF: dict[str, int] = {}


def prepare() -> None:
    from gdn_cuda.integrations import flashinfer

    def sm(*majors: int) -> Any:
        return lambda device=None: peers_cpu.capability()[0] in majors

    hosts.module(
        "flashinfer.utils",
        get_compute_capability=lambda device=None: peers_cpu.capability(),
        is_sm90a_supported=sm(9),
        is_sm100a_supported=sm(10),
        is_sm12x_supported=sm(12),
    )
    hosts.module("flashinfer.cute_dsl.utils", is_cute_dsl_arch_supported=hosts.yes)
    for target, (parameters, _) in flashinfer._TARGETS.items():
        module, _, name = target.partition(":")
        stub = hosts.function(name, parameters, peers_plugin.declined(f"flashinfer.{name}"))
        hosts.module(module, **{name: stub})
    flashinfer.install()


def adapt(module: ModuleType) -> None:
    if module.__name__.endswith("test_prefill_delta_rule"):
        module.chunk_gated_delta_rule = _without_l2norm(module.chunk_gated_delta_rule)


def _without_l2norm(chunk: Any) -> Any:
    """When these tests were written, FlashInfer ignored its argument use_qk_l2norm_in_kernel: they pass True and compare with a
    reference that does not normalize. Since then FlashInfer normalizes, as the integration does."""

    @functools.wraps(chunk)
    def call(*args: Any, **kwargs: Any) -> Any:
        args = args[:9] + (False,) * (len(args) > 9) + args[10:]
        return chunk(*args, **kwargs)

    return call


def is_repeat(item: pytest.Function) -> bool:
    """Whether the case repeats another one: use_cp chooses between two kernels of FlashInfer, and changes nothing in ours."""
    return bool(item.callspec.params.get("use_cp"))
