// The work of one block of gdn/prefill: its segment, where it starts, its passes, and what it sets up.
#pragma once

#include <gdn_cuda/kernels/chunked/records.cuh>
#include <gdn_cuda/kernels/chunked/segments.cuh>
#include <gdn_cuda/kernels/chunked/summary.cuh>
#include <gdn_cuda/kernels/recurrence/states.cuh>

namespace gdn_cuda::gdn {

template <PrefillConfig kConfig>
struct PrefillBlock {
    static constexpr int kRows = kConfig.rows_per_block();
    enum class Split { whole, apart, linked };

    const PrefillArgs& args;
    const GdnCall& all = args.recurrence;
    int number, sequence, segment, head, first_row, segments, group;  // number: of the sequence in this launch
    Span span;
    Place place;
    int chunks, share;
    Split split = Split::whole;
    int begin = 0, segment_begins = 0, end;  // in chunks; outputs are stored from segment_begins on

    __device__ __forceinline__ PrefillBlock(const PrefillArgs& args, PrefillSharedPlan<kConfig>& shared)
        : PrefillBlock(args, static_cast<int>(blockIdx.z) / segments_of(args), sequence_of(args, shared),
                       static_cast<int>(blockIdx.z) % segments_of(args), static_cast<int>(blockIdx.y),
                       static_cast<int>(blockIdx.x)) {}
    __device__ __forceinline__ PrefillBlock(const PrefillArgs& args, int number, int sequence, int segment, int head, int tile)
        : args(args), number(number), sequence(sequence), segment(segment), head(head), first_row(tile * kRows) {
        span = span_of(all.cu_seqlens, sequence, all.tokens);
        i64 slot;
        place = find_slot(slot);
        chunks = (span.length + kChunk - 1) / kChunk;
        end = chunks;
        segments = segments_of_sequence(args, chunks);
        group = segments_in_group(segments);
        share = chunks_of_segment(args, chunks);
    }
    __device__ __forceinline__ static int segments_of(const PrefillArgs& args) {
        return args.takes == PrefillTakes::if_one_remembers ? 1 : args.segments;
    }
    // Packed sequences are taken longest first: one that starts as others end should be short. Called by the whole block.
    __device__ __forceinline__ static int sequence_of(const PrefillArgs& args, PrefillSharedPlan<kConfig>& shared) {
        const int number = static_cast<int>(blockIdx.z) / segments_of(args);
        if (kConfig.linked && args.takes == PrefillTakes::long_sequences)
            return sequence_at(args.recurrence, static_cast<i64>(number) * kBetweenLong);
        if (kConfig.linked || !args.longest_first) return number;
        const GdnCall& all = args.recurrence;
        const int own = static_cast<int>(threadIdx.x);
        auto* const lengths = reinterpret_cast<int*>(shared.inverse);
        static_assert(kMostByLength <= kConfig.threads() && (kMostByLength + 1) * sizeof(int) <= sizeof(shared.inverse));
        if (own < all.sequences) lengths[own] = span_of(all.cu_seqlens, own, all.tokens).length;
        __syncthreads();
        int before = 0;
        if (own < all.sequences)
            for (int i = 0; i < all.sequences; ++i)
                before += lengths[i] > lengths[own] || (lengths[i] == lengths[own] && i < own);
        if (own < all.sequences && before == number) lengths[kMostByLength] = own;
        __syncthreads();
        return lengths[kMostByLength];
    }
    // pair: of sequence and head.
    __device__ __forceinline__ PrefillBlock(const PrefillArgs& args, int pair, int tile)
        : PrefillBlock(args, 0, static_cast<int>(static_cast<unsigned>(pair) / static_cast<unsigned>(args.recurrence.heads)), 0,
                       static_cast<int>(static_cast<unsigned>(pair) % static_cast<unsigned>(args.recurrence.heads)), tile) {}
    // Recomputed where needed, to save registers.
    __device__ __forceinline__ Place find_slot(i64& slot) const {
        int first_step;
        return starting_slot(all, sequence, slot, first_step);
    }
    __device__ __forceinline__ bool whole_sequences() const { return args.takes == PrefillTakes::if_one_remembers; }

    // Whether the block has work. Called by the whole block; `growths`: one float per warp.
    __device__ __forceinline__ bool find_start(float* growths) {
        // The warm-up is typically a chunk or two.
        if (args.segments > 1 && segment * share < chunks)
            prefetch_chunk<kConfig>(all, span, sequence, head, max(segment * share - 1, 0));
        if (!takes_sequence()) return false;
        bool remembers;
        if (kConfig.linked && args.spread.reach > 0 && segments > 1) {
            const auto heads = heads_that_remember<kConfig>(args, sequence, span, reinterpret_cast<unsigned*>(growths));
            if (!spread(heads, remembers)) return false;
        } else if (!is_taken(remembers, !is_second_of_two(args.takes))) {
            return false;
        }
        if (segment == 0) finish_without_chunks();
        if (place != Place::run || chunks == 0) return false;
        if (whole_sequences() || share >= chunks || (remembers && !kConfig.linked)) return segment == 0;
        split = remembers ? Split::linked : Split::apart;
        begin = segment_begins = remembers ? linked_begin(segment) : min(segment * share, chunks);
        end = remembers ? linked_begin(segment + 1) : min(segment_begins + share, chunks);
        if (begin >= end || (split == Split::apart && all.outputs == 0 && end < chunks)) return false;
        if (split == Split::apart && segment > 0) {
            const int most = min(segment_begins, 2 * max(args.reach, args.spread.reach) + kShortestSegment);
            begin = max(first_that_matters<kConfig>(all, span, sequence, head, segment_begins, most, growths), 0);
        }
        return true;
    }
    // Finds this block's head and segment where heads get different numbers of segments: blocks are numbered with the heads
    // that remember first, segment by segment. False if nothing is left for it. If no head needs more than args.reach, none is
    // linked.
    __device__ __forceinline__ bool spread(const HeadsThatRemember& heads, bool& remembers) {
        const int many = __popc(heads.near), others = all.heads - many;
        const int wanted = args.spread.segments[(heads.few & ~heads.near) != 0][many % PrefillSpread::kMostHeads],
                  most = args.by_length ? min(wanted, chunks / kShortestUneven) : wanted;
        unsigned remembering = heads.far;
        if (heads.far != 0 && many > 0 && others > 0 && segments == args.segments && most > segments) {
            remembering = heads.near;
            int number = segment * all.heads + head;
            const int of_remembering = many * most;
            const bool is_other = number >= of_remembering;
            segments = is_other ? (segments * all.heads - of_remembering) / others : most;
            group = segments_in_group(segments);
            number -= is_other ? of_remembering : 0;
            const int among = is_other ? others : many;
            segment = static_cast<int>(static_cast<unsigned>(number) / static_cast<unsigned>(among));
            if (segment >= segments) return false;
            unsigned left = is_other ? ~remembering : remembering;
            for (int before = number - segment * among; before > 0; --before) left &= left - 1;
            head = __ffs(left) - 1;
            share = max((chunks + segments - 1) / segments, kShortestSegment);
        }
        remembers = remembering >> head & 1;
        return true;
    }
    // Where a linked segment begins: all are of one length but the first.
    __device__ __forceinline__ int linked_begin(int segment) const {
        const int segments = min(this->segments, chunks / kShortestSegment);
        if (segment == 0) return 0;
        if (segment >= segments) return chunks;
        const float length = static_cast<float>(chunks) / (args.links.first + static_cast<float>(segments - 1));
        return chunks - static_cast<int>(static_cast<float>(segments - segment) * length);
    }
    // Where the lengths of sequences decide between two launches, whether this one takes the block's sequence.
    __device__ __forceinline__ bool takes_sequence() const {
        if (args.takes == PrefillTakes::short_sequences) return chunks <= kLongestWhole;
        return args.takes != PrefillTakes::long_sequences || (chunks > kLongestWhole && number_of_long(span) == number);
    }
    // Whether this launch takes the block's head; also whether it, or any, remembers. decides: from the gates.
    __device__ __forceinline__ bool is_taken(bool& remembers, bool decides) {
        const bool for_all = args.takes == PrefillTakes::if_all_forget || whole_sequences(),
                   hands_over = for_all && args.decision != nullptr;
        if (hands_over && !decides) {  // the first launch's blocks have all started before this one's
            constexpr auto kRemembers = static_cast<unsigned>(PrefillDecision::one_remembers);
            remembers = __syncthreads_or(threadIdx.x == 0 && wait_for_count(args.decision, 1) == kRemembers);
            return remembers == whole_sequences();
        }
        remembers = args.segments > 1 && one_remembers<kConfig>(args, for_all, sequence, head);
        if (hands_over && blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x == 0)
            red_release(args.decision,
                        static_cast<unsigned>(remembers ? PrefillDecision::one_remembers : PrefillDecision::all_forget));
        return !for_all || remembers == whole_sequences();
    }
    __device__ __forceinline__ void finish_without_chunks() {
        fill_uncomputed_outputs();
        if (place == Place::run && chunks == 0) copy_state();
    }
    __device__ __forceinline__ bool resumes() const { return split == Split::linked && segment > 0; }
    // Later segments wait for M and L of this one; not of the first, whose state is ready sooner than a summary would be.
    __device__ __forceinline__ bool summarizes() const { return resumes() && end < chunks; }
    __device__ __forceinline__ bool link_before() const { return split == Split::linked && segment > 1; }
    __device__ __forceinline__ bool leaves_state() const { return split == Split::linked && segment == 0 && end < chunks; }
    // Whether groups of segments are multiplied first, and this is a group's last one. The next two compute its L and its M, as
    // they wait for all tiles of rows of the last one; those that follow wait for all tiles of these.
    __device__ __forceinline__ bool ends_group(int segment) const {
        return split == Split::linked && group > 1 && segment > 0 && segment % group == 0 && linked_begin(segment + 3) < chunks;
    }
    // The first segment has one pass, and no use for records.
    __device__ __forceinline__ bool has_records() const { return resumes() && args.links.records != nullptr; }

    // Sequences that are skipped or poisoned, and tokens past the last sequence.
    __device__ __forceinline__ void fill_uncomputed_outputs() {
        if (all.cu_seqlens.data != nullptr && sequence == all.sequences - 1)
            fill_outputs<kConfig>(all, sequence, span.start + span.length, all.tokens, head, first_row, 0.f);
        if (place != Place::run)
            fill_outputs<kConfig>(all, sequence, span.start, span.start + span.length, head, first_row,
                                  place == Place::skip ? 0.f : quiet_nan());
    }

    // Copies these rows of the state of an empty sequence, or writes zeros without an initial state.
    __device__ __forceinline__ void copy_state() {
        char* to = static_cast<char*>(all.last.data);
        if (to == nullptr || to == all.initial.data) return;
        const int bytes = bytes_of(args.state), rows = min(kRows, all.dv - first_row);
        const i64 before = (static_cast<i64>(head) * all.dv + first_row) * all.dk;
        i64 slot;
        find_slot(slot);
        const auto* from = static_cast<const char*>(all.initial.data);
        if (from != nullptr) from += (slot * all.initial.slot + before) * bytes;
        to += (slot * all.last.slot + before) * bytes;
        for (int at = 16 * static_cast<int>(threadIdx.x); at < rows * all.dk * bytes; at += 16 * kConfig.threads())
            *reinterpret_cast<uint4*>(to + at) = from == nullptr ? uint4{} : *reinterpret_cast<const uint4*>(from + at);
    }

    // By one thread: the outputs of chunks [first, last), in one pass.
    __device__ __forceinline__ void plan_outputs(PrefillWork& work, int first, int last) {
        begin = segment_begins = first;
        end = last;
        plan_outputs(work);
    }
    __device__ __forceinline__ void plan_outputs(PrefillWork& work) const {
        plan_pass(work, PrefillPass::outputs, first_row);
        i64 slot;
        find_slot(slot);
        work.initial_slot = slot * all.initial.slot;
        work.last_slot = slot * all.last.slot;
        work.checkpoints_before = packed_steps_before(all, sequence);
    }
    // By one thread: the first pass goes to shared.work, the others to shared.passes, last first.
    __device__ __forceinline__ void plan_passes(PrefillSharedPlan<kConfig>& shared) const {
        if constexpr (!kConfig.linked) return plan_outputs(shared.work);
        const int step = static_cast<int>(gridDim.x) * kRows;  // to this block's next rows of M
        // Integers, since the compiler spills predicates that live through the loop.
        const int recorded = opaque(has_records()), summarized = opaque(summarizes());
        const int links = link_before(), summaries = summarized | recorded,
                  tiles = max((all.dk - first_row + step - 1) / step, 0), transfers = summarized * tiles;
        // The two blocks behind a group compute its L and its M.
        const int group_summary = ends_group(segment - 1), group_passes = ends_group(segment - 2) ? tiles : group_summary;
        const int first = all.outputs == 0 && summarized ? links + 1 : 0;  // nobody reads the state before this segment
        const int last = links + group_passes + summaries + transfers;
        const i64 checkpoints_before = packed_steps_before(all, sequence);
        i64 slot;
        find_slot(slot);
        shared.passes_left = last - first;
#pragma unroll 1
        for (int i = last; i >= first; --i) {
            const int of_group = i - links - 1, own = of_group - group_passes, transfer = own - summaries;
            const PrefillPass pass = i == 0       ? PrefillPass::outputs
                                     : i <= links ? PrefillPass::link
                                     : own < 0    ? (group_summary ? PrefillPass::group_summary : PrefillPass::group_transfer)
                                     : transfer >= 0 ? PrefillPass::transfer
                                     : summarized    ? PrefillPass::summary
                                                     : PrefillPass::records;
            PrefillWork& work = i == last ? shared.work : shared.passes[i - first];
            const int tile = pass == PrefillPass::group_transfer ? of_group : max(transfer, 0);
            plan_pass(work, pass, first_row + tile * step);
            plan_links(work);
            if (pass == PrefillPass::group_transfer && tile > 0) work.to = -1;
            work.exports = recorded * (i == last);
            if (work.exports) work.first_scores = 0;
            work.imports = recorded * (i < last) * (work.chunks > 0);
            work.initial_slot = slot * all.initial.slot;
            work.last_slot = slot * all.last.slot;
            work.checkpoints_before = checkpoints_before;
        }
    }
    __device__ __forceinline__ i64 first_link() const {
        if constexpr (!kConfig.linked) return 0;
        const unsigned between = args.links.tokens;
        return head * args.links.of_head + (between > 0 ? static_cast<i64>(static_cast<unsigned>(span.start) / between)
                                                        : static_cast<i64>(number) * args.links.of_sequence);
    }
    // The links that a pass follows: groups that end before this segment and the segments behind them, or a group's.
    __device__ __forceinline__ void plan_links(PrefillWork& work) const {
        work.group_links = work.segment_links = 0;
        work.group_link = first_link() + segments - 1;
        if (work.pass == PrefillPass::link) {
            work.group_links = group > 1 ? max(segment - 3, 0) / group : 0;
            work.segment_link = first_link() + 1 + work.group_links * group;
            work.segment_links = segment - 1 - work.group_links * group;
        } else if (is_of_group(work.pass)) {
            const int number = (segment - 1) / group - 1;
            work.from = first_link() + 1 + number * group;
            work.to = work.link = work.group_link + number;
            work.segment_link = work.from + 1;
            work.segment_links = group - 1;
        }
    }
    __device__ __forceinline__ static bool is_of_group(PrefillPass pass) {
        return pass == PrefillPass::group_transfer || pass == PrefillPass::group_summary;
    }
    __device__ __forceinline__ PrefillRecord<kConfig>* records() const {
        const i64 before =
                      all.cu_seqlens.data != nullptr ? span.start / kChunk + sequence : static_cast<i64>(sequence) * chunks,
                  first = (static_cast<i64>(head) * gridDim.x + blockIdx.x) * args.links.chunks;
        return static_cast<PrefillRecord<kConfig>*>(args.links.records) + first + before + begin;
    }
    __device__ __forceinline__ void plan_pass(PrefillWork& work, PrefillPass pass, int row) const {
        const bool outputs = pass == PrefillPass::outputs, links = pass == PrefillPass::link;
        const bool transfers = pass == PrefillPass::transfer || pass == PrefillPass::group_transfer;
        const i64 link = first_link() + segment;
        work.pass = pass;
        work.exports = work.imports = false;
        work.start = span.start + begin * kChunk;
        work.length = min(span.length, end * kChunk) - begin * kChunk;
        work.chunks = links || is_of_group(pass) ? 0 : end - begin;
        work.first_output = (outputs && all.outputs > 0 ? segment_begins : end) - begin;
        work.first_scores = work.first_output;
        work.tokens_before = begin * kChunk;
        work.begins = begin == 0;
        work.ends = end == chunks;
        work.segment = segment;
        work.records = records();
        const i64 state_before = link - 1 + (segment > 1 ? args.links.all : 0);
        work.from = links ? first_link() : outputs && resumes() ? state_before : -1;
        work.to = links ? state_before : pass == PrefillPass::summary || (outputs && leaves_state()) ? link : -1;
        work.link = link;
        const int others = split == Split::whole ? 0 : all.outputs > 0 ? segment : split == Split::linked && segment > 0;
        work.readers = (1 + others) * kConfig.value_groups;
        work.sequence = sequence;
        work.head = head;
        work.key_head = static_cast<int>(static_cast<unsigned>(head) / static_cast<unsigned>(all.heads_per_key));
        work.first_row = row;
        work.first_value = transfers ? all.dv : row;
        work.rows = transfers ? all.dk : all.dv;
    }
};

// Called by one thread, while no other thread uses the mbarriers.
template <bool kFirst, PrefillConfig kConfig>
__device__ __forceinline__ void set_barriers(PrefillSharedPlan<kConfig>& shared) {
    const auto set = [](unsigned long long& word, int arrivals) {
        if (!kFirst) barrier(word).invalidate();
        barrier(word).init(arrivals);
    };
    const bool imports = kConfig.linked && shared.work.imports, links = kConfig.linked && links_to_follow(shared.work) > 0;
#pragma unroll
    for (int i = 0; i < kConfig.stages; ++i) {
        // Producers of keys, queries and values, and the scalar warp's lanes; where records are read, the producers of the keys
        // and values of a chunk with a tail; where links are followed, the producer of M.
        set(shared.loaded[i], links ? 1 : imports ? 2 : 3 + 32);
        set(shared.factored[i], kWarpgroup);
        set(shared.ready[i], imports ? 4 : 2 * kWarpgroup);
        set(shared.done[i], kConfig.value_groups * 4);
    }
#pragma unroll
    for (auto& word : shared.walked) set(word, kWarpgroup);
    cutlass::arch::fence_barrier_init();
}

// By the whole block, before the helper roles start: they write no zeros above the diagonal.
template <PrefillConfig kConfig>
__device__ __forceinline__ void clear_matrices(PrefillSharedPlan<kConfig>& shared) {
    constexpr int kPieces = sizeof(shared.matrices) / sizeof(uint4);
    for (int i = threadIdx.x; i < kPieces; i += kConfig.threads()) reinterpret_cast<uint4*>(shared.matrices)[i] = {};
    cutlass::arch::fence_view_async_shared();
}

}  // namespace gdn_cuda::gdn
