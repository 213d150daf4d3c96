// What a thread of gdn/kda_mma does with its elements: two channels of half of the chunk. It computes their decays, and writes
// operands of products: keys and queries times products of decays.
#pragma once

#include <gdn_cuda/kernels/common/opaque.cuh>
#include <gdn_cuda/kernels/gdn/chunked_mma/lane.cuh>
#include <gdn_cuda/kernels/gdn/kda_mma/lane.cuh>
#include <gdn_cuda/kernels/recurrence/channel_decay.cuh>

namespace gdn_cuda::gdn {

template <KdaMmaConfig kConfig>
struct KdaMmaElements {
    static constexpr DType kIo = kConfig.io;
    static constexpr int kTokens = kKdaMmaHalf;
    using Gate = Storage<kConfig.gate>;
    using Plan = KdaMmaPlan<kConfig>;

    Plan& shared;
    const GdnCall& call;
    const MmaWork& work = shared.work;
    unsigned warp, upper, channel;  // upper: which half of the chunk
    // The next chunk's gates: pairs of fp32, or packed.
    unsigned gate[kTokens][kConfig.gate == DType::f32 ? 2 : 1];

    __device__ __forceinline__ KdaMmaElements(Plan& shared, const GdnCall& call) : shared(shared), call(call) {}

    // Recomputed for every phase rather than kept across chunks.
    __device__ __forceinline__ void find_lane() {
        const unsigned thread = opaque(threadIdx.x);
        warp = __shfl_sync(0xffffffffu, thread / 32, 0);  // warp-uniform for the compiler
        upper = thread / 16 % 2;
        channel = warp * kKdaMmaWarpChannels + thread % 16 * 2;
    }
    // The last warps may have no channels.
    __device__ __forceinline__ static bool has_channels() {
        return kConfig.warps * kKdaMmaWarpChannels <= kConfig.head_k ||
               threadIdx.x / 32 * kKdaMmaWarpChannels < static_cast<unsigned>(kConfig.head_k);
    }
    __device__ __forceinline__ bool exists() const { return static_cast<int>(channel) < call.dk; }
    // Tokens of this half.
    __device__ __forceinline__ int tokens_in(int chunk) const {
        return exists() ? work.length - chunk * kKdaMmaTokens - static_cast<int>(upper) * kTokens : 0;
    }

    __device__ __forceinline__ void issue_gate_loads(int chunk) {
        find_lane();
        const int tokens = tokens_in(chunk);
        const Gate* at = static_cast<const Gate*>(call.gate.values.data) + work.gate +
                         (chunk * kKdaMmaTokens + static_cast<int>(upper) * kTokens) * call.gate.token + channel;
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            load(gate[i], at, i < tokens);
            at += call.gate.token;
        }
    }
    // All operands of the chunk whose gates have been loaded.
    __device__ __forceinline__ void store_operands(int chunk) {
        find_lane();
        float2 decay[kTokens];
        with_channel_gate(call.channels.form, [&]<ChannelGate kForm>() { this->template make_decays<kForm>(decay); });
        const int tokens = tokens_in(chunk);
        if (__any_sync(0xffffffffu, tokens < kTokens)) [[unlikely]]  // past the end, and past dk
#pragma unroll
            for (int i = 0; i < kTokens; ++i)
                if (i >= tokens) decay[i] = {1.f, 1.f};
        unsigned key[kTokens], query[kTokens];
        const unsigned keys = rows_at(shared.key, kTokens * upper), queries = rows_at(shared.query, kTokens * upper);
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            key[i] = load_shared_word(row(keys, i));
            query[i] = load_shared_word(row(queries, i));
        }
        float2 total = decay[0];
#pragma unroll
        for (int i = 1; i < kTokens; ++i) total = times(total, decay[i]);
        const float2 other{__shfl_xor_sync(0xffffffffu, total.x, 16), __shfl_xor_sync(0xffffffffu, total.y, 16)};
        const bool zero = __any_sync(0xffffffffu, !(total.x > 0.f && total.y > 0.f));  // NaN may hide a zero
        if (threadIdx.x % 32 == 0) shared.resets[warp] = zero;
        if (!upper) *reinterpret_cast<float2*>(&shared.decay[channel]) = times(total, other);
        store_in_and_out(key, query, decay, other);
        store_halves<1>(key, query, decay);
        store_halves<2>(key, query, decay);
        store_halves<3>(key, query, decay);
    }

  private:
    __device__ __forceinline__ static float2 times(float2 a, float2 b) { return {a.x * b.x, a.y * b.y}; }
    __device__ __forceinline__ static void load(unsigned (&to)[1], const Gate* at, bool wanted) {
        to[0] = wanted ? *reinterpret_cast<const unsigned*>(at) : 0u;
    }
    __device__ __forceinline__ static void load(unsigned (&to)[2], const Gate* at, bool wanted) {
        const uint2 pair = wanted ? *reinterpret_cast<const uint2*>(at) : uint2{0u, 0u};
        to[0] = pair.x;
        to[1] = pair.y;
    }
    __device__ __forceinline__ float2 gate_of(int i) const {
        if constexpr (kConfig.gate == DType::f32)
            return {__uint_as_float(gate[i][0]), __uint_as_float(gate[i][1])};
        else
            return unpack<kConfig.gate>(gate[i][0]);
    }
    template <ChannelGate kForm>
    __device__ __forceinline__ void make_decays(float2 (&decay)[kTokens]) const {
        // Loaded for every chunk: kept across chunks, they would spill with the longest keys.
        constexpr bool kRaw = kForm == ChannelGate::softplus || kForm == ChannelGate::bounded;
        const ChannelDecay<kForm> decay_of(kRaw && call.A_log.data != nullptr ? load_float(call.A_log, work.head) : 0.f,
                                           call.channels.lower_bound);
        float2 bias{};
        if (kRaw && call.dt_bias.data != nullptr && exists()) {
            const i64 at = work.head * call.channels.bias_head + channel;
            bias = {load_float(call.dt_bias, at), load_float(call.dt_bias, at + 1)};
        }
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            const float2 x = gate_of(i);
            decay[i] = {decay_of(kRaw ? x.x + bias.x : x.x), decay_of(kRaw ? x.y + bias.y : x.y)};
        }
    }

    // The address of this thread's pair in row `first`, a multiple of 4, and from it that in row first + i: i is below 4, or 8
    // where `first` is a multiple of 8.
    template <class Tile>
    __device__ __forceinline__ unsigned rows_at(const Tile* tiles, unsigned first) const {
        return shared_address(tiles[channel / kMmaTileElements].bytes) +
               kda_tile_vector(first, channel % kMmaTileElements / 8) + channel % 8 * 2;
    }
    __device__ __forceinline__ static unsigned row(unsigned rows, int i) { return (rows ^ i << 4) + i * 128; }
    __device__ __forceinline__ static void store(unsigned address, unsigned pair, float2 factor) {
        const float2 x = times(unpack<kIo>(pair), factor);
        store_shared(address, pack<kIo>(x.x, x.y));
    }
    // K_in, Q_in, K_out, and the halves of 8 tokens, which have the same products but those of the other half.
    __device__ __forceinline__ void store_in_and_out(const unsigned (&key)[kTokens], const unsigned (&query)[kTokens],
                                                     const float2 (&decay)[kTokens], float2 other) const {
        const float2 before = upper ? other : float2{1.f, 1.f}, after = upper ? float2{1.f, 1.f} : other;
        const unsigned keys_in = rows_at(shared.key_in, kTokens * upper),
                       queries_in = rows_at(shared.query_in, kTokens * upper), left = rows_at(shared.levels.left[0], 0),
                       left_queries = rows_at(shared.levels.left[0], kTokens);
        float2 factor{1.f, 1.f};
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            factor = times(factor, decay[i]);
            const float2 whole = times(factor, before);
            store(row(keys_in, i), key[i], whole);
            store(row(queries_in, i), query[i], whole);
            if (upper) {
                store(row(left, i), key[i], factor);
                store(row(left_queries, i), query[i], factor);
            }
        }
        const unsigned out = rows_at(shared.key_out, kTokens * upper),
                       residual = rows_at(shared.key_out_residual, kTokens * upper), right = rows_at(shared.levels.right[0], 0);
        factor = {1.f, 1.f};
#pragma unroll
        for (int i = kTokens - 1; i >= 0; --i) {
            const float2 x = times(unpack<kIo>(key[i]), times(factor, after));
            const unsigned rounded = pack<kIo>(x.x, x.y);
            store_shared(row(out, i), rounded);
            store_shared(row(residual, i), pack_residual<kIo>(x.x, x.y, rounded));
            if (!upper) store(row(right, i), key[i], factor);
            factor = times(factor, decay[i]);
        }
    }
    // Halves of kHalf tokens: keys and queries of the upper ones from the border on, keys of the lower ones up to it.
    template <int kLevel>
    __device__ __forceinline__ void store_halves(const unsigned (&key)[kTokens], const unsigned (&query)[kTokens],
                                                 const float2 (&decay)[kTokens]) const {
        constexpr int kHalf = kTokens >> kLevel;
        const auto index_of = [](int i) { return i / (2 * kHalf) * kHalf + i % kHalf; };
        const unsigned first = kTokens / 2 * upper, left = rows_at(shared.levels.left[kLevel], first),
                       left_queries = rows_at(shared.levels.left[kLevel], kTokens + first);
        float2 factor{1.f, 1.f};
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            if (!(i & kHalf)) continue;
            factor = i % kHalf == 0 ? decay[i] : times(factor, decay[i]);
            store(row(left, index_of(i)), key[i], factor);
            store(row(left_queries, index_of(i)), query[i], factor);
        }
        if constexpr (kHalf > 1) {
            const unsigned right = rows_at(shared.levels.right[kLevel], first);
#pragma unroll
            for (int i = kTokens - 1; i >= 0; --i) {
                if (i & kHalf) continue;
                if (i % kHalf == kHalf - 1) {
                    factor = decay[i];
                    store_shared(row(right, index_of(i)), key[i]);
                } else {
                    store(row(right, index_of(i)), key[i], factor);
                    factor = times(factor, decay[i]);
                }
            }
        }
    }
};

}  // namespace gdn_cuda::gdn
