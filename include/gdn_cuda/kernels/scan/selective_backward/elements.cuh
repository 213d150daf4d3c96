// scan/selective_backward, the elements of a chunk: makes u, delta, z and the gradient of out into tiles of steps, inputs and
// output gradients; after the recurrence, computes the gradients of u, delta, z and delta_a from the tiles that it left.
#pragma once

#include <gdn_cuda/kernels/scan/selective_backward/sums.cuh>
#include <gdn_cuda/kernels/scan/selective_backward/units.cuh>

namespace gdn_cuda::scan {

__device__ __forceinline__ float sigmoid_fast(float x) {
    return reciprocal_fast(1.f + exp2_fast(-x * kLog2e));
}

template <SelectiveBackwardConfig kConfig>
struct BackwardElements : BackwardUnits<kConfig> {
    using Block = BackwardBlock<kConfig>;
    using Units = BackwardUnits<kConfig>;
    using Block::args, Block::in, Block::place, Block::shared;
    using Block::four, Block::in_row;
    using Block::kIsRglru, Block::kTransition, Block::kChannels, Block::kParts, Block::kTokens;
    using typename Block::Config, typename Block::Gradient, typename Block::Shared;
    using Units::for_units, Units::get, Units::get_outputs, Units::has_delta_a, Units::is_plain_along_tokens,
        Units::kLanesOfRow, Units::kRows, Units::per_channel, Units::put, Units::store;
    template <class Unit>
    using Floats = typename Units::template Floats<Unit::kSize>;

    __device__ __forceinline__ void begin() const {
        // One thread per channel sums the gradient of D, another that of the bias.
        static_assert(2 * kChannels <= Config::kThreads);
        if (threadIdx.x < kChannels) {
            const int channel = threadIdx.x;
            const bool exists = channel < place.channels;
            shared.D[channel] = exists && in.D != nullptr ? in.D[place.channel + channel] : 0.f;
            shared.bias[channel] = exists && in.delta_bias != nullptr ? in.delta_bias[place.channel + channel] : 0.f;
        }
        if (threadIdx.x < 2 * kChannels) shared.element_sums[threadIdx.x / kChannels][threadIdx.x % kChannels] = 0.f;
    }
    // δ, from δ before softplus.
    template <int kSize>
    __device__ __forceinline__ void make_sizes(float (&sizes)[kSize], const float (&before)[kSize]) const {
#pragma unroll
        for (int i = 0; i < kSize; ++i) sizes[i] = before[i];
        if (!in.delta_softplus) return;
#pragma unroll
        for (int i = 0; i < kSize; ++i) sizes[i] = softplus_fast(before[i]);
    }
    // Options are the same for the whole call, so each branch is around all elements of a unit.
    template <class Unit>
    __device__ __forceinline__ void make_elements(const Floats<Unit>& x, const Unit& unit) const {
        constexpr int kSize = Unit::kSize;
        float before[kSize], sizes[1][kSize], made[3][kSize];
        auto &input = made[0], &step = made[1], &cotangent = made[2], &size = sizes[0];
        per_channel(before, shared.bias, unit);
#pragma unroll
        for (int i = 0; i < kSize; ++i) before[i] += x.delta[i];
        make_sizes(size, before);
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
            step[i] = kTransition == Transition::s7 ? -1.f / fmaf(size[i], size[i], 0.5f) : size[i];
            input[i] = x.u[i];
            cotangent[i] = x.grad_out[i] * static_cast<float>(kParts);  // y = 2 Re Σ C x for complex states
        }
        if constexpr (kTransition != Transition::s7 && !kIsRglru)
            if (has_delta_a(unit))
#pragma unroll
                for (int i = 0; i < kSize; ++i) step[i] = x.delta_a[i];
        if constexpr (kTransition == Transition::exponential)
            if (args.input_times_delta)
#pragma unroll
                for (int i = 0; i < kSize; ++i) input[i] *= size[i];
        if (in.z.data != nullptr)
#pragma unroll
            for (int i = 0; i < kSize; ++i) cotangent[i] *= silu_fast(x.z[i]);
        if (unit.count < kSize)
#pragma unroll
            for (int i = 0; i < kSize; ++i)
                if (i >= unit.count) step[i] = input[i] = cotangent[i] = size[i] = 0.f;
        put({shared.input, shared.step, shared.cotangent}, unit, made);
        if constexpr (has_size(kTransition)) put({shared.size}, unit, sizes);
    }
    __device__ __forceinline__ void make(int first, int tokens) const {
        for_units(first, tokens, [&](const auto& x, const auto& unit) { make_elements(x, unit); });
    }

    // ---- Their gradients

    // Adds the sums over the states of earlier passes to the tile's sums, and stores them unless this is the last pass. A
    // thread loads those of four tokens at a time.
    __device__ __forceinline__ void add_earlier(int first, int tokens) const {
        constexpr int kAtOnce = 4, kSums = has_size(kTransition) ? 4 : 3;
        const i64 stride = static_cast<i64>(in.batch) * in.dim * in.length;
        const bool has_y = in.z.data != nullptr;
#pragma unroll 1
        for (unsigned i = recomputed_thread(); i < kChannels * kStateChunk; i += kAtOnce * Config::kThreads) {
            unsigned* at[kAtOnce];
            bool exists[kAtOnce];
            unsigned earlier[kAtOnce][kSums] = {};
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) {
                const int channel = (i + j * Config::kThreads) / kStateChunk, token = (i + j * Config::kThreads) % kStateChunk;
                exists[j] = channel < place.channels && token < tokens;
                at[j] = reinterpret_cast<unsigned*>(args.earlier) +
                        (static_cast<i64>(place.batch) * in.dim + place.channel + channel) * in.length + place.start + first +
                        token;
#pragma unroll
                for (int sum = 0; sum < kSums; ++sum)
                    load_if(exists[j] && !args.first_pass && (sum != 2 || has_y), earlier[j][sum], at[j] + sum * stride);
            }
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) {
                const int channel = (i + j * Config::kThreads) / kStateChunk, token = (i + j * Config::kThreads) % kStateChunk;
                const int place_in_row = in_row(channel, token);
                float* const sums[] = {
                    &shared.input[channel][place_in_row], &shared.cotangent[channel][place_in_row],
                    &shared.checkpoint[token / kTokens][channel][Shared::place_of_output(token / kTokens, token % kTokens)],
                    kSums == 4 ? &shared.size[channel][place_in_row] : nullptr};
#pragma unroll
                for (int sum = 0; sum < kSums; ++sum) {
                    *sums[sum] += __uint_as_float(earlier[j][sum]);
                    store_if(exists[j] && !args.last_pass && (sum != 2 || has_y), at[j] + sum * stride,
                             __float_as_uint(*sums[sum]));
                }
            }
        }
    }
    template <class Unit>
    __device__ __forceinline__ void finish_elements(const Floats<Unit>& x, const Unit& unit, int first) const {
        constexpr int kSize = Unit::kSize;
        float made[3][kSize], dsize[1][kSize] = {}, before[kSize], D[kSize], cotangent[kSize], dD_and_dbias[2][kSize];
        get(made, {shared.input, shared.cotangent, shared.step}, unit);
        if constexpr (has_size(kTransition)) get(dsize, {shared.size}, unit);
        auto &dinput = made[0], &dstep = made[1], &step = made[2], &ddelta = dsize[0];
        per_channel(before, shared.bias, unit);
        per_channel(D, shared.D, unit);
        typename Units::template Outputs<kSize> to{};
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
            before[i] += x.delta[i];
            cotangent[i] = x.grad_out[i];
            to.du[i] = dinput[i];
        }
        if constexpr (kTransition == Transition::exponential) {
            if (args.input_times_delta) {
                if (has_delta_a(unit)) make_sizes(step, before);  // `step` was δ_A
#pragma unroll
                for (int i = 0; i < kSize; ++i) ddelta[i] = x.u[i] * dinput[i], to.du[i] = step[i] * dinput[i];
            }
        }
        if constexpr (kTransition == Transition::s7) {
            float size[kSize];
            make_sizes(size, before);
#pragma unroll
            for (int i = 0; i < kSize; ++i) ddelta[i] = 2.f * size[i] * step[i] * step[i] * dstep[i];
        } else if (kIsRglru || !has_delta_a(unit)) {
#pragma unroll
            for (int i = 0; i < kSize; ++i) ddelta[i] = fmaf(dstep[i], Gradient::kStepUnit, ddelta[i]);
        }
        if (in.delta_softplus)
#pragma unroll
            for (int i = 0; i < kSize; ++i) ddelta[i] *= sigmoid_fast(before[i]);
        if (in.z.data != nullptr) {
            float y[kSize];
            get_outputs(y, unit);
#pragma unroll
            for (int i = 0; i < kSize; ++i) {
                const float gate = sigmoid_fast(x.z[i]), silu = x.z[i] * gate;
                const float out = fmaf(D[i], x.u[i], y[i] * static_cast<float>(kParts));
                to.dz[i] = x.grad_out[i] * out * fmaf(silu, 1.f - gate, gate);
                cotangent[i] *= silu;
            }
        }
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
            to.du[i] = fmaf(D[i], cotangent[i], to.du[i]);
            to.ddelta[i] = ddelta[i];
            if constexpr (kTransition != Transition::s7 && !kIsRglru) to.ddelta_a[i] = dstep[i] * Gradient::kStepUnit;
            dD_and_dbias[0][i] = cotangent[i] * x.u[i];
            dD_and_dbias[1][i] = ddelta[i];
        }
        store(to, unit, first);
        if constexpr (Unit::kIsAlongTokens) {
            sum_unit(dD_and_dbias, unit);
        } else {
            if (unit.count < kSize)
#pragma unroll
                for (int i = 0; i < kSize; ++i)
                    if (i >= unit.count) dD_and_dbias[0][i] = dD_and_dbias[1][i] = 0.f;
            put({shared.input, shared.cotangent}, unit, dD_and_dbias);  // for sum_channel
        }
    }
    // In plain tiles a thread reads exactly the places that it writes for the next chunk, so no barrier is needed.
    __device__ __forceinline__ void finish(int first, int tokens) const {
        for_units(first, tokens, [&](const auto& x, const auto& unit) { finish_elements(x, unit, first); });
        if (is_plain_along_tokens(tokens)) return;
        __syncthreads();
        const unsigned thread = recomputed_thread();
        if (thread < 2 * kChannels) sum_channel(thread / kChannels, thread % kChannels);
        __syncthreads();
    }

    // ---- Gradients of D and of the bias, summed over the tokens of a chunk

    // For a plain unit along tokens, whose lanes have all tokens of their channels.
    template <class Unit>
    __device__ __forceinline__ void sum_unit(const float (&x)[2][Unit::kSize], const Unit& unit) const {
        if (args.dD == nullptr && args.ddelta_bias == nullptr) return;
        constexpr int kSums = Unit::kSize / 2;
        float sums[kSums];  // gradients of D and of the bias, for each channel
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
            const float* four = &x[i % 2][i / 2 * 4];
            sums[i] = (four[0] + four[1]) + (four[2] + four[3]);
        }
        const unsigned thread = recomputed_thread();
        const int sum = sum_over_lanes<kLanesOfRow, 1, kSums>(sums, thread);
        if (thread % (kLanesOfRow / kSums) == 0) shared.element_sums[sum % 2][unit.channel + sum / 2 * kRows] += sums[0];
    }
    // For one channel, from the tiles.
    __device__ __forceinline__ void sum_channel(int which, int channel) const {
        const auto* tile = which == 0 ? shared.input : shared.cotangent;
        float sum = 0.f;
#pragma unroll 4
        for (int token = 0; token < kStateChunk; token += 4) {
            const float4 x = four(tile, channel, token);
            sum += (x.x + x.y) + (x.z + x.w);
        }
        shared.element_sums[which][channel] += sum;
    }
    __device__ __forceinline__ void finish_sums() const {
        __syncthreads();
        if (threadIdx.x >= 2 * kChannels) return;
        const int which = threadIdx.x / kChannels, channel = threadIdx.x % kChannels;
        float* to = which == 0 ? args.dD : args.ddelta_bias;
        if (to != nullptr && channel < place.channels)
            to[this->segment_row() * in.dim + place.channel + channel] = shared.element_sums[which][channel];
    }
};

}  // namespace gdn_cuda::scan
