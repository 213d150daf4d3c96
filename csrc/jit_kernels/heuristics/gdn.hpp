// Which configuration runs a GDN problem: pure functions of the problem and the device, each with its reason.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/gdn/chunk_common.cuh>
#include <gdn_cuda/kernels/gdn/chunk_cumsum_plan.cuh>
#include <gdn_cuda/kernels/gdn/compute_o_plan.cuh>
#include <gdn_cuda/kernels/gdn/compute_u_w_plan.cuh>
#include <gdn_cuda/kernels/gdn/decode_plan.cuh>
#include <gdn_cuda/kernels/gdn/gating_plan.cuh>
#include <gdn_cuda/kernels/gdn/mn_major_plan.cuh>
#include <gdn_cuda/kernels/gdn/prefill_mma_plan.cuh>
#include <gdn_cuda/kernels/gdn/prefill_plan.cuh>
#include <gdn_cuda/kernels/gdn/recurrent_plan.cuh>
#include <gdn_cuda/kernels/gdn/seq_state_update_plan.cuh>
#include <gdn_cuda/kernels/gdn/verify_plan.cuh>
#include <limits>
#include <string>
#include <vector>

#include "../../jit/device.hpp"
#include "../../jit/env.hpp"
#include "../../jit/text.hpp"

namespace gdn_cuda::gdn {

struct RecurrentProblem {
    i64 sequences, tokens;  // tokens: of the longest sequence, or the mean of a packed batch
    int heads, dk, dv;
    DType io, state;
    bool aligned;
};

// Key dimensions with a kernel of their own; others run masked in the next of kMaskedHeadK.
inline constexpr std::array kExactHeadK = {64, 96, 128, 192, 256};
inline constexpr std::array kMaskedHeadK = {64, 128, 256};
constexpr bool has_exact_kernel(int dk) {
    return std::ranges::find(kExactHeadK, dk) != kExactHeadK.end();
}
constexpr int masked_head_k(int dk) {
    for (const int head_k : kMaskedHeadK)
        if (dk <= head_k) return head_k;
    return 0;  // the operators take no dk above 256
}
// Rows of a thread share what it reads of a token, as long as every multiprocessor still has a few blocks.
inline constexpr i64 kRecurrentBlocksPerMultiprocessor = 4;

inline RecurrentConfig recurrent_config(const RecurrentProblem& problem, const jit::DeviceTraits& device) {
    RecurrentConfig config{.head_k = problem.dk,
                           .exact_k = true,
                           .io = problem.io,
                           .state = problem.state,
                           .rows_per_thread = 1,
                           .warps = 4,
                           .aligned = problem.aligned};
    if (!problem.aligned || !has_exact_kernel(problem.dk)) {
        config.exact_k = false;
        config.head_k = masked_head_k(problem.dk);
        return config;
    }
    const i64 rows = problem.sequences * problem.heads * problem.dv;
    RecurrentConfig wide = config;
    wide.rows_per_thread = 2;
    return rows / wide.rows_per_block() >= kRecurrentBlocksPerMultiprocessor * device.multiprocessors ? wide : config;
}

inline std::string explain_recurrent(const RecurrentProblem& problem, const jit::DeviceTraits& device) {
    const RecurrentConfig config = recurrent_config(problem, device);
    const i64 blocks = problem.sequences * problem.heads * ceil_div(problem.dv, config.rows_per_block());
    std::string why;
    if (!problem.aligned) why += "rows do not start on 16 bytes: element-wise loads; ";
    if (!config.exact_k) why += fmt::format("dk {} runs masked in {}; ", problem.dk, config.head_k);
    why += fmt::format("{} rows a thread give {} blocks for {} multiprocessors", config.rows_per_thread, blocks,
                       device.multiprocessors);
    return why;
}

// Every configuration recurrent_config can return.
inline std::vector<RecurrentConfig> recurrent_configurations() {
    std::vector<RecurrentConfig> all;
    const auto add = [&](RecurrentConfig config) {
        if (std::ranges::find(all, config) == all.end()) all.push_back(config);
    };
    for (DType io : {DType::bf16, DType::f16})
        for (DType state : {DType::f32, DType::bf16}) {
            const auto choose = [&](i64 sequences, i64 tokens, int dk, bool aligned) {
                add(recurrent_config({sequences, tokens, 32, dk, 128, io, state, aligned}, {}));
            };
            for (int dk : kExactHeadK) {
                choose(1, 1, dk, true);
                choose(4096, 1, dk, true);
            }
            for (int head_k : kMaskedHeadK)
                for (bool aligned : {true, false}) choose(1, 1, head_k - 8, aligned);
        }
    return all;
}

// One token a sequence, whole 16-byte rows, head dimensions with a kernel of their own, one slot a sequence: gdn/decode.
struct DecodeProblem {
    i64 sequences;
    int heads, dk, dv;
    DType io, state;
    bool fused_gates;
};

struct DecodeChoice {
    DecodeConfig config;
    int steps;  // of rows a block takes
};

// More rows a block share their prologue and keep more bytes on the way, as long as every multiprocessor still has a few
// blocks. Measured on an H200: four stages are enough to keep its memory busy, and three blocks a multiprocessor to keep them
// even.
inline constexpr int kDecodeStages = 4;
inline constexpr i64 kDecodeBlocksPerMultiprocessor = 3;

inline DecodeChoice decode_choice(const DecodeProblem& problem, const jit::DeviceTraits& device) {
    DecodeConfig config{.head_k = problem.dk,
                        .io = problem.io,
                        .state = problem.state,
                        .warps = 4,
                        .stages = kDecodeStages,
                        .fused_gates = problem.fused_gates};
    for (int steps = std::min(8, config.layout().lanes); steps > 1; steps /= 2) {
        const i64 blocks = problem.sequences * problem.heads * ceil_div(problem.dv, config.rows_per_step() * steps);
        if (blocks >= kDecodeBlocksPerMultiprocessor * device.multiprocessors) return {config, steps};
    }
    config.stages = 0;
    return {config, 1};
}

inline std::string explain_decode(const DecodeProblem& problem, const jit::DeviceTraits& device) {
    const auto [config, steps] = decode_choice(problem, device);
    const i64 blocks = problem.sequences * problem.heads * ceil_div(problem.dv, config.rows_per_step() * steps);
    return steps == 1 ? fmt::format("{} blocks of one step each: latency counts, rows go straight to registers", blocks)
                      : fmt::format("{} blocks of {} steps for {} multiprocessors: bytes count, rows pass through {} stages",
                                    blocks, steps, device.multiprocessors, config.stages);
}

// Every configuration decode_choice can return.
inline std::vector<DecodeConfig> decode_configurations() {
    std::vector<DecodeConfig> all;
    for (DType io : {DType::bf16, DType::f16})
        for (DType state : {DType::f32, DType::bf16})
            for (int dk : kExactHeadK)
                for (bool fused_gates : {true, false})
                    for (i64 sequences : {1, 4096}) {
                        const DecodeConfig config = decode_choice({sequences, 1, dk, 128, io, state, fused_gates}, {}).config;
                        if (std::ranges::find(all, config) == all.end()) all.push_back(config);
                    }
    return all;
}

// A few tokens for every sequence of a padded batch, under decode's conditions on shapes: gdn/verify.
struct VerifyProblem {
    i64 sequences, tokens;
    int heads, dk, dv;
    DType io, state;
};

constexpr VerifyConfig verify_config(int dk, DType io, DType state) {
    return {.head_k = dk, .io = io, .state = state, .rows_per_thread = 2, .steps = 4, .warps = 4};
}

// It takes many rows a block: with fewer blocks than two a multiprocessor, gdn/recurrent spreads them better.
inline bool verify_applies(const VerifyProblem& problem, const jit::DeviceTraits& device) {
    const VerifyConfig config = verify_config(problem.dk, problem.io, problem.state);
    const i64 blocks = problem.sequences * problem.heads * ceil_div(problem.dv, config.rows_per_block());
    return problem.tokens <= TokenBatch<verify_config(128, DType::bf16, DType::f32)>::kTokens &&
           blocks >= 2 * device.multiprocessors;
}

inline constexpr std::array kVerifyConfigurations = [] {
    std::array<VerifyConfig, 4 * kExactHeadK.size()> all{};
    size_t n = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const DType state : {DType::f32, DType::bf16})
            for (const int dk : kExactHeadK) all[n++] = verify_config(dk, io, state);
    return all;
}();

// Chunks of tokens on the tensor cores: gdn/prefill.
struct PrefillProblem {
    i64 sequences, tokens;  // tokens: of a sequence, on average
    int heads, dk, dv;
    DType io, state;
    bool deterministic = false;  // a sequence is one segment, whatever it is batched with
};

inline constexpr int kPrefillLongestKey = 128;
constexpr int prefill_head_k(int dk) {
    return dk <= 64 ? 64 : dk <= 96 ? 96 : 128;
}
constexpr PrefillConfig prefill_config(int head_k, int value_groups, DType io) {
    return {.head_k = head_k, .value_groups = value_groups, .inverse_groups = value_groups == 1 ? 2 : 1, .stages = 3, .io = io};
}

inline i64 prefill_blocks(const PrefillProblem& problem, int value_groups) {
    return problem.sequences * problem.heads * ceil_div(problem.dv, value_groups * kValueRows);
}

// How a problem is taken: rows of the state a block, and segments a sequence, for heads that forget between them.
struct PrefillSplit {
    int value_groups, segments;
};
inline constexpr int kMostSegments = 32, kShortestLinked = 80 * kChunk;

// Nanoseconds on the device that blocks take to walk `chunks` each, from what an H200 takes for a chunk: a block with one value
// group is sooner done, one with two shares the helpers' work between them.
inline constexpr double kPrefillNsOfChunk[] = {0, 1950, 2950};
inline double prefill_walk_ns(const PrefillProblem& problem, const PrefillSplit& split, i64 chunks,
                              const jit::DeviceTraits& device) {
    constexpr double kAlone = 2300;
    const i64 waves = ceil_div(prefill_blocks(problem, split.value_groups) * split.segments, device.multiprocessors);
    // Where the last block of a head has rows for one of two groups only, that one runs alone: of several waves, some are
    // shorter.
    const i64 tiles = ceil_div(problem.dv, split.value_groups * kValueRows);
    const bool alone = split.value_groups == 2 && ceil_div(problem.dv, kValueRows) % 2 == 1 && (tiles == 1 || waves > 1);
    const double saved = alone ? (kPrefillNsOfChunk[2] - kAlone) / static_cast<double>(tiles) : 0;
    return static_cast<double>(waves * chunks) * (kPrefillNsOfChunk[split.value_groups] - saved);
}
inline i64 prefill_chunks(const PrefillProblem& problem) {
    return std::max<i64>(ceil_div(problem.tokens, kChunk), 1);
}

// How sequences are walked whole where heads remember: by the configuration that is best at it, unless they are so short that
// another launch takes longer than it saves.
inline PrefillSplit prefill_whole(const PrefillProblem& problem, const PrefillSplit& split, const jit::DeviceTraits& device) {
    const auto ns = [&](int groups) { return prefill_walk_ns(problem, {groups, 1}, prefill_chunks(problem), device); };
    if (problem.tokens < kShortestLinked) return {split.value_groups, 1};
    return {problem.dv > kValueRows && ns(2) <= ns(1) ? 2 : 1, 1};
}

// Heads that remember, split and linked (prefill_segments.cuh). The first two segments take turns while the others make
// summaries (chunks without outputs take as long); then all at once. Somebody has to set the links' counts to zero, which short
// sequences do not make up for.
inline double prefill_linked_ns(const PrefillProblem& problem, const PrefillSplit& split, const jit::DeviceTraits& device) {
    constexpr double kOfLink = 5000;
    if (split.segments <= 3 || problem.tokens < kShortestLinked) return std::numeric_limits<double>::infinity();
    const i64 rows = split.value_groups * kValueRows, share = ceil_div(prefill_chunks(problem), split.segments);
    const i64 summary = ceil_div(ceil_div(problem.dk, rows), ceil_div(problem.dv, rows)) + 1;  // M's rows, then L's
    return prefill_walk_ns(problem, split, (std::max<i64>(summary, 2) + 1) * share, device) + (split.segments - 3) * kOfLink;
}

struct PrefillCost {
    double forgetting, remembering;  // ns, where all heads are of one kind
    bool linked;                     // rather than whole, where they remember

    // Heads of both kinds come together, forgetful ones more often.
    double weighed() const { return 2.5 * forgetting + remembering; }
};
inline PrefillCost prefill_cost(const PrefillProblem& problem, const PrefillSplit& split, const jit::DeviceTraits& device) {
    constexpr i64 kForgetting = 2;  // chunks
    const i64 chunks = prefill_chunks(problem), share = ceil_div(chunks, split.segments);
    if (split.segments == 1) {
        const double ns = prefill_walk_ns(problem, split, chunks, device);
        return {ns, ns, false};
    }
    const double whole = prefill_walk_ns(problem, prefill_whole(problem, split, device), chunks, device),
                 linked = prefill_linked_ns(problem, split, device);
    return {prefill_walk_ns(problem, split, share + kForgetting, device), std::min(whole, linked), linked < whole};
}

// How many chunks a segment may begin early before the head is sooner done as one that remembers. To look for where to begin
// takes time, too: about that of two chunks, and of a sixth of each that is looked at.
inline int prefill_reach(const PrefillProblem& problem, const PrefillSplit& split, const jit::DeviceTraits& device) {
    constexpr double kWorthIt = 0.9, kToLook = 4000, kToLookAtChunk = 350;
    const PrefillCost cost = prefill_cost(problem, split, device);
    const double share = static_cast<double>(ceil_div(prefill_chunks(problem), split.segments)),
                 of_chunk = kPrefillNsOfChunk[split.value_groups];
    const double reach = (kWorthIt * cost.remembering - kToLook - share * of_chunk) / (of_chunk + kToLookAtChunk);
    return static_cast<int>(std::clamp(reach, 1.0, 1e6));
}

// Segments take multiprocessors that would have nothing to do.
inline PrefillSplit prefill_split(const PrefillProblem& problem, int value_groups, const jit::DeviceTraits& device) {
    const i64 idle = device.multiprocessors / std::max<i64>(prefill_blocks(problem, value_groups), 1);
    const int most =
        static_cast<int>(std::clamp<i64>(std::min(idle, problem.tokens / (kShortestSegment * kChunk)), 1, kMostSegments));
    PrefillSplit best{value_groups, 1};
    for (int segments = 2; segments <= most && !problem.deterministic; ++segments) {
        const PrefillSplit split{value_groups, segments};
        if (prefill_cost(problem, split, device).weighed() < prefill_cost(problem, best, device).weighed()) best = split;
    }
    return best;
}
inline PrefillSplit prefill_split(const PrefillProblem& problem, const jit::DeviceTraits& device) {
    const PrefillSplit one = prefill_split(problem, 1, device), two = prefill_split(problem, 2, device);
    const bool wide = problem.dv > kValueRows;
    return wide && prefill_cost(problem, two, device).weighed() <= prefill_cost(problem, one, device).weighed() ? two : one;
}
inline PrefillConfig prefill_config(const PrefillProblem& problem, const PrefillSplit& split) {
    return prefill_config(prefill_head_k(problem.dk), split.value_groups, problem.io);
}

inline std::string explain_prefill(const PrefillProblem& problem, const jit::DeviceTraits& device) {
    const PrefillSplit split = prefill_split(problem, device), other = prefill_split(problem, 3 - split.value_groups, device);
    const auto text = [&](const PrefillSplit& way) {
        const PrefillCost cost = prefill_cost(problem, way, device);
        return fmt::format("{} value rows a block, {} segment{} a sequence: {:.0f} us, with heads that remember {:.0f}{}",
                           way.value_groups * kValueRows, way.segments, way.segments == 1 ? "" : "s", cost.forgetting / 1000,
                           cost.remembering / 1000,
                           way.segments == 1 ? ""
                           : cost.linked     ? ", linked"
                                             : ", whole");
    };
    return fmt::format("{}; against {}; {} multiprocessors", text(split), text(other), device.multiprocessors);
}

inline constexpr std::array kPrefillConfigurations = [] {
    std::array<PrefillConfig, 12> all{};
    size_t n = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const int head_k : {128, 96, 64})
            for (const int value_groups : {2, 1}) all[n++] = prefill_config(head_k, value_groups, io);
    return all;
}();

// The same on any GPU from sm_80 on: gdn/prefill_mma. Blocks of 128 value rows make T and P half as often as two of 64; keys of
// 256 leave no room for that, nor keys above 128 for the next chunk's beside them.
inline constexpr int kPrefillMmaLongestTwice = 128, kPrefillMmaLongestWide = 192;
constexpr PrefillMmaConfig prefill_mma_config(int head_k, bool wide, DType io) {
    return {.head_k = head_k,
            .key_stages = head_k <= kPrefillMmaLongestTwice ? 2 : 1,
            .warps = wide && head_k <= kPrefillMmaLongestWide ? 8 : 4,
            .io = io};
}
constexpr PrefillMmaConfig prefill_mma_config(const PrefillProblem& problem) {
    return prefill_mma_config(*std::ranges::lower_bound(kExactHeadK, problem.dk), problem.dv > kValueRows, problem.io);
}

inline std::string explain_prefill_mma(const PrefillProblem& problem, const jit::DeviceTraits& device) {
    const PrefillMmaConfig config = prefill_mma_config(problem);
    const i64 blocks = problem.sequences * problem.heads * ceil_div(problem.dv, config.rows_per_block());
    return fmt::format("dk {} in {}: room for {} of keys; {} blocks of {} value rows for {} multiprocessors", problem.dk,
                       config.head_k, config.key_stages == 1 ? "one chunk" : "two chunks", blocks, config.rows_per_block(),
                       device.multiprocessors);
}

inline constexpr std::array kPrefillMmaConfigurations = [] {
    std::array<PrefillMmaConfig, 2 * (2 * kExactHeadK.size() - 1)> all{};
    size_t n = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const int head_k : kExactHeadK)
            for (const bool wide : {true, false})
                if (!wide || head_k <= kPrefillMmaLongestWide) all[n++] = prefill_mma_config(head_k, wide, io);
    return all;
}();

// Which kernel runs chunked_forward. `rows_fit`: the rows of all tensors start on 16 bytes and are whole multiples of them.
// `scalars_near`: kMostBetweenScalars. Nothing here knows lengths: what a sequence is packed with must not choose its kernel.
enum class PrefillKernel { wgmma, mma, recurrent };

inline PrefillKernel prefill_kernel(bool rows_fit, bool scalars_near, int dk, int capability, jit::Prefill wanted) {
    constexpr int kHopper = 90, kFirstWithMma = 80;
    if (!rows_fit || wanted == jit::Prefill::recurrent || capability < kFirstWithMma) return PrefillKernel::recurrent;
    const bool fits_wgmma = capability == kHopper && dk <= kPrefillLongestKey && scalars_near;
    return fits_wgmma && wanted == jit::Prefill::automatic ? PrefillKernel::wgmma : PrefillKernel::mma;
}

struct GatingProblem {
    i64 rows;
    int heads;
    DType io;
    bool aligned;
};

inline GatingConfig gating_config(const GatingProblem& problem) {
    const bool wide = problem.aligned && problem.heads % 8 == 0;
    return {.io = problem.io, .vector = wide ? 8 : 1, .threads = 256};
}

// One wave: rates and biases are read once a thread.
inline unsigned gating_blocks(const GatingProblem& problem, const GatingConfig& config, const jit::DeviceTraits& device) {
    const i64 threads = problem.rows * (problem.heads / config.vector);
    return static_cast<unsigned>(std::clamp<i64>(ceil_div(threads, config.threads), 1,
                                                 config.blocks_per_multiprocessor(device.capability) * device.multiprocessors));
}

constexpr ChunkCumsumConfig chunk_cumsum_config(DType io) {
    return {.io = io, .chunk = kChunk, .heads_per_block = 32};
}

constexpr MnMajorConfig mn_major_config(int element_bytes) {
    return {.element_bytes = element_bytes, .tile = 32, .threads = 256};
}

// The pieces of the chunked form. Rows that do not start on 16 bytes have a configuration of their own.
struct PieceProblem {
    i64 sequences;
    int heads, dk, dv;
    DType state;
    bool aligned;
};

inline constexpr std::array kPieceHeadK = {128, 64, 256};
constexpr int piece_head_k(int dk) {
    return dk <= 64 ? 64 : dk <= 128 ? 128 : 256;
}

constexpr ComputeUWConfig compute_u_w_config(int dk, bool aligned) {
    return {.head_k = piece_head_k(dk), .aligned = aligned};
}
inline constexpr std::array kComputeUWConfigurations = [] {
    std::array<ComputeUWConfig, 2 * kPieceHeadK.size()> all{};
    size_t n = 0;
    for (const bool aligned : {true, false})
        for (const int head_k : kPieceHeadK) all[n++] = compute_u_w_config(head_k, aligned);
    return all;
}();

constexpr ComputeOConfig compute_o_config(int dk, DType state, bool aligned) {
    return {.head_k = piece_head_k(dk), .state = state, .aligned = aligned};
}
inline constexpr std::array kComputeOConfigurations = [] {
    std::array<ComputeOConfig, 4 * kPieceHeadK.size()> all{};
    size_t n = 0;
    for (const bool aligned : {true, false})
        for (const DType state : {DType::f32, DType::bf16})
            for (const int head_k : kPieceHeadK) all[n++] = compute_o_config(head_k, state, aligned);
    return all;
}();

constexpr SeqStateUpdateConfig seq_state_update_config(int dk, int teams, bool aligned) {
    const int head_k = piece_head_k(dk);
    return {.head_k = head_k, .teams = teams, .stages = head_k <= 128 ? 2 : 1, .aligned = aligned};
}
// Teams of a block share what it brings of w and k; with fewer of them more multiprocessors work.
inline SeqStateUpdateConfig seq_state_update_config(const PieceProblem& problem, const jit::DeviceTraits& device) {
    const SeqStateUpdateConfig four = seq_state_update_config(problem.dk, 4, problem.aligned);
    const i64 blocks = problem.sequences * problem.heads * ceil_div(problem.dv, four.rows_per_block());
    return problem.aligned && blocks < device.multiprocessors ? seq_state_update_config(problem.dk, 2, true) : four;
}
inline constexpr std::array kSeqStateUpdateConfigurations = [] {
    std::array<SeqStateUpdateConfig, 3 * kPieceHeadK.size()> all{};
    size_t n = 0;
    for (const int head_k : kPieceHeadK)
        for (const int teams : {4, 2}) all[n++] = seq_state_update_config(head_k, teams, true);
    for (const int head_k : kPieceHeadK) all[n++] = seq_state_update_config(head_k, 4, false);
    return all;
}();

inline std::string explain_seq_state_update(const PieceProblem& problem, const jit::DeviceTraits& device) {
    const SeqStateUpdateConfig config = seq_state_update_config(problem, device);
    return fmt::format("{}{} value dimensions a block give {} blocks for {} multiprocessors",
                       problem.aligned ? "" : "rows do not start on 16 bytes: element-wise loads; ", config.rows_per_block(),
                       problem.sequences * problem.heads * ceil_div(problem.dv, config.rows_per_block()),
                       device.multiprocessors);
}

}  // namespace gdn_cuda::gdn
