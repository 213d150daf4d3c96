// gdn/seq_state_update: the state before every chunk and after the last; v' = u - w S^T overwrites u.
//
//     S <- exp(G_C) S + v'^T (exp(G_C - G) k)
//
// Rows of S are independent, so a team of two warps keeps 16 of them in accumulators from the first chunk of a sequence to the
// last, and computes everything transposed: S w^T and v'^T k have S or v' as the left operand, in registers, and w or k as the
// right one, in shared memory. Each warp holds half of the key dimensions. It adds the other warp's partial sums to its own for
// half of the tokens of S w^T, and passes the resulting v' to the other warp, which needs it for its half of the state update.
// cp.async loads w and u of a chunk as soon as a stage is free, then its k. As operands, S is rounded to bf16 and v' is the sum
// of two bf16 parts, because its errors stay in S.
//
// Bound: latency of the products from one chunk to the next; where blocks fill the GPU, memory, mostly the states: 67 % of a
// copy's bandwidth at 8 x 4096 tokens on an H200 (docs/benchmarks/pieces.md).
#pragma once

#include <gdn_cuda/kernels/common/named_barrier.cuh>
#include <gdn_cuda/kernels/gdn/seq_state_update_plan.cuh>

namespace gdn_cuda::gdn {

template <SeqStateUpdateConfig kConfig>
struct SeqStateUpdateBlock {
    using Plan = SeqStateUpdateSharedPlan<kConfig>;
    static constexpr int kThreads = kConfig.teams * 64;
    static constexpr int kKeyTiles = kConfig.head_k / 8 / 2;  // tiles of eight key dimensions that a warp has
    static constexpr int kTilesAtOnce = kKeyTiles < 8 ? kKeyTiles : 8;
    static constexpr int kTokenPairs = kChunk / 16, kOwnPairs = kTokenPairs / 2;  // pairs of tiles of eight tokens
    // How many cp.async groups, of later chunks, may be in flight when w or k of a chunk is needed.
    static constexpr int kLaterCopies = 2 * (kConfig.stages - 1);

    Plan& shared;
    const ChunkArgs& args;
    const SequenceWork& work = shared.work;
    int team, side, lane, g, t;

    float state[kKeyTiles][4] = {};  // 16 rows x half of the key dimensions

    __device__ __forceinline__ SeqStateUpdateBlock(Plan& shared, const ChunkArgs& args) : shared(shared), args(args) {
        find_lane();
    }

    // Recomputed for every chunk: if the compiler hoisted them out of the loop, dozens of addresses would spill.
    __device__ __forceinline__ void find_lane() {
        int thread = threadIdx.x;
        asm volatile("" : "+r"(thread));
        team = thread / 64;
        side = thread / 32 % 2;
        lane = thread % 32;
        g = lane / 4;
        t = lane % 4;
    }

    __device__ __forceinline__ int tokens_in(int chunk) const { return min(kChunk, work.length - chunk * kChunk); }
    template <int kColumns>
    __device__ __forceinline__ void load_chunk_tile(ChunkTile<kColumns>& tile, const void* rows, i64 stride, int chunk,
                                                    int columns) {
        const auto* from = static_cast<const __nv_bfloat16*>(rows) + chunk * (kChunk * stride);
        load_tile<kConfig.aligned, kThreads>(tile, from, stride, tokens_in(chunk), columns);
    }
    __device__ __forceinline__ void load_w_and_u(int chunk) {
        if (chunk < work.chunks) {
            const int stage = chunk % kConfig.stages, thread = threadIdx.x;
            load_chunk_tile(shared.w[stage], work.w, args.w.token, chunk, args.dk);
            load_chunk_tile(shared.value[stage], work.value, args.value.token, chunk, args.dv - work.first_row);
            if (work.gate != nullptr && thread < kChunk) {
                const i64 token =
                    chunk * kChunk + min(thread, tokens_in(chunk) - 1);  // tokens past the end have the last token's gate
                cute::SM80_CP_ASYNC_CACHEALWAYS<float>::copy(work.gate[token * args.gate.token], shared.gate[stage][thread]);
            }
        }
        cp_async_fence();
    }
    __device__ __forceinline__ void load_k(int chunk) {
        if (chunk < work.chunks) load_chunk_tile(shared.key[chunk % kConfig.stages], work.key, args.key.token, chunk, args.dk);
        cp_async_fence();
    }
    __device__ __forceinline__ void clear_gates() {
        for (int i = threadIdx.x; i < kConfig.stages * kChunk; i += kThreads) shared.gate[i / kChunk][i % kChunk] = 0.f;
    }

    // ---- The warp's half of 16 rows of S, in global memory

    __device__ __forceinline__ int row_of(int half) const { return work.first_row + 16 * team + g + 8 * half; }
    __device__ __forceinline__ i64 offset_of(i64 block, int half) const {
        return ((block * args.heads + work.head) * args.dv + row_of(half)) * args.dk + 8 * kKeyTiles * side;
    }

    // How many columns of a row are in the warp's half.
    __device__ __forceinline__ int columns_of(int half) const {
        return row_of(half) < args.dv ? args.dk - 8 * kKeyTiles * side : 0;
    }

    template <class Element>
    __device__ __forceinline__ void load_state(const Element* from, i64 block) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const Element* row = from + offset_of(block, half) + 2 * t;
#pragma unroll
            for (int tile = 0; tile < kKeyTiles; ++tile) {
                Vector<Element, 2, kConfig.aligned> pair;
                pair.clear();
                if (8 * tile < columns_of(half)) pair.load(row + 8 * tile);
                state[tile][2 * half] = pair[0];
                state[tile][2 * half + 1] = pair[1];
            }
        }
    }
    __device__ __forceinline__ void load_state(i64 block) {
        if (args.states_type == DType::f32)
            load_state(static_cast<const float*>(args.states), block);
        else
            load_state(static_cast<const __nv_bfloat16*>(args.states), block);
    }

    // Stores the state before a chunk or, with chunk == work.chunks, after the last.
    __device__ __forceinline__ void store_state(int chunk) const {
        const bool after = chunk == work.chunks;
        if (after ? !args.has_final : work.first_chunk + chunk >= args.state_chunks) return;
        void* to = after ? args.final_state : args.states;
        const i64 block = after ? work.sequence : work.first_chunk + chunk;
        if ((after ? args.final_type : args.states_type) == DType::f32)
            store_fp32(static_cast<float*>(to), block);
        else
            store_bf16(static_cast<__nv_bfloat16*>(to), block);
    }
    // Adjacent lanes exchange values, so that each holds four columns of one of two tiles: 64 contiguous bytes per row.
    __device__ __forceinline__ void store_fp32(float* to, i64 block) const {
        const int odd = t % 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float* row = to + offset_of(block, half) + 8 * odd + t / 2 * 4;
#pragma unroll
            for (int tile = 0; tile < kKeyTiles; tile += 2) {
                Vector<float, 4, kConfig.aligned> four;
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float even_tile = state[tile][2 * half + i], odd_tile = state[tile + 1][2 * half + i];
                    const float other = __shfl_xor_sync(0xffffffffu, odd ? even_tile : odd_tile, 1);
                    four.set(i, odd ? other : even_tile);
                    four.set(2 + i, odd ? odd_tile : other);
                }
                if (8 * (tile + odd) < columns_of(half)) four.store_global(row + 8 * tile);
            }
        }
    }
    __device__ __forceinline__ void store_bf16(__nv_bfloat16* to, i64 block) const {
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int first = 0; first < kKeyTiles; first += 4) {
                unsigned eight[4];
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    eight[i] = pack<DType::bf16>(state[first + i][2 * half], state[first + i][2 * half + 1]);
                transpose_quad(eight);
                const int column = 8 * (first + t);
                if (column < columns_of(half)) store_piece<kConfig.aligned>(to + offset_of(block, half) + column, eight);
            }
    }

    // ---- One chunk

    // The first token of a pair of tiles; the warp's own pairs come first.
    __device__ __forceinline__ int tokens_of(int pair) const { return 16 * ((kOwnPairs * side + pair) % kTokenPairs); }
    // 16 bytes that this lane exchanges with the same lane of the team's other warp.
    __device__ __forceinline__ uint4& exchange(int side, int at) {
        return *reinterpret_cast<uint4*>(shared.exchange[team][side][at][lane]);
    }

    // Adds S w^T of half of the tokens, summed over the warp's half of the key dimensions.
    using Products = float[2 * kOwnPairs][4];
    __device__ __forceinline__ void multiply(Products& products, int stage, int first_pair) const {
        const PiecesFrom pieces(shared.w[stage], VectorOfLane::crossed(lane), tokens_of(first_pair), kKeyTiles * side);
#pragma unroll
        for (int step = 0; step < kKeyTiles / 2; ++step) {
            unsigned rows[4];
            as_left<DType::bf16>(rows, state[2 * step], state[2 * step + 1]);
#pragma unroll
            for (int pair = 0; pair < kOwnPairs; ++pair) {
                unsigned w[4];
                ldmatrix_x4(w, pieces.at(16 * pair, 2 * step));
                mma_m16n8k16<DType::bf16>(products[2 * pair], rows, w[0], w[1]);
                mma_m16n8k16<DType::bf16>(products[2 * pair + 1], rows, w[2], w[3]);
            }
        }
    }
    // Computes S w^T of the warp's tokens. The partial sums that the other warp waits for come first.
    __device__ __forceinline__ void predict(Products& predicted, int stage) {
        Products for_other = {};
        multiply(for_other, stage, kOwnPairs);
#pragma unroll
        for (int tile = 0; tile < 2 * kOwnPairs; ++tile)
            exchange(1 - side, tile) = reinterpret_cast<const uint4&>(for_other[tile]);
        multiply(predicted, stage, 0);
        named_barrier_sync(64, 1 + team);
#pragma unroll
        for (int tile = 0; tile < 2 * kOwnPairs; ++tile) {
            const uint4 other = exchange(side, tile);
            predicted[tile][0] += __uint_as_float(other.x);
            predicted[tile][1] += __uint_as_float(other.y);
            predicted[tile][2] += __uint_as_float(other.z);
            predicted[tile][3] += __uint_as_float(other.w);
        }
    }

    // Where exp(G) is 0, the state's contribution is set to 0: 0 times infinity would be NaN.
    __device__ __forceinline__ void clear_reset_products(Products& predicted, int stage) const {
#pragma unroll
        for (int tile = 0; tile < 2 * kOwnPairs; ++tile) {
            const float2 gate = *reinterpret_cast<const float2*>(&shared.gate[stage][tokens_of(0) + 8 * tile + 2 * t]);
            if (exp_fast(gate.x) == 0.f) predicted[tile][0] = predicted[tile][2] = 0.f;
            if (exp_fast(gate.y) == 0.f) predicted[tile][1] = predicted[tile][3] = 0.f;
        }
    }
    // Masks out the halves of a packed pair whose factor exp(G_C - G) is 0, for the same reason.
    static __device__ __forceinline__ unsigned nonzero_mask(float2 kept) {
        return (kept.x == 0.f ? 0u : 0xffffu) | (kept.y == 0.f ? 0u : 0xffff0000u);
    }

    // Computes v' of the team's value dimensions and the warp's tokens. v' overwrites u in shared memory; exp(G_C - G) v' goes,
    // in two parts, as left operands to the exchange buffer.
    __device__ __forceinline__ void form_values(int stage) {
        const int token_of_lane = tokens_of(0) + lane;
        const float end = finite_sum(shared.gate[stage][kChunk - 1]);
        const bool resets = exp_fast(end) == 0.f;
        shared.kept[team][token_of_lane] = exp_fast(end - finite_sum(shared.gate[stage][token_of_lane]));
        Products predicted = {};
        predict(predicted, stage);
        if (resets) clear_reset_products(predicted, stage);
        const PiecesFrom u_pieces(shared.value[stage], VectorOfLane::crossed(lane), tokens_of(0), 2 * team);
        const PiecesFrom v_pieces(shared.value[stage], tokens_of(0) + g, 2 * team);
#pragma unroll
        for (int pair = 0; pair < kOwnPairs; ++pair) {
            unsigned u[4];  // two tiles of tokens; of each, value dimensions g and g + 8 of tokens 2 t and 2 t + 1
            unsigned high[4], rest[4];
            ldmatrix_x4_trans(u, u_pieces.at(16 * pair, 0));
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const int token = 16 * pair + 8 * n;
                const float2 kept = *reinterpret_cast<const float2*>(&shared.kept[team][tokens_of(0) + token + 2 * t]);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int i = 2 * n + half;
                    const float2 before = unpack<DType::bf16>(u[i]);
                    const float* product = &predicted[2 * pair + n][2 * half];
                    const float2 value{before.x - product[0], before.y - product[1]};
                    store_shared(v_pieces.at(token, half) + 4 * t, transposed(pack<DType::bf16>(value.x, value.y)));
                    const float2 factor{value.x * kept.x, value.y * kept.y};
                    high[i] = pack<DType::bf16>(factor.x, factor.y);
                    rest[i] = pack_residual<DType::bf16>(factor.x, factor.y, high[i]);
                    if (!resets) continue;
                    high[i] &= nonzero_mask(kept);
                    rest[i] &= nonzero_mask(kept);
                }
            }
            exchange(side, 2 * pair) = {high[0], high[1], high[2], high[3]};
            exchange(side, 2 * pair + 1) = {rest[0], rest[1], rest[2], rest[3]};
        }
    }
    // Two lanes store 32 bytes of each token.
    __device__ __forceinline__ void store_values(int chunk) const {
        const int column = work.first_row + 16 * team + lane % 2 * 8;
        if (column >= args.dv) return;
        const PiecesFrom pieces(shared.value[chunk % kConfig.stages], tokens_of(0) + lane / 2, 2 * team + lane % 2);
        __nv_bfloat16* rows = static_cast<__nv_bfloat16*>(work.value) +
                              (chunk * kChunk + tokens_of(0) + lane / 2) * args.value.token + 16 * team + lane % 2 * 8;
#pragma unroll
        for (int pair = 0; pair < kOwnPairs; ++pair) {
            if (tokens_of(pair) + lane / 2 >= tokens_in(chunk)) break;
            const uint4 eight = load_shared(pieces.at(16 * pair, 0));
            store_piece<kConfig.aligned>(rows + 16 * pair * args.value.token, {eight.x, eight.y, eight.z, eight.w});
        }
    }

    __device__ __forceinline__ void update(int stage, float kept) {
        if (kept != 0.f) {
#pragma unroll
            for (auto& tile : state)
#pragma unroll
                for (float& x : tile) x *= kept;
        } else {
#pragma unroll
            for (auto& tile : state)
#pragma unroll
                for (float& x : tile) x = 0.f;
        }
        const PiecesFrom keys(shared.key[stage], VectorOfLane::straight(lane), 0, kKeyTiles * side);
#pragma unroll
        for (int step = 0; step < kTokenPairs; ++step) {
            const int owner = step / kOwnPairs, at = 2 * (step % kOwnPairs);
            const uint4 parts[2] = {exchange(owner, at + 1), exchange(owner, at)};  // the small part first
#pragma unroll
            for (int first = 0; first < kKeyTiles; first += kTilesAtOnce) {
                unsigned key[kTilesAtOnce / 2][4];
#pragma unroll
                for (int pair = 0; pair < kTilesAtOnce / 2; ++pair)
                    ldmatrix_x4_trans(key[pair], keys.at(16 * step, first + 2 * pair));
#pragma unroll
                for (const uint4& part : parts) {  // all tiles for each part: consecutive MMAs on one accumulator stall
                    const unsigned left[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
                    for (int n = 0; n < kTilesAtOnce; ++n)
                        mma_m16n8k16<DType::bf16>(state[first + n], left, key[n / 2][n % 2 * 2], key[n / 2][n % 2 * 2 + 1]);
                }
            }
        }
    }

    __device__ __forceinline__ void run() {
        if (work.gate == nullptr) clear_gates();
        for (int chunk = 0; chunk < kConfig.stages; ++chunk) {
            if (chunk > 0) load_k(chunk - 1);
            load_w_and_u(chunk);
        }
        if (args.has_initial && work.chunks > 0 && work.first_chunk < args.state_chunks) load_state(work.first_chunk);

#pragma unroll 1
        for (int chunk = 0;; ++chunk) {
            const int stage = chunk % kConfig.stages;
            find_lane();
            cp_async_wait<kLaterCopies>();
            __syncthreads();  // w and u have arrived, and k of the last chunk is no longer read
            load_k(chunk + kConfig.stages - 1);
            store_state(chunk);
            if (chunk == work.chunks) return;
            form_values(stage);
            const float kept = exp_fast(shared.gate[stage][kChunk - 1]);
            __syncwarp();
            store_values(chunk);
            cp_async_wait<kLaterCopies>();
            __syncthreads();  // k has arrived, and w and u are no longer read
            load_w_and_u(chunk + kConfig.stages);
            update(stage, kept);
        }
    }
};

template <SeqStateUpdateConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_per_multiprocessor())
    seq_state_update(const __grid_constant__ ChunkArgs args) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<SeqStateUpdateSharedPlan<kConfig>*>(memory);
    static_assert(sizeof(shared) <= kSharedBytesEverywhere);

    if (threadIdx.x < 32) {
        const int head = static_cast<int>(blockIdx.x % args.heads), sequence = static_cast<int>(blockIdx.x / args.heads);
        const Span span = span_of(args.cu_seqlens, sequence, args.tokens);
        const i64 first_chunk = first_chunk_of(args, sequence);
        const int first_row = static_cast<int>(blockIdx.y) * kConfig.teams * 16;
        const ChunkPlace place{sequence, 0, span.start, span.length};
        if (threadIdx.x == 0)
            shared.work = {
                .w = rows_at(args.w, place, head),
                .key = rows_at(args.key, place, head / args.heads_per_key),
                .value = rows_at(args.value, place, head) + first_row,
                .gate = args.gate.values.data == nullptr ? nullptr : gate_at(args.gate, place, head, 1, 0),
                .first_chunk = first_chunk,
                .length = span.length,
                .chunks = chunks_of(span),
                .sequence = sequence,
                .head = head,
                .first_row = first_row,
            };
    }
    __syncthreads();
    SeqStateUpdateBlock<kConfig>(shared, args).run();
}

}  // namespace gdn_cuda::gdn
