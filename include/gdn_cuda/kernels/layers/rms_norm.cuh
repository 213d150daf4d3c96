// layers/rms_norm: out = h / sqrt(mean(h^2) + eps) * weight * a(gate) with h = x, or, if the gate is applied before the norm,
// out = h / sqrt(mean(h^2) + eps) * weight with h = x * a(gate); a is silu, the sigmoid, or 1 without a gate.
//
// Depending on its length, a row (or a group of its columns) is computed by 8, 16 or 32 lanes of a warp or by a block. Blocks
// are persistent: they keep their weights in registers and iterate over rows; loads of the next row are in flight while one is
// computed. Rows that do not fit a block's registers are read twice, in chunks.
//
// Shared memory: per-warp sums, if a block computes a row.
//
// Bound: memory, 6 bytes per element for bf16 (x, the gate and out). At 4.3 TB/s an H200 can issue some 40 instructions per
// element; rows of 128 take 28, two of them on the special-function unit.
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
    // Computes h, the values to normalise. The row's gate stays packed, and the registers of x's loads are free for the next
    // row.
    __device__ __forceinline__ void unpack() {
        x.unpack(h, kConfig.io);
        gate = next_gate;
        if (has_gate() && !args.norm_before_gate) apply_gate<false>();
    }
    // kNormalised: h is the norm's result, so that subnormal gates may be flushed.
    template <bool kNormalised>
    __device__ __forceinline__ void apply_gate() {
        float g[kCount];
        gate.unpack(g, args.gate.values.type);
        if (args.activation == GateActivation::sigmoid) {
#pragma unroll
            for (int i = 0; i < kCount; ++i) h[i] *= gate_sigmoid<kConfig, kNormalised>(g[i]);
        } else {
#pragma unroll
            for (int i = 0; i < kCount; ++i) h[i] *= g[i] * gate_sigmoid<kConfig, kNormalised>(g[i]);
        }
    }
    // Iterates over chunks of the row; a row of one chunk is already in registers.
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
    // 1 / sqrt(mean(h^2) + eps). If squares leave fp32's range, they are computed from a scaled row.
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
        load(first + place.row_in_block, 0);
        if constexpr (!kConfig.is_long) place.load_weight(weight, 0);
        for (; first < rows; first += step) {
            const unsigned row = first + place.row_in_block;
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
