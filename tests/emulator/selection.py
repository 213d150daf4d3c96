"""The tests of tests/emulator that run when that folder is not named on the command line, with the kernels that each launches
(conftest.py checks it). Together they launch every kernel, in one configuration or more (test_configurations.py)."""

from __future__ import annotations

SELECTED: dict[str, tuple[str, ...]] = {
    "test_configurations.py::test_a_selected_test_launches_every_kernel": (),
    # What the emulator finds
    "test_emulator.py::test_a_race_shows_in_the_other_order[reads_before_a_barrier]": (),
    "test_emulator.py::test_faults[waits_for_nobody-a deadlock: from thread 0 on __syncthreads at faulty_kernels.cuh:36, "
    "from thread 1 on __s]": (),
    "test_emulator.py::test_writes_before_a_tensor_are_found": (),
    "test_emulator.py::test_translation": (),
    # conv
    "test_causal_conv1d.py::test_which_kernels_run": (
        "conv/causal_conv",
        "conv/causal_conv_channels_last",
        "conv/causal_conv_tile",
        "conv/causal_conv_backward",
        "conv/causal_conv_backward_rows",
        "conv/causal_conv_backward_columns",
    ),
    "test_causal_conv1d.py::test_sizes[2-3-1-4-strided]": (
        "conv/causal_states",
        "conv/causal_states_backward",
    ),
    "test_causal_conv1d_update.py::test_without_bias_and_activation": (
        "conv/causal_step",
        "conv/causal_step_staged",
        "conv/causal_step_any",
    ),
    "test_hyena_short.py::test_every_option[False-3-tokens]": ("conv/hyena_short", "conv/hyena_short_backward"),
    "test_hyena_short.py::test_every_option[False-3-channels]": (
        "conv/hyena_short_columns",
        "conv/hyena_short_columns_backward",
    ),
    "test_hyena_medium.py::test_every_option[7-tokens-4-530]": ("conv/hyena_medium", "conv/hyena_medium_backward"),
    "test_hyena_long.py::test_every_option": ("conv/hyena_long",),
    "test_hyena_long_backward.py::test_layouts_and_states[1-tokens-dtype0]": (
        "conv/hyena_long_backward",
        "conv/hyena_long_states",
    ),
    "test_hyena_long_summary.py::test_poles[-0.03]": ("conv/hyena_long_summary",),
    "test_hyena_filter.py::test_filters[5-257]": ("conv/hyena_filter",),
    "test_hyena_filter.py::test_gradients[16-256]": ("conv/hyena_filter_backward",),
    "test_hyena_steps.py::test_dtypes[state0-io0]": ("conv/hyena_fir_step", "conv/hyena_modal_step"),
    "test_hyena_steps.py::test_states_in_whole_units_are_staged[8]": ("conv/hyena_fir_step_staged",),
    "test_rms_norm_gated.py::test_row_lengths[64-dtype1]": ("layers/rms_norm", "layers/rms_norm_backward"),
    "test_conv_split_l2norm.py::test_options": ("layers/split_conv", "layers/split_columns"),
    "test_conv_split_l2norm.py::test_gradients[(1, 2, 5, 3)-dtype0]": ("layers/split_backward",),
    # gdn and layers
    "test_gdn.py::test_a_step[1-64-40-decode-state0]": ("gdn/decode",),
    "test_gdn.py::test_a_step[3-64-64-verify-state0]": ("gdn/verify",),
    "test_gdn.py::test_a_step[3-72-40-recurrent-state0]": ("gdn/recurrent",),
    "test_trees.py::test_trees_of_any_rows_and_states[33-7]": ("gdn/recurrent_any",),
    "test_engine_calls.py::test_a_pool[plain-contiguous-True]": ("gdn/move_states",),
    "test_replay.py::test_steps_and_heads[1-1-2]": ("gdn/replay",),
    "test_decode_layer.py::test_layouts_and_heads[heads0-qwen3_next-io0]": ("layers/decode_layer",),
    "test_mamba2_decode_layer.py::test_resets_and_values_that_are_not_finite": ("layers/mamba2_decode_layer",),
    "test_chunk_steps.py::test_gating[dtype0-shape2]": ("layers/gating",),
    "test_chunk_steps.py::test_chunk_steps_with_bf16_states[64]": (
        "gdn/mn_major",
        "gdn/chunk_cumsum",
        "gdn/compute_u_w",
        "gdn/seq_state_update",
        "gdn/compute_o",
    ),
    "test_prefill_mma.py::test_gates_in_every_form[raw]": ("gdn/prefill_mma", "gdn/chunk_gates"),
    "test_gradients.py::test_against_the_recurrence[hopper-65x65-1x2x64x64-gates1.0-random-beta1.0-state-last]": (
        "gdn/backward_prepare",
        "gdn/backward_chain",
        "gdn/backward_gradients",
    ),
    "test_gradients.py::test_chains_of_few_heads_are_split_along_time[hopper-chunked]": ("gdn/backward_links",),
    "test_gradients.py::test_against_the_recurrence[ampere-65x65-1x2x64x64-gates1.0-random-beta1.0-state-last]": (
        "gdn/backward_mma_states",
        "gdn/backward_mma_gradients",
        "gdn/chunk_gates_backward",
    ),
    "test_prefill.py::test_lengths[65-64-one group-io0]": ("gdn/prefill",),
    "test_prefill_ahead.py::test_state_dtypes[None]": ("gdn/prefill_ahead",),
    "test_kda_chunks.py::test_lengths[65]": ("gdn/kda_prepare", "gdn/kda_own"),
    "test_summary.py::test_resets[100-reset]": (
        "gdn/summary",
        "gdn/summary_gates",
        "gdn/summary_tails",
        "gdn/summary_keys",
        "gdn/summary_segments",
        "gdn/summary_fold",
    ),
    "test_fold_states.py::test_parts_one_after_another[2-True]": ("gdn/fold_states",),
    "test_state_gradient.py::test_resets[100-reset]": ("gdn/summary_tails", "gdn/backward_chain", "gdn/summary_fold"),
    # scan
    "test_selective_scan.py::test_groups[tokens-2]": (
        "scan/selective_forward",
        "scan/selective_backward",
        "scan/selective_backward_sums",
    ),
    "test_selective_segments.py::test_slices_and_mixed_layouts[tokens]": ("scan/selective_pieces", "scan/selective_starts"),
    "test_selective_summary.py::test_what_has_decayed_is_not_read[7-tokens-None-False]": ("scan/selective_summary",),
    "test_uncovered_zeros.py::test_tokens_of_no_sequence[tokens-offsets1]": ("common/uncovered_zeros",),
    "test_transposed_copy.py::test_sizes[shape0-2]": ("common/transposed_copy",),
    "test_transposed.py::test_views[torch.bfloat16]": ("common/transposed_copy",),
    "test_steps.py::test_batches[9-24-None-state0]": ("scan/selective_step_direct",),
    "test_steps.py::test_verify_in_step_states[6]": ("scan/selective_step",),
    "test_steps.py::test_rows_with_one_value_of_A[state1-64]": ("scan/selective_step_tied", "scan/selective_step"),
    "test_steps.py::test_packed_trees_and_sequences_longer_than_their_parents": ("scan/selective_step_tokens",),
    "test_steps.py::test_simplified[False-zoh]": ("scan/simplified_step",),
    "test_gated.py::test_sizes_of_rglru[1-1-1-1-tokens]": ("scan/rglru", "scan/rglru_backward"),
    "test_gated.py::test_s7[False-2-5-3-37-dtype0]": ("scan/s7_product", "scan/s7_states", "scan/s7_outer"),
    "test_simplified_scan.py::test_values_and_gradients[3-False-False-False-zoh]": (
        "scan/diagonal_scan",
        "scan/diagonal_scan_backward",
    ),
    "test_simplified_scan.py::test_rows_that_blocks_share[False-False-False-zoh]": ("scan/diagonal_scan_parts",),
    # ssd
    "test_ssd.py::test_packed[True-lengths0]": ("ssd/prefill", "ssd/steps"),
    "test_ssd_checkpoints.py::test_after_any_number_of_tokens[True]": ("ssd/checkpoints",),
    "test_ssd_mma.py::test_packed[True]": ("ssd/prefill_mma",),
    "test_ssd_replay.py::test_rings_of_other_strides": ("ssd/replay_step",),
    "test_ssd.py::test_gradients_of_packed_sequences[lengths0]": ("ssd/backward",),
    "test_ssd_mma.py::test_gradients_of_packed_sequences[lengths2]": ("ssd/backward_mma",),
}
