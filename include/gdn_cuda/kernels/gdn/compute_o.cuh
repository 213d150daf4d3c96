// gdn/compute_o: the outputs of every chunk from the state before it.
//
//     o = scale (exp(G) q S^T + P v')      P_ij = (q_i.k_j) exp(G_i - G_j) for i >= j, else 0
//
// A block computes one chunk of one value head, up to 128 value dimensions. A warp computes 16 rows of P and puts them into
// shared memory, then the outputs of a quarter of the value dimensions for all tokens. Only one warp uses a row of S, so S goes
// from global memory straight into operand registers, eight elements per lane, loaded one step ahead. The order of key
// dimensions within a product is free: the eight contiguous elements of lane t are columns 2 t and 2 t + 1 of the operands of
// two MMAs, and queries are read in the same order.
//
// Bound: memory, mostly the states; 81 % of a copy's bandwidth at 8 x 4096 tokens on an H200 (docs/benchmarks/pieces.md).
#pragma once

#include <gdn_cuda/kernels/gdn/compute_o_plan.cuh>

namespace gdn_cuda::gdn {

template <ComputeOConfig kConfig>
struct ComputeOBlock {
    using Plan = ComputeOSharedPlan<kConfig>;
    using Element = Storage<kConfig.state>;
    static constexpr int kRowBlocks = kChunk / 16;
    static constexpr int kTiles = kConfig.kValueColumns / 8 / 4;  // tiles of eight value dimensions that a warp has
    static constexpr int kKeysAtOnce = 32;

    Plan& shared;
    const int columns;  // value dimensions left
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

    __device__ __forceinline__ ComputeOBlock(Plan& shared, int columns) : shared(shared), columns(columns) {}

    // Warps have pairs of tiles in turn, so that few value dimensions are spread evenly over them.
    __device__ __forceinline__ int column_of(int tile) const { return 16 * (warp + tile / 2 * 4) + tile % 2 * 8; }

    __device__ __forceinline__ void form_scores() const {
        RowOfBlocks products = {};
        add_token_products(products, shared.query, shared.key, warp, lane);
        __syncthreads();  // all warps are done with keys; scores alias them
        const PiecesFrom scores(shared.scores, 16 * warp + g, 0);
        const float gate[2] = {shared.gate[16 * warp + g], shared.gate[16 * warp + g + 8]};
#pragma unroll
        for (int column = 0; column < kRowBlocks; ++column) {
            if (column > warp) break;
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const int token = 16 * column + 8 * n + 2 * t;
                const float2 before = *reinterpret_cast<const float2*>(&shared.gate[token]);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int row = 16 * warp + g + 8 * half;
                    const float x = products[column][n][2 * half] * exp_fast(gate[half] - before.x);
                    const float y = products[column][n][2 * half + 1] * exp_fast(gate[half] - before.y);
                    store_shared(scores.at(8 * half, 2 * column + n) + 4 * t,
                                 pack<DType::bf16>(row >= token ? x : 0.f, row > token ? y : 0.f));
                }
            }
        }
    }

    // Eight contiguous elements of a row of S for each of the warp's tiles.
    struct StatePart {
        Vector<Element, 8, kConfig.aligned> tiles[kTiles];
    };
    __device__ __forceinline__ void load_state_part(StatePart& part, const Element* state, int rows_left, int dk,
                                                    int first_key) const {
        const int key = first_key + 8 * t;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            const int row = column_of(tile) + g;
            if (row < rows_left && key < dk)
                part.tiles[tile].load_streaming(state + static_cast<i64>(row) * dk + key);
            else
                part.tiles[tile].clear();
        }
    }
    static __device__ __forceinline__ void as_operand(unsigned (&pairs)[4], const Vector<Element, 8, kConfig.aligned>& eight) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if constexpr (kConfig.state == DType::bf16 && kConfig.aligned)
                pairs[i] = reinterpret_cast<const unsigned*>(eight.items)[i];
            else
                pairs[i] = pack<DType::bf16>(eight[2 * i], eight[2 * i + 1]);
    }

    using Sums = float[kRowBlocks][kTiles][4];

    __device__ __forceinline__ void add_from_state(Sums& sums, const StatePart& part, int first_key) const {
        unsigned right[kTiles][4];
        const PiecesFrom queries(shared.query, g, t);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) as_operand(right[tile], part.tiles[tile]);
#pragma unroll
        for (int block = 0; block < kRowBlocks; ++block) {
            const uint4 upper = load_shared(queries.at(16 * block, first_key / 8));
            const uint4 lower = load_shared(queries.at(16 * block + 8, first_key / 8));
            const unsigned first[4] = {upper.x, lower.x, upper.y, lower.y}, second[4] = {upper.z, lower.z, upper.w, lower.w};
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile) {
                if (column_of(tile) >= columns) break;
                mma_m16n8k16<DType::bf16>(sums[block][tile], first, right[tile][0], right[tile][1]);
                mma_m16n8k16<DType::bf16>(sums[block][tile], second, right[tile][2], right[tile][3]);
            }
        }
    }

    // Where exp(G) is 0, the state's contribution is set to 0: 0 times infinity would be NaN.
    __device__ __forceinline__ void decay(Sums& sums) const {
#pragma unroll
        for (int block = 0; block < kRowBlocks; ++block)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float kept = shared.kept[16 * block + g + 8 * half];
#pragma unroll
                for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
                    for (int i = 2 * half; i < 2 * half + 2; ++i)
                        sums[block][tile][i] = kept == 0.f ? 0.f : kept * sums[block][tile][i];
            }
    }

    // ---- Gates, and chunks with resets

    // One thread per token. The caller syncs before `gate` is read.
    __device__ __forceinline__ void store_gate(int token, float gate, float gate_before) const {
        shared.gate[token] = gate;
        shared.kept[token] = exp_fast(gate);
        const unsigned resets = __ballot_sync(0xffffffffu, exp_fast(gate - gate_before) == 0.f);
        if (token % 32 == 0) {
            shared.resets[token / 32] = resets;
            shared.nonfinite[token / 32] = 0;
        }
    }
    __device__ __forceinline__ bool has_resets() const { return (shared.resets[0] | shared.resets[1]) != 0; }

    static __device__ __forceinline__ unsigned long long bits_of(const unsigned (&words)[kChunk / 32]) {
        return static_cast<unsigned long long>(words[1]) << 32 | words[0];
    }

    // Replaces v' that are not finite by zeros, and marks their tokens.
    __device__ __forceinline__ void clear_nonfinite_values() const {
        constexpr int kPieces = ChunkTile<kConfig.kValueColumns>::kPieces;
        constexpr unsigned kExponent = 0x7f80u;  // all of a bf16's exponent is set if it is not finite
#pragma unroll 1
        for (int i = threadIdx.x; i < kChunk * kPieces; i += kConfig.kThreads) {
            const int token = i / kPieces;
            const unsigned at = piece_at(shared.value, token, i % kPieces);
            uint4 eight = load_shared(at);
            unsigned kept[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
            for (unsigned& pair : kept) {
                if ((pair & kExponent) == kExponent) pair &= 0xffff0000u;
                if ((pair >> 16 & kExponent) == kExponent) pair &= 0xffffu;
            }
            if (kept[0] == eight.x && kept[1] == eight.y && kept[2] == eight.z && kept[3] == eight.w) continue;
            store_shared(at, uint4{kept[0], kept[1], kept[2], kept[3]});
            atomicOr(&shared.nonfinite[token / 32], 1u << token % 32);
        }
    }

    // Nothing before a reset may reach a token after it. But from a token that is not finite to the next reset all outputs are
    // NaN: there exp(G), which scales the sums from the state, becomes NaN. The whole block calls.
    __device__ __forceinline__ void apply_resets() const {
        clear_nonfinite_values();
        __syncthreads();
        if (const int token = threadIdx.x; token < kChunk) {
            const unsigned long long nonfinite = bits_of(shared.nonfinite), until = (2ull << token) - 1;
            const unsigned long long resets = bits_of(shared.resets) & until;
            const unsigned long long since = resets == 0 ? until : until & -(1ull << (63 - __clzll(resets)));
            if ((nonfinite & since) != 0) shared.kept[token] = quiet_nan();
        }
        __syncthreads();
    }

    __device__ __forceinline__ void add_from_values(Sums& sums) const {
        const PiecesFrom values(shared.value, VectorOfLane::straight(lane), 0, column_of(0) / 8);
        const PiecesFrom rows(shared.scores, VectorOfLane::straight(lane), 0, 0);
#pragma unroll
        for (int step = 0; step < kRowBlocks; ++step) {
            unsigned right[kTiles / 2][4];
#pragma unroll
            for (int pair = 0; pair < kTiles / 2; ++pair)
                ldmatrix_x4_trans(right[pair],
                                  values.at(16 * step, 8 * pair));  // the warp's pairs of tiles are 64 columns apart
#pragma unroll
            for (int block = step; block < kRowBlocks; ++block) {
                unsigned scores[4];
                ldmatrix_x4(scores, rows.at(16 * block, 2 * step));
#pragma unroll
                for (int tile = 0; tile < kTiles; ++tile) {
                    if (column_of(tile) >= columns) break;
                    const auto& pair = right[tile / 2];
                    mma_m16n8k16<DType::bf16>(sums[block][tile], scores, pair[tile % 2 * 2], pair[tile % 2 * 2 + 1]);
                }
            }
        }
    }

    __device__ __forceinline__ void store(const Sums& sums, float scale, __nv_bfloat16* rows, i64 stride, int count) const {
        static_assert(kTiles == 4);  // as transpose_quad has
#pragma unroll
        for (int block = 0; block < kRowBlocks; ++block)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                unsigned eight[kTiles];
#pragma unroll
                for (int tile = 0; tile < kTiles; ++tile)
                    eight[tile] =
                        pack<DType::bf16>(scale * sums[block][tile][2 * half], scale * sums[block][tile][2 * half + 1]);
                transpose_quad(eight);
                const int row = 16 * block + g + 8 * half, column = column_of(t);
                if (row < count && column < columns) store_piece<kConfig.aligned>(rows + row * stride + column, eight);
            }
    }
};

template <ComputeOConfig kConfig>
__global__ void __launch_bounds__(kConfig.kThreads, kConfig.blocks_per_multiprocessor())
    compute_o(const __grid_constant__ ChunkArgs args) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<ComputeOSharedPlan<kConfig>*>(memory);
    static_assert(sizeof(shared) <= kSharedBytesEverywhere);
    using Block = ComputeOBlock<kConfig>;

    const int head = static_cast<int>(blockIdx.x % args.heads), key_head = head / args.heads_per_key;
    const int chunk = static_cast<int>(blockIdx.x / args.heads);
    const ChunkPlace place = find_chunk(args, chunk);
    if (place.sequence < 0) return;
    const int count = min(kChunk, place.length - place.first), first = static_cast<int>(blockIdx.y) * kConfig.kValueColumns;
    const Block block(shared, args.dv - first);

    const auto load_rows = [&](auto& tile, const Rows& rows, const __nv_bfloat16* from, int columns) {
        load_tile<kConfig.aligned, kConfig.kThreads>(tile, from, rows.token, count, columns);
    };
    load_rows(shared.query, args.query, rows_at(args.query, place, key_head), args.dk);
    load_rows(shared.key, args.key, rows_at(args.key, place, key_head), args.dk);
    cp_async_fence();
    load_rows(shared.value, args.value, rows_at(args.value, place, head) + first, args.dv - first);
    cp_async_fence();
    const auto* state = static_cast<const typename Block::Element*>(args.states) +
                        ((static_cast<i64>(chunk) * args.heads + head) * args.dv + first) * args.dk;
    typename Block::StatePart part, next;
    block.load_state_part(part, state, args.dv - first, args.dk, 0);
    if (const int token = threadIdx.x; token < kChunk)
        block.store_gate(token, gate_of(args.gate, place, head, count, token),
                         token == 0 ? 0.f : gate_of(args.gate, place, head, count, token - 1));
    cp_async_wait<1>();
    __syncthreads();

    block.form_scores();
    typename Block::Sums sums = {};
#pragma unroll
    for (int key = 0; key < kConfig.head_k; key += Block::kKeysAtOnce) {
        const int following = key + Block::kKeysAtOnce;
        if (following < kConfig.head_k) block.load_state_part(next, state, args.dv - first, args.dk, following);
        block.add_from_state(sums, part, key);
        part = next;
    }
    cp_async_wait<0>();
    __syncthreads();
    if (block.has_resets()) block.apply_resets();
    block.decay(sums);
    block.add_from_values(sums);
    block.store(sums, args.scale, rows_at(args.output, place, head) + first, args.output.token, count);
}

}  // namespace gdn_cuda::gdn
