// scan/selective_step_codes on the host: which steps on int8 states it takes from scan/selective_step_tied, and its launch.
#pragma once

#include <array>
#include <cstdint>
#include <gdn_cuda/kernels/scan/selective_step/codes_plan.cuh>

#include "../../launch/spec.hpp"
#include "../common/code_step.hpp"

namespace gdn_cuda::scan {

inline constexpr std::array kCodeSteps{
    CodeStepConfig{.head_k = 128, .io = DType::bf16, .stages = 3, .blocks = 4, .gated = true},
    CodeStepConfig{.head_k = 128, .io = DType::f16, .stages = 3, .blocks = 4, .gated = true}};

// From here on it is faster, as measured with 128 heads of 64 channels; with a quarter of them it was not measured.
inline constexpr i64 kCodeStepRowsPerMultiprocessor = 24 * 128;

struct SelectiveStepCodes {
    GDN_KERNEL(SelectiveStepCodes, scan, selective_step_codes, CodeStepConfig, SelectiveCodesArgs,
               "a token of every sequence of Mamba-2's scan, int8 states updated in place: many sequences",
               .uses_cutlass = true, .starts_early = true);

    static std::span<const Config> configurations() { return kCodeSteps; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kCodeSteps, CodeStepSharedPlan>(config); }

    // Whether all is as in a layer of Mamba-2, aligned to 16 bytes, and there are many heads.
    static bool takes(const SelectiveStepArgs& args, int multiprocessors) {
        const auto wanted = static_cast<gdn::WantedSwitch>(gdn::kDecodeCodesVariable.value());
        const auto aligned = [](const void* data, i64 bytes, i64 more = 0) {
            return (reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(bytes | more)) % 16 == 0;
        };
        const DType io = args.x.values.type;
        const auto by_row = [&](const SelectiveStepArgs::ByRow& rows) {
            return rows.values.type == io && rows.d == bytes_of(io) && aligned(rows.values.data, rows.sequence, rows.head);
        };
        const auto by_column = [&](const SelectiveStepArgs::ByColumn& columns) {
            return columns.values.type == io && columns.n == bytes_of(io) &&
                   aligned(columns.values.data, columns.sequence, columns.group);
        };
        const bool fits = args.scales != nullptr && args.tokens == 1 && args.columns == 128 && args.in_place && args.tied &&
                          bytes_of(io) == 2 && args.dim > 0 && args.dim % CodeStepConfig::kTileRows == 0 &&
                          args.dim <= CodeStepConfig::kMostTiles * CodeStepConfig::kTileRows &&
                          args.group_rows % args.dim == 0 && by_row(args.x) && by_row(args.out) &&
                          (args.z.values.data == nullptr || by_row(args.z)) && by_column(args.B) && by_column(args.C) &&
                          args.delta_a.values.data == nullptr && args.delta.d == 0 && args.bias.d == 0 && args.D.d == 0 &&
                          args.A_d == 0 && aligned(args.scales, 4 * args.scales_slot) &&
                          (args.discretization == Discretization::mamba || args.discretization == Discretization::dirac);
        if (!fits || wanted == gdn::WantedSwitch::never) return false;
        return wanted == gdn::WantedSwitch::always ||
               i64{args.sequences} * args.heads * args.dim >= kCodeStepRowsPerMultiprocessor * multiprocessors;
    }

    static void run(const SelectiveStepArgs& step, const Target& target) {
        const Config& config = kCodeSteps[step.x.values.type == DType::bf16 ? 0 : 1];
        const int bytes = bytes_of(config.io);
        const auto by_row = [&](const SelectiveStepArgs::ByRow& rows) {
            return Args::Heads{const_cast<void*>(rows.values.data), rows.sequence / bytes, rows.head / bytes};
        };
        const auto by_column = [&](const SelectiveStepArgs::ByColumn& columns) {
            return Args::Heads{const_cast<void*>(columns.values.data), columns.sequence / bytes, columns.group / bytes};
        };
        const gdn::CodeStepUnits units =
            gdn::code_step_units(config, step.sequences, step.heads, step.dim, step.group_rows / step.dim,
                                 jit::device_traits(target.ordinal).multiprocessors);
        const Args args{units,
                        {.query = by_column(step.C),
                         .key = by_column(step.B),
                         .value = by_row(step.x),
                         .output = by_row(step.out),
                         .slots = step.slots,
                         .slots_sequence = step.slots_sequence,
                         .slot_count = step.slot_count,
                         .null_slot = step.null_slot,
                         .dv = step.dim,
                         .state_in = step.pool,
                         .state_out = step.pool,
                         .state_in_slot = step.pool_slot,
                         .state_out_slot = step.pool_slot,
                         .scales_in = step.scales,
                         .scales_out = step.scales,
                         .scales_in_slot = step.scales_slot,
                         .scales_out_slot = step.scales_slot},
                        by_row(step.z),
                        {step.delta.values, step.delta.sequence, step.delta.head},
                        {step.bias.values, 0, step.bias.head},
                        {step.D.values, 0, step.D.head},
                        static_cast<const float*>(step.A),
                        step.A_head,
                        step.softplus,
                        step.discretization == Discretization::dirac};
        launch<SelectiveStepCodes>(config, args, gdn::code_step_blocks(units), target, gdn::explain_code_step(units));
    }
};

}  // namespace gdn_cuda::scan
