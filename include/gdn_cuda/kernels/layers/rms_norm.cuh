// layers/rms_norm: out = h / sqrt(mean(h^2) + eps) * weight * a(gate) with h = x, or, where the gate comes first,
// out = h / sqrt(mean(h^2) + eps) * weight with h = x * a(gate); a is silu, the sigmoid, or 1 without a gate.
//
// A row, or a group of its columns, belongs to 8, 16 or 32 lanes of a warp or to a block, by its length. Blocks stay, keep
// their weights in registers, and take one row after the other; loads of the next are in flight while one is computed. Rows
// beyond the registers of a block are read twice, in chunks.
//
// Shared memory: sums of warps, where a row belongs to a block.
//
// Bound: memory, 6 bytes an element for bf16 (x, the gate and out). That leaves some 40 instructions an element at 4.3 TB/s on
// an H200; rows of 128 take 28, two of them on the special-function unit.
#pragma once

#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/layers/rms_norm/row.cuh>

namespace gdn_cuda::layers {

template <RmsNormConfig kConfig>
struct RmsNormForward {
    static constexpr int kCount = kConfig.per_lane;

    const RmsNormArgs& args;
    RmsNormReduction<kConfig> reduction;
    RmsNormPlace<kConfig> place{args};
    RmsNormRaw<kConfig, true> x;
    RmsNormRaw<kConfig, false> gate, next_gate;
    float h[kCount], weight[kCount];

    __device__ __forceinline__ bool has_gate() const { return args.gate.values.data != nullptr; }
    __device__ __forceinline__ void load(unsigned row, int chunk) {
        const bool exists = place.exists(row);
        place.load(x, args.x, exists ? place.offset(args.x, row) : 0, chunk, exists);
        if (has_gate()) place.load(next_gate, args.gate, exists ? place.offset(args.gate, row) : 0, chunk, exists);
    }
    // What is normalised, in h. The gate of this row stays as it was loaded, and the registers of loads are free for the next.
    __device__ __forceinline__ void unpack() {
        x.numbers(h, kConfig.io);
        gate = next_gate;
        if (has_gate() && !args.norm_before_gate) apply_gate<false>();
    }
    // kNormalised: h is what the norm gives, so that a gate may lose digits where it is subnormal.
    template <bool kNormalised>
    __device__ __forceinline__ void apply_gate() {
        float g[kCount];
        gate.numbers(g, args.gate.values.type);
        if (args.activation == GateActivation::sigmoid) {
#pragma unroll
            for (int i = 0; i < kCount; ++i) h[i] *= gate_sigmoid<kConfig, kNormalised>(g[i]);
        } else {
#pragma unroll
            for (int i = 0; i < kCount; ++i) h[i] *= g[i] * gate_sigmoid<kConfig, kNormalised>(g[i]);
        }
    }
    // Chunks of the row, one after the other; a row in one chunk is in registers.
    template <class Each>
    __device__ __forceinline__ void for_chunks(unsigned row, const Each& each) {
        const int chunks = place.chunks();
        for (int chunk = 0; chunk < chunks; ++chunk) {
            if (chunks > 1) {
                load(row, chunk);
                unpack();
            }
            each(chunk);
        }
    }
    template <bool kScaled>
    __device__ __forceinline__ float sum_of_squares(unsigned row, float scale) {
        float sum[1] = {0.f};
        for_chunks(row, [&](int) {
#pragma unroll
            for (int i = 0; i < kCount; ++i) {
                const float y = kScaled ? h[i] * scale : h[i];
                sum[0] = fmaf(y, y, sum[0]);
            }
        });
        reduction.sum(sum);
        return sum[0];
    }
    // 1 / sqrt(mean(h^2) + eps). Squares that fp32 cannot hold are taken of a scaled row.
    __device__ __forceinline__ float inverse_rms(unsigned row) {
        const float mean = fmaf(sum_of_squares<false>(row, 1.f), args.inverse_columns, args.epsilon);
        float inverse = inverse_root(mean);
        if (out_of_range(mean)) {
            float most = 0.f;
            for_chunks(row, [&](int) {
#pragma unroll
                for (int i = 0; i < kCount; ++i) most = fmaxf(most, fabsf(h[i]));
            });
            const float scale = inverse_magnitude(fmaxf(reduction.most(most), sqrtf(args.epsilon)));
            const float scaled = fmaf(sum_of_squares<true>(row, scale), args.inverse_columns, args.epsilon * scale * scale);
            if (!in_range(mean)) inverse = inverse_root(scaled) * scale;
        }
        return inverse;
    }
    __device__ __forceinline__ void run() {
        const unsigned step = gridDim.x * kConfig.rows(), rows = args.rows;
        unsigned first = blockIdx.x * kConfig.rows();
        load(first + place.row_of_block, 0);
        if constexpr (!kConfig.is_long) place.load_weight(weight, 0);
        for (; first < rows; first += step) {
            const unsigned row = first + place.row_of_block;
            if (kConfig.is_long) load(row, 0);
            unpack();
            if (!kConfig.is_long) load(row + step, 0);  // in flight while this row is computed
            const float inverse = inverse_rms(row);
            for_chunks(row, [&](int chunk) {
                if constexpr (kConfig.is_long) place.load_weight(weight, chunk);
#pragma unroll
                for (int i = 0; i < kCount; ++i) h[i] *= inverse * weight[i];
                if (has_gate() && args.norm_before_gate) apply_gate<true>();
                if (place.exists(row)) place.store(args.out, kConfig.io, row, chunk, h);
            });
        }
    }
};

template <RmsNormConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.forward_blocks())
    rms_norm(const __grid_constant__ RmsNormArgs args) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    extern __shared__ __align__(16) unsigned char memory[];
    RmsNormForward<kConfig>{args, {*reinterpret_cast<RmsNormSharedPlan<kConfig>*>(memory)}}.run();
}

}  // namespace gdn_cuda::layers
