// What a thread of gdn/kda_prepare does with its elements: two channels of the 16 tokens of a quarter of the chunk. It loads
// keys, queries and gates once, keeps them in registers, and writes operands of products: keys and queries times products of
// decays. A warp writes whole rows of 64 channels.
#pragma once

#include <gdn_cuda/kernels/common/opaque.cuh>
#include <gdn_cuda/kernels/common/pairs.cuh>
#include <gdn_cuda/kernels/common/shared.cuh>
#include <gdn_cuda/kernels/gdn/kda/preparing_block.cuh>
#include <gdn_cuda/kernels/recurrence/channel_decay.cuh>

namespace gdn_cuda::gdn {

template <KdaPrepareConfig kConfig, class Thread = KdaBlockThread>
struct KdaElements {
    static constexpr DType kIo = kConfig.io;
    static constexpr int kTokens = KdaPrepareConfig::kQuarterTokens;
    using Gate = Storage<kConfig.gate>;

    KdaPreparePlan& shared;
    const Thread thread;
    int lane, tile, quarter;  // channels 64 tile + 2 lane and + 1
    unsigned key[kTokens], query[kTokens];
    float2 decay[kTokens];

    __device__ __forceinline__ explicit KdaElements(KdaPreparePlan& shared, Thread thread = {})
        : shared(shared), thread(thread) {
        find_lane();
        if constexpr (Thread::kTakesMany)
            for (float2& each : decay) each = {};
    }
    __device__ __forceinline__ void find_lane() {
        const int index = opaque(static_cast<int>(thread.index())),
                  warp = __shfl_sync(0xffffffffu, index / 32, 0);  // warp-uniform for the compiler
        lane = index % 32;
        tile = warp % kKdaTiles;
        quarter = warp / kKdaTiles;
    }
    __device__ __forceinline__ int channel() const { return kTileElements * tile + 2 * lane; }

    // A thread's gates, unconverted, so that all loads are in flight at once. Those of tokens past the end, and of channels
    // past dk, are others'.
    struct Gates {
        using Pair = cute::conditional_t<kConfig.gate == DType::f32, float2, unsigned>;
        Pair gate[kTokens];
        RawElement A_log, dt_bias[2];

        __device__ __forceinline__ float2 at(int i) const {
            if constexpr (kConfig.gate == DType::f32)
                return gate[i];
            else
                return unpack<kConfig.gate>(gate[i]);
        }
    };
    __device__ __forceinline__ void load_gates(Gates& gates, const GdnCall& call, const KdaChunk& chunk) const {
        if constexpr (Thread::kTakesMany) gates = {};
        const int column = channel() < call.dk ? channel() : 0;
        const Gate* const first = static_cast<const Gate*>(call.gate.values.data) + chunk.sequence * call.gate.batch +
                                  chunk.first * call.gate.token + chunk.head * call.gate.head + column;
        // fits_kda_chunks. Opaque: otherwise the compiler multiplies 64 bits by 64.
        const unsigned step = opaque(static_cast<unsigned>(call.gate.token * static_cast<i64>(sizeof(Gate))));
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            const auto token = static_cast<unsigned>(min(kTokens * quarter + i, chunk.tokens - 1));
            gates.gate[i] = *reinterpret_cast<const typename Gates::Pair*>(reinterpret_cast<const char*>(first) +
                                                                           static_cast<unsigned long long>(token) * step);
        }
        __syncwarp();  // the compiler would load them last, after A_log, biases and beta
        if (call.A_log.data != nullptr) gates.A_log.load(call.A_log, chunk.head);
        if (call.dt_bias.data == nullptr) return;
#pragma unroll
        for (int i = 0; i < 2; ++i) gates.dt_bias[i].load(call.dt_bias, chunk.head * call.channels.bias_head + column + i);
    }
    __device__ __forceinline__ void make_decays(const Gates& gates, const GdnCall& call) {
        with_channel_gate(call.channels.form, [&]<ChannelGate kForm>() { this->template make_decays<kForm>(call, gates); });
    }
    // Keys and queries, which are in their tiles by then. Tokens past the end, and channels past dk, have zeros and a decay of
    // 1.
    __device__ __forceinline__ void load(const GdnCall& call, const KdaChunk& chunk) {
        const int tokens = tokens_of(call, chunk);
        const unsigned keys = rows_at(shared.operands.key, kTokens * quarter),
                       queries = rows_at(shared.operands.query, kTokens * quarter);
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            key[i] = load_shared_word((keys ^ (i % 8) << 4) + i * 128);
            query[i] = load_shared_word((queries ^ (i % 8) << 4) + i * 128);
        }
        if (__any_sync(0xffffffffu, tokens < kTokens)) [[unlikely]]
#pragma unroll
            for (int i = 0; i < kTokens; ++i) {
                if (i < tokens) continue;
                key[i] = query[i] = 0;
                decay[i] = {1.f, 1.f};
            }
    }

    // The product of the decays of its tokens.
    __device__ __forceinline__ float2 total() const {
        float2 product = decay[0];
#pragma unroll
        for (int i = 1; i < kTokens; ++i) product = times(product, decay[i]);
        return product;
    }
    // Whether products of `quarters` quarters' decays have reciprocals that may scale operands, as far as this one says.
    __device__ __forceinline__ static bool is_slow(float2 total, int quarters) {
        const float least = quarters == 1 ? kLeast : 9.4e-14f;  // e^-30
        return total.x >= least && total.y >= least;
    }
    __device__ __forceinline__ bool has_zero() const {
        bool found = false;
#pragma unroll
        for (const float2& each : decay) found = found || each.x == 0.f || each.y == 0.f;
        return found;
    }
    // Products of the decays of quarters [from, until); of those before and after this one.
    __device__ __forceinline__ float2 product_of_totals(int from, int until) const {
        float2 product{1.f, 1.f};
#pragma unroll
        for (int i = 0; i < KdaPrepareConfig::kQuarters; ++i)
            if (from <= i && i < until) product = times(product, pair_at(&shared.totals[i][channel()]));
        return product;
    }
    __device__ __forceinline__ float2 before(int from = 0) const { return product_of_totals(from, quarter); }
    __device__ __forceinline__ float2 after(int until = KdaPrepareConfig::kQuarters) const {
        return product_of_totals(quarter + 1, until);
    }

    // Whether decays are so slow that each, from the middle token on, has a reciprocal that may scale an operand.
    __device__ __forceinline__ bool has_reciprocals() const {
        float2 later{1.f, 1.f}, earlier = decay[1];
#pragma unroll
        for (int i = 2; i < kTokens; ++i) (i <= kMiddle ? earlier : later) = times(i <= kMiddle ? earlier : later, decay[i]);
        return later.x >= kLeast && later.y >= kLeast && earlier.x >= kLeast && earlier.y >= kLeast;
    }

    // Before a pass over the elements: otherwise the compiler would convert keys and queries once, keep products of decays that
    // several passes have, and spill all of them.
    __device__ __forceinline__ void refresh() {
        find_lane();
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            key[i] = opaque(key[i]);
            query[i] = opaque(query[i]);
            decay[i] = {opaque(decay[i].x), opaque(decay[i].y)};
        }
    }

    // ---- Operands. A query row is that of the quarter's first token.

    // Keys times the product of the decays from `factor` on, this token's included.
    __device__ __forceinline__ void store_forwards(SwizzledTile* keys, SwizzledTile* queries, int query_row,
                                                   float2 factor) const {
        const unsigned key_rows = rows_at(keys, kTokens * quarter), query_rows = rows_at(queries, query_row);
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            factor = times(factor, decay[i]);
            store(key_rows, i, key[i], factor);
            store(query_rows, i, query[i], factor);
        }
    }
    // Keys times the product of the decays up to `factor`, without this token's; kResidual: what rounding leaves of them.
    template <bool kResidual = false>
    __device__ __forceinline__ void store_backwards(SwizzledTile* keys, float2 factor) const {
        const unsigned rows = rows_at(keys, kTokens * quarter);
#pragma unroll
        for (int i = kTokens - 1; i >= 0; --i) {
            store<kResidual>(rows, i, key[i], factor);
            factor = times(factor, decay[i]);
        }
    }
    // Keys divided by the product of the decays from `factor` on, this token's included.
    template <bool kResidual = false>
    __device__ __forceinline__ void store_divided(SwizzledTile* keys, float2 factor) const {
        const unsigned rows = rows_at(keys, kTokens * quarter);
        for_each_after<0>(factor, [&](int i, float2, float2 reciprocal) { store<kResidual>(rows, i, key[i], reciprocal); });
    }
    // Both at once for levels 16 and 32: the products of the latter have one factor more.
    __device__ __forceinline__ void store_forwards_twice(KdaPreparePlan::Operands& to, float2 more) const {
        const int first = kTokens * quarter;
        const unsigned keys = rows_at(to.key, first), other_keys = rows_at(to.other_key, first),
                       queries = rows_at(to.query, 16), other_queries = rows_at(to.query, 48);
        float2 factor{1.f, 1.f};
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            factor = times(factor, decay[i]);
            const float2 k = times(unpack<kIo>(key[i]), factor), q = times(unpack<kIo>(query[i]), factor);
            store_product(other_keys, i, k, {1.f, 1.f});
            store_product(other_queries, i, q, {1.f, 1.f});
            store_product(keys, i, k, more);
            store_product(queries, i, q, more);
        }
    }
    __device__ __forceinline__ void store_backwards_twice(KdaPreparePlan::Operands& to, float2 more) const {
        const int first = kTokens * quarter;
        const unsigned keys = rows_at(to.key, first), other_keys = rows_at(to.other_key, first);
        float2 factor{1.f, 1.f};
#pragma unroll
        for (int i = kTokens - 1; i >= 0; --i) {
            const float2 k = times(unpack<kIo>(key[i]), factor);
            store_product(other_keys, i, k, {1.f, 1.f});
            store_product(keys, i, k, more);
            factor = times(factor, decay[i]);
        }
    }
    // Left operands have the decay from the middle token on, right ones its reciprocal.
    __device__ __forceinline__ void store_around_middle(KdaPreparePlan::Operands& to) const {
        const auto store_token = store_of_scores(to);
        for_each_until<kMiddle + 1>({1.f, 1.f},
                                    [&](int i, float2 factor, float2 reciprocal) { store_token(i, reciprocal, factor); });
        for_each_after<kMiddle + 1>({1.f, 1.f}, store_token);
    }
    // The same about a border between quarters, which this one follows or comes before. `factor`: the product of the decays
    // between the border and this quarter.
    __device__ __forceinline__ void store_around_border(KdaPreparePlan::Operands& to, bool follows, float2 factor) const {
        const auto store_token = store_of_scores(to);
        if (follows)
            for_each_after<0>(factor, store_token);
        else
            for_each_until<kTokens>(factor, [&](int i, float2 up_to, float2 reciprocal) { store_token(i, reciprocal, up_to); });
    }
    // Halves of kHalf tokens: keys and queries of the upper ones from the border on, keys of the lower ones up to it. Queries
    // are packed, eight of a quarter.
    template <int kHalf>
    __device__ __forceinline__ void store_halves(SwizzledTile* keys, SwizzledTile* queries, int first_query) const {
        const unsigned key_rows = rows_at(keys, kTokens * quarter), query_rows = rows_at(queries, first_query + 8 * quarter);
        float2 factor{1.f, 1.f};
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            if (!(i & kHalf)) continue;
            factor = i % kHalf == 0 ? decay[i] : times(factor, decay[i]);
            store(key_rows, i, key[i], factor);
            store(query_rows, i / (2 * kHalf) * kHalf + i % kHalf, query[i], factor);
        }
#pragma unroll
        for (int i = kTokens - 1; i >= 0; --i) {
            if (i & kHalf) continue;
            if (i % kHalf == kHalf - 1) factor = {1.f, 1.f};
            store(key_rows, i, key[i], factor);
            factor = times(factor, decay[i]);
        }
    }

  private:
    static constexpr int kMiddle = 7;
    static constexpr int kDivided = 4;         // tokens that share a reciprocal
    static constexpr float kLeast = 8.7e-27f;  // e^-60

    __device__ __forceinline__ int tokens_of(const GdnCall& call, const KdaChunk& chunk) const {
        return channel() < call.dk ? chunk.tokens - kTokens * quarter : 0;
    }
    // Stores a token's left operands, which have on_left, and its right one.
    __device__ __forceinline__ auto store_of_scores(KdaPreparePlan::Operands& to) const {
        const int first = kTokens * quarter;
        const unsigned left = rows_at(to.key, first), right = rows_at(to.other_key, first), queries = rows_at(to.query, first);
        return [this, left, right, queries](int i, float2 on_left, float2 on_right) {
            store(left, i, key[i], on_left);
            store(queries, i, query[i], on_left);
            store(right, i, key[i], on_right);
        };
    }
    // Calls visit(token, product, its reciprocal) for tokens from kFirst on; the product: of `factor` and the decays of tokens
    // kFirst to this one.
    template <int kFirst, class Visit>
    __device__ __forceinline__ void for_each_after(float2 factor, Visit&& visit) const {
#pragma unroll
        for (int first = kFirst; first < kTokens; first += kDivided) {
            float2 products[kDivided], reciprocals[kDivided];
#pragma unroll
            for (int i = 0; i < kDivided; ++i) products[i] = factor = times(factor, decay[first + i]);
            divide(reciprocals, factor, [&](int i) { return decay[first + i]; });
#pragma unroll
            for (int i = 0; i < kDivided; ++i) visit(first + i, products[i], reciprocals[i]);
        }
    }
    // The same for tokens before kLast, from the last to the first; the product: of `factor` and the decays of tokens between
    // this one and kLast.
    template <int kLast, class Visit>
    __device__ __forceinline__ void for_each_until(float2 factor, Visit&& visit) const {
#pragma unroll
        for (int last = kLast - 1; last >= 0; last -= kDivided) {
            float2 products[kDivided], reciprocals[kDivided];
            products[0] = factor;
#pragma unroll
            for (int i = 1; i < kDivided; ++i) products[i] = times(products[i - 1], decay[last + 1 - i]);
            divide(reciprocals, products[kDivided - 1], [&](int i) { return decay[last + 1 - i]; });
#pragma unroll
            for (int i = 0; i < kDivided; ++i) visit(last - i, products[i], reciprocals[i]);
            factor = times(products[kDivided - 1], decay[last + 1 - kDivided]);
        }
    }
    // One special function for kDivided products, each decay_of(i) times the one before.
    template <class DecayOf>
    __device__ __forceinline__ static void divide(float2 (&reciprocals)[kDivided], float2 last, DecayOf&& decay_of) {
        reciprocals[kDivided - 1] = {reciprocal_fast(last.x), reciprocal_fast(last.y)};
#pragma unroll
        for (int i = kDivided - 1; i > 0; --i) reciprocals[i - 1] = times(reciprocals[i], decay_of(i));
    }
    template <ChannelGate kForm>
    __device__ __forceinline__ void make_decays(const GdnCall& call, const Gates& gates) {
        const ChannelDecay<kForm> decay_of(gates.A_log.to_float(call.A_log.type), call.channels.lower_bound);
        const auto make = [&](float2 bias, auto&& of) {
#pragma unroll
            for (int i = 0; i < kTokens; ++i) {
                const float2 gate = gates.at(i);
                decay[i] = {of(gate.x + bias.x), of(gate.y + bias.y)};
            }
        };
        if constexpr (kForm == ChannelGate::softplus || kForm == ChannelGate::bounded) {
            const float2 bias{gates.dt_bias[0].to_float(call.dt_bias.type), gates.dt_bias[1].to_float(call.dt_bias.type)};
            if (kForm == ChannelGate::softplus && decay_of.rate_log <= ChannelDecay<kForm>::kLargestPlainRateLog)
                make(bias, [&](float x) { return exp2_fast(decay_of.rate * channel_softplus(x)); });
            else if constexpr (kForm == ChannelGate::bounded)
                make_bounded_decays(gates, bias, decay_of.bound, at_least(decay_of.rate * kLog2E, -3.40282347e38f));
            else
                make(bias, decay_of);
        } else {
            make({}, decay_of);
        }
    }
    // ChannelDecay's, but special functions bound them, so four elements share a reciprocal. Below 2^31 the four sums have a
    // finite product, and above it a decay is 1.
    __device__ __forceinline__ void make_bounded_decays(const Gates& gates, float2 bias, float bound, float rate) {
#pragma unroll
        for (int i = 0; i < kTokens; i += 2) {
            const float2 low = gates.at(i), high = gates.at(i + 1);
            const auto sum = [&](float x) { return 1.f + exp2_fast(at_most(rate * x, 31.f)); };
            const float a = sum(low.x + bias.x), b = sum(low.y + bias.y), c = sum(high.x + bias.x), d = sum(high.y + bias.y);
            const float ab = a * b, cd = c * d, each = bound * reciprocal_fast(ab * cd), by_ab = each * cd, by_cd = each * ab;
            decay[i] = {exp2_fast(by_ab * b), exp2_fast(by_ab * a)};
            decay[i + 1] = {exp2_fast(by_cd * d), exp2_fast(by_cd * c)};
        }
    }
    // `row`: a multiple of 8.
    __device__ __forceinline__ unsigned rows_at(const SwizzledTile* tiles, int row) const {
        return shared_address(tiles[tile].bytes) + row * 128 + 4 * lane;
    }
    template <bool kResidual = false>
    __device__ __forceinline__ static void store(unsigned rows, int i, unsigned pair, float2 factor) {
        store_product<kResidual>(rows, i, unpack<kIo>(pair), factor);
    }
    template <bool kResidual = false>
    __device__ __forceinline__ static void store_product(unsigned rows, int i, float2 x, float2 factor) {
        x = times(x, factor);
        const unsigned rounded = pack<kIo>(x.x, x.y);
        store_shared((rows ^ (i % 8) << 4) + i * 128, kResidual ? pack_residual<kIo>(x.x, x.y, rounded) : rounded);
    }
};

}  // namespace gdn_cuda::gdn
