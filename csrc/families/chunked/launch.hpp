// The launches of a schedule: gdn/prefill, and gdn/prefill_ahead with it.
#pragma once

#include <array>
#include <limits>

#include "../../jit/tensor_map.hpp"
#include "schedule.hpp"

namespace gdn_cuda::gdn {

inline constexpr std::array kPrefillConfigurations = [] {
    std::array<ChunkedConfig, 34> all{};
    size_t n = 0;
    for (const DType io : {DType::bf16, DType::f16}) {
        for (const int head_k : {256, 192}) all[n++] = chunked_config(head_k, 1, io);
        for (const int head_k : {128, 96, 64}) {
            for (const int value_groups : {2, 1})
                for (const bool is_chained : {false, true}) {
                    all[n] = chunked_config(head_k, value_groups, io);
                    all[n++].chained = is_chained;
                }
            all[n] = chunked_config(head_k, 2, io);
            all[n++].persistent = true;
        }
    }
    return all;
}();

// Whether the grid is persistent: one block per multiprocessor takes sequences one after another (chunked/persistent.cuh).
// Packed sequences differ in length, and a head's last rows may be fewer: blocks that start as others end share such work
// better. The loop over chunks has no room to store checkpoints.
inline bool prefill_is_persistent(const ChunkedConfig& config, i64 blocks, int segments, const GdnCall& call,
                                  const jit::DeviceTraits& device, const ChunkedPolicy& policy = kChunkedPolicy) {
    const bool equal_rows = call.dv <= config.rows_per_block() || call.dv % config.rows_per_block() == 0;
    return equal_rows && config.value_groups == 2 && segments == 1 &&
           ceil_div(blocks, i64{device.multiprocessors}) >= policy.least_waves &&
           blocks <= std::numeric_limits<int>::max() - device.multiprocessors && call.cu_seqlens.data == nullptr &&
           call.steps.data == nullptr;
}

// Whether blocks find the longest of packed sequences first (chunked/block.cuh): where all run at once, it is as good to start
// any.
inline bool prefill_takes_longest_first(i64 blocks, int segments, const GdnCall& call, const jit::DeviceTraits& device) {
    return call.cu_seqlens.data != nullptr && call.sequences <= kMostByLength && segments == 1 &&
           blocks > device.multiprocessors;
}

struct PrefillTensors {
    jit::TiledTensor query, key, value, output;
    bool in_place;     // final states overwrite the initial states
    unsigned* counts;  // zeros
    float* workspace;
};

struct Prefill {
    GDN_KERNEL(Prefill, gdn, prefill, ChunkedConfig, ChunkedArgs, "the chunked form on Hopper's tensor cores: prefill",
               .min_capability = 90, .max_capability = 90, .uses_cutlass = true);

    static std::span<const Config> configurations() { return kPrefillConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kPrefillConfigurations, ChunkedPlan>(config); }

    // The last one of each thread is kept, as a model's layers call one after another with the same problem.
    static ChunkedSchedule schedule(const ChunkedProblem& problem, const Target& target) {
        struct Last {
            ChunkedProblem problem;
            int multiprocessors = 0;
            ChunkedSchedule schedule;
        };
        thread_local Last last{};
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        const int multiprocessors = device.multiprocessors;
        if (const auto* winner = find(tuned<ChunkedTuning>(device), problem))
            return ChunkedScheduler(problem, multiprocessors, kChunkedPolicy, winner->choice).schedule();
        if (last.multiprocessors != multiprocessors || last.problem != problem)
            last = {problem, multiprocessors, ChunkedScheduler(problem, multiprocessors).schedule()};
        return last.schedule;
    }

    static void run(const ChunkedProblem& problem, const ChunkedSchedule& schedule, const GdnCall& call,
                    const PrefillTensors& tensors, const Target& target) {
        if (call.sequences == 0 || call.heads == 0 || call.dv == 0) return;
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        const auto why = [&](const jit::DeviceTraits& on) { return explain_chunked(problem, on, tuned<ChunkedTuning>(on)); };
        Args args = args_of(problem, schedule, call, tensors, target);
        Config config = schedule.config;
        config.persistent =
            !schedule.ahead && prefill_is_persistent(config, schedule.blocks, schedule.split.segments, call, device);
        if (config.persistent) {
            const auto why_persistent = [&](const auto& on) {
                return fmt::format("{}; a block takes {} sequences and heads in turn", why(on),
                                   ceil_div(schedule.blocks, i64{on.multiprocessors}));
            };
            args.work_tiles = static_cast<int>(schedule.blocks);
            return launch<Prefill>(config, args, {device.multiprocessors, 1, 1}, target, why_persistent);
        }
        if (schedule.split.segments == 1 && schedule.ahead) return run_unsplit(problem, schedule, args, tensors, target, why);
        // First the launch that takes calls with a model's gates; in the other order it would wait.
        if (schedule.two_launches) {
            prefetch<Prefill>(config, target);
            Args first = args;
            first.takes = schedule.by_length ? LaunchTakes::short_sequences : LaunchTakes::if_one_decays_slowly;
            if (schedule.by_length) first.segments = 1;
            run_unsplit(problem, schedule, first, tensors, target, [&](const auto&) {
                return schedule.by_length ? "takes the sequences that are not split"
                                          : "does the work if a head's decay is slow: no sequence is split then";
            });
        }
        run_blocks(config, args, schedule.sequences * schedule.split.segments, target, why);
    }

  private:
    static Args args_of(const ChunkedProblem& problem, const ChunkedSchedule& schedule, const GdnCall& call,
                        const PrefillTensors& tensors, const Target& target) {
        const auto map = [&](const jit::TiledTensor& tensor) {
            return jit::tile_map(tensor, problem.io, kChunk, target.ordinal);
        };
        const i64 readers = schedule.readers(tensors.in_place);
        unsigned* const have_summary = tensors.counts + readers;
        float* const transitions = tensors.workspace + schedule.state_words;
        const Summaries summaries{.states = tensors.workspace,
                                  .transitions = transitions,
                                  .have_summary = have_summary,
                                  .have_state = have_summary + schedule.summaries,
                                  .count = schedule.summaries,
                                  .per_head = schedule.summaries_of_head,
                                  .per_sequence = schedule.summaries_of_sequence,
                                  .summary_tokens = schedule.summary_tokens,
                                  .cached = schedule.cached_words > 0 ? transitions + schedule.transition_words : nullptr,
                                  .chunks = schedule.chunks,
                                  .first_length = schedule.chain.first_length};
        const i64 columns = schedule.config.head_k, rows = schedule.config.key_tiles() * kChunk;
        const jit::TiledTensor tiled{
            {transitions, rows * 2 * columns, 2 * columns, columns}, summaries.count, rows, 2, columns};
        return {.query = map(tensors.query),
                .key = map(tensors.key),
                .value = map(tensors.value),
                .output = map(tensors.output),
                .transitions = summaries.count > 0 ? map(tiled) : TensorMap{},
                .call = call,
                .state = problem.state,
                .segments = schedule.split.segments,
                .by_length = schedule.by_length,
                .reach = schedule.reach,
                .takes = !schedule.two_launches ? LaunchTakes::every_call
                         : schedule.by_length   ? LaunchTakes::long_sequences
                                                : LaunchTakes::if_all_decay_fast,
                .summaries = summaries,
                .decision = schedule.decides() ? tensors.counts + schedule.counts(tensors.in_place) - 1 : nullptr,
                .readers = readers > 0 ? tensors.counts : nullptr,
                .work_tiles = 0,
                .longest_first = prefill_takes_longest_first(schedule.blocks, schedule.split.segments, call,
                                                             jit::device_traits(target.ordinal)),
                .uneven = schedule.uneven,
                .step_interval = call.steps.data != nullptr ? Divisor(call.step_interval) : Divisor()};
    }

    static void run_blocks(const Config& config, const Args& args, i64 segments, const Target& target, const auto& why) {
        const i64 row_tiles = ceil_div(args.call.dv, config.rows_per_block());
        launch<Prefill>(config, args, {row_tiles, args.call.heads, segments}, target, why, is_second_of_two(args.takes));
    }

    static void run_unsplit(const ChunkedProblem& problem, const ChunkedSchedule& schedule, Args args,
                            const PrefillTensors& tensors, const Target& target, const auto& why) {
        args.readers = nullptr;  // a single block reads and writes each state
        if (schedule.ahead)
            return PrefillAhead::run({.head_k = schedule.config.head_k, .io = problem.io}, schedule.ahead, args,
                                     tensors.workspace + schedule.chain_words(),
                                     tensors.counts + schedule.chain_counts(tensors.in_place), target, why);
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        const i64 blocks = problem.sequences * problem.heads * ceil_div(problem.dv, schedule.unsplit.rows_per_block());
        args.longest_first = prefill_takes_longest_first(blocks, 1, args.call, device);
        run_blocks(schedule.unsplit, args, problem.sequences, target, why);
    }
};

}  // namespace gdn_cuda::gdn
