// The elements of a chunk in scan/selective_backward, u, delta, z and so on: made into tiles of steps, inputs and output
// gradients before the walk; and the gradients of the elements, from the tiles that the walk leaves.
#pragma once

#include <gdn_cuda/kernels/scan/selective_backward_units.cuh>

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
    using typename Units::Floats, typename Units::Outputs, typename Units::Unit;
    using Units::for_units, Units::get, Units::get_outputs, Units::per_channel, Units::put, Units::store;

    __device__ __forceinline__ void begin() const {
        // A thread sums the gradient of D or of the bias of a channel.
        static_assert(2 * kChannels <= Config::kThreads);
        if (threadIdx.x < kChannels) {
            const int channel = threadIdx.x;
            const bool exists = channel < place.channels;
            shared.D[channel] = exists && in.D != nullptr ? in.D[place.channel + channel] : 0.f;
            shared.bias[channel] = exists && in.delta_bias != nullptr ? in.delta_bias[place.channel + channel] : 0.f;
        }
        if (threadIdx.x < 2 * kChannels) shared.element_sums[threadIdx.x / kChannels][threadIdx.x % kChannels] = 0.f;
    }
    // δ, from what it is before softplus.
    __device__ __forceinline__ void make_sizes(float (&sizes)[4], const float (&before)[4]) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) sizes[i] = before[i];
        if (!in.delta_softplus) return;
#pragma unroll
        for (int i = 0; i < 4; ++i) sizes[i] = softplus_fast(before[i]);
    }
    // Flags are of a call: a branch for each, around four elements.
    __device__ __forceinline__ void make_elements(const Floats& x, const Unit& unit) const {
        float before[4], sizes[1][4], made[3][4];
        auto &input = made[0], &step = made[1], &cotangent = made[2], &size = sizes[0];
        per_channel(before, shared.bias, unit);
#pragma unroll
        for (int i = 0; i < 4; ++i) before[i] += x.delta[i];
        make_sizes(size, before);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            step[i] = kTransition == Transition::s7 ? -1.f / fmaf(size[i], size[i], 0.5f) : size[i];
            input[i] = x.u[i];
            cotangent[i] = x.grad_out[i] * static_cast<float>(kParts);  // y = 2 Re Σ C x of complex numbers
        }
        if constexpr (kTransition != Transition::s7 && !kIsRglru)
            if (in.delta_a.data != nullptr)
#pragma unroll
                for (int i = 0; i < 4; ++i) step[i] = x.delta_a[i];
        if constexpr (kTransition == Transition::exponential)
            if (args.input_times_delta)
#pragma unroll
                for (int i = 0; i < 4; ++i) input[i] *= size[i];
        if (in.z.data != nullptr)
#pragma unroll
            for (int i = 0; i < 4; ++i) cotangent[i] *= silu_fast(x.z[i]);
        if (unit.count < 4)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (i >= unit.count) step[i] = input[i] = cotangent[i] = size[i] = 0.f;
        put({shared.input, shared.step, shared.cotangent}, unit, made);
        if constexpr (has_size(kTransition)) put({shared.size}, unit, sizes);
    }
    __device__ __forceinline__ void make(int first, int tokens) const {
        for_units(first, tokens, [&](const Floats& x, const Unit& unit) { make_elements(x, unit); });
    }

    // ---- Their gradients

    // Sums over the states of earlier passes are added to those of the tile, which before the last pass are kept. A thread has
    // four tokens' in flight.
    __device__ __forceinline__ void add_earlier(int first, int tokens) const {
        constexpr int kAtOnce = 4, kSums = has_size(kTransition) ? 4 : 3;
        const i64 apart = static_cast<i64>(in.batch) * in.dim * in.length;
        const bool has_y = in.z.data != nullptr;
#pragma unroll 1
        for (unsigned i = thread_again(); i < kChannels * kStateChunk; i += kAtOnce * Config::kThreads) {
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
                    load_if(exists[j] && !args.first_pass && (sum != 2 || has_y), earlier[j][sum], at[j] + sum * apart);
            }
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) {
                const int channel = (i + j * Config::kThreads) / kStateChunk, token = (i + j * Config::kThreads) % kStateChunk;
                const int place_in_row = in_row(channel, token);
                float* const sums[] = {&shared.input[channel][place_in_row], &shared.cotangent[channel][place_in_row],
                                       &shared.checkpoint[token / kTokens][channel][token % kTokens],
                                       kSums == 4 ? &shared.size[channel][place_in_row] : nullptr};
#pragma unroll
                for (int sum = 0; sum < kSums; ++sum) {
                    *sums[sum] += __uint_as_float(earlier[j][sum]);
                    store_if(exists[j] && !args.last_pass && (sum != 2 || has_y), at[j] + sum * apart,
                             __float_as_uint(*sums[sum]));
                }
            }
        }
    }
    __device__ __forceinline__ void finish_elements(const Floats& x, const Unit& unit, int first) const {
        const bool has_delta_a = in.delta_a.data != nullptr;
        float made[3][4], of_size[1][4] = {}, before[4], D[4], cotangent[4], of_D_and_bias[2][4];
        get(made, {shared.input, shared.cotangent, shared.step}, unit);
        if constexpr (has_size(kTransition)) get(of_size, {shared.size}, unit);
        auto &of_input = made[0], &of_step = made[1], &step = made[2], &d_size = of_size[0];
        per_channel(before, shared.bias, unit);
        per_channel(D, shared.D, unit);
        Outputs to{};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            before[i] += x.delta[i];
            of_step[i] *= Gradient::kStepUnit;
            cotangent[i] = x.grad_out[i];
            to.du[i] = of_input[i];
        }
        if constexpr (kTransition == Transition::exponential) {
            if (args.input_times_delta) {
                if (has_delta_a) make_sizes(step, before);  // the step was another
#pragma unroll
                for (int i = 0; i < 4; ++i) d_size[i] = x.u[i] * of_input[i], to.du[i] = step[i] * of_input[i];
            }
        }
        if constexpr (kTransition == Transition::s7) {
            float size[4];
            make_sizes(size, before);
#pragma unroll
            for (int i = 0; i < 4; ++i) d_size[i] = 2.f * size[i] * step[i] * step[i] * of_step[i];
        } else if (kIsRglru || !has_delta_a) {
#pragma unroll
            for (int i = 0; i < 4; ++i) d_size[i] += of_step[i];
        }
        if (in.delta_softplus)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (before[i] <= 20.f) d_size[i] *= sigmoid_fast(before[i]);
        if (in.z.data != nullptr) {
            float y[4];
            get_outputs(y, unit);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float gate = sigmoid_fast(x.z[i]), silu = x.z[i] * gate;
                const float out = fmaf(D[i], x.u[i], y[i] * static_cast<float>(kParts));
                to.dz[i] = x.grad_out[i] * out * gate * fmaf(x.z[i], 1.f - gate, 1.f);
                cotangent[i] *= silu;
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            to.du[i] = fmaf(D[i], cotangent[i], to.du[i]);
            to.ddelta[i] = d_size[i];
            if constexpr (kTransition != Transition::s7 && !kIsRglru) to.ddelta_a[i] = of_step[i];
            of_D_and_bias[0][i] = cotangent[i] * x.u[i];
            of_D_and_bias[1][i] = d_size[i];
        }
        store(to, unit, first);
        if (unit.count < 4)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (i >= unit.count) of_D_and_bias[0][i] = of_D_and_bias[1][i] = 0.f;
        put({shared.input, shared.cotangent}, unit, of_D_and_bias);  // for sum_elements
    }
    __device__ __forceinline__ void finish(int first, int tokens) const {
        for_units(first, tokens, [&](const Floats& x, const Unit& unit) { finish_elements(x, unit, first); });
        __syncthreads();
        if (args.dD == nullptr && args.ddelta_bias == nullptr) return;
        const unsigned thread = thread_again();
        if (thread < 2 * kChannels) sum_elements(thread / kChannels, thread % kChannels);
        __syncthreads();
    }
    // The gradient of D or of the bias, over the tokens of a chunk.
    __device__ __forceinline__ void sum_elements(int which, int channel) const {
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
        if (threadIdx.x >= 2 * kChannels) return;
        const int which = threadIdx.x / kChannels, channel = threadIdx.x % kChannels;
        float* to = which == 0 ? args.dD : args.ddelta_bias;
        if (to != nullptr && channel < place.channels)
            to[this->row_of_piece() * in.dim + place.channel + channel] = shared.element_sums[which][channel];
    }
};

}  // namespace gdn_cuda::scan
