// layers/rms_norm_backward: gradients of layers/rms_norm with respect to x, the gate and the weight.
//
// With n = h / rms, dn the gradient of n and c = mean(dn * n): dh = (dn - c n) / rms. If a group has one column, dh =
// eps dn / rms^3, since rounding would cancel the difference.
//
//     norm first    h = x            dn = grad weight a(gate)    dgate = grad weight n a'(gate)    dweight = sum grad n a(gate)
//     gate first    h = x a(gate)    dn = grad weight            dgate = dh x a'(gate)             dweight = sum grad n
//
// dx = dh, with the gate first dh a(gate). Rows, threads and chunks are those of layers/rms_norm. One reduction gives mean(h^2)
// and mean(dn h) together, so nothing is saved by the forward. The weight's gradient is summed in a fixed order: by each thread
// over its rows (in registers, for long rows in memory), by the block over its threads, and over blocks after the kernel.
//
// Shared memory: per-warp sums, or sums of the weight's gradient if a block has several rows.
//
// Bound: memory, 10 bytes per element for bf16 (x, gate, grad and two gradients).
#pragma once

#include <gdn_cuda/kernels/layers/rms_norm/row.cuh>

namespace gdn_cuda::layers {

template <RmsNormConfig kConfig>
struct RmsNormBackward {
    static constexpr int kCount = kConfig.per_lane;
    static constexpr bool kMayBeOneColumn = !kConfig.vectors && !kConfig.row_is_block();

    const RmsNormBackwardArgs& call;
    const RmsNormArgs& args;
    RmsNormBackwardSharedPlan<kConfig>& shared;
    RmsNormReduction<kConfig> reduction{shared.reduction};
    RmsNormPlace<kConfig> place{args};
    RmsNormRaw<kConfig, true> x_raw, grad_raw;
    RmsNormRaw<kConfig, false> gate_raw;
    float x[kCount], grad[kCount], a[kCount], slope[kCount], weight[kCount], dweight[kCount];

    __device__ __forceinline__ bool has_gate() const { return args.gate.values.data != nullptr; }
    __device__ __forceinline__ void load(unsigned row, int chunk) {
        const bool exists = place.exists(row);
        place.load(x_raw, args.x, exists ? place.offset(args.x, row) : 0, chunk, exists);
        place.load(grad_raw, call.grad, exists ? place.offset(call.grad, row) : 0, chunk, exists);
        if (has_gate()) place.load(gate_raw, args.gate, exists ? place.offset(args.gate, row) : 0, chunk, exists);
    }
    __device__ __forceinline__ void unpack() {
        x_raw.unpack(x, kConfig.io);
        grad_raw.unpack(grad, kConfig.io);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            a[i] = 1.f;
            slope[i] = 0.f;
        }
        if (has_gate()) args.norm_before_gate ? unpack_gate<true>() : unpack_gate<false>();
    }
    // kNormalised: the normalised values have no gate, so that subnormal gates may be flushed.
    template <bool kNormalised>
    __device__ __forceinline__ void unpack_gate() {
        float g[kCount];
        gate_raw.unpack(g, args.gate.values.type);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const Gated gated = gate_and_derivative<kConfig, kNormalised>(args.activation, g[i]);
            a[i] = gated.value;
            slope[i] = gated.derivative;
        }
    }
    // h, the values to normalise, and dn, the gradient of the normalised values.
    __device__ __forceinline__ float h(int i) const { return args.norm_before_gate ? x[i] : x[i] * a[i]; }
    __device__ __forceinline__ float dnormalised(int i) const {
        return grad[i] * weight[i] * (args.norm_before_gate ? a[i] : 1.f);
    }
    // Iterates over chunks of the row; a row of one chunk is already in registers, with its weights.
    template <class Each>
    __device__ __forceinline__ void for_chunks(unsigned row, const Each& each) {
        const int chunks = place.chunks();
        for (int chunk = 0; chunk < chunks; ++chunk) {
            if (chunks > 1) {
                load(row, chunk);
                place.load_weight(weight, chunk);
                unpack();
            }
            each(chunk);
        }
    }
    // Sums over a row of (scale h)^2 and of (scale h) dn.
    template <bool kScaled>
    __device__ __forceinline__ void sums_of(unsigned row, float scale, float (&sums)[2]) {
        sums[0] = sums[1] = 0.f;
        for_chunks(row, [&](int) {
#pragma unroll
            for (int i = 0; i < kCount; ++i) {
                const float y = kScaled ? h(i) * scale : h(i);
                sums[0] = fmaf(y, y, sums[0]);
                sums[1] = fmaf(y, dnormalised(i), sums[1]);
            }
        });
        reduction.sum(sums);
    }
    struct Row {
        float inverse, mean_product;  // 1 / rms, mean(n dn)
    };
    __device__ __forceinline__ Row measure(unsigned row) {
        float sums[2];
        sums_of<false>(row, 1.f, sums);
        const float mean = fmaf(sums[0], args.inverse_columns, args.epsilon);
        Row found{inverse_root(mean), 0.f};
        found.mean_product = sums[1] * args.inverse_columns * found.inverse;
        if (out_of_range(mean)) {
            float most = 0.f;
            for_chunks(row, [&](int) {
#pragma unroll
                for (int i = 0; i < kCount; ++i) most = fmaxf(most, fabsf(h(i)));
            });
            const float scale = inverse_magnitude(fmaxf(reduction.most(most), sqrtf(args.epsilon)));
            sums_of<true>(row, scale, sums);
            if (!in_range(mean)) {
                const float scaled = inverse_root(fmaf(sums[0], args.inverse_columns, args.epsilon * scale * scale));
                found = {scaled * scale, sums[1] * args.inverse_columns * scaled};
            }
        }
        return place.exists(row) ? found : Row{0.f, 0.f};
    }
    __device__ __forceinline__ void write(unsigned row, int chunk, const Row& found, bool is_first) {
        float dx[kCount], dgate[kCount], dweight_term[kCount];
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const float n = h(i) * found.inverse, dn = dnormalised(i);
            float change = fmaf(-found.mean_product, n, dn);
            if constexpr (kMayBeOneColumn)
                if (args.columns == 1)  // 0 n is 0 or, where h is not finite, NaN
                    change = fmaf(n, 0.f, dn * (args.epsilon * found.inverse * found.inverse));
            const float dh = found.inverse * change;
            dx[i] = args.norm_before_gate ? dh : dh * a[i];
            dgate[i] = slope[i] * (args.norm_before_gate ? grad[i] * weight[i] * n : dh * x[i]);
            dweight_term[i] = grad[i] * n * (args.norm_before_gate ? a[i] : 1.f);
        }
        if (place.exists(row)) {
            place.store(call.dx, kConfig.io, row, chunk, dx);
            if (has_gate()) place.store(call.dgate, args.gate.values.type, row, chunk, dgate);
        }
        if constexpr (kConfig.is_long) {
            // A thread has the same columns of a chunk in every row, so it may add to its own earlier sums.
            if (call.dweight == nullptr) return;
#pragma unroll
            for (int i = 0; i < kCount; ++i)
                if (place.has(chunk, i)) {
                    float& sum = *partial(place.column(chunk, i));
                    sum = is_first ? dweight_term[i] : sum + dweight_term[i];
                }
        } else {
#pragma unroll
            for (int i = 0; i < kCount; ++i) dweight[i] += dweight_term[i];
        }
    }
    __device__ __forceinline__ float* partial(int column) const {
        return call.dweight + (static_cast<i64>(blockIdx.x) * args.groups + blockIdx.y) * args.columns + column;
    }
    __device__ __forceinline__ void write_weight() {
        if constexpr (kConfig.row_is_block()) {
#pragma unroll
            for (int i = 0; i < kCount; ++i)
                if (place.has(0, i)) *partial(place.column(0, i)) = dweight[i];
        } else {
#pragma unroll
            for (int i = 0; i < kCount; ++i) shared.dweight[place.row_in_block][place.column(0, i)] = dweight[i];
            __syncthreads();
            for (int column = threadIdx.x; column < args.columns; column += kConfig.threads()) {
                float sum = 0.f;
#pragma unroll 8
                for (int row = 0; row < kConfig.rows(); ++row) sum += shared.dweight[row][column];
                *partial(column) = sum;
            }
        }
    }
    __device__ __forceinline__ void run() {
        constexpr bool kAhead = !kConfig.is_long;  // loads of the next row are in flight while this one is computed
        const unsigned step = gridDim.x * kConfig.rows(), first_row = blockIdx.x * kConfig.rows(), rows = args.rows;
        if constexpr (kAhead) load(first_row + place.row_in_block, 0);
        place.load_weight(weight, 0);
#pragma unroll
        for (int i = 0; i < kCount; ++i) dweight[i] = 0.f;
        for (unsigned first = first_row; first < rows; first += step) {
            const unsigned row = first + place.row_in_block;
            if constexpr (!kAhead) load(row, 0);
            unpack();
            if constexpr (kAhead) load(row + step, 0);
            const Row found = measure(row);
            for_chunks(row, [&](int chunk) { write(row, chunk, found, first == first_row); });
        }
        if (!kConfig.is_long && call.dweight != nullptr) write_weight();
    }
};

template <RmsNormConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.backward_blocks())
    rms_norm_backward(const __grid_constant__ RmsNormBackwardArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<RmsNormBackwardSharedPlan<kConfig>*>(memory);
    RmsNormBackward<kConfig>{args, args.forward, shared}.run();
}

}  // namespace gdn_cuda::layers
