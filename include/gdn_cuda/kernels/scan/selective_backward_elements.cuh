// The elements of a chunk in scan/selective_backward, u, delta, z and so on: from memory into tiles before the walk, and from
// the tiles that the walk leaves to their gradients.
//
// Elements are read and written four at a time where the host has found aligned vectors and the tile is whole, and one at a
// time in a short loop otherwise.
#pragma once

#include <gdn_cuda/kernels/scan/four.cuh>
#include <gdn_cuda/kernels/scan/selective_backward_block.cuh>

namespace gdn_cuda::scan {

__device__ __forceinline__ float sigmoid_fast(float x) {
    return reciprocal(1.f + exp2_fast(-x * kLog2e));
}

template <SelectiveBackwardConfig kConfig>
struct BackwardElements : BackwardBlock<kConfig> {
    using Block = BackwardBlock<kConfig>;
    using Block::along, Block::global, Block::in_row, Block::four;
    using Block::args, Block::in, Block::place, Block::shared;
    using Block::kIsRglru, Block::kTransition, Block::kChannels, Block::kParts, Block::kTokens, Block::kUnits;
    using typename Block::Config, typename Block::Gradient, typename Block::Shared, typename Block::Tile;

    // Four elements of a tile, along tokens or along channels as u lies in memory, which a thread prepares and finishes.
    struct Unit {
        int channel, token;
    };
    __device__ __forceinline__ Unit unit(int i) const {
        constexpr int kRow = kStateChunk / 4, kColumn = kChannels / 4;
        const int index = thread_again() + i * Config::kThreads;
        return args.along_tokens ? Unit{index / kRow, index % kRow * 4} : Unit{index % kColumn * 4, index / kColumn};
    }
    // One element, or the four of a unit, of several tiles.
    template <int kTiles, int kCount>
    __device__ __forceinline__ void put(const Tile (&tiles)[kTiles], const Unit& to, const float (&x)[kTiles][kCount]) const {
        const int row = in_row(to.channel, to.token);
        if (kCount == 4 && args.along_tokens) {
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile)
                *reinterpret_cast<float4*>(&tiles[tile][to.channel][row]) = {x[tile][0], x[tile][kCount / 4],
                                                                             x[tile][kCount / 2], x[tile][kCount - 1]};
        } else {  // in_row, of channels that differ in their lowest bits
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
                for (int i = 0; i < kCount; ++i) tiles[tile][to.channel + i][row ^ i << 2] = x[tile][i];
        }
    }
    template <int kTiles, int kCount>
    __device__ __forceinline__ void get(float (&x)[kTiles][kCount], const Tile (&tiles)[kTiles], const Unit& from) const {
        const int row = in_row(from.channel, from.token);
        if (kCount == 4 && args.along_tokens) {
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile) {
                const float4 y = *reinterpret_cast<const float4*>(&tiles[tile][from.channel][row]);
                x[tile][0] = y.x, x[tile][kCount / 4] = y.y, x[tile][kCount / 2] = y.z, x[tile][kCount - 1] = y.w;
            }
        } else {
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
                for (int i = 0; i < kCount; ++i) x[tile][i] = tiles[tile][from.channel + i][row ^ i << 2];
        }
    }
    // D or bias of the channels of a unit.
    template <int kCount>
    __device__ __forceinline__ void per_channel(float (&to)[kCount], const float* from, const Unit& unit) const {
#pragma unroll
        for (int i = 0; i < kCount; ++i) to[i] = from[unit.channel + (args.along_tokens ? 0 : i)];
    }

    using Rows = typename Shared::Rows;
    __device__ __forceinline__ Rows rows_of(const ChannelRows& x) const {
        const i64 offset = place.batch * x.batch + place.channel * x.channel + place.start * x.token;
        const int shift = args.io == DType::f32 ? 2 : 1;
        return {static_cast<char*>(x.data) + (offset << shift), static_cast<unsigned>(x.channel) << shift,
                static_cast<unsigned>(x.token) << shift};
    }
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
    __device__ __forceinline__ void keep_rows() const {
        shared.u = rows_of(in.u), shared.delta = rows_of(in.delta), shared.grad_out = rows_of(args.grad_out);
        shared.z = rows_of(in.z), shared.delta_a = rows_of(in.delta_a);
        shared.du = rows_of(args.du), shared.ddelta = rows_of(args.ddelta), shared.dz = rows_of(args.dz);
        shared.ddelta_a = rows_of(args.ddelta_a);
    }
    // Of four elements: the host has seen to it that strides fit.
    __device__ __forceinline__ static char* address(const Rows& rows, const Unit& at, int first) {
        return along(along(global(rows.begin), at.channel, rows.of_channel), first + at.token, rows.of_token);
    }
    __device__ __forceinline__ static i64 offset(const ChannelRows& x, const Unit& at, int first) {
        return at.channel * x.channel + (first + at.token) * x.token;
    }

    struct InFlight {
        Four u, delta, grad_out, z, delta_a;
    };
    template <int kCount>
    struct Floats {
        float u[kCount], delta[kCount], grad_out[kCount], z[kCount], delta_a[kCount];
    };
    __device__ __forceinline__ void load(InFlight& x, const Unit& at, int first) const {
        x.u.load(address(shared.u, at, first), args.io);
        x.delta.load(address(shared.delta, at, first), args.io);
        x.grad_out.load(address(shared.grad_out, at, first), args.io);
        if (in.z.data != nullptr) x.z.load(address(shared.z, at, first), args.io);
        if (in.delta_a.data != nullptr) x.delta_a.load(address(shared.delta_a, at, first), args.io);
    }
    template <DType kType>
    __device__ __forceinline__ static void convert(Floats<4>& x, const InFlight& raw) {
        raw.u.template to_floats<kType>(x.u);
        raw.delta.template to_floats<kType>(x.delta);
        raw.grad_out.template to_floats<kType>(x.grad_out);
        raw.z.template to_floats<kType>(x.z);
        raw.delta_a.template to_floats<kType>(x.delta_a);
    }
    __device__ __forceinline__ void load(Floats<1>& x, const Unit& at, int first) const {
        const auto one = [&](const Rows& rows, const ChannelRows& x) {
            return load_number({rows.begin, args.io}, offset(x, at, first));
        };
        x.u[0] = one(shared.u, in.u);
        x.delta[0] = one(shared.delta, in.delta);
        x.grad_out[0] = one(shared.grad_out, args.grad_out);
        if (in.z.data != nullptr) x.z[0] = one(shared.z, in.z);
        if (in.delta_a.data != nullptr) x.delta_a[0] = one(shared.delta_a, in.delta_a);
    }
    // Calls with the elements of each unit, while those of the next are in flight; or with each element, in a ragged tile.
    template <class F>
    __device__ __forceinline__ void for_elements(int first, int tokens, const F& call) const {
        if (args.rows_are_vectors && place.channels == kChannels && tokens == kStateChunk) {
            InFlight raw{};
            load(raw, unit(0), first);
#pragma unroll 1
            for (int i = 0; i < kUnits; ++i) {
                Floats<4> x;
                if (args.io == DType::bf16)
                    convert<DType::bf16>(x, raw);
                else if (args.io == DType::f32)
                    convert<DType::f32>(x, raw);
                else
                    convert<DType::f16>(x, raw);
                if (i + 1 < kUnits) load(raw, unit(i + 1), first);
                call(x, unit(i), true);
            }
            return;
        }
#pragma unroll 1
        for (int i = 0; i < 4 * kUnits; ++i) {
            Unit at = unit(i / 4);
            (args.along_tokens ? at.token : at.channel) += i % 4;
            const bool exists = at.channel < place.channels && at.token < tokens;
            Floats<1> x{};
            if (exists) load(x, at, first);
            call(x, at, exists);
        }
    }

    template <int kCount>
    __device__ __forceinline__ void make_elements(const Floats<kCount>& x, const Unit& unit, bool exists) const {
        float bias[kCount], made[3][kCount], sizes[1][kCount];
        auto &input = made[0], &step = made[1], &cotangent = made[2];
        per_channel(bias, shared.bias, unit);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            float size = x.delta[i] + bias[i];
            if (in.delta_softplus) size = softplus_fast(size);
            step[i] = in.delta_a.data != nullptr ? x.delta_a[i] : size, input[i] = x.u[i], cotangent[i] = x.grad_out[i];
            if constexpr (kTransition == Transition::exponential)
                if (args.input_times_delta) input[i] *= size;
            if constexpr (kTransition == Transition::s7) step[i] = -1.f / fmaf(size, size, 0.5f);
            if constexpr (kIsRglru) step[i] = size;
            if (in.z.data != nullptr) cotangent[i] *= silu_fast(x.z[i]);
            cotangent[i] *= static_cast<float>(kParts);  // y = 2 Re Σ C x of complex numbers
            sizes[0][i] = size;
            if (!exists) step[i] = input[i] = cotangent[i] = sizes[0][i] = 0.f;
        }
        put({shared.input, shared.step, shared.cotangent}, unit, made);
        if constexpr (has_size(kTransition)) put({shared.size}, unit, sizes);
    }
    __device__ __forceinline__ void make(int first, int tokens) const {
        for_elements(first, tokens, [&](const auto& x, const Unit& unit, bool exists) { make_elements(x, unit, exists); });
    }

    // ---- Their gradients

    // Sums over the states of earlier passes are added to those of the tile, which before the last pass are kept.
    __device__ __forceinline__ void add_earlier(int first, int tokens) const {
        const i64 apart = static_cast<i64>(in.batch) * in.dim * in.length;
#pragma unroll 1
        for (int i = thread_again(); i < kChannels * kStateChunk; i += Config::kThreads) {
            const int channel = i / kStateChunk, token = i % kStateChunk, at = in_row(channel, token);
            if (channel >= place.channels || token >= tokens) continue;
            float* earlier = args.earlier + (static_cast<i64>(place.batch) * in.dim + place.channel + channel) * in.length +
                             place.start + first + token;
            const auto add = [&](float& sum) {
                if (!args.first_pass) sum += *earlier;
                if (!args.last_pass) *earlier = sum;
                earlier += apart;
            };
            add(shared.input[channel][at]);
            add(shared.cotangent[channel][at]);
            if (in.z.data != nullptr) add(shared.checkpoint[token / kTokens][channel][token % kTokens]);
            if constexpr (has_size(kTransition)) add(shared.size[channel][at]);
        }
    }
    template <int kCount>
    struct Outputs {
        float du[kCount], ddelta[kCount], dz[kCount], ddelta_a[kCount];
    };
    template <DType kType>
    __device__ __forceinline__ void store(const Outputs<4>& x, const Unit& at, int first) const {
        Four::store<kType>(address(shared.du, at, first), x.du);
        Four::store<kType>(address(shared.ddelta, at, first), x.ddelta);
        if (in.z.data != nullptr) Four::store<kType>(address(shared.dz, at, first), x.dz);
        if (in.delta_a.data != nullptr) Four::store<kType>(address(shared.ddelta_a, at, first), x.ddelta_a);
    }
    __device__ __forceinline__ void store(const Outputs<4>& x, const Unit& at, int first, bool) const {
        if (args.io == DType::bf16)
            store<DType::bf16>(x, at, first);
        else if (args.io == DType::f32)
            store<DType::f32>(x, at, first);
        else
            store<DType::f16>(x, at, first);
    }
    __device__ __forceinline__ void store(const Outputs<1>& x, const Unit& at, int first, bool exists) const {
        if (!exists) return;
        const auto one = [&](const Rows& rows, const ChannelRows& to, float y) {
            store_element(global(rows.begin), args.io, offset(to, at, first), y);
        };
        one(shared.du, args.du, x.du[0]);
        one(shared.ddelta, args.ddelta, x.ddelta[0]);
        if (in.z.data != nullptr) one(shared.dz, args.dz, x.dz[0]);
        if (in.delta_a.data != nullptr) one(shared.ddelta_a, args.ddelta_a, x.ddelta_a[0]);
    }
    template <int kCount>
    __device__ __forceinline__ void finish_elements(const Floats<kCount>& x, const Unit& unit, int first, bool exists) const {
        const bool has_z = in.z.data != nullptr, has_delta_a = in.delta_a.data != nullptr;
        float made[3][kCount], of_size[1][kCount] = {}, bias[kCount], D[kCount], of_D_and_bias[2][kCount];
        get(made, {shared.input, shared.cotangent, shared.step}, unit);
        auto &of_input = made[0], &of_step = made[1], &step = made[2];
        if constexpr (has_size(kTransition)) get(of_size, {shared.size}, unit);
        Outputs<kCount> to{};
        per_channel(bias, shared.bias, unit);
        per_channel(D, shared.D, unit);
        const float* y = &shared.checkpoint[unit.token / kTokens][unit.channel][unit.token % kTokens];
        const int y_apart = args.along_tokens ? 1 : Shared::kCheckpoint;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const float before_softplus = x.delta[i] + bias[i];
            of_step[i] *= Gradient::kStepUnit;
            float d_size = of_size[0][i];
            to.du[i] = of_input[i];
            if constexpr (kTransition == Transition::exponential) {
                if (args.input_times_delta) {
                    float size = step[i];
                    if (has_delta_a) size = in.delta_softplus ? softplus_fast(before_softplus) : before_softplus;
                    d_size = x.u[i] * of_input[i];
                    to.du[i] = size * of_input[i];
                }
            }
            if constexpr (kTransition == Transition::s7) {
                const float size = in.delta_softplus ? softplus_fast(before_softplus) : before_softplus;
                d_size = 2.f * size * step[i] * step[i] * of_step[i];
            } else if constexpr (kIsRglru) {
                d_size = of_step[i];
            } else {
                if (!has_delta_a) d_size += of_step[i];
            }
            if (in.delta_softplus && before_softplus <= 20.f) d_size *= sigmoid_fast(before_softplus);
            float cotangent = x.grad_out[i];
            if (has_z) {
                const float gate = sigmoid_fast(x.z[i]);
                const float out = fmaf(D[i], x.u[i], y[i * y_apart] * static_cast<float>(kParts));
                to.dz[i] = x.grad_out[i] * out * gate * fmaf(x.z[i], 1.f - gate, 1.f);
                cotangent *= x.z[i] * gate;
            }
            to.du[i] = fmaf(D[i], cotangent, to.du[i]);
            to.ddelta[i] = d_size;
            if constexpr (kTransition != Transition::s7 && !kIsRglru) to.ddelta_a[i] = of_step[i];
            of_D_and_bias[0][i] = exists ? cotangent * x.u[i] : 0.f;
            of_D_and_bias[1][i] = exists ? d_size : 0.f;
        }
        store(to, unit, first, exists);
        put({shared.input, shared.cotangent}, unit, of_D_and_bias);  // for sum_elements
    }
    __device__ __forceinline__ void finish(int first, int tokens) const {
        for_elements(first, tokens,
                     [&](const auto& x, const Unit& unit, bool exists) { finish_elements(x, unit, first, exists); });
        __syncthreads();
        if (args.dD == nullptr && args.ddelta_bias == nullptr) return;
        const int thread = thread_again();
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
            to[static_cast<i64>(place.sequence) * in.dim + place.channel + channel] = shared.element_sums[which][channel];
    }
};

}  // namespace gdn_cuda::scan
