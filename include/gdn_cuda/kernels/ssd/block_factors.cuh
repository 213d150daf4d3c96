// Decays between the tokens of a chunk as products of factors, so that no pair of tokens needs an exponential of its own.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>
#include <gdn_cuda/kernels/ssd/scan_plan.cuh>

namespace gdn_cuda::ssd {

// A warp's: a lane has tokens 2 l and 2 l + 1, `gate` their sums of δA from the chunk's first token on, in log2. Borders are
// the last tokens of blocks of 16, and the one before the chunk.
struct BlockFactors {
    float2 row;     // exp(G_i - border before i's block)
    float2 column;  // exp(border after j's block - G_j)
    float2 within;  // exp(border before j's block - G_j): between tokens of a block row_i within_j, where nothing resets
    float border, block_end, end;  // G at these borders, and of the chunk's last token
    // A decay between tokens of different blocks is row_i between column_j, between: 1 of neighbours, else that of lane
    // (i's block + j's - 1), of blocks 2 and 0, 3 and 0, 3 and 1.
    float between;
    Resets resets;

    __device__ __forceinline__ BlockFactors(float2 gate, int lane) {
        constexpr unsigned kAll = 0xffffffffu;
        end = __shfl_sync(kAll, gate.y, 31);
        const float previous = __shfl_sync(kAll, gate.y, lane < 8 ? 0 : (lane & 24) - 1);
        border = lane < 8 ? 0.f : previous;
        block_end = __shfl_sync(kAll, gate.y, lane | 7);
        row = {exp2_fast(gate.x - border), exp2_fast(gate.y - border)};
        column = {exp2_fast(block_end - gate.x), exp2_fast(block_end - gate.y)};
        within = {exp2_fast(border - gate.x), exp2_fast(border - gate.y)};
        const float later = __shfl_sync(kAll, gate.y, lane < 2 ? 15 : 23),
                    earlier = __shfl_sync(kAll, gate.y, lane < 3 ? 7 : 15);
        between = lane == 0 ? 1.f : exp2_fast(later - earlier);
        // Beyond 2^60 and 2^-60 a decay between two tokens may be 0, or its factors overflow.
        const auto all_near = [&](float from) {
            return __all_sync(kAll, fabsf(gate.x - from) < 60.f && fabsf(gate.y - from) < 60.f);
        };
        const bool near = all_near(0.f), near_in_blocks = all_near(border);
        const float last = __shfl_up_sync(kAll, gate.y, 1);
        const float2 own = {gate.x - (lane == 0 ? 0.f : last), gate.y - gate.x};
        const bool grows = __any_sync(kAll, fmaxf(own.x, own.y) > 0.01f),
                   decays = __any_sync(kAll, fminf(own.x, own.y) < -0.01f);
        resets = near ? Resets::none : grows && decays ? Resets::mixed : near_in_blocks ? Resets::between_blocks : Resets::any;
    }
};

}  // namespace gdn_cuda::ssd
