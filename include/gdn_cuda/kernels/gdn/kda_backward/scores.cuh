// Scores between a chunk's tokens, N and P without scale and norms: sums over channels of key or query, key, and the decay
// between them. A decay is the product of two, up to and from a border between halves of 8, 4, 2 or 1 tokens. Each warp sums
// over the channels of its threads by MMAs of nearly fp32 accuracy; the warps' sums are added in order.
#pragma once

#include <gdn_cuda/kernels/common/tf32.cuh>
#include <gdn_cuda/kernels/gdn/kda_backward/channel.cuh>

namespace gdn_cuda::gdn {

constexpr int kKdaLevels = 4;  // halves of 8, 4, 2, 1 tokens

// A warp's 32 channels of the upper keys, the upper queries and the lower keys of a level. Rows of 36 have no bank conflicts.
struct KdaLevelOperands {
    float rows[24][36];
};
// A warp's scores at one level, as its lanes' accumulators have them: upper keys above upper queries against lower keys.
struct KdaLevelSums {
    float4 lanes[32];
};

template <int kWarps>
struct KdaScoresPlan {
    KdaLevelOperands operands[kWarps];
    KdaLevelSums sums[kWarps][kKdaLevels];
};

template <int kWarps>
struct KdaScores {
    KdaScoresPlan<kWarps>& shared;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;

    template <int kHalf>
    __device__ __forceinline__ void multiply_level(const KdaChannel& x, int level) const {
        KdaLevelOperands& operands = shared.operands[warp];
        __syncwarp();  // the last level's are read
#pragma unroll
        for (int first = 0; first < kKdaTokens; first += 2 * kHalf) {
            const KdaGroup<kHalf> group(x.decay, first);
#pragma unroll
            for (int i = 0; i < kHalf; ++i) {
                const int row = first / 2 + i, upper = first + kHalf + i;
                operands.rows[row][lane] = group.forwards[i] * x.key[upper];
                operands.rows[8 + row][lane] = group.forwards[i] * x.query[upper];
                operands.rows[16 + row][lane] = group.backwards[i] * x.key[first + i];
            }
        }
        __syncwarp();
        const int g = lane / 4, t = lane % 4;
        float sums[4] = {};
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            const auto part = [&](int row, int k) { return TwoParts::of(operands.rows[row][8 * step + t + 4 * k]); };
            const TwoParts left[4] = {part(g, 0), part(8 + g, 0), part(g, 1), part(8 + g, 1)};
            add_product_fp32(sums, left, part(16 + g, 0), part(16 + g, 1));
        }
        shared.sums[warp][level].lanes[lane] = {sums[0], sums[1], sums[2], sums[3]};
    }
    __device__ __forceinline__ void multiply(const KdaChannel& x) const {
        multiply_level<8>(x, 0);
        multiply_level<4>(x, 1);
        multiply_level<2>(x, 2);
        multiply_level<1>(x, 3);
    }
    // Scores of tokens row > column, with keys or queries on the left; after a barrier.
    __device__ __forceinline__ float at(bool query, int row, int column) const {
        const int level = __clz(row ^ column) - 28, half = 8 >> level;  // the highest bit in which they differ
        const int upper = row / (2 * half) * half + row % half, lower = column / (2 * half) * half + column % half;
        const int element = 2 * query + lower % 2;
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < kWarps; ++i)
            sum += reinterpret_cast<const float*>(&shared.sums[i][level].lanes[4 * upper + lower / 2])[element];
        return sum;
    }
};

}  // namespace gdn_cuda::gdn
