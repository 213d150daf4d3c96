// gdn/compute_u_w: u = T (beta v) and w = T (beta exp(G) k) of every chunk, from bf16 keys and values.
//
//     T = (I + A)^-1      A_ij = beta_i (k_i.k_j) exp(G_i - G_j) for i > j, else 0
//
// G may be -inf (finite_sum).
//
// A block computes one chunk of one value head, each warp 16 of its tokens: their rows of A on tensor cores, their rows of T
// together with the other warps (chunk_inverse.cuh), then their rows of u and w. beta and exp(G) scale the columns of T, so k
// and v are multiplied unscaled. T is the sum of two bf16 matrices, `high` and `residual`: where keys repeat, the terms of w
// cancel, and one rounding of T would cost ten times the rounding of w. Later rows of T are longer, so the rows of a warp
// rotate from block to block: no SM sub-partition gets all the long ones.
//
// Bound: memory. k, v, u and w are read or written once, as value heads that share keys are adjacent in the grid. 54 % of a
// copy's bandwidth at 8 x 4096 tokens on an H200 (docs/benchmarks/pieces.md): the inversion takes long.
#pragma once

#include <gdn_cuda/kernels/gdn/compute_u_w_plan.cuh>

namespace gdn_cuda::gdn {

template <ComputeUWConfig kConfig>
struct ComputeUWBlock {
    using Plan = ComputeUWSharedPlan<kConfig>;
    static constexpr int kRowBlocks = kChunk / 16;
    static constexpr int kColumnsAtOnce = 32;

    Plan& shared;
    const ChunkPlace place;
    const int count;      // tokens in the chunk
    const int row_block;  // the warp's rows are tokens 16 row_block to 16 row_block + 15
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

    __device__ __forceinline__ ComputeUWBlock(Plan& shared, const ChunkPlace& place)
        : shared(shared),
          place(place),
          count(min(kChunk, place.length - place.first)),
          row_block((threadIdx.x / 32 + blockIdx.x) % kRowBlocks) {}

    // Tokens past the end have beta 0: their rows of A are zero, so they do not affect other tokens.
    __device__ __forceinline__ void load_scalars(const ChunkArgs& args, int head) {
        const int token = threadIdx.x;
        if (token >= kChunk) return;
        const float gate = gate_of(args.gate, place, head, count, token);
        const float beta = token < count ? load_float(args.beta.values, scalar_at(args.beta, place, head, token)) : 0.f;
        shared.gate[token] = gate;
        shared.beta[token] = beta;
        shared.decayed_beta[token] = beta * exp_fast(gate);
    }

    // Computes the warp's row of blocks of A.
    __device__ __forceinline__ void form_row() {
        RowOfBlocks products = {};
        add_token_products(products, shared.key, shared.key, row_block, lane);
        const int row = 16 * row_block + g;
        const float gate[2] = {shared.gate[row], shared.gate[row + 8]};
        const float beta[2] = {shared.beta[row], shared.beta[row + 8]};
#pragma unroll
        for (int column = 0; column < kRowBlocks; ++column) {
            if (column > row_block) break;
            auto& block = shared.triangle.block(row_block, column);
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const float2 before = *reinterpret_cast<const float2*>(&shared.gate[16 * column + 8 * n + 2 * t]);
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    *reinterpret_cast<float2*>(&block.at[g + 8 * half][8 * n + 2 * t]) = {
                        beta[half] * products[column][n][2 * half] * exp_fast(gate[half] - before.x),
                        beta[half] * products[column][n][2 * half + 1] * exp_fast(gate[half] - before.y)};
            }
        }
    }

    // The warp's rows of T diag(factors) as left operands.
    struct Inverse {
        unsigned high[kRowBlocks][4], residual[kRowBlocks][4];
    };
    __device__ __forceinline__ void load_inverse(Inverse& inverse, const float (&factors)[kChunk]) const {
#pragma unroll
        for (int column = 0; column < kRowBlocks; ++column) {
            if (column > row_block) break;
            const auto& block = shared.triangle.block(row_block, column);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = i / 2 * 8 + 2 * t;
                const float2 x = *reinterpret_cast<const float2*>(&block.at[g + i % 2 * 8][at]);
                const float2 factor = *reinterpret_cast<const float2*>(&factors[16 * column + at]);
                inverse.high[column][i] = pack<DType::bf16>(x.x * factor.x, x.y * factor.y);
                inverse.residual[column][i] =
                    pack_residual<DType::bf16>(x.x * factor.x, x.y * factor.y, inverse.high[column][i]);
            }
        }
    }

    // Stores the product of the warp's rows of T and a tile to `rows`.
    template <int kColumns>
    __device__ __forceinline__ void multiply(const Inverse& inverse, const ChunkTile<kColumns>& tile, __nv_bfloat16* rows,
                                             i64 stride, int columns) const {
        const VectorsFrom from(tile, VectorOfLane::straight(lane), 0, 0);
#pragma unroll 1
        for (int first = 0; first < min(kColumns, columns); first += kColumnsAtOnce) {
            float sums[4][4] = {};
#pragma unroll
            for (int step = 0; step < kRowBlocks; ++step) {
                if (step > row_block) break;
                unsigned right[2][4];
#pragma unroll
                for (int pair = 0; pair < 2; ++pair) ldmatrix_x4_trans(right[pair], from.at(16 * step, first / 8 + 2 * pair));
#pragma unroll
                for (int part = 0; part < 2; ++part)  // all tiles for each part: consecutive MMAs on one accumulator stall
#pragma unroll
                    for (int n = 0; n < 4; ++n)
                        mma_m16n8k16<DType::bf16>(sums[n], part == 0 ? inverse.residual[step] : inverse.high[step],
                                                  right[n / 2][n % 2 * 2], right[n / 2][n % 2 * 2 + 1]);
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                unsigned eight[4];
#pragma unroll
                for (int n = 0; n < 4; ++n) eight[n] = pack<DType::bf16>(sums[n][2 * half], sums[n][2 * half + 1]);
                transpose_quad(eight);
                const int row = 16 * row_block + g + 8 * half, column = first + 8 * t;
                if (row < count && column < columns) store_vector<kConfig.aligned>(rows + row * stride + column, eight);
            }
        }
    }
};

template <ComputeUWConfig kConfig>
__global__ void __launch_bounds__(kConfig.kThreads, kConfig.head_k <= 128 ? 4 : 1)
    compute_u_w(const __grid_constant__ ChunkArgs args) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<ComputeUWSharedPlan<kConfig>*>(memory);
    static_assert(sizeof(shared) <= kSharedBytesEverywhere);

    const int head = static_cast<int>(blockIdx.x % args.heads);
    const ChunkPlace place = find_chunk(args, static_cast<int>(blockIdx.x / args.heads));
    if (place.sequence < 0) return;
    ComputeUWBlock<kConfig> block(shared, place);
    const auto load_values = [&](int first) {
        load_tile<kConfig.aligned, kConfig.kThreads>(shared.value, rows_at(args.value, place, head) + first, args.value.token,
                                                     block.count, args.dv - first);
        cp_async_fence();
    };

    load_tile<kConfig.aligned, kConfig.kThreads>(shared.key, rows_at(args.key, place, head / args.heads_per_key),
                                                 args.key.token, block.count, args.dk);
    cp_async_fence();
    load_values(0);
    block.load_scalars(args, head);
    cp_async_wait<1>();
    __syncthreads();

    block.form_row();
    __syncwarp();
    invert_chunk(shared.triangle, block.row_block, [] { __syncthreads(); });
    typename ComputeUWBlock<kConfig>::Inverse inverse;
    block.load_inverse(inverse, shared.decayed_beta);
    block.multiply(inverse, shared.key, rows_at(args.w, place, head), args.w.token, args.dk);

    block.load_inverse(inverse, shared.beta);
    for (int first = 0; first < args.dv; first += kConfig.kValueColumns) {
        if (first > 0) {
            __syncthreads();
            load_values(first);
        }
        cp_async_wait<0>();
        __syncthreads();
        block.multiply(inverse, shared.value, rows_at(args.output, place, head) + first, args.output.token, args.dv - first);
    }
}

}  // namespace gdn_cuda::gdn
