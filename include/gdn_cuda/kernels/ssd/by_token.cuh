// Chunks of ssd/prefill and ssd/prefill_mma in which a token's exp(δA) is 0, and x, B or δ of some token is not finite: in
// products of matrices 0 times infinity would spread NaN past the reset, so the rows of a head take the tokens one by one. Many
// times slower, and rare.
#pragma once

#include <gdn_cuda/kernels/chunked/tile_elements.cuh>
#include <gdn_cuda/kernels/common/silu.cuh>
#include <gdn_cuda/kernels/ssd/scan_plan.cuh>

namespace gdn_cuda::ssd {

// Whether a token with this δA, in log2, resets the state: exp2_fast is 0.
__device__ __forceinline__ bool is_reset(float gate) {
    return gate < -126.f;
}

__device__ __forceinline__ float decayed(float x, float decay) {
    return decay == 0.f ? 0.f : x * decay;
}

// A chunk in shared memory as a row tile reads it; tokens past the end are zeros with δ = 0. z: or nothing.
template <class Tile>
struct ChunkTiles {
    Tile &x, *z;
    const Tile *B, *C;
    const ChunkSteps& steps;
};

// In every thread of the row tile, or in none.
template <class Owner, class Tile>
__device__ __forceinline__ bool is_not_finite(const Owner& own, const ChunkTiles<Tile>& chunk) {
    bool found = !isfinite(chunk.steps.delta[own.thread % kChunk]);
    const auto scan = [&](const Tile& tile) {
#pragma unroll 1
        for (int i = own.thread; i < static_cast<int>(sizeof(Tile) / sizeof(unsigned)); i += kTileThreads) {
            const float2 pair = unpack<Owner::kIo>(load_shared_word(shared_address(tile.bytes) + 4 * i));
            found |= !isfinite(pair.x) || !isfinite(pair.y);
        }
    };
    scan(chunk.x);
#pragma unroll 1
    for (int i = 0; i < Owner::kStateTiles; ++i) scan(chunk.B[i]);
    return own.any_of_tile(found);
}

// S <- exp(δA) S + δ x B^T in fp32, and with kOutputs y = S C + D x, times silu(z), in the place of x. In the second pass, from
// the last token on: E <- exp(δA) (E + dY C^T).
template <bool kOutputs, class Owner, class Tile>
__device__ __forceinline__ void run_tokens(Owner& own, const ChunkTiles<Tile>& chunk, const float (&D)[2]) {
    using Io = Storage<Owner::kIo>;
    const bool reversed = own.work.pass != 0;
#pragma unroll 1
    for (int i = 0; i < kChunk; ++i) {
        const int token = reversed ? kChunk - 1 - i : i;
        const auto& gates = chunk.steps.gate;
        const float decay = exp2_fast(gates[token] - (token == 0 ? 0.f : gates[token - 1]));
        const float before = reversed ? 1.f : decay, after = reversed ? decay : 1.f,
                    delta = reversed ? 1.f : chunk.steps.delta[token];
        float x[2], y[2] = {};
        for (int half = 0; half < 2; ++half) x[half] = delta * to_float(gdn::element_of_row(own, chunk.x, token, half));
#pragma unroll
        for (int part = 0; part < Owner::kParts; ++part)
#pragma unroll
            for (int n = 0; n < Owner::kPartColumns / 8; ++n) {
                const int column = part * (Owner::kPartColumns / 8) + n;
                const float2 added = gdn::load_pair<Owner::kIo>(chunk.B, token, column, own.t);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float* const s = &own.state[part][4 * n + 2 * half];
                    s[0] = decayed(fmaf(x[half], added.x, decayed(s[0], before)), after);
                    s[1] = decayed(fmaf(x[half], added.y, decayed(s[1], before)), after);
                }
                if constexpr (kOutputs) {
                    const float2 read = gdn::load_pair<Owner::kIo>(chunk.C, token, column, own.t);
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const float* const s = &own.state[part][4 * n + 2 * half];
                        y[half] = fmaf(s[0], read.x, fmaf(s[1], read.y, y[half]));
                    }
                }
            }
        if constexpr (kOutputs) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float own_x = to_float(gdn::element_of_row(own, chunk.x, token, half));
                float out = fmaf(D[half], own_x, gdn::sum_over_row(y[half]));
                if constexpr (Owner::kGated) out *= silu(to_float(gdn::element_of_row(own, *chunk.z, token, half)));
                __syncwarp();  // every lane has read x
                if (own.t == 0) gdn::element_of_row(own, chunk.x, token, half) = from_float<Io>(out);
            }
        }
    }
}

}  // namespace gdn_cuda::ssd
