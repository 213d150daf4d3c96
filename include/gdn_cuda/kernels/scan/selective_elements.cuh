// The elements of a tile in a selective scan: u, δ, z and what is shaped like them. A thread prepares eight, which are
// neighbours along tokens or along channels, as they lie in memory: u and δ become the step and the input of the recurrence, in
// fp32 in shared memory, and where there are outputs, the thread stores those of its elements.
//
// What the next tile needs from memory is in flight meanwhile. Elements that are not whole aligned vectors of a whole tile take
// a slower path, one at a time.
#pragma once

#include <gdn_cuda/kernels/scan/discretization.cuh>
#include <gdn_cuda/kernels/scan/eight.cuh>
#include <gdn_cuda/kernels/scan/selective_tile.cuh>

namespace gdn_cuda::scan {

// Shared has rows of a tile and what is in flight, Args the tensors, as those of selective_forward.
template <class Shared, class Args>
struct SelectiveElements {
    static constexpr int kChannels = Shared::kChannels, kTokens = Shared::kTokens;
    static constexpr Transition kTransition = Shared::kConfiguration.transition;
    using Own = Neighbours<kChannels, kTokens>;
    using Vector = Eight<Shared::kConfiguration.is_narrow>;

    const Args& args;
    Shared& shared;
    SelectivePlace place;
    Own own;             // of a tile
    int full;            // the end of the tiles that are whole and of aligned vectors
    char* addresses[4];  // of the first tile
    enum Address { at_u, at_delta, at_z, at_out };

    enum InFlight { u_even, u_odd, delta, z };
    __device__ __forceinline__ Vector& in_flight(int i) const {
        return reinterpret_cast<Vector&>(shared.elements_in_flight[i][threadIdx.x]);
    }
    __device__ __forceinline__ static int u_of(int tile) { return tile / kTokens % 2 == 0 ? u_even : u_odd; }

    enum Rows { kStep, kInput, kSize };
    __device__ __forceinline__ float* row(int rows, int channel) const { return &shared.rows[rows][channel * Shared::kPitch]; }

    // ---- In memory

    __device__ __forceinline__ i64 offset_of(const ChannelRows& x, int tile, int i) const {
        return place.batch * x.batch + (place.channel + own.channel_of(i)) * x.channel +
               (place.span.start + tile + own.token_of(i)) * x.token;
    }
    __device__ __forceinline__ bool exists(int tile, int i) const {
        return own.channel_of(i) < place.channels && tile + own.token_of(i) < place.span.length;
    }
    __device__ __forceinline__ char* address(const ChannelRows& x, int tile) const {
        return static_cast<char*>(x.data) + (offset_of(x, tile, 0) << (Vector::is_wide(args.io) ? 2 : 1));
    }
    // From the address of the first tile; the host has seen to it that a token's stride fits.
    template <class Byte>
    __device__ __forceinline__ Byte* in_tile(Byte* first, const ChannelRows& x, int tile) const {
        return first + static_cast<i64>(tile) * (static_cast<int>(x.token) << (Vector::is_wide(args.io) ? 2 : 1));
    }
    __device__ __forceinline__ float load_one(const ChannelRows& x, int tile, int i) const {
        return load_number({x.data, args.io}, offset_of(x, tile, i));
    }

    __device__ __forceinline__ void begin() {
        full = args.rows_are_vectors && place.channels == kChannels ? place.span.length / kTokens * kTokens : 0;
        addresses[at_u] = opaque(address(args.in.u, 0)), addresses[at_delta] = opaque(address(args.in.delta, 0));
        addresses[at_z] = opaque(address(args.in.z, 0));
        if (threadIdx.x < kChannels) {
            const int c = threadIdx.x;
            shared.bias[c] = c < place.channels && args.in.delta_bias != nullptr ? args.in.delta_bias[place.channel + c] : 0.f;
        }
    }
    __device__ __forceinline__ void load(int tile) const {
        if (tile >= full) return;
        Vector::fetch(in_flight(u_of(tile)), in_tile(addresses[at_u], args.in.u, tile), args.io);
        Vector::fetch(in_flight(delta), in_tile(addresses[at_delta], args.in.delta, tile), args.io);
    }
    __device__ __forceinline__ void load_z(int tile) const {
        if (args.in.z.data != nullptr && tile < full)
            Vector::fetch(in_flight(z), in_tile(addresses[at_z], args.in.z, tile), args.io);
    }

    // ---- Steps and inputs

    // What the recurrence needs of an element.
    __device__ __forceinline__ ChannelStep prepared(float u, float delta, float delta_a, float bias) const {
        delta += bias;
        if (args.in.delta_softplus) delta = softplus_fast(delta);
        if constexpr (kTransition == Transition::s7) return {-1.f / fmaf(delta, delta, 0.5f), u, 0.f};
        if constexpr (kTransition == Transition::rglru) return {delta, u, 0.f};
        const float step = args.in.delta_a.data != nullptr ? delta_a : delta;
        if constexpr (has_size(kTransition)) return {step, u, delta};
        return {step, args.input_times_delta ? u * delta : u, 0.f};
    }
    __device__ __forceinline__ void prepare(int tile) {
        if (tile < full) {
            float of_u[8], of_delta[8], of_delta_a[8] = {}, bias[8];
            in_flight(u_of(tile)).to_floats(args.io, of_u);
            in_flight(delta).to_floats(args.io, of_delta);
            if (args.in.delta_a.data != nullptr) {  // rare, so not in flight before
                Vector raw;
                raw.load(address(args.in.delta_a, tile), args.io);
                raw.to_floats(args.io, of_delta_a);
            }
            of_channels(shared.bias, bias);
            float step[8], input[8], size[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const ChannelStep x = prepared(of_u[i], of_delta[i], of_delta_a[i], bias[i]);
                step[i] = x.step, input[i] = x.input, size[i] = x.size;
            }
            put(kStep, step);
            put(kInput, input);
            if constexpr (has_size(kTransition)) put(kSize, size);
            return;
        }
#pragma unroll 1
        for (int element = 0; element < 8; ++element) {
            const int i = opaque(element), c = own.channel_of(i), token = swizzled<kChannels>(c, own.token_of(i));
            ChannelStep x{};  // leaves the states as they are
            if (exists(tile, i))
                x = prepared(load_one(args.in.u, tile, i), load_one(args.in.delta, tile, i),
                             args.in.delta_a.data != nullptr ? load_one(args.in.delta_a, tile, i) : 0.f, shared.bias[c]);
            row(kStep, c)[token] = x.step;
            row(kInput, c)[token] = x.input;
            if constexpr (has_size(kTransition)) row(kSize, c)[token] = x.size;
        }
    }
    __device__ __forceinline__ void of_channels(const float (&per_channel)[kChannels], float (&x)[8]) const {
        if (own.along_tokens) {
#pragma unroll
            for (int i = 0; i < 8; ++i) x[i] = per_channel[own.channel];
        } else {
            load_shared(x, &per_channel[own.channel]);
        }
    }
    __device__ __forceinline__ void put(int rows, const float (&x)[8]) const {
        float* to = row(rows, own.channel) + swizzled<kChannels>(own.channel, own.token);
        if (own.along_tokens) {
            reinterpret_cast<float4*>(to)[0] = {x[0], x[1], x[2], x[3]};
            reinterpret_cast<float4*>(to)[1] = {x[4], x[5], x[6], x[7]};
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i) to[i * Shared::kPitch] = x[i];
        }
    }

    // ---- Outputs

    __device__ __forceinline__ void begin_outputs() {
        addresses[at_out] = opaque(address(args.out, 0));
        if (threadIdx.x < kChannels) {
            const int c = threadIdx.x;
            shared.D[c] = c < place.channels && args.in.D != nullptr ? args.in.D[place.channel + c] : 0.f;
        }
    }
    __device__ __forceinline__ static float ungated(float y, float of_u, float D) {
        if constexpr (Shared::kConfiguration.is_complex) y *= 2.f;
        return fmaf(D, of_u, y);
    }
    // Adds up the Σ C x of each lane, and stores the outputs of the elements that the thread prepared.
    __device__ __forceinline__ void finish(int tile) const {
        constexpr int kLanes = Shared::kConfiguration.lanes;
        if (tile < full) {
            float y[8] = {}, of_u[8], of_z[8], D[8];
            const float* from = row(Shared::kFirstSum, own.channel) + swizzled<kChannels>(own.channel, own.token);
#pragma unroll
            for (int part = 0; part < kLanes; ++part) {
                float x[8];
                if (own.along_tokens) {
                    load_shared(x, from);
                } else {
#pragma unroll
                    for (int i = 0; i < 8; ++i) x[i] = from[i * Shared::kPitch];
                }
#pragma unroll
                for (int i = 0; i < 8; ++i) y[i] += x[i];
                from += sizeof(shared.rows[0]) / sizeof(float);
            }
            of_channels(shared.D, D);
            in_flight(u_of(tile)).to_floats(args.io, of_u);
#pragma unroll
            for (int i = 0; i < 8; ++i) y[i] = ungated(y[i], of_u[i], D[i]);
            if (args.in.z.data != nullptr) {
                in_flight(z).to_floats(args.io, of_z);
#pragma unroll
                for (int i = 0; i < 8; ++i) y[i] *= silu_fast(of_z[i]);
            }
            Vector::of(args.io, y).store(in_tile(addresses[at_out], args.out, tile), args.io);
            return;
        }
#pragma unroll 1
        for (int element = 0; element < 8; ++element) {
            const int i = opaque(element);
            if (!exists(tile, i)) continue;
            const int c = own.channel_of(i), token = swizzled<kChannels>(c, own.token_of(i));
            float y = 0.f;
            for (int part = 0; part < kLanes; ++part) y += row(Shared::kFirstSum + part, c)[token];
            y = ungated(y, args.in.D != nullptr ? load_one(args.in.u, tile, i) : 0.f, shared.D[c]);
            if (args.in.z.data != nullptr) y *= silu_fast(load_one(args.in.z, tile, i));
            store_number(args.out.data, args.io, offset_of(args.out, tile, i), y);
        }
    }
};

}  // namespace gdn_cuda::scan
