// The work of one block: its segment, where it starts, its passes, and what it sets up.
#pragma once

#include <gdn_cuda/kernels/chunked/cache.cuh>
#include <gdn_cuda/kernels/chunked/segments.cuh>
#include <gdn_cuda/kernels/chunked/summary.cuh>
#include <gdn_cuda/kernels/recurrence/states.cuh>

namespace gdn_cuda::gdn {

template <ChunkedConfig kConfig>
struct ChunkedBlock {
    static constexpr int kRows = kConfig.rows_per_block();
    enum class Split { unsplit, warm_started, chained };

    const ChunkedArgs& args;
    const GdnCall& call = args.call;
    int index_in_launch, sequence, segment, head, first_row, segments, group;  // index_in_launch: the sequence's
    Span span;
    Place place;
    int chunks, segment_chunks;
    Split split = Split::unsplit;
    int begin = 0, segment_begins = 0, end;  // in chunks; outputs are stored from segment_begins on

    __device__ __forceinline__ ChunkedBlock(const ChunkedArgs& args, ChunkedPlan<kConfig>& shared)
        : ChunkedBlock(args, static_cast<int>(blockIdx.z) / segments_of(args), sequence_of(args, shared),
                       static_cast<int>(blockIdx.z) % segments_of(args), static_cast<int>(blockIdx.y),
                       static_cast<int>(blockIdx.x)) {}
    __device__ __forceinline__ ChunkedBlock(const ChunkedArgs& args, int index_in_launch, int sequence, int segment, int head,
                                            int row_tile)
        : args(args),
          index_in_launch(index_in_launch),
          sequence(sequence),
          segment(segment),
          head(head),
          first_row(row_tile * kRows) {
        span = span_of(call.cu_seqlens, sequence, call.tokens);
        i64 slot;
        place = find_slot(slot);
        chunks = (span.length + kChunk - 1) / kChunk;
        end = chunks;
        segments = segments_of_sequence(args, chunks);
        group = segments_in_group(segments);
        segment_chunks = chunks_in_segment(args, chunks);
    }
    __device__ __forceinline__ static int segments_of(const ChunkedArgs& args) {
        return args.takes == LaunchTakes::if_one_decays_slowly ? 1 : args.segments;
    }
    // Packed sequences are taken longest first: one that starts as others end should be short. Called by the whole block.
    __device__ __forceinline__ static int sequence_of(const ChunkedArgs& args, ChunkedPlan<kConfig>& shared) {
        const int index_in_launch = static_cast<int>(blockIdx.z) / segments_of(args);
        if (kConfig.chained && args.takes == LaunchTakes::long_sequences)
            return sequence_at(args.call, static_cast<i64>(index_in_launch) * kBetweenLong);
        if (kConfig.chained || !args.longest_first) return index_in_launch;
        const GdnCall& call = args.call;
        const int own = static_cast<int>(threadIdx.x);
        auto* const lengths = reinterpret_cast<int*>(shared.inverse);
        static_assert(kMostByLength <= kConfig.threads() && (kMostByLength + 1) * sizeof(int) <= sizeof(shared.inverse));
        if (own < call.sequences) lengths[own] = span_of(call.cu_seqlens, own, call.tokens).length;
        __syncthreads();
        int before = 0;
        if (own < call.sequences)
            for (int i = 0; i < call.sequences; ++i)
                before += lengths[i] > lengths[own] || (lengths[i] == lengths[own] && i < own);
        if (own < call.sequences && before == index_in_launch) lengths[kMostByLength] = own;
        __syncthreads();
        return lengths[kMostByLength];
    }
    // pair: the index of a sequence and head.
    __device__ __forceinline__ ChunkedBlock(const ChunkedArgs& args, int pair, int row_tile)
        : ChunkedBlock(args, 0, static_cast<int>(static_cast<unsigned>(pair) / static_cast<unsigned>(args.call.heads)), 0,
                       static_cast<int>(static_cast<unsigned>(pair) % static_cast<unsigned>(args.call.heads)), row_tile) {}
    // Recomputed where needed, to save registers.
    __device__ __forceinline__ Place find_slot(i64& slot) const {
        int first_step;
        return starting_slot(call, sequence, slot, first_step);
    }
    __device__ __forceinline__ bool takes_unsplit() const { return args.takes == LaunchTakes::if_one_decays_slowly; }

    // Whether the block has work. Called by the whole block; `growths`: one float per warp.
    __device__ __forceinline__ bool find_start(float* growths) {
        // The warm-up is typically a chunk or two.
        if (args.segments > 1 && segment * segment_chunks < chunks)
            prefetch_chunk<kConfig>(call, span, sequence, head, max(segment * segment_chunks - 1, 0));
        if (!takes_sequence()) return false;
        bool decays_slowly;
        if (kConfig.chained && args.uneven.reach > 0 && segments > 1) {
            const auto heads = slow_heads<kConfig>(args, sequence, span, reinterpret_cast<unsigned*>(growths));
            if (!spread(heads, decays_slowly)) return false;
        } else if (!is_taken(decays_slowly, !is_second_of_two(args.takes))) {
            return false;
        }
        if (segment == 0) finish_without_chunks();
        if (place != Place::run || chunks == 0) return false;
        if (takes_unsplit() || segment_chunks >= chunks || (decays_slowly && !kConfig.chained)) return segment == 0;
        split = decays_slowly ? Split::chained : Split::warm_started;
        begin = segment_begins = decays_slowly ? chained_begin(segment) : min(segment * segment_chunks, chunks);
        end = decays_slowly ? chained_begin(segment + 1) : min(segment_begins + segment_chunks, chunks);
        if (begin >= end) return false;
        if (split == Split::warm_started && segment > 0) {
            const int most = min(segment_begins, 2 * max(args.reach, args.uneven.reach) + kShortestSegment);
            begin = max(first_that_matters<kConfig>(call, span, sequence, head, segment_begins, most, growths), 0);
        }
        return true;
    }
    // Finds this block's head and segment if heads get different numbers of segments: slow-decay heads have the first blocks,
    // segment by segment. False if nothing is left for it. If no head needs more than args.reach, none is chained.
    __device__ __forceinline__ bool spread(const SlowHeads& heads, bool& decays_slowly) {
        const int many = __popc(heads.near), others = call.heads - many;
        const int wanted = args.uneven.segments[(heads.few & ~heads.near) != 0][many % UnevenSplit::kMostHeads],
                  most = args.by_length ? min(wanted, chunks / kShortestUneven) : wanted;
        unsigned slow = heads.far;
        if (heads.far != 0 && many > 0 && others > 0 && segments == args.segments && most > segments) {
            slow = heads.near;
            int block_index = segment * call.heads + head;
            const int slow_blocks = many * most;
            const bool is_other = block_index >= slow_blocks;
            segments = is_other ? (segments * call.heads - slow_blocks) / others : most;
            group = segments_in_group(segments);
            block_index -= is_other ? slow_blocks : 0;
            const int among = is_other ? others : many;
            segment = static_cast<int>(static_cast<unsigned>(block_index) / static_cast<unsigned>(among));
            if (segment >= segments) return false;
            unsigned left = is_other ? ~slow : slow;
            for (int before = block_index - segment * among; before > 0; --before) left &= left - 1;
            head = __ffs(left) - 1;
            segment_chunks = max((chunks + segments - 1) / segments, kShortestSegment);
        }
        decays_slowly = slow >> head & 1;
        return true;
    }
    // Where a chained segment begins: all but the first have the same length.
    __device__ __forceinline__ int chained_begin(int segment) const {
        const int segments = min(this->segments, chunks / kShortestSegment);
        if (segment == 0) return 0;
        if (segment >= segments) return chunks;
        const float length = static_cast<float>(chunks) / (args.summaries.first_length + static_cast<float>(segments - 1));
        return chunks - static_cast<int>(static_cast<float>(segments - segment) * length);
    }
    // Where the lengths of sequences decide between two launches, whether this one takes the block's sequence.
    __device__ __forceinline__ bool takes_sequence() const {
        if (args.takes == LaunchTakes::short_sequences) return chunks <= kLongestUnsplit;
        return args.takes != LaunchTakes::long_sequences ||
               (chunks > kLongestUnsplit && long_index_of(span) == index_in_launch);
    }
    // Whether this launch takes the block's head; also whether its decay, or any head's, is slow. `decides`: this launch reads
    // the gates; otherwise it waits for the first launch's decision.
    __device__ __forceinline__ bool is_taken(bool& decays_slowly, bool decides) {
        const bool for_all = args.takes == LaunchTakes::if_all_decay_fast || takes_unsplit(),
                   hands_over = for_all && args.decision != nullptr;
        if (hands_over && !decides) {  // the first launch's blocks have all started before this one's
            constexpr auto kSlow = static_cast<unsigned>(DecayDecision::one_decays_slowly);
            decays_slowly = __syncthreads_or(threadIdx.x == 0 && wait_for_count(args.decision, 1) == kSlow);
            return decays_slowly == takes_unsplit();
        }
        decays_slowly = args.segments > 1 && one_decays_slowly<kConfig>(args, for_all, sequence, head);
        if (hands_over && blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x == 0)
            red_release(args.decision, static_cast<unsigned>(decays_slowly ? DecayDecision::one_decays_slowly
                                                                           : DecayDecision::all_decay_fast));
        return !for_all || decays_slowly == takes_unsplit();
    }
    __device__ __forceinline__ void finish_without_chunks() {
        fill_uncomputed_outputs();
        if (place == Place::run && chunks == 0) copy_state(static_cast<int>(threadIdx.x), kConfig.threads());
    }
    __device__ __forceinline__ bool resumes() const { return split == Split::chained && segment > 0; }
    // Later segments wait for M and L of this one; not of the first, whose state is ready sooner than a summary would be.
    __device__ __forceinline__ bool summarizes() const { return resumes() && end < chunks; }
    __device__ __forceinline__ bool follows_chain() const { return split == Split::chained && segment > 1; }
    __device__ __forceinline__ bool leaves_state() const { return split == Split::chained && segment == 0 && end < chunks; }
    // Whether groups of segments are composed first, and this is a group's last one. The blocks of the next two segments
    // compute the group's L and its M; later blocks wait for them.
    __device__ __forceinline__ bool ends_group(int segment) const {
        return split == Split::chained && group > 1 && segment > 0 && segment % group == 0 &&
               chained_begin(segment + 3) < chunks;
    }
    // The first segment has one pass, and no use for a cache.
    __device__ __forceinline__ bool is_cached() const { return resumes() && args.summaries.cached != nullptr; }

    // Sequences that are skipped or poisoned, and tokens past the last sequence.
    __device__ __forceinline__ void fill_uncomputed_outputs() {
        if (call.cu_seqlens.data != nullptr && sequence == call.sequences - 1)
            fill_outputs<kConfig>(call, sequence, span.start + span.length, call.tokens, head, first_row, 0.f);
        if (place != Place::run) fill_outputs_of_uncomputed<kConfig>(call, sequence, span, place, head, first_row);
    }

    // Copies these rows of the state of an empty sequence, or writes zeros without an initial state.
    __device__ __forceinline__ void copy_state(int thread, int threads) {
        char* to = static_cast<char*>(call.last.data);
        if (to == nullptr || to == call.initial.data) return;
        const int bytes = bytes_of(args.state), rows = min(kRows, call.dv - first_row);
        const i64 before = (static_cast<i64>(head) * call.dv + first_row) * call.dk;
        i64 slot;
        find_slot(slot);
        const auto* from = static_cast<const char*>(call.initial.data);
        if (from != nullptr) from += (slot * call.initial.slot + before) * bytes;
        to += (slot * call.last.slot + before) * bytes;
        for (int at = 16 * thread; at < rows * call.dk * bytes; at += 16 * threads)
            *reinterpret_cast<uint4*>(to + at) = from == nullptr ? uint4{} : *reinterpret_cast<const uint4*>(from + at);
    }

    // By one thread: the outputs of chunks [first, last), in one pass.
    __device__ __forceinline__ void plan_outputs(ChunkedWork& work, int first, int last) {
        begin = segment_begins = first;
        end = last;
        plan_outputs(work);
    }
    __device__ __forceinline__ void plan_outputs(ChunkedWork& work) const {
        plan_pass(work, ChunkedPass::outputs, first_row);
        i64 slot;
        find_slot(slot);
        work.states.initial_slot = slot * call.initial.slot;
        work.states.last_slot = slot * call.last.slot;
        work.states.checkpoints_before = packed_steps_before(call, sequence);
    }
    // By one thread: the first pass goes to shared.work, the others to shared.passes, last first.
    __device__ __forceinline__ void plan_passes(ChunkedPlan<kConfig>& shared) const {
        if constexpr (!kConfig.chained) return plan_outputs(shared.work);
        const int step = static_cast<int>(gridDim.x) * kRows;  // to this block's next rows of M
        // Integers, since the compiler spills predicates that live through the loop.
        const int recorded = opaque(is_cached()), summarized = opaque(summarizes());
        const int chains = follows_chain(), summaries = summarized | recorded,
                  row_tiles = max((call.dk - first_row + step - 1) / step, 0), transitions = summarized * row_tiles;
        // The two blocks after a group compute its L and its M.
        const int group_summary = ends_group(segment - 1), group_passes = ends_group(segment - 2) ? row_tiles : group_summary;
        const int last = chains + group_passes + summaries + transitions;
        const i64 checkpoints_before = packed_steps_before(call, sequence);
        i64 slot;
        find_slot(slot);
        shared.passes_left = last;
#pragma unroll 1
        for (int i = last; i >= 0; --i) {
            const int in_group = i - chains - 1, own = in_group - group_passes, transition = own - summaries;
            const ChunkedPass pass = i == 0        ? ChunkedPass::outputs
                                     : i <= chains ? ChunkedPass::chain
                                     : own < 0 ? (group_summary ? ChunkedPass::group_summary : ChunkedPass::group_transition)
                                     : transition >= 0 ? ChunkedPass::transition
                                     : summarized      ? ChunkedPass::summary
                                                       : ChunkedPass::cache;
            ChunkedWork& work = i == last ? shared.work : shared.passes[i];
            const int row_tile = pass == ChunkedPass::group_transition ? in_group : max(transition, 0);
            plan_pass(work, pass, first_row + row_tile * step);
            plan_summaries(work.summaries, work.states, pass);
            if (pass == ChunkedPass::group_transition && row_tile > 0) work.states.to = -1;
            work.cache.stores = recorded * (i == last);
            if (work.cache.stores) work.tokens.first_scores = 0;
            work.cache.loads = recorded * (i < last) * (work.tokens.chunks > 0);
            work.states.initial_slot = slot * call.initial.slot;
            work.states.last_slot = slot * call.last.slot;
            work.states.checkpoints_before = checkpoints_before;
        }
    }
    __device__ __forceinline__ i64 first_summary() const {
        if constexpr (!kConfig.chained) return 0;
        const unsigned between = args.summaries.summary_tokens;
        return head * args.summaries.per_head + (between > 0 ? static_cast<i64>(static_cast<unsigned>(span.start) / between)
                                                             : static_cast<i64>(index_in_launch) * args.summaries.per_sequence);
    }
    // The summaries that a pass applies: those of all groups that end before this segment and of the segments after these
    // groups, or those of a group's own segments, from its first one's on.
    __device__ __forceinline__ void plan_summaries(PassSummaries& summaries, PassStates& states, ChunkedPass pass) const {
        summaries.groups = summaries.segments = 0;
        summaries.first_of_groups = first_summary() + segments - 1;
        if (pass == ChunkedPass::chain) {
            summaries.groups = group > 1 ? max(segment - 3, 0) / group : 0;
            summaries.first_of_segments = first_summary() + 1 + summaries.groups * group;
            summaries.segments = segment - 1 - summaries.groups * group;
        } else if (is_of_group(pass)) {
            const int group_index = (segment - 1) / group - 1;
            states.from = first_summary() + 1 + group_index * group;
            states.to = states.summary = summaries.first_of_groups + group_index;
            summaries.first_of_segments = states.from + 1;
            summaries.segments = group - 1;
        }
    }
    __device__ __forceinline__ static bool is_of_group(ChunkedPass pass) {
        return pass == ChunkedPass::group_transition || pass == ChunkedPass::group_summary;
    }
    __device__ __forceinline__ CachedChunk<kConfig>* cached_chunks() const {
        const i64 before =
                      call.cu_seqlens.data != nullptr ? span.start / kChunk + sequence : static_cast<i64>(sequence) * chunks,
                  first = (static_cast<i64>(head) * gridDim.x + blockIdx.x) * args.summaries.chunks;
        return static_cast<CachedChunk<kConfig>*>(args.summaries.cached) + first + before + begin;
    }
    __device__ __forceinline__ void plan_pass(ChunkedWork& work, ChunkedPass pass, int row) const {
        const bool transitions = pass == ChunkedPass::transition || pass == ChunkedPass::group_transition;
        work.pass = pass;
        work.sequence = sequence;
        work.head = head;
        work.key_head = static_cast<int>(static_cast<unsigned>(head) / static_cast<unsigned>(call.heads_per_key));
        work.first_row = row;
        work.first_value = transitions ? call.dv : row;
        work.rows = transitions ? call.dk : call.dv;
        plan_tokens(work.tokens, pass);
        plan_states(work.states, pass);
        work.cache = {.chunks = cached_chunks(), .stores = false, .loads = false};
    }
    __device__ __forceinline__ void plan_tokens(PassTokens& tokens, ChunkedPass pass) const {
        const bool outputs = pass == ChunkedPass::outputs && call.outputs > 0;
        tokens.start = span.start + begin * kChunk;
        tokens.length = min(span.length, end * kChunk) - begin * kChunk;
        tokens.chunks = pass == ChunkedPass::chain || is_of_group(pass) ? 0 : end - begin;
        tokens.first_output = tokens.first_scores = (outputs ? segment_begins : end) - begin;
        tokens.before = begin * kChunk;
    }
    __device__ __forceinline__ void plan_states(PassStates& states, ChunkedPass pass) const {
        const bool outputs = pass == ChunkedPass::outputs, chain = pass == ChunkedPass::chain;
        const i64 summary = first_summary() + segment, before = summary - 1 + (segment > 1 ? args.summaries.count : 0);
        states.begins = begin == 0;
        states.ends = end == chunks;
        states.from = chain ? first_summary() : outputs && resumes() ? before : -1;
        states.to = chain ? before : pass == ChunkedPass::summary || (outputs && leaves_state()) ? summary : -1;
        states.summary = summary;
        states.readers = (1 + (split == Split::unsplit ? 0 : segment)) * kConfig.value_groups;
    }
};

// Called by one thread, while no other thread uses the mbarriers.
template <bool kFirst, ChunkedConfig kConfig>
__device__ __forceinline__ void set_barriers(ChunkedPlan<kConfig>& shared) {
    const auto set = [](unsigned long long& word, int arrivals) {
        if (!kFirst) barrier(word).invalidate();
        barrier(word).init(arrivals);
    };
    const bool loads_cache = kConfig.chained && shared.work.cache.loads,
               chains = kConfig.chained && shared.work.summaries.count() > 0;
#pragma unroll
    for (int i = 0; i < kConfig.stages; ++i) {
        // Producers of keys, queries and values, and the scalar warp's lanes; if the cache is loaded, the producers of the keys
        // and values of a chunk with a tail; in a chain, the producer of M.
        set(shared.stage_full[i], chains ? 1 : loads_cache ? 2 : kConfig.is_wide() ? 1 + 32 : 3 + 32);
        set(shared.exponents_full[i], kWarpgroup);
        set(shared.matrices_full[i], loads_cache ? 4 : 2 * kWarpgroup);
        set(shared.stage_empty[i], kConfig.value_groups * 4);
    }
#pragma unroll
    for (auto& word : shared.scratch_empty) set(word, kWarpgroup);
    if constexpr (kConfig.is_wide()) {
#pragma unroll
        for (int i = 0; i < kConfig.row_stages(); ++i) {
            set(shared.rows_full[i], 2);
            set(shared.rows_empty[i], 4);
        }
        set(shared.inverse_empty, 4);
        set(shared.scores_empty, 4);
    }
    cutlass::arch::fence_barrier_init();
}

}  // namespace gdn_cuda::gdn
