// A warp of a chain of Kimi Delta Attention's backward: 16 rows of a state or of its gradient, in registers from chunk to chunk
// of 16 tokens. Products are transposed (rows x tokens), as in chunked_mma/rows.cuh.
#pragma once

#include <gdn_cuda/kernels/common/tf32.cuh>
#include <gdn_cuda/kernels/gdn/kda_backward/channel.cuh>

namespace gdn_cuda::gdn {

template <KdaBackwardStatesConfig kConfig>
struct KdaRows : MmaLane {
    static constexpr DType kIo = kConfig.io;
    static constexpr bool kBackward = kConfig.direction == Direction::backward;
    static constexpr int kSteps = kConfig.head_k / 16;
    using Io = Storage<kIo>;
    using Record = KdaBackwardRecord<kConfig.head_k>;
    using Stage = KdaChainStage<kConfig>;
    using TokenTile = float[2][4];  // accumulators of 16 rows x 16 tokens

    KdaChainPlan<kConfig>& shared;
    const KdaBackwardStatesArgs& args;
    int segment, first_row;   // segment: the last one that the block computes
    int chunks, first_index;  // of the block's segments; an index fits 32 bits, as 2^31 records are terabytes
    int first_token, length;  // from there to the end of the sequence

    float state[2 * kSteps][4];

    __device__ __forceinline__ KdaRows(KdaChainPlan<kConfig>& shared, const KdaBackwardStatesArgs& args)
        : shared(shared), args(args) {
        const unsigned tiles = gridDim.x / args.segments.count;
        segment = static_cast<int>(blockIdx.x / tiles);
        first_row = static_cast<int>(blockIdx.x - segment * tiles) * kConfig.rows_per_block();
    }
    // Functions, not members, for the registers.
    __device__ __forceinline__ static int sequence() { return static_cast<int>(blockIdx.z); }
    __device__ __forceinline__ static int head() { return static_cast<int>(blockIdx.y); }  // of the group's
    // Rows of M are in blocks after those of values.
    __device__ __forceinline__ bool has_values() const { return first_row < args.dv; }
    __device__ __forceinline__ int own_row() const { return first_row + kMmaWarpRows * warp; }
    __device__ __forceinline__ int in_time(int chunk) const { return kBackward ? chunks - 1 - chunk : chunk; }
    __device__ __forceinline__ i64 index_of(int chunk) const { return first_index + in_time(chunk); }
    __device__ __forceinline__ int tokens_in(int chunk) const { return min(kKdaTokens, length - in_time(chunk) * kKdaTokens); }
    // The element of a row tensor at a chunk's first token and row 0 of the value.
    __device__ __forceinline__ i64 first_element(const Rows& rows, int chunk) const {
        const i64 batch = args.cu_seqlens.data != nullptr ? 0 : sequence();
        return batch * rows.batch + static_cast<i64>(first_token + in_time(chunk) * kKdaTokens) * rows.token +
               (args.first_head + static_cast<i64>(head())) * rows.head;
    }

    // ---- Loads of a chunk

    template <int kCount>
    __device__ __forceinline__ void copy(void* to, const void* from) const {  // contiguous vectors
#pragma unroll
        for (int i = thread; i < kCount; i += kConfig.threads())
            cp_async_16_zfill(shared_address(to) + 16 * i, static_cast<const char*>(from) + 16 * i, true);
    }
    template <int kWidth>
    __device__ __forceinline__ void copy_rows(unsigned short (*to)[kWidth],
                                              const unsigned short (&from)[kKdaTokens][kConfig.head_k]) const {
        constexpr int kVectors = kConfig.head_k / 8;
#pragma unroll
        for (int i = thread; i < kKdaTokens * kVectors; i += kConfig.threads())
            cp_async_16_zfill(shared_address(&to[i / kVectors][i % kVectors * 8]), &from[i / kVectors][i % kVectors * 8], true);
    }
    __device__ __forceinline__ void load_chunk(int chunk) const {
        if (chunk >= chunks) return;
        Stage& stage = shared.stages[chunk % kConfig.stages()];
        const Record& record = static_cast<const Record*>(args.to.records)[index_of(chunk)];
        copy_rows(stage.key_in, record.key_in);
        copy_rows(stage.key_out, record.key_out);
        constexpr int kMatrixVectors = sizeof(KdaTokenMatrix) / 16;
        if constexpr (kBackward) {
            copy_rows(stage.query_in, record.query_in);
            copy<kMatrixVectors>(&stage.scores, &record.scores);
            copy<kMatrixVectors>(&stage.inverse, &record.inverse_transposed);
        } else {
            copy<kMatrixVectors>(&stage.inverse, &record.inverse);
        }
        copy<kConfig.head_k / 4>(stage.decay, record.decay);
        copy<kKdaTokens / 4>(stage.beta, record.beta);

        constexpr int kVectors = kConfig.rows_per_block() / 8;
        const Io* const from = static_cast<const Io*>(args.value.data) + first_element(args.value, chunk);
        const int tokens = tokens_in(chunk);
        const i64 step = opaque(args.value.token);
#pragma unroll
        for (int i = thread; i < kKdaTokens * kVectors; i += kConfig.threads()) {
            const int token = i / kVectors, row = first_row + i % kVectors * 8;
            const bool exists = token < tokens && row < args.dv;
            cp_async_16_zfill(shared_address(&stage.values[token][i % kVectors * 8]), exists ? from + token * step + row : from,
                              exists);
        }
    }

    // ---- The state in memory

    // The lane's first row.
    __device__ __forceinline__ int matrix_row() const {
        constexpr int kRows = kConfig.rows_per_block();
        return own_row() + g - (has_values() ? 0 : (args.dv + kRows - 1) / kRows * kRows);
    }
    template <class Visit>
    __device__ __forceinline__ void for_each_pair(Visit&& visit) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = matrix_row() + 8 * half;
            const i64 at = static_cast<i64>(row) * args.dk + 2 * t;
            const bool exists = row < (has_values() ? args.dv : args.dk);
#pragma unroll
            for (int n = 0; n < 2 * kSteps; ++n)
                visit(state[n][2 * half], state[n][2 * half + 1], at + 8 * n, exists && 8 * n < args.dk);
        }
    }
    __device__ __forceinline__ float* state_in(const RecurrentStates& states) const {
        if (states.data == nullptr) return nullptr;
        return static_cast<float*>(states.data) + sequence() * states.slot +
               (args.first_head + static_cast<i64>(head())) * states.head;
    }
    __device__ __forceinline__ float* matrix_in(float* matrices, int index, int rows) const {
        return matrices + ((static_cast<i64>(index) * args.sequences + sequence()) * gridDim.y + head()) * rows * args.dk;
    }
    // S or E, or U or N, where the chain enters a segment that is not its first one, and where it leaves one that is not its
    // last.
    __device__ __forceinline__ float* start_of(int segment) const {
        return matrix_in(args.segments.boundaries, kBackward ? segment : segment - 1, args.dv);
    }
    __device__ __forceinline__ float* end_of(int segment) const { return start_of(kBackward ? segment - 1 : segment + 1); }
    __device__ __forceinline__ bool is_first(int segment) const { return segment == (kBackward ? args.segments.count - 1 : 0); }
    __device__ __forceinline__ bool is_last(int segment) const { return segment == (kBackward ? 0 : args.segments.count - 1); }
    __device__ __forceinline__ bool is_wanted() const {
        if (has_values()) return args.segments.values && !is_last(segment);
        return (segment > 0 || args.segments.first) && (segment < args.segments.count - 1 || args.segments.last);
    }
    // Whether all of the block's rows are.
    __device__ __forceinline__ bool is_finite(const float* boundary) const {
        const float* const from = boundary + static_cast<i64>(first_row) * args.dk;
        const int elements = min(kConfig.rows_per_block(), args.dv - first_row) * args.dk;
        float zero = 0.f;
#pragma unroll 4
        for (int i = 4 * thread; i < elements; i += 4 * kConfig.threads()) {
            const float4 each = *reinterpret_cast<const float4*>(from + i);
            zero = fmaf(0.f, each.x, fmaf(0.f, each.y, fmaf(0.f, each.z, fmaf(0.f, each.w, zero))));
        }
        return !__syncthreads_or(zero != 0.f);
    }
    // Finds the block's chunks; false where it has none. No block starts from rows that are not all finite: the one before goes
    // on, as without segments. (M overflows where keys that are not normalised would make states grow, which may be 0.)
    __device__ __forceinline__ bool find_chunks() {
        const KdaBackwardSegments& segments = args.segments;
        const Span span = span_of(args.cu_seqlens, sequence(), args.tokens);
        const int start = segment, every = (span.length + kKdaTokens - 1) / kKdaTokens;
        if (segments.summaries) {
            if (!is_wanted()) return false;
        } else {
            if (!is_first(start) && !is_finite(start_of(start))) return false;
            while (!is_last(segment) && !is_finite(end_of(segment))) segment += kBackward ? -1 : 1;
        }
        const KdaSegment first = kda_segment(every, segments.count, kBackward ? segment : start),
                         last = kda_segment(every, segments.count, kBackward ? start : segment);
        chunks = last.end - first.first;
        const bool packed = args.cu_seqlens.data != nullptr;
        first_index = static_cast<int>(
            head() * args.to.chunks + first_chunk_index(packed, sequence(), span.start, args.tokens, kKdaTokens) + first.first);
        first_token = static_cast<int>(span.start) + first.first * kKdaTokens;
        length = span.length - first.first * kKdaTokens;
        return true;
    }
    // From where the segment `start` is entered.
    __device__ __forceinline__ void load(int start) {
        const float* from = nullptr;
        if (!args.segments.summaries) from = is_first(start) ? state_in(args.initial) : start_of(start);
        for_each_pair([&](float& a, float& b, i64 at, bool exists) {
            const float2 pair = exists && from != nullptr ? *reinterpret_cast<const float2*>(from + at) : float2{};
            a = pair.x;
            b = pair.y;
        });
        if (has_values()) return;
        const int diagonal = matrix_row() - 2 * t;
#pragma unroll
        for (int n = 0; n < 2 * kSteps; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (8 * n + i % 2 == diagonal + i / 2 * 8) state[n][i] = 1.f;
    }
    __device__ __forceinline__ void store_last() {
        float* to = nullptr;
        if (args.segments.summaries)
            to = has_values() ? end_of(segment) : matrix_in(args.segments.transitions, segment, args.dk);
        else if (is_last(segment))
            to = state_in(args.last);
        if (to == nullptr) return;
        for_each_pair([&](float a, float b, i64 at, bool exists) {
            if (exists) *reinterpret_cast<float2*>(to + at) = {a, b};
        });
    }

    // ---- Products

    // x = S (key)^T. Stores S, rounded, with the columns in the order of kda_column_channel; `states`: nullptr, or of all
    // chunks.
    __device__ __forceinline__ void multiply_keys(TokenTile& x, const unsigned short (&key)[kKdaTokens][kConfig.head_k + 8],
                                                  void* states, int chunk) {
        Io* const to = static_cast<Io*>(states) + (index_of(chunk) * args.dv + own_row() + g) * kConfig.head_k;
        const bool stores[2] = {states != nullptr && own_row() + g < args.dv, states != nullptr && own_row() + g + 8 < args.dv};
        const VectorOfLane place = VectorOfLane::crossed(lane);
        const unsigned keys = shared_address(&key[place.row][8 * place.vector]);
        clear(x);
        unsigned left[2][4];
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            unsigned(&own)[4] = left[step % 2];
            as_left<kIo>(own, state[2 * step], state[2 * step + 1]);
            unsigned right[4];
            ldmatrix_x4(right, keys + 32 * step);
            unsigned residual[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float(&pair)[4] = state[2 * step + i / 2];
                residual[i] = pack_residual<kIo>(pair[i % 2 * 2], pair[i % 2 * 2 + 1], own[i]);
            }
            mma_m16n8k16<kIo>(x[0], own, right[0], right[1]);
            mma_m16n8k16<kIo>(x[1], own, right[2], right[3]);
            mma_m16n8k16<kIo>(x[0], residual, right[0], right[1]);
            mma_m16n8k16<kIo>(x[1], residual, right[2], right[3]);
            if (step % 2 == 0) continue;
#pragma unroll
            for (int half = 0; half < 2; ++half)
                if (stores[half])
                    *reinterpret_cast<uint4*>(to + 8 * half * kConfig.head_k + step / 2 * 32 + 8 * t) = {
                        left[0][half], left[0][2 + half], left[1][half], left[1][2 + half]};
        }
    }
    // The warp's rows of the values, transposed: a left operand.
    __device__ __forceinline__ void load_values(unsigned (&values)[4], const Stage& stage) const {
        const VectorOfLane place = VectorOfLane::crossed(lane);
        ldmatrix_x4_trans(values, shared_address(&stage.values[place.row][kMmaWarpRows * warp + 8 * place.vector]));
    }
    // As accumulators: elements 0 and 1, 2 and 3 of a tile are pairs 0 and 1 of it.
    __device__ __forceinline__ static void as_floats(TokenTile& x, const unsigned (&left)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 pair = unpack<kIo>(left[i]);
            x[i / 2][i % 2 * 2] = pair.x;
            x[i / 2][i % 2 * 2 + 1] = pair.y;
        }
    }
    // sums += x matrix, of nearly fp32 accuracy.
    __device__ __forceinline__ void add_product(TokenTile& sums, const TokenTile& x, const KdaTokenMatrix& matrix) const {
        TwoParts left[2][4];
#pragma unroll
        for (int step = 0; step < 2; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) left[step][i] = TwoParts::of(x[step][i % 2 * 2 + i / 2]);
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
            const float4 right = *reinterpret_cast<const float4*>(&matrix.values[128 * tile + 4 * lane]);
            add_product_fp32(sums[tile], left[0], TwoParts::of(right.x), TwoParts::of(right.y));
            add_product_fp32(sums[tile], left[1], TwoParts::of(right.z), TwoParts::of(right.w));
        }
    }
    __device__ __forceinline__ static void clear(TokenTile& x) {
#pragma unroll
        for (auto& tile : x)
#pragma unroll
            for (float& element : tile) element = 0.f;
    }
    __device__ __forceinline__ void scale_by_beta(TokenTile& x, const Stage& stage) const {
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
            const float2 beta = pair_at(&stage.beta[8 * tile + 2 * t]);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                x[tile][2 * half] *= beta.x;
                x[tile][2 * half + 1] *= beta.y;
            }
        }
    }
    __device__ __forceinline__ void decay_state(const Stage& stage) {
#pragma unroll
        for (int n = 0; n < 2 * kSteps; ++n) {
            const float2 decay = pair_at(&stage.decay[8 * n + 2 * t]);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                state[n][2 * half] = decayed(state[n][2 * half], decay.x);
                state[n][2 * half + 1] = decayed(state[n][2 * half + 1], decay.y);
            }
        }
    }
    // S += left rows, for each of the left operands.
    template <int kParts, int kRows>
    __device__ __forceinline__ void add_tokens(const unsigned (&left)[kParts][4],
                                               const unsigned short (&rows)[kRows][kConfig.head_k + 8]) {
        const VectorOfLane place = VectorOfLane::straight(lane);
        const unsigned address = shared_address(&rows[place.row][8 * place.vector]);
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            unsigned right[4];
            ldmatrix_x4_trans(right, address + 32 * step);
#pragma unroll
            for (int part = 0; part < kParts; ++part) {
                mma_m16n8k16<kIo>(state[2 * step], left[part], right[0], right[1]);
                mma_m16n8k16<kIo>(state[2 * step + 1], left[part], right[2], right[3]);
            }
        }
    }
    __device__ __forceinline__ static void in_two_parts(unsigned (&parts)[2][4], const TokenTile& x) {
        as_left<kIo>(parts[0], x[0], x[1]);
#pragma unroll
        for (int i = 0; i < 4; ++i) parts[1][i] = pack_residual<kIo>(x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1], parts[0][i]);
    }

    // Stores a left operand of the warp's rows x tokens as rows of tokens; `to`: of the chunk's first token, at the warp's
    // rows.
    __device__ __forceinline__ void store_tokens(Io* to, i64 stride, int tokens, const unsigned (&left)[4]) const {
        const i64 step = opaque(stride);  // its multiples would be formed before the loop over chunks, and spill
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const unsigned pair = transposed(left[i]);
            const int token = 8 * (i / 2) + g, row = 8 * (i % 2);
            if (token < tokens && own_row() + row < args.dv)
                *reinterpret_cast<unsigned*>(to + token * step + row + 2 * t) = pair;
        }
    }
};

}  // namespace gdn_cuda::gdn
