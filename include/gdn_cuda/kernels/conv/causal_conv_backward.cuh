// conv/causal_conv_backward: gradients of a causal convolution for up to 32 taps and any strides. With z before the activation,
//
//     dz[t] = grad[t] act'(z[t])
//     dx[j] = sum over k of weight[k] dz[j + W - 1 - k]
//     dweight[k] = sum over t of dz[t] x[t - (W - 1) + k]
//
// A block has a tile of channels and tokens in shared memory, as fp32: inputs of the tile and on both sides of it, and
// gradients of the tile and after it, which become dz in place. A thread computes 8 consecutive tokens of a channel from
// windows in registers, as in conv/causal_conv_tile. A block iterates over several tiles and writes the sums over its
// tokens, which the caller adds up: no atomics, and the same bits in every run.
//
// Bound, for 4 taps and bf16: shared memory and memory equally. An element takes about 46 bytes of shared memory, 0.36
// cycles of an SM, and 6 bytes of memory, 0.32 cycles.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv/backward_plan.cuh>
#include <gdn_cuda/kernels/conv/causal_conv/tile.cuh>

namespace gdn_cuda::conv {

template <CausalBackwardConfig kConfig>
struct CausalBackward {
    using T = Storage<kConfig.io>;
    using Plan = CausalBackwardSharedPlan<kConfig>;
    using Inputs = decltype(Plan::x);
    using Grads = decltype(Plan::dz);
    static constexpr bool kLast = kConfig.channels_last;
    static constexpr int kRun = Inputs::kRun, kTokens = kConfig.tokens(), kChannels = kConfig.channels();
    static constexpr int kReach = kConfig.reach, kThreads = kConfig.threads();

    const CausalBackwardArgs& args;
    Plan& shared;
    CausalTilePlace place;
    const CausalArgs& forward = args.forward;
    CausalSequences sequences{forward.sequences, place.batch};

    // Tokens are counted from the tile's first.
    __device__ __forceinline__ float input(int channel, int token) const {
        return shared.x.at[Inputs::place(channel, kReach + token)];
    }
    __device__ __forceinline__ float& dz(int channel, int token) const { return shared.dz.at[Grads::place(channel, token)]; }
    __device__ __forceinline__ i64 id(int token) const { return shared.ids[kReach + token]; }

    // ---- Tiles of a single sequence that do not see its state

    // Turns the gradients of 8 tokens into dz, in place.
    __device__ __forceinline__ void compute_dz(int channel, int first) const {
        if (forward.silu) {
            float z[kRun];
            causal_sums<kRun>(
                z, shared.bias[channel], forward.taps, first - (forward.taps - 1),
                [&](int k) { return shared.weight[k][channel]; }, [&](int at) { return input(channel, at); });
#pragma unroll
            for (int i = 0; i < kRun; ++i) dz(channel, first + i) *= silu_slope(z[i]);
        }
        const int left = forward.tokens - (place.token + first);
        if (left < kRun)
#pragma unroll 1
            for (int i = max(left, 0); i < kRun; ++i) dz(channel, first + i) = 0.f;  // an infinite z would give NaN
    }
    __device__ __forceinline__ void compute_dx(int channel, int first) const {
        float dx[kRun];
        causal_sums<kRun>(
            dx, 0.f, forward.taps, first, [&](int m) { return shared.weight[forward.taps - 1 - m][channel]; },
            [&](int at) { return dz(channel, at); });
        store_run<kLast, T>(forward.out, forward.vectors, place, channel, first, forward.tokens, dx);
    }
    __device__ __forceinline__ void add_weight_sums(int channel, int first, int part) const {
        float d[kRun], sum = 0.f, window[kRun];
#pragma unroll
        for (int i = 0; i < kRun; ++i) {
            d[i] = dz(channel, first + i);
            sum += d[i];
            window[i] = input(channel, first - (forward.taps - 1) + i);
        }
        add(shared.dbias[part][channel], sum);
#pragma unroll 1
        for (int k = 0; k < forward.taps; k += kRun) {
#pragma unroll
            for (int u = 0; u < kRun; ++u) {
                if (k + u >= forward.taps) break;
                sum = 0.f;
#pragma unroll
                for (int i = 0; i < kRun; ++i) sum = fmaf(d[i], window[(i + u) % kRun], sum);
                add(shared.dweight[part][k + u][channel], sum);
                window[u] = input(channel, first - (forward.taps - 1) + k + u + kRun);
            }
        }
    }
    // Adds to this thread's partial sum. If tokens are contiguous, all lanes of a warp have the same channel.
    __device__ __forceinline__ void add(float& to, float x) const {
        if constexpr (!kLast) x = group_sum<32>(x);
        if (kLast || threadIdx.x % 32 == 0) to += x;
    }

    // ---- Mixed tiles, token by token

    // The input that a token multiplies by tap k.
    __device__ __forceinline__ float seen(int channel, int token, int k) const {
        const int at = token - (forward.taps - 1) + k;
        const i64 own = id(token), before = sequences.first_token(own) - (place.token + at);
        if (before > 0) {
            const bool exists = place.channel + channel < forward.channels;
            return exists && sequences.continues(own) ? sequences.state_of(own).at(place.channel + channel, before) : 0.f;
        }
        return id(at) == own ? input(channel, at) : 0.f;
    }
    __device__ __forceinline__ void compute_dz_by_token(int channel, int first) const {
#pragma unroll 1
        for (int token = first; token < first + kRun; ++token) {
            if (id(token) < 0) {
                dz(channel, token) = 0.f;
            } else if (forward.silu) {
                float z = shared.bias[channel];
#pragma unroll 1
                for (int k = 0; k < forward.taps; ++k) z = fmaf(shared.weight[k][channel], seen(channel, token, k), z);
                dz(channel, token) *= silu_slope(z);
            }
        }
    }
    // The gradient of the final state with respect to one of the last W - 1 tokens.
    __device__ __forceinline__ float state_gradient(int channel, int token) const {
        const CausalStates& states = args.grad_states;
        const i64 own = id(token);
        if (states.values.data == nullptr) return 0.f;
        const bool packed = sequences.packed();
        const i64 end = packed ? min(load_index(forward.sequences.cu_seqlens, own + 1), i64{forward.tokens}) : forward.tokens;
        const i64 position = place.token + token - (end - states.positions);
        if (position < 0 || position >= states.positions) return 0.f;
        if (!packed && own != sequences.id_of(forward.tokens - 1)) return 0.f;
        return load_float(states.values, (packed ? own : place.batch) * states.slot +
                                             (place.channel + channel) * states.channel + position * states.position);
    }
    __device__ __forceinline__ void compute_dx_by_token(int channel, int first) const {
        const int end = min(first + kRun, forward.tokens - place.token);
#pragma unroll 1
        for (int token = first; token < end; ++token) {
            const i64 own = id(token);
            float dx = 0.f;
            if (own >= 0) {
#pragma unroll 1
                for (int m = 0; m < forward.taps; ++m)
                    if (id(token + m) == own)
                        dx = fmaf(shared.weight[forward.taps - 1 - m][channel], dz(channel, token + m), dx);
                dx += state_gradient(channel, token);
            }
            store_one<T>(forward.out, place, channel, token, dx);
        }
    }
    __device__ __forceinline__ void add_weight_sums_by_token(int channel, int first, int part) const {
        float sum = 0.f;
#pragma unroll 1
        for (int i = 0; i < kRun; ++i) sum += dz(channel, first + i);
        add(shared.dbias[part][channel], sum);
#pragma unroll 1
        for (int k = 0; k < forward.taps; ++k) {
            sum = 0.f;
#pragma unroll 1
            for (int token = first; token < first + kRun; ++token)
                if (id(token) >= 0) sum = fmaf(dz(channel, token), seen(channel, token, k), sum);
            add(shared.dweight[part][k][channel], sum);
        }
    }

    // ---- The block

    __device__ __forceinline__ static int channel_of(int unit, int runs) { return kLast ? unit % kChannels : unit / runs; }
    __device__ __forceinline__ static int first_token(int unit, int runs) {
        return (kLast ? unit / kChannels : unit % runs) * kRun;
    }

    __device__ __forceinline__ void tile() {
        load_inputs<T, kLast, kThreads>(forward.x, forward.vectors, place, forward.channels, forward.tokens, kReach, shared.x);
        load_inputs<T, kLast, kThreads>(args.grad, args.grad_vectors, place, forward.channels, forward.tokens, 0, shared.dz);
        bool mixed = false;  // whether the tile is computed token by token
        if constexpr (kConfig.sequences) {
            mixed = load_ids<kThreads>(sequences, place.token - kReach, forward.taps, kReach, forward.tokens, shared.ids);
            mixed |= args.grad_states.values.data != nullptr && place.token + kTokens > forward.tokens - (forward.taps - 1);
            if (mixed) fill_ids();
        } else {
            __syncthreads();
        }
        constexpr int kRuns = kTokens / kRun, kGradRuns = (kTokens + kReach) / kRun;
        const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
        for (int unit = thread; unit < kChannels * kGradRuns; unit += kThreads) {
            const int channel = channel_of(unit, kGradRuns), first = first_token(unit, kGradRuns);
            if (kConfig.sequences && mixed)
                compute_dz_by_token(channel, first);
            else
                compute_dz(channel, first);
        }
        __syncthreads();
#pragma unroll 1
        for (int unit = thread; unit < kChannels * kRuns; unit += kThreads) {
            const int channel = channel_of(unit, kRuns), first = first_token(unit, kRuns);
            const int part = kLast ? thread / kChannels : unit % kRuns / 32;
            const bool exists = place.channel + channel < forward.channels && place.token + first < forward.tokens;
            if (kConfig.sequences && mixed) {
                if (exists) compute_dx_by_token(channel, first);
                add_weight_sums_by_token(channel, first, part);
            } else {
                if (exists) compute_dx(channel, first);
                add_weight_sums(channel, first, part);
            }
        }
        __syncthreads();
    }
    // Fills the ids of the last tile of a row, for which load_ids may have returned early.
    __device__ __forceinline__ void fill_ids() {
        if (!sequences.varies() && forward.sequences.slots.data == nullptr)
            for (int i = static_cast<int>(threadIdx.x); i < kTokens + 2 * kReach; i += kThreads) {
                const int token = place.token - kReach + i;
                shared.ids[i] = token < 0 || token >= forward.tokens ? kNoSequence : 0;
            }
        __syncthreads();
    }
    __device__ __forceinline__ void run(int split) {
        const int thread = static_cast<int>(threadIdx.x);
        load_taps<kThreads>(forward, place.channel, shared.weight, shared.bias);
        for (int i = thread; i < Plan::kParts * kChannels; i += kThreads) shared.dbias[i / kChannels][i % kChannels] = 0.f;
        for (int i = thread; i < Plan::kParts * kReach * kChannels; i += kThreads)
            shared.dweight[i / (kReach * kChannels)][i / kChannels % kReach][i % kChannels] = 0.f;
        const int from = split * args.tiles * kTokens;
#pragma unroll 1
        for (int i = 0; i < args.tiles; ++i) {
            if (i * kTokens >= forward.tokens - from) break;
            place.token = from + i * kTokens;
            tile();
        }
        const i64 row = static_cast<i64>(place.batch) * args.splits + split;
        for (int i = thread; i < kChannels * (forward.taps + 1); i += kThreads) {
            const int channel = i / (forward.taps + 1), k = i % (forward.taps + 1);
            if (place.channel + channel >= forward.channels) continue;
            float sum = 0.f;
#pragma unroll
            for (int part = 0; part < Plan::kParts; ++part)
                sum += k < forward.taps ? shared.dweight[part][k][channel] : shared.dbias[part][channel];
            const i64 at = row * forward.channels + place.channel + channel;
            if (k < forward.taps)
                args.dweight[at * forward.taps + k] = sum;
            else
                args.dbias[at] = sum;
        }
    }
};

template <CausalBackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_of_sm())
    causal_conv_backward(const __grid_constant__ CausalBackwardArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<CausalBackwardSharedPlan<kConfig>*>(memory);
    // The place's `token` counts the splits of a row.
    const CausalTilePlace place(args.forward.channels, args.splits, kConfig.channels_last, kConfig.channels(), 1);
    CausalBackward<kConfig>{args, shared, place}.run(place.token);
}

}  // namespace gdn_cuda::conv
