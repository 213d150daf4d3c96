// gdn/kda_prepare: what chunks of 64 tokens of Kimi Delta Attention do to any state (kda/record.cuh), for gdn/kda_own; with
// KdaPrepareConfig::trains, what the backward needs of them (kda/training_record.cuh).
//
// A block of 256 threads takes a chunk of a value head. A thread holds two channels of 16 tokens, and writes operands of
// products into the same 48 KB again and again:
//
//     loads -> decays -> operands -> scores ... -> [K_in, Q_in, d k] -> copies
//                                                  A -> T (four warps) -> Z, P' -> copies
//
// The backward is given T and P themselves.
//
// Where one border serves all scores, four warps form and invert the blocks of A on the diagonal while the others form those
// below it, and T while the others form P. These scores, norms, Z and P' are wgmmas; other scores warp MMAs.
//
// A score's decay is the product of two, up to and from a border between tokens. Where each has a reciprocal that may scale an
// operand (no channel decays by more than e^60 on either side of the border), one border serves all pairs of tokens around it;
// otherwise only pairs across it, whose two products are at most 1, cannot overflow, and are 0 where they underflow. So by the
// decays of a chunk, its scores take
//
//     slow       one border, in the middle of the chunk; its operands are K_in, Q_in and the keys of Z as well (kKdaScaled),
//                but not for the backward, whose records are not scaled
//     medium     pairs across the middle; a border in each half
//     fast       pairs across borders of halves of 32 and 16 tokens; a border in each quarter
//     very fast  pairs across borders of halves of 32, 16, 8, 4, 2 and 1 tokens
//
// fp16 has no range for reciprocals: always the last.
//
// Bound: latency, from barrier to barrier (docs/kernels/kda_prefill.md). On an H200 an SM takes 4.9 us for a chunk of a head
// with slow decays, 7.4 with heavy ones, where 8192 chunks are prepared (benchmarks/kda_launches.py, 782b9b52).
#pragma once

#include <gdn_cuda/kernels/chunked/triangle_inverse.cuh>
#include <gdn_cuda/kernels/common/stmatrix.cuh>
#include <gdn_cuda/kernels/common/tma.cuh>
#include <gdn_cuda/kernels/gdn/kda/elements.cuh>
#include <gdn_cuda/kernels/gdn/kda/preparing_block.cuh>
#include <gdn_cuda/kernels/gdn/kda/products.cuh>
#include <gdn_cuda/kernels/gdn/kda/scores.cuh>
#include <gdn_cuda/kernels/gdn/kda/window.cuh>
#include <gdn_cuda/kernels/recurrence/raw_gates.cuh>

namespace gdn_cuda::gdn {

// False if the record has no tokens. find_span: span_of, or what returns the same.
template <class FindSpan>
__device__ __forceinline__ bool find_kda_chunk(const KdaWindowCall& call, int record, int head, KdaChunk& found,
                                               FindSpan&& find_span) {
    int sequence, chunk;
    if (!find_kda_place(call, call.window, record, sequence, chunk)) return false;
    const Span span = find_span(call.cu_seqlens, sequence, call.tokens);
    const int first = chunk * kChunk;
    if (first >= span.length) return false;
    found = {.sequence = call.cu_seqlens.data != nullptr ? 0 : sequence,
             .head = head,
             .key_head = static_cast<int>(quotient(head, call.heads_per_key)),
             .first = span.start + first,
             .tokens = min(kChunk, span.length - first)};
    return true;
}

// For the backward: false if no chunk has the index.
__device__ __forceinline__ bool find_kda_training_chunk(const GdnCall& call, int index, int head, KdaChunk& found) {
    const ChunkPlace place = chunk_at(call.cu_seqlens, call.sequences, call.tokens, index);
    found = {.sequence = call.cu_seqlens.data != nullptr ? 0 : place.sequence,
             .head = head,
             .key_head = head / call.heads_per_key,
             .first = place.start + place.first,
             .tokens = min(kChunk, place.length - place.first)};
    return place.sequence >= 0;
}

template <KdaPrepareConfig kConfig, class Threads = KdaPreparingBlock>
struct KdaPreparer {
    static constexpr DType kIo = kConfig.io;
    static constexpr bool kTrains = kConfig.trains;
    using Thread = typename Threads::Thread;
    using Elements = KdaElements<kConfig, Thread>;
    using Scores = KdaScores<kIo, Thread>;
    static constexpr int kTilesBytes = kKdaTiles * sizeof(SwizzledTile);
    using Copy = cute::SM90_BULK_COPY_S2G;

    KdaPreparePlan& shared;
    const KdaPrepareArgs& args;
    const Threads threads = {};

    __device__ __forceinline__ unsigned thread_index() const { return threads.thread().index(); }
    __device__ __forceinline__ Scores make_scores() const { return Scores(shared, threads.thread()); }

    __device__ __forceinline__ void start_beta_load(RawGates& raw, const KdaChunk& chunk) const {
        if constexpr (Threads::Thread::kTakesMany) raw = {};
        if (thread_index() >= kChunk) return;
        const int token = min(static_cast<int>(thread_index()), chunk.tokens - 1);
        raw.load_beta(args.call, scalar_offset(args.call.beta, chunk.sequence, chunk.first + token, chunk.head));
    }
    // Returns whether it is too large.
    __device__ __forceinline__ bool store_beta(const RawGates& raw, const KdaChunk& chunk) const {
        const int token = static_cast<int>(thread_index());
        if (token >= kChunk) return false;
        float beta = token < chunk.tokens ? raw.beta_of(args.call, args.call.forms) : 0.f;
        if (kTrains && beta == 0.f) beta = least_beta(kIo);
        shared.beta[token] = beta;
        return !(fabsf(beta) < kKdaLargest);
    }
    // By one thread.
    __device__ __forceinline__ void start_tile_loads(const KdaChunk& chunk, bool queries) const {
        Barrier& full = barrier(shared.tiles_full);
        full.arrive_and_expect_tx((queries ? 2 : 1) * kTilesBytes);
#pragma unroll
        for (int i = 0; i < kKdaTiles; ++i) {
            const TileAt at{i * kTileElements, chunk.key_head, static_cast<int>(chunk.first), chunk.sequence};
            tma_load(shared.operands.key[i].bytes, args.key, at, full);
            if (queries) tma_load(shared.operands.query[i].bytes, args.query, at, full);
        }
    }
    // What the warps have found together.
    __device__ __forceinline__ unsigned findings() const {
        const auto found = *reinterpret_cast<const uint2*>(shared.findings);
        unsigned all = found.x | found.y;
        all |= all >> 16;
        return (all | all >> 8) & 0xff;
    }

    // Halves of 32 and of 16 tokens.
    __device__ __forceinline__ void form_large_scores(Elements& elements) const {
        auto& operands = shared.operands;
        const int quarter = elements.quarter;
        elements.refresh();
        if (quarter == 0) {
            elements.store_backwards_twice(operands, elements.after(2));
        } else if (quarter == 1) {
            elements.store_backwards(operands.key, {1.f, 1.f});
            elements.refresh();
            elements.store_forwards(operands.other_key, operands.query, 32, {1.f, 1.f});
        } else if (quarter == 2) {
            elements.store_forwards(operands.key, operands.query, 0, {1.f, 1.f});
            elements.refresh();
            elements.store_backwards(operands.other_key, {1.f, 1.f});
        } else {
            elements.store_forwards_twice(operands, elements.before(2));
        }
        threads.sync();
        const Scores scores(shared, threads.thread());
        scores.multiply_halves_of_32();
        scores.multiply_halves_of_16();
    }
    // Operands of all scores, where decays are slow. Where the record is scaled, they are its too.
    __device__ __forceinline__ void store_scaled_operands(Elements& elements) const {
        const bool follows = elements.quarter >= 2;
        elements.refresh();
        elements.store_around_border(shared.operands, follows, follows ? elements.before(2) : elements.after(2));
    }
    __device__ __forceinline__ void form_all_scores(Elements& elements) const {
        store_scaled_operands(elements);
        cutlass::arch::fence_view_async_shared();
        threads.sync();
        make_scores().multiply_all();
        threads.sync();
    }
    // By two: between halves of the chunk, then within them.
    __device__ __forceinline__ void form_scores_of_halves(Elements& elements) const {
        auto& operands = shared.operands;
        const int quarter = elements.quarter;
        elements.refresh();
        if (quarter >= 2)
            elements.store_forwards(operands.key, operands.query, 16 * (quarter - 2), elements.before(2));
        else
            elements.store_backwards(operands.key, elements.after(2));
        threads.sync();
        make_scores().multiply_halves_of_32();
        threads.sync();
        elements.refresh();
        elements.store_around_border(operands, quarter % 2 == 1, {1.f, 1.f});
        threads.sync();
        make_scores().multiply_blocks_of_halves();
        threads.sync();
    }
    __device__ __forceinline__ void form_diagonal_scores(Elements& elements) const {
        elements.refresh();
        elements.store_around_middle(shared.operands);
        threads.sync();
        make_scores().multiply_diagonal();
        threads.sync();
    }
    __device__ __forceinline__ void form_small_scores(Elements& elements) const {
        auto& operands = shared.operands;
        make_scores().clear_diagonal();
        elements.refresh();
        elements.template store_halves<8>(operands.key, operands.query, 0);
        elements.refresh();
        elements.template store_halves<4>(operands.other_key, operands.query, 32);
        threads.sync();
        const Scores scores(shared, threads.thread());
        scores.multiply_small_halves(8);
        if (const unsigned token = thread_index(); token < kChunk) {
            float x = shared.query_key[token];
            if (kTrains && static_cast<int>(token) >= shared.chunk.tokens) x = 0.f;  // another sequence's
            scores.store_one(true, token, token, x);
        }
        threads.sync();
        elements.refresh();
        elements.template store_halves<2>(operands.key, operands.query, 0);
        elements.refresh();
        elements.template store_halves<1>(operands.other_key, operands.query, 32);
        threads.sync();
        make_scores().multiply_small_halves(2);
        threads.sync();
    }

    // By four warps: r T diag(beta), in two parts. Where decays are slow, the others form what blocks of A these have not, and
    // then P.
    __device__ __forceinline__ void invert(bool scaled) const {
        if (scaled) {
            make_scores().multiply_own_keys();
            __syncwarp();
        }
        TriangleInverse inverse;
        inverse.find_lane();
        inverse.invert_diagonal(shared.triangle);
        NamedBarrier::sync(kConfig.threads(), threads.other_barrier());
        float largest = 0.f;
        const auto store = [&](const TriangleInverse::Transposed& x, int column_of_blocks, int below) {
            const int block = column_of_blocks + below;
            unsigned parts[2][4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {  // columns g + 8 (i % 2), rows 8 (i / 2) + 2 t and + 1
                const float low = x[i / 2][i % 2 * 2], high = x[i / 2][i % 2 * 2 + 1];
                const int row = 8 * (i / 2) + 2 * inverse.t, column = inverse.g + 8 * (i % 2);
                if (below > 0 || row != column) largest = fmaxf(largest, fabsf(low));
                if (below > 0 || row + 1 != column) largest = fmaxf(largest, fabsf(high));
                const float2 norms = pair_at(&shared.factors.key_norm[16 * block + row]);
                parts[0][i] = pack<kIo>(low * norms.x, high * norms.y);
                parts[1][i] = pack_residual<kIo>(low * norms.x, high * norms.y, parts[0][i]);
            }
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                const unsigned own = inverse.matrix_row(shared.matrices.inverse[part]);
                stmatrix_x4_trans((own ^ (column_of_blocks ^ inverse.warp) << 5) + block * kMnMajorStep, parts[part][0],
                                  parts[part][1], parts[part][2], parts[part][3]);
            }
        };
        inverse.for_each_block_below<false>(shared.triangle, shared.beta, [&](const TriangleInverse::Transposed& x, int below) {
            store(x, inverse.warp, below);
        });
        if (inverse.warp >= 2)  // those of the long columns too
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int column = i == 0 ? inverse.warp : 3 - inverse.warp;
                inverse.visit_diagonal(shared.triangle, column, shared.beta,
                                       [&](const TriangleInverse::Transposed& x, int) { store(x, column, 0); });
            }
        const bool cancels = __any_sync(0xffffffffu, largest > kCancelThreshold);
        if (inverse.lane == 0) shared.cancels[inverse.warp] = cancels;
    }

    __device__ __forceinline__ void form_other_scores(bool scaled) const {
        const auto arrive = [&]() { NamedBarrier::arrive(kConfig.threads(), threads.other_barrier()); };
        if (scaled)
            make_scores().multiply_others(arrive);
        else
            arrive();
    }

    // The rare chunks in which entries of T cancel: what rounding has left of the keys of Z, in place of the queries, which
    // have been stored, as the keys have. Decays and keys are computed and loaded again rather than kept.
    __device__ __forceinline__ void store_key_residuals(const KdaChunk& chunk, bool scaled) const {
        cutlass::arch::fence_view_async_shared();
        threads.sync();
        if (copies()) {
            cute::tma_store_wait<0>();
            start_tile_loads(chunk, false);
        }
        threads.sync();
        Elements elements(shared, threads.thread());
        typename Elements::Gates gates;
        elements.load_gates(gates, args.call, chunk);
        barrier(shared.tiles_full).wait(1);
        elements.make_decays(gates, args.call);
        elements.load(args.call, chunk);
        SwizzledTile* const to = shared.operands.query;
        if (scaled && elements.quarter >= 2)
            elements.template store_divided<true>(to, elements.before(2));
        else
            elements.template store_backwards<true>(to, elements.after(scaled ? 2 : KdaPrepareConfig::kQuarters));
        cutlass::arch::fence_view_async_shared();
        threads.sync();
    }

    // One thread loads keys and queries, in the last warp, as the first ones load betas.
    __device__ __forceinline__ bool loads() const { return thread_index() == kConfig.threads() - 32; }
    // One thread copies everything, in a warp that does not invert.
    __device__ __forceinline__ bool copies() const { return thread_index() == kWarpgroup; }

    __device__ __forceinline__ static bool is_slow(unsigned found) {
        return !(found & (kFoundVeryFast | kFoundFast | kFoundMedium));
    }
    __device__ __forceinline__ static bool is_scaled(unsigned found) { return !kTrains && is_slow(found); }
    __device__ __forceinline__ void form_inverse(const Elements& elements, bool scaled) const {
        if (elements.quarter < KdaPrepareConfig::kQuarters / 2)  // warp-uniform for the compiler, unlike threadIdx.x
            invert(scaled);
        else
            form_other_scores(scaled);
    }

    __device__ __forceinline__ void finish(const Elements& elements, unsigned found, KdaRecord& given,
                                           unsigned& flags_of_record) const {
        constexpr int kRows = kTilesBytes;
        const bool scaled = is_scaled(found);
        if (copies()) {
            KdaRecord& record = threads.place_of(given);
            Copy::copy(shared.operands.key, record.key_in, kRows);
            cute::tma_store_arrive();
            Copy::copy(shared.operands.query, record.query_in, kRows);
            Copy::copy(&shared.factors, &record.factors, sizeof(KdaFactors));
            cute::tma_store_arrive();
        }
        form_inverse(elements, scaled);
        cutlass::arch::fence_view_async_shared();
        if (copies()) cute::tma_store_wait<1>();  // Z replaces K_in
        threads.sync();
        const bool cancels = shared.cancels[0] | shared.cancels[1] | shared.cancels[2] | shared.cancels[3];
        if (copies())
            threads.set_flags(flags_of_record, (cancels ? kKdaCancels : 0) | (found & kFoundZero ? kKdaResets : 0) |
                                                   (scaled ? kKdaScaled : 0) | (found & kFoundLarge ? kKdaOverflows : 0));
        if (cancels) [[unlikely]]
            store_key_residuals(shared.chunk, scaled);
        KdaProducts<kIo, Thread> products(shared, threads.thread());
        products.multiply(cancels ? shared.operands.query : nullptr, scaled);
        products.store();
        if (cancels) {
            threads.sync();
            products.store_residuals();
        }
        cutlass::arch::fence_view_async_shared();
        threads.sync();
        if (copies()) {
            KdaRecord& record = threads.place_of(given);
            Copy::copy(shared.operands.key, record.update, kRows);
            Copy::copy(&shared.products, &record.scores, sizeof(SwizzledTile));
            if (cancels) {
                Copy::copy(shared.matrices.inverse, record.update_residual, kRows);
                Copy::copy(&shared.matrices.scores[1], &record.scores_residual, sizeof(SwizzledTile));
            }
            cute::tma_store_arrive();
            cute::tma_store_wait<0>();
        }
        threads.finish(barrier(shared.tiles_full), cancels);
    }
    __device__ __forceinline__ void finish(const Elements& elements, unsigned, KdaTrainingRecord& record) const {
        if (copies()) {
            static_assert(sizeof(KdaPreparePlan::Operands) == 6 * sizeof(SwizzledTile));  // key_in, key_out, query_in
            Copy::copy(&shared.operands, &record, sizeof(shared.operands));
            Copy::copy(shared.matrices.scores, record.scores, sizeof(record.scores));
            KdaTrainingFactors& factors = record.factors;
            Copy::copy(shared.factors.decay, factors.decay, sizeof(factors.decay));
            Copy::copy(shared.factors.key_norm, factors.key_norm, sizeof(factors.key_norm) + sizeof(factors.query_norm));
            Copy::copy(shared.beta, factors.beta, sizeof(factors.beta));
            cute::tma_store_arrive();
        }
        form_inverse(elements, false);
        cutlass::arch::fence_view_async_shared();
        threads.sync();
        if (copies()) {
            Copy::copy(shared.matrices.inverse, record.inverse, sizeof(record.inverse));
            cute::tma_store_arrive();
            record.factors.cancels = shared.cancels[0] | shared.cancels[1] | shared.cancels[2] | shared.cancels[3];
            cute::tma_store_wait<0>();
        }
    }

    // record: a KdaRecord and its flags, or a KdaTrainingRecord.
    template <class... Record>
    __device__ __forceinline__ void run(const KdaChunk& chunk, Record&... record) const {
        if (loads()) {
            shared.chunk = chunk;
            threads.start_barrier(barrier(shared.tiles_full));
            start_tile_loads(chunk, true);
        }
        Elements elements(shared, threads.thread());
        typename Elements::Gates gates;
        RawGates beta;
        elements.load_gates(gates, args.call, chunk);
        start_beta_load(beta, chunk);
        const unsigned next = threads.take_next();
        make_scores().clear_blocks_above_diagonal();
        threads.sync();  // the barrier is there
        barrier(shared.tiles_full).wait(0);
        threads.store_next(next);
        float squares[32];
        make_scores().start_norms(squares);
        elements.make_decays(gates, args.call);
        bool is_large = make_scores().store_norms(squares, args.call, kTrains ? 1.f : args.call.scale, chunk.tokens);
        is_large |= store_beta(beta, chunk);
        elements.load(args.call, chunk);
        const float2 total = elements.total();
        *reinterpret_cast<float2*>(&shared.totals[elements.quarter][elements.channel()]) = total;
        elements.refresh();
        const auto any = [](bool found) { return __any_sync(0xffffffffu, found); };
        constexpr bool kNever = kIo != DType::bf16;  // may reciprocals scale operands
        const bool medium = any(kNever || !elements.is_slow(total, 2)), fast = any(kNever || !elements.is_slow(total, 1)),
                   very_fast = fast && any(kNever || !elements.has_reciprocals()),
                   zero = fast && any(!(total.x > 0.f && total.y > 0.f)) && any(elements.has_zero()),
                   large = any(is_large || total.x != total.x || total.y != total.y);
        const unsigned own = (zero ? kFoundZero : 0) | (very_fast ? kFoundVeryFast : 0) | (fast ? kFoundFast : 0) |
                             (medium ? kFoundMedium : 0) | (large ? kFoundLarge : 0);
        if (elements.lane == 0) shared.findings[kKdaTiles * elements.quarter + elements.tile] = static_cast<unsigned char>(own);
        threads.sync();
        // fp16's are all very fast: what is not for them is left out, but for half of a block, where that would spill.
        constexpr bool kPrunes = kNever && !Threads::Thread::kTakesMany;
        const unsigned found = findings() | (kPrunes ? kFoundVeryFast | kFoundFast | kFoundMedium : 0);
        if (found & kFoundVeryFast) {
            make_scores().store_products_of_tokens();
            threads.sync();
        }
        const bool scaled = is_scaled(found);
        if (elements.quarter == 0) {
            const auto put = [&](float(&to)[kKdaHeadK], float2 x) { *reinterpret_cast<float2*>(&to[elements.channel()]) = x; };
            put(shared.factors.decay, elements.product_of_totals(0, 4));
            if constexpr (!kTrains) {
                put(shared.factors.middle, elements.product_of_totals(0, 2));
                put(shared.update_scale, elements.product_of_totals(2, 4));
            }
        }
        if (scaled) {
            store_scaled_operands(elements);
        } else {
            if (kTrains && is_slow(found)) {
                form_all_scores(elements);
            } else if (!(found & (kFoundVeryFast | kFoundFast))) {
                form_scores_of_halves(elements);
            } else {
                form_large_scores(elements);
                threads.sync();
                if (found & kFoundVeryFast)
                    form_small_scores(elements);
                else
                    form_diagonal_scores(elements);
            }
            elements.refresh();
            elements.store_forwards(shared.operands.key, shared.operands.query, 16 * elements.quarter, elements.before());
            elements.refresh();
            elements.store_backwards(shared.operands.other_key, elements.after());
        }
        cutlass::arch::fence_view_async_shared();
        threads.sync();
        finish(elements, found, record...);
    }
};

template <KdaPrepareConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 2) kda_prepare(const __grid_constant__ KdaPrepareArgs args) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const int head = static_cast<int>(blockIdx.x), record = static_cast<int>(blockIdx.z * gridDim.y + blockIdx.y);
    const i64 at = static_cast<i64>(head) * args.per_head + record;
    const KdaPreparer<kConfig> preparer{*reinterpret_cast<KdaPreparePlan*>(memory), args};
    KdaChunk chunk;
    if constexpr (kConfig.trains) {
        if (record < args.per_head && find_kda_training_chunk(args.call, record, head, chunk))
            preparer.run(chunk, static_cast<KdaTrainingRecord*>(args.to.prepared)[at]);
    } else {
        if (record < args.per_head && find_kda_chunk(args.call, record, head, chunk, span_of))
            preparer.run(chunk, args.records[at], args.flags[at]);
        if (head + record == 0 && threadIdx.x < 2) args.taken[threadIdx.x] = 0;
    }
}

}  // namespace gdn_cuda::gdn
