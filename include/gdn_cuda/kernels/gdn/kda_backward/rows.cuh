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
    int sequence, head, first_row, chunks;  // head: of the group's
    Span span;
    i64 first_index;

    float state[2 * kSteps][4];

    __device__ __forceinline__ KdaRows(KdaChainPlan<kConfig>& shared, const KdaBackwardStatesArgs& args)
        : shared(shared),
          args(args),
          sequence(static_cast<int>(blockIdx.z)),
          head(static_cast<int>(blockIdx.y)),
          first_row(static_cast<int>(blockIdx.x) * kConfig.rows_per_block()),
          span(span_of(args.cu_seqlens, sequence, args.tokens)) {
        chunks = (span.length + kKdaTokens - 1) / kKdaTokens;
        const bool packed = args.cu_seqlens.data != nullptr;
        first_index = head * args.to.chunks + first_chunk_index(packed, sequence, span.start, args.tokens, kKdaTokens);
    }
    __device__ __forceinline__ int own_row() const { return first_row + kMmaWarpRows * warp; }
    __device__ __forceinline__ int in_time(int chunk) const { return kBackward ? chunks - 1 - chunk : chunk; }
    __device__ __forceinline__ int tokens_in(int chunk) const {
        return min(kKdaTokens, span.length - in_time(chunk) * kKdaTokens);
    }
    // The element of a row tensor at a chunk's first token and row 0 of the value.
    __device__ __forceinline__ i64 first_element(const Rows& rows, int chunk) const {
        const i64 batch = args.cu_seqlens.data != nullptr ? 0 : sequence;
        return batch * rows.batch + (span.start + in_time(chunk) * kKdaTokens) * rows.token +
               (args.first_head + static_cast<i64>(head)) * rows.head;
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
        const Record& record = static_cast<const Record*>(args.to.records)[first_index + in_time(chunk)];
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
#pragma unroll
        for (int i = thread; i < kKdaTokens * kVectors; i += kConfig.threads()) {
            const int token = i / kVectors, row = first_row + i % kVectors * 8;
            const bool exists = token < tokens && row < args.dv;
            cp_async_16_zfill(shared_address(&stage.values[token][i % kVectors * 8]),
                              exists ? from + token * args.value.token + row : from, exists);
        }
    }

    // ---- The state in memory

    template <class Visit>
    __device__ __forceinline__ void for_each_pair(Visit&& visit) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = own_row() + g + 8 * half;
            const i64 at = static_cast<i64>(row) * args.dk + 2 * t;
#pragma unroll
            for (int n = 0; n < 2 * kSteps; ++n)
                visit(state[n][2 * half], state[n][2 * half + 1], at + 8 * n, row < args.dv && 8 * n < args.dk);
        }
    }
    __device__ __forceinline__ float* state_in(const RecurrentStates& states) const {
        return static_cast<float*>(states.data) + sequence * states.slot +
               (args.first_head + static_cast<i64>(head)) * states.head;
    }
    __device__ __forceinline__ void load() {
        if (args.initial.data == nullptr) {
            for_each_pair([](float& a, float& b, i64, bool) { a = b = 0.f; });
            return;
        }
        const float* const from = state_in(args.initial);
        for_each_pair([&](float& a, float& b, i64 at, bool exists) {
            const float2 pair = exists ? *reinterpret_cast<const float2*>(from + at) : float2{};
            a = pair.x;
            b = pair.y;
        });
    }
    __device__ __forceinline__ void store_last() {
        if (args.last.data == nullptr) return;
        float* const to = state_in(args.last);
        for_each_pair([&](float a, float b, i64 at, bool exists) {
            if (exists) *reinterpret_cast<float2*>(to + at) = {a, b};
        });
    }

    // ---- Products

    // x = S (key)^T. Stores S, rounded, with the columns in the order of kda_column_channel; `states`: nullptr, or of all
    // chunks.
    __device__ __forceinline__ void multiply_keys(TokenTile& x, const unsigned short (&key)[kKdaTokens][kConfig.head_k + 8],
                                                  void* states, int chunk) {
        Io* const to = static_cast<Io*>(states) + ((first_index + in_time(chunk)) * args.dv + own_row() + g) * kConfig.head_k;
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
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const unsigned pair = transposed(left[i]);
            const int token = 8 * (i / 2) + g, row = 8 * (i % 2);
            if (token < tokens && own_row() + row < args.dv)
                *reinterpret_cast<unsigned*>(to + token * stride + row + 2 * t) = pair;
        }
    }
};

}  // namespace gdn_cuda::gdn
